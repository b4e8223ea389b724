#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "extent.hpp"

namespace bigmem {

// Which extents an arena has, in which states, and what happens to them next.
//
// Pure: no clock, no system call, no lock, and no allocation but what donate() brings. Times and
// outcomes are arguments, so that tests drive it with a clock of their own. Every operation is
// O(log n). bigmem/arena/extents.py is its reference model; the two must agree in every detail.
class ExtentMap {
 public:
  // What take() may hand out beside the pending, which come first: nothing, what is due by now,
  // whatever is warm, or anything that is resident and not in use.
  enum class Take { pending, due, warm, any };

  enum class Outcome { clean_zero, clean, lazy, refused };

  struct Allocation {
    Extent* extent;  // null when nothing fits
    State from;
    bool zero;
  };

  // `unit` is the size that every extent is a multiple of; `decay` the seconds within which
  // warm extents go back, infinity for never.
  ExtentMap(std::size_t unit, double decay);
  ~ExtentMap();
  ExtentMap(const ExtentMap&) = delete;
  ExtentMap& operator=(const ExtentMap&) = delete;

  // Extents are made from slabs which the caller allocates, outside any lock. add_region,
  // allocate and take need has_nodes(); what ends an extent's life never needs any.
  static void* new_slab() noexcept;
  bool has_nodes() const { return spare_count_ >= nodes_per_call; }
  void donate(void* slab);

  Extent* add_region(std::uintptr_t begin, std::size_t size, bool zero);
  // The range leaves the map; what lies on either side are separate regions from now on.
  void remove(Extent* extent);

  // Best fit: the smallest warm, else lazy, else (if `clean` permits) clean extent that holds
  // the size at the alignment.
  Allocation allocate(std::size_t size, std::size_t alignment, bool clean = true);

  // Live extents end here. `to` is warm, pending, or reclaiming when the caller itself goes on.
  void release(Extent* extent, State to, double now, std::uint64_t serial);
  // Pending, but not to be touched before unfence() says to which state it goes.
  void park(Extent* extent, double now, std::uint64_t serial);
  void unfence(Extent* extent, State to, double now);

  // The oldest extent of that kind, of at most `limit` bytes (a multiple of the unit), for the
  // caller to reclaim and to finish(); null if there is none.
  Extent* take(Take what, double now, std::size_t limit);
  // What became of an extent that was reclaiming; answers with the extent it is part of now.
  Extent* finish(Extent* extent, Outcome outcome);
  // Everything in the hands of reclaimers is pending again: they did not survive a fork.
  void requeue();

  // Whether nothing released up to this serial is pending or reclaiming.
  bool settled(std::uint64_t serial) const;
  // Whether warm extents could become due without any further call.
  bool ageing() const { return aged_.oldest() || young_.oldest(); }
  std::size_t bytes(State state) const { return bytes_[index_of(state)]; }
  std::size_t fenced() const { return fenced_bytes_; }
  bool covers_region(const Extent* extent) const { return !extent->before && !extent->after; }

  // Every extent, in no order.
  void for_each(const std::function<void(const Extent&)>& visit) const;
  // The extent that begins at this address, by linear search: for tests.
  Extent* find(std::uintptr_t begin) const;

 private:
  static constexpr std::size_t nodes_per_call = 3;
  // Candidates tried before best fit asks for room enough at any address.
  static constexpr int alignment_tries = 8;
  // Extents looked at by one call of due(), so that no call is long.
  static constexpr int ageing_per_call = 64;

  Extent* new_extent();
  void free_extent(Extent* extent);
  SizeTree* tree_of(State state);
  void enter(Extent* extent);  // into the tree and the sums of its state
  void leave(Extent* extent);  // out of them, and out of its list
  void move_to(Extent* extent, State state);
  Extent* fit(const SizeTree& tree, std::size_t size, std::size_t alignment) const;
  Extent* carve(Extent* extent, std::uintptr_t begin, std::size_t size);
  Extent* copy_range(const Extent* from, std::uintptr_t begin, std::size_t size);
  Extent* merge_around(Extent* extent);
  bool mergeable(const Extent* one, const Extent* other) const;
  void absorb(Extent* extent, Extent* neighbour);
  void grow_old(double now);
  Extent* due(double now, std::size_t limit);

  const std::size_t unit_;
  const double decay_;

  std::array<std::size_t, state_count> bytes_{};
  SizeTree warm_tree_, lazy_tree_, clean_tree_;
  AgeList pending_, fenced_, reclaiming_;
  AgeList young_, aged_, lazy_;  // warm extents before and after half their decay time

  // Bytes in aged_, and their sum weighted with `since`, for the pace of the decay.
  std::size_t aged_bytes_ = 0;
  double aged_moment_ = 0;
  double credit_ = 0, credited_ = 0;
  std::size_t fenced_bytes_ = 0;

  struct Slab;
  Extent* spare_ = nullptr;
  std::size_t spare_count_ = 0;
  Slab* slabs_ = nullptr;
  std::uint32_t random_ = 2463534242u;
};

}  // namespace bigmem
