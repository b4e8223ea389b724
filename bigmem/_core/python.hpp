#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string_view>

namespace bigmem {

// The text of a Python string, which owns it; "?" of what is no text, or none that UTF-8 has.
std::string_view utf8(PyObject* string);

// While one exists, WithoutGil does nothing in this thread: for callers that rely on nobody else
// running meanwhile.
class GilKept {
 public:
  GilKept() { ++depth; }
  ~GilKept() { --depth; }
  GilKept(const GilKept&) = delete;
  GilKept& operator=(const GilKept&) = delete;

  static inline thread_local int depth = 0;
};

// The GIL given up for a scope: for everything that may wait or that takes the kernel long.
// Once the interpreter is finalizing, taking it back ends a daemon thread, by unwinding its stack:
// hence a destructor through which that may pass.
class WithoutGil {
 public:
  WithoutGil() : state_(GilKept::depth ? nullptr : PyEval_SaveThread()) {}
  ~WithoutGil() noexcept(false) {
    if (state_) PyEval_RestoreThread(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

// The state with which this thread holds the GIL; null if it does not hold it. Unlike
// PyGILState_Check, which answers 1 for ever once there has been a subinterpreter.
PyThreadState* held_state();

// The GIL for a scope, in a thread that may have it already. False when it cannot be had any more:
// taking it from a finalizing interpreter would end the thread.
class WithGil {
 public:
  WithGil() : had_(held_state() != nullptr) {
    if (had_ || !can_be_had()) return;
    state_ = PyGILState_Ensure();
    taken_ = true;
  }
  ~WithGil() {
    if (taken_) PyGILState_Release(state_);
  }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

  explicit operator bool() const { return had_ || taken_; }
  bool had() const { return had_; }

  static bool finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing();
#else
    return _Py_IsFinalizing();
#endif
  }

 private:
  static bool can_be_had() { return Py_IsInitialized() && !finalizing(); }

  const bool had_;
  bool taken_ = false;
  PyGILState_STATE state_{};
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
