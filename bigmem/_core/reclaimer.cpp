#include "reclaimer.hpp"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <thread>
#include <utility>

namespace bigmem {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds poll{2};
// How late a release after a quiet time may be seen; an idle program with live blocks pays fifty
// looks a second of a microsecond each.
constexpr milliseconds longest_pause{20};
constexpr std::size_t stack_size = std::size_t{256} << 10;

struct Registry {
  std::mutex mutex;
  std::vector<Reclaimer*> reclaimers;
};

Registry& registry() {
  static auto* leaked = new Registry;
  return *leaked;
}

// Starts a detached thread with every signal blocked: handlers belong to the program's threads.
bool start_thread(void* (*body)(void*), void* argument) {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return false;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, stack_size);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const bool good = pthread_create(&thread, &attributes, body, argument) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  return good;
}

}  // namespace

Reclaimer::Reclaimer(int workers) : workers_(workers) {
  static const int handlers =
      pthread_atfork(prepare_fork, [] { fork_done(false); }, [] { fork_done(true); });
  (void)handlers;
  std::lock_guard lock(registry().mutex);
  registry().reclaimers.push_back(this);
}

Reclaimer::~Reclaimer() {
  std::lock_guard lock(registry().mutex);
  auto& all = registry().reclaimers;
  all.erase(std::find(all.begin(), all.end(), this));
}

std::shared_ptr<Reclaimer> Reclaimer::process_default() {
  static auto* leaked = new std::shared_ptr<Reclaimer>(std::make_shared<Reclaimer>(1));
  return *leaked;
}

void Reclaimer::add(std::shared_ptr<Reclaimable> memory) {
  std::lock_guard lock(mutex_);
  memories_.push_back(std::move(memory));
}

void Reclaimer::remove(const Reclaimable* memory) noexcept {
  std::shared_ptr<Reclaimable> last;  // may unmap gigabytes: not under the lock
  std::lock_guard lock(mutex_);
  const auto at = std::find_if(memories_.begin(), memories_.end(),
                               [&](const auto& held) { return held.get() == memory; });
  if (at == memories_.end()) return;
  last = std::move(*at);
  memories_.erase(at);
}

void Reclaimer::start() noexcept {
  Phase expected = Phase::idle;
  if (!phase_.compare_exchange_strong(expected, Phase::starting)) return;
  int started = 0;
  for (int i = 0; i < workers_; ++i) {
    auto* self = new (std::nothrow) std::shared_ptr<Reclaimer>(shared_from_this());
    running_.fetch_add(1);
    if (self && start_thread(thread_main, self)) {
      ++started;
    } else {
      running_.fetch_sub(1);
      delete self;
    }
  }
  phase_.store(started ? Phase::running : Phase::refused);
}

bool Reclaimer::still_refused() noexcept {
  Phase expected = Phase::refused;
  if (phase_.compare_exchange_strong(expected, Phase::idle)) start();
  return refused();
}

void Reclaimer::wake() noexcept {
  if (!asleep_.load()) return;
  {
    std::lock_guard lock(mutex_);
    asleep_.store(false);
  }
  woken_.notify_all();
}

void Reclaimer::close() noexcept {
  closed_.store(true);
  wake();
}

void* Reclaimer::thread_main(void* argument) {
  auto* handle = static_cast<std::shared_ptr<Reclaimer>*>(argument);
  pthread_setname_np(pthread_self(), "bigmem-reclaim");
  (*handle)->run();
  (*handle)->running_.fetch_sub(1);
  delete handle;
  return nullptr;
}

void Reclaimer::run() noexcept {
  milliseconds pause = poll;
  while (!may_end()) {
    const Reclaimable::Activity activity = pass();
    if (activity.worked) {
      pause = poll;
    } else if (activity.waiting) {
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, longest_pause);
    } else {
      sleep_until_woken();
      pause = poll;
    }
  }
}

// One chunk for everyone in turn.
Reclaimable::Activity Reclaimer::pass() noexcept {
  Reclaimable::Activity total;
  for (std::size_t i = 0;; ++i) {
    std::shared_ptr<Reclaimable> memory;
    {
      std::lock_guard lock(mutex_);
      if (i >= memories_.size()) return total;
      memory = memories_[i];
    }
    const Reclaimable::Activity activity = memory->reclaim_due();
    total.worked |= activity.worked;
    total.waiting |= activity.waiting;
    if (memory->finished()) remove(memory.get());
  }
}

bool Reclaimer::may_end() noexcept {
  if (!closed_.load()) return false;
  std::lock_guard lock(mutex_);
  return memories_.empty();
}

void Reclaimer::sleep_until_woken() noexcept {
  asleep_.store(true);
  // An allocation that came before this store saw nobody asleep: look once more.
  const Reclaimable::Activity activity = pass();
  // With the others, should they sleep already: they would not hear of the next allocation.
  if (activity.worked || activity.waiting || closed_.load()) return wake();
  std::unique_lock lock(mutex_);
  woken_.wait(lock, [&] { return !asleep_.load(); });
}

void Reclaimer::prepare_fork() {
  registry().mutex.lock();
  for (Reclaimer* reclaimer : registry().reclaimers) {
    reclaimer->mutex_.lock();
    for (const auto& memory : reclaimer->memories_) memory->before_fork();
  }
}

void Reclaimer::fork_done(bool in_child) {
  for (Reclaimer* reclaimer : registry().reclaimers) {
    if (in_child) {
      // The workers stayed behind; others start when they are needed.
      reclaimer->phase_.store(Phase::idle);
      reclaimer->running_.store(0);
      reclaimer->asleep_.store(false);
      new (&reclaimer->woken_) std::condition_variable;
    }
    for (const auto& memory : reclaimer->memories_) memory->after_fork(in_child);
    reclaimer->mutex_.unlock();
  }
  registry().mutex.unlock();
}

}  // namespace bigmem
