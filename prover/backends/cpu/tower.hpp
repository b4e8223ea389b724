// The tower Fp2 - Fp6 - Fp12 of pairing-friendly curves of embedding degree 12:
// Fp6 = Fp2[v] / (v^3 - xi), Fp12 = Fp6[w] / (w^2 - v), so that w^6 = xi.
//
// Formulas: Devegili, O hEigeartaigh, Scott and Dahab, "Multiplication and squaring on
// pairing-friendly fields", 2006.
#pragma once

#include <array>
#include <cstdint>

namespace prover {

// Curve gives the types Fp and Fp2 and the product of an Fp2 element and xi.
template <class Curve>
struct Fp6 {
  using Fp2 = typename Curve::Fp2;
  Fp2 c0, c1, c2;

  static Fp6 zero() { return {Fp2::zero(), Fp2::zero(), Fp2::zero()}; }
  static Fp6 one() { return {Fp2::one(), Fp2::zero(), Fp2::zero()}; }

  friend Fp6 operator+(const Fp6& a, const Fp6& b) {
    return {a.c0 + b.c0, a.c1 + b.c1, a.c2 + b.c2};
  }
  friend Fp6 operator-(const Fp6& a, const Fp6& b) {
    return {a.c0 - b.c0, a.c1 - b.c1, a.c2 - b.c2};
  }
  friend Fp6 operator-(const Fp6& a) { return zero() - a; }
  friend bool operator==(const Fp6& a, const Fp6& b) {
    return a.c0 == b.c0 && a.c1 == b.c1 && a.c2 == b.c2;
  }

  friend Fp6 operator*(const Fp6& a, const Fp6& b) {
    const Fp2 p0 = a.c0 * b.c0, p1 = a.c1 * b.c1, p2 = a.c2 * b.c2;
    return {p0 + Curve::times_xi((a.c1 + a.c2) * (b.c1 + b.c2) - p1 - p2),
            (a.c0 + a.c1) * (b.c0 + b.c1) - p0 - p1 + Curve::times_xi(p2),
            (a.c0 + a.c2) * (b.c0 + b.c2) - p0 - p2 + p1};
  }

  // Times b0 + b1 v.
  Fp6 times_linear(const Fp2& b0, const Fp2& b1) const {
    const Fp2 p0 = c0 * b0, p1 = c1 * b1;
    return {p0 + Curve::times_xi(c2 * b1), (c0 + c1) * (b0 + b1) - p0 - p1, c2 * b0 + p1};
  }

  Fp6 times(const Fp2& b) const { return {c0 * b, c1 * b, c2 * b}; }
  Fp6 times_v() const { return {Curve::times_xi(c2), c0, c1}; }

  // The norm to Fp2, by the adjugate.
  Fp6 inverse() const {
    const Fp2 t0 = c0.square() - Curve::times_xi(c1 * c2);
    const Fp2 t1 = Curve::times_xi(c2.square()) - c0 * c1;
    const Fp2 t2 = c1.square() - c0 * c2;
    const Fp2 norm = c0 * t0 + Curve::times_xi(c2 * t1 + c1 * t2);
    return Fp6{t0, t1, t2}.times(norm.inverse());
  }
};

template <class Curve>
struct Fp12 {
  using Fp2 = typename Curve::Fp2;
  using Half = Fp6<Curve>;
  Half c0, c1;

  static Fp12 one() { return {Half::one(), Half::zero()}; }

  friend bool operator==(const Fp12& a, const Fp12& b) { return a.c0 == b.c0 && a.c1 == b.c1; }

  friend Fp12 operator*(const Fp12& a, const Fp12& b) {
    const Half p0 = a.c0 * b.c0, p1 = a.c1 * b.c1;
    return {p0 + p1.times_v(), (a.c0 + a.c1) * (b.c0 + b.c1) - p0 - p1};
  }

  Fp12 square() const {
    const Half p = c0 * c1;
    return {(c0 + c1) * (c0 + c1.times_v()) - p - p.times_v(), p + p};
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
};

// gamma^k for gamma = xi^((q - 1) / 6) = w^(q - 1), k = 0 to 5.
template <class Curve>
std::array<typename Curve::Fp2, 6> frobenius_coefficients() {
  using Fp2 = typename Curve::Fp2;
  std::array<typename Curve::Fp2, 6> powers;
  const Fp2 gamma = Curve::xi_to_sixth_of_q_minus_1();
  powers[0] = Fp2::one();
  for (int k = 1; k < 6; ++k) powers[k] = powers[k - 1] * gamma;
  return powers;
}

// The power q.
template <class Curve>
Fp12<Curve> frobenius(const Fp12<Curve>& a,
                      const std::array<typename Curve::Fp2, 6>& gamma) {
  auto term = [&](int k) { return a.coefficient(k).conjugate() * gamma[k]; };
  return {{term(0), term(2), term(4)}, {term(1), term(3), term(5)}};
}

}  // namespace prover
