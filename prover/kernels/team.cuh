// Group laws for a chain of single operations: the four threads of a block hold the same points and
// share out the multiplications that do not wait for one another. A law then takes three or four of
// them one after another instead of nine or fourteen. The formulas are those of curve.cuh.
#pragma once

#include "curve.cuh"
#include "device.cuh"

namespace prover {

constexpr u32 team_size = 4;

template <class F>
F of_lane(const F& x, u32 from) {
  constexpr int count = sizeof(F) / sizeof(u32);
  u32 words[count];
  memcpy(words, &x, sizeof(F));
  for (int i = 0; i < count; ++i) words[i] = __shfl_sync((1 << team_size) - 1, words[i], from);
  F out;
  memcpy(static_cast<void*>(&out), words, sizeof(F));
  return out;
}

// Four products, one a thread
template <class F>
struct Products {
  F v[4];

  Products(const F& a0, const F& b0, const F& a1, const F& b1, const F& a2, const F& b2,
           const F& a3, const F& b3) {
    const u32 own = lane();
    const F a = own == 0 ? a0 : own == 1 ? a1 : own == 2 ? a2 : a3;
    const F b = own == 0 ? b0 : own == 1 ? b1 : own == 2 ? b2 : b3;
    const F product = a * b;
    for (u32 i = 0; i < team_size; ++i) v[i] = of_lane(product, i);
  }
};

// 2 p, by dbl-2008-s-1
template <class F>
PROVER_CALL Xyzz<F> team_twice(const Xyzz<F>& p) {
  const F u = p.y.twice();
  const Products<F> first(u, u, p.x, p.x, u, u, u, u);
  const F v = first.v[0];
  const F m = first.v[1].twice() + first.v[1];
  const Products<F> second(u, v, p.x, v, v, p.zz, m, m);
  const F w = second.v[0], s = second.v[1];
  const F x3 = second.v[3] - s.twice();
  const Products<F> third(m, s - x3, w, p.y, w, p.zzz, w, w);
  return {x3, third.v[0] - third.v[1], second.v[2], third.v[2]};
}

// p + q, by add-2008-s
template <class F>
PROVER_CALL Xyzz<F> team_add(const Xyzz<F>& p, const Xyzz<F>& q) {
  if (q.is_infinity()) return p;
  if (p.is_infinity()) return q;
  const Products<F> first(p.x, q.zz, p.y, q.zzz, q.x, p.zz, q.y, p.zzz);
  const F u1 = first.v[0], s1 = first.v[1];
  const F difference = first.v[2] - u1;
  const F r = first.v[3] - s1;
  if (difference.is_zero()) return r.is_zero() ? team_twice(p) : Xyzz<F>::infinity();
  const Products<F> second(difference, difference, r, r, p.zz, q.zz, p.zzz, q.zzz);
  const F pp = second.v[0];
  const Products<F> third(difference, pp, u1, pp, second.v[2], pp, pp, pp);
  const F ppp = third.v[0], t = third.v[1];
  const F x3 = second.v[1] - ppp - t.twice();
  const Products<F> fourth(r, t - x3, s1, ppp, second.v[3], ppp, ppp, ppp);
  return {x3, fourth.v[0] - fourth.v[1], third.v[2], fourth.v[2]};
}

}  // namespace prover
