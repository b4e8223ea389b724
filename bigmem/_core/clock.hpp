#pragma once

#include <chrono>

namespace bigmem {

// Seconds of the monotonic clock; no system call on the platforms that matter.
inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace bigmem
