#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "extent.hpp"

namespace bigmem {

// Which extents an arena has, in which states, and what happens to them next.
//
// Pure: no clock, no system call, no lock, and no allocation but what donate() brings. Times and
// outcomes are arguments, so that tests drive it with a clock of their own. What is done with one
// extent is O(log n). bigmem/arena/extents.py is its reference model; the two must agree in every
// detail.
//
// What is in use consists of whole pages; what may be reclaimed consists of whole units, because
// returning a part of a huge page frees nothing. What is left of a unit that is in use in part is
// a fragment: warm, never reclaimed, and there for blocks smaller than a unit. It becomes a part of
// a whole unit again when the last block in its unit ends.
class ExtentMap {
 public:
  // What take() may hand out beside the pending, which come first: nothing, what is due by now,
  // whatever is warm, or anything that is resident and not in use.
  enum class Take { pending, due, warm, any };

  // `wiped`: the memory stays, and every byte of it is zero.
  enum class Outcome { clean_zero, clean, lazy, refused, wiped };

  struct Allocation {
    Extent* extent;  // null when nothing fits
    State from;
    bool zero;
  };

  // `unit` is what can be reclaimed, `page` what can be allocated, both powers of two; `decay`
  // the seconds within which warm extents go back, infinity for never.
  ExtentMap(std::size_t unit, double decay, std::size_t page = 4096);
  ~ExtentMap();
  ExtentMap(const ExtentMap&) = delete;
  ExtentMap& operator=(const ExtentMap&) = delete;

  // Extents are made from slabs which the caller allocates, outside any lock. add_region, allocate,
  // take, move, grow and shrink need has_nodes(), which the first two may share; what ends an
  // extent's life has what it may need set aside.
  static void* new_slab() noexcept;
  bool has_nodes() const { return spare_count_ >= nodes_per_call + reserved_; }
  std::size_t spare_nodes() const { return spare_count_; }
  std::size_t reserved_nodes() const { return reserved_; }
  void donate(void* slab);
  // has_nodes() leaves so many more to a call that is to come, and must not fail, until that puts
  // them back.
  void set_aside(std::size_t nodes) { reserved_ += nodes; }
  void put_back(std::size_t nodes) { reserved_ -= nodes; }

  // Begin and size are multiples of the unit.
  Extent* add_region(std::uintptr_t begin, std::size_t size, bool zero);
  // The range leaves the map; what lies on either side are separate regions from now on.
  void remove(Extent* extent);
  // A live extent of whole units has left its range, as in remove(), and is at the beginning of a
  // new region of that size.
  void move(Extent* extent, std::uintptr_t begin, std::size_t size, bool zero);
  std::size_t regions() const { return regions_; }

  // Best fit for a multiple of the page. Less than a unit comes from fragments alone; the rest, on
  // a border between units, from the smallest warm, else lazy, else (if `clean` permits) clean
  // extent that holds it, and leaves a fragment where its last unit is not full.
  Allocation allocate(std::size_t size, std::size_t alignment, bool clean = true,
                      Extent* added = nullptr);

  // Live extents end here. `to` is warm, pending, or reclaiming when the caller itself goes on;
  // what is shared becomes pending instead of warm. Answers with the extent that holds the units
  // in that state, null if nothing but a fragment is left.
  Extent* release(Extent* extent, State to, double now, std::uint64_t serial);
  // Pending, but not to be touched before unfence() says to which state it goes.
  void park(Extent* extent, double now, std::uint64_t serial);
  Extent* unfence(Extent* extent, State to, double now);

  // How many clean bytes a live extent would take to be of this size, which is larger than its own,
  // where it is: nothing if what follows does not let it. That must be warm or lazy, or clean if
  // `clean` permits, in no more pieces than one call may look at, and as shared as the extent.
  std::optional<std::size_t> clean_to_grow(const Extent* extent, std::size_t size,
                                           bool clean = true) const;
  // After clean_to_grow() has said that it can. Takes what allocate() would have taken.
  void grow(Extent* extent, std::size_t size);
  // A live extent keeps its first bytes; the rest ends as in release().
  Extent* shrink(Extent* extent, std::size_t size, State to, double now, std::uint64_t serial);

