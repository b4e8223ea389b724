// From bucket sums to the result, spread over the whole device.
//
// A window's buckets x_0, x_1, ... count with the weights 1, 2, ...: their weighted sum is that of
// i x_i plus that of x_i. A step over groups of S = 2^step buckets gives for each group j
//   x'_j = sum of its x_i,   t_j = sum of (i - j S) x_i,
// so that the sum of i x_i is the sum of t_j plus S times the sum of j x'_j. The next step does the
// same with x' and adds up t in groups beside it. At the end one x and one t of each step are left
// of each window, and doublings put them together.
#pragma once

#include "accumulate.cuh"
#include "team.cuh"

namespace prover {

// One step for `arrays` arrays, each of `size` points for each window; the last is x, the others
// are the t of the steps before. `out` has one array more and 2^step times fewer points.
// One thread a group.
template <class F>
void reduce_groups(const Xyzz<F>* in, u32 arrays, u32 windows, u32 size, u32 step, Xyzz<F>* out) {
  const u32 groups = size >> step;
  const u32 thread = thread_of_grid();
  if (thread >= arrays * windows * groups) return;
  const u32 row = thread / groups, group = thread % groups;
  const bool weigh = row / windows == arrays - 1;
  const Xyzz<F>* x = in + u64(row) * size + (u64(group) << step);
  const u32 last = (u32(1) << step) - 1;
  // The plain sum and the weighted one. They lie in local memory: one addition in the code serves
  // both, as two would outgrow the instruction cache, and both in registers leave too few for it.
  Xyzz<F> sums[2];
  sums[0] = sums[1] = load_wide(x + last);
  for (u32 i = last; i-- > 0;) {
    const int additions = weigh && i > 0 ? 2 : 1;
    PROVER_NO_UNROLL for (int k = 0; k < additions; ++k) sums[k] =
        sums[k] + (k == 0 ? load_wide(x + i) : sums[0]);
  }
  Xyzz<F>* at = out + u64(row) * groups + group;
  store_wide(at, sums[weigh]);
  if (weigh) store_wide(at + u64(windows) * groups, sums[0]);
}

// Window w of the result of all steps: in[k windows + w] is t of step k, in[steps windows + w] is
// x. Step 0 was over 2^first buckets, the others over 2^rest. One team a window.
template <class F>
void sum_window(const Xyzz<F>* in, u32 steps, u32 first, u32 rest, Xyzz<F>* sums) {
  const u32 windows = gridDim.x, window = blockIdx.x;
  Xyzz<F> total = Xyzz<F>::infinity();
  for (u32 k = steps; k-- > 0;) {
    total = team_add(total, load_wide(in + k * windows + window));
    const u32 doublings = k == 0 ? 0 : k == 1 ? first : rest;
    for (u32 i = 0; i < doublings; ++i) total = team_twice(total);
  }
  total = team_add(total, load_wide(in + steps * windows + window));
  if (lane() == 0) store_wide(sums + window, total);
}

// Horner's rule over the windows, and the bucket of the ones; one team
template <class F, class Fr>
void combine_windows(const Xyzz<F>* sums, Windows<Fr> windows, const Xyzz<F>* ones, Xyzz<F>* out) {
  Xyzz<F> total = Xyzz<F>::infinity();
  for (int window = windows.count; window-- > 0;) {
    const int doublings =
        window + 1 < windows.count ? windows.begin(window + 1) - windows.begin(window) : 0;
    for (int i = 0; i < doublings; ++i) total = team_twice(total);
    total = team_add(total, load_wide(sums + window));
  }
  total = team_add(total, load_wide(ones));
  if (lane() == 0) store_wide(out, total);
}

}  // namespace prover
