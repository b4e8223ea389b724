#include "python.hpp"

namespace bigmem {

PyObject* bigmem_error = nullptr;
PyObject* out_of_memory = nullptr;
PyObject* invalid_release = nullptr;

std::string_view utf8(PyObject* string) {
  Py_ssize_t length;
  const char* text = PyUnicode_Check(string) ? PyUnicode_AsUTF8AndSize(string, &length) : nullptr;
  if (text) return {text, static_cast<std::size_t>(length)};
  PyErr_Clear();
  return "?";
}

namespace {

PyObject* add_error(PyObject* module, const char* name, const char* doc, PyObject* bases) {
  PyObject* error = PyErr_NewExceptionWithDoc(name, doc, bases, nullptr);
  if (!error) return nullptr;
  if (PyModule_AddObjectRef(module, name + sizeof("bigmem.") - 1, error) < 0) Py_CLEAR(error);
  return error;
}

}  // namespace

bool add_errors(PyObject* module) {
  bigmem_error = add_error(module, "bigmem.BigmemError", "Base of every error of bigmem.", nullptr);
  if (!bigmem_error) return false;
  invalid_release =
      add_error(module, "bigmem.InvalidRelease",
                "A block was released while in use, or used after its release.", bigmem_error);
  PyObject* bases = PyTuple_Pack(2, bigmem_error, PyExc_MemoryError);
  if (!bases) return false;
  out_of_memory = add_error(module, "bigmem.OutOfMemory",
                            "No memory, or no room within a limit; says what holds it.", bases);
  Py_DECREF(bases);
  return invalid_release && out_of_memory;
}

PyThreadState* held_state() {
#if PY_VERSION_HEX >= 0x030D0000
  return PyThreadState_GetUnchecked();
#elif PY_VERSION_HEX >= 0x030C0000
  return _PyThreadState_UncheckedGet();
#else
  // Python 3.11 tells the state of whichever thread holds the GIL.
  PyThreadState* state = _PyThreadState_UncheckedGet();
  if (!state || state == PyGILState_GetThisThreadState()) return state;
  // It may be this thread's in a subinterpreter still. Another thread's, which may be gone by the
  // time it is looked at, is left alone where there is none.
  const bool alone = PyInterpreterState_Head() == PyInterpreterState_Main();
  return !alone && state->thread_id == PyThread_get_thread_ident() ? state : nullptr;
#endif
}

PyTypeObject* add_type(PyObject* module, PyType_Spec* spec) {
  auto* type = reinterpret_cast<PyTypeObject*>(PyType_FromModuleAndSpec(module, spec, nullptr));
  if (type && PyModule_AddType(module, type) < 0) Py_CLEAR(type);
  return type;
}

}  // namespace bigmem
