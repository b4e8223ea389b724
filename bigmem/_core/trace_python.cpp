#include "trace_python.hpp"

#include <pthread.h>

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

#include "block.hpp"
#include "clock.hpp"
#include "frames.hpp"
#include "layer_span.hpp"
#include "residency.hpp"
#include "trace.hpp"

namespace bigmem {
namespace {

struct PyTraceLog {
  PyObject_HEAD std::shared_ptr<TraceLog> log;
};

// What a traced block calls on its release. It is let go when the memory below has been, so that
// its own end is that of the release.
struct Ending {
  PyObject_HEAD std::shared_ptr<TraceLog> log;
  std::uintptr_t address;
  std::size_t nbytes;
  double begin;  // of the release, 0 before it
  bool looks;    // for what was touched
  std::optional<std::size_t> touched;
};

PyTypeObject *log_type, *ending_type;

// Of a block whose memory is still mapped.
std::size_t bytes_in_memory(std::uintptr_t address, std::size_t nbytes) {
  constexpr std::uintptr_t page = 4096, huge_page = std::uintptr_t{2} << 20;
  static auto* const residency = new Residency;  // guarded by the GIL
  const std::uintptr_t begin = address & ~(page - 1);
  const std::uintptr_t end = (address + nbytes + page - 1) & ~(page - 1);
  const Resident found = residency->of(begin, end - begin);
  return std::min<std::size_t>(found.small * page + found.huge * huge_page, nbytes);
}

PyObject* ending_call(Ending* self, PyObject*, PyObject*) {
  // First, so that the release does not take longer for it.
  if (self->looks) self->touched = bytes_in_memory(self->address, self->nbytes);
  self->begin = seconds_now();
  Py_RETURN_NONE;
}

void ending_dealloc(Ending* self) {
  PyTypeObject* type = Py_TYPE(self);
  if (self->begin > 0)
    self->log->released(self->begin, seconds_now() - self->begin, self->address, self->nbytes,
                        self->touched);
  self->log.~shared_ptr();
  type->tp_free(self);
  Py_DECREF(type);
}

PyType_Slot ending_slots[] = {{Py_tp_doc, const_cast<char*>("Logs the release of a block.")},
                              {Py_tp_call, reinterpret_cast<void*>(ending_call)},
                              {Py_tp_dealloc, reinterpret_cast<void*>(ending_dealloc)},
                              {0, nullptr}};
PyType_Spec ending_spec = {
    "bigmem._core.Ending", sizeof(Ending), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    ending_slots};

PyObject* log_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *path, *encoded = nullptr;
  Py_ssize_t max_bytes;
  const char* name;
  if (!PyArg_ParseTuple(args, "Ons:TraceLog", &path, &max_bytes, &name)) return nullptr;
  if (!Py_IsNone(path) && !PyUnicode_FSConverter(path, &encoded)) return nullptr;
  auto log = TraceLog::open(encoded ? PyBytes_AS_STRING(encoded) : nullptr,
                            static_cast<std::size_t>(max_bytes), name);
  Py_XDECREF(encoded);
  if (!log) return PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path);
  auto* self = reinterpret_cast<PyTraceLog*>(type->tp_alloc(type, 0));
  if (self) new (&self->log) std::shared_ptr<TraceLog>(std::move(log));
  return reinterpret_cast<PyObject*>(self);
}

