#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace bigmem {

// A block between inaccessible pages, as the fault handler reads it: at any moment and without a
// lock. The texts are part of it, so that nothing it points to can be freed meanwhile.
struct GuardedRange {
  // From the lower guard to the upper one, both included. Zero while the record is free.
  std::atomic<std::uintptr_t> begin{0}, end{0};
  std::uintptr_t address = 0;  // of the block
  std::size_t nbytes = 0;
  std::atomic<bool> released{false};
  char name[64];  // of the allocator; these three end in NUL
  char allocated_at[1024];
  char released_at[1024];
  GuardedRange* next_free = nullptr;
};

// Records live for ever and are used again. Guarded by the GIL. Null where there is no memory.
GuardedRange* take_record() noexcept;
void give_record(GuardedRange* record) noexcept;

// Makes faults in guarded ranges print a report before the process dies of them as it would have.
// Takes its place in front of whatever handler has come since the last call.
void watch_faults() noexcept;

}  // namespace bigmem
