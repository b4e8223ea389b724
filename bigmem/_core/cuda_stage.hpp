#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "cuda_driver.hpp"
#include "cuda_fences.hpp"

namespace bigmem {

// Ordinary memory on its way to a GPU, by several threads. Each takes the next piece, waits until
// the GPU has read one of the thread's own slots, copies the piece there and submits its copy to
// the device; none waits for another.
class CudaStage {
 public:
  struct Plan {
    char* slots;                 // pinned; threads * depth of them, each as large as a piece
    std::size_t piece;           // whole pages
    std::size_t threads, depth;  // slots of each thread
  };

  // The slots may go as soon as the GPU is done with what was sent.
  CudaStage(std::shared_ptr<CudaFences> fences, cuda::Stream stream, const Plan& plan);
  ~CudaStage();
  CudaStage(const CudaStage&) = delete;
  CudaStage& operator=(const CudaStage&) = delete;

  // Returns when the source has been read and all its copies are submitted. False when the driver
  // has refused, for the reason given, or for no reason of the driver's: `go_on`, which the calling
  // thread asks now and then, has said no, or the process is about to end. Then part of it is
  // submitted. No thread is left either way.
  bool send(const char* source, std::size_t nbytes, cuda::Address target,
            const std::function<bool()>& go_on, CudaFences::Refusal& refusal);

  // For the end of the process, in which the driver unmaps what the threads read and write: no
  // send() that is under way now goes on. Waits a moment for them.
  static void end_all() noexcept;

 private:
  struct Slot {
    char* address;
    Fences::Fence* read = nullptr;  // the GPU has read it; null if it has for certain
  };
  struct Job;

  void work(Job& job, std::size_t thread);
  bool wait(Job& job, Slot& slot, bool calling_thread);
  bool submit(Job& job, Slot& slot, std::size_t at, std::size_t nbytes);

  const std::shared_ptr<CudaFences> fences_;
  const cuda::Driver& driver_;
  const cuda::Stream stream_;
  const Plan plan_;
  std::vector<Slot> slots_;        // a thread's are neighbours
  std::vector<std::size_t> turn_;  // which of them is next, by thread
};

}  // namespace bigmem
