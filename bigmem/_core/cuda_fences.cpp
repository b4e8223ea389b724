#include "cuda_fences.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "clock.hpp"
#include "cuda_captures.hpp"

namespace bigmem {

using namespace cuda;

namespace {

// So many unused events are kept.
constexpr std::size_t most_pooled = 1024;

}  // namespace

// One event for each context; those that were seen to be done are gone from the list.
struct CudaFences::Moment {
  std::vector<Pooled> events;

  Fence* as_fence() { return reinterpret_cast<Fence*>(this); }
  static Moment* of(Fence* fence) { return reinterpret_cast<Moment*>(fence); }
};

// An event of the context, which must be current. One from the pool may be of a context that has
// been destroyed and whose address is in use again: `fresh` ones are not.
bool CudaFences::take(Context context, bool fresh, Pooled& pooled, Result& result) noexcept {
  if (!fresh) {
    std::lock_guard lock(mutex_);
    const auto found = std::find_if(pool_.rbegin(), pool_.rend(),
                                    [&](const Pooled& each) { return each.context == context; });
    if (found != pool_.rend()) {
      pooled = std::exchange(*found, pool_.back());
      pool_.pop_back();
      return true;
    }
  }
  pooled.context = context;
  result = driver_.event_create(&pooled.event, event_disable_timing);
  return result == success;
}

void CudaFences::give_back(const Pooled& pooled) noexcept {
  try {
    std::lock_guard lock(mutex_);
    if (pool_.size() < most_pooled) return pool_.push_back(pooled);
  } catch (const std::bad_alloc&) {
  }
  driver_.event_destroy(pooled.event);
}

void CudaFences::know(Context context) {
  std::lock_guard lock(mutex_);
  if (std::find(seen_.begin(), seen_.end(), context) == seen_.end()) seen_.push_back(context);
}

// Those in which work may be under way: the primary context of each device that has one, as every
// library uses it, and whatever else record() has met. False where the driver does not tell, as in
// a callback of its own: what is not known to be there might be at work.
bool CudaFences::find_active(std::vector<Context>& active, Refusal& refusal) {
  const auto untold = [&](const char* function, Result result) {
    if (answer(result) != Answer::not_now) return false;
    refusal = Refusal(function, result);
    return true;
  };
  {
    std::lock_guard lock(mutex_);
    active = seen_;
  }
  int count = 0;
  if (untold("cuDeviceGetCount", driver_.device_count(&count))) return false;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    // Asked for anew each time, since it may be reset.
    Context context;
    if (untold("cuDevicePrimaryCtxGetState", primary_context(driver_, ordinal, &context)))
      return false;
    if (context && std::find(active.begin(), active.end(), context) == active.end())
      active.push_back(context);
  }
  return true;
}

// Adds an event after all work of the context to the moment.
Answer CudaFences::record_all(Context context, Moment& moment, Refusal& refusal) {
  const auto answer_to = [&](const char* function, Result result) {
    const Answer given = answer(result);
    if (given == Answer::not_now) refusal = Refusal(function, result);
    return given;
  };
  const Current current(driver_, context);
  if (current.result() != success) return answer_to("cuCtxPushCurrent", current.result());
  if (!Captures::quiet_in_context(driver_)) return Answer::not_now;
  moment.events.reserve(moment.events.size() + 1);
  Answer recorded = Answer::lost;
  for (const bool fresh : {false, true}) {
    Pooled pooled;
    Result result;
    if (!take(context, fresh, pooled, result)) return answer_to("cuEventCreate", result);
    recorded = answer_to("cuCtxRecordEvent", driver_.ctx_record_event(context, pooled.event));
    if (recorded == Answer::yes) {
      moment.events.push_back(pooled);
      break;
    }
    if (recorded == Answer::not_now) {
      give_back(pooled);
      break;
    }
    driver_.event_destroy(pooled.event);
  }
  return recorded;
}

Fences::Fence* CudaFences::guard() noexcept {
  Refusal unasked;
  return guard(unasked);
}

