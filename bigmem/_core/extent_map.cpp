#include "extent_map.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace bigmem {
struct ExtentMap::Slab {
  static constexpr std::size_t count = 64;
  Slab* next = nullptr;
  Extent extents[count];
};

ExtentMap::ExtentMap(std::size_t unit, double decay, std::size_t page)
    : unit_(unit), page_(page), decay_(decay) {}

ExtentMap::~ExtentMap() {
  while (slabs_) delete std::exchange(slabs_, slabs_->next);
}

void* ExtentMap::new_slab() noexcept { return new (std::nothrow) Slab; }

void ExtentMap::donate(void* memory) {
  auto* slab = static_cast<Slab*>(memory);
  slab->next = slabs_;
  slabs_ = slab;
  for (Extent& extent : slab->extents) free_extent(&extent);
}

Extent* ExtentMap::new_extent() {
  Extent* extent = spare_;
  spare_ = extent->after;
  --spare_count_;
  *extent = Extent{};
  extent->map = this;
  random_ ^= random_ << 13;
  random_ ^= random_ >> 17;
  random_ ^= random_ << 5;
  extent->priority = random_;
  return extent;
}

void ExtentMap::free_extent(Extent* extent) {
  extent->size = 0;  // what for_each knows a spare one by
  extent->after = spare_;
  spare_ = extent;
  ++spare_count_;
}

// The end of such an extent may have to be cut off its whole units.
bool ExtentMap::may_need_node(const Extent* extent) const {
  return (extent->state == State::live || extent->list == &fenced_) && extent->size > unit_ &&
         extent->size % unit_;
}

SizeTree* ExtentMap::tree_of(const Extent* extent) {
  switch (extent->state) {
    case State::warm:
      return is_fragment(extent) ? &fragment_tree_ : &warm_tree_;
    case State::lazy:
      return &lazy_tree_;
    case State::clean:
      return &clean_tree_;
    default:
      return nullptr;
  }
}

void ExtentMap::enter(Extent* extent) {
  bytes_[index_of(extent->state)] += extent->size;
  if (SizeTree* tree = tree_of(extent)) tree->insert(extent);
  if (extent->list == &aged_) {
    aged_bytes_ += extent->size;
    aged_moment_ += static_cast<double>(extent->size) * extent->since;
  } else if (extent->list == &fenced_) {
    fenced_bytes_ += extent->size;
  }
  if (is_fragment(extent)) fragment_bytes_ += extent->size;
  if (may_need_node(extent)) ++reserved_;
}

void ExtentMap::leave(Extent* extent) {
  bytes_[index_of(extent->state)] -= extent->size;
  if (SizeTree* tree = tree_of(extent)) tree->erase(extent);
  if (extent->list == &aged_) {
    aged_bytes_ -= extent->size;
    aged_moment_ -= static_cast<double>(extent->size) * extent->since;
    if (!aged_bytes_) aged_moment_ = 0;  // sheds rounding errors
  } else if (extent->list == &fenced_) {
    fenced_bytes_ -= extent->size;
  }
  if (is_fragment(extent)) fragment_bytes_ -= extent->size;
  if (may_need_node(extent)) --reserved_;
  if (extent->list) extent->list->erase(extent);
}

void ExtentMap::enter_as(Extent* extent, State state) {
  extent->state = state;
  if (state == State::pending) pending_.append(extent);
  if (state == State::reclaiming) reclaiming_.append(extent);
  if (state == State::warm) young_.append(extent);
  if (state == State::lazy) lazy_.append(extent);
  enter(extent);
}

// A fragment waits for reuse alone: it is in no list, and has no age.
void ExtentMap::enter_as_fragment(Extent* extent) {
  extent->state = State::warm;
  extent->serial = 0;
  extent->since = extent->oldest = 0;
  enter(extent);
}

