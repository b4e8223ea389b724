// Runs kernels on the host: every thread of a block is a coroutine, and barriers and warp
// operations switch between them. What a kernel computes from its indices, barriers and warp
// operations is tested so; real concurrency is not.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#define __global__
#define __shared__ static
#define __launch_bounds__(...)

namespace emulator {

struct Index {
  unsigned x = 0;
};

enum class State { runs, waits_for_block, waits_for_warp, done };

// swapcontext saves the signal mask, a system call; it only starts coroutines, and jumps do the
// rest.
struct Thread {
  ucontext_t start;
  jmp_buf place;
  bool started = false;
  std::unique_ptr<char[]> stack;
  State state = State::runs;
  int operation = 0;        // which warp operation it waits in
  unsigned operations = 0;  // how many it has been in
};

constexpr unsigned warp_size = 32;
constexpr std::size_t stack_bytes = 256 << 10;

inline ucontext_t start_of_scheduler;
inline jmp_buf scheduler;
inline std::vector<Thread> threads;
inline unsigned current;
inline std::function<void()> body;
inline std::vector<unsigned> slots;  // two a thread: a value outlives the next operation's writes

}  // namespace emulator

inline emulator::Index threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

inline void wait(State state) {
  const unsigned own = current;
  threads[own].state = state;
  if (_setjmp(threads[own].place) == 0) _longjmp(scheduler, 1);
}

inline void resume(Thread& thread) {
  if (_setjmp(scheduler) != 0) return;
  if (thread.started) _longjmp(thread.place, 1);
  thread.started = true;
  swapcontext(&start_of_scheduler, &thread.start);
}

inline void run_body() {
  body();
  threads[current].state = State::done;
  _longjmp(scheduler, 1);
}

// Lets the threads `first` to `end` go on if all of them wait in the same place.
inline bool release(unsigned first, unsigned end, State state) {
  int operation = -1;
  for (unsigned i = first; i < end; ++i) {
    if (state == State::waits_for_block && threads[i].state == State::done) continue;
    if (threads[i].state != state) return false;
    if (state == State::waits_for_warp && operation >= 0 && threads[i].operation != operation)
      throw std::logic_error("lanes of a warp wait in different operations");
    operation = threads[i].operation;
  }
  for (unsigned i = first; i < end; ++i)
    if (threads[i].state == state) threads[i].state = State::runs;
  return true;
}

inline void run_block() {
  const unsigned count = blockDim.x;
  slots.assign(2 * count, 0);
  for (unsigned i = 0; i < count; ++i) {
    Thread& thread = threads[i];
    if (!thread.stack) thread.stack = std::make_unique<char[]>(stack_bytes);
    thread.state = State::runs;
    thread.operations = 0;
    thread.started = false;
    getcontext(&thread.start);
    thread.start.uc_stack.ss_sp = thread.stack.get();
    thread.start.uc_stack.ss_size = stack_bytes;
    thread.start.uc_link = &start_of_scheduler;
    makecontext(&thread.start, run_body, 0);
  }
  for (unsigned turn = 0;; ++turn) {
    bool ran = false;
    for (unsigned k = 0; k < count; ++k) {
      const unsigned i = turn % 2 == 0 ? k : count - 1 - k;  // no order is promised
      if (threads[i].state != State::runs) continue;
      ran = true;
      current = i;
      threadIdx.x = i;
      resume(threads[i]);
    }
    bool released = false;
    for (unsigned first = 0; first < count; first += warp_size)
      released |= release(first, std::min(first + warp_size, count), State::waits_for_warp);
    const bool all_done = std::all_of(threads.begin(), threads.begin() + count,
                                      [](const Thread& t) { return t.state == State::done; });
    if (all_done) return;
    if (!released) released = release(0, count, State::waits_for_block);
    if (!ran && !released) throw std::logic_error("the threads of a block wait for ever");
  }
}

template <class Kernel>
void launch(unsigned blocks, unsigned block_threads, Kernel&& kernel) {
  gridDim.x = blocks;
  blockDim.x = block_threads;
  if (threads.size() < block_threads) threads.resize(block_threads);
  body = kernel;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) run_block();
}

// The values that all lanes of the warp bring along
inline const unsigned* exchange(int operation, unsigned value, unsigned stride_slot[warp_size]) {
  const unsigned own = current;
  Thread& thread = threads[own];
  const unsigned half = thread.operations++ % 2;
  slots[2 * own + half] = value;
  thread.operation = operation;
  wait(State::waits_for_warp);
  const unsigned first = own / warp_size * warp_size;
  const unsigned lanes = std::min(warp_size, blockDim.x - first);
  for (unsigned i = 0; i < lanes; ++i) stride_slot[i] = slots[2 * (first + i) + half];
  return stride_slot;
}

}  // namespace emulator

inline void __syncthreads() { emulator::wait(emulator::State::waits_for_block); }

inline void __syncwarp() {
  unsigned values[emulator::warp_size];
  emulator::exchange(1, 0, values);
}

inline unsigned __ballot_sync(unsigned, bool predicate) {
  unsigned values[emulator::warp_size] = {};
  emulator::exchange(2, predicate, values);
  unsigned mask = 0;
  for (unsigned i = 0; i < emulator::warp_size; ++i) mask |= values[i] << i;
  return mask;
}

inline unsigned __shfl_sync(unsigned, unsigned value, unsigned from) {
  unsigned values[emulator::warp_size] = {};
  return emulator::exchange(3, value, values)[from % emulator::warp_size];
}

inline unsigned __shfl_up_sync(unsigned, unsigned value, unsigned step) {
  unsigned values[emulator::warp_size] = {};
  const unsigned lane = threadIdx.x % emulator::warp_size;
  return emulator::exchange(4, value, values)[lane >= step ? lane - step : lane];
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }

inline unsigned atomicAdd(unsigned* at, unsigned value) {
  const unsigned before = *at;
  *at += value;
  return before;
}
