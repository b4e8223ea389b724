// A sparse matrix in compressed rows, whose coefficients are few and held once, times a vector.
#pragma once

#include "field.cuh"
#include "wide.cuh"

namespace prover {

// Threads that share a row too long for one
constexpr u32 long_row_threads = 128;

// One entry of a row
struct Entry {
  u32 column, coefficient;
};

template <class F>
struct CompressedRows {
  const u32* starts;  // row i has the entries [starts[i], starts[i + 1])
  const Entry* entries;
  const F* coefficients;  // v R^2 mod r, as in a zkey

  // The part of a row's product with x, in standard form, that starts at entry `first` and takes
  // every step-th from there: a sum in Montgomery form
  PROVER_INLINE F partial(u32 row, u32 first, u32 step, const typename F::Integer* x) const {
    F sum = F::zero();
    const u32 end = starts[row + 1];
    for (u32 i = starts[row] + first; i < end; i += step) {
      const Entry entry = entries[i];
      const auto w = load_constant(x + entry.column);
      // Most of a real witness is zero.
      if (w.is_zero()) continue;
      sum = sum + load_constant(coefficients + entry.coefficient) * F{w};
    }
    return sum;
  }
};

}  // namespace prover
