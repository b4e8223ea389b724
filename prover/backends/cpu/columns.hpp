// The scalars of a setup: Lagrange polynomials and the QAP's columns at one secret point.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "field.cuh"

namespace prover {

constexpr std::size_t scalar_bytes = 32;

// Row i of an array of scalars of any alignment.
template <class Fr>
typename Fr::Integer load_scalar(const std::uint8_t* rows, std::size_t i) {
  static_assert(sizeof(typename Fr::Integer) == scalar_bytes);
  typename Fr::Integer out;
  std::memcpy(&out, rows + i * scalar_bytes, scalar_bytes);
  return out;
}

template <class Integer>
void store_scalar(std::uint8_t* rows, std::size_t i, const Integer& value) {
  std::memcpy(rows + i * scalar_bytes, &value, scalar_bytes);
}

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
            std::uint8_t* out) const {
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
        store_scalar(out, at + i, (factor_ * root[i] * distance[i]).value);
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

// columns[matrix, wire] += value weights[constraint]: a standard value times a weight in
// Montgomery form is standard.
template <class Fr>
void add_to_columns(std::size_t terms, const std::uint8_t* matrix, const std::uint32_t* constraint,
                    const std::uint32_t* wire, const std::uint8_t* values,
                    const std::uint8_t* weights, std::size_t wires, std::uint8_t* columns) {
  for (std::size_t i = 0; i < terms; ++i) {
    const Fr value{load_scalar<Fr>(values, i)};
    const Fr weight{load_scalar<Fr>(weights, constraint[i])};
    const std::size_t target = matrix[i] * wires + wire[i];
    const Fr sum{load_scalar<Fr>(columns, target)};
    store_scalar(columns, target, (sum + value * weight).value);
  }
}

// Rows begin to end of out <- weights[0] a + weights[1] b + weights[2] c.
template <class Fr>
void weighted_sum(const std::uint8_t* weights, const std::uint8_t* a, const std::uint8_t* b,
                  const std::uint8_t* c, std::size_t begin, std::size_t end, std::uint8_t* out) {
  Fr weight[3];
  for (int j = 0; j < 3; ++j) weight[j] = Fr::from_integer(load_scalar<Fr>(weights, j));
  auto row = [](const std::uint8_t* rows, std::size_t i) { return Fr{load_scalar<Fr>(rows, i)}; };
  for (std::size_t i = begin; i < end; ++i) {
    const Fr sum = weight[0] * row(a, i) + weight[1] * row(b, i) + weight[2] * row(c, i);
    store_scalar(out, i, sum.value);
  }
}

}  // namespace prover
