// Kernels that the GPU bench needs beside the prover's: field laws to be checked, points to be
// added, the rate of the arithmetic. The lines before this file say which Curve and coordinate
// field F.
#include "device.cuh"

using namespace prover;
using Fq = Curve::Fq;

// Rows of out: x + y, x - y, x y, x^2, -x
template <class Field>
void laws(const Field* x, const Field* y, u32 n, Field* out) {
  const u32 i = thread_of_grid();
  if (i >= n) return;
  out[i] = x[i] + y[i];
  out[n + i] = x[i] - y[i];
  out[2 * n + i] = x[i] * y[i];
  out[3 * n + i] = x[i].squared();
  out[4 * n + i] = -x[i];
}

extern "C" {

__global__ void base_laws(const Fq* x, const Fq* y, u32 n, Fq* out) { laws(x, y, n, out); }
__global__ void scalar_laws(const Curve::Fr* x, const Curve::Fr* y, u32 n, Curve::Fr* out) {
  laws(x, y, n, out);
}
__global__ void coordinate_laws(const F* x, const F* y, u32 n, F* out) { laws(x, y, n, out); }

// Chains of products, two a thread
__global__ void __launch_bounds__(128) multiply_chain(Fq* x, u32 rounds) {
  const u32 i = thread_of_grid();
  Fq a = x[2 * i], b = x[2 * i + 1];
  PROVER_NO_UNROLL for (u32 k = 0; k < rounds; ++k) {
    a = a * b;
    b = b * a;
  }
  x[2 * i] = a;
  x[2 * i + 1] = b;
}
__global__ void __launch_bounds__(128) square_chain(Fq* x, u32 rounds) {
  const u32 i = thread_of_grid();
  Fq a = x[2 * i], b = x[2 * i + 1];
  PROVER_NO_UNROLL for (u32 k = 0; k < rounds; ++k) {
    a = a.squared();
    b = b.squared();
  }
  x[2 * i] = a;
  x[2 * i + 1] = b;
}

// Mixed additions without memory: what adding points could reach
__global__ void __launch_bounds__(128)
    add_chain(const Affine<F>* points, Xyzz<F>* sums, u32 rounds) {
  const u32 i = thread_of_grid();
  Affine<F> p = load_wide(points + i);
  Xyzz<F> sum = Xyzz<F>::from_affine(p);
  PROVER_NO_UNROLL for (u32 k = 0; k < rounds; ++k) {
    sum = sum + p;
    p.x = sum.zz;  // no longer a point, but no special case either
  }
  store_wide(sums + i, sum);
}

// points[i] = (i + 1) base, for n a multiple of `each`; a thread makes `each` of them with one
// inversion. `sums` has room for n points.
__global__ void __launch_bounds__(128)
    fill_multiples(const Affine<F>* base, u32 each, u32 n, Xyzz<F>* sums, Affine<F>* points) {
  const u32 first = thread_of_grid() * each;
  if (first >= n) return;
  const Affine<F> g = load_wide(base);
  Limbs<u32, 1> start;
  start.v[0] = first;
  Xyzz<F> sum = multiply(g, start);
  F product = F::one();
  PROVER_NO_UNROLL for (u32 i = first; i < first + each; ++i) {
    sum = sum + g;
    store_wide(sums + i, sum);
    store_wide(&points[i].x, product);
    product = product * sum.zzz;
  }
  F inverse = product.inverse();
  PROVER_NO_UNROLL for (u32 i = first + each; i-- > first;) {
    sum = load_wide(sums + i);
    const F inverse_zzz = inverse * load_wide(&points[i].x);
    inverse = inverse * sum.zzz;
    const F inverse_z = sum.zz * inverse_zzz;
    const Affine<F> point{sum.x * inverse_z.squared(), sum.y * inverse_zzz};
    store_wide(points + i, point);
  }
}

}  // extern "C"
