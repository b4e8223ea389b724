#include "arena.hpp"

#include <sys/resource.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "clock.hpp"

namespace bigmem {
namespace {

// NumPy asks for huge pages from here on.
constexpr std::size_t huge_threshold = std::size_t{4} << 20;
// The last huge page of a block is wasted in part: at most one part in so many, unless asked for.
constexpr std::size_t huge_waste = 4;
constexpr std::size_t largest_chunk = std::size_t{1} << 30;
constexpr std::size_t first_small_chunk = std::size_t{16} << 20;
constexpr std::size_t first_huge_chunk = std::size_t{256} << 20;
constexpr double chunk_seconds = 0.002;
// Under a limit on the address range regions are as small as this.
constexpr std::size_t small_region = std::size_t{64} << 20;
constexpr std::chrono::microseconds breath{200};
constexpr int most_breaths = 5000;

std::size_t round_up(std::size_t size, std::size_t unit) { return (size + unit - 1) / unit * unit; }

std::size_t physical_memory() {
  struct sysinfo info;
  if (sysinfo(&info) != 0) return std::size_t{64} << 30;
  return (std::size_t{info.totalram} + info.totalswap) * info.mem_unit;
}

bool address_range_is_limited() {
  rlimit limit;
  return getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

}  // namespace

Arena::Arena(ArenaConfig config)
    : config_(std::move(config)),
      // A hint for each small mapping would cost a system call a block.
      small_(small_unit, config_.decay,
             config_.mapping_per_block && config_.huge != ArenaConfig::Huge::never
                 ? PageSize::plain
                 : PageSize::small,
             first_small_chunk),
      huge_(config_.mapping_per_block ? small_unit : huge_unit, config_.decay, PageSize::huge,
            first_huge_chunk) {}

// Nothing is live, and nobody else knows the arena any more: each region becomes one extent.
Arena::~Arena() {
  if (config_.budget) config_.budget->credit(resident());
  for (Zone* zone : {&small_, &huge_}) {
    while (Extent* extent = zone->map.take(ExtentMap::Take::any, 0, SIZE_MAX))
      zone->map.finish(extent, ExtentMap::Outcome::clean);
    zone->map.for_each([&](const Extent& extent) {
      config_.pages.unreserve(config_.pages.context, reinterpret_cast<void*>(extent.begin),
                              extent.size);
    });
  }
}

Arena::Zone& Arena::zone_for(std::size_t nbytes) {
  switch (config_.huge) {
    case ArenaConfig::Huge::never:
      return small_;
    case ArenaConfig::Huge::always:
      return nbytes >= huge_unit ? huge_ : small_;
    case ArenaConfig::Huge::automatic:
      break;
  }
  const std::size_t waste = config_.mapping_per_block ? 0 : round_up(nbytes, huge_unit) - nbytes;
  return nbytes >= huge_threshold && waste <= nbytes / huge_waste ? huge_ : small_;
}

std::size_t Arena::rounded(std::size_t nbytes) {
  return round_up(std::max<std::size_t>(nbytes, 1), zone_for(nbytes).unit);
}

State Arena::released_state() const {
  if (config_.policy == ArenaConfig::Policy::inline_) return State::reclaiming;
  return config_.policy == ArenaConfig::Policy::deferred || retired_ ? State::pending : State::warm;
}

std::size_t Arena::resident() const {
  return bytes(State::live) + bytes(State::pending) + bytes(State::reclaiming) +
         bytes(State::warm) + bytes(State::lazy);
}

// Brings nodes for the map, from outside the lock. False when there is no memory even for that.
bool Arena::refill(Zone& zone) noexcept {
  std::unique_lock lock(mutex_);
  while (!zone.map.has_nodes()) {
    lock.unlock();
    void* slab = ExtentMap::new_slab();
    if (!slab) return false;
    lock.lock();
    zone.map.donate(slab);
  }
  return true;
}

// Called with the lock held and nodes at hand.
Arena::Attempt Arena::attempt(Zone& zone, std::size_t size, std::size_t alignment, Lease& lease,
                              bool& dirty) {
  ExtentMap::Allocation found = zone.map.allocate(size, alignment, false);
  // Warm small pages are filled faster than fresh huge ones, and taking them keeps many small
  // blocks followed by a large one from occupying twice the memory.
  if (!found.extent && &zone == &huge_ && config_.huge == ArenaConfig::Huge::automatic &&
      !config_.mapping_per_block && small_.map.has_nodes())
    found = small_.map.allocate(size, alignment, false);
  if (!found.extent) {
    if (config_.budget && !config_.budget->charge(size)) return Attempt::over_budget;
    found = zone.map.allocate(size, alignment, true);
    if (!found.extent) {
      if (config_.budget) config_.budget->credit(size);
      return Attempt::no_room;
    }
  }
  if (found.from == State::warm) ++counters_.warm_hits;
  counters_.peak_live = std::max(counters_.peak_live, bytes(State::live));
  counters_.peak_resident = std::max(counters_.peak_resident, resident());
  dirty = !found.zero;
  lease.address = reinterpret_cast<void*>(found.extent->begin);
  lease.token = found.extent;
  return Attempt::good;
}

bool Arena::allocate_quickly(std::size_t nbytes, std::size_t alignment, Lease& lease, bool& dirty) {
  if (config_.pages.needs_commit || config_.mapping_per_block) return false;
  Zone& zone = zone_for(nbytes);
  if (!refill(zone)) return false;
  if (config_.reclaimer->refused()) return false;
  std::unique_lock lock(mutex_);
  const std::size_t size = rounded(nbytes);
  if (!zone.map.has_nodes()) return false;  // spent by others meanwhile
  if (attempt(zone, size, alignment, lease, dirty) != Attempt::good) return false;
  lock.unlock();
  lease.nbytes = nbytes;
  rouse();
  return true;
}

// Not before a block is live: a worker that found nothing live would sleep again. Starting a thread
// costs a release a hundred microseconds; an allocation that maps memory hardly notices.
void Arena::rouse() noexcept {
  if (config_.policy != ArenaConfig::Policy::inline_) config_.reclaimer->ensure_workers();
  config_.reclaimer->wake();
}

Arena::Result Arena::allocate(std::size_t nbytes, std::size_t alignment, Lease& lease,
                              bool& dirty) {
  Zone& zone = zone_for(nbytes);
  const std::size_t size = rounded(nbytes);
  lease.nbytes = nbytes;
  // Nobody else reclaims where threads are refused: what is due goes back here.
  if (config_.reclaimer->still_refused()) config_.reclaimer->help();

  for (;;) {
    Attempt attempted = Attempt::no_room;
    if (!config_.mapping_per_block) {
      if (!refill(zone)) return Result::out_of_memory;
      std::lock_guard lock(mutex_);
      attempted =
          zone.map.has_nodes() ? attempt(zone, size, alignment, lease, dirty) : Attempt::need_nodes;
    }
    if (attempted == Attempt::no_room) attempted = grow(zone, size, alignment, lease, dirty);
    if (attempted == Attempt::over_budget) return Result::over_budget;
    if (attempted == Attempt::need_nodes) continue;
    if (attempted == Attempt::good && commit(static_cast<Extent*>(lease.token))) {
      rouse();
      return Result::good;
    }
    // Refused by the system. Our own idle memory may be in the way.
    if (reclaim_one(ExtentMap::Take::any, SIZE_MAX, Advice::dontneed).tried) continue;
    {
      std::lock_guard lock(mutex_);
      if (!bytes(State::reclaiming)) return Result::out_of_memory;
    }
    std::this_thread::sleep_for(breath);
  }
}

// Reserves one more region and serves the request from it, before anyone else can.
Arena::Attempt Arena::grow(Zone& zone, std::size_t size, std::size_t alignment, Lease& lease,
                           bool& dirty) {
  static const std::size_t ample = round_up(2 * physical_memory(), std::size_t{1} << 30);
  const PagesTable& pages = config_.pages;
  const std::size_t border = zone.page == PageSize::huge ? huge_unit : small_unit;
  const auto reserve = [&](std::size_t nbytes) {
    return pages.reserve(pages.context, nbytes, std::max(alignment, border), zone.page);
  };
  std::size_t region = size;
  if (!config_.mapping_per_block) {
    // A limit may have come since the last region.
    if (address_range_is_limited()) unmap_when_clean_ = true;
    const std::size_t wanted = config_.reserve     ? config_.reserve
                               : unmap_when_clean_ ? small_region
                                                   : ample;
    region = std::max(round_up(wanted, zone.unit), size);
  }
  void* begin = reserve(region);
  if (!begin && region > size) {
    unmap_when_clean_ = true;
    begin = reserve(region = size);
  }
  if (!begin) return Attempt::no_room;

  Attempt attempted = Attempt::need_nodes;
  if (refill(zone)) {
    std::lock_guard lock(mutex_);
    if (zone.map.has_nodes()) {
      Extent* added = zone.map.add_region(reinterpret_cast<std::uintptr_t>(begin), region,
                                          pages.zero_after_decommit);
      attempted = attempt(zone, size, alignment, lease, dirty);
      if (attempted == Attempt::good) return attempted;
      zone.map.remove(added);
    }
  }
  pages.unreserve(pages.context, begin, region);
  return attempted;
}

bool Arena::commit(Extent* extent) noexcept {
  if (!config_.pages.needs_commit) return true;
  if (config_.pages.commit(config_.pages.context, reinterpret_cast<void*>(extent->begin),
                           extent->size, zone_of(extent).page) == 0)
    return true;
  std::unique_lock lock(mutex_);
  extent->map->release(extent, State::reclaiming, seconds_now(), ++serial_);
  lock.unlock();
  reclaim_extent(extent, Advice::dontneed);
  return false;
}

bool Arena::release(void* token, bool fenced) noexcept {
  const double start = seconds_now();
  auto* extent = static_cast<Extent*>(token);
  {
    std::lock_guard lock(mutex_);
    ++counters_.releases;
    if (fenced)
      extent->map->park(extent, start, ++serial_);
    else
      extent->map->release(extent, released_state(), start, ++serial_);
    counters_.release_seconds += seconds_now() - start;
  }
  // They run already, except in a child of fork.
  if (config_.policy != ArenaConfig::Policy::inline_) config_.reclaimer->ensure_workers();
  return !fenced && config_.policy == ArenaConfig::Policy::inline_;
}

bool Arena::unfence(void* token) noexcept {
  auto* extent = static_cast<Extent*>(token);
  {
    std::lock_guard lock(mutex_);
    extent->map->unfence(extent, released_state(), seconds_now());
  }
  config_.reclaimer->wake();
  return config_.policy == ArenaConfig::Policy::inline_;
}

void Arena::settle(void* token) noexcept {
  const double seconds = reclaim_extent(static_cast<Extent*>(token), config_.advice).seconds;
  {
    std::lock_guard lock(mutex_);
    counters_.release_seconds += seconds;
  }
  forget_if_finished();
}

Extent* Arena::take(Zone& zone, ExtentMap::Take what, std::size_t limit) noexcept {
  const std::size_t chunk = std::min(zone.chunk.load(std::memory_order_relaxed),
                                     round_up(std::min(limit, largest_chunk), huge_unit));
  if (!refill(zone)) return nullptr;
  std::lock_guard lock(mutex_);
  if (!zone.map.has_nodes()) return nullptr;  // spent by others meanwhile: the next round has some
  return zone.map.take(what, seconds_now(), chunk);
}

// Gives the memory of an extent in state reclaiming back.
Arena::Reclaimed Arena::reclaim_extent(Extent* extent, Advice advice) noexcept {
  const double start = seconds_now();
  const PagesTable& pages = config_.pages;
  void* address = reinterpret_cast<void*>(extent->begin);
  const std::size_t size = extent->size;
  Zone& zone = zone_of(extent);

  int refused = 0;
  if (!only_unmap()) {
    refused = pages.decommit(pages.context, address, size, advice);
    if (refused && advice == Advice::free) {
      advice = Advice::dontneed;
      refused = pages.decommit(pages.context, address, size, advice);
    }
    const double spent = seconds_now() - start;
    // Aim at 2 ms from both sides, half way at a time, in whole huge pages.
    const double aim = static_cast<double>(size) * std::clamp(chunk_seconds / spent, 0.25, 4.0);
    const std::size_t next = (zone.chunk.load() + static_cast<std::size_t>(aim)) / 2;
    if (size >= huge_unit)
      zone.chunk.store(std::clamp(next / huge_unit * huge_unit, huge_unit, largest_chunk));
  }

  using Outcome = ExtentMap::Outcome;
  const bool lazy = advice == Advice::free && !config_.mapping_per_block;
  const Outcome outcome = refused                     ? Outcome::refused
                          : lazy                      ? Outcome::lazy
                          : pages.zero_after_decommit ? Outcome::clean_zero
                                                      : Outcome::clean;
  std::unique_lock lock(mutex_);
  finish(extent, outcome, lock);
  return {size, refused || lazy ? 0 : size, seconds_now() - start};
}

// Comes with the lock held and leaves without it.
void Arena::finish(Extent* extent, ExtentMap::Outcome outcome, std::unique_lock<std::mutex>& lock) {
  using Outcome = ExtentMap::Outcome;
  ExtentMap& map = *extent->map;
  const std::size_t size = extent->size;
  const bool clean = outcome == Outcome::clean_zero || outcome == Outcome::clean;
  std::uintptr_t begin = extent->begin;
  std::size_t unmap = 0;
  if (outcome == Outcome::refused) ++counters_.reclaim_failures;
  if (clean) counters_.reclaimed += size;
  if (clean && config_.mapping_per_block) {
    map.remove(extent);
    unmap = size;
  } else {
    Extent* merged = map.finish(extent, outcome);
    if (clean && (unmap_when_clean_ || retired_) && map.covers_region(merged)) {
      begin = merged->begin;
      unmap = merged->size;
      map.remove(merged);
    }
  }
  // Within the lock wherever the memory is gone already: a child of fork that came in between
  // would count it for ever.
  const bool credit = clean && config_.budget;
  const bool gone = !only_unmap();
  if (credit && gone) config_.budget->credit(size);
  lock.unlock();
  if (unmap) config_.pages.unreserve(config_.pages.context, reinterpret_cast<void*>(begin), unmap);
  if (credit && !gone) config_.budget->credit(size);
}

Arena::Reclaimed Arena::reclaim_one(ExtentMap::Take what, std::size_t limit,
                                    Advice advice) noexcept {
  for (Zone* zone : {&huge_, &small_})
    if (Extent* extent = take(*zone, what, limit)) return reclaim_extent(extent, advice);
  return {};
}

Reclaimable::Activity Arena::reclaim_due() noexcept {
  std::size_t excess = 0;
  bool retired, waiting;
  {
    std::lock_guard lock(mutex_);
    retired = retired_;
    const std::size_t warm = bytes(State::warm);
    if (warm > config_.max_warm) excess = warm - config_.max_warm;
    waiting = (bytes(State::live) && config_.policy != ArenaConfig::Policy::inline_) ||
              small_.map.ageing() || huge_.map.ageing() ||
              bytes(State::pending) > small_.map.fenced() + huge_.map.fenced();
  }
  if (!waiting && !excess && !retired) return {};
  // Not `any` for the excess: lazy memory would be made lazy over and over.
  const ExtentMap::Take what = retired  ? ExtentMap::Take::any
                               : excess ? ExtentMap::Take::warm
                                        : ExtentMap::Take::due;
  const Reclaimed done =
      reclaim_one(what, excess ? excess : SIZE_MAX, retired ? Advice::dontneed : config_.advice);
  if (done.tried) {
    std::lock_guard lock(mutex_);
    counters_.reclaim_seconds += done.seconds;
  }
  return {done.tried > 0, waiting};
}

std::uint64_t Arena::ticket() noexcept {
  std::lock_guard lock(mutex_);
  return serial_;
}

bool Arena::drain(std::uint64_t ticket, double seconds) noexcept {
  const double deadline = seconds_now() + seconds;
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (small_.map.settled(ticket) && huge_.map.settled(ticket)) return true;
    }
    const bool worked = reclaim_one(ExtentMap::Take::pending, SIZE_MAX, config_.advice).tried > 0;
    if (seconds_now() >= deadline) return false;
    if (!worked) std::this_thread::sleep_for(breath);
  }
}

