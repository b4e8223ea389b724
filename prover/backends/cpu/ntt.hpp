// The transform between the two cosets, on all cores.
#pragma once

#include <algorithm>
#include <memory>

#include "memory.hpp"
#include "ntt.cuh"
#include "threads.hpp"

namespace prover {

// x <- NTT(omega_2N^i . iNTT(x)_i), N = 2^log elements.
//
// The stages with long blocks stream over the whole array; the rest is done block by block, so that
// a block stays in a core's cache through its last splits, the scaling and its first merges.
template <class F>
class OddCoset {
 public:
  OddCoset(u8* x, int log, int threads)
      : x_(x), log_(log), n_(std::size_t(1) << log), threads_(n_ < small ? 1 : threads) {
    fill_twiddles();
  }

  void run() const {
    const int leaf = std::min(log_, leaf_log);
    for (int stage = 0; stage < log_ - leaf; ++stage) wide_stage(stage, &OddCoset::split);
    parallel_for(threads_, n_ >> leaf, [&](std::size_t block, int) {
      for (int stage = log_ - leaf; stage < log_; ++stage)
        block_stage(block, leaf, stage, &OddCoset::split);
      scale(block << leaf, std::size_t(1) << leaf);
      for (int stage = log_; stage-- > log_ - leaf;)
        block_stage(block, leaf, stage, &OddCoset::merge);
    });
    for (int stage = log_ - leaf; stage-- > 0;) wide_stage(stage, &OddCoset::merge);
  }

 private:
  static constexpr std::size_t small = 1 << 10;  // below it, threads cost more than they bring
  static constexpr int leaf_log = 13;            // 256 KiB
  using Stage = void (OddCoset::*)(std::size_t, std::size_t, std::size_t, std::size_t) const;

  F get(std::size_t i) const { return load<F>(x_ + i * sizeof(F)); }
  void put(std::size_t i, const F& value) const { store(x_ + i * sizeof(F), value); }

  void fill_twiddles() {
    const std::size_t count = std::max<std::size_t>(n_ / 2, 1);
    twiddles_.reset(new F[count]);
    twiddles_[0] = F::one();
    int level = 0;
    for (std::size_t filled = 1; filled < count; filled *= 2, ++level) {
      const F root = root_of_unity<F>(level + 2);
      parallel_ranges(filled < small ? 1 : threads_, filled, 512, [&](Range range, int) {
        for (std::size_t j = range.begin; j < range.end; ++j)
          twiddles_[filled + j] = twiddles_[j] * root;
      });
    }
    coset_root_ = root_of_unity<F>(log_ + 1);
    F two_to_log = F::one();
    for (int i = 0; i < log_; ++i) two_to_log = two_to_log.twice();
    inverse_n_ = two_to_log.inverse();
  }

  // Butterflies [begin, end) of the block `block` whose halves are `half` long
  void split(std::size_t block, std::size_t half, std::size_t begin, std::size_t end) const {
    const F twiddle = inverse_twiddle(twiddles_.get(), u32(block));
    for (std::size_t i = 2 * half * block + begin; i < 2 * half * block + end; ++i) {
      F x = get(i), y = get(i + half);
      if (block == 0)
        plain_butterfly(x, y);
      else
        split_butterfly(x, y, twiddle);
      put(i, x);
      put(i + half, y);
    }
  }

  void merge(std::size_t block, std::size_t half, std::size_t begin, std::size_t end) const {
    const F twiddle = twiddles_[block];
    for (std::size_t i = 2 * half * block + begin; i < 2 * half * block + end; ++i) {
      F x = get(i), y = get(i + half);
      if (block == 0)
        plain_butterfly(x, y);
      else
        merge_butterfly(x, y, twiddle);
      put(i, x);
      put(i + half, y);
    }
  }

  // A stage over the whole array: 2^stage blocks, each longer than a leaf
  void wide_stage(int stage, Stage butterflies) const {
    const std::size_t half = n_ >> (stage + 1);
    const std::size_t pieces = n_ >> leaf_log;
    const std::size_t length = n_ / 2 / pieces;
    parallel_for(threads_, pieces, [&](std::size_t piece, int) {
      const std::size_t first = piece * length;
      (this->*butterflies)(first / half, half, first % half, first % half + length);
    });
  }

  // The part of a stage that lies in one leaf
  void block_stage(std::size_t leaf, int leaf_log2, int stage, Stage butterflies) const {
    const std::size_t half = n_ >> (stage + 1);
    const std::size_t blocks = (std::size_t(1) << leaf_log2) / (2 * half);
    for (std::size_t block = leaf * blocks; block < (leaf + 1) * blocks; ++block)
      (this->*butterflies)(block, half, 0, half);
  }

  // The coefficient at the bit-reversed place i is multiplied by omega_2N^bitrev(i) / N. That power
  // is twiddle i in the first half, and omega_2N times twiddle i - N / 2 in the second.
  void scale(std::size_t begin, std::size_t count) const {
    const std::size_t half = n_ / 2;
    for (std::size_t i = begin; i < begin + count; ++i) {
      const bool second = i >= half && half > 0;
      const F factor = second ? twiddles_[i - half] * scaled_root() : twiddles_[i] * inverse_n_;
      put(i, get(i) * factor);
    }
  }
  F scaled_root() const { return coset_root_ * inverse_n_; }

  u8* x_;
  int log_;
  std::size_t n_;
  int threads_;
  std::unique_ptr<F[]> twiddles_;  // N / 2, bit-reversed
  F coset_root_, inverse_n_;
};

}  // namespace prover
