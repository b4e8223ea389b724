#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace bigmem {

// What every allocator counts. Bytes, counts and seconds, as in AllocatorStats.
struct Counters {
  std::size_t live = 0, pending = 0, reclaiming = 0, warm = 0, lazy = 0, clean = 0;
  std::size_t peak_live = 0, peak_resident = 0;
  std::uint64_t allocations = 0, releases = 0, warm_hits = 0, reclaimed = 0;
  std::uint64_t waits = 0, reclaim_failures = 0;
  double allocate_seconds = 0, release_seconds = 0, reclaim_seconds = 0, wait_seconds = 0;
};

struct Lease;

// Where a range came from and where it goes back to. Nothing here knows Python.
class Source {
 public:
  virtual ~Source() = default;

  // Ends a range's life. Never blocks and never makes a system call; true when the policy wants
  // the caller to pay now, by calling settle() without the GIL. A fenced range is only parked.
  virtual bool release(void* token, bool fenced) noexcept = 0;

  // The fences of a parked range are done; the answer means the same as that of release().
  virtual bool unfence(void* token) noexcept = 0;

  // The blocking part of an inline release.
  virtual void settle(void* token) noexcept = 0;

  // Changes the size of a range that is in use by nobody at this moment; the contents up to the
  // smaller size stay, the address need not. Where it is refused nothing has changed. It would
  // block where only a call that may make system calls, for which the GIL is given up, can tell.
  enum class Resized { refused, would_block, done };
  virtual Resized resize(Lease&, std::size_t, bool /*may_block*/) noexcept {
    return Resized::refused;
  }
};

// A range in the hands of a block.
struct Lease {
  std::shared_ptr<Source> source;
  void* address = nullptr;
  std::size_t nbytes = 0;
  void* token = nullptr;
  std::size_t alignment = 1;  // what was asked for

  explicit operator bool() const { return source != nullptr; }
};

}  // namespace bigmem