void log_dealloc(PyTraceLog* self) {
  PyTypeObject* type = Py_TYPE(self);
  self->log.~shared_ptr();
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* log_allocated(PyTraceLog* self, PyObject* args) {
  PyObject *buffer, *allocator;
  double begin;
  int zeroed, where, touched;
  if (!PyArg_ParseTuple(args, "OdOppp:allocated", &buffer, &begin, &allocator, &zeroed, &where,
                        &touched))
    return nullptr;
  const double end = seconds_now();
  PyObject* origin = where ? call_site() : PyObject_GetAttrString(buffer, "origin");
  if (!origin) return nullptr;
  auto* ending = reinterpret_cast<Ending*>(ending_type->tp_alloc(ending_type, 0));
  if (!ending) {
    Py_DECREF(origin);
    return nullptr;
  }
  new (&ending->log) std::shared_ptr<TraceLog>(self->log);
  new (&ending->touched) std::optional<std::size_t>;
  PyObject* block =
      new_block_over(buffer, 0, -1, allocator, {reinterpret_cast<PyObject*>(ending), origin});
  if (block) {
    const Range range = range_of(block);
    ending->address = range.begin;
    ending->nbytes = range.nbytes;
    const char* site = where ? PyUnicode_AsUTF8(origin) : "";
    ending->looks = touched != 0;
    self->log->allocated(begin, end - begin, ending->address, ending->nbytes, zeroed != 0,
                         site ? site : "");
  }
  Py_DECREF(ending);
  Py_DECREF(origin);
  return block;
}

PyObject* log_layer(PyTraceLog* self, PyObject* object) {
  LayerSpan span;
  if (!span_from_python(object, &span)) return nullptr;
  self->log->layer(span.name, span.begin, span.seconds, span.task);
  Py_RETURN_NONE;
}

PyObject* log_close(PyTraceLog* self, PyObject*) {
  self->log->close();
  Py_RETURN_NONE;
}

PyObject* log_read(PyTraceLog* self, PyObject*) {
  return PyBytes_FromStringAndSize(self->log->begin(),
                                   static_cast<Py_ssize_t>(self->log->length()));
}

PyObject* log_dropped(PyTraceLog* self, PyObject*) {
  return PyLong_FromUnsignedLongLong(self->log->dropped());
}

PyMethodDef log_methods[] = {
    {"allocated", reinterpret_cast<PyCFunction>(log_allocated), METH_VARARGS,
     "allocated(block, begin, allocator, zeroed, where, touched)\n--\n\nLog an allocation that "
     "began then; a block of the allocator over the given one, whose release is logged, with what "
     "was touched of it if that is asked for."},
    {"layer", reinterpret_cast<PyCFunction>(log_layer), METH_O,
     "layer(span)\n--\n\nLog a layer that has ended on this thread."},
    {"close", reinterpret_cast<PyCFunction>(log_close), METH_NOARGS,
     "close()\n--\n\nComplete the file. Later events are not logged."},
    {"read", reinterpret_cast<PyCFunction>(log_read), METH_NOARGS,
     "read()\n--\n\nWhat is in the log so far."},
    {"dropped", reinterpret_cast<PyCFunction>(log_dropped), METH_NOARGS,
     "dropped()\n--\n\nHow many events found no room."},
    {nullptr}};
PyType_Slot log_slots[] = {
    {Py_tp_doc, const_cast<char*>("TraceLog(path, max_bytes, name)\n--\n\nThe native part of "
                                  "Traced; in memory if path is None.")},
    {Py_tp_new, reinterpret_cast<void*>(log_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(log_dealloc)},
    {Py_tp_methods, log_methods},
    {0, nullptr}};
PyType_Spec log_spec = {"bigmem._core.TraceLog", sizeof(PyTraceLog), 0,
                        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, log_slots};

}  // namespace

bool add_trace_types(PyObject* module) {
  // With the module and so before any arena's: in the child, arenas reclaim at once.
  static const int handler = pthread_atfork(nullptr, nullptr, TraceLog::disown_all);
  (void)handler;
  return (log_type = add_type(module, &log_spec)) && (ending_type = add_type(module, &ending_spec));
}

bool observer_from_python(PyObject* object, std::shared_ptr<Observer>* observer) {
  if (Py_IsNone(object)) return true;
  if (!PyObject_TypeCheck(object, log_type)) {
    PyErr_Format(PyExc_TypeError, "expected TraceLog or None, not %.100s",
                 Py_TYPE(object)->tp_name);
    return false;
  }
  *observer = reinterpret_cast<PyTraceLog*>(object)->log;
  return true;
}

}  // namespace bigmem
