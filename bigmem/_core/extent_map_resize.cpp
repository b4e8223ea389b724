#include <algorithm>

#include "extent_map.hpp"

namespace bigmem {

std::optional<std::size_t> ExtentMap::clean_to_grow(const Extent* extent, std::size_t size,
                                                    bool clean) const {
  // A block begins on a border between units, or lies within one.
  const std::size_t offset = extent->begin % unit_;
  if (offset && offset + size > unit_) return std::nullopt;
  std::size_t fresh = 0, held = extent->size;
  const Extent* next = extent->after;
  for (int looked = 0; held < size; ++looked, next = next->after) {
    if (!next || looked == taken_per_call || next->shared != extent->shared) return std::nullopt;
    const bool free =
        next->state == State::warm || next->state == State::lazy || next->state == State::clean;
    if (!free || (next->state == State::clean && !clean)) return std::nullopt;
    if (next->state == State::clean) fresh += std::min(next->size, align_up(size - held, unit_));
    held += next->size;
  }
  return fresh;
}

void ExtentMap::grow(Extent* extent, std::size_t size) {
  leave(extent);
  while (extent->size < size) {
    Extent* next = extent->after;
    const std::size_t missing = size - extent->size;
    const std::size_t wanted = is_fragment(next) ? missing : align_up(missing, unit_);
    carve(next, next->begin, std::min(next->size, wanted));
    if (next->size > missing) enter_as_fragment(cut(next, next->begin + missing));
    absorb(extent, next);
  }
  enter(extent);
}

Extent* ExtentMap::shrink(Extent* extent, std::size_t size, State to, double now,
                          std::uint64_t serial) {
  leave(extent);
  Extent* rest = cut(extent, extent->begin + size);
  enter(extent);
  // What it leaves of the unit in which it ends now is a fragment.
  const std::uintptr_t border = align_up(rest->begin, unit_);
  if (rest->begin < border) {
    Extent* fragment = rest;
    rest = border < rest->end() ? cut(rest, border) : nullptr;
    reduce(fragment);
  }
  return rest ? end_life(rest, to, now, serial) : nullptr;
}

void ExtentMap::move(Extent* extent, std::uintptr_t begin, std::size_t size, bool zero) {
  detach(extent);
  extent->begin = begin;
  ++regions_;
  if (size == extent->size) return;
  Extent* rest = add_region(extent->end(), size - extent->size, zero);
  link(extent, rest, nullptr);
  --regions_;
}

}  // namespace bigmem
