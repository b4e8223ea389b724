#include "adx.hpp"
#include "bn128.cuh"
#include "engine_of.hpp"

#if defined(__x86_64__)

namespace prover {

const Engine& bn128_adx() {
  static const EngineOf<Bn128<Adx>> engine;
  return engine;
}

}  // namespace prover

#endif
