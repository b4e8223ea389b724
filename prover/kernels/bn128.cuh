// BN254, called bn128 by snarkjs (EIP-196, EIP-197): moduli, equations and generators.
#pragma once

#include "curve.cuh"

namespace prover {

struct Bn128Base {
  static constexpr int words = 4;
  static constexpr u64 word(int i) {
    constexpr u64 value[] = {0x3c208c16d87cfd47, 0x97816a916871ca8d, 0xb85045b68181585d,
                             0x30644e72e131a029};
    return value[i];
  }
};

struct Bn128Order {
  static constexpr int words = 4;
  static constexpr u64 word(int i) {
    constexpr u64 value[] = {0x43e1f593f0000001, 0x2833e84879b97091, 0xb85045b68181585d,
                             0x30644e72e131a029};
    return value[i];
  }
};

template <class ArithType>
struct Bn128 {
  using Arith = ArithType;
  using Fq = Field<Bn128Base, Arith>;
  using Fr = Field<Bn128Order, Arith>;
  using Fq2 = Fp2<Fq>;

  // G1: y^2 = x^3 + 3
  static bool on_curve(const Affine<Fq>& p) {
    return p.y.squared() == p.x.squared() * p.x + Fq::from_small(3);
  }
  // G2: y^2 = x^3 + 3 / (9 + u), without the division
  static bool on_curve(const Affine<Fq2>& p) {
    const Fq2 difference = p.y.squared() - p.x.squared() * p.x;
    return times_nonresidue(difference) == Fq2{Fq::from_small(3), Fq::zero()};
  }
  // (9 + u) x
  static Fq2 times_nonresidue(const Fq2& x) {
    const Fq2 nine = x.twice().twice().twice() + x;
    return {nine.c0 - x.c1, nine.c1 + x.c0};
  }

  // G1 has prime order
  static bool in_subgroup(const Affine<Fq>&) { return true; }
  static bool in_subgroup(const Affine<Fq2>& p) { return multiply(p, Fr::modulus()).is_infinity(); }

  static Affine<Fq> generator1() { return {coordinate(g1x), coordinate(g1y)}; }
  static Affine<Fq2> generator2() {
    return {{coordinate(g2x0), coordinate(g2x1)}, {coordinate(g2y0), coordinate(g2y1)}};
  }

 private:
  static Fq coordinate(u64 (*word)(int)) { return Fq::from_integer(Fq::M::from_words(word)); }

  static constexpr u64 g1x(int i) {
    constexpr u64 value[] = {0x0000000000000001, 0x0000000000000000, 0x0000000000000000,
                             0x0000000000000000};
    return value[i];
  }
  static constexpr u64 g1y(int i) {
    constexpr u64 value[] = {0x0000000000000002, 0x0000000000000000, 0x0000000000000000,
                             0x0000000000000000};
    return value[i];
  }
  static constexpr u64 g2x0(int i) {
    constexpr u64 value[] = {0x46debd5cd992f6ed, 0x674322d4f75edadd, 0x426a00665e5c4479,
                             0x1800deef121f1e76};
    return value[i];
  }
  static constexpr u64 g2x1(int i) {
    constexpr u64 value[] = {0x97e485b7aef312c2, 0xf1aa493335a9e712, 0x7260bfb731fb5d25,
                             0x198e9393920d483a};
    return value[i];
  }
  static constexpr u64 g2y0(int i) {
    constexpr u64 value[] = {0x4ce6cc0166fa7daa, 0xe3d1e7690c43d37b, 0x4aab71808dcb408f,
                             0x12c85ea5db8c6deb};
    return value[i];
  }
  static constexpr u64 g2y1(int i) {
    constexpr u64 value[] = {0x55acdadcd122975b, 0xbc4b313370b38ef3, 0xec9e99ad690c3395,
                             0x090689d0585ff075};
    return value[i];
  }
};

}  // namespace prover
