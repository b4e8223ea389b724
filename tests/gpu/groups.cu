// Group laws, one thread a row, and a whole multi-scalar multiplication. The lines before this file
// say which Curve and which coordinate field F.
#include "msm.cuh"

using namespace prover;
using Fr = Curve::Fr;

__global__ void add_mixed(const Xyzz<F>* p, const Affine<F>* q, Xyzz<F>* out, u32 n) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = p[i] + q[i];
}

__global__ void add(const Xyzz<F>* p, const Xyzz<F>* q, Xyzz<F>* out, u32 n) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = p[i] + q[i];
}

__global__ void twice(const Xyzz<F>* p, Xyzz<F>* out, u32 n) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = p[i].twice();
}

__global__ void twice_mixed(const Affine<F>* p, Xyzz<F>* out, u32 n) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = Xyzz<F>::twice(p[i]);
}

__global__ void to_affine(const Xyzz<F>* p, Affine<F>* out, u32 n) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = p[i].to_affine();
}

__global__ void scale(const Affine<F>* p, const Fr::Integer* scalar, Xyzz<F>* out, u32 n) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = multiply(p[i], scalar[i]);
}

__global__ void on_curve(const Affine<F>* p, u32* out, u32 n) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = Curve::on_curve(p[i]);
}

// One thread a window; `buckets` holds windows.buckets() of them for each.
__global__ void window_sums(const Affine<F>* points, const Fr::Integer* scalars, u32 n,
                            Windows<Fr> windows, Xyzz<F>* buckets, Xyzz<F>* sums) {
  const int own = int(threadIdx.x);
  const u32 count = windows.buckets();
  Xyzz<F>* mine = buckets + own * count;
  for (u32 i = 0; i < count; ++i) mine[i] = Xyzz<F>::infinity();
  for (u32 i = 0; i < n; ++i) {
    Fr::Integer scalar = scalars[i];
    const bool negated = make_small<Fr>(scalar);
    recode(scalar, windows, [&](int window, int digit) {
      if (window != own || digit == 0) return;
      const bool minus = (digit < 0) != negated;
      const Affine<F> point = minus ? -points[i] : points[i];
      Xyzz<F>& bucket = mine[(digit < 0 ? -digit : digit) - 1];
      bucket = bucket + point;
    });
  }
  sums[own] = weighted_sum<F>(count, [&](u32 i, Xyzz<F>& sum) { sum = sum + mine[i]; });
}

// One thread adds the windows up.
__global__ void combine(const Xyzz<F>* sums, Windows<Fr> windows, Xyzz<F>* out) {
  Xyzz<F> total = Xyzz<F>::infinity();
  for (int window = windows.count; window-- > 0;) {
    for (int bit = windows.begin(window); bit < windows.begin(window + 1); ++bit)
      total = total.twice();
    total = total + sums[window];
  }
  *out = total;
}
