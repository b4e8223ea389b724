#include "cuda_stage.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "clock.hpp"
#include "signals.hpp"

namespace bigmem {

using namespace cuda;

namespace {

// How long to sleep before asking for a fence again, at first and at most.
constexpr std::chrono::microseconds first_pause{20}, longest_pause{1000};
constexpr std::chrono::milliseconds ask_every{50};
// How long the end of the process waits for copies that are being made.
constexpr double longest_end = 0.25;

std::atomic<unsigned> endings{0};
std::atomic<int> under_way{0};  // sends

class UnderWay {
 public:
  UnderWay() { ++under_way; }
  ~UnderWay() { --under_way; }
};

// Threads that have ended when this ends; a child of fork has none of them.
class Crew {
 public:
  Crew(const Driver& driver, std::atomic<bool>& stop) : driver_(driver), stop_(stop) {}
  ~Crew() {
    stop_ = true;
    for (std::thread& thread : threads_) driver_.usable() ? thread.join() : thread.detach();
  }

  // As many of them as the system allows; how many those are.
  template <typename Body>
  std::size_t start(std::size_t count, Body body) {
    threads_.reserve(count);
    const SignalsBlocked blocked;
    try {
      while (threads_.size() < count) threads_.emplace_back(body, threads_.size());
    } catch (const std::exception&) {
    }
    return threads_.size();
  }

 private:
  const Driver& driver_;
  std::atomic<bool>& stop_;
  std::vector<std::thread> threads_;
};

}  // namespace

// What the threads of one send() share.
struct CudaStage::Job {
  const char* source;
  std::size_t nbytes;
  Address target;
  Context context;  // of the stream
  const Driver& driver;
  const std::function<bool()>& go_on;
  const unsigned ending = endings.load();

  std::atomic<std::size_t> next{0};  // where the piece begins that nobody has taken
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::condition_variable ended;
  bool refused = false;
  CudaFences::Refusal refusal{};
  double asked = seconds_now();

  void refuse(const CudaFences::Refusal& reason) {
    std::lock_guard lock(mutex);
    if (!std::exchange(refused, true)) refusal = reason;
    stop = true;
  }

  bool over() const { return stop || ending != endings; }

  // On the calling thread, and no more once the answer was no. The answer may come from a handler
  // of signals that has forked.
  void ask() {
    if (over() || seconds_now() - asked < std::chrono::duration<double>(ask_every).count()) return;
    if (!go_on() || !driver.usable()) stop = true;
    asked = seconds_now();
  }
};

CudaStage::CudaStage(std::shared_ptr<CudaFences> fences, Stream stream, const Plan& plan)
    : fences_(std::move(fences)),
      driver_(fences_->driver()),
      stream_(stream),
      plan_(plan),
      slots_(plan.threads * plan.depth),
      turn_(plan.threads) {
  static const int handler = pthread_atfork(nullptr, nullptr, [] { under_way = 0; });
  (void)handler;
  for (std::size_t i = 0; i < slots_.size(); ++i) slots_[i].address = plan.slots + i * plan.piece;
}

CudaStage::~CudaStage() {
  for (const Slot& slot : slots_)
    if (slot.read) fences_->drop(slot.read);
}

// False when there is nothing left to do.
bool CudaStage::wait(Job& job, Slot& slot, bool calling_thread) {
  for (auto pause = first_pause;; pause = std::min(pause * 3 / 2, longest_pause)) {
    if (calling_thread) job.ask();
    if (job.over() || job.next >= job.nbytes) return false;
    if (!slot.read) return true;
    if (fences_->done(slot.read))
      fences_->drop(std::exchange(slot.read, nullptr));
    else
      std::this_thread::sleep_for(pause);
  }
}

bool CudaStage::submit(Job& job, Slot& slot, std::size_t at, std::size_t nbytes) {
  CudaFences::Refusal refusal;
  refusal.result = driver_.copy_to_device(job.target + at, slot.address, nbytes, stream_);
  if (refusal.result == success)
    slot.read = fences_->record(stream_, refusal);
  else
    refusal.function = "cuMemcpyHtoDAsync";
  if (!slot.read) job.refuse(refusal);
  return slot.read;
}

void CudaStage::work(Job& job, std::size_t thread) {
  const Calling calling(driver_);
  const Current current(driver_, job.context);
  for (;;) {
    // A piece is taken when there is room for it: another thread might have some before this one.
    Slot& slot = slots_[thread * plan_.depth + turn_[thread]];
    if (!wait(job, slot, thread == 0)) return;
    const std::size_t at = job.next.fetch_add(plan_.piece);
    if (at >= job.nbytes) return;
    const std::size_t nbytes = std::min(plan_.piece, job.nbytes - at);
    turn_[thread] = (turn_[thread] + 1) % plan_.depth;
    std::memcpy(slot.address, job.source + at, nbytes);
    if (!submit(job, slot, at, nbytes)) return;
  }
}

bool CudaStage::send(const char* source, std::size_t nbytes, Address target,
                     const std::function<bool()>& go_on, CudaFences::Refusal& refusal) {
  const UnderWay counted;
  const Calling calling(driver_);
  Context context = nullptr;
  refusal = {"cuStreamGetCtx",
             calling ? stream_context(driver_, stream_, &context) : not_initialized};
  if (refusal.result != success) return false;
  const std::size_t pieces = (nbytes + plan_.piece - 1) / plan_.piece;
  // Each thread has a per-thread stream of its own: only this one has the one that is meant.
  const std::size_t most = stream_ == per_thread_stream() ? 1 : plan_.threads;
  Job job{source, nbytes, target, context, driver_, go_on};
  std::size_t ended = 0;
  Crew others(driver_, job.stop);
  const std::size_t started =
      others.start(std::clamp<std::size_t>(pieces, 1, most) - 1, [&](std::size_t i) {
        work(job, i + 1);
        std::lock_guard lock(job.mutex);
        ++ended;
        job.ended.notify_one();
      });
  work(job, 0);
  while (driver_.usable()) {
    {
      std::unique_lock lock(job.mutex);
      if (job.ended.wait_for(lock, ask_every, [&] { return ended == started; })) {
        refusal = job.refusal;
        return !job.over();
      }
    }
    job.ask();
  }
  refusal = {"fork", not_initialized};
  return false;
}

void CudaStage::end_all() noexcept {
  ++endings;
  const double deadline = seconds_now() + longest_end;
  while (under_way > 0 && seconds_now() < deadline) std::this_thread::sleep_for(first_pause);
}

}  // namespace bigmem
