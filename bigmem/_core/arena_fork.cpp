#include <utility>

#include "arena.hpp"

namespace bigmem {
namespace {

// Smaller ranges are copied and given up by the child: keeping each from it splits a mapping.
constexpr std::size_t worth_keeping = huge_unit;

}  // namespace

// Idle memory is kept from the child. Had the child copies, if only until it gave them up, the
// parent's next use of each page would copy it and break its huge pages.
void Arena::before_fork() noexcept {
  mutex_.lock();
  for (Zone* zone : {&small_, &huge_})
    zone->map.for_each([&](Extent& extent) {
      if (extent.state == State::live || extent.state == State::clean) return;
      if (extent.list == nullptr || extent.size < worth_keeping) return;
      extent.kept = keep_from_child(extent, true);
    });
}

void Arena::after_fork(bool in_child) noexcept {
  if (in_child) return become_child();
  for (Zone* zone : {&small_, &huge_}) {
    zone->map.for_each([&](Extent& extent) {
      if (extent.kept) extent.kept = !keep_from_child(extent, false);
    });
    if (shares_with_child()) zone->map.mark_shared();
  }
  mutex_.unlock();
}

// Every idle range is clean from now on. Reclaims that were under way in the parent start over.
void Arena::become_child() noexcept {
  // The threads that were unmapping stayed behind.
  if (uncredited_) config_.budget->credit(std::exchange(uncredited_, 0));
  unmapping_ = 0;
  for (Zone* zone : {&small_, &huge_}) {
    zone->map.requeue();
    if (shares_with_child()) zone->map.mark_shared();
  }
  if (has_fences()) forsake_fences();
  mutex_.unlock();
  // No other thread exists, and whole extents need no nodes.
  for (Zone* zone : {&small_, &huge_})
    while (Extent* extent = zone->map.take(ExtentMap::Take::any, 0, SIZE_MAX)) {
      if (extent->kept) extent->kept = !keep_from_child(*extent, false);
      reclaim_extent(extent, Goal::clean, Advice::dontneed);
    }
}

bool Arena::keep_from_child(const Extent& extent, bool kept) noexcept {
  const PagesTable& pages = config_.pages;
  return pages.set_wiped_on_fork(pages.context, reinterpret_cast<void*>(extent.begin), extent.size,
                                 kept) == 0;
}

}  // namespace bigmem