Fences::Fence* CudaFences::guard(Refusal& refusal) noexcept {
  auto* moment = new (std::nothrow) Moment;
  if (!moment || !driver_.usable()) return moment ? moment->as_fence() : nullptr;
  bool good = false;
  try {
    Captures& captures = Captures::known();
    std::lock_guard none_begins(captures.mutex());
    if (captures.quiet()) {
      const Calling calling(driver_);
      std::vector<Context> active;
      good = find_active(active, refusal);
      for (auto each = active.begin(); good && each != active.end(); ++each) {
        const Answer recorded = record_all(*each, *moment, refusal);
        good = recorded != Answer::not_now;
        if (recorded == Answer::lost) {
          std::lock_guard lock(mutex_);
          seen_.erase(std::remove(seen_.begin(), seen_.end(), *each), seen_.end());
        }
      }
    }
  } catch (const std::bad_alloc&) {
    good = false;
  }
  if (good) return moment->as_fence();
  drop(moment->as_fence());
  return nullptr;
}

Fences::Fence* CudaFences::past() noexcept {
  auto* moment = new (std::nothrow) Moment;
  return moment ? moment->as_fence() : nullptr;
}

Fences::Fence* CudaFences::record(Stream stream, Refusal& refusal) noexcept {
  const auto refuse = [&](const char* function, Result result) {
    refusal = Refusal(function, result);
    return nullptr;
  };
  const Calling calling(driver_);
  if (!calling) return refuse("fork", not_initialized);
  Context context = nullptr;
  Result result = stream_context(driver_, stream, &context);
  if (result != success) return refuse("cuStreamGetCtx", result);
  if (!context) {
    // A default stream, of whichever device the thread would come to use: all of them are covered.
    refuse("cuCtxRecordEvent", stream_capture_unsupported);  // unless there is another reason
    return guard(refusal);
  }
  Moment* moment = nullptr;
  try {
    know(context);
    moment = new Moment;
    moment->events.reserve(1);
  } catch (const std::bad_alloc&) {
    return refuse("malloc", out_of_memory);
  }
  const Current current(driver_, context);
  int status = capture_status_none;
  result = driver_.stream_is_capturing(stream, &status);
  if (result == success && status != capture_status_none) result = stream_capture_unsupported;
  const char* function = "cuStreamIsCapturing";
  for (const bool fresh : {false, true}) {
    if (result != success) break;
    Pooled pooled;
    function = "cuEventCreate";
    if (!take(context, fresh, pooled, result)) break;
    function = "cuEventRecord";
    result = driver_.event_record(pooled.event, stream);
    if (result == success) {
      moment->events.push_back(pooled);
      return moment->as_fence();
    }
    driver_.event_destroy(pooled.event);
    if (!fresh && answer(result) == Answer::lost) result = success;  // once more
  }
  delete moment;
  return refuse(function, result);
}

bool CudaFences::done(Fence* fence) noexcept {
  Moment& moment = *Moment::of(fence);
  if (moment.events.empty()) return true;
  const Calling calling(driver_);
  if (!calling) return true;
  while (!moment.events.empty()) {
    const Pooled pooled = moment.events.back();
    const Answer is_done = answer(driver_.event_query(pooled.event));
    if (is_done == Answer::not_now) return false;
    moment.events.pop_back();
    if (is_done == Answer::yes)
      give_back(pooled);
    else
      driver_.event_destroy(pooled.event);
  }
  return true;
}

void CudaFences::drop(Fence* fence) noexcept {
  Moment* moment = Moment::of(fence);
  if (!moment->events.empty()) {
    const Calling calling(driver_);
    // An event that is not done yet may be recorded anew all the same.
    if (calling)
      for (const Pooled& pooled : moment->events) give_back(pooled);
  }
  delete moment;
}

bool idle(Fences& fences) noexcept {
  Fences::Fence* now = fences.guard();
  if (!now) return false;
  const bool is_idle = fences.done(now);
  fences.drop(now);
  return is_idle;
}

Fences::Fence* IdleFences::guard() noexcept {
  Fence* now = fences_->guard();
  if (now && fences_->done(now)) {
    busy_since_.store(0);
    return now;
  }
  const double seconds = seconds_now();
  double since = 0;
  if (busy_since_.compare_exchange_strong(since, seconds)) since = seconds;
  if (now && seconds - since < patience_) fences_->drop(std::exchange(now, nullptr));
  if (now) busy_since_.store(0);  // the next one has all the patience again
  return now;
}

}  // namespace bigmem
