#pragma once

#include <cstddef>
#include <cstdint>

namespace bigmem {

// Pages of a range that are in memory, or were and are swapped out.
struct Resident {
  std::uint64_t small = 0;  // of 4 KiB
  std::uint64_t huge = 0;   // of 2 MiB, in parts of the range as wholes

  Resident& operator+=(const Resident& other) {
    small += other.small;
    huge += other.huge;
    return *this;
  }
};

// Looks at which pages of this process are in memory. No lock, no allocation, no Python.
class Residency {
 public:
  Residency();
  ~Residency();
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  // Whether the kernel tells huge pages from small ones (Linux 6.7); all count as small otherwise.
  bool tells_huge() const { return file_ >= 0; }

  // Of a mapped range; its ends are rounded inwards to whole pages.
  Resident of(std::uintptr_t address, std::size_t nbytes) noexcept;

 private:
  void open() noexcept;

  int file_ = -1;
};

}  // namespace bigmem
