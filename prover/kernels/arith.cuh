// Portable modular arithmetic on limb arrays, the policy that a Field is built on.
//
// Another policy (assembly on the host, carry chains on the device) offers the same members.
#pragma once

#include "limbs.cuh"

namespace prover {

template <class Limb>
struct WideOf;
template <>
struct WideOf<u32> {
  using type = u64;
};
#ifndef __CUDACC_RTC__
template <>
struct WideOf<u64> {
  using type = unsigned __int128;
};
#endif

template <class LimbType>
struct Portable {
  using Limb = LimbType;
  using Wide = typename WideOf<Limb>::type;
  static constexpr int bits = 8 * sizeof(Limb);

  // out = t - q if that is not negative, else t, for t < 2 q
  template <class Modulus>
  static void reduce_once(Limb* out, const Limb* t) {
    using M = Montgomery<Modulus, Limb>;
    constexpr auto q = M::modulus();
    Limb u[M::size];
    Limb borrow = 0;
    for (int i = 0; i < M::size; ++i) {
      const Wide x = Wide(t[i]) - q.v[i] - borrow;
      u[i] = Limb(x);
      borrow = Limb(x >> bits) & 1;
    }
    for (int i = 0; i < M::size; ++i) out[i] = borrow ? t[i] : u[i];
  }

  template <class Modulus>
  static void add(Limb* out, const Limb* a, const Limb* b) {
    constexpr int size = Montgomery<Modulus, Limb>::size;
    Limb t[size];
    Wide sum = 0;
    for (int i = 0; i < size; ++i) {
      sum += Wide(a[i]) + b[i];
      t[i] = Limb(sum);
      sum >>= bits;
    }
    reduce_once<Modulus>(out, t);
  }

  template <class Modulus>
  static void sub(Limb* out, const Limb* a, const Limb* b) {
    using M = Montgomery<Modulus, Limb>;
    constexpr auto q = M::modulus();
    Limb borrow = 0;
    Limb t[M::size];
    for (int i = 0; i < M::size; ++i) {
      const Wide x = Wide(a[i]) - b[i] - borrow;
      t[i] = Limb(x);
      borrow = Limb(x >> bits) & 1;
    }
    const Limb mask = Limb(0) - borrow;
    Wide sum = 0;
    for (int i = 0; i < M::size; ++i) {
      sum += Wide(t[i]) + (q.v[i] & mask);
      out[i] = Limb(sum);
      sum >>= bits;
    }
  }

  // t += a b, where t has one limb more than a and no carry leaves it
  template <int N>
  static void row(Limb* t, const Limb* a, Limb b) {
    Limb carry = 0;
    for (int i = 0; i < N; ++i) {
      const Wide x = Wide(a[i]) * b + t[i] + carry;
      t[i] = Limb(x);
      carry = Limb(x >> bits);
    }
    t[N] += carry;
  }

  // One step of Montgomery's reduction: t = (t + m q) / 2^bits
  template <class Modulus>
  static void reduction_row(Limb* t) {
    using M = Montgomery<Modulus, Limb>;
    constexpr auto q = M::modulus();
    constexpr Limb inverse = M::negative_inverse();
    row<M::size>(t, q.v, t[0] * inverse);
    for (int i = 0; i < M::size; ++i) t[i] = t[i + 1];
    t[M::size] = 0;
  }

  // out = a b / R mod q. Coarsely integrated operand scanning (Koc, Acar and Kaliski,
  // "Analyzing and comparing Montgomery multiplication algorithms", 1996). The spare bit of the
  // modulus keeps t below 2 q between the steps, so one extra limb is enough.
  template <class Modulus>
  static void mul(Limb* out, const Limb* a, const Limb* b) {
    constexpr int size = Montgomery<Modulus, Limb>::size;
    Limb t[size + 1] = {};
    for (int i = 0; i < size; ++i) {
      row<size>(t, a, b[i]);
      reduction_row<Modulus>(t);
    }
    reduce_once<Modulus>(out, t);
  }

  // out = a / R mod q, half the work of a multiplication by one
  template <class Modulus>
  static void reduce(Limb* out, const Limb* a) {
    constexpr int size = Montgomery<Modulus, Limb>::size;
    Limb t[size + 1] = {};
    for (int i = 0; i < size; ++i) t[i] = a[i];
    for (int i = 0; i < size; ++i) reduction_row<Modulus>(t);
    reduce_once<Modulus>(out, t);
  }
};

}  // namespace prover
