#include "arena.hpp"

namespace bigmem {

bool attach_fence(const Fences* fences, std::uintptr_t address, Fences::Fence* fence) noexcept {
  return Reclaimer::attach(fences, address, fence);
}

}  // namespace bigmem
