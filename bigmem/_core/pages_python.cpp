#include "pages_python.hpp"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>

#include "cuda_python.hpp"

namespace bigmem {
namespace {

constexpr const char* operations[] = {
    "reserve", "commit", "decommit", "populate", "wipe", "set_wiped_on_fork", "unreserve", "remap"};
enum Operation : std::size_t {
  reserve_op,
  commit_op,
  decommit_op,
  populate_op,
  wipe_op,
  set_wiped_on_fork_op,
  unreserve_op,
  remap_op,
  operation_count
};

// --- AnonymousPages ---

struct PyAnonymousPages {
  PyObject_HEAD AnonymousOptions options;
};

PyTypeObject* anonymous_type;

PyObject* anonymous_new(PyTypeObject* type, PyObject* args, PyObject*) {
  int numa, node, secret;
  if (!PyArg_ParseTuple(args, "iip:AnonymousPages", &numa, &node, &secret)) return nullptr;
  if (numa < 0 || numa > static_cast<int>(Numa::node) || node < 0 || node >= most_nodes) {
    PyErr_Format(PyExc_ValueError, "no placement %d on node %d", numa, node);
    return nullptr;
  }
  auto* self = reinterpret_cast<PyAnonymousPages*>(type->tp_alloc(type, 0));
  if (self) self->options = {static_cast<Numa>(numa), node, secret != 0};
  return reinterpret_cast<PyObject*>(self);
}

PyObject* anonymous_numa_refusal(PyAnonymousPages* self, PyObject*) {
  return PyLong_FromLong(numa_refusal(self->options));
}

PyMethodDef anonymous_methods[] = {
    {"numa_refusal", reinterpret_cast<PyCFunction>(anonymous_numa_refusal), METH_NOARGS,
     "numa_refusal()\n--\n\nThe errno with which the kernel refuses to place memory so, or 0."},
    {nullptr}};

// --- ProbedPages ---

struct Probe {
  struct Record {
    std::atomic<std::uint64_t> calls{0}, nbytes{0};
    std::atomic<int> refusal{0};
    std::atomic<int> delay_us{0};
  };

  const PagesTable base;
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
  Probe* probe = probe_of(context);
  if ((errno = probe->enter(reserve_op, nbytes))) return nullptr;
  return probe->base.reserve(probe->base.context, nbytes, alignment, page);
}

Decommitted probed_decommit(void* context, void* address, std::size_t nbytes, PageSize page,
                            Advice advice) {
  Probe* probe = probe_of(context);
  if (const int refusal = probe->enter(decommit_op, nbytes)) return {refusal, false};
  return probe->base.decommit(probe->base.context, address, nbytes, page, advice);
}

void* probed_remap(void* context, void* address, std::size_t nbytes, std::size_t larger,
                   std::size_t alignment) {
  Probe* probe = probe_of(context);
  if ((errno = probe->enter(remap_op, nbytes))) return nullptr;
  return probe->base.remap(probe->base.context, address, nbytes, larger, alignment);
}

// Every other operation: what it is called in the table, and what else it is told.
template <Operation operation, auto member, typename... More>
int probed(void* context, void* address, std::size_t nbytes, More... more) {
  Probe* probe = probe_of(context);
  if (const int refusal = probe->enter(operation, nbytes)) return refusal;
  return (probe->base.*member)(probe->base.context, address, nbytes, more...);
}

PagesTable table_of(Probe* probe) {
  return {probe,
          probed_reserve,
          probed<commit_op, &PagesTable::commit, PageSize>,
          probed_decommit,
          probed<populate_op, &PagesTable::populate>,
          probed<wipe_op, &PagesTable::wipe>,
          probed<set_wiped_on_fork_op, &PagesTable::set_wiped_on_fork, bool>,
          probed<unreserve_op, &PagesTable::unreserve>,
          probe->base.zero_after_decommit,
          probe->base.needs_commit,
          probed_remap,
          probe->base.granularity,
          probe->base.pinned};
}

struct ProbedPages {
  PyObject_HEAD Probe* probe;  // leaked: an arena may outlive this object
};

PyTypeObject* probed_type;

PyObject* probed_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"strict", "pages", "granularity", "pinned", nullptr};
  int strict = 0, pinned = 0;
  PyAnonymousPages* pages = nullptr;
  Py_ssize_t granularity = 4096;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|pO!np:ProbedPages", const_cast<char**>(names),
                                   &strict, anonymous_type, &pages, &granularity, &pinned))
    return nullptr;
  auto* self = reinterpret_cast<ProbedPages*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  const AnonymousOptions options = pages ? pages->options : AnonymousOptions{};
  PagesTable base = strict ? strict_pages(options) : anonymous_pages(options);
  base.granularity = static_cast<std::size_t>(granularity);
  base.pinned = pinned != 0;
  self->probe = new Probe{base, {}};
  return reinterpret_cast<PyObject*>(self);
}

