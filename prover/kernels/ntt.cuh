// Number-theoretic transforms: roots of unity and butterflies.
//
// Both transforms work on blocks with one twiddle a block: split takes natural order to
// bit-reversed order, merge takes it back, so no permutation is ever made. Stage s of split has
// 2^s blocks; block j of it uses the root with the exponent bitrev_s(j) / 2^(s+1) of a turn.
// These exponents do not depend on s in the first 2^s entries, so one table in bit-reversed order
// serves every stage.
#pragma once

#include "field.cuh"

namespace prover {

// A primitive 2^log-th root of unity: 5, the smallest non-residue of both scalar fields, to the
// power (r - 1) / 2^log
template <class F>
F root_of_unity(int log) {
  auto exponent = F::modulus();
  exponent.v[0] -= 1;
  for (int i = 0; i < log; ++i) exponent.halve();
  return F::from_small(5).power(exponent);
}

// Entry j < 2^s of the twiddle table, inverted: complementing the low bits of the index negates the
// exponent up to half a turn, which is the factor -1
template <class F>
F inverse_twiddle(const F* table, u32 j) {
  if (j == 0) return table[0];
  u32 top = 1;
  while (top <= j / 2) top *= 2;
  return -table[3 * top - 1 - j];
}

// Cooley and Tukey's butterfly
template <class F>
void split_butterfly(F& x, F& y, const F& twiddle) {
  const F product = y * twiddle;
  y = x - product;
  x = x + product;
}

// Gentleman and Sande's: undoes a split by the inverse twiddle, up to a factor of 2
template <class F>
void merge_butterfly(F& x, F& y, const F& twiddle) {
  const F difference = x - y;
  x = x + y;
  y = difference * twiddle;
}

// Either butterfly for the twiddle 1
template <class F>
void plain_butterfly(F& x, F& y) {
  const F difference = x - y;
  x = x + y;
  y = difference;
}

}  // namespace prover
