// Loads and stores of whole elements, 16 bytes at a time on the device.
//
// There the address must be a multiple of 16, as that of every row of an aligned array is.
#pragma once

#include "limbs.cuh"

#ifdef __CUDA_ARCH__
#define PROVER_INLINE __forceinline__
#else
#define PROVER_INLINE inline
#endif

namespace prover {

#ifdef __CUDA_ARCH__
template <class T>
PROVER_INLINE T from_quads(const uint4* quads) {
  static_assert(sizeof(T) % 16 == 0, "rows are multiples of 16 bytes");
  T x;
  u32* words = reinterpret_cast<u32*>(&x);
  PROVER_UNROLL
  for (int i = 0; i < int(sizeof(T) / 16); ++i) {
    words[4 * i] = quads[i].x;
    words[4 * i + 1] = quads[i].y;
    words[4 * i + 2] = quads[i].z;
    words[4 * i + 3] = quads[i].w;
  }
  return x;
}

template <class T>
PROVER_INLINE T load_wide(const T* from) {
  uint4 quads[sizeof(T) / 16];
  PROVER_UNROLL
  for (int i = 0; i < int(sizeof(T) / 16); ++i) quads[i] = reinterpret_cast<const uint4*>(from)[i];
  return from_quads<T>(quads);
}

// From memory that nothing writes while the kernel runs
template <class T>
PROVER_INLINE T load_constant(const T* from) {
  uint4 quads[sizeof(T) / 16];
  PROVER_UNROLL
  for (int i = 0; i < int(sizeof(T) / 16); ++i)
    quads[i] = __ldg(reinterpret_cast<const uint4*>(from) + i);
  return from_quads<T>(quads);
}

template <class T>
PROVER_INLINE void store_wide(T* to, const T& x) {
  const u32* words = reinterpret_cast<const u32*>(&x);
  PROVER_UNROLL
  for (int i = 0; i < int(sizeof(T) / 16); ++i)
    reinterpret_cast<uint4*>(to)[i] =
        make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
}
#else
template <class T>
T load_wide(const T* from) {
  return *from;
}
template <class T>
T load_constant(const T* from) {
  return *from;
}
template <class T>
void store_wide(T* to, const T& x) {
  *to = x;
}
#endif

}  // namespace prover
