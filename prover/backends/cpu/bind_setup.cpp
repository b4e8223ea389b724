// What a setup computes: scalars of the key, and multiples of the generators.
#include <vector>

#include "bind.hpp"
#include "columns.hpp"
#include "dispatch.hpp"
#include "fixed_base.hpp"
#include "threads.hpp"

namespace prover {

namespace {

constexpr std::size_t scalar_bytes = 32;
constexpr std::size_t grain = 1024;
constexpr auto write = Bytes::Access::write;
using nb::literals::operator""_a;
using Indices = nb::ndarray<const u32, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void fixed_base(const std::string& curve, int group, nb::handle base, nb::handle scalars,
                nb::handle out, int threads) {
  const Bytes point(base, "base"), in(scalars, "scalars"), result(out, "out", write);
  const std::size_t n = in.rows(scalar_bytes), width = engine(curve).point_bytes(group_of(group));
  const int workers = threads_of(threads);
  point.expect_row(width);
  result.expect_rows(n, width);
  nb::gil_scoped_release release;
  with_curve(curve, [&](auto of) {
    using Curve = decltype(of);
    using Fr = typename Curve::Fr;
    if (group == 1)
      multiples<typename Curve::Fq, Fr>(point.data(), in.data(), n, result.data(), workers);
    else
      multiples<typename Curve::Fq2, Fr>(point.data(), in.data(), n, result.data(), workers);
  });
}

void lagrange(const std::string& curve, nb::handle omega, std::uint64_t order, std::uint64_t first,
              std::uint64_t step, nb::handle tau, nb::handle scale, nb::handle out, int threads) {
  const Bytes root(omega, "omega"), at(tau, "tau"), factor(scale, "scale"),
      result(out, "out", write);
  const std::size_t n = result.rows(scalar_bytes);
  const int workers = threads_of(threads);
  for (const Bytes* scalar : {&root, &at, &factor}) scalar->expect_row(scalar_bytes);
  if (order == 0 || (order & (order - 1)) != 0)
    throw nb::value_error("order: expected a power of two");
  nb::gil_scoped_release release;
  with_curve(curve, [&](auto of) {
    using Fr = typename decltype(of)::Fr;
    auto field = [](const Bytes& x) {
      return Fr::from_integer(load<typename Fr::Integer>(x.data()));
    };
    const LagrangeBasis<Fr> basis(field(root), order, field(at), field(factor));
    parallel_ranges(workers, n, grain, [&](Range range, int) {
      basis.rows(first, step, range.begin, range.end, result.data());
    });
  });
}

void add_terms(const std::string& curve, nb::handle matrix, const Indices& constraint,
               const Indices& wire, nb::handle value, nb::handle weights, nb::handle columns) {
  const Bytes which(matrix, "matrix"), values(value, "value"), factors(weights, "weights"),
      sums(columns, "columns", write);
  const std::size_t n = values.rows(scalar_bytes);
  if (which.size() != n || constraint.shape(0) != n || wire.shape(0) != n)
    throw nb::value_error("expected a matrix, a constraint and a wire for each value");
  factors.rows(scalar_bytes);
  if (sums.size() % (3 * scalar_bytes) != 0)
    throw nb::value_error("columns: expected shape (3, wires, 32)");
  const Terms terms{which.data(), constraint.data(), wire.data(), values.data(), n};
  const std::size_t wires = sums.size() / (3 * scalar_bytes);
  nb::gil_scoped_release release;
  with_curve(curve, [&](auto of) {
    add_to_columns<typename decltype(of)::Fr>(terms, factors.data(), wires, sums.data());
  });
}

void sum_weighted(const std::string& curve, nb::handle weights, nb::handle a, nb::handle b,
                  nb::handle c, nb::handle out, int threads) {
  const Bytes w(weights, "weights"), x(a, "a"), y(b, "b"), z(c, "c"), result(out, "out", write);
  const std::size_t n = result.rows(scalar_bytes);
  const int workers = threads_of(threads);
  w.expect_rows(3, scalar_bytes);
  for (const Bytes* column : {&x, &y, &z}) column->expect_rows(n, scalar_bytes);
  nb::gil_scoped_release release;
  with_curve(curve, [&](auto of) {
    const WeightedSum<typename decltype(of)::Fr> sum(w.data(), x.data(), y.data(), z.data());
    parallel_ranges(workers, n, grain,
                    [&](Range range, int) { sum.rows(range.begin, range.end, result.data()); });
  });
}

}  // namespace

void bind_setup(nb::module_& m) {
  m.def("fixed_base", fixed_base, "curve"_a, "group"_a, "base"_a, "scalars"_a, "out"_a,
        "threads"_a = 0);
  m.def("lagrange", lagrange, "curve"_a, "omega"_a, "order"_a, "first"_a, "step"_a, "tau"_a,
        "scale"_a, "out"_a, "threads"_a = 0);
  m.def("add_to_columns", add_terms, "curve"_a, "matrix"_a, "constraint"_a, "wire"_a, "value"_a,
        "weights"_a, "columns"_a);
  m.def("weighted_sum", sum_weighted, "curve"_a, "weights"_a, "a"_a, "b"_a, "c"_a, "out"_a,
        "threads"_a = 0);
}

}  // namespace prover
