#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "memory_limit.hpp"

namespace bigmem {

// Whether memory runs short around this process: its control groups or the machine are nearly
// full, or tasks wait for memory (the kernel's pressure stall information, where it has it).
//
// Any thread may ask, as often as it likes: the system is asked once in a tenth of a second, by
// reading a few files. A trigger in the stall file would say the same sooner, but closing it waits
// for a grace period of the kernel: every exit would take ten milliseconds longer. Nothing here
// blocks, allocates or enters Python.
class PressureMonitor {
 public:
  // The first of the `stall_files` that can be read is looked at.
  PressureMonitor(std::shared_ptr<const MemoryLimit> memory, std::vector<std::string> stall_files)
      : memory_(std::move(memory)), stall_files_(std::move(stall_files)) {}
  PressureMonitor(const PressureMonitor&) = delete;
  PressureMonitor& operator=(const PressureMonitor&) = delete;

  // The one that the allocators ask. Until somebody says what to watch it knows no limit.
  static PressureMonitor& process();
  static void set_process(std::shared_ptr<PressureMonitor> monitor);

  bool under_pressure(double now) noexcept;
  // How often pressure began.
  std::uint64_t events() const noexcept { return events_.load(std::memory_order_relaxed); }
  // There is pressure until that time; also for tests.
  void report_until(double time) noexcept;
  const MemoryLimit& memory() const { return *memory_; }

 private:
  static constexpr double never = -std::numeric_limits<double>::infinity();

  bool stalled(double now) noexcept;

  const std::shared_ptr<const MemoryLimit> memory_;
  const std::vector<std::string> stall_files_;
  std::atomic<std::uint64_t> events_{0};
  std::atomic<bool> full_{false}, pressed_{false};  // by the last look; by the last answer
  std::atomic<double> until_{never};
  std::atomic<double> next_look_{never};
  // When the window began in which stalls are added up, and how many seconds there were then.
  std::atomic<double> window_begin_{never}, stalled_before_{0};
};

}  // namespace bigmem
