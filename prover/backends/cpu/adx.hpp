// The multiplication row of x86-64 CPUs that have BMI2 and ADX.
//
// mulx leaves the flags alone, and adcx and adox keep two carry chains apart, so low and high
// halves of the products are added in one pass; compilers do not emit this from portable code.
#pragma once

#include "arith.cuh"

namespace prover {

#if defined(__x86_64__)

template <class Modulus>
inline constexpr auto modulus_limbs = Montgomery<Modulus, u64>::modulus();

struct AdxRow {
  template <int N>
  static void add(u64* t, const u64* a);
  template <int N>
  static void add_product(u64* t, const u64* a, u64 b);

  template <class Modulus>
  static void subtract(u64* t, const u64* a) {
    const u64 negative = difference<Modulus::words>(t, a);
    add_masked<Modulus::words>(t, modulus_limbs<Modulus>.v, negative);
  }
  template <class Modulus>
  static void reduce_once(u64* t) {
    subtract_once<Modulus::words>(t, modulus_limbs<Modulus>.v);
  }
  template <class Modulus>
  static void add_modulus_product(u64* t, u64 m) {
    add_product<Modulus::words>(t, modulus_limbs<Modulus>.v, m);
  }

 private:
  // t -= a; a mask of ones if the difference is negative, else 0
  template <int N>
  static u64 difference(u64* t, const u64* a);
  // t += a & mask
  template <int N>
  static void add_masked(u64* t, const u64* a, u64 mask);
  // t -= a if t is not below a
  template <int N>
  static void subtract_once(u64* t, const u64* a);
};

template <>
[[gnu::always_inline]] inline void AdxRow::add<4>(u64* t, const u64* a) {
  asm("add (%[a]), %[t0]\n\t"
      "adc 8(%[a]), %[t1]\n\t"
      "adc 16(%[a]), %[t2]\n\t"
      "adc 24(%[a]), %[t3]\n\t"
      : [t0] "+&r"(t[0]), [t1] "+&r"(t[1]), [t2] "+&r"(t[2]), [t3] "+&r"(t[3])
      : [a] "r"(a), "m"(*reinterpret_cast<const u64(*)[4]>(a))
      : "cc");
}

template <>
[[gnu::always_inline]] inline u64 AdxRow::difference<4>(u64* t, const u64* a) {
  u64 mask;
  asm("sub (%[a]), %[t0]\n\t"
      "sbb 8(%[a]), %[t1]\n\t"
      "sbb 16(%[a]), %[t2]\n\t"
      "sbb 24(%[a]), %[t3]\n\t"
      "sbb %[mask], %[mask]"
      : [t0] "+&r"(t[0]), [t1] "+&r"(t[1]), [t2] "+&r"(t[2]), [t3] "+&r"(t[3]), [mask] "=&r"(mask)
      : [a] "r"(a), "m"(*reinterpret_cast<const u64(*)[4]>(a))
      : "cc");
  return mask;
}

template <>
[[gnu::always_inline]] inline void AdxRow::add_masked<4>(u64* t, const u64* a, u64 mask) {
  asm("add %[m0], %[t0]\n\t"
      "adc %[m1], %[t1]\n\t"
      "adc %[m2], %[t2]\n\t"
      "adc %[m3], %[t3]\n\t"
      : [t0] "+&r"(t[0]), [t1] "+&r"(t[1]), [t2] "+&r"(t[2]), [t3] "+&r"(t[3])
      :
      [m0] "rm"(a[0] & mask), [m1] "rm"(a[1] & mask), [m2] "rm"(a[2] & mask), [m3] "rm"(a[3] & mask)
      : "cc");
}

template <>
[[gnu::always_inline]] inline void AdxRow::subtract_once<4>(u64* t, const u64* a) {
  u64 u0 = t[0], u1 = t[1], u2 = t[2], u3 = t[3];
  asm("sub (%[a]), %[u0]\n\t"
      "sbb 8(%[a]), %[u1]\n\t"
      "sbb 16(%[a]), %[u2]\n\t"
      "sbb 24(%[a]), %[u3]\n\t"
      "cmovnc %[u0], %[t0]\n\t"
      "cmovnc %[u1], %[t1]\n\t"
      "cmovnc %[u2], %[t2]\n\t"
      "cmovnc %[u3], %[t3]\n\t"
      : [t0] "+&r"(t[0]), [t1] "+&r"(t[1]), [t2] "+&r"(t[2]), [t3] "+&r"(t[3]), [u0] "+&r"(u0),
        [u1] "+&r"(u1), [u2] "+&r"(u2), [u3] "+&r"(u3)
      : [a] "r"(a), "m"(*reinterpret_cast<const u64(*)[4]>(a))
      : "cc");
}

template <>
[[gnu::always_inline]] inline void AdxRow::add<6>(u64* t, const u64* a) {
  asm("add (%[a]), %[t0]\n\t"
      "adc 8(%[a]), %[t1]\n\t"
      "adc 16(%[a]), %[t2]\n\t"
      "adc 24(%[a]), %[t3]\n\t"
      "adc 32(%[a]), %[t4]\n\t"
      "adc 40(%[a]), %[t5]\n\t"
      : [t0] "+&r"(t[0]), [t1] "+&r"(t[1]), [t2] "+&r"(t[2]), [t3] "+&r"(t[3]), [t4] "+&r"(t[4]),
        [t5] "+&r"(t[5])
      : [a] "r"(a), "m"(*reinterpret_cast<const u64(*)[6]>(a))
      : "cc");
}

template <>
[[gnu::always_inline]] inline u64 AdxRow::difference<6>(u64* t, const u64* a) {
  u64 mask;
  asm("sub (%[a]), %[t0]\n\t"
      "sbb 8(%[a]), %[t1]\n\t"
      "sbb 16(%[a]), %[t2]\n\t"
      "sbb 24(%[a]), %[t3]\n\t"
      "sbb 32(%[a]), %[t4]\n\t"
      "sbb 40(%[a]), %[t5]\n\t"
      "sbb %[mask], %[mask]"
      : [t0] "+&r"(t[0]), [t1] "+&r"(t[1]), [t2] "+&r"(t[2]), [t3] "+&r"(t[3]), [t4] "+&r"(t[4]),
        [t5] "+&r"(t[5]), [mask] "=&r"(mask)
      : [a] "r"(a), "m"(*reinterpret_cast<const u64(*)[6]>(a))
      : "cc");
  return mask;
}

template <>
[[gnu::always_inline]] inline void AdxRow::add_masked<6>(u64* t, const u64* a, u64 mask) {
  asm("add %[m0], %[t0]\n\t"
      "adc %[m1], %[t1]\n\t"
      "adc %[m2], %[t2]\n\t"
      "adc %[m3], %[t3]\n\t"
      "adc %[m4], %[t4]\n\t"
      "adc %[m5], %[t5]\n\t"
      : [t0] "+&r"(t[0]), [t1] "+&r"(t[1]), [t2] "+&r"(t[2]), [t3] "+&r"(t[3]), [t4] "+&r"(t[4]),
        [t5] "+&r"(t[5])
      : [m0] "rm"(a[0] & mask), [m1] "rm"(a[1] & mask), [m2] "rm"(a[2] & mask),
        [m3] "rm"(a[3] & mask), [m4] "rm"(a[4] & mask), [m5] "rm"(a[5] & mask)
      : "cc");
}

template <>
[[gnu::always_inline]] inline void AdxRow::subtract_once<6>(u64* t, const u64* a) {
  u64 u0 = t[0], u1 = t[1], u2 = t[2], u3 = t[3], u4 = t[4], u5 = t[5];
  asm("sub (%[a]), %[u0]\n\t"
      "sbb 8(%[a]), %[u1]\n\t"
      "sbb 16(%[a]), %[u2]\n\t"
      "sbb 24(%[a]), %[u3]\n\t"
      "sbb 32(%[a]), %[u4]\n\t"
      "sbb 40(%[a]), %[u5]\n\t"
      "cmovnc %[u0], %[t0]\n\t"
      "cmovnc %[u1], %[t1]\n\t"
      "cmovnc %[u2], %[t2]\n\t"
      "cmovnc %[u3], %[t3]\n\t"
      "cmovnc %[u4], %[t4]\n\t"
      "cmovnc %[u5], %[t5]\n\t"
      : [t0] "+&r"(t[0]), [t1] "+&r"(t[1]), [t2] "+&r"(t[2]), [t3] "+&r"(t[3]), [t4] "+&r"(t[4]),
        [t5] "+&r"(t[5]), [u0] "+&r"(u0), [u1] "+&r"(u1), [u2] "+&r"(u2), [u3] "+&r"(u3),
        [u4] "+&r"(u4), [u5] "+&r"(u5)
      : [a] "r"(a), "m"(*reinterpret_cast<const u64(*)[6]>(a))
      : "cc");
}

template <>
[[gnu::always_inline]] inline void AdxRow::add_product<4>(u64* t, const u64* a, u64 b) {
  u64 low, high;
  asm("xor %k[low], %k[low]\n\t"
      "mulx (%[a]), %[low], %[high]\n\t"
      "adcx %[low], %[t0]\n\t"
      "adox %[high], %[t1]\n\t"
      "mulx 8(%[a]), %[low], %[high]\n\t"
      "adcx %[low], %[t1]\n\t"
      "adox %[high], %[t2]\n\t"
      "mulx 16(%[a]), %[low], %[high]\n\t"
      "adcx %[low], %[t2]\n\t"
      "adox %[high], %[t3]\n\t"
      "mulx 24(%[a]), %[low], %[high]\n\t"
      "adcx %[low], %[t3]\n\t"
      "adox %[high], %[t4]\n\t"
      "mov $0, %k[low]\n\t"
      "adcx %[low], %[t4]"
      : [t0] "+&r"(t[0]), [t1] "+&r"(t[1]), [t2] "+&r"(t[2]), [t3] "+&r"(t[3]), [t4] "+&r"(t[4]),
        [low] "=&r"(low), [high] "=&r"(high)
      : "d"(b), [a] "r"(a), "m"(*reinterpret_cast<const u64(*)[4]>(a))
      : "cc");
}

template <>
[[gnu::always_inline]] inline void AdxRow::add_product<6>(u64* t, const u64* a, u64 b) {
  u64 low, high;
  asm("xor %k[low], %k[low]\n\t"
      "mulx (%[a]), %[low], %[high]\n\t"
      "adcx %[low], %[t0]\n\t"
      "adox %[high], %[t1]\n\t"
      "mulx 8(%[a]), %[low], %[high]\n\t"
      "adcx %[low], %[t1]\n\t"
      "adox %[high], %[t2]\n\t"
      "mulx 16(%[a]), %[low], %[high]\n\t"
      "adcx %[low], %[t2]\n\t"
      "adox %[high], %[t3]\n\t"
      "mulx 24(%[a]), %[low], %[high]\n\t"
      "adcx %[low], %[t3]\n\t"
      "adox %[high], %[t4]\n\t"
      "mulx 32(%[a]), %[low], %[high]\n\t"
      "adcx %[low], %[t4]\n\t"
      "adox %[high], %[t5]\n\t"
      "mulx 40(%[a]), %[low], %[high]\n\t"
      "adcx %[low], %[t5]\n\t"
      "adox %[high], %[t6]\n\t"
      "mov $0, %k[low]\n\t"
      "adcx %[low], %[t6]"
      : [t0] "+&r"(t[0]), [t1] "+&r"(t[1]), [t2] "+&r"(t[2]), [t3] "+&r"(t[3]), [t4] "+&r"(t[4]),
        [t5] "+&r"(t[5]), [t6] "+&r"(t[6]), [low] "=&r"(low), [high] "=&r"(high)
      : "d"(b), [a] "r"(a), "m"(*reinterpret_cast<const u64(*)[6]>(a))
      : "cc");
}

using Adx = Arith<u64, AdxRow>;

inline bool cpu_has_adx() {
  return __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("adx");
}

#else

inline bool cpu_has_adx() { return false; }

#endif

}  // namespace prover
