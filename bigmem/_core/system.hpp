#pragma once

#include "python.hpp"

namespace bigmem {

// _core.System: the C library's allocator, freed inline. The baseline.
bool add_system_type(PyObject* module);

}  // namespace bigmem
