#include "pages_python.hpp"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>

namespace bigmem {
namespace {

constexpr const char* operations[] = {"reserve", "commit", "decommit", "unreserve"};
enum Operation : std::size_t { reserve_op, commit_op, decommit_op, unreserve_op, operation_count };

struct Probe {
  struct Record {
    std::atomic<std::uint64_t> calls{0}, nbytes{0};
    std::atomic<int> refusal{0};
    std::atomic<int> delay_us{0};
  };

  const PagesTable* base;
  Record records[operation_count];

  // Counts the call and waits; the errno to refuse with, or 0.
  int enter(Operation operation, std::size_t nbytes) {
    Record& record = records[operation];
    record.calls.fetch_add(1);
    record.nbytes.fetch_add(nbytes);
    if (const int delay = record.delay_us.load())
      std::this_thread::sleep_for(std::chrono::microseconds(delay));
    return record.refusal.load();
  }
};

Probe* probe_of(void* context) { return static_cast<Probe*>(context); }

void* probed_reserve(void* context, std::size_t nbytes, std::size_t alignment, PageSize page) {
  if ((errno = probe_of(context)->enter(reserve_op, nbytes))) return nullptr;
  return probe_of(context)->base->reserve(nullptr, nbytes, alignment, page);
}

int probed_commit(void* context, void* address, std::size_t nbytes, PageSize page) {
  if (const int refusal = probe_of(context)->enter(commit_op, nbytes)) return refusal;
  return probe_of(context)->base->commit(nullptr, address, nbytes, page);
}

int probed_decommit(void* context, void* address, std::size_t nbytes, Advice advice) {
  if (const int refusal = probe_of(context)->enter(decommit_op, nbytes)) return refusal;
  return probe_of(context)->base->decommit(nullptr, address, nbytes, advice);
}

int probed_unreserve(void* context, void* address, std::size_t nbytes) {
  if (const int refusal = probe_of(context)->enter(unreserve_op, nbytes)) return refusal;
  return probe_of(context)->base->unreserve(nullptr, address, nbytes);
}

struct ProbedPages {
  PyObject_HEAD Probe* probe;  // leaked: an arena may outlive this object
};

PyTypeObject* probed_type;

PyObject* probed_new(PyTypeObject* type, PyObject* args, PyObject*) {
  int strict = 0;
  if (!PyArg_ParseTuple(args, "|p:ProbedPages", &strict)) return nullptr;
  auto* self = reinterpret_cast<ProbedPages*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->probe = new Probe{strict ? &strict_pages() : &anonymous_pages(), {}};
  return reinterpret_cast<PyObject*>(self);
}

void probed_dealloc(ProbedPages* self) {
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

Probe::Record* find_record(ProbedPages* self, const char* name) {
  for (std::size_t i = 0; i < operation_count; ++i)
    if (std::strcmp(operations[i], name) == 0) return &self->probe->records[i];
  PyErr_Format(PyExc_ValueError, "there is no operation %s", name);
  return nullptr;
}

PyObject* probed_refuse(ProbedPages* self, PyObject* args) {
  const char* name;
  int refusal;
  if (!PyArg_ParseTuple(args, "si:refuse", &name, &refusal)) return nullptr;
  Probe::Record* record = find_record(self, name);
  if (!record) return nullptr;
  record->refusal.store(refusal);
  Py_RETURN_NONE;
}

PyObject* probed_delay(ProbedPages* self, PyObject* args) {
  const char* name;
  double seconds;
  if (!PyArg_ParseTuple(args, "sd:delay", &name, &seconds)) return nullptr;
  Probe::Record* record = find_record(self, name);
  if (!record) return nullptr;
  record->delay_us.store(static_cast<int>(seconds * 1e6));
  Py_RETURN_NONE;
}

PyObject* probed_calls(ProbedPages* self, PyObject* args) {
  const char* name;
  if (!PyArg_ParseTuple(args, "s:calls", &name)) return nullptr;
  Probe::Record* record = find_record(self, name);
  if (!record) return nullptr;
  return Py_BuildValue("KK", record->calls.load(), record->nbytes.load());
}

PyMethodDef methods[] = {
    {"refuse", reinterpret_cast<PyCFunction>(probed_refuse), METH_VARARGS,
     "refuse(operation, errno)\n--\n\nLet the operation fail from now on; 0 lets it succeed."},
    {"delay", reinterpret_cast<PyCFunction>(probed_delay), METH_VARARGS,
     "delay(operation, seconds)\n--\n\nLet the operation take longer from now on."},
    {"calls", reinterpret_cast<PyCFunction>(probed_calls), METH_VARARGS,
     "calls(operation)\n--\n\nHow often it was called, and for how many bytes in all."},
    {nullptr}};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("ProbedPages(strict=False)\n--\n\nA test double for pages.")},
    {Py_tp_new, reinterpret_cast<void*>(probed_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(probed_dealloc)},
    {Py_tp_methods, methods},
    {0, nullptr}};

PyType_Spec spec = {"bigmem._core.ProbedPages", sizeof(ProbedPages), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots};

}  // namespace

bool add_pages_type(PyObject* module) { return (probed_type = add_type(module, &spec)) != nullptr; }

bool pages_from_python(PyObject* object, PagesTable* table) {
  if (Py_IsNone(object)) {
    *table = default_pages();
    return true;
  }
  if (!PyObject_TypeCheck(object, probed_type)) {
    PyErr_Format(PyExc_TypeError, "expected ProbedPages or None, not %.100s",
                 Py_TYPE(object)->tp_name);
    return false;
  }
  Probe* probe = reinterpret_cast<ProbedPages*>(object)->probe;
  *table = {probe,
            probed_reserve,
            probed_commit,
            probed_decommit,
            probed_unreserve,
            probe->base->zero_after_decommit,
            probe->base->needs_commit};
  return true;
}

}  // namespace bigmem
