#include "bind.hpp"
#include "threads.hpp"

NB_MODULE(_cpu, m) {
  m.doc() = "Groth16 arithmetic on the CPU";
  m.def("default_threads", prover::available_cores);
  m.def("arithmetic", prover::arithmetic);
  prover::bind_vectors(m);
  prover::bind_points(m);
  prover::bind_testing(m);
  prover::bind_emulator(m);
  prover::bind_pairing(m);
  prover::bind_setup(m);
}
