#pragma once

#include <cstddef>

namespace bigmem {

// Who wants to know what an arena does besides serving its callers. Called from any thread, the
// reclaim workers included, without the arena's lock; must neither wait nor allocate.
class Observer {
 public:
  virtual ~Observer() = default;
  // So many bytes were offered to the system; times in seconds of the monotonic clock.
  virtual void reclaimed(std::size_t nbytes, double begin, double seconds) noexcept = 0;
  // A caller had to reclaim or to wait.
  virtual void waited(double begin, double seconds) noexcept = 0;
};

}  // namespace bigmem
