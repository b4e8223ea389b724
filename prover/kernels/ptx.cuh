// Modular arithmetic by carry chains on 32-bit limbs, for the device.
//
// A product of two limbs is 64 bits wide, and the multiplier adds it to a pair of limbs with a
// carry in and out, but only to a pair of registers that is aligned. So the products of a row are
// taken in two chains, those of the even limbs and those of the odd ones, into two accumulators
// that lie one limb apart. Dividing by 2^32 then only swaps their roles. (Emmart, Luitjens, Weems
// and Woolley, "Optimizing modular multiplication for NVIDIA's Maxwell GPUs", 2016.)
#pragma once

#include "carry.cuh"

namespace prover {

struct Ptx {
  using Limb = u32;
  // Products can be added up before they are reduced; see Fp2.
  static constexpr bool wide_products = true;

  template <class Modulus>
  static void add(u32* out, const u32* a, const u32* b) {
    constexpr int n = size<Modulus>;
    u32 t[n];
    t[0] = add_cc(a[0], b[0]);
    PROVER_UNROLL for (int i = 1; i < n; ++i) t[i] = addc_cc(a[i], b[i]);
    reduce_once<Modulus>(out, t);
  }

  template <class Modulus>
  static void sub(u32* out, const u32* a, const u32* b) {
    constexpr int n = size<Modulus>;
    u32 t[n];
    t[0] = sub_cc(a[0], b[0]);
    PROVER_UNROLL for (int i = 1; i < n; ++i) t[i] = subc_cc(a[i], b[i]);
    const u32 negative = subc(0, 0);
    add_masked_modulus<Modulus>(out, t, negative);
  }

  // out = a b / R mod q, a row of the product and a row of the reduction in turns
  template <class Modulus>
  static void mul(u32* out, const u32* a, const u32* b) {
    constexpr int n = size<Modulus>;
    u32 even[n], odd[n], t[n];
    PROVER_UNROLL for (int i = 0; i < n; ++i) even[i] = odd[i] = 0;
    mad_chain<n>(odd, a + 1, b[0]);
    mad_chain<n>(even, a, b[0]);
    add_modulus_row<Modulus>(even, odd);
    PROVER_UNROLL for (int i = 1; i < n; i += 2) {
      shifted_row<Modulus>(odd, even, a, b[i]);
      if (i + 1 < n) shifted_row<Modulus>(even, odd, a, b[i + 1]);
    }
    join<n>(t, even, odd);
    reduce_once<Modulus>(out, t);
  }

  // out = a^2 / R mod q, with half of the cross products
  template <class Modulus>
  static void sqr(u32* out, const u32* a) {
    u32 t[2 * size<Modulus>];
    square_wide<size<Modulus>>(t, a);
    reduce_wide<Modulus>(out, t);
  }

  // out = a / R mod q
  template <class Modulus>
  static void reduce(u32* out, const u32* a) {
    constexpr int n = size<Modulus>;
    u32 even[n], odd[n], t[n];
    reduction_rows<Modulus>(even, odd, a);
    join<n>(t, even, odd);
    reduce_once<Modulus>(out, t);
  }

  // out = t / R mod q for t < R q; t has twice the limbs of q
  template <class Modulus>
  static void reduce_wide(u32* out, const u32* t) {
    constexpr int n = size<Modulus>;
    u32 even[n], odd[n], low[n], sum[n];
    reduction_rows<Modulus>(even, odd, t);
    join<n>(low, even, odd);
    sum[0] = add_cc(low[0], t[n]);
    PROVER_UNROLL for (int i = 1; i < n; ++i) sum[i] = addc_cc(low[i], t[n + i]);
    reduce_once<Modulus>(out, sum);
  }

