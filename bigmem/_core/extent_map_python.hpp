#pragma once

#include "python.hpp"

namespace bigmem {

// _core.ExtentMap: the pure extent map by itself, for the tests that compare it with its model.
bool add_extent_map_type(PyObject* module);

}  // namespace bigmem
