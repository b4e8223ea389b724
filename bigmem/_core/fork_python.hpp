#pragma once

#include "python.hpp"

namespace bigmem {

// After a fork that ended workers they start again, once the Python code that forked goes on.
void restart_workers_after_forks();

// For a function that os.register_at_fork calls: the given one is called then, too. False if it
// cannot be.
PyObject* call_after_fork(PyObject* module, PyObject* function);

}  // namespace bigmem
