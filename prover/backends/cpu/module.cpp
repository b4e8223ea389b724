#include "bind.hpp"

NB_MODULE(_cpu, m) {
  m.doc() = "Groth16 arithmetic on the CPU";
  prover::bind_pairing(m);
  prover::bind_setup(m);
}
