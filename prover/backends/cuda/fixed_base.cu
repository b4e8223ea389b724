// Many multiples of one point. The lines before this file say which Curve and which coordinate
// field F.
#include "curve.cuh"
#include "device.cuh"

using namespace prover;

// Row 255 k + d - 1 of the table is 256^k d times the base: a scalar takes one addition a byte, and
// one inversion to affine form, which costs less than half as much. One thread a scalar.
extern "C" __global__ void __launch_bounds__(128)
    multiply_base(const Affine<F>* table, const Curve::Fr::Integer* scalars, u32 n,
                  Affine<F>* out) {
  const u32 i = thread_of_grid();
  if (i >= n) return;
  const auto scalar = load_wide(scalars + i);
  Xyzz<F> sum = Xyzz<F>::infinity();
  PROVER_NO_UNROLL for (u32 k = 0; k < u32(Curve::Fr::bytes); ++k) {
    const u32 digit = scalar.v[k / 4] >> (8 * (k % 4)) & 255;
    if (digit != 0) sum = sum + load_wide(table + 255 * k + digit - 1);
  }
  store_wide(out + i, sum.to_affine());
}
