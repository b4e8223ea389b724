// Modular arithmetic on limb arrays, the policy that a Field is built on.
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

// The inner loops. Other rows (assembly on the host, carry chains on the device) offer the same
// members and slot into Arith.
template <class Limb>
struct PortableRow {
  using Wide = typename WideOf<Limb>::type;
  static constexpr int bits = 8 * sizeof(Limb);

  // t += a, where no carry leaves t
  template <int N>
  static void add(Limb* t, const Limb* a) {
    Wide sum = 0;
    for (int i = 0; i < N; ++i) {
      sum += Wide(t[i]) + a[i];
      t[i] = Limb(sum);
      sum >>= bits;
    }
  }

  // t = t - a mod q
  template <class Modulus>
  static void subtract(Limb* t, const Limb* a) {
    constexpr auto q = Montgomery<Modulus, Limb>::modulus();
    const Limb negative = difference<q.size>(t, a);
    Limb correction[q.size];
    for (int i = 0; i < q.size; ++i) correction[i] = q.v[i] & negative;
    add<q.size>(t, correction);
  }

  // t = t mod q, for t < 2 q
  template <class Modulus>
  static void reduce_once(Limb* t) {
    constexpr auto q = Montgomery<Modulus, Limb>::modulus();
    Limb u[q.size];
    for (int i = 0; i < q.size; ++i) u[i] = t[i];
    const Limb keep = difference<q.size>(u, q.v);
    // A branch would be mispredicted half the time.
    for (int i = 0; i < q.size; ++i) t[i] = u[i] ^ ((u[i] ^ t[i]) & keep);
  }

  // t += a b, where t has N + 1 limbs and no carry leaves it
  template <int N>
  static void add_product(Limb* t, const Limb* a, Limb b) {
    Limb carry = 0;
    for (int i = 0; i < N; ++i) {
      const Wide x = Wide(a[i]) * b + t[i] + carry;
      t[i] = Limb(x);
      carry = Limb(x >> bits);
    }
    t[N] += carry;
  }

  // t += q m
  template <class Modulus>
  static void add_modulus_product(Limb* t, Limb m) {
    constexpr auto q = Montgomery<Modulus, Limb>::modulus();
    add_product<q.size>(t, q.v, m);
  }

 private:
  // t -= a; a mask of ones if the difference is negative, else 0
  template <int N>
  static Limb difference(Limb* t, const Limb* a) {
    Limb borrow = 0;
    for (int i = 0; i < N; ++i) {
      const Wide x = Wide(t[i]) - a[i] - borrow;
      t[i] = Limb(x);
      borrow = Limb(x >> bits) & 1;
    }
    return Limb(0) - borrow;
  }
};

template <class LimbType, class Row>
struct Arith {
  using Limb = LimbType;
  static constexpr bool wide_products = false;

  template <class Modulus>
  static void add(Limb* out, const Limb* a, const Limb* b) {
    constexpr int size = Montgomery<Modulus, Limb>::size;
    Limb t[size];
    for (int i = 0; i < size; ++i) t[i] = a[i];
    Row::template add<size>(t, b);
    Row::template reduce_once<Modulus>(t);
    for (int i = 0; i < size; ++i) out[i] = t[i];
  }

  template <class Modulus>
  static void sub(Limb* out, const Limb* a, const Limb* b) {
    constexpr int size = Montgomery<Modulus, Limb>::size;
    Limb t[size];
    for (int i = 0; i < size; ++i) t[i] = a[i];
    Row::template subtract<Modulus>(t, b);
    for (int i = 0; i < size; ++i) out[i] = t[i];
  }

  // One step of Montgomery's reduction: t = (t + m q) / 2^bits
  template <class Modulus>
  static void reduction_row(Limb* t) {
    using M = Montgomery<Modulus, Limb>;
    constexpr Limb inverse = M::negative_inverse();
    Row::template add_modulus_product<Modulus>(t, t[0] * inverse);
    for (int i = 0; i < M::size; ++i) t[i] = t[i + 1];
    t[M::size] = 0;
  }

  // out = a b / R mod q. Coarsely integrated operand scanning (Koc, Acar and Kaliski,
  // "Analyzing and comparing Montgomery multiplication algorithms", 1996). The spare bit of the
  // modulus keeps t below 2 q between the steps, so one extra limb is enough.
  template <class Modulus>
  PROVER_CALL static void mul(Limb* out, const Limb* a, const Limb* b) {
    constexpr int size = Montgomery<Modulus, Limb>::size;
    Limb t[size + 1] = {};
    for (int i = 0; i < size; ++i) {
      Row::template add_product<size>(t, a, b[i]);
      reduction_row<Modulus>(t);
    }
    Row::template reduce_once<Modulus>(t);
    for (int i = 0; i < size; ++i) out[i] = t[i];
  }

  // out = a^2 / R mod q
  template <class Modulus>
  static void sqr(Limb* out, const Limb* a) {
    mul<Modulus>(out, a, a);
  }

  // out = a / R mod q, half the work of a multiplication by one
  template <class Modulus>
  static void reduce(Limb* out, const Limb* a) {
    constexpr int size = Montgomery<Modulus, Limb>::size;
    Limb t[size + 1] = {};
    for (int i = 0; i < size; ++i) t[i] = a[i];
    for (int i = 0; i < size; ++i) reduction_row<Modulus>(t);
    Row::template reduce_once<Modulus>(t);
    for (int i = 0; i < size; ++i) out[i] = t[i];
  }
};

template <class Limb>
using Portable = Arith<Limb, PortableRow<Limb>>;

}  // namespace prover
