#include <nanobind/stl/string.h>

#include <cstring>

#include "bind.hpp"
#include "bind_support.hpp"
#include "columns.hpp"
#include "fixed_base.hpp"

namespace prover {

namespace {

template <class Scalar>
using ConstColumn = nb::ndarray<const Scalar, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

bool are_scalars(const ConstByteRows& rows, std::size_t n) {
  return rows.shape(0) == n && rows.shape(1) == scalar_bytes;
}

// F is the field of the group's coordinates.
template <class Curve, class F>
void fixed_base_in(const ConstByteRows& base, const ConstByteRows& scalars, const ByteRows& out,
                   int threads) {
  using Integer = typename Curve::Fr::Integer;
  const std::size_t n = scalars.shape(0);
  require(base.shape(0) == 1 && base.shape(1) == sizeof(Affine<F>), "base is not one point");
  require(are_scalars(scalars, n), "scalars have 32 bytes");
  require(out.shape(0) == n && out.shape(1) == sizeof(Affine<F>), "out has no row for each scalar");
  Affine<F> point;
  std::memcpy(static_cast<void*>(&point), base.data(), sizeof(point));
  const std::uint8_t* in = scalars.data();
  std::uint8_t* result = out.data();

  nb::gil_scoped_release released;
  FixedBase<F, Integer> table(point, n);
  in_parallel(table.windows(), threads, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) table.fill_window(i);
  });
  in_parallel(n, threads, [&](std::size_t begin, std::size_t end) {
    constexpr std::size_t block = 256;
    std::vector<Xyzz<F>> sums(block);
    std::vector<Affine<F>> affine(block);
    for (std::size_t at = begin; at < end; at += block) {
      const std::size_t count = std::min(block, end - at);
      for (std::size_t i = 0; i < count; ++i) {
        sums[i] = table.multiple(load_scalar<typename Curve::Fr>(in, at + i));
      }
      to_affine_batch(sums.data(), affine.data(), count);
      std::memcpy(result + at * sizeof(Affine<F>), affine.data(), count * sizeof(Affine<F>));
    }
  });
}

void fixed_base(const std::string& curve, int group, const ConstByteRows& base,
                const ConstByteRows& scalars, const ByteRows& out, int threads) {
  require(group == 1 || group == 2, "group is 1 or 2");
  with_curve(curve, [&](auto tag) {
    using Curve = decltype(tag);
    if (group == 1) {
      fixed_base_in<Curve, typename Curve::Fq>(base, scalars, out, threads);
    } else {
      fixed_base_in<Curve, typename Curve::Fq2>(base, scalars, out, threads);
    }
  });
}

void lagrange(const std::string& curve, const ConstByteRows& omega, std::uint64_t order,
              std::uint64_t first, std::uint64_t step, const ConstByteRows& tau,
              const ConstByteRows& scale, const ByteRows& out, int threads) {
  const std::size_t n = out.shape(0);
  require(are_scalars(omega, 1) && are_scalars(tau, 1) && are_scalars(scale, 1) &&
              out.shape(1) == scalar_bytes,
          "scalars have 32 bytes");
  require(order != 0 && (order & (order - 1)) == 0, "order is a power of two");
  with_curve(curve, [&](auto tag) {
    using Fr = typename decltype(tag)::Fr;
    auto scalar = [](const ConstByteRows& row) {
      return Fr::from_integer(load_scalar<Fr>(row.data(), 0));
    };
    const LagrangeBasis<Fr> basis(scalar(omega), order, scalar(tau), scalar(scale));
    std::uint8_t* result = out.data();
    nb::gil_scoped_release released;
    in_parallel(n, threads, [&](std::size_t begin, std::size_t end) {
      basis.rows(first, step, begin, end, result);
    });
  });
}

void bind_columns(
    const std::string& curve, const ConstColumn<std::uint8_t>& matrix,
    const ConstColumn<std::uint32_t>& constraint, const ConstColumn<std::uint32_t>& wire,
    const ConstByteRows& value, const ConstByteRows& weights,
    const nb::ndarray<std::uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>& out) {
  const std::size_t n = matrix.shape(0), wires = out.shape(1);
  require(constraint.shape(0) == n && wire.shape(0) == n && are_scalars(value, n),
          "a term needs a matrix, a constraint, a wire and a value");
  require(weights.shape(1) == scalar_bytes && out.shape(0) == 3 && out.shape(2) == scalar_bytes,
          "weights and columns hold scalars of 32 bytes");
  with_curve(curve, [&](auto tag) {
    nb::gil_scoped_release released;
    add_to_columns<typename decltype(tag)::Fr>(n, matrix.data(), constraint.data(), wire.data(),
                                               value.data(), weights.data(), wires, out.data());
  });
}

void bind_weighted_sum(const std::string& curve, const ConstByteRows& weights,
                       const ConstByteRows& a, const ConstByteRows& b, const ConstByteRows& c,
                       const ByteRows& out, int threads) {
  const std::size_t n = out.shape(0);
  require(are_scalars(weights, 3) && are_scalars(a, n) && are_scalars(b, n) && are_scalars(c, n) &&
              out.shape(1) == scalar_bytes,
          "three weights, and rows of a, b, c and out of the same number, are needed");
  with_curve(curve, [&](auto tag) {
    const std::uint8_t *w = weights.data(), *x = a.data(), *y = b.data(), *z = c.data();
    std::uint8_t* result = out.data();
    nb::gil_scoped_release released;
    in_parallel(n, threads, [&](std::size_t begin, std::size_t end) {
      weighted_sum<typename decltype(tag)::Fr>(w, x, y, z, begin, end, result);
    });
  });
}

}  // namespace

void bind_setup(nb::module_& m) {
  m.def("fixed_base", fixed_base, nb::arg("curve"), nb::arg("group"), nb::arg("base"),
        nb::arg("scalars"), nb::arg("out"), nb::arg("threads") = 0);
  m.def("lagrange", lagrange, nb::arg("curve"), nb::arg("omega"), nb::arg("order"),
        nb::arg("first"), nb::arg("step"), nb::arg("tau"), nb::arg("scale"), nb::arg("out"),
        nb::arg("threads") = 0);
  m.def("add_to_columns", bind_columns, nb::arg("curve"), nb::arg("matrix"), nb::arg("constraint"),
        nb::arg("wire"), nb::arg("value"), nb::arg("weights"), nb::arg("columns"));
  m.def("weighted_sum", bind_weighted_sum, nb::arg("curve"), nb::arg("weights"), nb::arg("a"),
        nb::arg("b"), nb::arg("c"), nb::arg("out"), nb::arg("threads") = 0);
}

}  // namespace prover
