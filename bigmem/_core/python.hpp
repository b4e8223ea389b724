#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace bigmem {

// The GIL given up for a scope: for everything that may wait or that takes the kernel long.
// Once the interpreter is finalizing, taking it back ends a daemon thread, by unwinding its stack:
// hence a destructor through which that may pass.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() noexcept(false) { PyEval_RestoreThread(state_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

// Keeps an exception in flight over code that may raise: destructors run anywhere.
class SavedError {
 public:
#if PY_VERSION_HEX >= 0x030C0000
  SavedError() : error_(PyErr_GetRaisedException()) {}
  ~SavedError() { PyErr_SetRaisedException(error_); }
#else
  SavedError() { PyErr_Fetch(&type_, &error_, &traceback_); }
  ~SavedError() { PyErr_Restore(type_, error_, traceback_); }
#endif
  SavedError(const SavedError&) = delete;
  SavedError& operator=(const SavedError&) = delete;

 private:
  PyObject* error_;
#if PY_VERSION_HEX < 0x030C0000
  PyObject *type_, *traceback_;
#endif
};

extern PyObject* bigmem_error;     // bigmem.BigmemError
extern PyObject* out_of_memory;    // bigmem.OutOfMemory
extern PyObject* invalid_release;  // bigmem.InvalidRelease

bool add_errors(PyObject* module);

// Makes a heap type from its specification and adds it to the module; nullptr with an error set.
PyTypeObject* add_type(PyObject* module, PyType_Spec* spec);

}  // namespace bigmem
