#pragma once

#include "python.hpp"

namespace bigmem {

// _core.MemoryLimit, _core.PressureMonitor and the functions around them.
bool add_pressure_types(PyObject* module);

}  // namespace bigmem
