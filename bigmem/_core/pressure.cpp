#include "pressure.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace bigmem {
namespace {

constexpr double poll_interval = 0.01;
constexpr double look_interval = 0.1;
// Tasks stalled for 15 % of a window. Unprivileged processes may only ask for multiples of two
// seconds, and in older kernels for nothing.
constexpr const char* stall_triggers[] = {"some 150000 1000000", "some 300000 2000000"};
constexpr double stall_window = 1;

std::atomic<PressureMonitor*> current{nullptr};

// True for one caller in each interval.
bool due(std::atomic<double>& next, double now, double interval) {
  double at = next.load(std::memory_order_relaxed);
  return now >= at && next.compare_exchange_strong(at, now + interval);
}

int open_stall_trigger(const std::string& path) {
  const int file = open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return file;
  for (const char* trigger : stall_triggers)
    if (write(file, trigger, std::strlen(trigger) + 1) > 0) return file;
  close(file);
  return -1;
}

}  // namespace

PressureMonitor::PressureMonitor(std::shared_ptr<const MemoryLimit> memory,
                                 std::vector<std::string> stall_files)
    : memory_(std::move(memory)), stall_files_(std::move(stall_files)) {}

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
  PressureMonitor* previous = current.exchange(monitor.get(), std::memory_order_acq_rel);
  if (previous && previous != monitor.get()) previous->drop_trigger(unsupported);
}

void PressureMonitor::after_fork_in_child() noexcept {
  if (PressureMonitor* set = current.load()) set->drop_trigger(unopened);
}

bool PressureMonitor::under_pressure(double now) noexcept {
  if (due(next_poll_, now, poll_interval) && stalled()) report_until(now + stall_window);
  if (due(next_look_, now, look_interval)) full_.store(memory_->nearly_exhausted());
  const bool pressed = full_.load() || now < until_.load();
  if (pressed_.exchange(pressed) != pressed && pressed)
    events_.fetch_add(1, std::memory_order_relaxed);
  return pressed;
}

void PressureMonitor::report_until(double time) noexcept {
  double until = until_.load();
  while (until < time && !until_.compare_exchange_weak(until, time)) continue;
}

bool PressureMonitor::stalled() noexcept {
  if (trigger_.load() == unopened) open_trigger();
  const int file = trigger_.load();
  if (file < 0) return false;
  pollfd asked{file, POLLPRI, 0};
  if (poll(&asked, 1, 0) <= 0) return false;
  // Programs that close every file they find may have put another in its place.
  const bool ours = is_ours(file);
  if (ours && !(asked.revents & (POLLERR | POLLNVAL))) return asked.revents & POLLPRI;
  drop_trigger(unsupported);  // the group is gone
  return false;
}

void PressureMonitor::open_trigger() noexcept {
  int expected = unopened;
  if (!trigger_.compare_exchange_strong(expected, opening)) return;
  int file = -1;
  for (std::size_t i = 0; file < 0 && i < stall_files_.size(); ++i)
    file = open_stall_trigger(stall_files_[i]);
  struct stat status;
  if (file >= 0 && fstat(file, &status) == 0) {
    device_ = status.st_dev;
    inode_ = status.st_ino;
  }
  trigger_.store(file >= 0 ? file : unsupported);
}

void PressureMonitor::drop_trigger(int next) noexcept {
  const int file = trigger_.exchange(next);
  if (file >= 0 && is_ours(file)) close(file);
}

bool PressureMonitor::is_ours(int file) const noexcept {
  struct stat status;
  return fstat(file, &status) == 0 && status.st_dev == device_ && status.st_ino == inode_;
}

}  // namespace bigmem
