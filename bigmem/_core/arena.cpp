#include "arena.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include "clearing.hpp"
#include "clock.hpp"
#include "memory_limit.hpp"
#include "thread_seconds.hpp"

namespace bigmem {
namespace {

// What a block leaves of its last huge page is there for small blocks only: it may be as much as
// one part in so many of the block, unless huge pages were asked for.
constexpr std::size_t huge_rest = 4;
constexpr std::size_t first_small_chunk = std::size_t{16} << 20;
constexpr std::size_t first_huge_chunk = std::size_t{256} << 20;
// Under a limit on the address range regions are as small as this.
constexpr std::size_t small_region = std::size_t{64} << 20;
// Bytes populated by one call, so that others who map memory wait no longer than that takes.
constexpr std::size_t populate_step = std::size_t{16} << 20;
// An allocation that the system refuses waits so long at most for memory that is on its way.
constexpr double longest_refusal = 10;

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
             first_small_chunk, small_unit),
      huge_(config_.mapping_per_block ? small_unit
            : in_units()              ? config_.pages.granularity
                                      : huge_unit,
            config_.decay, PageSize::huge, first_huge_chunk,
            has_fragments() ? small_unit : huge_unit) {}

// Nothing is live, and nobody else knows the arena any more: each region becomes one extent.
Arena::~Arena() {
  if (config_.budget) config_.budget->credit(resident());
  for (Zone* zone : {&small_, &huge_}) {
    while (Extent* extent = zone->map.take(ExtentMap::Take::any, 0, SIZE_MAX)) {
      if (config_.wipe && !extent->zero)
        config_.pages.wipe(config_.pages.context, reinterpret_cast<void*>(extent->begin),
                           extent->size);
      zone->map.finish(extent, ExtentMap::Outcome::clean);
    }
    zone->map.for_each([&](Extent& extent) { unreserve(extent.begin, extent.size); });
  }
}

Arena::Zone& Arena::zone_for(std::size_t nbytes) {
  if (in_units()) return huge_;
  switch (config_.huge) {
    case ArenaConfig::Huge::never:
      return small_;
    case ArenaConfig::Huge::always:
      return nbytes >= huge_unit ? huge_ : small_;
    case ArenaConfig::Huge::automatic:
      break;
  }
  const std::size_t rest = config_.mapping_per_block ? 0 : round_up(nbytes, huge_unit) - nbytes;
  return nbytes >= huge_unit && rest <= nbytes / huge_rest ? huge_ : small_;
}

std::size_t Arena::rounded(std::size_t nbytes) {
  return round_up(std::max<std::size_t>(nbytes, 1), zone_for(nbytes).grain);
}

std::size_t Arena::needed(std::size_t nbytes) {
  const bool whole_units = config_.huge == ArenaConfig::Huge::always || in_units();
  return whole_units ? round_up(rounded(nbytes), zone_for(nbytes).unit) : rounded(nbytes);
}

State Arena::released_state() const {
  if (pays_at_once()) return State::reclaiming;
  const bool recycle = config_.policy == ArenaConfig::Policy::recycle && !retired_;
  // What holds secrets is not for reuse before a worker has wiped it.
  return recycle && !config_.wipe ? State::warm : State::pending;
}

std::size_t Arena::resident() const {
  return bytes(State::live) + bytes(State::pending) + bytes(State::reclaiming) +
         bytes(State::warm) + bytes(State::lazy);
}

// Brings nodes for the map, from outside the lock. Not locked when there is no memory even for
// that.
std::unique_lock<std::mutex> Arena::lock_with_nodes(Zone& zone) noexcept {
  std::unique_lock lock(mutex_);
  while (!zone.map.has_nodes()) {
    lock.unlock();
    void* slab = ExtentMap::new_slab();
    if (!slab) return {};
    lock.lock();
    zone.map.donate(slab);
  }
  return lock;
}

void Arena::note_peaks() noexcept {
  counters_.peak_live = std::max(counters_.peak_live, bytes(State::live));
  counters_.peak_resident = std::max(counters_.peak_resident, resident());
}

// Called with the lock held and nodes at hand. `fresh` permits taking memory that is clean.
Arena::Attempt Arena::attempt(Zone& zone, std::size_t size, std::size_t alignment, bool fresh,
                              Lease& lease, Contents& contents, Extent* added) {
  if (config_.budget && config_.budget->exceeded()) return Attempt::over_budget;
  // Nobody may find the rest of a unit that is not committed yet: it is cut off when it is.
  const std::size_t whole = in_units() ? round_up(size, zone.unit) : size;
  ExtentMap::Allocation found =
      zone.map.allocate(size < zone.unit ? size : whole, alignment, false);
  if (!found.extent && in_units()) found = zone.map.allocate(whole, alignment, false);
  if (!found.extent && takes_from_the_other(zone, size)) {
    Zone& other = &zone == &small_ ? huge_ : small_;
    found = other.map.allocate(size, alignment, false);
  }
  if (!found.extent) {
    if (!fresh) return Attempt::need_headroom;
    const std::size_t units = round_up(size, zone.unit);
    if (config_.budget && !config_.budget->charge(units)) return Attempt::over_budget;
    found = zone.map.allocate(whole, alignment, true, added);
    if (!found.extent) {
      if (config_.budget) config_.budget->credit(units);
      return Attempt::no_room;
    }
  }
  if (found.from == State::warm) ++counters_.warm_hits;
  if (found.extent->size > size)
    zone.map.set_aside(nodes_to_cut);
  else if (!config_.pages.needs_commit)
    note_peaks();
  contents = {!found.zero, found.from == State::clean};
  lease.address = reinterpret_cast<void*>(found.extent->begin);
  lease.token = found.extent;
  return Attempt::good;
}

// Small blocks use what is left of huge pages. Large ones use warm small pages, which are filled
// faster than fresh huge ones; besides, many small blocks followed by a large one would occupy
// twice the memory otherwise.
bool Arena::takes_from_the_other(const Zone& zone, std::size_t size) const {
  if (config_.mapping_per_block || in_units()) return false;
  if (&zone == &small_) return size < huge_unit && huge_.map.has_nodes();
  return config_.huge == ArenaConfig::Huge::automatic && small_.map.has_nodes();
}

bool Arena::allocate_quickly(std::size_t nbytes, std::size_t alignment, Lease& lease,
                             Contents& contents) {
  if (config_.pages.needs_commit || config_.mapping_per_block || has_fences()) return false;
  Zone& zone = zone_for(nbytes);
  if (!refill(zone)) return false;
  if (config_.reclaimer->refused()) return false;
  std::unique_lock lock(mutex_);
  const std::size_t size = rounded(nbytes);
  if (!zone.map.has_nodes()) return false;  // spent by others meanwhile
  if (waiting_bytes() > config_.max_pending) return false;
  if (attempt(zone, size, alignment, size < looks_at_limit, lease, contents) != Attempt::good)
    return false;
  lock.unlock();
  lease.nbytes = nbytes;
  rouse();
  return true;
}

// Not before a block is live: a worker that found nothing live would sleep again. Starting a thread
// costs a release a hundred microseconds; an allocation that maps memory hardly notices.
void Arena::rouse() noexcept {
  // It was closed while this allocation was under way, and may have been forgotten since.
  if (retired_.load()) config_.reclaimer->add(shared_from_this());
  if (needs_workers()) config_.reclaimer->ensure_workers();
  config_.reclaimer->wake();
}

Arena::Result Arena::allocate(std::size_t nbytes, std::size_t alignment, Lease& lease,
                              Contents& contents) {
  Zone* zone = &zone_for(nbytes);
  const std::size_t size = rounded(nbytes);
  lease.nbytes = nbytes;
  FenceTable::Entry entry;
  try {
    if (has_fences()) entry = FenceTable::new_entry();
  } catch (const std::bad_alloc&) {
    return Result::out_of_memory;
  }
  // Nobody else reclaims where threads are refused: what is due goes back here.
  if (config_.reclaimer->still_refused()) config_.reclaimer->help();
  help_with_pending();

  const bool looks = size >= looks_at_limit;
  // What is released may be had again only where blocks share mappings.
  const bool may_wait = has_fences() && !config_.mapping_per_block;
  bool fresh = !looks && !may_wait, asked = !may_wait;
  bool last = false;
  double refused = 0;
  for (;;) {
    const std::uint64_t returns = returns_.load();
    Attempt attempted = fresh ? Attempt::no_room : Attempt::need_headroom;
    if (!config_.mapping_per_block) {
      if (!refill(*zone)) return Result::out_of_memory;
      std::lock_guard lock(mutex_);
      attempted = zone->map.has_nodes() ? attempt(*zone, size, alignment, fresh, lease, contents)
                                        : Attempt::need_nodes;
    }
    if (attempted == Attempt::need_headroom) {
      if (asked && looks) prepare_for_fresh(*zone, size);
      fresh = asked;
      if (!std::exchange(asked, true)) await_fences(size);
      continue;
    }
    if (attempted == Attempt::no_room) attempted = grow(*zone, size, alignment, lease, contents);
    if (attempted == Attempt::over_budget) {
      // There may be room for the block itself, if not for the rest of its last huge page.
      if (zone == &small_ || in_units() || config_.huge == ArenaConfig::Huge::always)
        return Result::over_budget;
      zone = &small_;
      continue;
    }
    if (attempted == Attempt::need_nodes) continue;
    auto* extent = static_cast<Extent*>(lease.token);
    if (attempted == Attempt::good && commit(extent, size, !contents.dirty)) {
      if (entry) {
        std::lock_guard lock(mutex_);
        fences_.enter(std::move(entry), extent->begin, extent->size, extent);
      }
      rouse();
      return Result::good;
    }
    // Refused by the system. Our own idle memory may be in the way, for a while: others may release
    // more all the time.
    const double now = seconds_now();
    if (!refused) refused = now;
    if (now - refused > longest_refusal) return Result::out_of_memory;
    if (reclaim_one(ExtentMap::Take::any, SIZE_MAX, Goal::clean, Advice::dontneed).tried) continue;
    {
      std::lock_guard lock(mutex_);
      const bool coming = coming_back();
      // Once nothing is on its way, one more attempt finds all that had been released before it.
      if (!coming && (last || returns_.load() == returns)) return Result::out_of_memory;
      last = !coming;
    }
    std::this_thread::sleep_for(breath);
  }
}

// Large blocks may not have fresh memory before that.
void Arena::prepare_for_fresh(Zone& zone, std::size_t nbytes) noexcept {
  if (&zone == &huge_ && !in_units()) replace_small_pages(nbytes);
  Reclaimer::make_headroom(nbytes);
}

// A large block is about to get fresh huge pages: as much warm memory of small pages goes back, or
// many small blocks followed by a large one would occupy twice the memory.
void Arena::replace_small_pages(std::size_t nbytes) noexcept {
  for (std::size_t done = 0; done < nbytes;) {
    Extent* extent = take(small_, ExtentMap::Take::warm, nbytes - done);
    if (!extent) return;
    done += reclaim_extent(extent, Goal::clean, Advice::dontneed).tried;
  }
}

// The size of a region that is to hold so much at least, and `roomy` where address range is free.
std::size_t Arena::region_for(const Zone& zone, std::size_t least, std::size_t roomy) {
  if (config_.mapping_per_block) return least;
  // A limit may have come since the last region.
  if (address_range_is_limited()) unmap_when_clean_ = true;
  const std::size_t wanted = config_.reserve     ? config_.reserve
                             : unmap_when_clean_ ? small_region
                                                 : roomy;
  return std::max(round_up(wanted, zone.unit), least);
}

// Reserves one more region and serves the request from it, before anyone else can.
Arena::Attempt Arena::grow(Zone& zone, std::size_t size, std::size_t alignment, Lease& lease,
                           Contents& contents) {
  static const std::size_t ample = round_up(2 * physical_memory(), std::size_t{1} << 30);
  const PagesTable& pages = config_.pages;
  const std::size_t border = zone.page == PageSize::huge ? huge_unit : small_unit;
  const auto reserve = [&](std::size_t nbytes) {
    return pages.reserve(pages.context, nbytes, std::max(alignment, border), zone.page);
  };
  const std::size_t least = round_up(size, zone.unit);
  std::size_t region = region_for(zone, least, ample);
  void* begin = reserve(region);
  if (!begin && region > least) {
    unmap_when_clean_ = true;
    begin = reserve(region = least);
  }
  if (!begin) return Attempt::no_room;

  Attempt attempted = Attempt::need_nodes;
  if (refill(zone)) {
    std::lock_guard lock(mutex_);
    if (zone.map.has_nodes()) {
      Extent* added = zone.map.add_region(reinterpret_cast<std::uintptr_t>(begin), region,
                                          pages.zero_after_decommit);
      // In the new region by name: best fit might not get to look at it.
      attempted = attempt(zone, size, alignment, true, lease, contents, added);
      if (attempted == Attempt::good) return attempted;
      zone.map.remove(added);
    }
  }
  pages.unreserve(pages.context, begin, region);
  return attempted;
}

// Makes usable what an attempt has taken, `zero` or not, and cuts off what that was too much.
bool Arena::commit(Extent* extent, std::size_t size, bool zero) noexcept {
  Zone& zone = zone_of(extent);
  const PagesTable& pages = config_.pages;
  // A fragment was committed with its unit.
  const bool commits = pages.needs_commit && extent->size >= zone.unit;
  const bool good = !commits || pages.commit(pages.context, reinterpret_cast<void*>(extent->begin),
                                             round_up(extent->size, zone.unit), zone.page) == 0;
  const bool cuts = extent->size > size;
  if (good && !cuts && !pages.needs_commit) return true;
  std::unique_lock lock(mutex_);
  if (cuts) zone.map.put_back(nodes_to_cut);
  if (good) {
    if (cuts) {
      extent->zero = zero;  // for what is cut off
      zone.map.shrink(extent, size, State::warm, seconds_now(), serial_);
      extent->zero = false;
    }
    note_peaks();
    return true;
  }
  extent = extent->map->release(extent, State::reclaiming, seconds_now(), ++serial_);
  lock.unlock();
  if (extent) reclaim_extent(extent, Goal::clean, Advice::dontneed, false);
  return false;
}

void Arena::clear_block(const Lease& lease) noexcept {
  const auto* extent = static_cast<const Extent*>(lease.token);
  const bool whole_units = extent->size >= huge_unit;
  clear(config_.pages, lease.address, lease.nbytes,
        whole_units ? zone_of(extent).page : PageSize::small);
}

void Arena::populate(const Lease& lease) noexcept {
  const PagesTable& pages = config_.pages;
  auto* begin = static_cast<char*>(lease.address);
  for (std::size_t at = 0; at < lease.nbytes; at += populate_step) {
    const std::size_t size = std::min(lease.nbytes - at, populate_step);
    // What cannot be made resident now is faulted in, or fails, on first touch as ever.
    if (pages.populate(pages.context, begin + at, round_up(size, small_unit)) != 0) return;
  }
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

std::size_t Arena::held() noexcept {
  // What is pinned is resident already, wherever the system counts it.
  if (config_.pages.pinned) return 0;
  std::lock_guard lock(mutex_);
  return resident();
}

std::size_t Arena::fenced() noexcept {
  std::lock_guard lock(mutex_);
  return fenced_bytes();
}

void Arena::count_allocation(double seconds) noexcept {
  std::lock_guard lock(mutex_);
  ++counters_.allocations;
  counters_.allocate_seconds += seconds;
  thread_seconds.allocate += seconds;
}

void Arena::count_wait(double seconds) noexcept {
  std::shared_ptr<Observer> observer;
  {
    std::lock_guard lock(mutex_);
    ++counters_.waits;
    counters_.wait_seconds += seconds;
    observer = observer_;
  }
  if (observer) observer->waited(seconds_now() - seconds, seconds);
}

void Arena::observe(std::shared_ptr<Observer> observer) noexcept {
  std::lock_guard lock(mutex_);
  observer_.swap(observer);  // the former one, which may unmap its log, dies after the lock
}

}  // namespace bigmem
