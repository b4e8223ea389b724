#pragma once

#include "pages.hpp"
#include "python.hpp"

namespace bigmem {

// _core.AnonymousPages, the options of anonymous memory, and _core.ProbedPages, which counts,
// delays or refuses what is asked of it.
bool add_pages_types(PyObject* module);

// The table that a Python object names: None is the system's default. False with an error set.
bool pages_from_python(PyObject* object, PagesTable* table);

}  // namespace bigmem
