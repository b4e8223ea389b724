#include "cuda_pages.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include "clock.hpp"
#include "stalls.hpp"
#include "touching.hpp"

namespace bigmem {

using namespace cuda;

namespace {

constexpr std::size_t chunk_bytes = CudaVirtualPages::chunk_units * CudaVirtualPages::unit;

// The chunks that a run of units is made of: whole ones on their borders, single units around them.
template <typename Visit>
void for_each_chunk(std::size_t first, std::size_t last, Visit visit) {
  constexpr std::size_t whole = CudaVirtualPages::chunk_units;
  for (std::size_t at = first; at < last;) {
    const std::size_t count = at % whole == 0 && at + whole <= last ? whole : 1;
    if (!visit(at, at + count)) return;
    at += count;
  }
}

}  // namespace

int CudaPages::note(const char* function, Result result) noexcept {
  std::lock_guard lock(mutex_);
  failure_ = {function, result};
  return result == out_of_memory ? ENOMEM : EIO;
}

CudaFailure CudaPages::take_failure() noexcept {
  if (!driver_.usable()) return {};  // in a child of fork the lock may be held for ever
  std::lock_guard lock(mutex_);
  return std::exchange(failure_, {});
}

void CudaPages::count_stall(const char* mechanism, double begin) noexcept {
  const double seconds = seconds_now() - begin;
  {
    std::lock_guard lock(mutex_);
    ++stalls_;
    stall_seconds_ += seconds;
  }
  tell_stall(mechanism, begin, seconds);
}

std::pair<std::uint64_t, double> CudaPages::stalls() noexcept {
  if (!driver_.usable()) return {};
  std::lock_guard lock(mutex_);
  return {stalls_, stall_seconds_};
}

int CudaPages::probe() noexcept {
  constexpr std::size_t nbytes = CudaVirtualPages::unit;
  if (!supported()) return ENOTSUP;
  const PagesTable pages = table();
  void* address = pages.reserve(pages.context, nbytes, nbytes, PageSize::plain);
  if (!address) return errno;
  int error = pages.commit(pages.context, address, nbytes, PageSize::plain);
  if (!error) {
    std::memset(address, 1, nbytes);
    error = pages.decommit(pages.context, address, nbytes, PageSize::plain, Advice::dontneed).error;
  }
  const int kept = pages.unreserve(pages.context, address, nbytes);
  return error ? error : kept;
}

CudaVirtualPages::CudaVirtualPages(const Driver& driver, Device device, Context context)
    : CudaPages(driver), context_(context) {
  const Calling calling(driver);
  if (!calling) return;
  const auto attribute = [&](int which, int otherwise) {
    int value = otherwise;
    return driver.device_attribute(&value, which, device) == success ? value : otherwise;
  };
  // Memory of the node that the device hangs on, where the driver tells them apart.
  const int node = attribute(host_numa_id, -1);
  if (attribute(host_numa_vmm_supported, 0) && node >= 0)
    location_ = {location_host_numa, node};
  else if (attribute(host_vmm_supported, 0))
    location_ = {location_host, 0};
  AllocationProperties properties{allocation_pinned, 0, location_};
  std::size_t least = 0;
  if (location_.type && driver.granularity(&least, &properties, 0) == success && least > unit)
    location_ = {};
  access_[0] = {{location_device, device}, access_read_write};
  access_[1] = {location_, access_read_write};
}

PagesTable CudaVirtualPages::table() {
  PagesTable table{};
  table.context = this;
  table.reserve = [](void* context, std::size_t nbytes, std::size_t alignment, PageSize) {
    return of(context).reserve(nbytes, alignment);
  };
  table.commit = [](void* context, void* address, std::size_t nbytes, PageSize) {
    return of(context).commit(reinterpret_cast<std::uintptr_t>(address), nbytes);
  };
  table.decommit = [](void* context, void* address, std::size_t nbytes, PageSize, Advice) {
    const int error = of(context).decommit(reinterpret_cast<std::uintptr_t>(address), nbytes);
    return Decommitted{error, false};
  };
  // What is committed is resident.
  table.populate = [](void*, void*, std::size_t) { return 0; };
  table.wipe = [](void* context, void* address, std::size_t nbytes) {
    return of(context).wipe(reinterpret_cast<std::uintptr_t>(address), nbytes);
  };
  // No child has these pages.
  table.set_wiped_on_fork = [](void*, void*, std::size_t, bool) { return 0; };
  table.unreserve = [](void* context, void* address, std::size_t nbytes) {
    return of(context).unreserve(reinterpret_cast<std::uintptr_t>(address), nbytes);
  };
  table.zero_after_decommit = true;
  table.needs_commit = true;
  table.granularity = unit;
  table.pinned = true;
  return table;
}

void* CudaVirtualPages::reserve(std::size_t nbytes, std::size_t alignment) {
  const Calling calling(driver_);
  if (!calling) {
    errno = EPERM;
    return nullptr;
  }
  // The driver aligns to a unit, whatever else it may promise.
  const std::size_t padding = alignment > unit ? alignment : 0;
  const std::size_t size = nbytes + padding;
  const Current current(driver_, context_);
  Address reserved = 0;
  Result result = driver_.address_reserve(&reserved, size, 0, 0, 0);
  if (result != success) {
    errno = note("cuMemAddressReserve", result);
    return nullptr;
  }
  const std::uintptr_t begin = padding ? (reserved + alignment - 1) / alignment * alignment
                                       : static_cast<std::uintptr_t>(reserved);
  try {
    Region region{begin, static_cast<std::uintptr_t>(reserved), size,
                  std::vector<Unit>(nbytes / unit), 0};
    std::lock_guard lock(mutex_);
    regions_.emplace(begin, std::move(region));
  } catch (const std::bad_alloc&) {
    driver_.address_free(reserved, size);
    errno = ENOMEM;
    return nullptr;
  }
  return reinterpret_cast<void*>(begin);
}

CudaVirtualPages::Region& CudaVirtualPages::region_of(std::uintptr_t address) {
  return std::prev(regions_.upper_bound(address))->second;
}

CudaVirtualPages::Run CudaVirtualPages::run_of(const Region& region, std::uintptr_t begin,
                                               std::size_t nbytes) {
  const std::size_t offset = begin - region.begin;
  return {offset / unit, (offset + nbytes + unit - 1) / unit};
}

// The chunk that a mapped unit is part of.
CudaVirtualPages::Run CudaVirtualPages::chunk_of(const Region& region, std::size_t at) {
  if (!region.units[at].in_chunk) return {at, at + 1};
  const std::size_t first = at / chunk_units * chunk_units;
  return {first, first + chunk_units};
}

// Until no other thread maps or unmaps any of these units, and what their chunks hold besides.
void CudaVirtualPages::await(std::unique_lock<std::mutex>& lock, const Region& region, Run run) {
  settled_.wait(lock, [&] {
    return std::none_of(region.units.begin() + run.first, region.units.begin() + run.last,
                        [](const Unit& each) { return each.state == busy; });
  });
}

// Until the driver takes back what it once refused to unmap; false if it refuses again.
bool CudaVirtualPages::recover(std::unique_lock<std::mutex>& lock, Region& region, Run run) {
  for (;;) {
    await(lock, region, run);
    std::size_t at = run.first;
    while (at < run.last && region.units[at].state != lost) ++at;
    if (at == run.last) return true;
    const Run chunk = chunk_of(region, at);
    const auto mark = [&](State state) {
      for (std::size_t i = chunk.first; i < chunk.last; ++i) region.units[i].state = state;
    };
    mark(busy);
    lock.unlock();
    bool gone;
    {
      const Calling calling(driver_);
      const Current current(driver_, context_);
      gone = unmap(region, chunk);
    }
    lock.lock();
    mark(gone ? none : lost);
    settled_.notify_all();
    if (!gone) return false;
  }
}

int CudaVirtualPages::commit(std::uintptr_t begin, std::size_t nbytes) try {
  if (!driver_.usable()) return EPERM;
  std::unique_lock lock(mutex_);
  Region& region = region_of(begin);
  const Run all = run_of(region, begin, nbytes);
  if (!recover(lock, region, all)) return EIO;
  std::vector<Run> absent;
  for (std::size_t at = all.first; at < all.last; ++at) {
    if (region.units[at].state != none) continue;
    if (absent.empty() || absent.back().last != at) absent.push_back({at, at});
    ++absent.back().last;
  }
  for (std::size_t at = all.first; at < all.last; ++at) {
    Unit& each = region.units[at];
    each.state = each.state == none ? busy : used;
  }
  if (absent.empty()) return 0;
  lock.unlock();

  int error = 0;
  std::size_t mapped = 0;
  while (mapped < absent.size() && !(error = map(region, absent[mapped]))) ++mapped;
  if (error)
    for (std::size_t i = 0; i < mapped; ++i) undo(region, absent[i]);
  lock.lock();
  for (const Run run : absent)
    for (std::size_t at = run.first; at < run.last; ++at)
      if (region.units[at].state == busy) region.units[at].state = error ? none : used;
  settled_.notify_all();
  return error;
} catch (const std::bad_alloc&) {
  return ENOMEM;
}

// Brings memory to units that are busy on behalf of the caller: all of it or none.
int CudaVirtualPages::map(Region& region, Run run) {
  const Calling calling(driver_);
  if (!calling) return EPERM;
  const Current current(driver_, context_);
  const AllocationProperties properties{allocation_pinned, 0, location_};
  const Address begin = region.begin + run.first * unit;
  const std::size_t nbytes = (run.last - run.first) * unit;
  std::size_t done = run.first;
  int error = 0;
  for_each_chunk(run.first, run.last, [&](std::size_t first, std::size_t last) {
    const std::size_t size = (last - first) * unit;
    Handle handle = 0;
    if (const Result result = driver_.create(&handle, size, &properties, 0)) {
      error = note("cuMemCreate", result);
      return false;
    }
    const Result result = driver_.map(region.begin + first * unit, size, 0, handle, 0);
    // What is mapped lives on without its handle.
    driver_.release(handle);
    if (result != success) {
      error = note("cuMemMap", result);
      return false;
    }
    for (std::size_t at = first; at < last; ++at) region.units[at].in_chunk = last - first > 1;
    done = last;
    return true;
  });
  if (!error)
    if (const Result result = driver_.set_access(begin, nbytes, access_, 2))
      error = note("cuMemSetAccess", result);
  auto* address = reinterpret_cast<void*>(begin);
  // The mapping is shared: a child would not get a copy, but change our data.
  if (!error && madvise(address, nbytes, MADV_DONTFORK) != 0) error = errno;
  if (error)
    undo(region, {run.first, done});
  else
    touch_zeros(address, nbytes);
  return error;
}

// Takes the memory from one chunk.
bool CudaVirtualPages::unmap(const Region& region, Run chunk) {
  const Result result =
      driver_.unmap(region.begin + chunk.first * unit, (chunk.last - chunk.first) * unit);
  if (result != success) note("cuMemUnmap", result);
  return result == success;
}

// What a failing commit had mapped so far.
void CudaVirtualPages::undo(Region& region, Run run) {
  const Calling calling(driver_);
  const Current current(driver_, context_);
  for_each_chunk(run.first, run.last, [&](std::size_t first, std::size_t last) {
    if (unmap(region, {first, last})) return true;
    std::lock_guard lock(mutex_);
    for (std::size_t at = first; at < last; ++at) region.units[at].state = lost;
    return true;
  });
}

int CudaVirtualPages::decommit(std::uintptr_t begin, std::size_t nbytes) try {
  if (!driver_.usable()) return 0;  // a child never had it
  std::unique_lock lock(mutex_);
  Region& region = region_of(begin);
  const Run all = run_of(region, begin, nbytes);
  await(lock, region, all);
  // A chunk goes as a whole. Where others use the rest of one, our part is given: whoever makes the
  // chunk complete unmaps it.
  std::vector<Run> whole, parts;
  whole.reserve(all.last - all.first);
  parts.reserve(all.last - all.first);
  std::vector<bool> gone(all.last - all.first);
  const auto claim = [&](Run chunk) {
    for (std::size_t at = chunk.first; at < chunk.last; ++at) region.units[at].state = busy;
    whole.push_back(chunk);
  };
  for (std::size_t at = all.first, next; at < all.last; at = next) {
    next = at + 1;
    if (region.units[at].state != used) continue;
    const Run chunk = chunk_of(region, at);
    bool complete = true;
    for (std::size_t i = chunk.first; i < chunk.last; ++i)
      complete = complete && (region.units[i].state == given ||
                              (region.units[i].state == used && i >= all.first && i < all.last));
    next = std::min(chunk.last, all.last);
    if (complete)
      claim(chunk);
    else
      parts.push_back({at, next});
  }
  if (!parts.empty()) {
    lock.unlock();
    for (const Run part : parts)
      for (std::size_t at = part.first; at < part.last; ++at)
        std::memset(reinterpret_cast<void*>(region.begin + at * unit), 0, unit);
    lock.lock();
    for (const Run part : parts) {
      for (std::size_t at = part.first; at < part.last; ++at) region.units[at].state = given;
      const Run chunk = chunk_of(region, part.first);
      if (std::all_of(region.units.begin() + chunk.first, region.units.begin() + chunk.last,
                      [](const Unit& each) { return each.state == given; }))
        claim(chunk);
    }
  }
  lock.unlock();

  if (!whole.empty()) {
    const Calling calling(driver_);
    const Current current(driver_, context_);
    for (std::size_t i = 0; i < whole.size(); ++i) gone[i] = unmap(region, whole[i]);
  }
  lock.lock();
  int error = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    if (!gone[i]) error = EIO;
    for (std::size_t at = whole[i].first; at < whole[i].last; ++at) {
      const bool ours = at >= all.first && at < all.last;
      region.units[at].state = gone[i] ? none : ours ? used : given;
    }
  }
  settled_.notify_all();
  return error;
} catch (const std::bad_alloc&) {
  return ENOMEM;
}

