#include "reclaimer.hpp"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include "clock.hpp"
#include "incidents.hpp"
#include "pressure.hpp"
#include "signals.hpp"

namespace bigmem {
namespace {

constexpr int poll = 2;  // milliseconds
// How late a release after a quiet time may be seen; an idle program with live blocks pays fifty
// looks a second of a microsecond each.
constexpr int longest_pause = 20;
constexpr std::size_t stack_size = std::size_t{256} << 10;
// A fork or an exit waits so long at most for workers to end: they may be in a long system call.
constexpr double longest_end = 0.25;
constexpr std::chrono::microseconds look_again{50};

// What the kernel needs beside the pages themselves (their tables, mostly), and what it is late
// to count.
constexpr std::size_t overhead_share = 256;
constexpr std::size_t overhead = std::size_t{8} << 20;

struct Registry {
  std::mutex mutex;
  std::vector<Reclaimer*> reclaimers;
};

Registry& registry() {
  static auto* leaked = new Registry;
  return *leaked;
}

bool (*after_fork_in_parent)() = nullptr;
std::atomic<bool> ending{false};  // the process, and no worker may start

// Held, so that none ends its life meanwhile.
std::vector<std::shared_ptr<Reclaimer>> all_reclaimers() {
  std::vector<std::shared_ptr<Reclaimer>> all;
  std::lock_guard lock(registry().mutex);
  for (Reclaimer* reclaimer : registry().reclaimers)
    if (auto held = reclaimer->weak_from_this().lock()) all.push_back(std::move(held));
  return all;
}

// Starts a detached thread.
bool start_thread(void* (*body)(void*), void* argument) {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return false;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, stack_size);
  pthread_t thread;
  bool good;
  {
    const SignalsBlocked blocked;
    good = pthread_create(&thread, &attributes, body, argument) == 0;
  }
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
  if (std::find(memories_.begin(), memories_.end(), memory) == memories_.end())
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
  for (Phase expected = Phase::idle; !phase_.compare_exchange_strong(expected, Phase::starting);
       expected = Phase::idle) {
    if (expected != Phase::held) return;
    restart_.store(true);
    if (phase_.load() == Phase::held) return;  // fork_done() looks after letting go
  }
  int started = 0;
  for (int slot = 0; slot < workers_; ++slot) started += start_worker(slot);
  phase_.store(started ? Phase::running : Phase::refused);
}

bool Reclaimer::start_worker(int slot) noexcept {
  auto* worker = new (std::nothrow) Worker{shared_from_this(), slot};
  manned_[slot].store(true);
  running_.fetch_add(1);
  if (worker && start_thread(thread_main, worker)) return true;
  running_.fetch_sub(1);
  manned_[slot].store(false);
  delete worker;
  return false;
}

// Workers in the place of those that have ended for a fork that did not wait for the others.
void Reclaimer::start_missing() noexcept {
  Phase expected = Phase::running;
  if (!phase_.compare_exchange_strong(expected, Phase::starting)) return;
  for (int slot = 0; slot < workers_ && !may_end(); ++slot)
    if (!manned_[slot].load()) start_worker(slot);
  phase_.store(running() || may_end() ? Phase::running : Phase::refused);
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

void Reclaimer::lose_worker() noexcept {
  losing_.fetch_add(1);
  {
    std::lock_guard lock(mutex_);
    asleep_.store(false);
  }
  woken_.notify_all();
}

void* Reclaimer::thread_main(void* argument) {
  auto* worker = static_cast<Worker*>(argument);
  Reclaimer& reclaimer = *worker->reclaimer;
  pthread_setname_np(pthread_self(), "bigmem-reclaim");
  reclaimer.threads_[worker->slot].store(static_cast<pid_t>(syscall(SYS_gettid)));
  bool asked;
  do asked = reclaimer.run();
  while (!reclaimer.end(worker->slot, asked));
  if (!asked) {
    reclaimer.replaced_.fetch_add(1);
    note_incident(Incident::worker_replaced, 0);
    // Where no thread is to be had, allocations reclaim in its stead.
    if (!reclaimer.start_worker(worker->slot) && reclaimer.running() == 1) {
      Phase expected = Phase::running;
      reclaimer.phase_.compare_exchange_strong(expected, Phase::refused);
    }
    reclaimer.running_.fetch_sub(1);
  }
  delete worker;
  return nullptr;
}

// Notes the end of a worker; false if it is not wanted any more, as a fork has given up waiting.
bool Reclaimer::end(int slot, bool asked) noexcept {
  std::lock_guard lock(mutex_);
  if (!asked) return true;  // another takes its place at once
  if (!stopping_.load() && !is_spent()) return false;
  manned_[slot].store(false);
  running_.fetch_sub(1);
  return true;
}

// Whether the worker ended because it was asked to.
bool Reclaimer::run() noexcept {
  int pause = poll;
  while (!may_end() && !stopping_.load()) {
    int losing = losing_.load();
    if (losing > 0 && losing_.compare_exchange_strong(losing, losing - 1)) return false;
    const Reclaimable::Activity activity = pass();
    if (activity.worked) {
      pause = poll;
    } else if (activity.waiting) {
      rest(pause);
      pause = std::min(2 * pause, longest_pause);
    } else {
      sleep_until_woken();
      pause = poll;
    }
  }
  return true;
}

void Reclaimer::rest(int milliseconds) noexcept {
  std::unique_lock lock(mutex_);
  woken_.wait_for(lock, std::chrono::milliseconds(milliseconds), [&] { return told_to_end(); });
}

// One chunk for everyone in turn.
Reclaimable::Activity Reclaimer::pass() noexcept {
  Reclaimable::Activity total;
  for (std::size_t i = 0; !stopping_.load(); ++i) {
    std::shared_ptr<Reclaimable> memory;
    {
      std::lock_guard lock(mutex_);
      if (i >= memories_.size()) break;
      memory = memories_[i];
    }
    const Reclaimable::Activity activity = memory->reclaim_due();
    total.worked |= activity.worked;
    total.waiting |= activity.waiting;
    if (memory->finished()) remove(memory.get());
  }
  return total;
}

template <typename Visit>
void Reclaimer::for_each_memory(Visit visit) noexcept {
  for (std::size_t i = 0;; ++i) {
    std::shared_ptr<Reclaimer> reclaimer;
    {
      std::lock_guard lock(registry().mutex);
      if (i >= registry().reclaimers.size()) return;
      reclaimer = registry().reclaimers[i]->weak_from_this().lock();
    }
    for (std::size_t j = 0; reclaimer; ++j) {
      std::shared_ptr<Reclaimable> memory;
      {
        std::lock_guard lock(reclaimer->mutex_);
        if (j >= reclaimer->memories_.size()) break;
        memory = reclaimer->memories_[j];
      }
      visit(*memory);
    }
  }
}

void Reclaimer::make_headroom(std::size_t nbytes) noexcept {
  // Blocks that nobody has touched yet are as good as used.
  std::size_t held = 0;
  for_each_memory([&](Reclaimable& memory) { held += memory.held(); });
  const std::size_t resident = resident_private_bytes();
  const std::size_t promised = held > resident ? held - resident : 0;
  const std::size_t wanted = nbytes + nbytes / overhead_share + overhead + promised;
  const std::size_t room = PressureMonitor::process().memory().headroom(wanted);
  std::size_t missing = wanted > room ? wanted - room : 0;
  if (!missing) return;
  for_each_memory([&](Reclaimable& memory) {
    if (missing) missing -= std::min(missing, memory.reclaim(missing));
  });
}

bool Reclaimer::attach(const Fences* fences, std::uintptr_t address,
                       Fences::Fence* fence) noexcept {
  std::shared_ptr<Reclaimable> found;
  {
    // In one go: a list that changed meanwhile might hide it. The order of locks is that of forks.
    std::lock_guard all(registry().mutex);
    for (Reclaimer* reclaimer : registry().reclaimers) {
      std::lock_guard lock(reclaimer->mutex_);
      for (const auto& memory : reclaimer->memories_)
        if (!found && memory->may_attach(fences, address)) found = memory;
    }
  }
  return found && found->attach(address, fence);
}

bool Reclaimer::may_end() noexcept {
  if (!closed_.load()) return false;
  std::lock_guard lock(mutex_);
  return is_spent();
}

void Reclaimer::sleep_until_woken() noexcept {
  asleep_.store(true);
  // An allocation that came before this store saw nobody asleep: look once more.
  const Reclaimable::Activity activity = pass();
  // With the others, should they sleep already: they would not hear of the next allocation.
  if (activity.worked || activity.waiting || closed_.load()) return wake();
  std::unique_lock lock(mutex_);
  woken_.wait(lock, [&] { return !asleep_.load() || told_to_end(); });
}

// Keeps workers from being started, and tells those that run to end; false if none do.
bool Reclaimer::tell_to_end() noexcept {
  Phase before = phase_.load();
  while (before == Phase::starting || !phase_.compare_exchange_weak(before, Phase::held)) {
    if (before == Phase::starting) std::this_thread::yield();
    before = phase_.load();
  }
  if (before != Phase::running) return false;
  stopping_.store(true);
  {
    std::lock_guard lock(mutex_);
    asleep_.store(false);
  }
  woken_.notify_all();
  return true;
}

void Reclaimer::end_all() noexcept {
  ending.store(true);
  const auto all = all_reclaimers();
  for (const auto& reclaimer : all) reclaimer->tell_to_end();
  const double deadline = seconds_now() + longest_end;
  for (const auto& reclaimer : all)
    if (reclaimer->asks_fences()) reclaimer->has_ended(deadline);
}

bool Reclaimer::asks_fences() noexcept {
  std::lock_guard lock(mutex_);
  return std::any_of(memories_.begin(), memories_.end(),
                     [](const auto& memory) { return memory->asks_fences(); });
}

// Waits for the workers, which were told to end.
bool Reclaimer::has_ended(double deadline) noexcept {
  while (running() && seconds_now() < deadline) std::this_thread::sleep_for(look_again);
  return !running();
}

// Those that do not end in time run on; the others start again after the fork.
void Reclaimer::wait_for_end(double deadline) noexcept {
  if (!has_ended(deadline)) {
    {
      std::lock_guard lock(mutex_);
      stopping_.store(false);
    }
    phase_.store(Phase::running);
    restart_.store(true);
    return;
  }
  // Python counts the threads of the process to warn of forks: let the system forget them.
  for (const std::atomic<pid_t>& thread : threads_)
    while (thread.load() && syscall(SYS_tgkill, getpid(), thread.load(), 0) == 0 &&
           seconds_now() < deadline)
      std::this_thread::sleep_for(look_again);
  for (std::atomic<pid_t>& thread : threads_) thread.store(0);
  restart_.store(true);
}

void Reclaimer::prepare_fork() {
  {
    std::vector<std::shared_ptr<Reclaimer>> told;
    for (auto& reclaimer : all_reclaimers())
      if (reclaimer->tell_to_end()) told.push_back(std::move(reclaimer));
    const double deadline = seconds_now() + longest_end;
    for (const auto& reclaimer : told) reclaimer->wait_for_end(deadline);
  }  // where this was the last to hold one, its life ends, which takes the lock
  registry().mutex.lock();
  for (Reclaimer* reclaimer : registry().reclaimers) {
    reclaimer->mutex_.lock();
    for (const auto& memory : reclaimer->memories_) memory->before_fork();
  }
}

void Reclaimer::fork_done(bool in_child) {
  bool restart = false;
  if (in_child) ending.store(false);
  const bool stays_held = ending.load();
  for (Reclaimer* reclaimer : registry().reclaimers) {
    if (in_child) {
      // The workers, if any, stayed behind; others start when they are needed.
      reclaimer->phase_.store(Phase::idle);
      reclaimer->running_.store(0);
      for (std::atomic<bool>& manned : reclaimer->manned_) manned.store(false);
      reclaimer->asleep_.store(false);
      reclaimer->restart_.store(false);
      new (&reclaimer->woken_) std::condition_variable;
    }
    for (const auto& memory : reclaimer->memories_) memory->after_fork(in_child);
    reclaimer->mutex_.unlock();
    if (stays_held) continue;
    reclaimer->stopping_.store(false);
    Phase expected = Phase::held;
    reclaimer->phase_.compare_exchange_strong(expected, Phase::idle);
    restart |= reclaimer->restart_.load();
  }
  registry().mutex.unlock();
  if (in_child || !restart) return;
  // Python runs pending calls in its main thread only, which may be waiting; but a process whose
  // other threads fork has threads anyway, so nothing is gained by waiting for it.
  const bool main_thread = syscall(SYS_gettid) == getpid();
  if (!main_thread || !after_fork_in_parent || !after_fork_in_parent()) restart_all();
}

void Reclaimer::set_after_fork(bool (*call)()) { after_fork_in_parent = call; }

void Reclaimer::restart_all() noexcept {
  for (const auto& reclaimer : all_reclaimers())
    if (reclaimer->restart_.exchange(false)) {
      reclaimer->ensure_workers();
      reclaimer->start_missing();
    }
}

}  // namespace bigmem
