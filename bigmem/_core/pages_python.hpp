#pragma once

#include "pages.hpp"
#include "python.hpp"

namespace bigmem {

// _core.ProbedPages: anonymous pages that count, delay or refuse what is asked of them.
bool add_pages_type(PyObject* module);

// The table that a Python object names: None is the system's default. False with an error set.
bool pages_from_python(PyObject* object, PagesTable* table);

}  // namespace bigmem
