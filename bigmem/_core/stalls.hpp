#pragma once

namespace bigmem {

// Who is told of calls of the driver that may have made every thread of the process wait. Told by
// any native thread, one at a time, without the GIL; must neither wait nor take it.
class StallObserver {
 public:
  virtual ~StallObserver() = default;
  // By which mechanism of pinning, and when, in seconds of the monotonic clock.
  virtual void stalled(const char* mechanism, double begin, double seconds) noexcept = 0;
};

// A child of fork has no observers: they are its parent's.
void watch_stalls(StallObserver* observer);
// After that it is not told any more.
void unwatch_stalls(StallObserver* observer) noexcept;
void tell_stall(const char* mechanism, double begin, double seconds) noexcept;

}  // namespace bigmem
