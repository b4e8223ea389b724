// The quadratic extension F[u] / (u^2 + 1), for both curves: -1 is no square modulo either q.
#pragma once

#include "field.cuh"

namespace prover {

template <class F>
struct Fp2 {
  using Base = F;
  static constexpr int bytes = 2 * F::bytes;

  F c0, c1;

  static Fp2 zero() { return {F::zero(), F::zero()}; }
  static Fp2 one() { return {F::one(), F::zero()}; }

  bool is_zero() const { return c0.is_zero() && c1.is_zero(); }
  friend bool operator==(const Fp2& a, const Fp2& b) { return a.c0 == b.c0 && a.c1 == b.c1; }
  friend bool operator!=(const Fp2& a, const Fp2& b) { return !(a == b); }

  friend Fp2 operator+(const Fp2& a, const Fp2& b) { return {a.c0 + b.c0, a.c1 + b.c1}; }
  friend Fp2 operator-(const Fp2& a, const Fp2& b) { return {a.c0 - b.c0, a.c1 - b.c1}; }
  Fp2 operator-() const { return {-c0, -c1}; }

  friend Fp2 operator*(const Fp2& a, const Fp2& b) { return multiply(a, b); }
  friend Fp2 operator*(const Fp2& a, const F& b) { return {a.c0 * b, a.c1 * b}; }

  Fp2 squared() const { return square(*this); }
  Fp2 twice() const { return {c0.twice(), c1.twice()}; }
  Fp2 conjugate() const { return {c0, -c1}; }

  // (c0 - c1 u) / (c0^2 + c1^2), and 0 for 0
  Fp2 inverse() const {
    const F scale = (c0.squared() + c1.squared()).inverse();
    return {c0 * scale, -(c1 * scale)};
  }

 private:
  // What is called on the device takes its operands by value: so they stay in registers.
#ifdef __CUDACC_RTC__
  using Operand = Fp2;
#else
  using Operand = const Fp2&;
#endif

  // Karatsuba: three multiplications
  PROVER_CALL static Fp2 multiply(Operand a, Operand b) {
    if constexpr (F::Arith::wide_products) return multiply_wide(a, b);
    const F low = a.c0 * b.c0;
    const F high = a.c1 * b.c1;
    return {low - high, (a.c0 + a.c1) * (b.c0 + b.c1) - low - high};
  }

  // (c0 + c1)(c0 - c1) + 2 c0 c1 u
  PROVER_CALL static Fp2 square(Operand a) {
    return {(a.c0 + a.c1) * (a.c0 - a.c1), (a.c0 * a.c1).twice()};
  }

  // Karatsuba with two reductions: what they take stays below q R, as the sums of two coordinates
  // are below 2 q and q is below R / 4.
  static Fp2 multiply_wide(const Fp2& a, const Fp2& b) {
    using Arith = typename F::Arith;
    using Modulus = typename F::Modulus;
    constexpr int n = F::limbs;
    typename F::Limb left[n], right[n], low[2 * n], high[2 * n], cross[2 * n];
    Arith::template add_plain<n>(left, a.c0.value.v, a.c1.value.v);
    Arith::template add_plain<n>(right, b.c0.value.v, b.c1.value.v);
    Arith::template mul_wide<n>(cross, left, right);
    Arith::template mul_wide<n>(low, a.c0.value.v, b.c0.value.v);
    Arith::template mul_wide<n>(high, a.c1.value.v, b.c1.value.v);
    Arith::template sub_plain<2 * n>(cross, cross, low);
    Arith::template sub_plain<2 * n>(cross, cross, high);
    const auto negative = Arith::template sub_plain<2 * n>(low, low, high);
    Arith::template add_masked_modulus<Modulus>(low + n, low + n, negative);
    Fp2 out;
    Arith::template reduce_wide<Modulus>(out.c0.value.v, low);
    Arith::template reduce_wide<Modulus>(out.c1.value.v, cross);
    return out;
  }
};

}  // namespace prover
