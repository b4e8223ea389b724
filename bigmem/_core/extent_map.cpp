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

ExtentMap::ExtentMap(std::size_t unit, double decay) : unit_(unit), decay_(decay) {}

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

SizeTree* ExtentMap::tree_of(State state) {
  switch (state) {
    case State::warm:
      return &warm_tree_;
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
  if (SizeTree* tree = tree_of(extent->state)) tree->insert(extent);
  if (extent->list == &aged_) {
    aged_bytes_ += extent->size;
    aged_moment_ += static_cast<double>(extent->size) * extent->since;
  } else if (extent->list == &fenced_) {
    fenced_bytes_ += extent->size;
  }
}

void ExtentMap::leave(Extent* extent) {
  bytes_[index_of(extent->state)] -= extent->size;
  if (SizeTree* tree = tree_of(extent->state)) tree->erase(extent);
  if (extent->list == &aged_) {
    aged_bytes_ -= extent->size;
    aged_moment_ -= static_cast<double>(extent->size) * extent->since;
    if (!aged_bytes_) aged_moment_ = 0;  // sheds rounding errors
  } else if (extent->list == &fenced_) {
    fenced_bytes_ -= extent->size;
  }
  if (extent->list) extent->list->erase(extent);
}

void ExtentMap::move_to(Extent* extent, State state) {
  leave(extent);
  extent->state = state;
  if (state == State::pending) pending_.append(extent);
  if (state == State::reclaiming) reclaiming_.append(extent);
  if (state == State::warm) young_.append(extent);
  if (state == State::lazy) lazy_.append(extent);
  enter(extent);
}

Extent* ExtentMap::add_region(std::uintptr_t begin, std::size_t size, bool zero) {
  Extent* extent = new_extent();
  extent->begin = begin;
  extent->size = size;
  extent->zero = zero;
  enter(extent);
  return extent;
}

void ExtentMap::remove(Extent* extent) {
  leave(extent);
  if (extent->before) extent->before->after = nullptr;
  if (extent->after) extent->after->before = nullptr;
  free_extent(extent);
}

Extent* ExtentMap::fit(const SizeTree& tree, std::size_t size, std::size_t alignment) const {
  const auto holds = [&](const Extent* extent) {
    const std::uintptr_t begin = (extent->begin + alignment - 1) & ~(alignment - 1);
    return begin <= extent->end() && extent->end() - begin >= size;
  };
  Extent* extent = tree.at_least(size);
  for (int tries = 1; extent && !holds(extent); ++tries) {
    if (tries == alignment_tries) return tree.at_least(size + alignment - unit_);
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
  extent->serial = from->serial;
  extent->since = from->since;
  extent->oldest = from->oldest;
  return extent;
}

// Cuts the extent down to the range; what is left over on either side keeps state, age and place.
Extent* ExtentMap::carve(Extent* extent, std::uintptr_t begin, std::size_t size) {
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
    prefix->before = extent->before;
    prefix->after = extent;
    if (extent->before) extent->before->after = prefix;
    extent->before = prefix;
    enter(prefix);
  }
  if (suffix) {
    suffix->after = extent->after;
    suffix->before = extent;
    if (extent->after) extent->after->before = suffix;
    extent->after = suffix;
    enter(suffix);
  }
  extent->begin = begin;
  extent->size = size;
  enter(extent);
  return extent;
}

ExtentMap::Allocation ExtentMap::allocate(std::size_t size, std::size_t alignment, bool clean) {
  Extent* extent = fit(warm_tree_, size, alignment);
  if (!extent) extent = fit(lazy_tree_, size, alignment);
  if (!extent && clean) extent = fit(clean_tree_, size, alignment);
  if (!extent) return {nullptr, State::clean, false};
  carve(extent, (extent->begin + alignment - 1) & ~(alignment - 1), size);
  const Allocation allocation{extent, extent->state, extent->zero};
  move_to(extent, State::live);
  extent->zero = false;
  return allocation;
}

void ExtentMap::release(Extent* extent, State to, double now, std::uint64_t serial) {
  extent->since = extent->oldest = now;
  extent->serial = serial;
  move_to(extent, to);
  if (to == State::warm) merge_around(extent);
}

void ExtentMap::park(Extent* extent, double now, std::uint64_t serial) {
  extent->since = extent->oldest = now;
  extent->serial = serial;
  leave(extent);
  extent->state = State::pending;
  fenced_.append(extent);
  enter(extent);
}

void ExtentMap::unfence(Extent* extent, State to, double now) {
  if (to != State::pending) return release(extent, to, now, extent->serial);
  extent->since = extent->oldest = now;
  // To the front, so that the list stays in the order of serials, as settled() expects.
  leave(extent);
  extent->state = State::pending;
  if (const Extent* oldest = pending_.oldest())
    extent->serial = std::min(extent->serial, oldest->serial);
  pending_.prepend(extent);
  enter(extent);
}

bool ExtentMap::mergeable(const Extent* one, const Extent* other) const {
  if (!other || one->state != other->state) return false;
  if (one->state == State::clean || one->state == State::lazy) return true;
  // A warm extent outside the lists was refused by the system: it waits for reuse alone. And
  // ages may not drift far apart within one extent, or a small busy neighbour would keep a large
  // idle extent from going back.
  return one->state == State::warm && one->list && other->list &&
         std::max(one->since, other->since) - std::min(one->oldest, other->oldest) <= decay_ / 4;
}

// The neighbour becomes a part of the extent, which is in no index at this moment.
void ExtentMap::absorb(Extent* extent, Extent* neighbour) {
  leave(neighbour);
  if (neighbour == extent->before) {
    extent->begin = neighbour->begin;
    extent->before = neighbour->before;
    if (extent->before) extent->before->after = extent;
  } else {
    extent->after = neighbour->after;
    if (extent->after) extent->after->before = extent;
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
  if (extent->size > limit) carve(extent, extent->begin, limit);
  move_to(extent, State::reclaiming);
  return extent;
}

Extent* ExtentMap::finish(Extent* extent, Outcome outcome) {
  if (outcome == Outcome::refused) {
    leave(extent);
    extent->state = State::warm;
    extent->zero = false;
    enter(extent);
    return extent;
  }
  extent->zero = outcome == Outcome::clean_zero;
  move_to(extent, outcome == Outcome::lazy ? State::lazy : State::clean);
  return merge_around(extent);
}

void ExtentMap::requeue() {
  while (Extent* extent = reclaiming_.oldest()) unfence(extent, State::pending, extent->since);
}

bool ExtentMap::settled(std::uint64_t serial) const {
  const Extent* pending = pending_.oldest();
  if (pending && pending->serial <= serial) return false;
  for (const AgeList* list : {&reclaiming_, &fenced_})
    for (const Extent* extent = list->oldest(); extent; extent = extent->newer)
      if (extent->serial <= serial) return false;
  return true;
}

void ExtentMap::for_each(const std::function<void(const Extent&)>& visit) const {
  for (const Slab* slab = slabs_; slab; slab = slab->next)
    for (const Extent& extent : slab->extents)
      if (extent.size) visit(extent);
}

Extent* ExtentMap::find(std::uintptr_t begin) const {
  Extent* found = nullptr;
  for_each([&](const Extent& extent) {
    if (extent.begin == begin) found = const_cast<Extent*>(&extent);
  });
  return found;
}

}  // namespace bigmem
