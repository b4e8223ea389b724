#include "stalls.hpp"

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <vector>

namespace bigmem {
namespace {

struct Observers {
  std::mutex mutex;
  std::vector<StallObserver*> all;
};

Observers& observers() {
  static Observers* leaked = [] {
    // A worker that stays behind may hold the lock, in the midst of a change.
    pthread_atfork(nullptr, nullptr, [] { new (&observers()) Observers; });
    return new Observers;
  }();
  return *leaked;
}

}  // namespace

void watch_stalls(StallObserver* observer) {
  std::lock_guard lock(observers().mutex);
  observers().all.push_back(observer);
}

void unwatch_stalls(StallObserver* observer) noexcept {
  std::lock_guard lock(observers().mutex);
  auto& all = observers().all;
  all.erase(std::remove(all.begin(), all.end(), observer), all.end());
}

void tell_stall(const char* mechanism, double begin, double seconds) noexcept {
  std::lock_guard lock(observers().mutex);
  for (StallObserver* observer : observers().all) observer->stalled(mechanism, begin, seconds);
}

}  // namespace bigmem
