#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda_driver.hpp"
#include "pages.hpp"

namespace bigmem {

// The latest refusal of the driver, for the error that somebody raises for it.
struct CudaFailure {
  const char* function = nullptr;  // null when nothing was refused
  cuda::Result result = cuda::success;
};

// Pages that GPUs can copy from and to, over some of the driver's functions. Kept for good once
// made, since an arena may outlive the Python object that it was made from.
class CudaPages {
 public:
  virtual ~CudaPages() = default;

  virtual PagesTable table() = 0;
  // False where the device says that it does not do that.
  virtual bool supported() const { return true; }
  // Whether memory can be had this way: takes a little, and gives it back.
  int probe() noexcept;
  CudaFailure take_failure() noexcept;
  // How often the whole process may have waited for a GPU because of these pages, and how long.
  std::pair<std::uint64_t, double> stalls() noexcept;
  const cuda::Driver& driver() const { return driver_; }

 protected:
  explicit CudaPages(const cuda::Driver& driver) : driver_(driver) {}
  // The errno for what the driver said.
  int note(const char* function, cuda::Result result) noexcept;
  // A call of this mechanism that made others wait has just ended; it began then.
  void count_stall(const char* mechanism, double begin) noexcept;

  const cuda::Driver& driver_;
  std::mutex mutex_;  // never held across a call of the driver

 private:
  CudaFailure failure_;
  std::uint64_t stalls_ = 0;
  double stall_seconds_ = 0;
};

// CUDA's virtual memory: address ranges whose chunks of host memory come and go without ever making
// a kernel launch wait.
class CudaVirtualPages final : public CudaPages {
 public:
  static constexpr std::size_t unit = std::size_t{2} << 20;
  // Memory comes in chunks of so many units where there is room for one: each chunk is a mapping of
  // its own to the kernel, which knows 65530 of them, and takes as long to make if it is smaller.
  static constexpr std::size_t chunk_units = 4;

  // Memory near the device, to which it alone has access, and the host. The context is one of the
  // device's.
  CudaVirtualPages(const cuda::Driver& driver, cuda::Device device, cuda::Context context);

  PagesTable table() override;
  bool supported() const override { return location_.type != 0; }

 private:
  // What is known of a unit. `given`: its memory is there and zero, but nobody's, until the rest of
  // its chunk can go too. `busy`: a thread maps or unmaps it. `lost`: it could not be unmapped.
  enum State : std::uint8_t { none, used, given, busy, lost };
  struct Unit {
    State state = none;
    bool in_chunk = false;  // of chunk_units, or by itself
  };
  struct Region {
    std::uintptr_t begin;
    std::uintptr_t reserved;  // what the driver reserved begins here
    std::size_t reserved_size;
    std::vector<Unit> units;
    std::size_t returned;  // of it, by the arena
  };
  struct Run {
    std::size_t first, last;  // units of a region
  };

  static CudaVirtualPages& of(void* context) { return *static_cast<CudaVirtualPages*>(context); }
  void* reserve(std::size_t nbytes, std::size_t alignment);
  int commit(std::uintptr_t begin, std::size_t nbytes);
  int decommit(std::uintptr_t begin, std::size_t nbytes);
  int wipe(std::uintptr_t begin, std::size_t nbytes);
  int unreserve(std::uintptr_t begin, std::size_t nbytes);

  Region& region_of(std::uintptr_t address);
  static Run run_of(const Region& region, std::uintptr_t begin, std::size_t nbytes);
  static Run chunk_of(const Region& region, std::size_t at);
  void await(std::unique_lock<std::mutex>& lock, const Region& region, Run run);
  bool recover(std::unique_lock<std::mutex>& lock, Region& region, Run run);
  int map(Region& region, Run run);
  bool unmap(const Region& region, Run chunk);
  void undo(Region& region, Run run);

  const cuda::Context context_;
  cuda::Location location_{};
  cuda::Access access_[2]{};
  std::condition_variable settled_;  // no longer busy
  std::map<std::uintptr_t, Region> regions_;
};

}  // namespace bigmem
