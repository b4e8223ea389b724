#include "cuda_host_pages.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <new>

#include "clock.hpp"
#include "cuda_fences.hpp"

namespace bigmem {

using namespace cuda;

PagesTable CudaHostPages::table() {
  PagesTable table{};
  table.context = this;
  table.reserve = [](void* context, std::size_t nbytes, std::size_t alignment, PageSize page) {
    return of(context).reserve(nbytes, alignment, page);
  };
  table.commit = [](void* context, void* address, std::size_t nbytes, PageSize page) {
    return of(context).commit(address, nbytes, page);
  };
  table.decommit = [](void* context, void* address, std::size_t nbytes, PageSize page, Advice) {
    return of(context).decommit(address, nbytes, page);
  };
  table.populate = [](void*, void*, std::size_t) { return 0; };
  table.wipe = [](void* context, void* address, std::size_t nbytes) {
    if (of(context).driver_.usable()) std::memset(address, 0, nbytes);
    return 0;
  };
  table.set_wiped_on_fork = [](void*, void*, std::size_t, bool) { return 0; };
  table.unreserve = [](void* context, void* address, std::size_t nbytes) {
    return of(context).unreserve(address, nbytes);
  };
  table.zero_after_decommit = way_ == Way::register_ours;
  table.needs_commit = true;
  table.pinned = true;
  return table;
}

int CudaHostPages::take_theirs(void** base, std::size_t nbytes) {
  const Calling calling(driver_);
  if (!calling) return EPERM;
  const Current current(driver_, context_);
  const Result result = driver_.host_alloc(base, nbytes, host_portable);
  return result == success ? 0 : note("cuMemHostAlloc", result);
}

void* CudaHostPages::reserve(std::size_t nbytes, std::size_t alignment, PageSize page) {
  constexpr std::size_t page_bytes = 4096;
  if (!driver_.usable()) {
    errno = EPERM;
    return nullptr;
  }
  Range range{};
  void* address = nullptr;
  if (way_ == Way::register_ours) {
    address = range.base = ours_.reserve(ours_.context, nbytes, alignment, page);
    if (!address) return nullptr;
  } else {
    const std::size_t padding = alignment > page_bytes ? alignment : 0;
    if ((errno = take_theirs(&range.base, nbytes + padding))) return nullptr;
    const auto begin = reinterpret_cast<std::uintptr_t>(range.base);
    const std::uintptr_t border = padding ? alignment : 1;
    address = reinterpret_cast<void*>((begin + border - 1) / border * border);
    range.pinned = true;
  }
  try {
    std::lock_guard lock(mutex_);
    ranges_[address] = range;
    return address;
  } catch (const std::bad_alloc&) {
    if (way_ == Way::register_ours)
      ours_.unreserve(ours_.context, address, nbytes);
    else
      driver_.host_free(range.base);
    errno = ENOMEM;
    return nullptr;
  }
}

int CudaHostPages::commit(void* address, std::size_t nbytes, PageSize page) {
  const Calling calling(driver_);
  if (!calling) return EPERM;
  // A child that wrote to what the GPU reads, or had pages copied under it, would tear the views of
  // CPU and GPU apart.
  if (madvise(address, nbytes, MADV_DONTFORK) != 0) return errno;
  if (way_ == Way::take_theirs) return 0;
  if (const int error = ours_.commit(ours_.context, address, nbytes, page)) return error;
  // Registering takes pages that are there in a seventh of the time.
  if (const int error = ours_.populate(ours_.context, address, nbytes)) return error;
  const Current current(driver_, context_);
  if (const Result result = driver_.host_register(address, nbytes, host_portable))
    return note("cuMemHostRegister", result);
  std::lock_guard lock(mutex_);
  ranges_[address].pinned = true;
  return 0;
}

// Ends the pinning of a range, whatever runs.
int CudaHostPages::unpin(void* address) {
  void* base;
  {
    std::lock_guard lock(mutex_);
    Range& range = ranges_[address];
    if (!range.pinned) return 0;
    base = range.base;
  }
  const Calling calling(driver_);
  const Current current(driver_, context_);
  const bool stalls = !idle(*fences_);
  const double start = seconds_now();
  const bool ours = way_ == Way::register_ours;
  const Result result = ours ? driver_.host_unregister(base) : driver_.host_free(base);
  if (stalls) count_stall(seconds_now() - start);
  if (result != success) return note(ours ? "cuMemHostUnregister" : "cuMemFreeHost", result);
  std::lock_guard lock(mutex_);
  ranges_[address].pinned = false;
  return 0;
}

Decommitted CudaHostPages::decommit(void* address, std::size_t nbytes, PageSize page) {
  if (!driver_.usable()) return {};
  // Their memory goes with its address range.
  if (way_ == Way::take_theirs) return {};
  if (const int error = unpin(address)) return {error, false};
  return ours_.decommit(ours_.context, address, nbytes, page, Advice::dontneed);
}

int CudaHostPages::unreserve(void* address, std::size_t nbytes) {
  if (!driver_.usable()) return 0;
  if (const int error = unpin(address)) return error;
  if (way_ == Way::register_ours)
    if (const int error = ours_.unreserve(ours_.context, address, nbytes)) return error;
  std::lock_guard lock(mutex_);
  ranges_.erase(address);
  return 0;
}

}  // namespace bigmem
