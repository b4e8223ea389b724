// The kernels of the device's multi-scalar multiplication, run by the emulator. CURVE_HEADER,
// CURVE_CLASS and FIELD are macros of the compilation.
#include "emulator.hpp"
#include CURVE_HEADER
#include "ptx.cuh"

using Curve = prover::CURVE_CLASS<prover::Ptx>;
using F = Curve::FIELD;

#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "../../prover/backends/cuda/fixed_base.cu"
#include "../../prover/backends/cuda/msm.cu"
#include "../../prover/backends/cuda/sort.cu"

namespace {

// An argument as Python passes it: an address or a number
template <class T>
T decode(std::uint64_t word) {
  if constexpr (std::is_pointer_v<T>)
    return reinterpret_cast<T>(word);
  else
    return static_cast<T>(word);
}

template <class... Args, std::size_t... I>
void call(void (*kernel)(Args...), const std::uint64_t* words, std::index_sequence<I...>) {
  kernel(decode<Args>(words[I])...);
}

template <class... Args>
void launch(void (*kernel)(Args...), unsigned blocks, unsigned threads,
            const std::uint64_t* words) {
  emulator::launch(blocks, threads,
                   [=] { call(kernel, words, std::index_sequence_for<Args...>{}); });
}

thread_local std::string error;

}  // namespace

// 0, or -1 for an error whose text last_error() tells
#define KERNEL(kernel) \
  if (name == #kernel) return launch(kernel, blocks, threads, words), 0;
extern "C" int launch_kernel(const char* wanted, unsigned blocks, unsigned threads,
                             const std::uint64_t* words) try {
  const std::string name = wanted;
  KERNEL(classify_scalars)
  KERNEL(cut_scalars)
  KERNEL(count_codes)
  KERNEL(count_entries)
  KERNEL(sum_count_rows)
  KERNEL(scan_row_sums)
  KERNEL(scan_count_rows)
  KERNEL(scatter_codes)
  KERNEL(scatter_entries)
  KERNEL(accumulate_runs)
  KERNEL(fold_heads)
  KERNEL(reduce_buckets)
  KERNEL(sum_windows)
  KERNEL(combine)
  KERNEL(multiply_base)
  throw std::invalid_argument("there is no kernel " + name);
} catch (const std::exception& problem) {
  error = problem.what();
  return -1;
}
#undef KERNEL

extern "C" const char* last_error() { return error.c_str(); }
