#pragma once

#include "python.hpp"

namespace bigmem {

// _core.ReclaimPool, _core.Budget and _core.Arena.
bool add_arena_types(PyObject* module);

}  // namespace bigmem
