#include "bind.hpp"

namespace prover {

void bind_setup(nb::module_&) {}

}  // namespace prover
