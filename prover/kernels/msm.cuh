// Multi-scalar multiplication by signed-digit buckets (Pippenger): digits and bucket sums.
#pragma once

#include "curve.cuh"

namespace prover {

// How a scalar is cut into digits. A scalar above r / 2 is replaced by r minus it, and its point by
// the negated one, which saves the top bit; the digits' signs then cost one bit again. The cut is
// even, so that no window has far fewer buckets than the others.
template <class F>
struct Windows {
  int count;

  static constexpr int scalar_bits() {
    int bits = 8 * F::bytes;
    while (!F::modulus().bit(bits - 1)) --bits;
    return bits;
  }
  // Windows of at most `width` bits
  static constexpr Windows of_width(int width) { return {(scalar_bits() + width - 1) / width}; }

  constexpr int begin(int window) const { return window * scalar_bits() / count; }
  constexpr int width() const { return (scalar_bits() + count - 1) / count; }
  // Digits are in [-buckets, buckets]
  constexpr u32 buckets() const { return u32(1) << (width() - 1); }
};

template <class Integer>
u32 extract_bits(const Integer& x, int begin, int end) {
  const int limb = begin / Integer::bits;
  const int shift = begin % Integer::bits;
  u64 bits = u64(x.v[limb]) >> shift;
  if (shift > 0 && limb + 1 < Integer::size) bits |= u64(x.v[limb + 1]) << (Integer::bits - shift);
  return u32(bits) & ((u32(1) << (end - begin)) - 1);
}

// Replaces a scalar above r / 2 by r minus it; true if so
template <class F>
bool make_small(typename F::Integer& scalar) {
  typename F::Integer negated = F::modulus();
  negated.subtract(scalar);
  if (!(negated < scalar)) return false;
  scalar = negated;
  return true;
}

// Calls emit(window, digit) so that the sum of digit 2^begin(window) is the scalar, for a scalar
// that make_small has passed. For any other, digits still are in range.
template <class F, class Emit>
void recode(const typename F::Integer& scalar, const Windows<F>& windows, Emit&& emit) {
  int carry = 0;
  int begin = 0;
  for (int window = 0; window < windows.count; ++window) {
    const int end = windows.begin(window + 1);
    const int half = 1 << (end - begin - 1);
    int digit = int(extract_bits(scalar, begin, end)) + carry;
    carry = digit > half;
    if (carry) digit -= 2 * half;
    emit(window, digit);
    begin = end;
  }
}

// Sum of (i + 1) bucket_i: each bucket is in every running sum from its own down to the first.
// add_bucket(i, sum) adds bucket i to a sum.
template <class F, class AddBucket>
Xyzz<F> weighted_sum(u32 count, AddBucket&& add_bucket) {
  Xyzz<F> running = Xyzz<F>::infinity();
  Xyzz<F> total = Xyzz<F>::infinity();
  for (u32 i = count; i-- > 0;) {
    add_bucket(i, running);
    total = total + running;
  }
  return total;
}

}  // namespace prover