int CudaVirtualPages::wipe(std::uintptr_t begin, std::size_t nbytes) {
  if (!driver_.usable()) return 0;
  std::unique_lock lock(mutex_);
  const Region& region = region_of(begin);
  const std::uintptr_t end = begin + nbytes;
  for (std::uintptr_t at = begin, next; at < end; at = next) {
    next = std::min(end, region.begin + ((at - region.begin) / unit + 1) * unit);
    if (region.units[(at - region.begin) / unit].state != used) continue;
    lock.unlock();
    std::memset(reinterpret_cast<void*>(at), 0, next - at);
    lock.lock();
  }
  return 0;
}

int CudaVirtualPages::unreserve(std::uintptr_t begin, std::size_t nbytes) {
  if (!driver_.usable()) return 0;
  std::unique_lock lock(mutex_);
  // All of it at once: an arena may give it up in parts, where some of it was refused.
  Region& whole = region_of(begin);
  whole.returned += nbytes;
  if (whole.returned < whole.units.size() * unit) return 0;
  await(lock, whole, {0, whole.units.size()});
  // Forgotten before it goes: the next range that anybody reserves may begin there.
  const auto node = regions_.extract(whole.begin);
  lock.unlock();
  const Region& region = node.mapped();
  const Calling calling(driver_);
  const Current current(driver_, context_);
  bool good = true;
  for (std::size_t at = 0, next; at < region.units.size(); at = next) {
    const State state = region.units[at].state;
    const Run chunk = chunk_of(region, at);
    next = state == none ? at + 1 : chunk.last;
    if (state != none) good = unmap(region, chunk) && good;
  }
  if (!good) return EIO;
  const Result result = driver_.address_free(region.reserved, region.reserved_size);
  return result == success ? 0 : note("cuMemAddressFree", result);
}

}  // namespace bigmem
