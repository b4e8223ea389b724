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

  // a, b <- matrices 0 and 1 times the witness, n rows of each. Each task owns a range of rows, and
  // finds their terms by bisection if the terms are sorted by row, as snarkjs writes them; else it
  // looks at all.
  void run(u8* a, u8* b, std::size_t n) const {
    const bool sorted = find_first(threads_, terms_.size(), 4096, [this](std::size_t i) {
                          return i > 0 && row_of(i) < row_of(i - 1);
                        }) < 0;
    const std::size_t grain = sorted ? 256 : (n + threads_ - 1) / threads_;
    parallel_ranges(threads_, n, grain, [&](Range rows, int) {
      std::memset(a + rows.begin * sizeof(F), 0, (rows.end - rows.begin) * sizeof(F));
      std::memset(b + rows.begin * sizeof(F), 0, (rows.end - rows.begin) * sizeof(F));
      const std::size_t begin = sorted ? first_term(rows.begin) : 0;
      const std::size_t end = sorted ? first_term(rows.end) : terms_.size();
      for (std::size_t i = begin; i < end; ++i) {
        const Term<F> term = terms_[i];
        if (term.constraint < rows.begin || term.constraint >= rows.end) continue;
        const auto w = load<typename F::Integer>(witness_ + term.signal * sizeof(F));
        if (w.is_zero()) continue;
        u8* sum = (term.matrix == 0 ? a : b) + term.constraint * sizeof(F);
        store(sum, load<F>(sum) + term.times(w));
      }
    });
  }

 private:
  std::size_t row_of(std::size_t i) const { return terms_[i].constraint; }

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