std::size_t Arena::reclaim(std::size_t nbytes) noexcept {
  std::size_t total = 0;
  // What others have in hand comes back in a few chunks' time, perhaps as lazy memory; on a busy
  // machine they may have to wait for a processor first.
  for (int breaths = 0; total < nbytes && breaths < most_breaths;) {
    const Reclaimed done = reclaim_one(ExtentMap::Take::any, nbytes - total, Advice::dontneed);
    total += done.returned;
    if (done.tried) continue;
    {
      std::lock_guard lock(mutex_);
      if (!bytes(State::reclaiming)) break;
    }
    std::this_thread::sleep_for(breath);
    ++breaths;
  }
  return total;
}

Counters Arena::counters() noexcept {
  std::lock_guard lock(mutex_);
  Counters now = counters_;
  now.live = bytes(State::live);
  now.pending = bytes(State::pending);
  now.reclaiming = bytes(State::reclaiming);
  now.warm = bytes(State::warm);
  now.lazy = bytes(State::lazy);
  now.clean = bytes(State::clean);
  return now;
}

std::size_t Arena::fenced() noexcept {
  std::lock_guard lock(mutex_);
  return small_.map.fenced() + huge_.map.fenced();
}

void Arena::count_allocation(double seconds) noexcept {
  std::lock_guard lock(mutex_);
  ++counters_.allocations;
  counters_.allocate_seconds += seconds;
}