// Of the pending ones, which stay in the order of serials, as settled() expects.
void ExtentMap::move_to_front(Extent* extent) {
  leave(extent);
  extent->state = State::pending;
  if (const Extent* oldest = pending_.oldest())
    extent->serial = std::min(extent->serial, oldest->serial);
  pending_.prepend(extent);
  enter(extent);
}

Extent* ExtentMap::add_region(std::uintptr_t begin, std::size_t size, bool zero) {
  Extent* extent = new_extent();
  extent->begin = begin;
  extent->size = size;
  extent->zero = zero;
  enter(extent);
  ++regions_;
  return extent;
}

void ExtentMap::remove(Extent* extent) {
  leave(extent);
  detach(extent);
  free_extent(extent);
}

// From its region, of which at most two are left.
void ExtentMap::detach(Extent* extent) {
  if (extent->before) extent->before->after = nullptr;
  if (extent->after) extent->after->before = nullptr;
  regions_ += (extent->before != nullptr) + (extent->after != nullptr);
  --regions_;
  extent->before = extent->after = nullptr;
}

// `granularity` is what every extent of the tree is a multiple of.
Extent* ExtentMap::fit(const SizeTree& tree, std::size_t size, std::size_t alignment,
                       std::size_t granularity) const {
  const auto holds = [&](const Extent* extent) {
    const std::uintptr_t begin = align_up(extent->begin, alignment);
    return begin <= extent->end() && extent->end() - begin >= size;
  };
  Extent* extent = tree.at_least(size);
  for (int tries = 1; extent && !holds(extent); ++tries) {
    if (tries == alignment_tries) return tree.at_least(size + alignment - granularity);
    extent = tree.at_least(extent->size, extent->begin + 1);
  }
  return extent;
}

Extent* ExtentMap::copy_range(const Extent* from, std::uintptr_t begin, std::size_t size) {
  Extent* extent = new_extent();
  extent->begin = begin;
  extent->size = size;
  extent->state = from->state;
  extent->zero = from->zero;
  extent->shared = from->shared;
  extent->serial = from->serial;
  extent->since = from->since;
  extent->oldest = from->oldest;
  return extent;
}

// Takes the extent out of the indices and cuts it down to the range; what is left over on either
// side keeps state, age and place.
void ExtentMap::carve(Extent* extent, std::uintptr_t begin, std::size_t size) {
  Extent* prefix =
      begin > extent->begin ? copy_range(extent, extent->begin, begin - extent->begin) : nullptr;
  Extent* suffix = begin + size < extent->end()
                       ? copy_range(extent, begin + size, extent->end() - begin - size)
                       : nullptr;
  if (extent->list) {
    if (prefix) extent->list->insert_before(prefix, extent);
    if (suffix) extent->list->insert_after(suffix, extent);
  }
  leave(extent);
  if (prefix) {
    link(extent->before, prefix, extent);
    enter(prefix);
  }
  if (suffix) {
    link(extent, suffix, extent->after);
    enter(suffix);
  }
  extent->begin = begin;
  extent->size = size;
}

// Cuts off the end of an extent that is in no index; nor is the end.
Extent* ExtentMap::cut(Extent* extent, std::uintptr_t at) {
  Extent* end = copy_range(extent, at, extent->end() - at);
  link(extent, end, extent->after);
  extent->size -= end->size;
  return end;
}

ExtentMap::Allocation ExtentMap::allocate(std::size_t size, std::size_t alignment, bool clean,
                                          Extent* added) {
  Extent* extent = nullptr;
  std::size_t taken = size;
  if (size < unit_) {
    extent = fit(fragment_tree_, size, alignment, page_);
  } else {
    taken = align_up(size, unit_);
    extent = fit(warm_tree_, taken, alignment, unit_);
    if (!extent) extent = fit(lazy_tree_, taken, alignment, unit_);
    if (!extent && clean) extent = added ? added : fit(clean_tree_, taken, alignment, unit_);
  }
  if (!extent) return {nullptr, State::clean, false};
  carve(extent, align_up(extent->begin, alignment), taken);
  const Allocation allocation{extent, extent->state, extent->zero};
  if (taken > size) enter_as_fragment(cut(extent, extent->begin + size));
  extent->zero = false;
  enter_as(extent, State::live);
  return allocation;
}

