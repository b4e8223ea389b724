#include "fake_cuda.hpp"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

namespace bigmem {

using namespace cuda;

namespace {

constexpr int context_shift = 12;
constexpr std::uintptr_t default_streams = 3;  // 0, legacy and per thread

// A number of this thread, which has a stream of its own in each context.
std::uintptr_t thread_number() {
  constexpr std::uintptr_t most = std::uintptr_t{1} << (context_shift - 1);
  static std::atomic<std::uintptr_t> count{0};
  thread_local const std::uintptr_t number = count++ % most;
  return number;
}

}  // namespace

FakeCuda& FakeCuda::only() {
  static auto* fake = new FakeCuda;
  return *fake;
}

void FakeCuda::configure(int devices, std::size_t memory, bool host_vmm) {
  finish(0, 0);
  std::lock_guard lock(mutex_);
  devices_.resize(devices);
  limit_ = memory;
  host_vmm_ = host_vmm;
  lost_ = success;
  for (auto& each : streams_) each.second.capturing = false;
  failures_.clear();
  delays_.clear();
  calls_.clear();
  all_calls_ = stalls_ = 0;
}

// What every function begins with: the result to return at once, or success.
Result FakeCuda::enter(const char* name, bool unsafe) {
  double seconds;
  {
    std::lock_guard lock(mutex_);
    ++calls_[name];
    ++all_calls_;
    ++own_calls_;
    const auto delayed = delays_.find(name);
    seconds = delayed == delays_.end() ? 0 : delayed->second;
  }
  if (seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  std::lock_guard lock(mutex_);
  if (lost_ != success) return lost_;
  const auto failing = failures_.find(name);
  if (failing != failures_.end()) {
    Failure& failure = failing->second;
    if (failure.after > 0) {
      --failure.after;
    } else if (failure.times != 0) {
      if (failure.times > 0) --failure.times;
      return failure.result;
    }
  }
  if (!unsafe || capture_mode_ == capture_mode_relaxed || !invalidate_captures(nullptr))
    return success;
  return stream_capture_unsupported;
}

// As the driver does, a context that is made anew has the address of the former one.
Context FakeCuda::context_of(int device) {
  return reinterpret_cast<Context>(static_cast<std::uintptr_t>(device + 1) << context_shift);
}

int FakeCuda::device_of(Context context) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(context) >> context_shift) - 1;
}

// The default streams belong to the current context.
FakeCuda::Stream& FakeCuda::stream_of(std::uintptr_t stream) {
  if (stream >= default_streams) return streams_.at(stream);
  const Context context = stack_.empty() ? context_of(0) : stack_.back();
  Stream& found =
      streams_[reinterpret_cast<std::uintptr_t>(context) + (stream == 2 ? 2 + thread_number() : 1)];
  found.context = context;
  return found;
}

// What is done to a context spoils every capture in it, and what is unsafe every capture. False if
// there is none.
bool FakeCuda::invalidate_captures(Context context) {
  bool any = false;
  for (auto& [name, stream] : streams_) {
    if (!stream.capturing || (context && stream.context != context)) continue;
    any = true;
    stream.invalidated = true;
  }
  return any;
}

bool FakeCuda::done(const Event& event) {
  for (const auto& [stream, count] : event.after)
    if (streams_.at(stream).work.done < count) return false;
  return true;
}

bool FakeCuda::busy() {
  for (const auto& each : streams_)
    if (!each.second.work.waiting.empty()) return true;
  return false;
}

// A chunk's memory is there as long as somebody holds or maps it.
void FakeCuda::forget(Handle handle) {
  const Chunk& chunk = chunks_.at(handle);
  if (chunk.held || chunk.mapped) return;
  close(chunk.file);
  in_use_ -= chunk.size;
  chunks_.erase(handle);
}

std::uintptr_t FakeCuda::new_stream(int device, bool blocking) {
  std::lock_guard lock(mutex_);
  const std::uintptr_t stream = ++next_;
  streams_[stream].context = context_of(device);
  streams_[stream].blocking = blocking;
  return stream;
}

void FakeCuda::submit(std::uintptr_t stream, std::function<void()> work) {
  std::lock_guard lock(mutex_);
  Work& queue = stream_of(stream).work;
  queue.waiting.push_back(std::move(work));
  ++queue.submitted;
}

void FakeCuda::finish(std::uintptr_t stream, std::size_t count) {
  std::lock_guard lock(mutex_);
  const auto finish_one = [&](Work& work) {
    for (std::size_t left = count ? count : work.waiting.size(); left && !work.waiting.empty();
         --left) {
      work.waiting.front()();
      work.waiting.pop_front();
      ++work.done;
    }
  };
  if (stream) return finish_one(stream_of(stream).work);
  for (auto& each : streams_) finish_one(each.second.work);
}

void FakeCuda::begin_capture(std::uintptr_t stream) {
  std::lock_guard lock(mutex_);
  stream_of(stream).capturing = true;
  stream_of(stream).invalidated = false;
}

bool FakeCuda::end_capture(std::uintptr_t stream) {
  std::lock_guard lock(mutex_);
  stream_of(stream).capturing = false;
  return !stream_of(stream).invalidated;
}

void FakeCuda::fail(const std::string& function, Result result, int after, int times) {
  std::lock_guard lock(mutex_);
  failures_[function] = {result, after, times};
}

void FakeCuda::delay(const std::string& function, double seconds) {
  std::lock_guard lock(mutex_);
  delays_[function] = seconds;
}

void FakeCuda::lose(Result result) {
  std::lock_guard lock(mutex_);
  lost_ = result;
}

void FakeCuda::activate(int device) {
  std::lock_guard lock(mutex_);
  devices_.at(device).active = true;
}

void FakeCuda::reset_device(int device) {
  std::lock_guard lock(mutex_);
  Device& each = devices_.at(device);
  each.active = false;
  each.retained = 0;
  ++each.life;
}

std::uint64_t FakeCuda::calls(const std::string& function) {
  std::lock_guard lock(mutex_);
  return function.empty() ? all_calls_ : calls_[function];
}

std::uint64_t FakeCuda::own_calls() { return own_calls_; }

std::size_t FakeCuda::memory() {
  std::lock_guard lock(mutex_);
  return in_use_;
}

std::size_t FakeCuda::mappings() {
  std::lock_guard lock(mutex_);
  return mappings_.size();
}

std::uint64_t FakeCuda::stalls() {
  std::lock_guard lock(mutex_);
  return stalls_;
}

std::size_t FakeCuda::events() {
  std::lock_guard lock(mutex_);
  return events_.size();
}

}  // namespace bigmem
