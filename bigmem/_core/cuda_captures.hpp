#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "cuda_driver.hpp"

namespace bigmem {

// Tells captures that nobody told of by the numbers that the driver gives to captures: one sequence
// for the whole process, of which we take a number whenever we look. When one has ended cannot be
// seen; it is given a while.
//
// Pure: no clock and no call of the driver.
class CaptureWatch {
 public:
  static constexpr double patience = 1;  // seconds

  // `number` is our latest one, `told` how many captures have been told of so far. What has begun
  // before the first look counts as well.
  void look(std::uint64_t number, std::uint64_t told, double now) noexcept;
  // Whether a capture that nobody told of may be under way.
  bool suspects(double now) const noexcept { return now < until_; }

 private:
  std::uint64_t number_ = 0, told_ = 0;  // at the latest look
  double until_ = 0;
};

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
  // Whether the driver shows none that matters to the context, which must be current. Throws
  // std::bad_alloc.
  bool quiet_in(const cuda::Driver& driver, cuda::Context context);

 private:
  Captures();
  bool take_number(const cuda::Driver& driver, cuda::Context context, std::uint64_t& number);

  std::mutex mutex_;
  int under_way_ = 0;
  std::uint64_t told_ = 0;
  CaptureWatch watch_;
  // What we look with, by the context's own number: a context that is made anew has another one,
  // though perhaps the same address.
  std::map<std::uint64_t, cuda::Stream> streams_;
};

}  // namespace bigmem
