#include "layer_span.hpp"

namespace bigmem {

bool span_from_python(PyObject* object, LayerSpan* span) {
  PyObject* name;
  if (!PyArg_ParseTuple(object, "UddKK:span", &name, &span->begin, &span->seconds, &span->thread,
                        &span->task))
    return false;
  // Half a surrogate pair is no reason to fail where the program leaves its layer.
  span->name = utf8(name);
  return true;
}

}  // namespace bigmem
