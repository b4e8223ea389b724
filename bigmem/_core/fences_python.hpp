#pragma once

#include <memory>

#include "fences.hpp"
#include "python.hpp"

namespace bigmem {

// _core.Fences, the base of every Python type that holds fences, all of this layout.
struct PyFences {
  PyObject_HEAD std::shared_ptr<Fences> fences;
};

// That, _core.ProbedFences, whose work is done when a test says so, and _core.FenceTable. Before
// any other subtype.
bool add_fences_types(PyObject* module);

// Adds a subtype of _core.Fences whose tp_new ends in new_fences(); nullptr with an error set.
PyTypeObject* add_fences_subtype(PyObject* module, PyType_Spec* spec);
PyObject* new_fences(PyTypeObject* type, std::shared_ptr<Fences> fences);

// The fences that a Python object holds, none for None. False with an error set.
bool fences_from_python(PyObject* object, std::shared_ptr<Fences>* fences);

}  // namespace bigmem
