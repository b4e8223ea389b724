#pragma once

#include "python.hpp"

namespace bigmem {

// Adds the functions that start the ledger of the process and write to it.
bool add_ledger(PyObject* module);

}  // namespace bigmem
