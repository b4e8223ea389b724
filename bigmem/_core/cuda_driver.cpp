#include "cuda_driver.hpp"

#include <pthread.h>

#include <cstring>
#include <type_traits>

namespace bigmem::cuda {
namespace {

unsigned present = 0;  // how many forks lie between this process and the first

template <auto member>
constexpr Function function(const char* name, int version) {
  return {name, version,
          [](Driver& driver, void* address) {
            using Pointer = std::remove_reference_t<decltype(driver.*member)>;
            driver.*member = reinterpret_cast<Pointer>(address);
          },
          [](const Driver& driver) { return reinterpret_cast<void*>(driver.*member); }};
}

}  // namespace

// The version is that of the parameters: asked for the newest, the driver may know a function by
// the same name that takes more.
const Function functions[function_count] = {
    function<&Driver::init>("cuInit", 2000),
    function<&Driver::device_get>("cuDeviceGet", 2000),
    function<&Driver::device_count>("cuDeviceGetCount", 2000),
    function<&Driver::device_attribute>("cuDeviceGetAttribute", 2000),
    function<&Driver::primary_retain>("cuDevicePrimaryCtxRetain", 7000),
    function<&Driver::primary_release>("cuDevicePrimaryCtxRelease", 11000),
    function<&Driver::primary_state>("cuDevicePrimaryCtxGetState", 7000),
    function<&Driver::ctx_current>("cuCtxGetCurrent", 4000),
    function<&Driver::ctx_push>("cuCtxPushCurrent", 4000),
    function<&Driver::ctx_pop>("cuCtxPopCurrent", 4000),
    function<&Driver::ctx_record_event>("cuCtxRecordEvent", 12050),
    function<&Driver::stream_ctx>("cuStreamGetCtx", 9020),
    function<&Driver::stream_is_capturing>("cuStreamIsCapturing", 10000),
    function<&Driver::exchange_capture_mode>("cuThreadExchangeStreamCaptureMode", 10010),
    function<&Driver::event_create>("cuEventCreate", 2000),
    function<&Driver::event_record>("cuEventRecord", 2000),
    function<&Driver::event_query>("cuEventQuery", 2000),
    function<&Driver::event_destroy>("cuEventDestroy", 4000),
    function<&Driver::address_reserve>("cuMemAddressReserve", 10020),
    function<&Driver::address_free>("cuMemAddressFree", 10020),
    function<&Driver::granularity>("cuMemGetAllocationGranularity", 10020),
    function<&Driver::create>("cuMemCreate", 10020),
    function<&Driver::map>("cuMemMap", 10020),
    function<&Driver::set_access>("cuMemSetAccess", 10020),
    function<&Driver::unmap>("cuMemUnmap", 10020),
    function<&Driver::release>("cuMemRelease", 10020),
    function<&Driver::host_register>("cuMemHostRegister", 6050),
    function<&Driver::host_unregister>("cuMemHostUnregister", 4000),
    function<&Driver::host_alloc>("cuMemHostAlloc", 2020),
    function<&Driver::host_free>("cuMemFreeHost", 2000),
    function<&Driver::copy_to_device>("cuMemcpyHtoDAsync", 3020),
    function<&Driver::copy_to_host>("cuMemcpyDtoHAsync", 3020),
    function<&Driver::error_name>("cuGetErrorName", 6000),
};

const Function* find_function(const char* name) noexcept {
  for (const Function& known : functions)
    if (std::strcmp(known.name, name) == 0) return &known;
  return nullptr;
}

void count_forks() {
  static const int handler = pthread_atfork(nullptr, nullptr, [] { ++present; });
  (void)handler;
}

Driver* new_driver() {
  auto* driver = new Driver{};
  driver->generation = present;
  return driver;
}

bool Driver::usable() const noexcept { return generation == present; }

const char* Driver::name_of(Result result) const noexcept {
  const char* name = nullptr;
  if (usable() && error_name(result, &name) == success && name) return name;
  return "an unknown error";
}

Answer answer(Result result) noexcept {
  switch (result) {
    case success:
      return Answer::yes;
    case not_initialized:
    case deinitialized:
    case device_unavailable:
    case invalid_context:
    case ecc_uncorrectable:
    case nvlink_uncorrectable:
    case contained:
    case invalid_handle:  // of an event whose context is gone
    case unknown:
      return Answer::lost;
    default:
      // The errors that stay with a context until it is destroyed, and that it has been.
      return result >= illegal_address && result < not_permitted ? Answer::lost : Answer::not_now;
  }
}

Result stream_context(const Driver& driver, Stream stream, Context* context) noexcept {
  const bool is_default = !stream || stream == legacy_stream() || stream == per_thread_stream();
  return is_default ? driver.ctx_current(context) : driver.stream_ctx(stream, context);
}

Result primary_context(const Driver& driver, int ordinal, Context* context) noexcept {
  Device device;
  unsigned flags;
  int is_active = 0;
  *context = nullptr;
  Result result = driver.device_get(&device, ordinal);
  if (result == success) result = driver.primary_state(device, &flags, &is_active);
  if (result != success || !is_active) return result;
  result = driver.primary_retain(context, device);
  if (result == success) driver.primary_release(device);  // retained for its name only
  return result;
}

Calling::Calling(const Driver& driver) noexcept : driver_(driver), usable_(driver.usable()) {
  if (usable_) exchanged_ = driver.exchange_capture_mode(&mode_) == success;
}

Calling::~Calling() {
  // A handler of signals may have forked in between.
  if (exchanged_ && driver_.usable()) driver_.exchange_capture_mode(&mode_);
}

}  // namespace bigmem::cuda
