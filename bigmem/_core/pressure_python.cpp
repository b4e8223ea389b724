#include "pressure_python.hpp"

#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "clock.hpp"
#include "pressure.hpp"

namespace bigmem {
namespace {

struct PyMemoryLimit {
  PyObject_HEAD std::shared_ptr<const MemoryLimit> memory;
};

struct PyMonitor {
  PyObject_HEAD std::shared_ptr<PressureMonitor> monitor;
};

PyTypeObject *limit_type, *monitor_type;

PyObject* bytes_or_none(std::size_t nbytes) {
  if (nbytes == unlimited) Py_RETURN_NONE;
  return PyLong_FromSize_t(nbytes);
}

// --- MemoryLimit ---

PyObject* limit_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* given;
  const char* meminfo;
  if (!PyArg_ParseTuple(args, "O!s:MemoryLimit", &PyList_Type, &given, &meminfo)) return nullptr;
  std::vector<ControlGroup> groups;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(given); ++i) {
    int version;
    const char* directory;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(given, i), "is:MemoryLimit", &version, &directory))
      return nullptr;
    groups.push_back({version, directory});
  }
  auto* self = reinterpret_cast<PyMemoryLimit*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  new (&self->memory) auto(std::make_shared<const MemoryLimit>(groups, meminfo));
  return reinterpret_cast<PyObject*>(self);
}

void limit_dealloc(PyMemoryLimit* self) {
  PyTypeObject* type = Py_TYPE(self);
  self->memory.~shared_ptr();
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* limit_limit(PyMemoryLimit* self, PyObject*) {
  return bytes_or_none(self->memory->limit());
}

PyObject* limit_headroom(PyMemoryLimit* self, PyObject* args) {
  Py_ssize_t enough = PY_SSIZE_T_MAX;
  if (!PyArg_ParseTuple(args, "|n:headroom", &enough)) return nullptr;
  return bytes_or_none(self->memory->headroom(static_cast<std::size_t>(enough)));
}

PyObject* limit_nearly_exhausted(PyMemoryLimit* self, PyObject*) {
  return PyBool_FromLong(self->memory->nearly_exhausted());
}

PyMethodDef limit_methods[] = {
    {"limit", reinterpret_cast<PyCFunction>(limit_limit), METH_NOARGS,
     "limit()\n--\n\nThe smallest limit in bytes, the machine's memory included."},
    {"headroom", reinterpret_cast<PyCFunction>(limit_headroom), METH_VARARGS,
     "headroom(enough)\n--\n\nBytes that may become resident; exact where below `enough`."},
    {"nearly_exhausted", reinterpret_cast<PyCFunction>(limit_nearly_exhausted), METH_NOARGS,
     "nearly_exhausted()\n--\n\nWhether idle memory should not be kept."},
    {nullptr}};
PyType_Slot limit_slots[] = {
    {Py_tp_doc, const_cast<char*>("MemoryLimit(groups, meminfo)\n--\n\n"
                                  "Control groups, as (version, directory), and the machine.")},
    {Py_tp_new, reinterpret_cast<void*>(limit_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(limit_dealloc)},
    {Py_tp_methods, limit_methods},
    {0, nullptr}};
PyType_Spec limit_spec = {"bigmem._core.MemoryLimit", sizeof(PyMemoryLimit), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, limit_slots};

// --- PressureMonitor ---

PyObject* monitor_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *memory, *given;
  if (!PyArg_ParseTuple(args, "O!O!:PressureMonitor", limit_type, &memory, &PyList_Type, &given))
    return nullptr;
  std::vector<std::string> files;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(given); ++i) {
    const char* file = PyUnicode_AsUTF8(PyList_GET_ITEM(given, i));
    if (!file) return nullptr;
    files.push_back(file);
  }
  auto* self = reinterpret_cast<PyMonitor*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  new (&self->monitor) auto(std::make_shared<PressureMonitor>(
      reinterpret_cast<PyMemoryLimit*>(memory)->memory, std::move(files)));
  return reinterpret_cast<PyObject*>(self);
}

