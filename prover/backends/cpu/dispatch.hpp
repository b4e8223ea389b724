// From a curve's name to its type, over the arithmetic that the engines use.
#pragma once

#include <cstring>
#include <stdexcept>
#include <string>

#include "adx.hpp"
#include "bls12381.cuh"
#include "bn128.cuh"
#include "engine.hpp"

namespace prover {

template <class ArithType, class Work>
auto with_curve_over(const std::string& name, Work&& work) {
  if (name == "bn128") return work(Bn128<ArithType>{});
  if (name == "bls12381") return work(Bls12381<ArithType>{});
  throw std::invalid_argument("unknown curve '" + name + "': it is bn128 or bls12381");
}

// Calls work with a value of the curve's type.
template <class Work>
auto with_curve(const std::string& name, Work&& work) {
#if defined(__x86_64__)
  if (std::strcmp(arithmetic(), "adx") == 0) return with_curve_over<Adx>(name, work);
#endif
  return with_curve_over<Portable<u64>>(name, work);
}

}  // namespace prover
