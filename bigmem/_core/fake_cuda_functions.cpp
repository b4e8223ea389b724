#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <iterator>
#include <utility>

#include "fake_cuda.hpp"

namespace bigmem {

using namespace cuda;

namespace {

constexpr std::size_t granularity = std::size_t{2} << 20;
// Where in a page the driver's own host memory begins.
constexpr std::size_t host_offset = 512;

void* pointer(Address address) { return reinterpret_cast<void*>(address); }

bool map_nothing(void* address, std::size_t nbytes, int flags) {
  return mmap(address, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1,
              0) != MAP_FAILED;
}

}  // namespace

// The functions themselves.
struct FakeFunctions {
  static FakeCuda& fake() { return FakeCuda::only(); }

  static Result init(unsigned) { return fake().enter("cuInit", false); }

  static Result device_get(Device* device, int ordinal) {
    if (const Result result = fake().enter("cuDeviceGet", false)) return result;
    *device = ordinal;
    return ordinal < static_cast<int>(fake().devices_.size()) ? success : invalid_device;
  }

  static Result device_count(int* count) {
    if (const Result result = fake().enter("cuDeviceGetCount", false)) return result;
    *count = static_cast<int>(fake().devices_.size());
    return success;
  }

  static Result device_attribute(int* value, int attribute, Device) {
    if (const Result result = fake().enter("cuDeviceGetAttribute", false)) return result;
    const bool is_vmm = attribute == host_numa_vmm_supported || attribute == host_vmm_supported;
    *value = is_vmm && fake().host_vmm_;
    return success;
  }

  static Result primary_retain(Context* context, Device device) {
    if (const Result result = fake().enter("cuDevicePrimaryCtxRetain", false)) return result;
    std::lock_guard lock(fake().mutex_);
    ++fake().devices_.at(device).retained;
    *context = FakeCuda::context_of(device);
    return success;
  }

  static Result primary_release(Device device) {
    if (const Result result = fake().enter("cuDevicePrimaryCtxRelease", false)) return result;
    std::lock_guard lock(fake().mutex_);
    --fake().devices_.at(device).retained;
    return success;
  }

  static Result primary_state(Device device, unsigned* flags, int* active) {
    if (const Result result = fake().enter("cuDevicePrimaryCtxGetState", false)) return result;
    std::lock_guard lock(fake().mutex_);
    *flags = 0;
    *active = fake().devices_.at(device).active || fake().devices_.at(device).retained;
    return success;
  }

  static Result ctx_current(Context* context) {
    if (const Result result = fake().enter("cuCtxGetCurrent", false)) return result;
    *context = FakeCuda::stack_.empty() ? nullptr : FakeCuda::stack_.back();
    return success;
  }

  static Result ctx_push(Context context) {
    if (const Result result = fake().enter("cuCtxPushCurrent", false)) return result;
    FakeCuda::stack_.push_back(context);
    return success;
  }

  static Result ctx_pop(Context* context) {
    if (const Result result = fake().enter("cuCtxPopCurrent", false)) return result;
    if (FakeCuda::stack_.empty()) return invalid_context;
    *context = FakeCuda::stack_.back();
    FakeCuda::stack_.pop_back();
    return success;
  }

  static Result ctx_record_event(Context context, Event event) {
    if (const Result result = fake().enter("cuCtxRecordEvent")) return result;
    std::lock_guard lock(fake().mutex_);
    const auto found = find_event(event);
    if (found == fake().events_.end() || found->second.context != context) return invalid_handle;
    if (fake().invalidate_captures(context)) return stream_capture_unsupported;
    found->second.after.clear();
    for (auto& [name, stream] : fake().streams_)
      if (stream.context == context) found->second.after[name] = stream.work.submitted;
    return success;
  }

  static Result stream_ctx(cuda::Stream stream, Context* context) {
    if (const Result result = fake().enter("cuStreamGetCtx")) return result;
    std::lock_guard lock(fake().mutex_);
    const auto found = fake().streams_.find(reinterpret_cast<std::uintptr_t>(stream));
    if (found == fake().streams_.end()) return invalid_handle;
    *context = found->second.context;
    return success;
  }

