// Engine for a curve and an arithmetic known at compile time.
#pragma once

#include "engine.hpp"
#include "msm.hpp"
#include "ntt.hpp"
#include "sparse.hpp"

namespace prover {

template <class Curve>
class EngineOf final : public Engine {
  using Fq = typename Curve::Fq;
  using Fq2 = typename Curve::Fq2;
  using Fr = typename Curve::Fr;
  using Scalar = typename Fr::Integer;

  // What a group operation is written for: work(F{}) with the coordinates' field
  template <class Work>
  static auto with_field(Group group, Work&& work) {
    return group == Group::g1 ? work(Fq{}) : work(Fq2{});
  }

 public:
  std::size_t coordinate_bytes(Group group) const override {
    return group == Group::g1 ? Fq::bytes : Fq2::bytes;
  }

  int two_adicity() const override {
    Scalar odd = Fr::modulus();
    odd.v[0] -= 1;
    int k = 0;
    while (!odd.bit(k)) ++k;
    return k;
  }

  void sparse_product(const u8* terms, std::size_t count, const u8* witness, u8* a, u8* b, u8* c,
                      std::size_t n, int threads) const override {
    SparseProduct<Fr>(terms, count, witness, threads).run(a, b, c, n);
  }

  void multiply(const u8* x, const u8* y, u8* out, std::size_t n, int threads) const override {
    const Rows<Fr> left(x, n), right(y, n);
    parallel_ranges(threads, n, grain, [&](Range range, int) {
      for (std::size_t i = range.begin; i < range.end; ++i)
        store(out + i * sizeof(Fr), left[i] * right[i]);
    });
  }

  void odd_coset(u8* x, int log, int threads) const override {
    OddCoset<Fr>(x, log, threads).run();
  }

  void quotient(const u8* a, const u8* b, const u8* c, u8* out, std::size_t n,
                int threads) const override {
    const Rows<Fr> left(a, n), right(b, n), product(c, n);
    parallel_ranges(threads, n, grain, [&](Range range, int) {
      for (std::size_t i = range.begin; i < range.end; ++i)
        store(out + i * sizeof(Fr), (left[i] * right[i] - product[i]).to_integer());
    });
  }

  std::ptrdiff_t find_not_below_order(const u8* x, std::size_t n, int threads) const override {
    const Rows<Scalar> scalars(x, n);
    return find_first(threads, n, grain,
                      [&](std::size_t i) { return !(scalars[i] < Fr::modulus()); });
  }

  std::size_t msm_workspace(Group group, std::size_t n, int threads) const override {
    return with_field(group, [&](auto f) { return msm_of(f, n, threads).workspace_bytes(); });
  }

  std::unique_ptr<PointSum> point_sum(Group group, const PointSum::Operands& given,
                                      int threads) const override {
    return with_field(group, [&](auto f) -> std::unique_ptr<PointSum> {
      return std::make_unique<Msm<decltype(f), Fr>>(given, threads);
    });
  }

  void add(Group group, const u8* p, const u8* q, u8* out) const override {
    with_field(group, [&](auto f) {
      store(out, (Xyzz<decltype(f)>::from_affine(point(f, p)) + point(f, q)).to_affine());
    });
  }

  void negate(Group group, const u8* p, u8* out) const override {
    with_field(group, [&](auto f) { store(out, -point(f, p)); });
  }

  void scale(Group group, const u8* p, const u8* scalar, u8* out) const override {
    with_field(group, [&](auto f) {
      store(out, prover::multiply(point(f, p), load<Scalar>(scalar)).to_affine());
    });
  }

  void generator(Group group, u8* out) const override {
    if (group == Group::g1)
      store(out, Curve::generator1());
    else
      store(out, Curve::generator2());
  }

  std::ptrdiff_t find_off_curve(Group group, const u8* points, std::size_t n,
                                int threads) const override {
    return with_field(group, [&](auto f) {
      return find_first(threads, n, 256, [&](std::size_t i) {
        const u8* at = points + i * sizeof(Affine<decltype(f)>);
        for (std::size_t k = 0; k < sizeof(Affine<decltype(f)>) / sizeof(Fq); ++k)
          if (!(load<Fq>(at + k * sizeof(Fq)).value < Fq::modulus())) return true;
        const auto p = point(f, at);
        return !p.is_infinity() && !Curve::on_curve(p);
      });
    });
  }

  std::ptrdiff_t find_outside_subgroup(Group group, const u8* points, std::size_t n,
                                       int threads) const override {
    return with_field(group, [&](auto f) {
      return find_first(threads, n, 1, [&](std::size_t i) {
        return !Curve::in_subgroup(point(f, points + i * sizeof(Affine<decltype(f)>)));
      });
    });
  }

  void to_montgomery(bool base_field, const u8* x, u8* out, std::size_t n) const override {
    base_field ? convert_to<Fq>(x, out, n) : convert_to<Fr>(x, out, n);
  }
  void from_montgomery(bool base_field, const u8* x, u8* out, std::size_t n) const override {
    base_field ? convert_from<Fq>(x, out, n) : convert_from<Fr>(x, out, n);
  }

 private:
  static constexpr std::size_t grain = 1024;

  template <class F>
  static Affine<F> point(const F&, const u8* at) {
    return load<Affine<F>>(at);
  }
  template <class F>
  static Msm<F, Fr> msm_of(const F&, std::size_t n, int threads) {
    return {n, threads};
  }
  template <class F>
  static void convert_to(const u8* x, u8* out, std::size_t n) {
    for (std::size_t i = 0; i < n * sizeof(F); i += sizeof(F))
      store(out + i, F::from_integer(load<typename F::Integer>(x + i)));
  }
  template <class F>
  static void convert_from(const u8* x, u8* out, std::size_t n) {
    for (std::size_t i = 0; i < n * sizeof(F); i += sizeof(F))
      store(out + i, load<F>(x + i).to_integer());
  }
};

}  // namespace prover
