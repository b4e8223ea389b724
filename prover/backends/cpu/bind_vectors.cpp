// Vectors over the scalar field, and conversions of form.
#include <cstring>

#include "bind.hpp"
#include "threads.hpp"

namespace prover {

namespace {

constexpr std::size_t scalar_bytes = 32;
constexpr std::size_t term_bytes = 44;
constexpr auto write = Bytes::Access::write;
using nb::literals::operator""_a;

void sparse_product(const std::string& curve, nb::handle coefficients, nb::handle witness,
                    nb::handle a, nb::handle b, int threads) {
  const Engine& chosen = engine(curve);
  const Bytes terms(coefficients, "coefficients"), w(witness, "witness");
  const Bytes out_a(a, "a", write), out_b(b, "b", write);
  const std::size_t count = terms.rows(term_bytes), n = out_a.rows(scalar_bytes);
  w.rows(scalar_bytes);
  out_b.expect_rows(n, scalar_bytes);
  const int workers = threads_of(threads);
  nb::gil_scoped_release release;
  chosen.sparse_product(terms.data(), count, w.data(), out_a.data(), out_b.data(), nullptr, n,
                        workers);
}

void sparse_abc(const std::string& curve, nb::handle coefficients, nb::handle witness, nb::handle a,
                nb::handle b, nb::handle c, int threads) {
  const Engine& chosen = engine(curve);
  const Bytes terms(coefficients, "coefficients"), w(witness, "witness");
  const Bytes out_a(a, "a", write), out_b(b, "b", write), out_c(c, "c", write);
  const std::size_t count = terms.rows(term_bytes), n = out_a.rows(scalar_bytes);
  w.rows(scalar_bytes);
  out_b.expect_rows(n, scalar_bytes);
  out_c.expect_rows(n, scalar_bytes);
  const int workers = threads_of(threads);
  nb::gil_scoped_release release;
  chosen.sparse_product(terms.data(), count, w.data(), out_a.data(), out_b.data(), out_c.data(), n,
                        workers);
}

void copy(nb::handle x, nb::handle out, int threads) {
  constexpr std::size_t grain = 2048;  // rows of 16 pages
  const Bytes from(x, "x"), to(out, "out", write);
  const std::size_t n = from.rows(scalar_bytes);
  to.expect_rows(n, scalar_bytes);
  const int workers = threads_of(threads);
  nb::gil_scoped_release release;
  parallel_ranges(workers, n, grain, [&](Range range, int) {
    const std::size_t begin = range.begin * scalar_bytes, end = range.end * scalar_bytes;
    std::memcpy(to.data() + begin, from.data() + begin, end - begin);
  });
}

void multiply(const std::string& curve, nb::handle x, nb::handle y, nb::handle out, int threads) {
  const Engine& chosen = engine(curve);
  const Bytes left(x, "x"), right(y, "y"), product(out, "out", write);
  const std::size_t n = left.rows(scalar_bytes);
  right.expect_rows(n, scalar_bytes);
  product.expect_rows(n, scalar_bytes);
  const int workers = threads_of(threads);
  nb::gil_scoped_release release;
  chosen.multiply(left.data(), right.data(), product.data(), n, workers);
}

void odd_coset(const std::string& curve, nb::handle x, int threads) {
  const Engine& chosen = engine(curve);
  const Bytes values(x, "x", write);
  const std::size_t n = values.rows(scalar_bytes);
  int log = 0;
  while ((std::size_t(1) << log) < n) ++log;
  if (n != std::size_t(1) << log)
    throw nb::value_error("x: expected a number of rows that is a power of two");
  if (log + 1 > chosen.two_adicity())
    throw nb::value_error("x: the scalar field has no root of unity of twice this order");
  const int workers = threads_of(threads);
  nb::gil_scoped_release release;
  chosen.odd_coset(values.data(), log, workers);
}

void quotient(const std::string& curve, nb::handle a, nb::handle b, nb::handle c, nb::handle out,
              int threads) {
  const Engine& chosen = engine(curve);
  const Bytes left(a, "a"), right(b, "b"), product(c, "c"), values(out, "out", write);
  const std::size_t n = left.rows(scalar_bytes);
  right.expect_rows(n, scalar_bytes);
  product.expect_rows(n, scalar_bytes);
  values.expect_rows(n, scalar_bytes);
  const int workers = threads_of(threads);
  nb::gil_scoped_release release;
  chosen.quotient(left.data(), right.data(), product.data(), values.data(), n, workers);
}

std::ptrdiff_t find_not_below_order(const std::string& curve, nb::handle x, int threads) {
  const Engine& chosen = engine(curve);
  const Bytes scalars(x, "x");
  const std::size_t n = scalars.rows(scalar_bytes);
  const int workers = threads_of(threads);
  nb::gil_scoped_release release;
  return chosen.find_not_below_order(scalars.data(), n, workers);
}

void convert(const std::string& curve, const std::string& field, nb::handle x, nb::handle out,
             bool to_montgomery) {
  const Engine& chosen = engine(curve);
  const bool base = field == "base";
  if (!base && field != "scalar") throw nb::value_error("field: expected 'base' or 'scalar'");
  const std::size_t width = base ? chosen.coordinate_bytes(Group::g1) : scalar_bytes;
  const Bytes from(x, "x"), to(out, "out", write);
  const std::size_t n = from.rows(width);
  to.expect_rows(n, width);
  nb::gil_scoped_release release;
  if (to_montgomery)
    chosen.to_montgomery(base, from.data(), to.data(), n);
  else
    chosen.from_montgomery(base, from.data(), to.data(), n);
}

}  // namespace

void bind_vectors(nb::module_& m) {
  m.def("sparse_product", sparse_product, "curve"_a, "coefficients"_a, "witness"_a, "a"_a, "b"_a,
        "threads"_a = 0);
  m.def("sparse_abc", sparse_abc, "curve"_a, "coefficients"_a, "witness"_a, "a"_a, "b"_a, "c"_a,
        "threads"_a = 0);
  m.def("copy", copy, "x"_a, "out"_a, "threads"_a = 0);
  m.def("multiply", multiply, "curve"_a, "x"_a, "y"_a, "out"_a, "threads"_a = 0);
  m.def("odd_coset", odd_coset, "curve"_a, "x"_a, "threads"_a = 0);
  m.def("quotient", quotient, "curve"_a, "a"_a, "b"_a, "c"_a, "out"_a, "threads"_a = 0);
  m.def("find_not_below_order", find_not_below_order, "curve"_a, "x"_a, "threads"_a = 0);
  m.def(
      "to_montgomery",
      [](const std::string& curve, const std::string& field, nb::handle x, nb::handle out) {
        convert(curve, field, x, out, true);
      },
      "curve"_a, "field"_a, "x"_a, "out"_a);
  m.def(
      "from_montgomery",
      [](const std::string& curve, const std::string& field, nb::handle x, nb::handle out) {
        convert(curve, field, x, out, false);
      },
      "curve"_a, "field"_a, "x"_a, "out"_a);
}

}  // namespace prover
