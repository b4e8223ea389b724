// The parts of the extension module; each binds its own functions.
#pragma once

#include <nanobind/nanobind.h>

namespace prover {

namespace nb = nanobind;

void bind_pairing(nb::module_&);
void bind_setup(nb::module_&);

}  // namespace prover