  // out = a b, twice as long
  template <int n>
  static void mul_wide(u32* out, const u32* a, const u32* b) {
    // Limb i of `odd` has the weight of limb i + 1 of `even`.
    u32 even[2 * n], odd[2 * n];
    PROVER_UNROLL for (int i = 0; i < 2 * n; ++i) even[i] = odd[i] = 0;
    PROVER_UNROLL for (int i = 0; i < n; i += 2) {
      add_row<n>(odd + i, a + 1, b[i]);
      add_row<n>(even + i, a, b[i]);
      add_row<n>(odd + i, a, b[i + 1]);
      if (i + 2 < n)
        add_row<n>(even + i + 2, a + 1, b[i + 1]);
      else
        mad_chain<n>(even + n, a + 1, b[i + 1]);
    }
    out[0] = even[0];
    out[1] = add_cc(even[1], odd[0]);
    PROVER_UNROLL for (int i = 2; i < 2 * n; ++i) out[i] = addc_cc(even[i], odd[i - 1]);
  }

  // a + b, not reduced
  template <int n>
  static void add_plain(u32* out, const u32* a, const u32* b) {
    out[0] = add_cc(a[0], b[0]);
    PROVER_UNROLL for (int i = 1; i < n; ++i) out[i] = addc_cc(a[i], b[i]);
  }

  // a - b, and a mask of ones if it is negative
  template <int n>
  static u32 sub_plain(u32* out, const u32* a, const u32* b) {
    out[0] = sub_cc(a[0], b[0]);
    PROVER_UNROLL for (int i = 1; i < n; ++i) out[i] = subc_cc(a[i], b[i]);
    return subc(0, 0);
  }

  // out = t + (q & mask)
  template <class Modulus>
  static void add_masked_modulus(u32* out, const u32* t, u32 mask) {
    constexpr auto q = Montgomery<Modulus, u32>::modulus();
    out[0] = add_cc(t[0], q.v[0] & mask);
    PROVER_UNROLL for (int i = 1; i < q.size; ++i) out[i] = addc_cc(t[i], q.v[i] & mask);
  }

 private:
  template <class Modulus>
  static constexpr int size = Montgomery<Modulus, u32>::size;

  // t += a[0] b + a[2] b 2^64 + ...; the carry is set
  template <int n>
  static void mad_chain(u32* t, const u32* a, u32 b) {
    mad_wide_cc(t[0], t[1], a[0], b, t[0], t[1]);
    PROVER_UNROLL for (int i = 2; i < n; i += 2) {
      madc_wide_cc(t[i], t[i + 1], a[i], b, t[i], t[i + 1]);
    }
  }

  // The same with a carry behind the last limb
  template <int n>
  static void add_row(u32* t, const u32* a, u32 b) {
    mad_chain<n>(t, a, b);
    t[n] = addc(t[n], 0);
  }

  // t = (t / 2^64) + a[0] b + a[2] b 2^64 + ... + the carry; the top has room for all of it
  template <int n>
  static void mad_chain_shifted(u32* t, const u32* a, u32 b) {
    PROVER_UNROLL for (int i = 0; i < n - 2; i += 2) {
      madc_wide_cc(t[i], t[i + 1], a[i], b, t[i + 2], t[i + 3]);
    }
    madc_wide_cc(t[n - 2], t[n - 1], a[n - 2], b, 0, 0);
  }

  // even + 2^32 odd += m q, so that even[0] becomes 0
  template <class Modulus>
  static void add_modulus_row(u32* even, u32* odd) {
    constexpr auto q = Montgomery<Modulus, u32>::modulus();
    constexpr u32 inverse = Montgomery<Modulus, u32>::negative_inverse();
    constexpr int n = q.size;
    const u32 m = times_inverse<inverse>(even[0]);
    mad_chain<n>(odd, q.v + 1, m);
    mad_chain<n>(even, q.v, m);
    odd[n - 1] = addc(odd[n - 1], 0);
  }

  // x times -q^-1 mod 2^32, which is -x where the low limb of q is 1. The compiler must not see
  // that: it would negate the factor in the products of the low halves, and then could no longer
  // take low and high halves together (176 multiplications instead of 128).
  template <u32 inverse>
  static u32 times_inverse(u32 x) {
    return inverse + 1 == 0 ? negative(x) : x * inverse;
  }

  // t = odd + even / 2^32 after the last row, whose even limbs are in `even`
  template <int n>
  static void join(u32* t, const u32* odd, const u32* even) {
    t[0] = add_cc(odd[0], even[1]);
    PROVER_UNROLL for (int i = 1; i < n - 1; ++i) t[i] = addc_cc(odd[i], even[i + 1]);
    t[n - 1] = addc(odd[n - 1], 0);
  }

