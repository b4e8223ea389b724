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
  static u64 subtract(u64* t, const u64* a);
  template <int N>
  static void add_product(u64* t, const u64* a, u64 b);

  template <class Modulus>
  static u64 subtract_modulus(u64* t) {
    return subtract<Modulus::words>(t, modulus_limbs<Modulus>.v);
  }
  template <class Modulus>
  static void add_modulus_product(u64* t, u64 m) {
    add_product<Modulus::words>(t, modulus_limbs<Modulus>.v, m);
  }
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
[[gnu::always_inline]] inline u64 AdxRow::subtract<4>(u64* t, const u64* a) {
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
[[gnu::always_inline]] inline u64 AdxRow::subtract<6>(u64* t, const u64* a) {
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
