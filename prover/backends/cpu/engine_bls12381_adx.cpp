#include "adx.hpp"
#include "bls12381.cuh"
#include "engine_of.hpp"

#if defined(__x86_64__)

namespace prover {

const Engine& bls12381_adx() {
  static const EngineOf<Bls12381<Adx>> engine;
  return engine;
}

}  // namespace prover

#endif