// Of an extent in no index, whose life ends, leaves the units that nothing else uses; its part of
// another unit becomes a fragment. Null if that was all.
Extent* ExtentMap::reduce(Extent* extent) {
  const std::size_t rest = extent->size % unit_;
  if (!rest) return extent;
  if (extent->size > unit_) {
    if (Extent* last = reduce(cut(extent, extent->end() - rest))) absorb(extent, last);
    return extent;
  }
  // Inside one unit, the borders of which separate fragments too.
  for (const bool low : {true, false}) {
    Extent* neighbour = low ? extent->before : extent->after;
    const bool at_border = (low ? extent->begin : extent->end()) % unit_ == 0;
    if (at_border || !is_fragment(neighbour)) continue;
    leave(neighbour);
    absorb(extent, neighbour);
  }
  if (extent->size == unit_) return extent;
  enter_as_fragment(extent);
  return nullptr;
}

Extent* ExtentMap::release(Extent* extent, State to, double now, std::uint64_t serial) {
  leave(extent);
  return end_life(extent, to, now, serial);
}

// Of an extent in no index.
Extent* ExtentMap::end_life(Extent* extent, State to, double now, std::uint64_t serial) {
  if (!reduce(extent)) return nullptr;
  if (to == State::warm && extent->shared) to = State::pending;
  extent->since = extent->oldest = now;
  extent->serial = serial;
  enter_as(extent, to);
  return to == State::warm ? merge_around(extent) : extent;
}

void ExtentMap::park(Extent* extent, double now, std::uint64_t serial) {
  extent->since = extent->oldest = now;
  extent->serial = serial;
  leave(extent);
  extent->state = State::pending;
  fenced_.append(extent);
  enter(extent);
}

Extent* ExtentMap::unfence(Extent* extent, State to, double now) {
  extent = release(extent, to, now, extent->serial);
  if (extent && extent->state == State::pending) move_to_front(extent);
  return extent;
}

bool ExtentMap::mergeable(const Extent* one, const Extent* other) const {
  if (!other || one->state != other->state) return false;
  if (one->state == State::clean) return true;
  if (one->state == State::lazy) return one->shared == other->shared;
  // A warm extent outside the lists was refused by the system: it waits for reuse alone. And
  // ages may not drift far apart within one extent, or a small busy neighbour would keep a large
  // idle extent from going back.
  return one->state == State::warm && one->list && other->list &&
         std::max(one->since, other->since) - std::min(one->oldest, other->oldest) <= decay_ / 4;
}

// The neighbour becomes a part of the extent; both are in no index at this moment. They agree on
// whether they are shared: within a unit everything does, because what is in use in part is marked
// with its fragments.
void ExtentMap::absorb(Extent* extent, Extent* neighbour) {
  if (neighbour == extent->before) {
    extent->begin = neighbour->begin;
    link(neighbour->before, extent, extent->after);
  } else {
    link(extent->before, extent, neighbour->after);
  }
  extent->size += neighbour->size;
  extent->zero = extent->zero && neighbour->zero;
  extent->serial = std::min(extent->serial, neighbour->serial);
  extent->since = std::max(extent->since, neighbour->since);
  extent->oldest = std::min(extent->oldest, neighbour->oldest);
  free_extent(neighbour);
}

Extent* ExtentMap::merge_around(Extent* extent) {
  for (const bool low : {true, false}) {
    Extent* neighbour = low ? extent->before : extent->after;
    if (!mergeable(extent, neighbour)) continue;
    AgeList* list = extent->list;
    leave(extent);
    leave(neighbour);
    absorb(extent, neighbour);
    if (list) list->append(extent);
    enter(extent);
  }
  return extent;
}

