// Products of ate pairings with merged Miller loops and one final exponentiation.
//
// BN254: optimal ate (Vercauteren, "Optimal pairings", 2008). BLS12-381: ate over x.
// Points and lines are affine: one inversion a step serves every pair, which is as quick as
// projective formulas for the four pairs of a proof, and one formula fits both curves.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tower.hpp"

namespace prover {

// Digits -1, 0, 1 of n from low to high, no two neighbours nonzero (Reitwiesner, 1960).
inline std::vector<int> signed_digits(unsigned __int128 n) {
  std::vector<int> digits;
  for (; n != 0; n >>= 1) {
    const int digit = n % 2 == 0 ? 0 : n % 4 == 1 ? 1 : -1;
    digits.push_back(digit);
    if (digit < 0) {
      n += 1;
    }
  }
  return digits;
}

// Replaces every element by its inverse (Montgomery's trick).
template <class Field>
void invert_all(std::vector<Field>& values) {
  std::vector<Field> before(values.size());
  Field product = Field::one();
  for (std::size_t i = 0; i < values.size(); ++i) {
    before[i] = product;
    product = product * values[i];
  }
  Field inverse = product.inverse();
  for (std::size_t i = values.size(); i-- > 0;) {
    const Field value = values[i];
    values[i] = inverse * before[i];
    inverse = inverse * value;
  }
}

template <class Curve>
class Pairing {
 public:
  using Fp = typename Curve::Fp;
  using Fp2 = typename Curve::Fp2;
  using Target = Fp12<Curve>;

  struct G1 {
    Fp x, y;
  };
  struct G2 {
    Fp2 x, y;
  };
  struct Pair {
    G1 p;
    G2 q;
  };

  Pairing() : gamma_(frobenius_coefficients<Curve>()), loop_(signed_digits(Curve::kLoop)) {}

  // The product over pairs of finite points, to the power that the curve's hard part has besides.
  Target product(const std::vector<Pair>& pairs) const {
    return final_exponentiation(miller_loop(pairs));
  }

  Target frobenius(const Target& a, int times) const {
    Target result = a;
    while (times-- > 0) result = prover::frobenius<Curve>(result, gamma_);
    return result;
  }

 private:
  std::array<Fp2, 6> gamma_;
  std::vector<int> loop_;

  Target miller_loop(const std::vector<Pair>& pairs) const {
    Target f = Target::one();
    std::vector<G2> t, q, minus_q;
    for (const Pair& pair : pairs) {
      q.push_back(pair.q);
      minus_q.push_back({pair.q.x, -pair.q.y});
    }
    t = q;
    for (std::size_t i = loop_.size() - 1; i-- > 0;) {
      f = f.square();
      double_all(f, t, pairs);
      if (loop_[i] != 0) add_all(f, t, loop_[i] > 0 ? q : minus_q, pairs);
    }
    if constexpr (Curve::kNegativeLoop) f = f.conjugate();
    if constexpr (Curve::kBarretoNaehrig) {
      for (G2& point : q) point = frobenius(point);
      add_all(f, t, q, pairs);
      for (G2& point : q) point = negate(frobenius(point));
      add_all(f, t, q, pairs);
    }
    return f;
  }

  // On the twist, whose points are (x w^2, y w^3) on the curve.
  G2 frobenius(const G2& a) const {
    return {a.x.conjugate() * gamma_[2], a.y.conjugate() * gamma_[3]};
  }
  static G2 negate(const G2& a) { return {a.x, -a.y}; }

  static void double_all(Target& f, std::vector<G2>& t, const std::vector<Pair>& pairs) {
    std::vector<Fp2> slope;
    for (const G2& a : t) slope.push_back(a.y + a.y);
    invert_all(slope);
    for (std::size_t i = 0; i < t.size(); ++i) {
      const Fp2 square = t[i].x.square();
      slope[i] = slope[i] * (square + square + square);
      step(f, t[i], t[i].x, slope[i], pairs[i].p);
    }
  }

  static void add_all(Target& f, std::vector<G2>& t, const std::vector<G2>& q,
                      const std::vector<Pair>& pairs) {
    std::vector<Fp2> slope;
    for (std::size_t i = 0; i < t.size(); ++i) slope.push_back(q[i].x - t[i].x);
    invert_all(slope);
    for (std::size_t i = 0; i < t.size(); ++i) {
      slope[i] = slope[i] * (q[i].y - t[i].y);
      step(f, t[i], q[i].x, slope[i], pairs[i].p);
    }
  }

  // Multiplies f by the line of this slope through t, at p, and moves t to the third point's
  // mirror image; x is that of the second point.
  static void step(Target& f, G2& t, const Fp2& x, const Fp2& slope, const G1& p) {
    Curve::times_line(f, p.y, -(slope.times(p.x)), slope * t.x - t.y);
    const Fp2 sum = slope.square() - t.x - x;
    t.y = slope * (t.x - sum) - t.y;
    t.x = sum;
  }

  Target final_exponentiation(const Target& f) const {
    const Target g = f.conjugate() * f.inverse();
    return Curve::hard_part(*this, frobenius(g, 2) * g);
  }
};

// f times y + a w + b w^3: lines on a curve whose twist divides by xi (type D).
template <class Curve>
void times_line_of_d_twist(Fp12<Curve>& f, const typename Curve::Fp& y,
                           const typename Curve::Fp2& a, const typename Curve::Fp2& b) {
  const auto p0 = f.c0.scaled(y);
  const auto p1 = f.c1.times_linear(a, b);
  const auto cross = (f.c0 + f.c1).times_linear(a + Curve::embed(y), b);
  f = {p0 + p1.times_v(), cross - p0 - p1};
}

// f times b + a w^2 + y w^3: lines on a curve whose twist multiplies by xi (type M), times w^3,
// which the final exponentiation removes.
template <class Curve>
void times_line_of_m_twist(Fp12<Curve>& f, const typename Curve::Fp& y,
                           const typename Curve::Fp2& a, const typename Curve::Fp2& b) {
  const auto p0 = f.c0.times_linear(b, a);
  const auto p1 = f.c1.scaled(y).times_v();
  const auto cross = (f.c0 + f.c1).times_linear(b, a + Curve::embed(y));
  f = {p0 + p1.times_v(), cross - p0 - p1};
}

// a^e for a in the cyclotomic subgroup.
template <class Curve>
Fp12<Curve> power(const Fp12<Curve>& a, std::uint64_t e) {
  Fp12<Curve> result = Fp12<Curve>::one();
  for (int bit = 63; bit >= 0; --bit) {
    result = result.square();
    if (e >> bit & 1) result = result * a;
  }
  return result;
}

}  // namespace prover
