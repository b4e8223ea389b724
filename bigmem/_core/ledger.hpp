#pragma once

#include <cstddef>
#include <cstdint>

#include "residency.hpp"

namespace bigmem {

// Who keeps account of the data memory of arrays. Called with the GIL, from any thread; must not
// raise, and must not call Python code.
class Ledger {
 public:
  // What an address carries from its allocation to its release.
  struct Note {
    std::uint32_t line = 0;  // where it was allocated
    bool looked_at = false;
    std::size_t asked = 0;   // bytes, with what it has lost since
    Resident before, after;  // at its allocation and before its release, if looked at
    Resident lost;           // in the ends that were cut off
    Resident copied;         // pages that came by copying it elsewhere
  };

  virtual ~Ledger() = default;
  // Requests below this are not told of.
  virtual std::size_t min_bytes() const noexcept = 0;
  // Times in seconds of the monotonic clock.
  virtual void allocated(Note& note, const void* address, std::size_t nbytes, double begin,
                         double seconds) noexcept = 0;
  // An array stays one through all its sizes: its note goes along. The range is still as it was.
  virtual void before_resize(Note& note, const void* address, std::size_t nbytes,
                             std::size_t wanted) noexcept = 0;
  // It had `before` bytes; `faults` are this thread's meanwhile.
  virtual void resized(Note& note, const void* address, std::size_t before, std::size_t nbytes,
                       double begin, double seconds, std::uint64_t faults) noexcept = 0;
  // The range is still mapped. Nothing may come of it: a range that cannot be moved stays.
  virtual void before_release(Note& note, const void* address, std::size_t nbytes) noexcept = 0;
  virtual void released(const Note& note, std::size_t nbytes, double begin, double seconds,
                        bool held_gil) noexcept = 0;
};

}  // namespace bigmem
