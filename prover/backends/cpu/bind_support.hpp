// Arrays, curves and threads for the bindings of this folder.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "adx.hpp"
#include "bls12381.cuh"
#include "bn128.cuh"

namespace prover {

namespace nb = nanobind;

using ByteRows = nb::ndarray<std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstByteRows = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class ArithType, class Function>
auto with_curve_over(const std::string& name, Function f) {
  if (name == "bn128") return f(Bn128<ArithType>{});
  if (name == "bls12381") return f(Bls12381<ArithType>{});
  throw std::invalid_argument("unknown curve " + name);
}

// Calls f with a value whose type is the curve's, over the quickest arithmetic of this CPU.
template <class Function>
auto with_curve(const std::string& name, Function f) {
#if defined(__x86_64__)
  static const bool adx = cpu_has_adx();
  if (adx) return with_curve_over<Adx>(name, f);
#endif
  return with_curve_over<Portable<u64>>(name, f);
}

inline void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

// Calls f(begin, end) on threads for parts of 0 ... n - 1.
template <class Function>
void in_parallel(std::size_t n, int threads, Function f) {
  std::size_t parts = threads > 0 ? threads : std::thread::hardware_concurrency();
  parts = std::clamp<std::size_t>(parts, 1, std::max<std::size_t>(n, 1));
  std::vector<std::thread> workers;
  for (std::size_t i = 1; i < parts; ++i) {
    workers.emplace_back(f, n * i / parts, n * (i + 1) / parts);
  }
  f(0, n / parts);
  for (std::thread& worker : workers) worker.join();
}

}  // namespace prover
