#include <algorithm>

#include "arena.hpp"
#include "clock.hpp"

namespace bigmem {
namespace {

// What shrinking an extent takes at most.
constexpr std::size_t nodes_to_shrink = 3;

}  // namespace

Source::Resized Arena::resize(Lease& lease, std::size_t nbytes, bool may_block) noexcept {
  const double start = seconds_now();
  auto* extent = static_cast<Extent*>(lease.token);
  Zone& zone = zone_of(extent);
  const std::size_t size = round_up(std::max<std::size_t>(nbytes, 1), zone.grain);
  const bool larger = size > extent->size;
  // A block of 4 KiB pages that is to be large enough for huge ones is copied to them, unless
  // there is warm memory for it where it is: to grow by more than a third in fresh 4 KiB pages
  // takes longer than the copy and its huge pages do, and so does every later step.
  const bool fresh = &zone == &huge_ || &zone_for(nbytes) == &small_;
  const Resized resized =
      larger ? grow_block(extent, size, fresh, may_block) : shrink_block(extent, size, may_block);
  if (resized == Resized::done) lease.nbytes = nbytes;
  std::lock_guard lock(mutex_);
  (larger ? counters_.allocate_seconds : counters_.release_seconds) += seconds_now() - start;
  return resized;
}

Source::Resized Arena::shrink_block(Extent* extent, std::size_t size, bool may_block) noexcept {
  Zone& zone = zone_of(extent);
  if (zone.page == PageSize::huge && extent->size >= huge_unit) {
    // A huge page that holds a small block is not worth what a copy of that costs.
    if (size < huge_unit) return Resized::refused;
    // To unmap a part of one would free nothing.
    if (config_.mapping_per_block) size = round_up(size, huge_unit);
  }
  if (size >= extent->size) return Resized::done;
  if (pays_at_once() && !may_block) return Resized::would_block;
  std::unique_lock lock = lock_with_nodes(zone);
  if (!lock) return Resized::refused;
  Extent* rest = zone.map.shrink(extent, size, released_state(), seconds_now(), ++serial_);
  lock.unlock();
  if (!pays_at_once())
    config_.reclaimer->ensure_workers();
  else if (rest)
    reclaim_extent(rest, Goal::clean, config_.advice);
  return Resized::done;
}

// In place. `fresh` permits taking memory that is clean.
Source::Resized Arena::grow_block(Extent* extent, std::size_t size, bool fresh,
                                  bool may_block) noexcept {
  if (retired_) return Resized::refused;
  if (may_block) {
    if (config_.reclaimer->still_refused()) config_.reclaimer->help();
    help_with_pending();
  } else if (config_.reclaimer->refused() || overdue()) {
    return Resized::would_block;
  }
  Zone& zone = zone_of(extent);
  Budget* budget = config_.budget.get();
  if (budget) budget->attend(seconds_now());
  bool prepared = false, reclaimed = false;
  for (;;) {
    std::unique_lock lock = lock_with_nodes(zone);
    if (!lock || (budget && budget->exceeded())) return Resized::refused;
    const auto clean = zone.map.clean_to_grow(extent, size, fresh);
    if (!clean) return Resized::refused;
    const bool commits = *clean && config_.pages.needs_commit;
    const bool prepares = *clean >= looks_at_limit && !prepared;
    if (!may_block && (commits || prepares)) return Resized::would_block;
    if (prepares) {
      lock.unlock();
      prepare_for_fresh(zone, *clean);
      prepared = true;
      continue;
    }
    if (budget && !budget->charge(*clean)) {
      if (!may_block) return Resized::would_block;
      lock.unlock();
      if (reclaimed) return Resized::refused;
      const double start = seconds_now();
      reclaim(*clean);
      count_wait(seconds_now() - start);
      reclaimed = true;
      continue;
    }
    const std::size_t before = extent->size;
    zone.map.grow(extent, size);
    note_peaks();
    if (!commits) return Resized::done;
    zone.map.set_aside(nodes_to_shrink);
    lock.unlock();
    return commit_growth(extent, before) ? Resized::done : Resized::refused;
  }
}

// What has been added to an extent is made usable, or it is as large as before.
bool Arena::commit_growth(Extent* extent, std::size_t before) noexcept {
  Zone& zone = zone_of(extent);
  const int refusal =
      config_.pages.commit(config_.pages.context, reinterpret_cast<void*>(extent->begin + before),
                           extent->size - before, zone.page);
  std::unique_lock lock(mutex_);
  zone.map.put_back(nodes_to_shrink);
  if (!refusal) return true;
  Extent* rest = zone.map.shrink(extent, before, State::reclaiming, seconds_now(), ++serial_);
  lock.unlock();
  if (rest) reclaim_extent(rest, Goal::clean, Advice::dontneed);
  return false;
}

}  // namespace bigmem