template <typename Object>
void dealloc(Object* self) {
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

// The operations themselves, for tests that need no arena.

PyObject* probed_call_reserve(ProbedPages* self, PyObject* args) {
  Py_ssize_t nbytes, alignment;
  int page;
  if (!PyArg_ParseTuple(args, "nni:reserve", &nbytes, &alignment, &page)) return nullptr;
  const PagesTable table = table_of(self->probe);
  void* address = table.reserve(table.context, nbytes, alignment, static_cast<PageSize>(page));
  return address ? PyLong_FromVoidPtr(address) : PyErr_SetFromErrno(PyExc_OSError);
}

PyObject* probed_call_remap(ProbedPages* self, PyObject* args) {
  Py_ssize_t address, nbytes, larger, alignment;
  if (!PyArg_ParseTuple(args, "nnnn:remap", &address, &nbytes, &larger, &alignment)) return nullptr;
  const PagesTable table = table_of(self->probe);
  void* moved =
      table.remap(table.context, reinterpret_cast<void*>(address), nbytes, larger, alignment);
  return moved ? PyLong_FromVoidPtr(moved) : PyErr_SetFromErrno(PyExc_OSError);
}

PyObject* probed_call_decommit(ProbedPages* self, PyObject* args) {
  Py_ssize_t address, nbytes;
  int page, advice;
  if (!PyArg_ParseTuple(args, "nnii:decommit", &address, &nbytes, &page, &advice)) return nullptr;
  const PagesTable table = table_of(self->probe);
  const Decommitted done = table.decommit(table.context, reinterpret_cast<void*>(address), nbytes,
                                          static_cast<PageSize>(page), static_cast<Advice>(advice));
  return Py_BuildValue("iN", done.error, PyBool_FromLong(done.fell_back));
}

template <auto member, typename... More>
PyObject* probed_call(ProbedPages* self, PyObject* args) {
  Py_ssize_t address, nbytes;
  int more = 0;
  if (!PyArg_ParseTuple(args, sizeof...(More) ? "nni" : "nn", &address, &nbytes, &more))
    return nullptr;
  const PagesTable table = table_of(self->probe);
  return PyLong_FromLong((table.*member)(table.context, reinterpret_cast<void*>(address), nbytes,
                                         static_cast<More>(more)...));
}

PyMethodDef probed_methods[] = {
    {"reserve", reinterpret_cast<PyCFunction>(probed_call_reserve), METH_VARARGS,
     "reserve(nbytes, alignment, page)\n--\n\nThe address of a range."},
    {"commit", reinterpret_cast<PyCFunction>(probed_call<&PagesTable::commit, PageSize>),
     METH_VARARGS, "commit(address, nbytes, page)\n--\n\n0 or an errno."},
    {"decommit", reinterpret_cast<PyCFunction>(probed_call_decommit), METH_VARARGS,
     "decommit(address, nbytes, page, advice)\n--\n\n0 or an errno, and whether it fell back."},
    {"populate", reinterpret_cast<PyCFunction>(probed_call<&PagesTable::populate>), METH_VARARGS,
     "populate(address, nbytes)\n--\n\n0 or an errno."},
    {"wipe", reinterpret_cast<PyCFunction>(probed_call<&PagesTable::wipe>), METH_VARARGS,
     "wipe(address, nbytes)\n--\n\n0 or an errno."},
    {"set_wiped_on_fork",
     reinterpret_cast<PyCFunction>(probed_call<&PagesTable::set_wiped_on_fork, bool>), METH_VARARGS,
     "set_wiped_on_fork(address, nbytes, wiped)\n--\n\n0 or an errno."},
    {"unreserve", reinterpret_cast<PyCFunction>(probed_call<&PagesTable::unreserve>), METH_VARARGS,
     "unreserve(address, nbytes)\n--\n\n0 or an errno."},
    {"remap", reinterpret_cast<PyCFunction>(probed_call_remap), METH_VARARGS,
     "remap(address, nbytes, larger, alignment)\n--\n\nThe new address."},
    {"refuse", reinterpret_cast<PyCFunction>(probed_refuse), METH_VARARGS,
     "refuse(operation, errno)\n--\n\nLet the operation fail from now on; 0 lets it succeed."},
    {"delay", reinterpret_cast<PyCFunction>(probed_delay), METH_VARARGS,
     "delay(operation, seconds)\n--\n\nLet the operation take longer from now on."},
    {"calls", reinterpret_cast<PyCFunction>(probed_calls), METH_VARARGS,
     "calls(operation)\n--\n\nHow often it was called, and for how many bytes in all."},
    {nullptr}};

template <typename Object>
PyTypeObject* add_type_of(PyObject* module, const char* name, const char* doc, newfunc make,
                          PyMethodDef* methods) {
  PyType_Slot slots[] = {{Py_tp_doc, const_cast<char*>(doc)},
                         {Py_tp_new, reinterpret_cast<void*>(make)},
                         {Py_tp_dealloc, reinterpret_cast<void*>(dealloc<Object>)},
                         {Py_tp_methods, methods},
                         {0, nullptr}};
  PyType_Spec spec = {name, sizeof(Object), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
                      slots};
  return add_type(module, &spec);
}

}  // namespace

bool add_pages_types(PyObject* module) {
  anonymous_type = add_type_of<PyAnonymousPages>(
      module, "bigmem._core.AnonymousPages",
      "AnonymousPages(numa, node, secret)\n--\n\nHow anonymous memory is mapped.", anonymous_new,
      anonymous_methods);
  if (!anonymous_type) return false;
  probed_type = add_type_of<ProbedPages>(
      module, "bigmem._core.ProbedPages",
      "ProbedPages(strict=False, pages=..., granularity=4096, pinned=False)\n--\n\nA test double "
      "for AnonymousPages, committed in units of so many bytes, and said to be pinned.",
      probed_new, probed_methods);
  return probed_type != nullptr;
}

bool pages_from_python(PyObject* object, PagesTable* table) {
  if (Py_IsNone(object)) {
    *table = default_pages({});
  } else if (PyObject_TypeCheck(object, anonymous_type)) {
    *table = default_pages(reinterpret_cast<PyAnonymousPages*>(object)->options);
  } else if (PyObject_TypeCheck(object, probed_type)) {
    *table = table_of(reinterpret_cast<ProbedPages*>(object)->probe);
  } else if (CudaPages* pages = cuda_pages_of(object)) {
    *table = pages->table();
  } else {
    PyErr_Format(PyExc_TypeError, "expected pages or None, not %.100s", Py_TYPE(object)->tp_name);
    return false;
  }
  return true;
}

}  // namespace bigmem
