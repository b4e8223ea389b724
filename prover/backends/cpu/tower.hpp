// The tower Fp2 - Fp6 - Fp12 of pairing-friendly curves of embedding degree 12:
// Fp6 = Fp2[v] / (v^3 - xi), Fp12 = Fp6[w] / (w^2 - v), so that w^6 = xi.
//
// Formulas: Devegili, O hEigeartaigh, Scott and Dahab, "Multiplication and squaring on
// pairing-friendly fields", 2006.
#pragma once

#include <array>
#include <utility>

#include "fp2.cuh"

namespace prover {

// Curve gives the types Fq and Fq2 and the product of an Fq2 element and xi.
template <class Curve>
struct Fp6 {
  using Fp2 = typename Curve::Fq2;
  Fp2 c0, c1, c2;

  static Fp6 zero() { return {Fp2::zero(), Fp2::zero(), Fp2::zero()}; }
  static Fp6 one() { return {Fp2::one(), Fp2::zero(), Fp2::zero()}; }

  friend Fp6 operator+(const Fp6& a, const Fp6& b) {
    return {a.c0 + b.c0, a.c1 + b.c1, a.c2 + b.c2};
  }
  friend Fp6 operator-(const Fp6& a, const Fp6& b) {
    return {a.c0 - b.c0, a.c1 - b.c1, a.c2 - b.c2};
  }
  Fp6 operator-() const { return {-c0, -c1, -c2}; }
  friend bool operator==(const Fp6& a, const Fp6& b) {
    return a.c0 == b.c0 && a.c1 == b.c1 && a.c2 == b.c2;
  }

  friend Fp6 operator*(const Fp6& a, const Fp6& b) {
    const Fp2 p0 = a.c0 * b.c0, p1 = a.c1 * b.c1, p2 = a.c2 * b.c2;
    return {p0 + Curve::times_nonresidue((a.c1 + a.c2) * (b.c1 + b.c2) - p1 - p2),
            (a.c0 + a.c1) * (b.c0 + b.c1) - p0 - p1 + Curve::times_nonresidue(p2),
            (a.c0 + a.c2) * (b.c0 + b.c2) - p0 - p2 + p1};
  }

  // Times b0 + b1 v.
  Fp6 times_linear(const Fp2& b0, const Fp2& b1) const {
    const Fp2 p0 = c0 * b0, p1 = c1 * b1;
    return {p0 + Curve::times_nonresidue(c2 * b1), (c0 + c1) * (b0 + b1) - p0 - p1, c2 * b0 + p1};
  }

  friend Fp6 operator*(const Fp6& a, const Fp2& b) { return {a.c0 * b, a.c1 * b, a.c2 * b}; }
  Fp6 times_v() const { return {Curve::times_nonresidue(c2), c0, c1}; }

  // The norm to Fp2, by the adjugate.
  Fp6 inverse() const {
    const Fp2 t0 = c0.squared() - Curve::times_nonresidue(c1 * c2);
    const Fp2 t1 = Curve::times_nonresidue(c2.squared()) - c0 * c1;
    const Fp2 t2 = c1.squared() - c0 * c2;
    const Fp2 norm = c0 * t0 + Curve::times_nonresidue(c2 * t1 + c1 * t2);
    return Fp6{t0, t1, t2} * norm.inverse();
  }
};

template <class Curve>
struct Fp12 {
  using Fp2 = typename Curve::Fq2;
  using Half = Fp6<Curve>;
  Half c0, c1;

  static Fp12 one() { return {Half::one(), Half::zero()}; }

  friend bool operator==(const Fp12& a, const Fp12& b) { return a.c0 == b.c0 && a.c1 == b.c1; }

  friend Fp12 operator*(const Fp12& a, const Fp12& b) {
    const Half p0 = a.c0 * b.c0, p1 = a.c1 * b.c1;
    return {p0 + p1.times_v(), (a.c0 + a.c1) * (b.c0 + b.c1) - p0 - p1};
  }

  Fp12 squared() const {
    const Half p = c0 * c1;
    return {(c0 + c1) * (c0 + c1.times_v()) - p - p.times_v(), p + p};
  }

  // The square of an element of the cyclotomic subgroup: Granger and Scott, "Faster squaring in the
  // cyclotomic subgroup of sixth degree extensions", 2010. With s = w^3 and this = A + B w + C w^2
  // over Fp2[s], it is (3 A^2 - 2 A') + (3 s C^2 + 2 B') w + (3 B^2 - 2 C') w^2.
  Fp12 cyclotomic_squared() const {
    const auto [a0, a1] = square_over_s(c0.c0, c1.c1);
    const auto [b0, b1] = square_over_s(c1.c0, c0.c2);
    const auto [d0, d1] = square_over_s(c0.c1, c1.c2);
    auto minus = [](const Fp2& x, const Fp2& y) { return x + (x - y) + (x - y); };
    auto plus = [](const Fp2& x, const Fp2& y) { return x + (x + y) + (x + y); };
    return {{minus(a0, c0.c0), minus(b0, c0.c1), minus(d0, c0.c2)},
            {plus(Curve::times_nonresidue(d1), c1.c0), plus(a1, c1.c1), plus(b1, c1.c2)}};
  }

  // The power q^6; the inverse for elements of the cyclotomic subgroup.
  Fp12 conjugate() const { return {c0, -c1}; }

  Fp12 inverse() const {
    const Half norm = (c0 * c0 - (c1 * c1).times_v()).inverse();
    return {c0 * norm, -(c1 * norm)};
  }

  // The coefficient of w^k, k = 0 to 5.
  const Fp2& coefficient(int k) const {
    const Half& half = k % 2 ? c1 : c0;
    return k / 2 == 0 ? half.c0 : k / 2 == 1 ? half.c1 : half.c2;
  }

 private:
  // (x + y s)^2 in Fp2[s] / (s^2 - xi).
  static std::pair<Fp2, Fp2> square_over_s(const Fp2& x, const Fp2& y) {
    const Fp2 xx = x.squared(), yy = y.squared();
    return {xx + Curve::times_nonresidue(yy), (x + y).squared() - xx - yy};
  }
};

// gamma^k for gamma = xi^((q - 1) / 6) = w^(q - 1), k = 0 to 5.
template <class Curve>
std::array<typename Curve::Fq2, 6> frobenius_coefficients() {
  using Fp2 = typename Curve::Fq2;
  const Fp2 xi = Curve::times_nonresidue(Fp2::one());
  // Horner's rule over the long division of q by 6, whose remainder is 1.
  Fp2 gamma = Fp2::one();
  unsigned rest = 0;
  constexpr auto q = Curve::Fq::modulus();
  for (int bit = q.size * q.bits - 1; bit >= 0; --bit) {
    rest = 2 * rest + q.bit(bit);
    gamma = gamma.squared();
    if (rest >= 6) {
      gamma = gamma * xi;
      rest -= 6;
    }
  }
  std::array<Fp2, 6> powers;
  powers[0] = Fp2::one();
  for (int k = 1; k < 6; ++k) powers[k] = powers[k - 1] * gamma;
  return powers;
}

// The power q.
template <class Curve>
Fp12<Curve> frobenius(const Fp12<Curve>& a, const std::array<typename Curve::Fq2, 6>& gamma) {
  auto term = [&](int k) { return a.coefficient(k).conjugate() * gamma[k]; };
  return {{term(0), term(2), term(4)}, {term(1), term(3), term(5)}};
}

}  // namespace prover
