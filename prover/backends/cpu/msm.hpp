// Multi-scalar multiplication on all cores: what is cut into which tasks.
#pragma once

#include <cstdlib>
#include <vector>

#include "buckets.hpp"
#include "engine.hpp"
#include "threads.hpp"

namespace prover {

// Scalars 0 are dropped, scalars 1 and -1 only added up, the others (the dense ones) cut into
// windows. A task adds one window of one part of the dense scalars into buckets.
template <class F, class Fr>
class Msm final : public PointSum {
 public:
  using Scalar = typename Fr::Integer;

  // For workspace_bytes() alone
  Msm(std::size_t n, int threads) : n_(n), threads_(threads) {}
  Msm(const Operands& given, int threads) : n_(given.n), threads_(threads), given_(given) {}

  // Bytes for the worst case, in which every scalar is dense
  std::size_t workspace_bytes() const {
    Workspace counted;
    lay_out(counted, best_plan(n_, std::size_t(-1)), n_);
    return counted.used() + Workspace::alignment;
  }

  void split() override {
    Workspace space(given_.workspace, given_.bytes);
    sorted_ = sort(space);
  }

  void prepare() override {
    plan_ = best_plan(sorted_.dense, given_.bytes - Workspace::alignment);
    Workspace space(given_.workspace, given_.bytes);
    layout_ = lay_out(space, plan_, sorted_.dense);
    write_digits();
  }

  void add_ones() override {
    sums_of_ones_.resize(sorted_.ones > 0 ? threads_ : 0);
    parallel_for(threads_, sums_of_ones_.size(), [&](std::size_t task, int thread) {
      const Range range = part(sorted_.ones, task, sums_of_ones_.size());
      sums_of_ones_[task] = sum_of_ones(range, layout_.buckets[thread]);
    });
  }

  void add_dense(u8* out) override {
    const std::size_t parts = plan_.parts;
    sums_.resize(sorted_.dense > 0 ? plan_.windows.count * parts : 0);
    parallel_for(threads_, sums_.size(), [&](std::size_t task, int thread) {
      const std::int16_t* digits = layout_.digits + task / parts * sorted_.dense;
      const Range range = part(sorted_.dense, task % parts, parts);
      sums_[task] = window_sum(digits, range, layout_.buckets[thread]);
    });
    store(out, combine().to_affine());
  }

 private:
  struct Plan {
    Windows<Fr> windows = Windows<Fr>::of_width(2);
    std::size_t parts = 1;
  };
  struct Layout {
    u32* order = nullptr;            // n: indices of dense scalars in front, of ones at the back
    std::int16_t* digits = nullptr;  // a row of digits a window
    std::vector<Buckets<F>> buckets;
  };
  struct Sorted {
    const u32* order = nullptr;
    std::size_t dense = 0, ones = 0;
  };

  static constexpr int max_width = 15;  // digits are 16-bit
  static constexpr u32 sign_bit = u32(1) << 31;

  Layout lay_out(Workspace& space, const Plan& plan, std::size_t dense) const {
    Layout layout;
    layout.order = space.take<u32>(n_);
    layout.digits = space.take<std::int16_t>(plan.windows.count * dense);
    for (int i = 0; i < threads_; ++i) layout.buckets.emplace_back(space, plan.windows.buckets());
    return layout;
  }

  // The plan of the least estimated time (in field multiplications on the busiest thread) that fits
  Plan best_plan(std::size_t dense, std::size_t bytes) const {
    constexpr double per_addition = 6.5, per_bucket = 24, per_inversion = 400;
    Plan best;
    double least = -1;
    for (int width = 2; width <= max_width; ++width) {
      const auto windows = Windows<Fr>::of_width(width);
      const double addition =
          per_addition + per_inversion / Buckets<F>::batch_size(windows.buckets());
      Workspace counted;
      lay_out(counted, Plan{windows, 1}, dense);
      if (counted.used() > bytes) continue;
      for (std::size_t parts = 1; parts <= std::size_t(2 * threads_); ++parts) {
        const double rounds = double((windows.count * parts + threads_ - 1) / threads_);
        const double time = rounds * (addition * dense / parts + per_bucket * windows.buckets());
        if (least >= 0 && time >= least) continue;
        least = time;
        best = {windows, parts};
      }
    }
    return best;
  }

