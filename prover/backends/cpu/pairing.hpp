// Products of ate pairings with merged Miller loops and one final exponentiation.
//
// BN254: optimal ate (Vercauteren, "Optimal pairings", 2008). BLS12-381: ate over x.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "curve.cuh"
#include "tower.hpp"

namespace prover {

// Digits -1, 0, 1 of n from low to high, no two neighbours nonzero (Reitwiesner, 1960).
inline std::vector<int> signed_digits(unsigned __int128 n) {
  std::vector<int> digits;
  for (; n != 0; n >>= 1) {
    const int digit = n % 2 == 0 ? 0 : n % 4 == 1 ? 1 : -1;
    digits.push_back(digit);
    if (digit < 0) n += 1;
  }
  return digits;
}

// A line on the curve, at a point of G1, up to a factor that the final exponentiation removes:
// y + a w + b w^3 where the twist divides by xi (type D), and w^3 times its mirror in 1 / w where
// it multiplies (type M).
template <class Fp2>
struct Line {
  Fp2 y, a, b;
};

template <class Curve>
class Pairing {
 public:
  using Fp = typename Curve::Fq;
  using Fp2 = typename Curve::Fq2;
  using Target = Fp12<Curve>;

  using G1 = Affine<Fp>;
  using G2 = Affine<Fp2>;
  struct Pair {
    G1 p;
    G2 q;
  };

  Pairing()
      : gamma_(frobenius_coefficients<Curve>()),
        three_b_(Curve::three_b()),
        loop_(signed_digits(Curve::loop)) {}

  // The product over pairs of finite points, to the power that the curve's hard part has besides.
  Target product(const std::vector<Pair>& pairs) const {
    const Target f = miller_loop(pairs);
    const Target g = f.conjugate() * f.inverse();
    return Curve::hard_part(*this, frobenius(g, 2) * g);
  }

  // The power q^times.
  Target frobenius(Target a, int times) const {
    while (times-- > 0) a = prover::frobenius<Curve>(a, gamma_);
    return a;
  }

 private:
  // Homogeneous: x = X / Z, y = Y / Z.
  struct Projective {
    Fp2 x, y, z;
  };

  std::array<Fp2, 6> gamma_;
  Fp2 three_b_;  // thrice the constant of the twist's equation
  std::vector<int> loop_;

  Target miller_loop(const std::vector<Pair>& pairs) const {
    Target f = Target::one();
    std::vector<Projective> t;
    for (const Pair& pair : pairs) t.push_back({pair.q.x, pair.q.y, Fp2::one()});
    for (std::size_t digit = loop_.size() - 1; digit-- > 0;) {
      f = f.squared();
      for (std::size_t i = 0; i < t.size(); ++i) {
        Curve::times_line(f, double_step(t[i], pairs[i].p));
        if (loop_[digit] == 0) continue;
        const G2& q = pairs[i].q;
        Curve::times_line(f, add_step(t[i], loop_[digit] > 0 ? q : -q, pairs[i].p));
      }
    }
    if constexpr (Curve::negative_loop) f = f.conjugate();
    if constexpr (Curve::barreto_naehrig) {
      for (std::size_t i = 0; i < t.size(); ++i) {
        const G2 q1 = frobenius(pairs[i].q), q2 = -frobenius(q1);
        Curve::times_line(f, add_step(t[i], q1, pairs[i].p));
        Curve::times_line(f, add_step(t[i], q2, pairs[i].p));
      }
    }
    return f;
  }

  // On a twist whose points are (x w^2, y w^3) on the curve.
  G2 frobenius(const G2& a) const {
    return {a.x.conjugate() * gamma_[2], a.y.conjugate() * gamma_[3]};
  }

  // Doubles t; the tangent at p. Formulas: Costello, Lange and Naehrig, "Faster pairing
  // computations on curves with high-degree twists", 2010, without the halvings.
  Line<Fp2> double_step(Projective& t, const G1& p) const {
    const Fp2 xx = t.x.squared(), yy = t.y.squared(), zz = t.z.squared();
    const Fp2 e = three_b_ * zz, e3 = e.twice() + e, ee = e.squared(), ee3 = ee.twice() + ee;
    const Fp2 xy = t.x * t.y, h = (t.y + t.z).squared() - yy - zz, yyh2 = yy * h.twice();
    const Fp2 x = xy * (yy - e3);
    t = {x.twice(), (yy + e3).squared() - ee3.twice().twice(), yyh2.twice()};
    return {h * p.y, -(xx.twice() + xx) * p.x, yy - e};
  }

  // Adds q to t; the line through both at p. Formulas: as above.
  static Line<Fp2> add_step(Projective& t, const G2& q, const G1& p) {
    const Fp2 theta = t.y - q.y * t.z, lambda = t.x - q.x * t.z;
    const Fp2 square = lambda.squared(), cube = lambda * square, g = t.x * square;
    const Fp2 h = cube + t.z * theta.squared() - g - g;
    t = {lambda * h, theta * (g - h) - cube * t.y, t.z * cube};
    return {lambda * p.y, -theta * p.x, theta * q.x - lambda * q.y};
  }
};

template <class Curve>
void times_line_of_d_twist(Fp12<Curve>& f, const Line<typename Curve::Fq2>& line) {
  const auto p0 = f.c0 * line.y;
  const auto p1 = f.c1.times_linear(line.a, line.b);
  const auto cross = (f.c0 + f.c1).times_linear(line.y + line.a, line.b);
  f = {p0 + p1.times_v(), cross - p0 - p1};
}

// The line is b + a w^2 + y w^3.
template <class Curve>
void times_line_of_m_twist(Fp12<Curve>& f, const Line<typename Curve::Fq2>& line) {
  const auto p0 = f.c0.times_linear(line.b, line.a);
  const auto p1 = (f.c1 * line.y).times_v();
  const auto cross = (f.c0 + f.c1).times_linear(line.b, line.a + line.y);
  f = {p0 + p1.times_v(), cross - p0 - p1};
}

// a^e for a in the cyclotomic subgroup.
template <class Curve>
Fp12<Curve> power(const Fp12<Curve>& a, std::uint64_t e) {
  Fp12<Curve> result = Fp12<Curve>::one();
  for (int bit = 63; bit >= 0; --bit) {
    result = result.cyclotomic_squared();
    if (e >> bit & 1) result = result * a;
  }
  return result;
}

}  // namespace prover
