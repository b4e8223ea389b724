#include "cuda_host_pages.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <iterator>
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
  // The memory goes with the address range, all of it at once: an arena may give it up in parts.
  table.decommit = [](void*, void*, std::size_t, PageSize, Advice) { return Decommitted{}; };
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

// What a call of the driver answers that holds its lock for long.
template <typename Call>
Result CudaHostPages::count(Call call) {
  const bool stalls = !idle(*fences_);
  const double begin = seconds_now();
  const Result result = call();
  if (stalls) count_stall(way_ == Way::register_ours ? "register" : "alloc", begin);
  return result;
}

int CudaHostPages::take_theirs(void** base, std::size_t nbytes) {
  const Calling calling(driver_);
  if (!calling) return EPERM;
  const Current current(driver_, context_);
  const Result result = count([&] { return driver_.host_alloc(base, nbytes, host_portable); });
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
    // The driver promises no alignment: a small range may begin in a page that others have a part
    // of.
    const std::size_t border = std::max(alignment, page_bytes);
    if ((errno = take_theirs(&range.base, nbytes + border))) return nullptr;
    const auto begin = reinterpret_cast<std::uintptr_t>(range.base);
    address = reinterpret_cast<void*>((begin + border - 1) / border * border);
    range.pinned = true;
  }
  try {
    std::lock_guard lock(mutex_);
    range.size = nbytes;
    ranges_[reinterpret_cast<std::uintptr_t>(address)] = range;
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
  // CPU and GPU apart. Cores are without the driver's mappings anyway, and these may be secret too.
  if (madvise(address, nbytes, MADV_DONTFORK) != 0 || madvise(address, nbytes, MADV_DONTDUMP) != 0)
    return errno;
  if (way_ == Way::take_theirs) return 0;
  if (const int error = ours_.commit(ours_.context, address, nbytes, page)) return error;
  // Registering takes pages that are there in a seventh of the time.
  if (const int error = ours_.populate(ours_.context, address, nbytes)) return error;
  const Current current(driver_, context_);
  if (const Result result =
          count([&] { return driver_.host_register(address, nbytes, host_portable); }))
    return note("cuMemHostRegister", result);
  std::lock_guard lock(mutex_);
  ranges_[reinterpret_cast<std::uintptr_t>(address)].pinned = true;
  return 0;
}

// Whatever runs.
int CudaHostPages::unpin(const Range& range) {
  if (!range.pinned) return 0;
  const Calling calling(driver_);
  const Current current(driver_, context_);
  const bool ours = way_ == Way::register_ours;
  const Result result = count(
      [&] { return ours ? driver_.host_unregister(range.base) : driver_.host_free(range.base); });
  return result == success ? 0 : note(ours ? "cuMemHostUnregister" : "cuMemFreeHost", result);
}

int CudaHostPages::unreserve(void* address, std::size_t nbytes) {
  if (!driver_.usable()) return 0;
  Range range;
  {
    std::lock_guard lock(mutex_);
    const auto found = std::prev(ranges_.upper_bound(reinterpret_cast<std::uintptr_t>(address)));
    found->second.returned += nbytes;
    if (found->second.returned < found->second.size) return 0;
    // Forgotten before it goes: whoever maps memory next may be given the same address.
    range = found->second;
    ranges_.erase(found);
  }
  if (const int error = unpin(range)) return error;
  return way_ == Way::register_ours ? ours_.unreserve(ours_.context, range.base, range.size) : 0;
}

}  // namespace bigmem
