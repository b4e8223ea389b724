#pragma once

#include <pthread.h>

#include <condition_variable>
#include <cstddef>
#include <mutex>

namespace bigmem {

// Writes a zero to every page of a range that is zero already, so that its first user meets no page
// faults; by several threads where there is much, since each fault of this memory takes long. The
// range may come into being meanwhile, from its beginning on.
class Touching {
 public:
  Touching(void* begin, std::size_t nbytes) noexcept;
  // The first so many bytes are there now.
  void extend(std::size_t nbytes) noexcept;
  // Returns when all that is there has been touched, with the calling thread's help.
  ~Touching();
  Touching(const Touching&) = delete;
  Touching& operator=(const Touching&) = delete;

 private:
  static constexpr std::size_t most_threads = 8;

  static void* thread_main(void* self);
  void work() noexcept;

  volatile char* const begin_;
  std::mutex mutex_;
  std::condition_variable more_;
  std::size_t there_ = 0, next_ = 0;
  bool complete_ = false;
  std::size_t started_ = 0;
  pthread_t threads_[most_threads];
};

}  // namespace bigmem
