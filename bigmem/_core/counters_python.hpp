#pragma once

#include "python.hpp"
#include "source.hpp"

namespace bigmem {

// The counters as a dict, whose keys are the fields of AllocatorStats.
PyObject* counters_to_dict(const Counters& counters);

}  // namespace bigmem
