#pragma once

#include <cstdint>
#include <memory>

namespace bigmem {

// Work of another processor, a GPU, that must be over before a range changes hands. Called from
// any native thread without the GIL and under no lock; nothing here ever blocks or throws.
class Fences {
 public:
  // A moment of that work; made by guard() or by the implementation's own ways.
  struct Fence;

  virtual ~Fences() = default;

  // A moment after all that has been submitted so far, by whomever, or null when that cannot be
  // told now (as while a graph is being captured): the caller asks again later.
  virtual Fence* guard() noexcept = 0;

  // Whether it has come. When the processor has failed, it has: nothing runs there any more.
  virtual bool done(Fence* fence) noexcept = 0;

  // The fence is not needed any more, done or not.
  virtual void drop(Fence* fence) noexcept = 0;
};

// Keeps the live block that contains the address from reuse and reclaim, once released, until the
// fence is done; takes the fence over. False, and the fence is still the caller's, where no arena
// that goes by these fences has a live block there.
bool attach_fence(const Fences* fences, std::uintptr_t address, Fences::Fence* fence) noexcept;

}  // namespace bigmem
