#include "bind.hpp"

namespace prover {

void bind_pairing(nb::module_&) {}

}  // namespace prover
