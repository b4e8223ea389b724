// What only tests want: each arithmetic by itself, the one of the device included.
#include <stdexcept>
#include <vector>

#include "adx.hpp"
#include "bind.hpp"
#include "bls12381.cuh"
#include "bn128.cuh"
#include "memory.hpp"
#include "ptx.cuh"

namespace prover {

namespace {

using nb::literals::operator""_a;

template <class F>
F element_operation(const std::string& operation, const F& x, const F& y) {
  if (operation == "add") return x + y;
  if (operation == "sub") return x - y;
  if (operation == "neg") return -x;
  if (operation == "mul") return x * y;
  if (operation == "sqr") return x.squared();
  if (operation == "inverse") return x.inverse();
  throw std::invalid_argument("unknown operation '" + operation + "'");
}

template <class F>
Affine<F> point_operation(const std::string& operation, const Affine<F>& p, const Affine<F>& q) {
  using Point = Xyzz<F>;
  const Point x = Point::from_affine(p), y = Point::from_affine(q);
  if (operation == "add_mixed") return (x + q).to_affine();
  if (operation == "add") return (x + y).to_affine();
  // with denominators other than 1: (2p + q) + (-p) and so on
  if (operation == "add_projective") return ((x.twice() + y) + (-x).twice().twice()).to_affine();
  if (operation == "twice_mixed") return Point::twice(p).to_affine();
  if (operation == "twice") return x.twice().to_affine();
  throw std::invalid_argument("unknown operation '" + operation + "'");
}

template <class Work>
void for_rows(const Bytes& x, const Bytes& y, const Bytes& out, std::size_t width, Work&& work) {
  const std::size_t n = x.rows(width);
  y.expect_rows(n, width);
  out.expect_rows(n, width);
  for (std::size_t i = 0; i < n; ++i)
    work(x.data() + i * width, y.data() + i * width, out.data() + i * width);
}

template <class F>
void elements(const std::string& operation, const Bytes& x, const Bytes& y, const Bytes& out) {
  if (operation == "inverse_batch") {
    const std::size_t n = x.rows(sizeof(F));
    out.expect_rows(n, sizeof(F));
    std::vector<F> values(n), scratch(n);
    for (std::size_t i = 0; i < n; ++i) values[i] = load<F>(x.data() + i * sizeof(F));
    invert_batch(values.data(), scratch.data(), int(n));
    for (std::size_t i = 0; i < n; ++i) store(out.data() + i * sizeof(F), values[i]);
    return;
  }
  for_rows(x, y, out, sizeof(F), [&](const u8* a, const u8* b, u8* c) {
    store(c, element_operation(operation, load<F>(a), load<F>(b)));
  });
}

template <class F>
void points(const std::string& operation, const Bytes& x, const Bytes& y, const Bytes& out) {
  for_rows(x, y, out, sizeof(Affine<F>), [&](const u8* a, const u8* b, u8* c) {
    store(c, point_operation(operation, load<Affine<F>>(a), load<Affine<F>>(b)));
  });
}

template <class Curve>
void operate(const std::string& set, const std::string& operation, const Bytes& x, const Bytes& y,
             const Bytes& out) {
  if (set == "scalar") return elements<typename Curve::Fr>(operation, x, y, out);
  if (set == "base") return elements<typename Curve::Fq>(operation, x, y, out);
  if (set == "extension") return elements<typename Curve::Fq2>(operation, x, y, out);
  if (set == "g1") return points<typename Curve::Fq>(operation, x, y, out);
  if (set == "g2") return points<typename Curve::Fq2>(operation, x, y, out);
  throw std::invalid_argument("unknown set '" + set + "'");
}

template <class Arith>
void operate_with(const std::string& curve, const std::string& set, const std::string& operation,
                  const Bytes& x, const Bytes& y, const Bytes& out) {
  if (curve == "bn128") return operate<Bn128<Arith>>(set, operation, x, y, out);
  if (curve == "bls12381") return operate<Bls12381<Arith>>(set, operation, x, y, out);
  throw std::invalid_argument("unknown curve '" + curve + "'");
}

// out[i] <- operation(x[i], y[i]) in a field ("scalar", "base", "extension") or group ("g1", "g2")
void test_operation(const std::string& arithmetic, const std::string& curve, const std::string& set,
                    const std::string& operation, nb::handle x, nb::handle y, nb::handle out) {
  const Bytes left(x, "x"), right(y, "y"), result(out, "out", Bytes::Access::write);
  if (arithmetic == "portable32")
    return operate_with<Portable<u32>>(curve, set, operation, left, right, result);
  if (arithmetic == "ptx") return operate_with<Ptx>(curve, set, operation, left, right, result);
  if (arithmetic == "portable")
    return operate_with<Portable<u64>>(curve, set, operation, left, right, result);
#if defined(__x86_64__)
  if (arithmetic == "adx" && cpu_has_adx())
    return operate_with<Adx>(curve, set, operation, left, right, result);
#endif
  throw std::invalid_argument("this CPU has no arithmetic '" + arithmetic + "'");
}

}  // namespace

void bind_testing(nb::module_& m) {
  m.def("_use_arithmetic", use_arithmetic, "name"_a);
  m.def("_test_operation", test_operation, "arithmetic"_a, "curve"_a, "set"_a, "operation"_a, "x"_a,
        "y"_a, "out"_a);
}

}  // namespace prover
