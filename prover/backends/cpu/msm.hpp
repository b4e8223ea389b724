// Multi-scalar multiplication on all cores: what is cut into which tasks.
#pragma once

#include <cstdlib>
#include <vector>

#include "buckets.hpp"
#include "threads.hpp"

namespace prover {

// Scalars 0 are dropped, scalars 1 and -1 only added up, the others (the dense ones) cut into
// windows. A task adds one window of one part of the dense scalars into buckets.
template <class F, class Fr>
class Msm {
 public:
  using Scalar = typename Fr::Integer;

  Msm(std::size_t n, int threads) : n_(n), threads_(threads) {}

  // Bytes for the worst case, in which every scalar is dense
  std::size_t workspace_bytes() const {
    Workspace counted;
    lay_out(counted, best_plan(n_, std::size_t(-1)), n_);
    return counted.used() + Workspace::alignment;
  }

  // Wants workspace_bytes()
  Affine<F> run(const u8* points, const u8* scalars, u8* workspace, std::size_t bytes) const {
    Workspace sorted_space(workspace, bytes);
    const Sorted sorted = sort(Rows<Scalar>(scalars, n_), sorted_space);
    const Plan plan = best_plan(sorted.dense, bytes - Workspace::alignment);
    Workspace space(workspace, bytes);
    Layout layout = lay_out(space, plan, sorted.dense);
    write_digits(Rows<Scalar>(scalars, n_), sorted, plan, layout.digits);
    const auto sums = add_buckets(Rows<Affine<F>>(points, n_), sorted, plan, layout);
    return combine(sums, sorted, plan).to_affine();
  }

 private:
  struct Plan {
    Windows<Fr> windows;
    std::size_t parts;
  };
  struct Layout {
    u32* order;            // n: indices of dense scalars in front, of ones at the back
    std::int16_t* digits;  // a row of digits a window
    std::vector<Buckets<F>> buckets;
  };
  struct Sorted {
    const u32* order;
    std::size_t dense, ones, n;
    const u32* ones_begin() const { return order + (n - ones); }
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
    constexpr double per_addition = 7, per_bucket = 24;
    Plan best{Windows<Fr>::of_width(2), 1};
    double least = -1;
    for (int width = 2; width <= max_width; ++width) {
      const auto windows = Windows<Fr>::of_width(width);
      Workspace counted;
      lay_out(counted, Plan{windows, 1}, dense);
      if (counted.used() > bytes) continue;
      for (std::size_t parts = 1; parts <= std::size_t(2 * threads_); ++parts) {
        const double rounds = double((windows.count * parts + threads_ - 1) / threads_);
        const double time =
            rounds * (per_addition * dense / parts + per_bucket * windows.buckets());
        if (least >= 0 && time >= least) continue;
        least = time;
        best = {windows, parts};
      }
    }
    return best;
  }

  Sorted sort(const Rows<Scalar>& scalars, Workspace& space) const {
    u32* order = space.take<u32>(n_);
    Scalar one{};
    one.v[0] = 1;
    std::size_t dense = 0, ones = 0;
    for (std::size_t i = 0; i < n_; ++i) {
      Scalar scalar = scalars[i];
      if (scalar.is_zero()) continue;
      const u32 sign = make_small<Fr>(scalar) ? sign_bit : 0;
      if (scalar == one)
        order[n_ - ++ones] = u32(i) | sign;
      else
        order[dense++] = u32(i);
    }
    return {order, dense, ones, n_};
  }

  void write_digits(const Rows<Scalar>& scalars, const Sorted& sorted, const Plan& plan,
                    std::int16_t* digits) const {
    parallel_ranges(threads_, sorted.dense, 1024, [&](Range range, int) {
      for (std::size_t i = range.begin; i < range.end; ++i) {
        Scalar scalar = scalars[sorted.order[i]];
        const bool negative = make_small<Fr>(scalar);
        recode<Fr>(scalar, plan.windows, [&](int window, int digit) {
          digits[window * sorted.dense + i] = std::int16_t(negative ? -digit : digit);
        });
      }
    });
  }

  // The sums of all tasks: part after part of a window, window after window, then those of the ones
  std::vector<Xyzz<F>> add_buckets(const Rows<Affine<F>>& points, const Sorted& sorted,
                                   const Plan& plan, Layout& layout) const {
    const std::size_t parts = plan.parts;
    const std::size_t window_tasks = sorted.dense > 0 ? plan.windows.count * parts : 0;
    const std::size_t one_tasks = sorted.ones > 0 ? threads_ : 0;
    std::vector<Xyzz<F>> sums(window_tasks + one_tasks);
    parallel_for(threads_, sums.size(), [&](std::size_t task, int thread) {
      Buckets<F>& buckets = layout.buckets[thread];
      if (task < window_tasks) {
        const std::int16_t* digits = layout.digits + task / parts * sorted.dense;
        const Range range = part(sorted.dense, task % parts, parts);
        sums[task] = window_sum(points, sorted.order, digits, range, plan, buckets);
      } else {
        const Range range = part(sorted.ones, task - window_tasks, one_tasks);
        sums[task] = sum_of_ones(points, sorted.ones_begin(), range, plan, buckets);
      }
    });
    return sums;
  }

  static Range part(std::size_t n, std::size_t i, std::size_t parts) {
    return {n * i / parts, n * (i + 1) / parts};
  }

  static Xyzz<F> window_sum(const Rows<Affine<F>>& points, const u32* order,
                            const std::int16_t* digits, Range range, const Plan& plan,
                            Buckets<F>& buckets) {
    buckets.reset(plan.windows.buckets());
    for (std::size_t i = range.begin; i < range.end; ++i) {
      const int digit = digits[i];
      if (digit == 0) continue;
      const Affine<F> p = points[order[i]];
      buckets.add(u32(std::abs(digit)) - 1, digit < 0 ? -p : p);
    }
    buckets.finish();
    return buckets.weighted();
  }

  static Xyzz<F> sum_of_ones(const Rows<Affine<F>>& points, const u32* order, Range range,
                             const Plan& plan, Buckets<F>& buckets) {
    const std::size_t length = range.end - range.begin;
    const u32 count = u32(std::clamp<std::size_t>(length / 8, 1, plan.windows.buckets()));
    buckets.reset(count);
    for (std::size_t i = range.begin; i < range.end; ++i) {
      const Affine<F> p = points[order[i] & ~sign_bit];
      buckets.add(u32(i % count), order[i] & sign_bit ? -p : p);
    }
    buckets.finish();
    return buckets.plain();
  }

  // Horner's rule over the windows, from the highest down; then the ones
  static Xyzz<F> combine(const std::vector<Xyzz<F>>& sums, const Sorted& sorted, const Plan& plan) {
    Xyzz<F> total = Xyzz<F>::infinity();
    std::size_t task = 0;
    if (sorted.dense > 0) {
      task = plan.windows.count * plan.parts;
      for (int window = plan.windows.count - 1; window >= 0; --window) {
        const int width = plan.windows.begin(window + 1) - plan.windows.begin(window);
        for (int i = 0; i < width; ++i) total = total.twice();
        for (std::size_t i = 0; i < plan.parts; ++i) total = total + sums[window * plan.parts + i];
      }
    }
    for (; task < sums.size(); ++task) total = total + sums[task];
    return total;
  }

  std::size_t n_;
  int threads_;
};

}  // namespace prover
