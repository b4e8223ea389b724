#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "pressure.hpp"

namespace bigmem {

// A byte limit that several sources share: fixed, or a share of the memory that this process may
// use. Charged before memory may become resident, credited after it has gone back, so that the
// sum never passes the limit unless the limit itself is lowered.
class Budget {
 public:
  // A `percent` above 0 makes it that share of what PressureMonitor::process() knows as the limit,
  // read again when it changes; `limit` is not looked at then.
  Budget(std::size_t limit, double percent) : percent_(percent), limit_(limit) {
    if (percent_ > 0) next_look_.store(0);
    refresh();
  }

  bool charge(std::size_t nbytes) {
    const std::size_t limit = limit_.load(std::memory_order_relaxed);
    std::size_t used = used_.load(std::memory_order_relaxed);
    do {
      if (nbytes > limit || used > limit - nbytes) return false;
    } while (!used_.compare_exchange_weak(used, used + nbytes, std::memory_order_relaxed));
    return true;
  }
  void credit(std::size_t nbytes) { used_.fetch_sub(nbytes, std::memory_order_relaxed); }
  std::size_t limit() const { return limit_.load(std::memory_order_relaxed); }
  std::size_t used() const { return used_.load(std::memory_order_relaxed); }
  // The limit was lowered below what is in use: not even warm memory may be handed out.
  bool exceeded() const { return used() > limit(); }

  // For every allocation: one comparison of the clock, and once a second a look at the system.
  // False when a pressure event wants to be told first.
  bool attend(double now) noexcept {
    if (now >= next_look_.load(std::memory_order_relaxed)) look(now);
    return !event_waits();
  }
  // Another limit from now on; not for a share, which would be read again.
  void set_limit(std::size_t limit) noexcept { limit_.store(limit, std::memory_order_relaxed); }
  // Reads the limit again if it is a share.
  void refresh() noexcept {
    if (percent_ <= 0) return;
    std::size_t limit = PressureMonitor::process().memory().limit();
    if (limit != unlimited)
      limit = static_cast<std::size_t>(static_cast<double>(limit) * percent_ / 100);
    limit_.store(limit, std::memory_order_relaxed);
  }

  // From now on somebody wants to know of pressure events.
  void listen() noexcept {
    if (listening_.load()) return;
    heard_.store(PressureMonitor::process().events());
    listening_.store(true);
    next_look_.store(0);
  }
  // True for one caller after each event.
  bool hear() noexcept {
    std::uint64_t heard = heard_.load();
    const std::uint64_t events = PressureMonitor::process().events();
    return listening_.load() && heard != events && heard_.compare_exchange_strong(heard, events);
  }

 private:
  static constexpr double never = std::numeric_limits<double>::infinity();
  static constexpr double look_interval = 1;

  void look(double now) noexcept {
    next_look_.store(now + look_interval, std::memory_order_relaxed);
    refresh();
    if (listening_.load()) PressureMonitor::process().under_pressure(now);
  }
  bool event_waits() const noexcept {
    return listening_.load(std::memory_order_relaxed) &&
           heard_.load(std::memory_order_relaxed) != PressureMonitor::process().events();
  }

  const double percent_;
  std::atomic<std::size_t> limit_;
  std::atomic<std::size_t> used_{0};
  std::atomic<double> next_look_{never};
  std::atomic<bool> listening_{false};
  std::atomic<std::uint64_t> heard_{0};
};

}  // namespace bigmem
