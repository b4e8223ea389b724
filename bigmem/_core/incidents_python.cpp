#include "incidents_python.hpp"

#include <atomic>

namespace bigmem {
namespace {

constexpr const char* names[incident_count] = {"reclaim_refused", "reclaim_fell_back",
                                               "unmap_refused", "worker_replaced"};
PyObject* reporter = nullptr;
std::atomic<bool> scheduled{false};

// Runs in the main thread between two bytecodes.
int deliver(void*) {
  scheduled.store(false);
  Incident incident;
  int error;
  while (reporter && take_incident(&incident, &error)) {
    PyObject* result =
        PyObject_CallFunction(reporter, "si", names[static_cast<int>(incident)], error);
    if (!result) PyErr_WriteUnraisable(reporter);
    Py_XDECREF(result);
  }
  return 0;
}

}  // namespace

PyObject* report_incidents_to(PyObject*, PyObject* callback) {
  Py_XSETREF(reporter, Py_NewRef(callback));
  Py_RETURN_NONE;
}

void report_incidents() noexcept {
  if (!incidents_wait() || scheduled.exchange(true)) return;
  if (Py_AddPendingCall(deliver, nullptr) != 0) scheduled.store(false);
}

}  // namespace bigmem
