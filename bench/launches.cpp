// A thread that launches an empty kernel again and again and notes how long each launch held it:
// native, so that Python's lock is no part of what it sees. Compiled by bench/gpu.py.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

namespace {

using Launch = int (*)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                       unsigned shared, void* stream, void** parameters, void** extra);
using SetCurrent = int (*)(void* context);
using Clock = std::chrono::steady_clock;

struct Watch {
  std::atomic<bool> over{false};
  std::atomic<std::size_t> made{0};
  int error = 0;
  std::vector<double> seconds;
  std::thread thread;

  void run(Launch launch, SetCurrent set_current, void* context, void* function, void* stream,
           std::chrono::microseconds pause) {
    error = set_current(context);
    while (error == 0 && !over.load()) {
      const auto start = Clock::now();
      error = launch(function, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr);
      seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
      made.fetch_add(1);
      std::this_thread::sleep_for(pause);
    }
  }
};

}  // namespace

extern "C" {

void* watch_start(void* launch, void* set_current, void* context, void* function, void* stream,
                  unsigned pause_us) {
  auto* watch = new Watch;
  watch->seconds.reserve(1 << 20);
  watch->thread = std::thread([=] {
    watch->run(reinterpret_cast<Launch>(launch), reinterpret_cast<SetCurrent>(set_current), context,
               function, stream, std::chrono::microseconds(pause_us));
  });
  return watch;
}

std::size_t watch_made(void* handle) { return static_cast<Watch*>(handle)->made.load(); }

// Ends the thread and gives out how long its launches took, in order.
std::size_t watch_stop(void* handle, double* seconds, std::size_t room, int* error) {
  auto* watch = static_cast<Watch*>(handle);
  watch->over.store(true);
  watch->thread.join();
  const std::size_t count = std::min(room, watch->seconds.size());
  std::copy_n(watch->seconds.begin(), count, seconds);
  *error = watch->error;
  delete watch;
  return count;
}
}
