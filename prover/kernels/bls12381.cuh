// BLS12-381: moduli, equations and generators (standard form).
#pragma once

#include "curve.cuh"

namespace prover {

struct Bls12381Base {
  static constexpr int words = 6;
  static constexpr u64 word(int i) {
    constexpr u64 value[] = {0xb9feffffffffaaab, 0x1eabfffeb153ffff, 0x6730d2a0f6b0f624,
                             0x64774b84f38512bf, 0x4b1ba7b6434bacd7, 0x1a0111ea397fe69a};
    return value[i];
  }
};

struct Bls12381Order {
  static constexpr int words = 4;
  static constexpr u64 word(int i) {
    constexpr u64 value[] = {0xffffffff00000001, 0x53bda402fffe5bfe, 0x3339d80809a1d805,
                             0x73eda753299d7d48};
    return value[i];
  }
};

template <class ArithType>
struct Bls12381 {
  using Arith = ArithType;
  using Fq = Field<Bls12381Base, Arith>;
  using Fr = Field<Bls12381Order, Arith>;
  using Fq2 = Fp2<Fq>;

  // G1: y^2 = x^3 + 4
  static bool on_curve(const Affine<Fq>& p) {
    return p.y.squared() == p.x.squared() * p.x + Fq::from_small(4);
  }
  // G2: y^2 = x^3 + 4 (1 + u)
  static bool on_curve(const Affine<Fq2>& p) {
    const Fq2 four{Fq::from_small(4), Fq::zero()};
    return p.y.squared() == p.x.squared() * p.x + times_nonresidue(four);
  }
  // (1 + u) x
  static Fq2 times_nonresidue(const Fq2& x) { return {x.c0 - x.c1, x.c0 + x.c1}; }

  template <class F>
  static bool in_subgroup(const Affine<F>& p) {
    return multiply(p, Fr::modulus()).is_infinity();
  }

  static Affine<Fq> generator1() { return {coordinate(g1x), coordinate(g1y)}; }
  static Affine<Fq2> generator2() {
    return {{coordinate(g2x0), coordinate(g2x1)}, {coordinate(g2y0), coordinate(g2y1)}};
  }

 private:
  static Fq coordinate(u64 (*word)(int)) { return Fq::from_integer(Fq::M::from_words(word)); }

  static constexpr u64 g1x(int i) {
    constexpr u64 value[] = {0xfb3af00adb22c6bb, 0x6c55e83ff97a1aef, 0xa14e3a3f171bac58,
                             0xc3688c4f9774b905, 0x2695638c4fa9ac0f, 0x17f1d3a73197d794};
    return value[i];
  }
  static constexpr u64 g1y(int i) {
    constexpr u64 value[] = {0x0caa232946c5e7e1, 0xd03cc744a2888ae4, 0x00db18cb2c04b3ed,
                             0xfcf5e095d5d00af6, 0xa09e30ed741d8ae4, 0x08b3f481e3aaa0f1};
    return value[i];
  }
  static constexpr u64 g2x0(int i) {
    constexpr u64 value[] = {0xd48056c8c121bdb8, 0x0bac0326a805bbef, 0xb4510b647ae3d177,
                             0xc6e47ad4fa403b02, 0x260805272dc51051, 0x024aa2b2f08f0a91};
    return value[i];
  }
  static constexpr u64 g2x1(int i) {
    constexpr u64 value[] = {0xe5ac7d055d042b7e, 0x334cf11213945d57, 0xb5da61bbdc7f5049,
                             0x596bd0d09920b61a, 0x7dacd3a088274f65, 0x13e02b6052719f60};
    return value[i];
  }
  static constexpr u64 g2y0(int i) {
    constexpr u64 value[] = {0xe193548608b82801, 0x923ac9cc3baca289, 0x6d429a695160d12c,
                             0xadfd9baa8cbdd3a7, 0x8cc9cdc6da2e351a, 0x0ce5d527727d6e11};
    return value[i];
  }
  static constexpr u64 g2y1(int i) {
    constexpr u64 value[] = {0xaaa9075ff05f79be, 0x3f370d275cec1da1, 0x267492ab572e99ab,
                             0xcb3e287e85a763af, 0x32acd2b02bc28b99, 0x0606c4a02ea734cc};
    return value[i];
  }
};

}  // namespace prover
