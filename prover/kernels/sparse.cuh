// The coefficients of a zkey's section 4, 44 bytes a term, without padding.
#pragma once

#include "field.cuh"

namespace prover {

template <class F>
struct Term {
  static constexpr int bytes = 44;
  u32 matrix;      // 0: A, 1: B
  u32 constraint;  // row
  u32 signal;      // column
  u32 value[8];    // v R^2 mod r, little-endian

  static_assert(F::bytes == 32, "section 4 holds values of 32 bytes");

  // v w in Montgomery form, for w in standard form: (v R^2) w / R
  F times(const typename F::Integer& w) const {
    if (w.is_zero()) return F::zero();
    F coefficient;
    constexpr int per_limb = sizeof(typename F::Limb) / 4;
    for (int i = 0; i < F::limbs; ++i) {
      u64 limb = value[i * per_limb];
      if (per_limb == 2) limb |= u64(value[i * per_limb + 1]) << 32;
      coefficient.value.v[i] = typename F::Limb(limb);
    }
    typename F::Integer one{};
    one.v[0] = 1;
    if (w == one) return F{coefficient.to_integer()};
    return coefficient * F{w};
  }
};

}  // namespace prover
