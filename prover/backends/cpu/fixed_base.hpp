// Many multiples of one point, from a table of its multiples.
//
// The scalar is cut into windows of w bits with digits from -2^(w-1) to 2^(w-1) (Brickell, Gordon,
// McCurley and Wilson, "Fast exponentiation with precomputation", 1992): one mixed addition a
// window, no doubling.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "curve.cuh"
#include "memory.hpp"
#include "threads.hpp"

namespace prover {

// Affine forms of n points, with one inversion.
template <class F>
void to_affine_batch(const Xyzz<F>* points, Affine<F>* out, std::size_t n) {
  std::vector<F> inverse(n), scratch(n);
  for (std::size_t i = 0; i < n; ++i) {
    inverse[i] = points[i].is_infinity() ? F::one() : points[i].zzz;
  }
  invert_batch(inverse.data(), scratch.data(), static_cast<int>(n));
  for (std::size_t i = 0; i < n; ++i) {
    const Xyzz<F>& p = points[i];
    if (p.is_infinity()) {
      out[i] = Affine<F>::infinity();
      continue;
    }
    const F inverse_z = p.zz * inverse[i];
    out[i] = {p.x * inverse_z.squared(), p.y * inverse[i]};
  }
}

template <class F, class Integer>
class FixedBase {
 public:
  static constexpr int scalar_bits = Integer::size * Integer::bits;

  // A table suited to `uses` multiples; fill_window must then be called for every window.
  FixedBase(const Affine<F>& base, std::size_t uses) : width_(best_width(uses)) {
    Xyzz<F> power = Xyzz<F>::from_affine(base);
    std::vector<Xyzz<F>> powers;
    for (int i = 0; i < windows(width_); ++i) {
      powers.push_back(power);
      for (int bit = 0; bit < width_; ++bit) power = power.twice();
    }
    bases_.resize(powers.size());
    to_affine_batch(powers.data(), bases_.data(), powers.size());
    table_.resize(powers.size() * half());
  }

  std::size_t windows() const { return bases_.size(); }

  // Row i holds 1, 2, ... 2^(w-1) times 2^(w i) times the base.
  void fill_window(std::size_t i) {
    std::vector<Xyzz<F>> multiples(half());
    multiples[0] = Xyzz<F>::from_affine(bases_[i]);
    for (std::size_t j = 1; j < multiples.size(); ++j) multiples[j] = multiples[j - 1] + bases_[i];
    to_affine_batch(multiples.data(), &table_[i * half()], multiples.size());
  }

  Xyzz<F> multiple(const Integer& scalar) const {
    Xyzz<F> sum = Xyzz<F>::infinity();
    std::size_t carry = 0;
    for (std::size_t i = 0; i < windows(); ++i) {
      std::size_t digit = carry + window(scalar, static_cast<int>(i) * width_);
      carry = digit > half();
      if (carry) {
        digit = 2 * half() - digit;
        if (digit != 0) sum = sum + -table_[i * half() + digit - 1];
      } else if (digit != 0) {
        sum = sum + table_[i * half() + digit - 1];
      }
    }
    return sum;
  }

 private:
  int width_;
  std::vector<Affine<F>> bases_, table_;

  std::size_t half() const { return std::size_t{1} << (width_ - 1); }

  // The top window must be able to take the last carry.
  static int windows(int width) { return scalar_bits / width + 1; }

  static int best_width(std::size_t uses) {
    // An entry of the table costs about two additions, its conversion included.
    auto cost = [uses](int width) {
      return windows(width) * (uses + 2 * (std::size_t{1} << (width - 1)));
    };
    int best = 2;
    for (int width = 3; width <= 14; ++width) {
      if (cost(width) < cost(best)) best = width;
    }
    return best;
  }

  std::size_t window(const Integer& scalar, int position) const {
    std::size_t digit = 0;
    for (int bit = std::min(position + width_, scalar_bits) - 1; bit >= position; --bit) {
      digit = 2 * digit + scalar.bit(bit);
    }
    return digit;
  }
};

// out[i] <- scalars[i] base, for n scalars, on all threads.
template <class F, class Fr>
void multiples(const u8* base, const u8* scalars, std::size_t n, u8* out, int threads) {
  using Scalar = typename Fr::Integer;
  FixedBase<F, Scalar> table(load<Affine<F>>(base), n);
  parallel_for(threads, table.windows(), [&](std::size_t i, int) { table.fill_window(i); });
  constexpr std::size_t block = 256;  // points that share an inversion
  parallel_for(threads, (n + block - 1) / block, [&](std::size_t task, int) {
    Xyzz<F> sums[block];
    Affine<F> affine[block];
    const std::size_t begin = task * block, count = std::min(block, n - begin);
    const Rows<Scalar> rows(scalars + begin * sizeof(Scalar), count);
    for (std::size_t i = 0; i < count; ++i) sums[i] = table.multiple(rows[i]);
    to_affine_batch(sums, affine, count);
    std::memcpy(out + begin * sizeof(Affine<F>), static_cast<const void*>(affine),
                count * sizeof(Affine<F>));
  });
}

}  // namespace prover
