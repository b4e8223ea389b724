// Vectors over the scalar field. The lines before this file say which Curve.
#include "csr.cuh"
#include "ntt_pass.cuh"

using namespace prover;
using Fr = Curve::Fr;

// Element i of the vectors, for one thread an element
PROVER_INLINE u64 own_element() { return u64(blockIdx.x) * blockDim.x + threadIdx.x; }

// One block a tile of each of `batch` vectors that follow each other; those of the same tile, which
// read the same twiddles, are neighbours.
template <Way way>
PROVER_INLINE void run_pass(Fr* x, const Fr* twiddles, const Fr* factors, const Pass& pass,
                            u32 batch) {
  __shared__ typename Fr::Limb words[Tile<Fr>::size];
  const u32 tile = blockIdx.x / batch;
  x += u64(blockIdx.x % batch) << pass.log;
  for (int round = 0; round < rounds(way, pass); ++round) {
    if (round > 0) __syncthreads();
    run_round<way, Fr>(x, twiddles, factors, pass, tile, round, threadIdx.x, Tile<Fr>{words});
  }
}

extern "C" __global__ void __launch_bounds__(tile_threads, 4)
    split_pass(Fr* x, const Fr* twiddles, int log, int first, int stages, u32 batch) {
  run_pass<Way::split>(x, twiddles, nullptr, Pass{log, first, stages}, batch);
}

extern "C" __global__ void __launch_bounds__(tile_threads, 4)
    merge_pass(Fr* x, const Fr* twiddles, int log, int first, int stages, u32 batch) {
  run_pass<Way::merge>(x, twiddles, nullptr, Pass{log, first, stages}, batch);
}

extern "C" __global__ void __launch_bounds__(tile_threads, 4)
    turn_pass(Fr* x, const Fr* twiddles, const Fr* factors, int log, int first, int stages,
              u32 batch) {
  run_pass<Way::turn>(x, twiddles, factors, Pass{log, first, stages}, batch);
}

// The whole transform of vectors shorter than a tile, one block each
extern "C" __global__ void odd_coset_of_few(Fr* x, const Fr* twiddles, const Fr* factors, int log) {
  x += u64(blockIdx.x) << log;
  for (int step = 0; step < steps_of_few(log); ++step) {
    run_step_of_few(x, twiddles, factors, log, step, threadIdx.x, blockDim.x);
    __syncthreads();
  }
}

// Entries [filled, 2 filled) of the table of twiddles
extern "C" __global__ void extend_twiddles(Fr* twiddles, const Fr* root, u32 filled) {
  const u64 i = own_element();
  if (i < filled) store_wide(twiddles + filled + i, load_wide(twiddles + i) * *root);
}

extern "C" __global__ void multiply(const Fr* x, const Fr* y, Fr* out, u64 n) {
  const u64 i = own_element();
  if (i < n) store_wide(out + i, load_wide(x + i) * load_wide(y + i));
}

// a b - c out of Montgomery form
extern "C" __global__ void quotient(const Fr* a, const Fr* b, const Fr* c, Fr::Integer* out,
                                    u64 n) {
  const u64 i = own_element();
  if (i >= n) return;
  const Fr value = load_wide(a + i) * load_wide(b + i) - load_wide(c + i);
  store_wide(out + i, value.to_integer());
}

// a - b out of Montgomery form
extern "C" __global__ void difference(const Fr* a, const Fr* b, Fr::Integer* out, u64 n) {
  const u64 i = own_element();
  if (i < n) store_wide(out + i, (load_wide(a + i) - load_wide(b + i)).to_integer());
}

// The rows [begin, end) of the matrices and what becomes of their products: `out` is overwritten,
// or multiplied by them.
struct Target {
  u32 begin, end;
  bool times;
  Fr* out;

  PROVER_INLINE bool wants(u32 row) const { return row >= begin && row < end; }
  PROVER_INLINE void put(u32 row, const Fr& value) const {
    Fr* at = out + (row - begin);
    store_wide(at, times ? load_wide(at) * value : value);
  }
};

// One thread a row; `order` names rows of like lengths side by side.
extern "C" __global__ void short_rows(const u32* order, u32 count, const u32* starts,
                                      const Entry* entries, const Fr* coefficients,
                                      const Fr::Integer* x, Fr* out, u32 begin, u32 end,
                                      u32 times) {
  const Target target{begin, end, times != 0, out};
  const u64 i = own_element();
  if (i >= count || !target.wants(order[i])) return;
  const CompressedRows<Fr> rows{starts, entries, coefficients};
  target.put(order[i], rows.partial(order[i], 0, 1, x));
}

// One block a row
extern "C" __global__ void __launch_bounds__(long_row_threads)
    long_rows(const u32* order, const u32* starts, const Entry* entries, const Fr* coefficients,
              const Fr::Integer* x, Fr* out, u32 begin, u32 end, u32 times) {
  __shared__ Fr sums[long_row_threads];
  const Target target{begin, end, times != 0, out};
  const u32 row = order[blockIdx.x], thread = threadIdx.x;
  if (!target.wants(row)) return;
  sums[thread] =
      CompressedRows<Fr>{starts, entries, coefficients}.partial(row, thread, long_row_threads, x);
  for (u32 half = long_row_threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) sums[thread] = sums[thread] + sums[thread + half];
  }
  if (thread == 0) target.put(row, sums[0]);
}
