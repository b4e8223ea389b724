// Points of y^2 = x^3 + b over F, which is a prime field (G1) or its extension (G2).
//
// Formulas: the "XYZZ coordinates for short Weierstrass curves" of the Explicit-Formulas Database
// (hyperelliptic.org/EFD), for a = 0, completed here for infinity, doubling and inverse points.
#pragma once

#include "fp2.cuh"

namespace prover {

// Infinity is (0, 0): that is on neither curve, as b is not zero.
template <class F>
struct Affine {
  static constexpr int bytes = 2 * F::bytes;
  F x, y;

  static Affine infinity() { return {F::zero(), F::zero()}; }
  bool is_infinity() const { return x.is_zero() && y.is_zero(); }
  Affine operator-() const { return {x, -y}; }
};

// x = X / ZZ, y = Y / ZZZ, ZZ^3 = ZZZ^2; infinity has ZZ = 0.
template <class F>
struct Xyzz {
  F x, y, zz, zzz;

  static Xyzz infinity() { return {F::zero(), F::zero(), F::zero(), F::zero()}; }
  static Xyzz from_affine(const Affine<F>& p) {
    if (p.is_infinity()) return infinity();
    return {p.x, p.y, F::one(), F::one()};
  }
  bool is_infinity() const { return zz.is_zero(); }
  Xyzz operator-() const { return {x, -y, zz, zzz}; }

  Affine<F> to_affine() const {
    if (is_infinity()) return Affine<F>::infinity();
    const F inverse_zzz = zzz.inverse();
    const F inverse_z = zz * inverse_zzz;
    return {x * inverse_z.squared(), y * inverse_zzz};
  }

  // mdbl-2008-s-1
  static Xyzz twice(const Affine<F>& p) {
    if (p.is_infinity()) return infinity();
    const F u = p.y.twice();
    const F v = u.squared();
    const F w = u * v;
    const F s = p.x * v;
    const F xx = p.x.squared();
    const F m = xx.twice() + xx;
    const F x3 = m.squared() - s.twice();
    return {x3, m * (s - x3) - w * p.y, v, w};
  }

  // dbl-2008-s-1; infinity stays infinity, as ZZ is multiplied
  Xyzz twice() const {
    const F u = y.twice();
    const F v = u.squared();
    const F w = u * v;
    const F s = x * v;
    const F xx = x.squared();
    const F m = xx.twice() + xx;
    const F x3 = m.squared() - s.twice();
    return {x3, m * (s - x3) - w * y, v * zz, w * zzz};
  }

  // madd-2008-s
  Xyzz operator+(const Affine<F>& q) const {
    if (q.is_infinity()) return *this;
    if (is_infinity()) return from_affine(q);
    const F p = q.x * zz - x;
    const F r = q.y * zzz - y;
    if (p.is_zero()) return r.is_zero() ? twice(q) : infinity();
    const F pp = p.squared();
    const F ppp = p * pp;
    const F t = x * pp;
    const F x3 = r.squared() - ppp - t.twice();
    return {x3, r * (t - x3) - y * ppp, zz * pp, zzz * ppp};
  }

  // add-2008-s
  Xyzz operator+(const Xyzz& q) const {
    if (q.is_infinity()) return *this;
    if (is_infinity()) return q;
    const F u1 = x * q.zz;
    const F s1 = y * q.zzz;
    const F p = q.x * zz - u1;
    const F r = q.y * zzz - s1;
    if (p.is_zero()) return r.is_zero() ? twice() : infinity();
    const F pp = p.squared();
    const F ppp = p * pp;
    const F t = u1 * pp;
    const F x3 = r.squared() - ppp - t.twice();
    return {x3, r * (t - x3) - s1 * ppp, zz * q.zz * pp, zzz * q.zzz * ppp};
  }
};

// scalar p by doubling and adding; `Integer` is a Limbs
template <class F, class Integer>
Xyzz<F> multiply(const Affine<F>& p, const Integer& scalar) {
  Xyzz<F> sum = Xyzz<F>::infinity();
  for (int i = Integer::size * Integer::bits - 1; i >= 0; --i) {
    sum = sum.twice();
    if (scalar.bit(i)) sum = sum + p;
  }
  return sum;
}

}  // namespace prover