  static Result stream_is_capturing(cuda::Stream stream, int* status) {
    if (const Result result = fake().enter("cuStreamIsCapturing", false)) return result;
    std::lock_guard lock(fake().mutex_);
    const auto& asked = fake().stream_of(reinterpret_cast<std::uintptr_t>(stream));
    *status = !asked.capturing ? capture_status_none : asked.invalidated ? 2 : 1;
    if (reinterpret_cast<std::uintptr_t>(stream) <= 1)
      for (const auto& each : fake().streams_)
        if (each.second.capturing && each.second.blocking && each.second.context == asked.context)
          return stream_capture_implicit;
    return success;
  }

  static Result exchange_capture_mode(int* mode) {
    if (const Result result = fake().enter("cuThreadExchangeStreamCaptureMode", false))
      return result;
    std::swap(*mode, FakeCuda::capture_mode_);
    return success;
  }

  static Result event_create(Event* event, unsigned) {
    if (const Result result = fake().enter("cuEventCreate")) return result;
    if (FakeCuda::stack_.empty()) return invalid_context;
    std::lock_guard lock(fake().mutex_);
    *event = reinterpret_cast<Event>(++fake().next_);
    fake().events_[fake().next_] = {FakeCuda::stack_.back(), life_of(FakeCuda::stack_.back())};
    return success;
  }

  static Result event_record(Event event, cuda::Stream stream) {
    if (const Result result = fake().enter("cuEventRecord")) return result;
    std::lock_guard lock(fake().mutex_);
    const auto found = find_event(event);
    auto& on = fake().stream_of(reinterpret_cast<std::uintptr_t>(stream));
    if (found == fake().events_.end() || found->second.context != on.context) return invalid_handle;
    found->second.captured = on.capturing;
    found->second.after.clear();
    for (auto& [name, each] : fake().streams_)
      if (&each == &on) found->second.after[name] = each.work.submitted;
    return success;
  }

  static Result event_query(Event event) {
    if (const Result result = fake().enter("cuEventQuery")) return result;
    std::lock_guard lock(fake().mutex_);
    const auto found = find_event(event);
    if (found == fake().events_.end()) return invalid_handle;
    if (found->second.captured) return stream_capture_implicit + 1;
    return fake().done(found->second) ? success : not_ready;
  }

  static Result event_destroy(Event event) {
    if (const Result result = fake().enter("cuEventDestroy")) return result;
    std::lock_guard lock(fake().mutex_);
    return fake().events_.erase(reinterpret_cast<std::uintptr_t>(event)) ? success : invalid_handle;
  }

  static Result address_reserve(Address* address, std::size_t size, std::size_t, Address,
                                unsigned long long) {
    if (const Result result = fake().enter("cuMemAddressReserve")) return result;
    if (!size || size % granularity) return invalid_value;
    void* mapped = mmap(nullptr, size + granularity, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return out_of_memory;
    const auto begin = reinterpret_cast<Address>(mapped);
    *address = (begin + granularity - 1) / granularity * granularity;
    if (*address > begin) munmap(mapped, *address - begin);
    const std::size_t tail = begin + granularity - *address;
    if (tail) munmap(pointer(*address + size), tail);
    std::lock_guard lock(fake().mutex_);
    fake().reserved_[*address] = size;
    return success;
  }

  static Result address_free(Address address, std::size_t size) {
    if (const Result result = fake().enter("cuMemAddressFree")) return result;
    std::lock_guard lock(fake().mutex_);
    const auto found = fake().reserved_.find(address);
    if (found == fake().reserved_.end() || found->second != size) return invalid_value;
    const auto mapping = fake().mappings_.lower_bound(address);
    if (mapping != fake().mappings_.end() && mapping->first < address + size) return invalid_value;
    munmap(pointer(address), size);
    fake().reserved_.erase(found);
    return success;
  }

  static Result granularity_of(std::size_t* size, const AllocationProperties*, int) {
    if (const Result result = fake().enter("cuMemGetAllocationGranularity")) return result;
    *size = granularity;
    return success;
  }

  static Result create(Handle* handle, std::size_t size, const AllocationProperties* properties,
                       unsigned long long) {
    if (const Result result = fake().enter("cuMemCreate")) return result;
    if (!size || size % granularity || properties->type != allocation_pinned ||
        !properties->location.type)
      return invalid_value;
    std::lock_guard lock(fake().mutex_);
    if (fake().in_use_ + size > fake().limit_) return out_of_memory;
    const int file = memfd_create("bigmem-fake-cuda", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(size)) != 0) return out_of_memory;
    fake().in_use_ += size;
    *handle = ++fake().next_;
    fake().chunks_[*handle] = {file, size, true, false};
    return success;
  }

