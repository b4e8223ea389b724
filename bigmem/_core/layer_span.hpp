#pragma once

#include <string_view>

#include "python.hpp"

namespace bigmem {

// One call of a layer, as a bigmem.layers.Span tells of it, which owns the name.
struct LayerSpan {
  std::string_view name;
  double begin, seconds;
  unsigned long long thread, task;
};

// False with the error set if the object is none.
bool span_from_python(PyObject* object, LayerSpan* span);

}  // namespace bigmem