void monitor_dealloc(PyMonitor* self) {
  PyTypeObject* type = Py_TYPE(self);
  self->monitor.~shared_ptr();
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* monitor_under_pressure(PyMonitor* self, PyObject* now) {
  const double value = PyFloat_AsDouble(now);
  if (value == -1.0 && PyErr_Occurred()) return nullptr;
  return PyBool_FromLong(self->monitor->under_pressure(value));
}

PyObject* monitor_events(PyMonitor* self, PyObject*) {
  return PyLong_FromUnsignedLongLong(self->monitor->events());
}

PyMethodDef monitor_methods[] = {
    {"under_pressure", reinterpret_cast<PyCFunction>(monitor_under_pressure), METH_O,
     "under_pressure(now)\n--\n\nWhether memory runs short at that time of the monotonic clock."},
    {"events", reinterpret_cast<PyCFunction>(monitor_events), METH_NOARGS,
     "events()\n--\n\nHow often pressure began."},
    {nullptr}};
PyType_Slot monitor_slots[] = {
    {Py_tp_doc, const_cast<char*>("PressureMonitor(memory, stall_files)\n--\n\n"
                                  "Whether memory runs short.")},
    {Py_tp_new, reinterpret_cast<void*>(monitor_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(monitor_dealloc)},
    {Py_tp_methods, monitor_methods},
    {0, nullptr}};
PyType_Spec monitor_spec = {"bigmem._core.PressureMonitor", sizeof(PyMonitor), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, monitor_slots};

// --- functions ---

PyObject* watch_memory(PyObject*, PyObject* monitor) {
  if (!PyObject_TypeCheck(monitor, monitor_type))
    return PyErr_Format(PyExc_TypeError, "expected a PressureMonitor, not %.100s",
                        Py_TYPE(monitor)->tp_name);
  PressureMonitor::set_process(reinterpret_cast<PyMonitor*>(monitor)->monitor);
  Py_RETURN_NONE;
}

PyObject* call_reporting(PyObject*, PyObject* args) {
  PyObject *callback, *argument;
  if (!PyArg_ParseTuple(args, "OO:call_reporting", &callback, &argument)) return nullptr;
  PyObject* result = PyObject_CallOneArg(callback, argument);
  if (!result) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return nullptr;
    PyErr_WriteUnraisable(callback);
  }
  Py_XDECREF(result);
  Py_RETURN_NONE;
}

PyObject* pressure_events(PyObject*, PyObject*) {
  return PyLong_FromUnsignedLongLong(PressureMonitor::process().events());
}

PyObject* report_pressure(PyObject*, PyObject* seconds) {
  const double value = PyFloat_AsDouble(seconds);
  if (value == -1.0 && PyErr_Occurred()) return nullptr;
  PressureMonitor::process().report_until(seconds_now() + value);
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"watch_memory", watch_memory, METH_O,
     "watch_memory(monitor)\n--\n\nLet every allocator of the process ask this monitor."},
    {"pressure_events", pressure_events, METH_NOARGS,
     "pressure_events()\n--\n\nHow often pressure began for the allocators of the process."},
    {"report_pressure", report_pressure, METH_O,
     "report_pressure(seconds)\n--\n\nLet there be pressure for so long: for tests."},
    {"call_reporting", call_reporting, METH_VARARGS,
     "call_reporting(callback, argument)\n--\n\nCall it; an Exception goes to "
     "sys.unraisablehook."},
    {nullptr}};

}  // namespace

bool add_pressure_types(PyObject* module) {
  PressureMonitor::process();  // made here, where no fork can come in between
  return (limit_type = add_type(module, &limit_spec)) &&
         (monitor_type = add_type(module, &monitor_spec)) &&
         PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace bigmem
