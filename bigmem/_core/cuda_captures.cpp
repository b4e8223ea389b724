#include "cuda_captures.hpp"

#include <pthread.h>

#include <new>

#include "clock.hpp"

namespace bigmem {

using namespace cuda;

void CaptureWatch::look(std::uint64_t number, std::uint64_t told, double now) noexcept {
  const std::uint64_t others = number - number_ - 1;
  if (others > told - told_) until_ = now + patience;
  number_ = number;
  told_ = told;
}

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
  ++told_;
}

void Captures::end() noexcept {
  std::lock_guard lock(mutex_);
  --under_way_;
}

int Captures::under_way() noexcept {
  std::lock_guard lock(mutex_);
  return under_way_;
}

bool Captures::quiet() const noexcept { return under_way_ <= 0 && !watch_.suspects(seconds_now()); }

bool Captures::quiet_in(const Driver& driver, Context context) {
  // The legacy stream shows those on streams that it waits for, for as long as they go on.
  int status = capture_status_none;
  const Result result = driver.stream_is_capturing(legacy_stream(), &status);
  if (result == stream_capture_implicit || (result == success && status != capture_status_none))
    return false;
  std::uint64_t number;
  if (!take_number(driver, context, number)) return true;
  const double now = seconds_now();
  watch_.look(number, told_, now);
  return !watch_.suspects(now);
}

// By a capture of our own, of nothing, on a stream that nobody else has; relaxed, so that it is in
// no other capture's way. False where the driver does not do that.
bool Captures::take_number(const Driver& driver, Context context, std::uint64_t& number) {
  unsigned long long id = 0, given = 0;
  if (!driver.shows_captures() || driver.ctx_id(context, &id) != success) return false;
  Stream& stream = streams_[id];
  if (!stream && driver.stream_create(&stream, stream_non_blocking) != success) return false;
  if (driver.begin_capture(stream, capture_mode_relaxed) != success) return false;
  int status = capture_status_none;
  const Result told =
      driver.capture_info(stream, &status, &given, nullptr, nullptr, nullptr, nullptr);
  Graph graph = nullptr;
  const Result ended = driver.end_capture(stream, &graph);
  if (graph) driver.graph_destroy(graph);
  if (ended != success) {
    // Nothing of ours may go on capturing.
    driver.stream_destroy(stream);
    streams_.erase(id);
  }
  number = given;
  return told == success && status != capture_status_none;
}

}  // namespace bigmem
