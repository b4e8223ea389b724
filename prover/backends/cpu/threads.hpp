// All cores for one call: threads are made for it and joined before it returns.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <system_error>
#include <thread>
#include <vector>

namespace prover {

// Number of cores this process may run on
inline int available_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  const unsigned cores = std::thread::hardware_concurrency();  // more than cpu_set_t can hold
  return cores > 0 ? int(cores) : 1;
}

// 0 means every available core
inline int resolve_threads(int threads) { return threads > 0 ? threads : available_cores(); }

// Calls work(task, thread) for each task below `tasks`, in any order, `thread` below `threads`.
// The caller works too; where no more threads can be had, fewer do all the work.
template <class Work>
void parallel_for(int threads, std::size_t tasks, Work&& work) {
  std::atomic<std::size_t> next{0};
  const auto run = [&](int thread) {
    for (std::size_t task; (task = next.fetch_add(1)) < tasks;) work(task, thread);
  };
  std::vector<std::thread> helpers;
  try {
    for (int i = 1; i < threads && std::size_t(i) < tasks; ++i) helpers.emplace_back(run, i);
  } catch (const std::system_error&) {
  }
  run(0);
  for (std::thread& helper : helpers) helper.join();
}

struct Range {
  std::size_t begin, end;
};

// Calls work(range, thread) on pieces of [0, n), a few for each thread, none shorter than `grain`
// but the last
template <class Work>
void parallel_ranges(int threads, std::size_t n, std::size_t grain, Work&& work) {
  const std::size_t pieces = std::size_t(threads) * 4;
  const std::size_t length = n / pieces + 1 > grain ? n / pieces + 1 : grain;
  parallel_for(threads, (n + length - 1) / length, [&](std::size_t task, int thread) {
    const std::size_t begin = task * length;
    work(Range{begin, begin + length < n ? begin + length : n}, thread);
  });
}

// The first i < n for which bad(i), or -1
template <class Bad>
std::ptrdiff_t find_first(int threads, std::size_t n, std::size_t grain, Bad&& bad) {
  std::atomic<std::size_t> first{n};
  parallel_ranges(threads, n, grain, [&](Range range, int) {
    for (std::size_t i = range.begin; i < range.end && i < first.load(); ++i) {
      if (!bad(i)) continue;
      std::size_t known = first.load();
      while (i < known && !first.compare_exchange_weak(known, i)) {
      }
      return;
    }
  });
  return first.load() < n ? std::ptrdiff_t(first.load()) : -1;
}

}  // namespace prover
