#include "memory_limit.hpp"

#include <fcntl.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace bigmem {
namespace {

// Version 1 says "no limit" with the largest number of whole pages that a long can count.
constexpr std::size_t absurd = std::size_t{1} << 62;
// Shares of a group's limit, and of the machine's memory, that are kept free of idle memory.
constexpr std::size_t group_reserve = 20, machine_reserve = 33;

// `unlimited` if there is no number, or one that means no limit.
std::size_t number_at(const char* text) {
  if (*text < '0' || *text > '9') return unlimited;
  const unsigned long long number = std::strtoull(text, nullptr, 10);
  return number >= absurd ? unlimited : static_cast<std::size_t>(number);
}

// The beginning of a file; empty if it cannot be read.
class Text {
 public:
  explicit Text(const char* path) {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    for (ssize_t got; size_ < sizeof(bytes_) - 1; size_ += static_cast<std::size_t>(got))
      if ((got = pread(file, bytes_ + size_, sizeof(bytes_) - 1 - size_,
                       static_cast<off_t>(size_))) <= 0)
        break;
    close(file);
    bytes_[size_] = '\0';
  }

  const char* begin() const { return bytes_; }
  std::size_t number() const { return number_at(bytes_); }

  // The number in the line of that name, with its unit.
  std::size_t field(const char* name) const {
    const std::size_t length = std::strlen(name);
    for (const char* line = bytes_; line; line = std::strchr(line, '\n')) {
      if (*line == '\n') ++line;
      if (std::strncmp(line, name, length) != 0) continue;
      const char* value = line + length;
      if (*value != ' ' && *value != ':') continue;
      value += std::strspn(value, ": \t");
      const std::size_t number = number_at(value);
      const std::size_t end = std::strcspn(value, "\n");
      const bool kilobytes = end > 3 && std::strncmp(value + end - 3, " kB", 3) == 0;
      return kilobytes && number < absurd ? number * 1024 : number;
    }
    return unlimited;
  }

 private:
  char bytes_[8192] = {};
  std::size_t size_ = 0;
};

std::size_t less(std::size_t from, std::size_t what) { return from > what ? from - what : 0; }

}  // namespace

MemoryLimit::MemoryLimit(const std::vector<ControlGroup>& groups, std::string meminfo)
    : meminfo_(std::move(meminfo)) {
  for (const ControlGroup& group : groups) {
    const std::string at = group.directory + "/memory.";
    if (group.version == 2)
      groups_.push_back({at + "max", at + "high", at + "current", at + "stat", "inactive_file"});
    else
      groups_.push_back(
          {at + "limit_in_bytes", {}, at + "usage_in_bytes", at + "stat", "total_inactive_file"});
  }
}

std::size_t MemoryLimit::limit_of(const Files& files) noexcept {
  const std::size_t limit = Text(files.limit.c_str()).number();
  // Above this one the kernel slows the group down until it shrinks.
  return files.high.empty() ? limit : std::min(limit, Text(files.high.c_str()).number());
}

std::size_t MemoryLimit::headroom_of(const Files& files, std::size_t limit,
                                     std::size_t enough) noexcept {
  const std::size_t usage = Text(files.usage.c_str()).number();
  if (usage == unlimited) return unlimited;  // the group is gone
  const std::size_t room = less(limit, usage);
  if (room >= enough) return room;
  const std::size_t droppable = Text(files.stat.c_str()).field(files.droppable);
  return droppable == unlimited ? room : less(limit, less(usage, droppable));
}

std::size_t MemoryLimit::limit() const noexcept {
  std::size_t smallest = Text(meminfo_.c_str()).field("MemTotal");
  for (const Files& files : groups_) smallest = std::min(smallest, limit_of(files));
  return smallest;
}

std::size_t MemoryLimit::headroom(std::size_t enough) const noexcept {
  std::size_t smallest = Text(meminfo_.c_str()).field("MemAvailable");
  for (const Files& files : groups_) {
    const std::size_t limit = limit_of(files);
    if (limit != unlimited) smallest = std::min(smallest, headroom_of(files, limit, enough));
  }
  return smallest;
}

bool MemoryLimit::nearly_exhausted() const noexcept {
  for (const Files& files : groups_) {
    const std::size_t limit = limit_of(files);
    const std::size_t reserve = limit / group_reserve;
    if (limit != unlimited && headroom_of(files, limit, reserve) < reserve) return true;
  }
  const Text meminfo(meminfo_.c_str());
  const std::size_t total = meminfo.field("MemTotal");
  return total != unlimited && meminfo.field("MemAvailable") < total / machine_reserve;
}

std::size_t physical_memory() noexcept {
  struct sysinfo info;
  if (sysinfo(&info) != 0) return std::size_t{64} << 30;
  return (std::size_t{info.totalram} + info.totalswap) * info.mem_unit;
}

double stalled_seconds(const char* path) noexcept {
  const Text text(path);
  const char* total = std::strstr(text.begin(), "total=");
  if (std::strncmp(text.begin(), "some ", 5) != 0 || !total) return -1;
  return static_cast<double>(std::strtoull(total + 6, nullptr, 10)) / 1e6;
}

// Resident less shared pages: statm costs a fifth of what status does.
std::size_t resident_private_bytes() noexcept {
  unsigned long long size, resident, shared;
  const Text statm("/proc/self/statm");
  if (std::sscanf(statm.begin(), "%llu %llu %llu", &size, &resident, &shared) != 3) return 0;
  return less(resident, shared) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace bigmem
