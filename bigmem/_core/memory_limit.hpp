#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace bigmem {

constexpr std::size_t unlimited = SIZE_MAX;

// A control group whose memory controller bounds this process.
struct ControlGroup {
  int version;  // 1 or 2
  std::string directory;
};

// What bounds the memory of this process: its control groups and the machine.
//
// Nothing is kept between calls, so limits may change, groups may vanish, the process may fork or
// close every file it has. What cannot be read is no limit. A group costs about 7 us to look at,
// 20 if it is nearly full; the machine 9.
class MemoryLimit {
 public:
  MemoryLimit(const std::vector<ControlGroup>& groups, std::string meminfo);

  // The smallest limit of all, the machine's memory included.
  std::size_t limit() const noexcept;
  // Bytes that may become resident before a limit is reached. The answer may be too low where it
  // is no less than `enough`: only a nearly full group is asked what it could drop.
  std::size_t headroom(std::size_t enough) const noexcept;
  // Whether so little is left that idle memory should not be kept.
  bool nearly_exhausted() const noexcept;

 private:
  struct Files {
    std::string limit, high, usage, stat;
    const char* droppable;  // the field of `stat` that the kernel takes back before it kills
  };

  static std::size_t limit_of(const Files& files) noexcept;
  static std::size_t headroom_of(const Files& files, std::size_t limit,
                                 std::size_t enough) noexcept;

  std::vector<Files> groups_;
  const std::string meminfo_;
};

// Memory and swap of the machine.
std::size_t physical_memory() noexcept;

// Seconds that some task has waited for memory so far, by a file of the kernel's pressure stall
// information; negative if it does not say.
double stalled_seconds(const char* path) noexcept;

// Bytes of this process's private memory that are in memory; 0 where the system does not say.
std::size_t resident_private_bytes() noexcept;

}  // namespace bigmem
