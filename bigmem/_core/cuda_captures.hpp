#pragma once

#include <mutex>

#include "cuda_driver.hpp"

namespace bigmem {

// Captures of CUDA graphs in the process: an event over a whole context would invalidate those of
// its streams.
class Captures {
 public:
  static Captures& known();

  // Somebody tells of one. Beginning waits for a guard that is being recorded, about a microsecond.
  void begin() noexcept;
  void end() noexcept;
  int under_way() noexcept;

  // Held while a guard is recorded; the rest is called with it.
  std::mutex& mutex() { return mutex_; }
  // Whether none is known of, as far as can be told without the driver.
  bool quiet() const noexcept;
  // Whether the driver shows none in the current context. It shows those on streams that the legacy
  // stream waits for, and no others.
  static bool quiet_in_context(const cuda::Driver& driver) noexcept;

 private:
  Captures();

  std::mutex mutex_;
  int under_way_ = 0;
};

}  // namespace bigmem
