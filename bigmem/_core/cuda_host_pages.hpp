#pragma once

#include <map>
#include <memory>

#include "cuda_pages.hpp"
#include "fences.hpp"

namespace bigmem {

// What is there where CUDA's virtual memory is refused: each block is pinned by itself, for an
// arena that maps each block by itself. Ending that waits for every GPU, and every launch of the
// process waits meanwhile, as it does while memory is being pinned: that counts as a stall where a
// GPU is at work. Such an arena goes by IdleFences.
class CudaHostPages final : public CudaPages {
 public:
  // Registers memory of ours with the driver, or takes the driver's own.
  enum class Way { register_ours, take_theirs };
  CudaHostPages(const cuda::Driver& driver, cuda::Context context, std::shared_ptr<Fences> fences,
                Way way)
      : CudaPages(driver), context_(context), fences_(std::move(fences)), way_(way) {}

  PagesTable table() override;

 private:
  struct Range {
    void* base;  // what the driver gave, or was given
    std::size_t size;
    std::size_t returned;  // of it, in parts, by the arena
    bool pinned;
  };

  static CudaHostPages& of(void* context) { return *static_cast<CudaHostPages*>(context); }
  void* reserve(std::size_t nbytes, std::size_t alignment, PageSize page);
  int commit(void* address, std::size_t nbytes, PageSize page);
  int unreserve(void* address, std::size_t nbytes);

  int unpin(const Range& range);
  int take_theirs(void** base, std::size_t nbytes);
  template <typename Call>
  cuda::Result count(Call call);

  const cuda::Context context_;
  const std::shared_ptr<Fences> fences_;
  const Way way_;
  const PagesTable ours_ = anonymous_pages({});
  std::map<std::uintptr_t, Range> ranges_;  // by the address that the arena knows
};

}  // namespace bigmem
