#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

// The part of CUDA's driver that pinned memory needs, declared by hand: bigmem is built without
// CUDA, and finds the functions by their addresses at run time.
namespace bigmem::cuda {

using Result = int;
using Device = int;
using Address = unsigned long long;  // CUdeviceptr
using Context = struct CUctx_st*;
using Stream = struct CUstream_st*;
using Event = struct CUevent_st*;
using Handle = unsigned long long;  // CUmemGenericAllocationHandle

constexpr Result success = 0;
constexpr Result invalid_value = 1;
constexpr Result out_of_memory = 2;
constexpr Result not_initialized = 3;
constexpr Result deinitialized = 4;
constexpr Result device_unavailable = 46;
constexpr Result invalid_device = 101;
constexpr Result invalid_context = 201;
constexpr Result ecc_uncorrectable = 214;
constexpr Result nvlink_uncorrectable = 220;
constexpr Result contained = 226;
constexpr Result invalid_handle = 400;
constexpr Result not_found = 500;
constexpr Result not_ready = 600;
constexpr Result illegal_address = 700;
constexpr Result host_memory_already_registered = 712;
constexpr Result host_memory_not_registered = 713;
constexpr Result not_permitted = 800;
constexpr Result not_supported = 801;
constexpr Result stream_capture_unsupported = 900;
constexpr Result stream_capture_implicit = 906;
constexpr Result unknown = 999;

constexpr int multiprocessor_count = 16;  // attributes of a device
constexpr int host_numa_id = 134;
constexpr int host_numa_vmm_supported = 141;
constexpr int host_vmm_supported = 145;

constexpr int location_device = 1;
constexpr int location_host = 2;
constexpr int location_host_numa = 3;
constexpr int allocation_pinned = 1;
constexpr int access_read_write = 3;

constexpr int capture_mode_relaxed = 2;
constexpr int capture_status_none = 0;
constexpr unsigned event_disable_timing = 2;
constexpr unsigned host_portable = 1;  // for every context; of registering and of allocating

inline Stream legacy_stream() { return reinterpret_cast<Stream>(std::uintptr_t{1}); }
inline Stream per_thread_stream() { return reinterpret_cast<Stream>(std::uintptr_t{2}); }

struct Location {
  int type;
  int id;
};

struct AllocationProperties {
  int type;
  int requested_handle_types;
  Location location;
  void* win32_meta_data;
  unsigned char compression_type, gpu_direct_rdma_capable;
  unsigned short usage;
  unsigned char reserved[4];
};

struct Access {
  Location location;
  int flags;
};

// What became of work that was asked about.
enum class Answer {
  yes,
  not_now,  // not done yet, or the driver will not say at this moment
  lost      // the processor has failed, or the context is gone: nothing runs there any more
};
Answer answer(Result result) noexcept;

// A table of the driver's functions. Kept for good once made: pages and fences outlive whoever
// asked for them.
struct Driver {
  Result (*init)(unsigned flags);
  Result (*device_get)(Device*, int ordinal);
  Result (*device_count)(int*);
  Result (*device_attribute)(int*, int attribute, Device);
  Result (*primary_retain)(Context*, Device);
  Result (*primary_release)(Device);
  Result (*primary_state)(Device, unsigned* flags, int* active);
  Result (*ctx_current)(Context*);
  Result (*ctx_push)(Context);
  Result (*ctx_pop)(Context*);
  Result (*ctx_record_event)(Context, Event);
  Result (*stream_ctx)(Stream, Context*);
  Result (*stream_is_capturing)(Stream, int* status);
  Result (*exchange_capture_mode)(int* mode);
  Result (*event_create)(Event*, unsigned flags);
  Result (*event_record)(Event, Stream);
  Result (*event_query)(Event);
  Result (*event_destroy)(Event);
  Result (*address_reserve)(Address*, std::size_t, std::size_t alignment, Address,
                            unsigned long long flags);
  Result (*address_free)(Address, std::size_t);
  Result (*granularity)(std::size_t*, const AllocationProperties*, int option);
  Result (*create)(Handle*, std::size_t, const AllocationProperties*, unsigned long long flags);
  Result (*map)(Address, std::size_t, std::size_t offset, Handle, unsigned long long flags);
  Result (*set_access)(Address, std::size_t, const Access*, std::size_t count);
  Result (*unmap)(Address, std::size_t);
  Result (*release)(Handle);
  Result (*host_register)(void*, std::size_t, unsigned flags);
  Result (*host_unregister)(void*);
  Result (*host_alloc)(void**, std::size_t, unsigned flags);
  Result (*host_free)(void*);
  Result (*copy_to_device)(Address, const void*, std::size_t, Stream);
  Result (*copy_to_host)(void*, Address, std::size_t, Stream);
  Result (*error_name)(Result, const char**);

  // Not in a child of the process that made it: there the driver must not be called.
  bool usable() const noexcept;
  const char* name_of(Result result) const noexcept;

  unsigned generation = 0;  // counts forks
};

// A function of the table by the driver's name, and the version of CUDA that brought it with the
// parameters above.
struct Function {
  const char* name;
  int version;
  void (*set)(Driver&, void* address);
  void* (*get)(const Driver&);
};
constexpr std::size_t function_count = 33;
extern const Function functions[function_count];

// Which of them there is none by that name: null.
const Function* find_function(const char* name) noexcept;

// To be called before anything else asks to be told of forks: what a child does first, as giving up
// its idle memory, must know already that the driver is not its own.
void count_forks();

// A table that stands for the present process.
Driver* new_driver();

// The context that a stream works in; the default streams are those of the current one.
Result stream_context(const Driver& driver, Stream stream, Context* context) noexcept;

// The primary context of a device, which every library uses; null if it has none now. Not held: it
// may be reset at any time.
Result primary_context(const Driver& driver, int ordinal, Context* context) noexcept;

// The driver may be called within one, whatever this thread captures: calls that are unsafe in a
// capture would invalidate it otherwise. False where it may not be called at all.
class Calling {
 public:
  explicit Calling(const Driver& driver) noexcept;
  ~Calling();
  Calling(const Calling&) = delete;
  Calling& operator=(const Calling&) = delete;
  explicit operator bool() const { return usable_; }

 private:
  const Driver& driver_;
  const bool usable_;
  int mode_ = capture_mode_relaxed;
  bool exchanged_ = false;
};

// A context made current for a scope.
class Current {
 public:
  Current(const Driver& driver, Context context) noexcept
      : driver_(driver), result_(driver.ctx_push(context)) {}
  ~Current() {
    Context popped;
    if (result_ == success && driver_.usable()) driver_.ctx_pop(&popped);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  Result result() const { return result_; }

 private:
  const Driver& driver_;
  const Result result_;
};

}  // namespace bigmem::cuda