// Moves warm extents that have been idle for half the decay time to the list that is being given
// back.
void ExtentMap::grow_old(double now) {
  for (int looked = 0; looked < ageing_per_call; ++looked) {
    Extent* extent = young_.oldest();
    if (!extent || now - extent->since < decay_ / 2) return;
    if (!aged_.oldest()) {
      credit_ = 0;
      credited_ = now;
    }
    leave(extent);
    aged_.append(extent);
    enter(extent);
  }
}

// Oldest first, at the pace at which what has aged would be gone by the mean of its deadlines, and
// at once past its own deadline. For extents released together that is a straight line from half
// the decay time to all of it; where memory is released steadily it settles at the same rate.
Extent* ExtentMap::due(double now, std::size_t limit) {
  grow_old(now);
  Extent* extent = aged_.oldest();
  if (!extent) return nullptr;
  const double aged = static_cast<double>(aged_bytes_);
  const double left = aged_moment_ / aged + decay_ - credited_;
  const double earned = left > 0 ? aged / left * (now - credited_) : aged;
  credit_ = std::min(credit_ + earned, aged);
  credited_ = now;
  const double size = static_cast<double>(std::min(extent->size, limit));
  if (credit_ < size && now - extent->since < decay_) return nullptr;
  credit_ = std::max(credit_ - size, 0.0);
  return extent;
}

Extent* ExtentMap::take(Take what, double now, std::size_t limit) {
  Extent* extent = pending_.oldest();
  if (!extent && what == Take::due) extent = due(now, limit);
  if (!extent && (what == Take::warm || what == Take::any)) {
    extent = aged_.oldest();
    if (!extent) extent = young_.oldest();
  }
  if (!extent && what == Take::any) extent = lazy_.oldest();
  if (!extent) return nullptr;
  carve(extent, extent->begin, std::min(extent->size, limit));
  enter_as(extent, State::reclaiming);
  return extent;
}

Extent* ExtentMap::finish(Extent* extent, Outcome outcome) {
  leave(extent);
  if (outcome == Outcome::refused) {
    extent->state = State::warm;
    extent->zero = false;
    enter(extent);
    return extent;
  }
  extent->zero = outcome == Outcome::clean_zero || outcome == Outcome::wiped;
  // Wiping has made copies of its own of what was shared.
  if (outcome != Outcome::lazy) extent->shared = false;
  enter_as(extent, outcome == Outcome::lazy    ? State::lazy
                   : outcome == Outcome::wiped ? State::warm
                                               : State::clean);
  return merge_around(extent);
}

void ExtentMap::requeue() {
  while (Extent* extent = reclaiming_.oldest()) move_to_front(extent);
}

void ExtentMap::mark_shared() {
  for_each([&](Extent& extent) {
    const bool listless = extent.state == State::warm && !extent.list;
    if (extent.state == State::live || extent.list == &fenced_ || listless) extent.shared = true;
  });
}

bool ExtentMap::settled(std::uint64_t serial) const {
  const Extent* pending = pending_.oldest();
  if (pending && pending->serial <= serial) return false;
  for (const AgeList* list : {&reclaiming_, &fenced_})
    for (const Extent* extent = list->oldest(); extent; extent = extent->newer)
      if (extent->serial <= serial) return false;
  return true;
}

void ExtentMap::for_each(const std::function<void(Extent&)>& visit) {
  for (Slab* slab = slabs_; slab; slab = slab->next)
    for (Extent& extent : slab->extents)
      if (extent.size) visit(extent);
}

Extent* ExtentMap::find(std::uintptr_t begin) {
  Extent* found = nullptr;
  for_each([&](Extent& extent) {
    if (extent.begin == begin) found = &extent;
  });
  return found;
}

}  // namespace bigmem
