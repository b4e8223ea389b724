// The rate of products modulo r: chains of them, two a thread. The line before this file says which
// Curve.
#include "wide.cuh"

using namespace prover;
using Fr = Curve::Fr;

extern "C" __global__ void products(Fr* x, int count) {
  const u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x;
  Fr a = load_wide(x + 2 * i), b = load_wide(x + 2 * i + 1);
  PROVER_NO_UNROLL for (int k = 0; k < count; ++k) {
    a = a * b;
    b = b * a;
  }
  store_wide(x + 2 * i, a);
  store_wide(x + 2 * i + 1, b);
}