  // The oldest extent of that kind, of at most `limit` bytes (a multiple of the unit), for the
  // caller to reclaim and to finish(); null if there is none.
  Extent* take(Take what, double now, std::size_t limit);
  // What became of an extent that was reclaiming; answers with the extent it is part of now.
  Extent* finish(Extent* extent, Outcome outcome);
  // Everything in the hands of reclaimers is pending again: they did not survive a fork.
  void requeue();
  // A child of fork has what it cannot give up at once: whatever is in use, fenced, or warm without
  // a way back. Recycling that would copy it page by page, so its units are reclaimed before they
  // are warm again.
  void mark_shared();

  // Whether nothing released up to this serial is pending or reclaiming.
  bool settled(std::uint64_t serial) const;
  // Whether warm extents could become due without any further call.
  bool ageing() const { return aged_.oldest() || young_.oldest(); }
  std::size_t bytes(State state) const { return bytes_[index_of(state)]; }
  std::size_t fenced() const { return fenced_bytes_; }
  // How many of the warm bytes are fragments.
  std::size_t fragments() const { return fragment_bytes_; }
  bool covers_region(const Extent* extent) const { return !extent->before && !extent->after; }

  // Every extent, in no order.
  void for_each(const std::function<void(Extent&)>& visit);
  // The extent that begins at this address, by linear search: for tests.
  Extent* find(std::uintptr_t begin);

 private:
  // A region; what allocate leaves on three sides; and what the end of the new block may need.
  static constexpr std::size_t nodes_per_call = 5;
  // Candidates tried before best fit asks for room enough at any address.
  static constexpr int alignment_tries = 8;
  // Extents looked at by one call of due(), so that no call is long.
  static constexpr int ageing_per_call = 64;
  // Extents that one call of grow() takes in, for the same reason.
  static constexpr int taken_per_call = 64;

  void detach(Extent* extent);
  Extent* new_extent();
  void free_extent(Extent* extent);
  bool is_fragment(const Extent* extent) const {
    return extent && extent->state == State::warm && extent->size < unit_;
  }
  bool may_need_node(const Extent* extent) const;
  SizeTree* tree_of(const Extent* extent);
  void enter(Extent* extent);                  // into the tree and the sums of its state
  void leave(Extent* extent);                  // out of them, and out of its list
  void enter_as(Extent* extent, State state);  // into the list of the state too
  void enter_as_fragment(Extent* extent);
  void move_to_front(Extent* extent);
  Extent* fit(const SizeTree& tree, std::size_t size, std::size_t alignment,
              std::size_t granularity) const;
  void carve(Extent* extent, std::uintptr_t begin, std::size_t size);
  Extent* cut(Extent* extent, std::uintptr_t at);
  Extent* copy_range(const Extent* from, std::uintptr_t begin, std::size_t size);
  Extent* reduce(Extent* extent);
  Extent* end_life(Extent* extent, State to, double now, std::uint64_t serial);
  Extent* merge_around(Extent* extent);
  bool mergeable(const Extent* one, const Extent* other) const;
  void absorb(Extent* extent, Extent* neighbour);
  void grow_old(double now);
  Extent* due(double now, std::size_t limit);

  const std::size_t unit_, page_;
  const double decay_;

  std::array<std::size_t, state_count> bytes_{};
  SizeTree fragment_tree_, warm_tree_, lazy_tree_, clean_tree_;
  AgeList pending_, fenced_, reclaiming_;
  AgeList young_, aged_, lazy_;  // warm extents before and after half their decay time

  // Bytes in aged_, and their sum weighted with `since`, for the pace of the decay.
  std::size_t aged_bytes_ = 0;
  double aged_moment_ = 0;
  double credit_ = 0, credited_ = 0;
  std::size_t fenced_bytes_ = 0, fragment_bytes_ = 0;

  struct Slab;
  Extent* spare_ = nullptr;
  std::size_t spare_count_ = 0;
  std::size_t reserved_ = 0;  // how many of them are set aside
  std::size_t regions_ = 0;
  Slab* slabs_ = nullptr;
  std::uint32_t random_ = 2463534242u;
};

}  // namespace bigmem