  static Result map(Address address, std::size_t size, std::size_t offset, Handle handle,
                    unsigned long long) {
    if (const Result result = fake().enter("cuMemMap")) return result;
    std::lock_guard lock(fake().mutex_);
    const auto chunk = fake().chunks_.find(handle);
    if (chunk == fake().chunks_.end() || offset || chunk->second.size != size ||
        address % granularity)
      return invalid_value;
    const auto reserved = fake().reserved_.upper_bound(address);
    if (reserved == fake().reserved_.begin() ||
        address + size > std::prev(reserved)->first + std::prev(reserved)->second)
      return invalid_value;
    const auto after = fake().mappings_.lower_bound(address);
    if (after != fake().mappings_.end() && after->first < address + size) return invalid_value;
    if (after != fake().mappings_.begin() &&
        std::prev(after)->first + std::prev(after)->second.size > address)
      return invalid_value;
    if (mmap(pointer(address), size, PROT_NONE, MAP_SHARED | MAP_FIXED, chunk->second.file, 0) ==
        MAP_FAILED)
      return out_of_memory;
    chunk->second.mapped = true;
    fake().mappings_[address] = {size, handle};
    return success;
  }

  static Result set_access(Address address, std::size_t size, const Access* access,
                           std::size_t count) {
    if (const Result result = fake().enter("cuMemSetAccess")) return result;
    if (count != 2 || access[0].location.type != location_device || !access[1].location.type)
      return invalid_value;
    std::lock_guard lock(fake().mutex_);
    for (Address at = address; at < address + size;) {
      const auto found = fake().mappings_.find(at);
      if (found == fake().mappings_.end()) return invalid_value;
      at += found->second.size;
      if (at > address + size) return invalid_value;
    }
    return mprotect(pointer(address), size, PROT_READ | PROT_WRITE) == 0 ? success : unknown;
  }

  static Result unmap(Address address, std::size_t size) {
    if (const Result result = fake().enter("cuMemUnmap")) return result;
    std::lock_guard lock(fake().mutex_);
    const auto found = fake().mappings_.find(address);
    if (found == fake().mappings_.end() || found->second.size != size) return invalid_value;
    if (!map_nothing(pointer(address), size, MAP_FIXED)) return unknown;
    const Handle handle = found->second.handle;
    fake().mappings_.erase(found);
    fake().chunks_.at(handle).mapped = false;
    fake().forget(handle);
    return success;
  }

  static Result release(Handle handle) {
    if (const Result result = fake().enter("cuMemRelease")) return result;
    std::lock_guard lock(fake().mutex_);
    const auto found = fake().chunks_.find(handle);
    if (found == fake().chunks_.end() || !found->second.held) return invalid_value;
    found->second.held = false;
    fake().forget(handle);
    return success;
  }

  static Result host_register(void* address, std::size_t size, unsigned) {
    if (const Result result = fake().enter("cuMemHostRegister")) return result;
    std::lock_guard lock(fake().mutex_);
    if (fake().in_use_ + size > fake().limit_) return out_of_memory;
    if (!fake().registered_.emplace(address, size).second) return host_memory_already_registered;
    fake().stalls_ += fake().busy();
    fake().in_use_ += size;
    return success;
  }

  static Result host_unregister(void* address) {
    if (const Result result = fake().enter("cuMemHostUnregister")) return result;
    std::lock_guard lock(fake().mutex_);
    const auto found = fake().registered_.find(address);
    if (found == fake().registered_.end()) return host_memory_not_registered;
    fake().stalls_ += fake().busy();
    fake().in_use_ -= found->second;
    fake().registered_.erase(found);
    return success;
  }

