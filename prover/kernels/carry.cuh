// Additions and multiplications of 32-bit limbs that pass a carry from one to the next, as PTX has
// them: the suffix _cc sets the carry, a c in front of the suffix (addc, madc, subc) takes it.
//
// On the host the flag is a variable, so that the host compiler runs the very chains of the device
// in the tests.
#pragma once

#include "limbs.cuh"

namespace prover {

#ifdef __CUDA_ARCH__

// Volatile keeps them in order, and so the flag between them.
__forceinline__ u32 add_cc(u32 a, u32 b) {
  u32 r;
  asm volatile("add.cc.u32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__forceinline__ u32 addc_cc(u32 a, u32 b) {
  u32 r;
  asm volatile("addc.cc.u32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__forceinline__ u32 addc(u32 a, u32 b) {
  u32 r;
  asm volatile("addc.u32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__forceinline__ u32 sub_cc(u32 a, u32 b) {
  u32 r;
  asm volatile("sub.cc.u32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__forceinline__ u32 subc_cc(u32 a, u32 b) {
  u32 r;
  asm volatile("subc.cc.u32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__forceinline__ u32 subc(u32 a, u32 b) {
  u32 r;
  asm volatile("subc.u32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
// hi:lo = a b + c_hi:c_lo. One statement, so that nothing comes between the halves: the assembler
// then makes one wide multiplication of them.
__forceinline__ void mad_wide_cc(u32& lo, u32& hi, u32 a, u32 b, u32 c_lo, u32 c_hi) {
  asm volatile("mad.lo.cc.u32 %0, %2, %3, %4;\n\tmadc.hi.cc.u32 %1, %2, %3, %5;"
               : "=&r"(lo), "=r"(hi)
               : "r"(a), "r"(b), "r"(c_lo), "r"(c_hi));
}
// The same with a carry coming in
__forceinline__ void madc_wide_cc(u32& lo, u32& hi, u32 a, u32 b, u32 c_lo, u32 c_hi) {
  asm volatile("madc.lo.cc.u32 %0, %2, %3, %4;\n\tmadc.hi.cc.u32 %1, %2, %3, %5;"
               : "=&r"(lo), "=r"(hi)
               : "r"(a), "r"(b), "r"(c_lo), "r"(c_hi));
}

// -x, as ~x + 1
__forceinline__ u32 negative(u32 x) {
  u32 r;
  asm("{ .reg .u32 t; not.b32 t, %1; add.u32 %0, t, 1; }" : "=r"(r) : "r"(x));
  return r;
}

#else

inline thread_local u32 carry_flag = 0;

inline u32 low_setting_carry(u64 x) {
  carry_flag = u32(x >> 32) & 1;
  return u32(x);
}
inline u32 negative(u32 x) { return 0 - x; }
inline u32 add_cc(u32 a, u32 b) { return low_setting_carry(u64(a) + b); }
inline u32 addc_cc(u32 a, u32 b) { return low_setting_carry(u64(a) + b + carry_flag); }
inline u32 addc(u32 a, u32 b) { return a + b + carry_flag; }
inline u32 sub_cc(u32 a, u32 b) { return low_setting_carry(u64(a) - b); }
inline u32 subc_cc(u32 a, u32 b) { return low_setting_carry(u64(a) - b - carry_flag); }
inline u32 subc(u32 a, u32 b) { return a - b - carry_flag; }
inline void mad_wide_cc(u32& lo, u32& hi, u32 a, u32 b, u32 c_lo, u32 c_hi) {
  const u64 product = u64(a) * b;
  lo = add_cc(u32(product), c_lo);
  hi = addc_cc(u32(product >> 32), c_hi);
}
inline void madc_wide_cc(u32& lo, u32& hi, u32 a, u32 b, u32 c_lo, u32 c_hi) {
  const u64 product = u64(a) * b;
  lo = addc_cc(u32(product), c_lo);
  hi = addc_cc(u32(product >> 32), c_hi);
}

#endif

}  // namespace prover