  // All rows of the reduction of n limbs; what is left is to join `even` and `odd`, in this order.
  template <class Modulus>
  static void reduction_rows(u32* even, u32* odd, const u32* a) {
    constexpr int n = size<Modulus>;
    PROVER_UNROLL for (int i = 0; i < n; ++i) even[i] = a[i], odd[i] = 0;
    add_modulus_row<Modulus>(even, odd);
    PROVER_UNROLL for (int i = 1; i < n; i += 2) {
      shifted_modulus_row<Modulus>(odd, even);
      if (i + 1 < n) shifted_modulus_row<Modulus>(even, odd);
    }
  }

  template <class Modulus>
  static void shifted_row(u32* even, u32* odd, const u32* a, u32 b) {
    constexpr int n = size<Modulus>;
    even[0] = add_cc(even[0], odd[1]);
    mad_chain_shifted<n>(odd, a + 1, b);
    mad_chain<n>(even, a, b);
    odd[n - 1] = addc(odd[n - 1], 0);
    add_modulus_row<Modulus>(even, odd);
  }

  template <class Modulus>
  static void shifted_modulus_row(u32* even, u32* odd) {
    constexpr auto q = Montgomery<Modulus, u32>::modulus();
    constexpr u32 inverse = Montgomery<Modulus, u32>::negative_inverse();
    constexpr int n = q.size;
    even[0] = add_cc(even[0], odd[1]);
    const u32 m = times_inverse<inverse>(even[0]);  // leaves the carry alone
    mad_chain_shifted<n>(odd, q.v + 1, m);
    mad_chain<n>(even, q.v, m);
    odd[n - 1] = addc(odd[n - 1], 0);
  }

  // out = a^2, twice as long: cross products once, doubled, and the squares
  template <int n>
  static void square_wide(u32* out, const u32* a) {
    u32 even[2 * n], odd[2 * n], sum[2 * n];
    PROVER_UNROLL for (int i = 0; i < 2 * n; ++i) even[i] = odd[i] = 0;
    PROVER_UNROLL for (int i = 0; i < n - 1; ++i) {
      add_terms<n>(odd + 2 * i, a + i + 1, a[i], (n - i) / 2);
      add_terms<n>(even + 2 * i + 2, a + i + 2, a[i], (n - 1 - i) / 2);
    }
    sum[0] = 0;
    sum[1] = odd[0];
    sum[2] = add_cc(even[2], odd[1]);
    PROVER_UNROLL for (int i = 3; i < 2 * n; ++i) sum[i] = addc_cc(even[i], odd[i - 1]);
    PROVER_UNROLL for (int i = 2 * n - 1; i > 0; --i) sum[i] = sum[i] << 1 | sum[i - 1] >> 31;
    mad_wide_cc(out[0], out[1], a[0], a[0], 0, sum[1]);
    PROVER_UNROLL for (int i = 1; i < n; ++i) {
      madc_wide_cc(out[2 * i], out[2 * i + 1], a[i], a[i], sum[2 * i], sum[2 * i + 1]);
    }
  }

  // t += a[0] b + a[2] b 2^64 + ..., `count` terms and a carry behind them
  template <int n>
  static void add_terms(u32* t, const u32* a, u32 b, int count) {
    if (count == 0) return;
    mad_wide_cc(t[0], t[1], a[0], b, t[0], t[1]);
    PROVER_UNROLL for (int i = 1; i < n / 2; ++i) {
      if (i >= count) continue;
      madc_wide_cc(t[2 * i], t[2 * i + 1], a[2 * i], b, t[2 * i], t[2 * i + 1]);
    }
    t[2 * count] = addc(t[2 * count], 0);
  }

  // out = t mod q, for t < 2 q
  template <class Modulus>
  static void reduce_once(u32* out, const u32* t) {
    constexpr auto q = Montgomery<Modulus, u32>::modulus();
    u32 u[q.size];
    const u32 keep = sub_plain<q.size>(u, t, q.v);
    PROVER_UNROLL for (int i = 0; i < q.size; ++i) out[i] = keep ? t[i] : u[i];
  }
};

}  // namespace prover
