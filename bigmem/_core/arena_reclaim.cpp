#include <algorithm>
#include <chrono>
#include <thread>

#include "arena.hpp"
#include "clock.hpp"
#include "incidents.hpp"
#include "pressure.hpp"
#include "thread_seconds.hpp"

namespace bigmem {
namespace {

constexpr std::size_t largest_chunk = std::size_t{1} << 30;
constexpr double chunk_seconds = 0.002;
constexpr int most_breaths = 5000;

}  // namespace

bool Arena::release(void* token, bool fenced) noexcept {
  const double start = seconds_now();
  auto* extent = static_cast<Extent*>(token);
  bool owes = false;
  {
    std::lock_guard lock(mutex_);
    ++counters_.releases;
    if (has_fences()) fences_.release(extent->begin, fenced);
    if (fenced || has_fences())
      extent->map->park(extent, start, ++serial_);
    else
      owes = extent->map->release(extent, released_state(), start, ++serial_) && pays_at_once();
    const double seconds = seconds_now() - start;
    counters_.release_seconds += seconds;
    thread_seconds.release += seconds;
  }
  // They run already, except after a fork.
  if (needs_workers()) config_.reclaimer->ensure_workers();
  return owes;
}

bool Arena::unfence(void* token) noexcept {
  auto* extent = static_cast<Extent*>(token);
  FenceTable::Entry entry;  // dies after the lock
  bool owes;
  {
    std::lock_guard lock(mutex_);
    if (has_fences() && !(entry = fences_.unhold(extent->begin))) return false;
    owes = extent->map->unfence(extent, unfenced_state(extent), seconds_now()) && pays_at_once();
  }
  config_.reclaimer->wake();
  return owes;
}

void Arena::settle(void* token) noexcept {
  const double seconds =
      reclaim_extent(static_cast<Extent*>(token), Goal::clean, config_.advice).seconds;
  thread_seconds.release += seconds;
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

// Does what is owed to an extent in state reclaiming: contents that nobody may see are wiped, and
// the memory goes back, unless the wiped range is to be used again. What the system has refused to
// commit, of which nothing was ever `had`, does not count as given back.
Arena::Reclaimed Arena::reclaim_extent(Extent* extent, Goal goal, Advice advice,
                                       bool had) noexcept {
  using Outcome = ExtentMap::Outcome;
  const double start = seconds_now();
  const PagesTable& pages = config_.pages;
  void* address = reinterpret_cast<void*>(extent->begin);
  const std::size_t size = extent->size;
  Zone& zone = zone_of(extent);
  // The kernel leaves what a child has too alone when advised that it is free.
  if (extent->shared) advice = Advice::dontneed;

  const bool wipe = config_.wipe && !extent->zero;
  if (wipe)
    if (const int error = pages.wipe(pages.context, address, size))
      note_incident(Incident::reclaim_refused, error);
  const bool reuse = wipe && goal == Goal::reuse && extent->serial > trimmed_;
  Decommitted done;
  if (!reuse && !only_unmap()) {
    done = pages.decommit(pages.context, address, size, zone.page, advice);
    if (done.error && advice == Advice::free) {
      advice = Advice::dontneed;
      done = pages.decommit(pages.context, address, size, zone.page, advice);
    }
    if (done.error) note_incident(Incident::reclaim_refused, done.error);
    if (done.fell_back) note_incident(Incident::reclaim_fell_back, 0);
  }
  if (reuse || !only_unmap()) adapt_chunk(zone, size, seconds_now() - start);

  const bool lazy = advice == Advice::free && !config_.mapping_per_block;
  const Outcome outcome = reuse                       ? Outcome::wiped
                          : done.error                ? Outcome::refused
                          : lazy                      ? Outcome::lazy
                          : pages.zero_after_decommit ? Outcome::clean_zero
                                                      : Outcome::clean;
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Observer> observer = observer_;
  finish(extent, outcome, had, lock);
  const double seconds = seconds_now() - start;
  if (observer) observer->reclaimed(size, start, seconds);
  const bool returned = outcome == Outcome::clean_zero || outcome == Outcome::clean;
  return {size, returned ? size : 0, seconds};
}

// Aim at 2 ms from both sides, half way at a time, in whole huge pages.
void Arena::adapt_chunk(Zone& zone, std::size_t size, double seconds) noexcept {
  if (size < huge_unit) return;
  const double aim = static_cast<double>(size) * std::clamp(chunk_seconds / seconds, 0.25, 4.0);
  const std::size_t next = (zone.chunk.load() + static_cast<std::size_t>(aim)) / 2;
  zone.chunk.store(std::clamp(next / huge_unit * huge_unit, huge_unit, largest_chunk));
}

// Comes with the lock held and leaves without it.
void Arena::finish(Extent* extent, ExtentMap::Outcome outcome, bool had,
                   std::unique_lock<std::mutex>& lock) {
  using Outcome = ExtentMap::Outcome;
  ExtentMap& map = *extent->map;
  const std::size_t size = extent->size;
  const bool clean = outcome == Outcome::clean_zero || outcome == Outcome::clean;
  std::uintptr_t begin = extent->begin;
  std::size_t unmap = 0;
  if (outcome == Outcome::refused) ++counters_.reclaim_failures;
  if (clean && had) counters_.reclaimed += size;
  if (clean && config_.mapping_per_block) {
    map.remove(extent);
    unmap = size;
  } else {
    Extent* merged = map.finish(extent, outcome);
    const bool spare = moved_ && map.regions() > 1;
    if (clean && (unmap_when_clean_ || retired_ || spare) && map.covers_region(merged)) {
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
  if (credit && !gone) uncredited_ += size;
  unmapping_ += unmap;
  if (!unmap && had) ++returns_;
  lock.unlock();
  if (!unmap) return;
  unreserve(begin, unmap);
  lock.lock();
  unmapping_ -= unmap;
  if (had) ++returns_;
  if (credit && !gone) {
    uncredited_ -= size;
    config_.budget->credit(size);
  }
  lock.unlock();
}

void Arena::unreserve(std::uintptr_t begin, std::size_t size) noexcept {
  const int error =
      config_.pages.unreserve(config_.pages.context, reinterpret_cast<void*>(begin), size);
  if (error) note_incident(Incident::unmap_refused, error);
}

Arena::Reclaimed Arena::reclaim_one(ExtentMap::Take what, std::size_t limit, Goal goal,
                                    Advice advice) noexcept {
  for (Zone* zone : {&huge_, &small_})
    if (Extent* extent = take(*zone, what, limit)) return reclaim_extent(extent, goal, advice);
  return {};
}

// Does a worker's work on a chunk of what was released; false if nothing waits.
bool Arena::reclaim_pending() noexcept {
  return reclaim_one(ExtentMap::Take::pending, SIZE_MAX, background_goal(false), config_.advice)
             .tried > 0;
}

Reclaimable::Activity Arena::reclaim_due() noexcept {
  std::size_t excess = 0;
  bool retired, waiting;
  const bool pressed = PressureMonitor::process().under_pressure(seconds_now());
  const Asked asked = ask(blocks_asked);
  {
    std::lock_guard lock(mutex_);
    retired = retired_;
    const std::size_t warm = bytes(State::warm) - fragments();
    if (warm > config_.max_warm) excess = warm - config_.max_warm;
    waiting = (bytes(State::live) && needs_workers()) || small_.map.ageing() ||
              huge_.map.ageing() || waiting_bytes() || fences_.waiting();
  }
  if (!waiting && !excess && !retired) return {asked.freed, false};
  // Not `any` for the excess: lazy memory would be made lazy over and over.
  const bool all = retired || pressed;
  const ExtentMap::Take what = all      ? ExtentMap::Take::any
                               : excess ? ExtentMap::Take::warm
                                        : ExtentMap::Take::due;
  const Reclaimed done = reclaim_one(what, excess && !all ? excess : SIZE_MAX, background_goal(all),
                                     all ? Advice::dontneed : config_.advice);
  if (done.tried || asked.paid.tried) {
    std::lock_guard lock(mutex_);
    counters_.reclaim_seconds += done.seconds + asked.paid.seconds;
  }
  return {done.tried > 0 || asked.freed, waiting};
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
    const bool freed = ask(SIZE_MAX).freed;
    const bool worked = reclaim_pending() || freed;
    if (seconds_now() >= deadline) return false;
    if (!worked) std::this_thread::sleep_for(breath);
  }
}

void Arena::help_with_pending() noexcept {
  const double start = seconds_now();
  bool helped = false;
  while (overdue() && reclaim_pending()) helped = true;
  if (helped) count_wait(seconds_now() - start);
}

bool Arena::overdue() noexcept {
  std::lock_guard lock(mutex_);
  return waiting_bytes() > config_.max_pending;
}

std::size_t Arena::reclaim(std::size_t nbytes) noexcept {
  std::size_t total = 0;
  bool asked = false;
  // What others have in hand comes back in a few chunks' time, perhaps as lazy memory; on a busy
  // machine they may have to wait for a processor first. A round of questions that another thread
  // has begun may leave out what was released since.
  for (int breaths = 0; total < nbytes && breaths < most_breaths;) {
    if (!asked) {
      const Asked round = ask(SIZE_MAX);
      total += round.paid.returned;
      asked = !round.busy;
      if (total >= nbytes) break;
    }
    const Reclaimed done =
        reclaim_one(ExtentMap::Take::any, nbytes - total, Goal::clean, Advice::dontneed);
    total += done.returned;
    if (done.tried) continue;
    if (asked) {
      std::lock_guard lock(mutex_);
      if (!coming_back()) break;
    }
    std::this_thread::sleep_for(breath);
    ++breaths;
  }
  return total;
}

std::size_t Arena::trim() noexcept {
  {
    std::lock_guard lock(mutex_);
    trimmed_ = serial_;
  }
  return reclaim(std::numeric_limits<std::size_t>::max());
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

}  // namespace bigmem
