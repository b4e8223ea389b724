#include "engine.hpp"

#include <atomic>
#include <stdexcept>

#include "adx.hpp"

namespace prover {

namespace {

enum class Arithmetic { portable, adx };

Arithmetic best_arithmetic() { return cpu_has_adx() ? Arithmetic::adx : Arithmetic::portable; }

std::atomic<Arithmetic>& current() {
  static std::atomic<Arithmetic> value{best_arithmetic()};
  return value;
}

}  // namespace

#if !defined(__x86_64__)
const Engine& bn128_adx() { return bn128_portable(); }
const Engine& bls12381_adx() { return bls12381_portable(); }
#endif

const Engine& engine(const std::string& curve) {
  const bool adx = current() == Arithmetic::adx;
  if (curve == "bn128") return adx ? bn128_adx() : bn128_portable();
  if (curve == "bls12381") return adx ? bls12381_adx() : bls12381_portable();
  throw std::invalid_argument("unknown curve '" + curve + "': it is bn128 or bls12381");
}

const char* arithmetic() { return current() == Arithmetic::adx ? "adx" : "portable"; }

void use_arithmetic(const std::string& name) {
  if (name == "portable")
    current() = Arithmetic::portable;
  else if (name == "adx" && cpu_has_adx())
    current() = Arithmetic::adx;
  else
    throw std::invalid_argument("this CPU has no arithmetic '" + name + "'");
}

}  // namespace prover
