// The kernels that add up points, sorted by bucket. The lines before this file say which Curve and
// which coordinate field F.
#include "reduce.cuh"

using namespace prover;

constexpr u32 add_threads = 128;
// Blocks on a multiprocessor: as many as registers allow with next to none of them spilled
constexpr int accumulate_blocks = F::bytes == 32 ? 4 : F::bytes == 96 ? 2 : 3;

extern "C" {

__global__ void __launch_bounds__(add_threads, accumulate_blocks)
    accumulate_runs(const Affine<F>* points, const u64* entries, const u32* entry_count,
                    const u32* ones, u32 ones_count, u32 ones_bucket, Xyzz<F>* buckets,
                    Xyzz<F>* heads, u32* head_buckets) {
  accumulate<F>(points, {entries, entry_count, ones, ones_count, ones_bucket}, buckets, heads,
                head_buckets);
}

__global__ void __launch_bounds__(add_threads)
    fold_heads(const Xyzz<F>* heads, const u32* head_buckets, u32 count, Xyzz<F>* buckets,
               Xyzz<F>* next_heads, u32* next_buckets) {
  fold<F>(heads, head_buckets, count, buckets, next_heads, next_buckets);
}

__global__ void __launch_bounds__(add_threads)
    reduce_buckets(const Xyzz<F>* in, u32 arrays, u32 windows, u32 size, u32 step, Xyzz<F>* out) {
  reduce_groups<F>(in, arrays, windows, size, step, out);
}

__global__ void __launch_bounds__(team_size)
    sum_windows(const Xyzz<F>* in, u32 steps, u32 first, u32 rest, Xyzz<F>* sums) {
  sum_window<F>(in, steps, first, rest, sums);
}

__global__ void __launch_bounds__(team_size)
    combine(const Xyzz<F>* sums, int windows, const Xyzz<F>* ones, Xyzz<F>* out) {
  combine_windows<F, Curve::Fr>(sums, {windows}, ones, out);
}

}  // extern "C"
