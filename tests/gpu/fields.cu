// Field laws, one thread a row. The line before this file says which Curve.
#include "fp2.cuh"

using namespace prover;

struct Add {
  template <class F>
  static F of(const F& x, const F& y) {
    return x + y;
  }
};
struct Subtract {
  template <class F>
  static F of(const F& x, const F& y) {
    return x - y;
  }
};
struct Multiply {
  template <class F>
  static F of(const F& x, const F& y) {
    return x * y;
  }
};
struct Negate {
  template <class F>
  static F of(const F& x, const F&) {
    return -x;
  }
};
struct Square {
  template <class F>
  static F of(const F& x, const F&) {
    return x.squared();
  }
};
struct Invert {
  template <class F>
  static F of(const F& x, const F&) {
    return x.inverse();
  }
};
struct ToMontgomery {
  template <class F>
  static F of(const F& x, const F&) {
    return F::from_integer(x.value);
  }
};
struct FromMontgomery {
  template <class F>
  static F of(const F& x, const F&) {
    return F{x.to_integer()};
  }
};

template <class F, class Operation>
__global__ void elements(const F* x, const F* y, F* out, u32 n) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = Operation::of(x[i], y[i]);
}

// One thread inverts all.
template <class F>
__global__ void invert_all(F* x, F* scratch, u32 n) {
  invert_batch(x, scratch, int(n));
}