  Sorted sort(Workspace& space) const {
    const Rows<Scalar> scalars(given_.scalars, n_);
    u32* order = space.take<u32>(n_);
    Scalar one{};
    one.v[0] = 1;
    std::size_t dense = 0, ones = 0;
    for (std::size_t i = 0; i < n_; ++i) {
      if (given_.finite != nullptr && given_.finite[i] == 0) continue;
      Scalar scalar = scalars[i];
      if (scalar.is_zero()) continue;
      const u32 sign = make_small<Fr>(scalar) ? sign_bit : 0;
      if (scalar == one)
        order[n_ - ++ones] = u32(i) | sign;
      else
        order[dense++] = u32(i);
    }
    return {order, dense, ones};
  }

  void write_digits() const {
    const Rows<Scalar> scalars(given_.scalars, n_);
    const std::size_t dense = sorted_.dense;
    parallel_ranges(threads_, dense, 1024, [&](Range range, int) {
      for (std::size_t i = range.begin; i < range.end; ++i) {
        Scalar scalar = scalars[sorted_.order[i]];
        const bool negative = make_small<Fr>(scalar);
        recode<Fr>(scalar, plan_.windows, [&](int window, int digit) {
          layout_.digits[window * dense + i] = std::int16_t(negative ? -digit : digit);
        });
      }
    });
  }

  static Range part(std::size_t n, std::size_t i, std::size_t parts) {
    return {n * i / parts, n * (i + 1) / parts};
  }

  Xyzz<F> window_sum(const std::int16_t* digits, Range range, Buckets<F>& buckets) const {
    const Rows<Affine<F>> points(given_.points, n_);
    buckets.reset(plan_.windows.buckets());
    for (std::size_t i = range.begin; i < range.end; ++i) {
      const int digit = digits[i];
      if (digit == 0) continue;
      const Affine<F> p = points[sorted_.order[i]];
      buckets.add(u32(std::abs(digit)) - 1, digit < 0 ? -p : p);
    }
    buckets.finish();
    return buckets.weighted();
  }

  Xyzz<F> sum_of_ones(Range range, Buckets<F>& buckets) const {
    const Rows<Affine<F>> points(given_.points, n_);
    const u32* order = sorted_.order + (n_ - sorted_.ones);
    const std::size_t length = range.end - range.begin;
    const u32 count = u32(std::clamp<std::size_t>(length / 8, 1, plan_.windows.buckets()));
    buckets.reset(count);
    for (std::size_t i = range.begin; i < range.end; ++i) {
      const Affine<F> p = points[order[i] & ~sign_bit];
      buckets.add(u32(i % count), order[i] & sign_bit ? -p : p);
    }
    buckets.finish();
    return buckets.plain();
  }

  // Horner's rule over the windows, from the highest down; then the ones
  Xyzz<F> combine() const {
    Xyzz<F> total = Xyzz<F>::infinity();
    for (int window = sums_.empty() ? -1 : plan_.windows.count - 1; window >= 0; --window) {
      const int width = plan_.windows.begin(window + 1) - plan_.windows.begin(window);
      for (int i = 0; i < width; ++i) total = total.twice();
      for (std::size_t i = 0; i < plan_.parts; ++i) total = total + sums_[window * plan_.parts + i];
    }
    for (const Xyzz<F>& sum : sums_of_ones_) total = total + sum;
    return total;
  }

  std::size_t n_;
  int threads_;
  Operands given_{};
  Sorted sorted_;
  Plan plan_;
  Layout layout_;
  std::vector<Xyzz<F>> sums_;  // part after part of a window, window after window
  std::vector<Xyzz<F>> sums_of_ones_;
};

}  // namespace prover
