#pragma once

#include "python.hpp"

namespace bigmem {

bool add_guard_types(PyObject* module);

}  // namespace bigmem
