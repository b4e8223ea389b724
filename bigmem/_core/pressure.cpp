#include "pressure.hpp"

namespace bigmem {
namespace {

constexpr double look_interval = 0.1;
// Tasks stalled for 15 % of a window.
constexpr double stall_window = 1, stall_share = 0.15;

std::atomic<PressureMonitor*> current{nullptr};

// True for one caller in each interval.
bool due(std::atomic<double>& next, double now, double interval) {
  double at = next.load(std::memory_order_relaxed);
  return now >= at && next.compare_exchange_strong(at, now + interval);
}

}  // namespace

PressureMonitor& PressureMonitor::process() {
  if (PressureMonitor* set = current.load(std::memory_order_acquire)) return *set;
  static auto* blind = new PressureMonitor(
      std::make_shared<MemoryLimit>(std::vector<ControlGroup>{}, std::string{}), {});
  return *blind;
}

// The previous one stays for whoever is asking it at this moment: limits seldom move.
void PressureMonitor::set_process(std::shared_ptr<PressureMonitor> monitor) {
  monitor->events_.store(process().events());
  static std::vector<std::shared_ptr<PressureMonitor>>* all =
      new std::vector<std::shared_ptr<PressureMonitor>>;
  all->push_back(monitor);
  current.store(monitor.get(), std::memory_order_release);
}

bool PressureMonitor::under_pressure(double now) noexcept {
  if (due(next_look_, now, look_interval)) {
    full_.store(memory_->nearly_exhausted());
    if (stalled(now)) report_until(now + stall_window);
  }
  const bool pressed = full_.load() || now < until_.load();
  if (pressed_.exchange(pressed) != pressed && pressed)
    events_.fetch_add(1, std::memory_order_relaxed);
  return pressed;
}

void PressureMonitor::report_until(double time) noexcept {
  double until = until_.load();
  while (until < time && !until_.compare_exchange_weak(until, time)) continue;
}

// One caller at a time: those that come in between are told that it is not due.
bool PressureMonitor::stalled(double now) noexcept {
  double seconds = -1;
  for (std::size_t i = 0; seconds < 0 && i < stall_files_.size(); ++i)
    seconds = stalled_seconds(stall_files_[i].c_str());
  if (seconds < 0) return false;
  const double window = now - window_begin_.load();
  // Nobody looked for long: who knows how the stalls are spread over that time?
  const bool known = window <= stall_window + 2 * look_interval;
  const bool pressed = known && seconds - stalled_before_.load() >= stall_share * stall_window;
  if (pressed || window >= stall_window) {
    window_begin_.store(now);
    stalled_before_.store(seconds);
  }
  return pressed;
}

}  // namespace bigmem
