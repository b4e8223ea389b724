#include "bn128.cuh"
#include "engine_of.hpp"

namespace prover {

const Engine& bn128_portable() {
  static const EngineOf<Bn128<Portable<u64>>> engine;
  return engine;
}

}  // namespace prover
