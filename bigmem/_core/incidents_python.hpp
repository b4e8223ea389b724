#pragma once

#include "incidents.hpp"
#include "python.hpp"

namespace bigmem {

// Sets who is told; a function of the module.
PyObject* report_incidents_to(PyObject* module, PyObject* callback);

// Has waiting incidents reported soon, but not here: the caller may be in a destructor, a signal
// handler or inside the very lock that the report needs. Needs the GIL.
void report_incidents() noexcept;

}  // namespace bigmem
