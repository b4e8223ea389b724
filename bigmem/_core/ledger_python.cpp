#include "ledger_python.hpp"

#include <pthread.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "layer_span.hpp"
#include "line_ledger.hpp"
#include "numpy_hook.hpp"

namespace bigmem {
namespace {

// Never destroyed: arrays that it has noted die until the very end.
LineLedger* started = nullptr;

// The interpreter is gone, and what it left to die at its end has been accounted for.
void finish() {
  if (started) started->finish(for_each_noted);
}

bool prefixes_from(PyObject* list, SourceLines::Prefixes* prefixes) {
  PyObject* items = PySequence_Fast(list, "expected a list of prefixes");
  if (!items) return false;
  bool good = true;
  for (Py_ssize_t i = 0; good && i < PySequence_Fast_GET_SIZE(items); ++i) {
    const char* prefix;
    Py_ssize_t length;
    int origin;
    good =
        PyArg_ParseTuple(PySequence_Fast_GET_ITEM(items, i), "y#i", &prefix, &length, &origin) != 0;
    if (good)
      prefixes->emplace_back(std::string(prefix, static_cast<std::size_t>(length)),
                             static_cast<SourceLines::Origin>(origin));
  }
  Py_DECREF(items);
  return good;
}

PyObject* start_ledger(PyObject*, PyObject* args) {
  PyObject *path, *list;
  Py_ssize_t events;
  if (!PyArg_ParseTuple(args, "O&nO", PyUnicode_FSConverter, &path, &events, &list)) return nullptr;
  SourceLines::Prefixes prefixes;
  std::unique_ptr<LineLedger> ledger;
  const bool given = prefixes_from(list, &prefixes);
  if (given)
    ledger = LineLedger::open(PyBytes_AS_STRING(path), static_cast<std::size_t>(events),
                              std::move(prefixes));
  if (given && !ledger) PyErr_SetFromErrnoWithFilename(PyExc_OSError, PyBytes_AS_STRING(path));
  Py_DECREF(path);
  if (!ledger) return nullptr;
  // A child of fork is another process than the one that is accounted for.
  static const int at_fork = pthread_atfork(nullptr, nullptr, [] {
    set_ledger(nullptr);
    started = nullptr;  // the file is shared
  });
  static const int at_exit = Py_AtExit(finish);
  if (at_fork != 0 || at_exit != 0) {
    PyErr_SetString(PyExc_RuntimeError, "no room for another handler of the process's end");
    return nullptr;
  }
  started = ledger.release();
  set_ledger(started);
  watch_stalls(started);
  Py_RETURN_NONE;
}

PyObject* note_layer(PyObject*, PyObject* object) {
  LayerSpan span;
  if (!span_from_python(object, &span)) return nullptr;
  if (started) started->layer(span.name, span.begin, span.seconds, span.thread, span.task);
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"start_ledger", start_ledger, METH_VARARGS,
     "start_ledger(path, events, prefixes)\n--\n\nKeep account of NumPy's large allocations in a "
     "file that exists, with the latest so many events, until the process ends. `prefixes` tells "
     "by the bytes of their names where files belong: 0 NumPy and the like, 1 a library, 2 the "
     "program; the longest holds."},
    {"note_layer", note_layer, METH_O,
     "note_layer(span)\n--\n\nAdd a layer that has ended to the events."},
    {nullptr}};

}  // namespace

bool add_ledger(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }

}  // namespace bigmem
