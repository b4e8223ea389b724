// From scalars to digits: scalars 0 are dropped, 1 and -1 listed apart, the others (the dense ones)
// cut into signed digits.
#pragma once

#include "device.cuh"
#include "msm.cuh"

namespace prover {

// Marks the index of a point that is to be negated.
constexpr u32 sign_bit = u32(1) << 31;

constexpr u32 classify_threads = 256;
constexpr u32 classify_tile = 8 * classify_threads;  // scalars a block

// Lists the indices of the dense scalars and those of the ones, in no particular order;
// counts[0] and counts[1] are their lengths, 0 before. One block a tile.
template <class Fr>
void classify(const typename Fr::Integer* scalars, u32 n, u32* dense, u32* ones, u32* counts) {
  __shared__ u32 list[2][classify_tile];
  __shared__ u32 length[2], base[2];
  typename Fr::Integer one{};
  one.v[0] = 1;
  if (threadIdx.x < 2) length[threadIdx.x] = 0;
  __syncthreads();
  for (u32 k = threadIdx.x; k < classify_tile; k += classify_threads) {
    u32 index = blockIdx.x * classify_tile + k;
    int kind = -1;
    if (index < n) {
      auto scalar = load_wide(scalars + index);
      if (!scalar.is_zero()) {
        if (make_small<Fr>(scalar)) index |= sign_bit;
        kind = scalar == one;
      }
    }
    for (int i = 0; i < 2; ++i) {
      const u32 of_kind = __ballot_sync(whole_warp, kind == i);
      u32 at = 0;
      if (lane() == 0 && of_kind != 0) at = atomicAdd(&length[i], u32(__popc(of_kind)));
      at = __shfl_sync(whole_warp, at, 0);
      if (kind == i) list[i][at + __popc(of_kind & lanes_below())] = index;
    }
  }
  __syncthreads();
  if (threadIdx.x < 2) base[threadIdx.x] = atomicAdd(&counts[threadIdx.x], length[threadIdx.x]);
  __syncthreads();
  for (int i = 0; i < 2; ++i)
    for (u32 k = threadIdx.x; k < length[i]; k += classify_threads)
      (i == 0 ? dense : ones)[base[i] + k] = list[i][k];
}

// codes[window count + i] = |digit|, and the sign bit if the point is to be negated, for the i-th
// of `count` dense scalars. One thread a scalar.
template <class Fr>
void cut(const typename Fr::Integer* scalars, const u32* dense, u32 count, Windows<Fr> windows,
         u32* codes) {
  const u32 i = thread_of_grid();
  if (i >= count) return;
  auto scalar = load_wide(scalars + (dense[i] & ~sign_bit));
  const bool negated = make_small<Fr>(scalar);
  recode<Fr>(scalar, windows, [&](int window, int digit) {
    const u32 sign = (digit < 0) != negated ? sign_bit : 0;
    codes[u64(window) * count + i] = digit == 0 ? 0 : u32(digit < 0 ? -digit : digit) | sign;
  });
}

}  // namespace prover
