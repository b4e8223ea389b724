// What the kernels of the device share. tests/kernels runs the same kernels on the host.
#pragma once

#include "wide.cuh"

namespace prover {

constexpr u32 whole_warp = 0xffffffff;
constexpr u32 warp_size = 32;

inline u32 lane() { return threadIdx.x % warp_size; }
inline u32 lanes_below() { return (u32(1) << lane()) - 1; }
inline u32 thread_of_grid() { return blockIdx.x * blockDim.x + threadIdx.x; }

}  // namespace prover
