#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

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
  // Nothing will ever need reclaiming here again.
  virtual bool finished() noexcept = 0;

  // Around a fork: the lock is taken before it and let go by both sides after it.
  virtual void before_fork() noexcept = 0;
  virtual void after_fork(bool in_child) noexcept = 0;
};

// Native threads that reclaim and never enter Python. They start at the first allocation whose
// release may need them, poll while there is work, back off while there is none, and sleep for good
// while there can be none, until an allocation wakes them. Nothing depends on them: who needs
// memory helps itself.
class Reclaimer : public std::enable_shared_from_this<Reclaimer> {
 public:
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
    if (phase_.load(std::memory_order_relaxed) == Phase::idle) start();
  }
  // For allocations, once their block is live: one atomic load unless the workers sleep.
  void wake() noexcept;
  bool refused() const { return phase_.load(std::memory_order_relaxed) == Phase::refused; }
  // The same, after trying once more.
  bool still_refused() noexcept;
  int running() const { return running_.load(std::memory_order_relaxed); }

  // Does the workers' work on the calling thread, until nothing is due.
  void help() noexcept {
    while (pass().worked) continue;
  }

  // The workers end once there is nothing left to look after.
  void close() noexcept;

 private:
  enum class Phase { idle, starting, running, refused };

  static void* thread_main(void* self);
  static void prepare_fork();
  static void fork_done(bool in_child);

  void start() noexcept;
  void run() noexcept;
  Reclaimable::Activity pass() noexcept;
  bool may_end() noexcept;
  void sleep_until_woken() noexcept;

  const int workers_;
  std::atomic<Phase> phase_{Phase::idle};
  std::atomic<int> running_{0};
  std::atomic<bool> asleep_{false};
  std::atomic<bool> closed_{false};
  std::mutex mutex_;  // guards the list; never held across a system call
  std::condition_variable woken_;
  std::vector<std::shared_ptr<Reclaimable>> memories_;
};

}  // namespace bigmem
