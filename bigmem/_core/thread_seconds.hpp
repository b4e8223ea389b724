#pragma once

namespace bigmem {

// What the calling thread has spent in allocators so far, all of them together.
struct ThreadSeconds {
  double allocate = 0, release = 0;
};

inline thread_local ThreadSeconds thread_seconds;

}  // namespace bigmem
