#include "fork_python.hpp"

#include <memory>
#include <new>

#include "clock.hpp"
#include "python.hpp"
#include "reclaimer.hpp"

namespace bigmem {
namespace {

// Functions that run after a fork take microseconds. C code that forks and then calls Python makes
// the workers wait no longer than this.
constexpr double longest_wait = 0.25;

struct Fork {
  ~Fork() {
    Py_XDECREF(frame);
    Py_XDECREF(function);
  }

  PyFrameObject* frame;  // the one that forks; null if the thread is not in Python
  double deadline;
  PyObject* function;  // what is to be called; null for the start of the workers
};

PyFrameObject* forking_frame() {
  PyThreadState* thread = held_state();  // others may fork without the GIL
  if (!thread) return nullptr;
  // Python 3.11 may collect garbage whenever it makes an object: no finalizers inside the fork.
  const bool collects = PyGC_Disable();
  PyFrameObject* frame = PyThreadState_GetFrame(thread);
  if (collects) PyGC_Enable();
  return frame;
}

// Whether a frame is still on this thread's stack, but not the innermost.
bool waits(PyFrameObject* waiting) {
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  for (bool innermost = true; frame; innermost = false) {
    const bool found = frame == waiting;
    PyFrameObject* back = found ? nullptr : PyFrame_GetBack(frame);
    Py_DECREF(frame);
    if (found) return !innermost;
    frame = back;
  }
  return false;
}

// Runs in the main thread between two bytecodes: of the frame that forked, or of a function that
// the program has registered to run after a fork, before Python looks for threads.
int go_on(void* argument) {
  std::unique_ptr<Fork> fork(static_cast<Fork*>(argument));
  if (fork->frame && waits(fork->frame) && seconds_now() < fork->deadline &&
      Py_AddPendingCall(go_on, fork.get()) == 0) {
    fork.release();
    return 0;
  }
  if (!fork->function) {
    Reclaimer::restart_all();
    return 0;
  }
  PyObject* answer = PyObject_CallNoArgs(fork->function);
  if (!answer) PyErr_WriteUnraisable(fork->function);
  Py_XDECREF(answer);
  return 0;
}

// Calls the function, or starts the workers, once the code that forks goes on.
bool go_on_soon(PyObject* function) {
  std::unique_ptr<Fork> fork(
      new (std::nothrow) Fork{forking_frame(), seconds_now() + longest_wait, Py_XNewRef(function)});
  if (!fork || Py_AddPendingCall(go_on, fork.get()) != 0) return false;
  fork.release();
  return true;
}

bool restart_soon() { return go_on_soon(nullptr); }

}  // namespace

void restart_workers_after_forks() { Reclaimer::set_after_fork(restart_soon); }

PyObject* call_after_fork(PyObject*, PyObject* function) {
  return PyBool_FromLong(go_on_soon(function));
}

}  // namespace bigmem
