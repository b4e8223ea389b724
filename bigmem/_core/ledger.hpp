#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace bigmem {

// Who keeps account of the data memory of arrays. Called with the GIL, from any thread; must not
// raise, and must not call Python code.
class Ledger {
 public:
  // What an address carries from its allocation to its release.
  struct Note {
    std::uint32_t line = 0;           // where it was allocated
    std::size_t small = 0, huge = 0;  // bytes that were resident at once, by kind of page
  };

  virtual ~Ledger() = default;
  // Requests below this are not told of.
  virtual std::size_t min_bytes() const noexcept = 0;
  // Times in seconds of the monotonic clock. `moved` is the note of the range that this one
  // replaces, null where it is new.
  virtual void allocated(Note& note, const void* address, std::size_t nbytes, double begin,
                         double seconds, const Note* moved) noexcept = 0;
  // The range is still mapped.
  virtual void before_release(Note& note, const void* address, std::size_t nbytes) noexcept = 0;
  virtual void released(const Note& note, std::size_t nbytes, double begin, double seconds,
                        bool held_gil) noexcept = 0;
};

}  // namespace bigmem
