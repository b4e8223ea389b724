#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "cuda_driver.hpp"

namespace bigmem {

// A driver without a GPU, for tests: functions of the same names and parameters. Its memory is
// real, and its streams do what was submitted to them when the test says so. There is one, since
// the functions have nowhere to carry another; what was mapped outlives configure().
class FakeCuda {
 public:
  static FakeCuda& only();

  // As new, but for the memory: so many devices, that much memory, nothing submitted, nothing
  // captured, no failures, nothing counted. `host_vmm` is whether devices map memory of the host.
  void configure(int devices, std::size_t memory, bool host_vmm);
  static void* function(const char* name);

  std::uintptr_t new_stream(int device, bool blocking);
  void submit(std::uintptr_t stream, std::function<void()> work = [] {});
  // Lets the oldest `count` pieces of a stream's work be done, of every stream if it is 0.
  void finish(std::uintptr_t stream, std::size_t count);
  void begin_capture(std::uintptr_t stream);
  bool end_capture(std::uintptr_t stream);  // false if it was invalidated
  // After so many more calls, so many return this result.
  void fail(const std::string& function, cuda::Result result, int after, int times);
  void delay(const std::string& function, double seconds);
  // Everything returns this from now on, as after an error that a context does not survive.
  void lose(cuda::Result result);
  void activate(int device);
  // The primary context is destroyed, as by cudaDeviceReset.
  void reset_device(int device);

  std::uint64_t calls(const std::string& function);
  std::uint64_t own_calls();  // of the calling thread
  std::size_t memory();       // bytes that are in use
  std::size_t mappings();     // how many there are
  std::uint64_t stalls();     // calls that would have waited for work under way
  std::size_t events();       // that exist

 private:
  struct Work {
    std::deque<std::function<void()>> waiting;
    std::uint64_t submitted = 0, done = 0;
  };
  struct Stream {
    cuda::Context context = nullptr;
    bool blocking = true;
    bool capturing = false, invalidated = false;
    Work work{};
  };
  struct Event {
    cuda::Context context;
    unsigned life;  // of the context
    bool captured = false;
    std::map<std::uintptr_t, std::uint64_t> after{};  // how much of which stream's work
  };
  struct Chunk {
    int file;
    std::size_t size;
    bool held, mapped;
  };
  struct Mapping {
    std::size_t size;
    cuda::Handle handle;
  };
  struct Failure {
    cuda::Result result;
    int after, times;
  };
  struct Device {
    unsigned life = 0;
    int retained = 0;
    bool active = false;
  };

  friend struct FakeFunctions;
  static inline thread_local std::vector<cuda::Context> stack_;
  static inline thread_local int capture_mode_ = 0;
  static inline thread_local std::uint64_t own_calls_ = 0;

  cuda::Result enter(const char* name, bool unsafe = true);
  static cuda::Context context_of(int device);
  static int device_of(cuda::Context context);
  Stream& stream_of(std::uintptr_t stream);
  bool invalidate_captures(cuda::Context context);
  bool done(const Event& event);
  bool busy();
  void forget(cuda::Handle handle);

  std::mutex mutex_;
  std::vector<Device> devices_;
  std::size_t limit_ = 0, in_use_ = 0;
  bool host_vmm_ = true;
  cuda::Result lost_ = cuda::success;
  std::map<std::uintptr_t, Stream> streams_;
  std::map<std::uintptr_t, Event> events_;
  std::map<cuda::Address, std::size_t> reserved_;
  std::map<cuda::Address, Mapping> mappings_;
  std::map<cuda::Handle, Chunk> chunks_;
  std::map<void*, std::size_t> registered_, allocated_;
  std::map<std::string, Failure> failures_;
  std::map<std::string, double> delays_;
  std::map<std::string, std::uint64_t> calls_;
  std::uint64_t all_calls_ = 0, stalls_ = 0;
  std::uintptr_t next_ = 0x10000;
};

}  // namespace bigmem