  static Result host_alloc(void** address, std::size_t size, unsigned) {
    if (const Result result = fake().enter("cuMemHostAlloc")) return result;
    std::lock_guard lock(fake().mutex_);
    if (fake().in_use_ + size > fake().limit_) return out_of_memory;
    void* base = mmap(nullptr, host_offset + size, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return out_of_memory;
    *address = static_cast<char*>(base) + host_offset;
    std::memset(*address, 0xa5, size);  // nobody promises zeros
    fake().allocated_[*address] = size;
    fake().stalls_ += fake().busy();
    fake().in_use_ += size;
    return success;
  }

  static Result host_free(void* address) {
    if (const Result result = fake().enter("cuMemFreeHost")) return result;
    std::lock_guard lock(fake().mutex_);
    const auto found = fake().allocated_.find(address);
    if (found == fake().allocated_.end()) return invalid_value;
    fake().stalls_ += fake().busy();
    munmap(static_cast<char*>(address) - host_offset, host_offset + found->second);
    fake().in_use_ -= found->second;
    fake().allocated_.erase(found);
    return success;
  }

  // The bytes move when the stream gets there.
  static Result copy(const char* name, void* to, const void* from, std::size_t size,
                     cuda::Stream stream) {
    if (const Result result = fake().enter(name, false)) return result;
    fake().submit(reinterpret_cast<std::uintptr_t>(stream), [=] { std::memcpy(to, from, size); });
    return success;
  }

  static Result copy_to_device(Address to, const void* from, std::size_t size,
                               cuda::Stream stream) {
    return copy("cuMemcpyHtoDAsync", pointer(to), from, size, stream);
  }

  static Result copy_to_host(void* to, Address from, std::size_t size, cuda::Stream stream) {
    return copy("cuMemcpyDtoHAsync", to, pointer(from), size, stream);
  }

  static Result error_name(Result result, const char** name) {
    static const std::map<Result, const char*> names = {
        {success, "CUDA_SUCCESS"},
        {invalid_value, "CUDA_ERROR_INVALID_VALUE"},
        {out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY"},
        {invalid_device, "CUDA_ERROR_INVALID_DEVICE"},
        {illegal_address, "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {host_memory_already_registered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
        {invalid_handle, "CUDA_ERROR_INVALID_HANDLE"},
        {not_supported, "CUDA_ERROR_NOT_SUPPORTED"},
        {not_permitted, "CUDA_ERROR_NOT_PERMITTED"},
        {unknown, "CUDA_ERROR_UNKNOWN"},
    };
    const auto known = names.find(result);
    if (known == names.end()) return invalid_value;
    *name = known->second;
    return success;
  }

  static unsigned life_of(Context context) {
    return fake().devices_.at(FakeCuda::device_of(context)).life;
  }

  static std::map<std::uintptr_t, FakeCuda::Event>::iterator find_event(Event event) {
    const auto found = fake().events_.find(reinterpret_cast<std::uintptr_t>(event));
    const bool alive =
        found != fake().events_.end() && found->second.life == life_of(found->second.context);
    return alive ? found : fake().events_.end();
  }
};

// By way of a table, so that names and types are the driver's.
void* FakeCuda::function(const char* name) {
  using F = FakeFunctions;
  static const Driver table{F::init,
                            F::device_get,
                            F::device_count,
                            F::device_attribute,
                            F::primary_retain,
                            F::primary_release,
                            F::primary_state,
                            F::ctx_current,
                            F::ctx_push,
                            F::ctx_pop,
                            F::ctx_record_event,
                            F::stream_ctx,
                            F::stream_is_capturing,
                            F::exchange_capture_mode,
                            F::event_create,
                            F::event_record,
                            F::event_query,
                            F::event_destroy,
                            F::address_reserve,
                            F::address_free,
                            F::granularity_of,
                            F::create,
                            F::map,
                            F::set_access,
                            F::unmap,
                            F::release,
                            F::host_register,
                            F::host_unregister,
                            F::host_alloc,
                            F::host_free,
                            F::copy_to_device,
                            F::copy_to_host,
                            F::error_name};
  const Function* known = find_function(name);
  return known ? known->get(table) : nullptr;
}

}  // namespace bigmem
