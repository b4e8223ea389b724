#include <algorithm>
#include <utility>

#include "arena.hpp"
#include "clock.hpp"
#include "thread_seconds.hpp"

namespace bigmem {
namespace {

// What one of the map's calls takes at most to shrink an extent, or to move one and grow it.
constexpr std::size_t nodes_to_resize = 3;
// A block that cannot grow where it is moves if it is of this size: a smaller one is copied in a
// millisecond or two, and each move makes another region, of which there may be so many. A region
// takes two or three of the 65530 mappings that a process may have.
constexpr std::size_t least_moved = std::size_t{16} << 20;
constexpr std::size_t most_regions = 256;
// Where it moves to there is room for so many times as much again.
constexpr std::size_t room_to_grow = 3;

}  // namespace

Source::Resized Arena::resize(Lease& lease, std::size_t nbytes, bool may_block) noexcept {
  // A processor may still use what would be given up; and what would be added to a unit in use must
  // be committed first.
  if (has_fences() || in_units()) return Resized::refused;
  const double start = seconds_now();
  auto* extent = static_cast<Extent*>(lease.token);
  Zone& zone = zone_of(extent);
  const std::size_t size = round_up(std::max<std::size_t>(nbytes, 1), zone.grain);
  const bool larger = size > extent->size;
  // A block of 4 KiB pages that is to be large enough for huge ones is copied to them, unless
  // there is warm memory for it where it is: by the time that it has doubled, fresh 4 KiB pages
  // have taken 600 to 730 ms a GiB, the copy and huge pages 340 to 530.
  const bool fresh = &zone == &huge_ || &zone_for(nbytes) == &small_;
  const Resized resized =
      larger ? grow_block(lease, size, fresh, may_block) : shrink_block(extent, size, may_block);
  if (resized == Resized::done) lease.nbytes = nbytes;
  const double seconds = seconds_now() - start;
  (larger ? thread_seconds.allocate : thread_seconds.release) += seconds;
  std::lock_guard lock(mutex_);
  (larger ? counters_.allocate_seconds : counters_.release_seconds) += seconds;
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

// In place, or else by moving. `fresh` permits taking memory that is clean.
Source::Resized Arena::grow_block(Lease& lease, std::size_t size, bool fresh,
                                  bool may_block) noexcept {
  if (retired_) return Resized::refused;
  if (may_block) {
    if (config_.reclaimer->still_refused()) config_.reclaimer->help();
    help_with_pending();
  } else if (config_.reclaimer->refused() || overdue()) {
    return Resized::would_block;
  }
  auto* extent = static_cast<Extent*>(lease.token);
  Zone& zone = zone_of(extent);
  Budget* budget = config_.budget.get();
  if (budget) budget->attend(seconds_now());
  bool prepared = false, reclaimed = false;
  for (;;) {
    std::unique_lock lock = lock_with_nodes(zone);
    if (!lock || (budget && budget->exceeded())) return Resized::refused;
    const auto clean = zone.map.clean_to_grow(extent, size, fresh);
    if (!clean) {
      lock.unlock();
      const bool moves = config_.mapping_per_block || extent->size >= least_moved;
      if (!fresh || !moves || !config_.pages.remap) return Resized::refused;
      if (!may_block) return Resized::would_block;
      return move_block(lease, size) ? Resized::done : Resized::refused;
    }
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
      make_room(*clean);
      reclaimed = true;
      continue;
    }
    const std::size_t before = extent->size;
    zone.map.grow(extent, size);
    if (!commits) {
      note_peaks();
      return Resized::done;
    }
    zone.map.set_aside(nodes_to_resize);
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
  zone.map.put_back(nodes_to_resize);
  if (!refusal) {
    note_peaks();
    return true;
  }
  Extent* rest = zone.map.shrink(extent, before, State::reclaiming, seconds_now(), ++serial_);
  lock.unlock();
  if (rest) reclaim_extent(rest, Goal::clean, Advice::dontneed, false);
  return false;
}

// The pages of a block, whole units, move to a region of their own, in which it has room to grow.
bool Arena::move_block(Lease& lease, std::size_t size) noexcept {
  auto* extent = static_cast<Extent*>(lease.token);
  const PagesTable& pages = config_.pages;
  Zone& zone = zone_of(extent);
  const std::size_t before = extent->size;
  const std::size_t from = round_up(before, zone.unit), to = round_up(size, zone.unit);
  const std::size_t added = to - from;
  if (added >= looks_at_limit) prepare_for_fresh(zone, added);
  for (bool reclaimed = false;; reclaimed = true) {
    std::unique_lock lock = lock_with_nodes(zone);
    if (!lock) return false;
    if (!config_.mapping_per_block && zone.map.regions() >= most_regions) return false;
    // The rest of its last unit goes with it, unless there is a block.
    if (!zone.map.clean_to_grow(extent, from, false)) return false;
    if (!config_.budget || config_.budget->charge(added)) {
      zone.map.grow(extent, from);
      zone.map.set_aside(nodes_to_resize);
      if (config_.budget) uncredited_ += added;
      break;
    }
    lock.unlock();
    if (reclaimed) return false;
    make_room(added);
  }
  const std::size_t region =
      pages.needs_commit ? to : region_for(zone, to, to + room_to_grow * from);
  void* moved = pages.remap(pages.context, lease.address, from, region, lease.alignment);
  std::unique_lock lock(mutex_);
  zone.map.put_back(nodes_to_resize);
  if (config_.budget) uncredited_ -= added;
  if (!moved) {
    if (before < from) zone.map.shrink(extent, before, State::pending, seconds_now(), ++serial_);
    if (config_.budget) config_.budget->credit(added);
    return false;
  }
  Extent* const left[] = {extent->before, extent->after};
  zone.map.move(extent, reinterpret_cast<std::uintptr_t>(moved), region, pages.zero_after_decommit);
  zone.map.grow(extent, size);
  moved_ = true;
  note_peaks();
  lease.address = moved;
  // What it leaves of its region, if nothing else is there.
  std::pair<std::uintptr_t, std::size_t> unmap[2];
  std::size_t unmapped = 0;
  for (Extent* each : left) {
    if (!each || each->state != State::clean || !zone.map.covers_region(each)) continue;
    unmap[unmapped++] = {each->begin, each->size};
    unmapping_ += each->size;
    zone.map.remove(each);
  }
  lock.unlock();
  while (unmapped--) {
    const auto [begin, length] = unmap[unmapped];
    unreserve(begin, length);
    lock.lock();
    unmapping_ -= length;
    ++returns_;
    lock.unlock();
  }
  return true;
}

// For growth that a budget has no room for.
void Arena::make_room(std::size_t nbytes) noexcept {
  const double start = seconds_now();
  reclaim(nbytes);
  count_wait(seconds_now() - start);
}

}  // namespace bigmem
