// What the pairing needs to know of each curve: the tower's xi, the loop, the twist, and the hard
// part of the final exponentiation.
#pragma once

#include <cstdint>

#include "bls12381.cuh"
#include "bn128.cuh"
#include "pairing.hpp"

namespace prover {

template <class ArithType>
struct Bn128Pairing : Bn128<ArithType> {
  using Fp2 = typename Bn128<ArithType>::Fq2;
  using typename Bn128<ArithType>::Fq;
  using Bn128<ArithType>::times_nonresidue;
  using Target = Fp12<Bn128Pairing>;

  static constexpr std::uint64_t u = 4965661367192848881;
  static constexpr unsigned __int128 loop = static_cast<unsigned __int128>(6) * u + 2;
  static constexpr bool negative_loop = false;
  static constexpr bool barreto_naehrig = true;

  // The twist is y^2 = x^3 + 3 / xi.
  static Fp2 three_b() {
    return Fp2{Fq::from_small(9), Fq::zero()} * times_nonresidue(Fp2::one()).inverse();
  }

  static void times_line(Target& f, const Line<Fp2>& line) {
    times_line_of_d_twist<Bn128Pairing>(f, line);
  }

  // The power 2u (6u^2 + 3u + 1) (q^4 - q^2 + 1) / r, in base q: Fuentes-Castaneda, Knapp and
  // Rodriguez-Henriquez, "Faster hashing to G2", 2011.
  template <class Pairing>
  static Target hard_part(const Pairing& pairing, const Target& f) {
    const Target f_2u = power(f, u).cyclotomic_squared();
    const Target f_6u = f_2u.cyclotomic_squared() * f_2u;
    const Target f_6u2 = power(f_6u, u);
    const Target f_12u3 = power(f_6u2.cyclotomic_squared(), u);
    const Target e2 = f_12u3 * f_6u2 * f_6u;  // 12u^3 + 6u^2 + 6u
    const Target e1 = e2 * f_2u.conjugate();  // 12u^3 + 6u^2 + 4u
    const Target e0 = e2 * f_6u2 * f;         // 12u^3 + 12u^2 + 6u + 1
    const Target e3 = e1 * f.conjugate();     // 12u^3 + 6u^2 + 4u - 1
    return e0 * pairing.frobenius(e1, 1) * pairing.frobenius(e2, 2) * pairing.frobenius(e3, 3);
  }
};

template <class ArithType>
struct Bls12381Pairing : Bls12381<ArithType> {
  using Fp2 = typename Bls12381<ArithType>::Fq2;
  using typename Bls12381<ArithType>::Fq;
  using Bls12381<ArithType>::times_nonresidue;
  using Target = Fp12<Bls12381Pairing>;

  static constexpr std::uint64_t minus_x = 0xd201000000010000;
  static constexpr unsigned __int128 loop = minus_x;
  static constexpr bool negative_loop = true;
  static constexpr bool barreto_naehrig = false;

  // The twist is y^2 = x^3 + 4 xi.
  static Fp2 three_b() { return times_nonresidue({Fq::from_small(12), Fq::zero()}); }

  static void times_line(Target& f, const Line<Fp2>& line) {
    times_line_of_m_twist<Bls12381Pairing>(f, line);
  }

  // The power 3 (q^4 - q^2 + 1) / r = (x - 1)^2 (x + q) (x^2 + q^2 - 1) + 3: Hayashida, Hayasaka
  // and Teruya, "Efficient final exponentiation via cyclotomic structure for pairings over
  // families of elliptic curves", 2020.
  template <class Pairing>
  static Target hard_part(const Pairing& pairing, const Target& f) {
    auto to_x = [](const Target& a) { return power(a, minus_x).conjugate(); };
    auto to_x_minus_1 = [&](const Target& a) { return to_x(a) * a.conjugate(); };
    const Target g = to_x_minus_1(to_x_minus_1(f));
    const Target h = to_x(g) * pairing.frobenius(g, 1);
    const Target k = to_x(to_x(h)) * pairing.frobenius(h, 2) * h.conjugate();
    return k * f.cyclotomic_squared() * f;
  }
};

// What a curve of the kernels is to the pairing.
template <class Curve>
struct PairingOf;
template <class ArithType>
struct PairingOf<Bn128<ArithType>> {
  using type = Bn128Pairing<ArithType>;
};
template <class ArithType>
struct PairingOf<Bls12381<ArithType>> {
  using type = Bls12381Pairing<ArithType>;
};

}  // namespace prover
