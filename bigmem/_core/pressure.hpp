#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "memory_limit.hpp"

namespace bigmem {

// Whether memory runs short around this process: its control groups or the machine are nearly
// full, or tasks wait for memory (the kernel's pressure stall information, where it has it).
//
// Any thread may ask, as often as it likes: the system is asked once in ten milliseconds. Nothing
// here blocks, allocates or enters Python.
class PressureMonitor {
 public:
  // `stall_files` are tried in turn until the kernel accepts a trigger in one.
  PressureMonitor(std::shared_ptr<const MemoryLimit> memory, std::vector<std::string> stall_files);
  ~PressureMonitor() { drop_trigger(unopened); }
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

  // A trigger belongs to the file that parent and child share, and whoever polls first gets the
  // event: a child opens its own.
  static void after_fork_in_child() noexcept;

 private:
  static constexpr int unopened = -1, opening = -2, unsupported = -3;

  bool stalled() noexcept;
  void open_trigger() noexcept;
  void drop_trigger(int next) noexcept;
  bool is_ours(int file) const noexcept;

  const std::shared_ptr<const MemoryLimit> memory_;
  const std::vector<std::string> stall_files_;
  std::atomic<std::uint64_t> events_{0};
  std::atomic<bool> full_{false}, pressed_{false};  // by the last look; by the last answer
  std::atomic<double> until_{-std::numeric_limits<double>::infinity()};
  std::atomic<double> next_poll_{-std::numeric_limits<double>::infinity()};
  std::atomic<double> next_look_{-std::numeric_limits<double>::infinity()};
  std::atomic<int> trigger_{unopened};
  std::atomic<dev_t> device_{0};
  std::atomic<ino_t> inode_{0};
};

}  // namespace bigmem
