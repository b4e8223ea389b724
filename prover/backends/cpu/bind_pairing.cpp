#include <nanobind/stl/string.h>

#include <cstring>

#include "bind.hpp"
#include "bind_support.hpp"
#include "pairing_curves.hpp"

namespace prover {

namespace {

template <class Curve>
using PairingOn = Pairing<typename PairingOf<Curve>::type>;

// Its constants cost a thousand multiplications: made once, at first use.
template <class Curve>
const PairingOn<Curve>& pairing() {
  static const PairingOn<Curve> instance;
  return instance;
}

// The pairs of finite points: infinity pairs with everything to one.
template <class Curve>
std::vector<typename PairingOn<Curve>::Pair> finite_pairs(const ConstByteRows& g1,
                                                          const ConstByteRows& g2) {
  using P = typename PairingOn<Curve>::G1;
  using Q = typename PairingOn<Curve>::G2;
  require(g1.shape(0) == g2.shape(0), "as many points of G1 as of G2 are needed");
  require(g1.shape(1) == sizeof(P) && g2.shape(1) == sizeof(Q), "rows are not points of the curve");
  std::vector<typename PairingOn<Curve>::Pair> pairs;
  for (std::size_t i = 0; i < g1.shape(0); ++i) {
    P p;
    Q q;
    std::memcpy(static_cast<void*>(&p), g1.data() + i * sizeof(P), sizeof(P));
    std::memcpy(static_cast<void*>(&q), g2.data() + i * sizeof(Q), sizeof(Q));
    if (!p.is_infinity() && !q.is_infinity()) pairs.push_back({p, q});
  }
  return pairs;
}

bool pairing_product_is_one(const std::string& curve, const ConstByteRows& g1,
                            const ConstByteRows& g2) {
  return with_curve(curve, [&](auto tag) {
    using Curve = decltype(tag);
    const auto pairs = finite_pairs<Curve>(g1, g2);
    nb::gil_scoped_release released;
    return pairing<Curve>().product(pairs) == PairingOn<Curve>::Target::one();
  });
}

nb::object pairing_product(const std::string& curve, const ConstByteRows& g1,
                           const ConstByteRows& g2) {
  return with_curve(curve, [&](auto tag) -> nb::object {
    using Curve = decltype(tag);
    using Fq = typename Curve::Fq;
    const auto pairs = finite_pairs<Curve>(g1, g2);
    auto* coefficients = new std::uint8_t[12 * sizeof(Fq)];
    nb::capsule owner(coefficients,
                      [](void* p) noexcept { delete[] static_cast<std::uint8_t*>(p); });
    {
      nb::gil_scoped_release released;
      const auto f = pairing<Curve>().product(pairs);
      static_assert(sizeof(f) == 12 * sizeof(Fq));
      std::memcpy(coefficients, &f, sizeof(f));
    }
    const std::size_t shape[] = {12, sizeof(Fq)};
    return nb::cast(nb::ndarray<nb::numpy, std::uint8_t>(coefficients, 2, shape, owner));
  });
}

}  // namespace

void bind_pairing(nb::module_& m) {
  m.def("pairing_product_is_one", pairing_product_is_one, nb::arg("curve"), nb::arg("g1"),
        nb::arg("g2"));
  m.def("pairing_product", pairing_product, nb::arg("curve"), nb::arg("g1"), nb::arg("g2"));
}

}  // namespace prover
