#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "fences.hpp"

namespace bigmem {

// Memory that the workers of a Reclaimer look after.
class Reclaimable {
 public:
  struct Activity {
    bool worked = false;   // something was reclaimed
    bool waiting = false;  // there may be something later, without anybody calling
  };

  virtual ~Reclaimable() = default;
  // Reclaims one chunk of what is due, on the calling thread.
  virtual Activity reclaim_due() noexcept = 0;
  // Reclaims at least so many bytes that are not in use, if there are as many; returns how many.
  virtual std::size_t reclaim(std::size_t nbytes) noexcept = 0;
  // Bytes that are resident, or will be once their users touch them.
  virtual std::size_t held() noexcept = 0;
  // Whether its workers ask fences.
  virtual bool asks_fences() noexcept { return false; }
  // Whether it goes by these fences and has a live block there, and the rest of attach_fence().
  virtual bool may_attach(const Fences*, std::uintptr_t /*address*/) noexcept { return false; }
  virtual bool attach(std::uintptr_t /*address*/, Fences::Fence*) noexcept { return false; }
  // Nothing will ever need reclaiming here again.
  virtual bool finished() noexcept = 0;

  // Around a fork: the lock is taken before it and let go by both sides after it.
  virtual void before_fork() noexcept = 0;
  virtual void after_fork(bool in_child) noexcept = 0;
};

// Native threads that reclaim and never enter Python. They start at the first allocation whose
// release may need them, poll while there is work, back off while there is none, and sleep for good
// while there can be none, until an allocation wakes them. Nothing depends on them: who needs
// memory helps itself. They end before a fork and start again after it, so that a process which
// has no threads of its own forks as one that has none.
class Reclaimer : public std::enable_shared_from_this<Reclaimer> {
 public:
  static constexpr int most_workers = 64;

  explicit Reclaimer(int workers);
  ~Reclaimer();
  Reclaimer(const Reclaimer&) = delete;
  Reclaimer& operator=(const Reclaimer&) = delete;

  // The pool of the process. Leaked: its workers outlive every static destructor.
  static std::shared_ptr<Reclaimer> process_default();

  void add(std::shared_ptr<Reclaimable> memory);
  void remove(const Reclaimable* memory) noexcept;

  // One atomic load once the workers run.
  void ensure_workers() noexcept {
    const Phase phase = phase_.load(std::memory_order_relaxed);
    if (phase == Phase::idle || phase == Phase::held) start();
  }
  // For allocations, once their block is live: one atomic load unless the workers sleep.
  void wake() noexcept;
  bool refused() const { return phase_.load(std::memory_order_relaxed) == Phase::refused; }
  // The same, after trying once more.
  bool still_refused() noexcept;
  int running() const { return running_.load(std::memory_order_relaxed); }
  // How many workers ended without having been asked to; each was replaced.
  int replaced() const { return replaced_.load(std::memory_order_relaxed); }
  // For tests: one worker ends as if by accident.
  void lose_worker() noexcept;

  // Does the workers' work on the calling thread, until nothing is due.
  void help() noexcept {
    while (pass().worked) continue;
  }

  // Before so many fresh bytes become resident: reclaims idle memory of the whole process as far
  // as the process would otherwise pass its memory limit.
  static void make_headroom(std::size_t nbytes) noexcept;

  // As attach_fence(), whichever memory it is.
  static bool attach(const Fences* fences, std::uintptr_t address, Fences::Fence* fence) noexcept;

  // The workers end once there is nothing left to look after.
  void close() noexcept;

  // Called in the parent when a fork has ended workers: to call restart_all() soon, but not before
  // Python has counted the threads. They start at once where it answers false, or in another
  // thread.
  static void set_after_fork(bool (*call)());
  static void restart_all() noexcept;

  // The process is about to end, which frees memory faster than workers can: they end, and no more
  // are started. They are waited for only where they may be asking fences: the library that they
  // ask ends too.
  static void end_all() noexcept;

 private:
  // `held`: a fork is under way, or the end of the process, and nobody may start workers.
  enum class Phase { idle, starting, running, refused, held };
  struct Worker {
    std::shared_ptr<Reclaimer> reclaimer;
    int slot;
  };

  static void* thread_main(void* worker);
  static void prepare_fork();
  static void fork_done(bool in_child);

  template <typename Visit>
  static void for_each_memory(Visit visit) noexcept;
  void start() noexcept;
  bool start_worker(int slot) noexcept;
  void start_missing() noexcept;
  bool run() noexcept;
  bool end(int slot, bool asked) noexcept;
  Reclaimable::Activity pass() noexcept;
  // With the lock held: there is nothing left to look after, and never will be.
  bool is_spent() const { return closed_.load() && memories_.empty(); }
  bool may_end() noexcept;
  bool told_to_end() const { return stopping_.load() || losing_.load() > 0; }
  void rest(int milliseconds) noexcept;
  void sleep_until_woken() noexcept;
  bool tell_to_end() noexcept;
  bool asks_fences() noexcept;
  bool has_ended(double deadline) noexcept;
  void wait_for_end(double deadline) noexcept;

  const int workers_;
  std::atomic<Phase> phase_{Phase::idle};
  std::atomic<int> running_{0};
  std::atomic<int> replaced_{0};
  std::atomic<int> losing_{0};  // workers that are to end as if by accident
  std::atomic<bool> asleep_{false};
  std::atomic<bool> closed_{false};
  std::atomic<bool> stopping_{false};                     // all workers are to end
  std::atomic<bool> restart_{false};                      // a fork has ended workers that ran
  std::array<std::atomic<bool>, most_workers> manned_{};  // slots whose worker has not ended
  std::array<std::atomic<pid_t>, most_workers> threads_{};
  // Guards the list and the ends of workers; never held across a system call.
  std::mutex mutex_;
  std::condition_variable woken_;
  std::vector<std::shared_ptr<Reclaimable>> memories_;
};

}  // namespace bigmem
