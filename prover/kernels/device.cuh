// What the kernels of the device share. tests/kernels runs the same kernels on the host.
#pragma once

#include "limbs.cuh"

namespace prover {

constexpr u32 whole_warp = 0xffffffff;
constexpr u32 warp_size = 32;

inline u32 lane() { return threadIdx.x % warp_size; }
inline u32 lanes_below() { return (u32(1) << lane()) - 1; }
inline u32 thread_of_grid() { return blockIdx.x * blockDim.x + threadIdx.x; }

struct alignas(16) Quad {
  u32 v[4];
};

// Memory is read and written 16 bytes at a time; so must the addresses be aligned.
template <class T>
T load_wide(const T* from) {
  constexpr int count = sizeof(T) / sizeof(Quad);
  static_assert(sizeof(T) % sizeof(Quad) == 0, "only whole quads can be loaded");
  Quad quads[count];
  for (int i = 0; i < count; ++i) quads[i] = reinterpret_cast<const Quad*>(from)[i];
  T out;
  memcpy(static_cast<void*>(&out), quads, sizeof(T));
  return out;
}

template <class T>
void store_wide(T* to, const T& value) {
  constexpr int count = sizeof(T) / sizeof(Quad);
  static_assert(sizeof(T) % sizeof(Quad) == 0, "only whole quads can be stored");
  Quad quads[count];
  memcpy(quads, &value, sizeof(T));
  for (int i = 0; i < count; ++i) reinterpret_cast<Quad*>(to)[i] = quads[i];
}

}  // namespace prover
