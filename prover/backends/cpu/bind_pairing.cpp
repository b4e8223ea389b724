// Products of pairings.
#include <vector>

#include "bind.hpp"
#include "dispatch.hpp"
#include "memory.hpp"
#include "pairing_curves.hpp"

namespace prover {

namespace {

using nb::literals::operator""_a;

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
std::vector<typename PairingOn<Curve>::Pair> finite_pairs(const Bytes& g1, const Bytes& g2) {
  using P = typename PairingOn<Curve>::G1;
  using Q = typename PairingOn<Curve>::G2;
  const std::size_t n = g1.rows(sizeof(P));
  g2.expect_rows(n, sizeof(Q));
  std::vector<typename PairingOn<Curve>::Pair> pairs;
  for (std::size_t i = 0; i < n; ++i) {
    const P p = load<P>(g1.data() + i * sizeof(P));
    const Q q = load<Q>(g2.data() + i * sizeof(Q));
    if (!p.is_infinity() && !q.is_infinity()) pairs.push_back({p, q});
  }
  return pairs;
}

bool pairing_product_is_one(const std::string& curve, nb::handle g1, nb::handle g2) {
  const Bytes left(g1, "g1"), right(g2, "g2");
  return with_curve(curve, [&](auto of) {
    using Curve = decltype(of);
    const auto pairs = finite_pairs<Curve>(left, right);
    nb::gil_scoped_release release;
    return pairing<Curve>().product(pairs) == PairingOn<Curve>::Target::one();
  });
}

nb::object pairing_product(const std::string& curve, nb::handle g1, nb::handle g2) {
  const Bytes left(g1, "g1"), right(g2, "g2");
  return with_curve(curve, [&](auto of) {
    using Curve = decltype(of);
    const auto pairs = finite_pairs<Curve>(left, right);
    return new_row(sizeof(typename PairingOn<Curve>::Target),
                   [&](u8* out) { store(out, pairing<Curve>().product(pairs)); });
  });
}

}  // namespace

void bind_pairing(nb::module_& m) {
  m.def("pairing_product_is_one", pairing_product_is_one, "curve"_a, "g1"_a, "g2"_a);
  m.def("pairing_product", pairing_product, "curve"_a, "g1"_a, "g2"_a);
}

}  // namespace prover
