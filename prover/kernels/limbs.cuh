// Fixed-size little-endian integers and what the compiler must compute from a modulus.
//
// The kernels are compiled twice: by the host compiler, mostly with 64-bit limbs, and by NVRTC
// (option -default-device) with 32-bit limbs. They therefore include no standard header, and
// constants come from constexpr functions, because device code cannot take the address of a
// static constexpr array.
#pragma once

// Multiplications stay calls on the device: with all of them inlined, NVRTC takes minutes for the
// laws of one group. The host compiler decides by itself.
#ifdef __CUDACC_RTC__
#define PROVER_CALL __noinline__
#else
#define PROVER_CALL
#endif

// Register arrays must be indexed by constants.
#ifdef __CUDA_ARCH__
#define PROVER_UNROLL _Pragma("unroll")
#define PROVER_NO_UNROLL _Pragma("unroll 1")
#else
#define PROVER_UNROLL
#define PROVER_NO_UNROLL
#endif

namespace prover {

using u8 = unsigned char;
using u32 = unsigned int;
using u64 = unsigned long long;

template <class Limb, int N>
struct Limbs {
  static constexpr int size = N;
  static constexpr int bits = 8 * sizeof(Limb);
  Limb v[N];

#ifndef __CUDACC_RTC__
  // Copied limb by limb: host compilers copy such a struct through vector registers, and the loads
  // then wait for the limb-wide stores that wrote it (measured: Fp2 multiplication 1.3 to 1.6 times
  // slower). On the device, only what is trivial to copy is passed in registers.
  Limbs() = default;
  constexpr Limbs(const Limbs& other) : v{} { *this = other; }
  constexpr Limbs& operator=(const Limbs& other) {
    for (int i = 0; i < N; ++i) v[i] = other.v[i];
    return *this;
  }
#endif

  constexpr bool operator==(const Limbs& other) const {
    Limb difference = 0;
    for (int i = 0; i < N; ++i) difference |= v[i] ^ other.v[i];
    return difference == 0;
  }

  constexpr bool is_zero() const {
    Limb all = 0;
    for (int i = 0; i < N; ++i) all |= v[i];
    return all == 0;
  }

  constexpr bool operator<(const Limbs& other) const {
    for (int i = N - 1; i > 0; --i)
      if (v[i] != other.v[i]) return v[i] < other.v[i];
    return v[0] < other.v[0];
  }

  constexpr bool bit(int i) const { return (v[i / bits] >> (i % bits)) & 1; }

  // this -= other, modulo 2^(bits N)
  constexpr void subtract(const Limbs& other) {
    Limb borrow = 0;
    for (int i = 0; i < N; ++i) {
      const Limb difference = v[i] - other.v[i];
      const Limb next = (v[i] < other.v[i]) | (difference < borrow);
      v[i] = difference - borrow;
      borrow = next;
    }
  }

  constexpr void halve() {
    for (int i = 0; i < N; ++i) v[i] = (v[i] >> 1) | (i + 1 < N ? v[i + 1] << (bits - 1) : Limb(0));
  }

  // this = 2 this mod q, for this < q < 2^(bits N - 1)
  constexpr void double_modulo(const Limbs& q) {
    for (int i = N - 1; i >= 0; --i)
      v[i] = (v[i] << 1) | (i > 0 ? v[i - 1] >> (bits - 1) : Limb(0));
    if (!(*this < q)) subtract(q);
  }
};

// What Montgomery arithmetic needs of a modulus, derived at compile time. A Modulus has
// `words`, its length in 64-bit words, and `word(i)`, its constexpr little-endian words.
template <class Modulus, class Limb>
struct Montgomery {
  static constexpr int bits = 8 * sizeof(Limb);
  static constexpr int size = Modulus::words * 64 / bits;
  using Value = Limbs<Limb, size>;

  static constexpr Value from_words(u64 (*word)(int)) {
    Value x{};
    for (int i = 0; i < size; ++i) x.v[i] = Limb(word(i * bits / 64) >> (i * bits % 64));
    return x;
  }

  static constexpr Value modulus() { return from_words(Modulus::word); }

  // 2^exponent mod q
  static constexpr Value power_of_two(int exponent) {
    Value x{};
    x.v[0] = 1;
    for (int i = 0; i < exponent; ++i) x.double_modulo(modulus());
    return x;
  }

  static constexpr Value r() { return power_of_two(bits * size); }
  static constexpr Value r_squared() { return power_of_two(2 * bits * size); }

  // -q^-1 mod 2^bits; each Newton step doubles the number of correct low bits
  static constexpr Limb negative_inverse() {
    const Limb q = modulus().v[0];
    Limb x = q;
    for (int correct = 3; correct < bits; correct *= 2) x *= Limb(2) - q * x;
    return Limb(0) - x;
  }

  static_assert((modulus().v[0] & 1) == 1, "Montgomery form wants an odd modulus");
  static_assert(!modulus().bit(bits * size - 1), "the arithmetic uses one spare bit");
};

}  // namespace prover
