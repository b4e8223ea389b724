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
  ~Fork() { Py_XDECREF(frame); }

  PyFrameObject* frame;  // the one that forks; null if the thread is not in Python
  double deadline;
};

PyThreadState* current_thread() {
#if PY_VERSION_HEX >= 0x030D0000
  PyThreadState* thread = PyThreadState_GetUnchecked();
#else
  PyThreadState* thread = _PyThreadState_UncheckedGet();
#endif
  // Others may fork without the GIL, which another thread has then.
  return thread == PyGILState_GetThisThreadState() ? thread : nullptr;
}

PyFrameObject* forking_frame() {
  PyThreadState* thread = current_thread();
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
int restart_workers(void* argument) {
  std::unique_ptr<Fork> fork(static_cast<Fork*>(argument));
  if (fork->frame && waits(fork->frame) && seconds_now() < fork->deadline &&
      Py_AddPendingCall(restart_workers, fork.get()) == 0) {
    fork.release();
    return 0;
  }
  Reclaimer::restart_all();
  return 0;
}

bool restart_soon() {
  std::unique_ptr<Fork> fork(new (std::nothrow)
                                 Fork{forking_frame(), seconds_now() + longest_wait});
  if (!fork || Py_AddPendingCall(restart_workers, fork.get()) != 0) return false;
  fork.release();
  return true;
}

}  // namespace

void restart_workers_after_forks() { Reclaimer::set_after_fork(restart_soon); }

}  // namespace bigmem
