#include "cuda_captures.hpp"

#include <pthread.h>

#include <new>

namespace bigmem {

using namespace cuda;

// A fork does not wait for the lock: a worker that has to end before it may want it too.
Captures::Captures() {
  pthread_atfork(nullptr, nullptr, [] { new (&known().mutex_) std::mutex; });
}

Captures& Captures::known() {
  static auto* captures = new Captures;
  return *captures;
}

void Captures::begin() noexcept {
  std::lock_guard lock(mutex_);
  ++under_way_;
}

void Captures::end() noexcept {
  std::lock_guard lock(mutex_);
  --under_way_;
}

int Captures::under_way() noexcept {
  std::lock_guard lock(mutex_);
  return under_way_;
}

bool Captures::quiet() const noexcept { return under_way_ <= 0; }

bool Captures::quiet_in_context(const Driver& driver) noexcept {
  int status = capture_status_none;
  const Result result = driver.stream_is_capturing(legacy_stream(), &status);
  return result != stream_capture_implicit && (result != success || status == capture_status_none);
}

}  // namespace bigmem
