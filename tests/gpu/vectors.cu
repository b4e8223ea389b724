// Vectors over the scalar field. The line before this file says which Curve.
#include "msm.cuh"
#include "ntt.cuh"
#include "sparse.cuh"

using namespace prover;
using F = Curve::Fr;

// Entry i of the table in bit-reversed order, n / 2 of them; one block
void fill_twiddles(F* twiddles, u32 n) {
  if (threadIdx.x == 0) twiddles[0] = F::one();
  int level = 0;
  for (u32 filled = 1; filled < n / 2; filled *= 2, ++level) {
    __syncthreads();
    const F root = root_of_unity<F>(level + 2);
    for (u32 j = threadIdx.x; j < filled; j += blockDim.x)
      twiddles[filled + j] = twiddles[j] * root;
  }
  __syncthreads();
}

// One stage of n / 2 butterflies; butterfly(x, y, block)
template <class Butterfly>
void run_stage(F* x, u32 n, int stage, Butterfly&& butterfly) {
  const u32 half = n >> (stage + 1);
  for (u32 k = threadIdx.x; k < n / 2; k += blockDim.x) {
    const u32 block = k / half;
    F* at = x + 2 * half * block + k % half;
    butterfly(at[0], at[half], block);
  }
  __syncthreads();
}

// x <- NTT(omega_2N^i iNTT(x)_i), by one block
__global__ void odd_coset(F* x, F* twiddles, int log) {
  const u32 n = u32(1) << log;
  fill_twiddles(twiddles, n);
  for (int stage = 0; stage < log; ++stage)
    run_stage(x, n, stage, [&](F& a, F& b, u32 block) {
      if (block == 0)
        plain_butterfly(a, b);
      else
        split_butterfly(a, b, inverse_twiddle(twiddles, block));
    });
  F inverse_n = F::one();
  for (int i = 0; i < log; ++i) inverse_n = inverse_n.twice();
  inverse_n = inverse_n.inverse();
  const F second = root_of_unity<F>(log + 1) * inverse_n;
  for (u32 i = threadIdx.x; i < n; i += blockDim.x)
    x[i] = x[i] * (i >= n / 2 && n > 1 ? twiddles[i - n / 2] * second : twiddles[i] * inverse_n);
  __syncthreads();
  for (int stage = log; stage-- > 0;)
    run_stage(x, n, stage, [&](F& a, F& b, u32 block) {
      if (block == 0)
        plain_butterfly(a, b);
      else
        merge_butterfly(a, b, twiddles[block]);
    });
}

// One thread a row of either matrix reads every term.
__global__ void sparse_product(const Term<F>* terms, u32 count, const F::Integer* witness, F* a,
                               F* b, u32 n) {
  const u32 row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= 2 * n) return;
  F sum = F::zero();
  for (u32 i = 0; i < count; ++i)
    if (terms[i].matrix == row / n && terms[i].constraint == row % n)
      sum = sum + terms[i].times(witness[terms[i].signal]);
  (row < n ? a : b)[row % n] = sum;
}

// Row i of `digits` has windows.count of them; a scalar above half the order is negated first.
__global__ void recode_all(const F::Integer* scalars, u32 n, Windows<F> windows, int* digits,
                           u32* negated) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  F::Integer scalar = scalars[i];
  negated[i] = make_small<F>(scalar);
  recode(scalar, windows,
         [&](int window, int digit) { digits[i * windows.count + window] = digit; });
}
