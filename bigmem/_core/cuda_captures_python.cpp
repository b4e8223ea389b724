#include "cuda_captures.hpp"
#include "cuda_python.hpp"

namespace bigmem {
namespace {

PyObject* begin_capture(PyObject*, PyObject*) {
  {
    WithoutGil nogil;
    Captures::known().begin();
  }
  Py_RETURN_NONE;
}

PyObject* end_capture(PyObject*, PyObject*) {
  {
    WithoutGil nogil;
    Captures::known().end();
  }
  Py_RETURN_NONE;
}

PyObject* captures(PyObject*, PyObject*) {
  int count;
  {
    WithoutGil nogil;
    count = Captures::known().under_way();
  }
  return PyLong_FromLong(count);
}

PyMethodDef functions[] = {
    {"begin_capture", begin_capture, METH_NOARGS,
     "begin_capture()\n--\n\nA graph is going to be captured: no guards until it ends."},
    {"end_capture", end_capture, METH_NOARGS, "end_capture()\n--\n\nAs many times as begun."},
    {"captures", captures, METH_NOARGS, "captures()\n--\n\nHow many are known to go on."},
    {nullptr}};

}  // namespace

bool add_captures(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }

}  // namespace bigmem
