// A prime field in Montgomery form: an element x is held as x R mod q, R = 2^(64 words).
//
// R, and so the bytes of an element, do not depend on the width of the limbs.
#pragma once

#include "arith.cuh"

namespace prover {

template <class ModulusType, class ArithType>
struct Field {
  using Modulus = ModulusType;
  using Arith = ArithType;
  using Limb = typename Arith::Limb;
  using M = Montgomery<Modulus, Limb>;
  using Integer = typename M::Value;
  static constexpr int bytes = 8 * Modulus::words;
  static constexpr int limbs = M::size;

  Integer value;

  static Field zero() { return Field{}; }
  static Field one() {
    constexpr auto r = M::r();
    return Field{r};
  }
  static constexpr Integer modulus() { return M::modulus(); }

  // x R mod q for an integer x < q
  static Field from_integer(const Integer& x) {
    constexpr auto r_squared = M::r_squared();
    return Field{x} * Field{r_squared};
  }
  static Field from_small(u32 x) {
    Integer integer{};
    integer.v[0] = x;
    return from_integer(integer);
  }
  Integer to_integer() const {
    Field out;
    Arith::template reduce<Modulus>(out.value.v, value.v);
    return out.value;
  }

  bool is_zero() const { return value.is_zero(); }
  friend bool operator==(const Field& a, const Field& b) { return a.value == b.value; }
  friend bool operator!=(const Field& a, const Field& b) { return !(a == b); }

  friend Field operator+(const Field& a, const Field& b) {
    Field out;
    Arith::template add<Modulus>(out.value.v, a.value.v, b.value.v);
    return out;
  }
  friend Field operator-(const Field& a, const Field& b) {
    Field out;
    Arith::template sub<Modulus>(out.value.v, a.value.v, b.value.v);
    return out;
  }
  Field operator-() const { return zero() - *this; }
  friend Field operator*(const Field& a, const Field& b) {
    Field out;
    Arith::template mul<Modulus>(out.value.v, a.value.v, b.value.v);
    return out;
  }
  Field twice() const { return *this + *this; }
  Field squared() const {
    Field out;
    Arith::template sqr<Modulus>(out.value.v, value.v);
    return out;
  }

  // A call on the device: where it is inlined and products are calls, NVRTC 13.0 makes wrong code
  // of some uses, at every level of optimization (tests/gpu/test_vectors.py).
  template <class Exponent>
  PROVER_CALL Field power(const Exponent& exponent) const {
    Field out = one();
    for (int i = Exponent::size * Exponent::bits - 1; i >= 0; --i) {
      out = out.squared();
      if (exponent.bit(i)) out = out * *this;
    }
    return out;
  }

  // 1 / this, and 0 for 0: this^(q - 2), by Fermat
  Field inverse() const {
    Integer exponent = modulus();
    Integer two{};
    two.v[0] = 2;
    exponent.subtract(two);
    return power(exponent);
  }
};

// Replaces n nonzero elements by their inverses with one inversion (Montgomery's trick);
// `scratch` holds n elements.
template <class F>
void invert_batch(F* x, F* scratch, int n) {
  if (n == 0) return;
  F product = F::one();
  for (int i = 0; i < n; ++i) {
    scratch[i] = product;
    product = product * x[i];
  }
  F inverse = product.inverse();
  for (int i = n - 1; i >= 0; --i) {
    const F next = inverse * x[i];
    x[i] = inverse * scratch[i];
    inverse = next;
  }
}

}  // namespace prover
