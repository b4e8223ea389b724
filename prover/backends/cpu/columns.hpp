// The scalars of a setup: Lagrange polynomials and the QAP's columns at one secret point.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "memory.hpp"

namespace prover {

// L_k(tau) = (tau^n - 1) omega^k / (n (tau - omega^k)), up to a scale.
template <class Fr>
class LagrangeBasis {
 public:
  LagrangeBasis(const Fr& omega, std::uint64_t order, const Fr& tau, const Fr& scale)
      : omega_(omega), tau_(tau), factor_(scale * (power(tau, order) - Fr::one())) {
    // 1 / order without its inverse modulo r: halving order down to 1.
    const Fr half = Fr::from_small(2).inverse();
    for (; order > 1; order /= 2) factor_ = factor_ * half;
  }

  // Rows begin to end of out, in Montgomery form; row i is L_k for k = first + i step.
  void rows(std::uint64_t first, std::uint64_t step, std::size_t begin, std::size_t end,
            u8* out) const {
    Fr root[block], distance[block], scratch[block];
    Fr next = power(omega_, first + begin * step);
    const Fr ratio = power(omega_, step);
    for (std::size_t at = begin; at < end; at += block) {
      const int n = static_cast<int>(std::min(block, end - at));
      for (int i = 0; i < n; ++i) {
        root[i] = next;
        distance[i] = tau_ - next;
        next = next * ratio;
      }
      invert_batch(distance, scratch, n);
      for (int i = 0; i < n; ++i) {
        store(out + (at + i) * sizeof(Fr), factor_ * root[i] * distance[i]);
      }
    }
  }

 private:
  static constexpr std::size_t block = 256;
  Fr omega_, tau_, factor_;

  static Fr power(const Fr& base, std::uint64_t exponent) {
    Fr out = Fr::one();
    for (int bit = 63; bit >= 0; --bit) {
      out = out.squared();
      if (exponent >> bit & 1) out = out * base;
    }
    return out;
  }
};

// Terms of a circuit's linear combinations, one array a field; values are in standard form.
struct Terms {
  const u8* matrix;
  const u32* constraint;
  const u32* wire;
  const u8* values;
  std::size_t count;
};

// columns[matrix, wire] += value weights[constraint]: a standard value times a weight in
// Montgomery form is standard.
template <class Fr>
void add_to_columns(const Terms& terms, const u8* weights, std::size_t wires, u8* columns) {
  const Rows<Fr> values(terms.values, terms.count);
  for (std::size_t i = 0; i < terms.count; ++i) {
    const Fr weight = load<Fr>(weights + terms.constraint[i] * sizeof(Fr));
    u8* sum = columns + (terms.matrix[i] * wires + terms.wire[i]) * sizeof(Fr);
    store(sum, load<Fr>(sum) + values[i] * weight);
  }
}

// weights[0] a + weights[1] b + weights[2] c, all in standard form.
template <class Fr>
class WeightedSum {
 public:
  WeightedSum(const u8* weights, const u8* a, const u8* b, const u8* c) : columns_{a, b, c} {
    for (int j = 0; j < 3; ++j) {
      weights_[j] =
          Fr::from_integer(load<typename Fr::Integer>(weights + j * sizeof(typename Fr::Integer)));
    }
  }

  void rows(std::size_t begin, std::size_t end, u8* out) const {
    for (std::size_t i = begin; i < end; ++i) {
      Fr sum = Fr::zero();
      for (int j = 0; j < 3; ++j) sum = sum + weights_[j] * load<Fr>(columns_[j] + i * sizeof(Fr));
      store(out + i * sizeof(Fr), sum);
    }
  }

 private:
  Fr weights_[3];
  const u8* columns_[3];
};

}  // namespace prover