void Arena::count_wait(double seconds) noexcept {
  std::lock_guard lock(mutex_);
  ++counters_.waits;
  counters_.wait_seconds += seconds;
}

void Arena::retire() noexcept {
  bool idle;
  {
    std::lock_guard lock(mutex_);
    retired_ = true;
    idle = resident() > bytes(State::live);
  }
  if (idle) config_.reclaimer->ensure_workers();  // starts a thread: not under the lock
  config_.reclaimer->wake();
  forget_if_finished();
}

bool Arena::finished() noexcept {
  std::lock_guard lock(mutex_);
  return retired_ && resident() == bytes(State::warm) && !small_.map.ageing() &&
         !huge_.map.ageing();
}

void Arena::forget_if_finished() noexcept {
  if (finished()) config_.reclaimer->remove(this);
}

// A child's copies of idle pages would make the parent copy every page that it uses again, so
// they are given up at once. Reclaims that were under way in the parent start over.
void Arena::after_fork(bool in_child) noexcept {
  if (!in_child) return mutex_.unlock();
  for (Zone* zone : {&small_, &huge_}) zone->map.requeue();
  mutex_.unlock();
  // No other thread exists, and whole extents need no nodes.
  for (Zone* zone : {&small_, &huge_})
    while (Extent* extent = zone->map.take(ExtentMap::Take::any, 0, SIZE_MAX))
      reclaim_extent(extent, Advice::dontneed);
}

}  // namespace bigmem
