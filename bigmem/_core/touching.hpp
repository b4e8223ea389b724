#pragma once

#include <cstddef>

namespace bigmem {

// Writes a zero to every page of a range that is zero already, so that its first user meets no page
// faults; by several threads where there is much, since each fault of this memory takes long.
void touch_zeros(void* address, std::size_t nbytes) noexcept;

}  // namespace bigmem
