// The sparse matrices of a zkey's section 4 times the witness, on all cores.
#pragma once

#include "memory.hpp"
#include "sparse.cuh"
#include "threads.hpp"

namespace prover {

template <class F>
class SparseProduct {
 public:
  SparseProduct(const u8* terms, std::size_t count, const u8* witness, int threads)
      : terms_(terms, count), witness_(witness), threads_(threads) {}

  // a, b <- matrices 0 and 1 times the witness, n rows of each; c, unless null, <- their product.
  // Each task owns a range of rows, and finds their terms by bisection if the terms are sorted by
  // row, as snarkjs writes them; else it looks at all.
  void run(u8* a, u8* b, u8* c, std::size_t n) const {
    const bool sorted = find_first(threads_, terms_.size(), 4096, [this](std::size_t i) {
                          return i > 0 && row_of(i) < row_of(i - 1);
                        }) < 0;
    const std::size_t grain = sorted ? 256 : (n + threads_ - 1) / threads_;
    parallel_ranges(threads_, n, grain, [&](Range rows, int) {
      if (sorted)
        gather(rows, a, b, c);
      else
        scatter(rows, a, b, c);
    });
  }

 private:
  // Terms ahead of the one in work whose witness values are asked for: random places in memory
  static constexpr std::size_t distance = 16;

  // Row by row: each is written once, its sums stay in registers.
  void gather(Range rows, u8* a, u8* b, u8* c) const {
    const std::size_t end = first_term(rows.end);
    std::size_t i = first_term(rows.begin);
    for (std::size_t row = rows.begin; row < rows.end; ++row) {
      F sums[2] = {F::zero(), F::zero()};
      for (; i < end && row_of(i) == row; ++i) {
        if (i + distance < end) __builtin_prefetch(value_at(i + distance));
        add(terms_[i], sums);
      }
      put(row, sums, a, b, c);
    }
  }

  void scatter(Range rows, u8* a, u8* b, u8* c) const {
    std::memset(a + rows.begin * sizeof(F), 0, (rows.end - rows.begin) * sizeof(F));
    std::memset(b + rows.begin * sizeof(F), 0, (rows.end - rows.begin) * sizeof(F));
    for (std::size_t i = 0; i < terms_.size(); ++i) {
      const Term<F> term = terms_[i];
      if (term.constraint < rows.begin || term.constraint >= rows.end) continue;
      const std::size_t at = term.constraint * sizeof(F);
      F sums[2] = {load<F>(a + at), load<F>(b + at)};
      add(term, sums);
      put(term.constraint, sums, a, b, nullptr);
    }
    if (c == nullptr) return;
    for (std::size_t row = rows.begin; row < rows.end; ++row) {
      const std::size_t at = row * sizeof(F);
      store(c + at, load<F>(a + at) * load<F>(b + at));
    }
  }

  void add(const Term<F>& term, F* sums) const {
    const auto w = load<typename F::Integer>(witness_ + term.signal * sizeof(F));
    if (w.is_zero()) return;
    F& sum = sums[term.matrix == 0 ? 0 : 1];
    sum = sum + term.times(w);
  }

  static void put(std::size_t row, const F* sums, u8* a, u8* b, u8* c) {
    store(a + row * sizeof(F), sums[0]);
    store(b + row * sizeof(F), sums[1]);
    if (c != nullptr) store(c + row * sizeof(F), sums[0] * sums[1]);
  }

  // Without the rest of the term
  std::size_t row_of(std::size_t i) const {
    return load<u32>(terms_.at(i) + offsetof(Term<F>, constraint));
  }
  const u8* value_at(std::size_t i) const {
    return witness_ + load<u32>(terms_.at(i) + offsetof(Term<F>, signal)) * sizeof(F);
  }

  // The first term of a row not below `row`, among sorted terms
  std::size_t first_term(std::size_t row) const {
    std::size_t begin = 0, end = terms_.size();
    while (begin < end) {
      const std::size_t middle = begin + (end - begin) / 2;
      if (row_of(middle) < row)
        begin = middle + 1;
      else
        end = middle;
    }
    return begin;
  }

  Rows<Term<F>> terms_;
  const u8* witness_;
  int threads_;
};

}  // namespace prover
