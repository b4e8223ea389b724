#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda_driver.hpp"
#include "fences.hpp"

namespace bigmem {

// What GPUs do, told by events of CUDA. Never waits for a GPU.
class CudaFences final : public Fences {
 public:
  explicit CudaFences(const cuda::Driver& driver) : driver_(driver) {}
  const cuda::Driver& driver() const { return driver_; }

  // Why there is no moment. `capturing`: because a graph is recorded now instead of anything being
  // done. No function: it cannot be told now.
  struct Refusal {
    cuda::Result result = cuda::success;
    const char* function = nullptr;
    bool capturing = false;

    Refusal() = default;
    Refusal(const char* by, cuda::Result said)
        : result(said),
          function(by),
          capturing(said >= cuda::stream_capture_unsupported &&
                    said <= cuda::stream_capture_implicit) {}
  };
  // A moment after all that has been submitted to the stream so far, or null.
  Fence* record(cuda::Stream stream, Refusal& refusal) noexcept;
  // A moment that has come already.
  Fence* past() noexcept;

  Fence* guard() noexcept override;
  Fence* guard(Refusal& refusal) noexcept;
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
  bool find_active(std::vector<cuda::Context>& active, Refusal& refusal);
  cuda::Answer record_all(cuda::Context context, Moment& moment, Refusal& refusal);

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
