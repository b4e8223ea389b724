#include "bls12381.cuh"
#include "engine_of.hpp"

namespace prover {

const Engine& bls12381_portable() {
  static const EngineOf<Bls12381<Portable<u64>>> engine;
  return engine;
}

}  // namespace prover
