#pragma once

namespace bigmem {

// What the calling thread has spent in allocators so far, all of them together.
struct ThreadSeconds {
  double allocate = 0, release = 0;
};

// Counted under the arenas' locks: of the memory that each thread has from its start, as memory
// that is found at a thread's first access would come from malloc.
[[gnu::tls_model("initial-exec")]] inline thread_local ThreadSeconds thread_seconds;

}  // namespace bigmem
