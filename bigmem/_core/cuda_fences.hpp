#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda_driver.hpp"
#include "fences.hpp"

namespace bigmem {

// Captures of CUDA graphs that the process is known to have under way. An event over a whole
// context would invalidate them. Beginning one waits for a guard that is being recorded, about a
// microsecond.
void begin_capture() noexcept;
void end_capture() noexcept;
int captures() noexcept;

// What GPUs do, told by events of CUDA. Never waits for a GPU.
class CudaFences final : public Fences {
 public:
  explicit CudaFences(const cuda::Driver& driver) : driver_(driver) {}
  const cuda::Driver& driver() const { return driver_; }

  // A moment after all that has been submitted to the stream so far. Where it is null, `result`
  // says why; `capturing` that the stream records a graph now instead of doing anything.
  struct Refusal {
    cuda::Result result = cuda::success;
    const char* function = nullptr;
    bool capturing = false;
  };
  Fence* record(cuda::Stream stream, Refusal& refusal) noexcept;
  // A moment that has come already.
  Fence* past() noexcept;

  Fence* guard() noexcept override;
  bool done(Fence* fence) noexcept override;
  void drop(Fence* fence) noexcept override;

 private:
  struct Moment;  // what a Fence is
  struct Pooled {
    cuda::Context context;
    cuda::Event event;
  };

  bool take(cuda::Context context, bool fresh, Pooled& pooled, cuda::Result& result) noexcept;
  void give_back(const Pooled& pooled) noexcept;
  void know(cuda::Context context);
  std::vector<cuda::Context> active_contexts();
  bool is_capturing(cuda::Context context) noexcept;
  cuda::Answer record_all(cuda::Context context, Moment& moment);

  const cuda::Driver& driver_;
  std::mutex mutex_;  // never held across a call of the driver
  std::vector<Pooled> pool_;
  std::vector<cuda::Context> seen_;  // of streams that were recorded
};

// Whether nothing runs on any GPU at this moment, as far as can be told.
bool idle(Fences& fences) noexcept;

// For memory whose end makes the whole process wait while a GPU is at work: a moment comes when
// nothing runs. Where none has come for a long time, the next is a guard of the usual kind.
class IdleFences final : public Fences {
 public:
  IdleFences(std::shared_ptr<Fences> fences, double patience)
      : fences_(std::move(fences)), patience_(patience) {}

  Fence* guard() noexcept override;
  bool done(Fence* fence) noexcept override { return fences_->done(fence); }
  void drop(Fence* fence) noexcept override { fences_->drop(fence); }

 private:
  const std::shared_ptr<Fences> fences_;
  const double patience_;
  std::atomic<double> busy_since_{0};  // 0 for not known to be
};

}  // namespace bigmem
