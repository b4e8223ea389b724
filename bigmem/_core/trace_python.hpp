#pragma once

#include <memory>

#include "observer.hpp"
#include "python.hpp"

namespace bigmem {

bool add_trace_types(PyObject* module);

// The log behind a TraceLog, nothing for None. False with an error set for anything else.
bool observer_from_python(PyObject* object, std::shared_ptr<Observer>* observer);

}  // namespace bigmem
