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

// --- CaptureWatch, for tests ---

struct PyCaptureWatch {
  PyObject_HEAD CaptureWatch watch;
};

PyObject* watch_new(PyTypeObject* type, PyObject* args, PyObject*) {
  if (!PyArg_ParseTuple(args, ":CaptureWatch")) return nullptr;
  auto* self = reinterpret_cast<PyCaptureWatch*>(type->tp_alloc(type, 0));
  if (self) self->watch = CaptureWatch();
  return reinterpret_cast<PyObject*>(self);
}

void watch_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* watch_look(PyCaptureWatch* self, PyObject* args) {
  unsigned long long number, told;
  double now;
  if (!PyArg_ParseTuple(args, "KKd:look", &number, &told, &now)) return nullptr;
  self->watch.look(number, told, now);
  Py_RETURN_NONE;
}

PyObject* watch_suspects(PyCaptureWatch* self, PyObject* now) {
  const double seconds = PyFloat_AsDouble(now);
  if (seconds == -1 && PyErr_Occurred()) return nullptr;
  return PyBool_FromLong(self->watch.suspects(seconds));
}

PyMethodDef watch_methods[] = {
    {"look", reinterpret_cast<PyCFunction>(watch_look), METH_VARARGS,
     "look(number, told, now)\n--\n\nA number of our own, and how many captures were told of."},
    {"suspects", reinterpret_cast<PyCFunction>(watch_suspects), METH_O,
     "suspects(now)\n--\n\nWhether a capture that nobody told of may be under way."},
    {nullptr}};
PyType_Slot watch_slots[] = {
    {Py_tp_doc, const_cast<char*>("CaptureWatch()\n--\n\nTells captures that nobody told of by the "
                                  "numbers that the driver gives; for tests.")},
    {Py_tp_new, reinterpret_cast<void*>(watch_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(watch_dealloc)},
    {Py_tp_methods, watch_methods},
    {0, nullptr}};
PyType_Spec watch_spec = {"bigmem._core.CaptureWatch", sizeof(PyCaptureWatch), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, watch_slots};

}  // namespace

bool add_captures(PyObject* module) {
  return add_type(module, &watch_spec) && PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace bigmem
