#pragma once

#include <cstddef>
#include <cstdint>

namespace bigmem {

enum class State : std::uint8_t { live, pending, reclaiming, warm, lazy, clean };
constexpr std::size_t state_count = 6;
constexpr std::size_t index_of(State state) { return static_cast<std::size_t>(state); }

inline std::uintptr_t align_up(std::uintptr_t value, std::size_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}

class AgeList;
class ExtentMap;

// A contiguous range in one state. The links of every structure that may hold an extent are part
// of it, so that changing its state needs no memory: releasing can never fail.
struct Extent {
  std::uintptr_t begin = 0;
  std::size_t size = 0;
  State state = State::clean;
  bool kept = false;         // kept from the child of the fork under way
  bool zero = false;         // every byte is known to be zero
  bool shared = false;       // a child of fork may still have these pages too
  std::uint64_t serial = 0;  // order of releases, for flush; of merged extents the lowest
  double since = 0;          // when it was released; of merged extents the latest
  double oldest = 0;         // of merged extents the earliest

  ExtentMap* map = nullptr;
  Extent *before = nullptr, *after = nullptr;  // neighbours by address within a region
  AgeList* list = nullptr;                     // the list it waits in, if any
  Extent *older = nullptr, *newer = nullptr;
  Extent *left = nullptr, *right = nullptr;  // children in a SizeTree
  std::uint32_t priority = 0;

  std::uintptr_t end() const { return begin + size; }
};

inline void link(Extent* before, Extent* extent, Extent* after) {
  extent->before = before;
  extent->after = after;
  if (before) before->after = extent;
  if (after) after->before = extent;
}

// Extents in the order in which they came, the oldest first.
class AgeList {
 public:
  Extent* oldest() const { return oldest_; }

  void append(Extent* extent) { insert(extent, newest_, nullptr); }
  void prepend(Extent* extent) { insert(extent, nullptr, oldest_); }
  void insert_before(Extent* extent, Extent* next) { insert(extent, next->older, next); }
  void insert_after(Extent* extent, Extent* previous) { insert(extent, previous, previous->newer); }

  void erase(Extent* extent) {
    (extent->older ? extent->older->newer : oldest_) = extent->newer;
    (extent->newer ? extent->newer->older : newest_) = extent->older;
    extent->older = extent->newer = nullptr;
    extent->list = nullptr;
  }

 private:
  void insert(Extent* extent, Extent* previous, Extent* next) {
    extent->list = this;
    extent->older = previous;
    extent->newer = next;
    (previous ? previous->newer : oldest_) = extent;
    (next ? next->older : newest_) = extent;
  }

  Extent *oldest_ = nullptr, *newest_ = nullptr;
};

// Extents by (size, begin): a treap, because it is short, intrusive and needs no parent links.
class SizeTree {
 public:
  // The smallest extent of at least (size, begin) in that order.
  Extent* at_least(std::size_t size, std::uintptr_t begin = 0) const {
    Extent* best = nullptr;
    for (Extent* node = root_; node;) {
      if (less(node->size, node->begin, size, begin)) {
        node = node->right;
      } else {
        best = node;
        node = node->left;
      }
    }
    return best;
  }

  void insert(Extent* extent) {
    Extent** link = &root_;
    while (*link && (*link)->priority >= extent->priority)
      link = less(extent, *link) ? &(*link)->left : &(*link)->right;
    // Split what hangs here around the newcomer.
    Extent *node = *link, **low = &extent->left, **high = &extent->right;
    *link = extent;
    while (node) {
      if (less(node, extent)) {
        *low = node;
        low = &node->right;
        node = node->right;
      } else {
        *high = node;
        high = &node->left;
        node = node->left;
      }
    }
    *low = *high = nullptr;
  }

  void erase(Extent* extent) {
    Extent** link = &root_;
    while (*link != extent) link = less(extent, *link) ? &(*link)->left : &(*link)->right;
    Extent *low = extent->left, *high = extent->right;
    while (low && high) {
      if (low->priority >= high->priority) {
        *link = low;
        link = &low->right;
        low = low->right;
      } else {
        *link = high;
        link = &high->left;
        high = high->left;
      }
    }
    *link = low ? low : high;
    extent->left = extent->right = nullptr;
  }

 private:
  static bool less(std::size_t size, std::uintptr_t begin, std::size_t other_size,
                   std::uintptr_t other_begin) {
    return size < other_size || (size == other_size && begin < other_begin);
  }
  static bool less(const Extent* one, const Extent* other) {
    return less(one->size, one->begin, other->size, other->begin);
  }

  Extent* root_ = nullptr;
};

}  // namespace bigmem
