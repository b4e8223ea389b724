#include "block.hpp"

#include <pthread.h>

#include <list>
#include <new>
#include <utility>

#include "structmember.h"

namespace bigmem {
namespace {

// Everything a block owns: a lease of a native source, or the buffer of a Python object.
struct Holding {
  Lease lease;
  Py_buffer view{};
};

struct Block {
  PyObject_HEAD void* address;
  Py_ssize_t nbytes;
  Py_ssize_t exports;
  PyObject* allocator;
  PyObject* fences;  // a list, or null while there is none
  PyObject* weakrefs;
  bool released;
  Holding holding;
};

PyTypeObject* block_type = nullptr;

// Blocks released before their fences were done. Guarded by the GIL; leaked, since a block may
// die after every static destructor has run.
struct Parked {
  Holding holding;
  PyObject* fences;
  PyObject* allocator;
  // While a thread asks its fences, which runs Python code: the others leave the item alone.
  bool asked = false;
  pthread_t asker{};
  bool owes = false;  // the answer of unfence()
};
std::list<Parked>& parked() {
  static auto* list = new std::list<Parked>;
  return *list;
}

// In a child of fork only the thread that forked goes on asking.
void forget_other_askers() {
  for (Parked& item : parked())
    item.asked = item.asked && pthread_equal(item.asker, pthread_self());
}

// 1 done, 0 not yet, -1 with an error. `done` may be a method, as of a future, or a property, as
// of a CuPy event; events of other libraries have query().
int fence_done(PyObject* event) {
  PyObject* answer = PyObject_GetAttrString(event, "done");
  if (!answer && PyErr_ExceptionMatches(PyExc_AttributeError)) {
    PyErr_Clear();
    answer = PyObject_GetAttrString(event, "query");
  }
  if (answer && PyCallable_Check(answer)) {
    PyObject* called = PyObject_CallNoArgs(answer);
    Py_DECREF(answer);
    answer = called;
  }
  if (!answer) return -1;
  const int truth = PyObject_IsTrue(answer);
  Py_DECREF(answer);
  return truth;
}

// Drops the fences that are done from the list; 1 when none is left, 0 when some are, -1 error.
int all_done(PyObject* fences) {
  while (Py_ssize_t count = PyList_GET_SIZE(fences)) {
    const int done = fence_done(PyList_GET_ITEM(fences, count - 1));
    if (done <= 0) return done;
    if (PySequence_DelItem(fences, count - 1) < 0) return -1;
  }
  return 1;
}

int all_done_quietly(PyObject* fences) {
  const int done = all_done(fences);
  if (done < 0) PyErr_WriteUnraisable(fences);
  return done;
}

void settle(Lease& lease, bool owes) {
  if (!owes) return;
  WithoutGil nogil;
  lease.source->settle(lease.token);
}

void park(Parked&& item) {
  try {
    parked().push_back(std::move(item));
  } catch (const std::bad_alloc&) {
    // The range stays pending for ever: lost memory is better than reuse under a running copy.
  }
}

void let_go(Block* self) {
  self->released = true;
  PyObject* fences = std::exchange(self->fences, nullptr);
  Holding holding = std::move(self->holding);
  self->holding.view.obj = nullptr;
  if (fences) {
    SavedError saved;
    if (all_done_quietly(fences) > 0) Py_CLEAR(fences);
  }
  if (holding.lease) {
    const bool owes = holding.lease.source->release(holding.lease.token, fences != nullptr);
    if (!fences) return settle(holding.lease, owes);
  } else if (!fences) {
    return PyBuffer_Release(&holding.view);
  }
  park({std::move(holding), fences, Py_NewRef(self->allocator)});
}

Block* create(PyObject* allocator) {
  auto* self = PyObject_GC_New(Block, block_type);
  if (!self) return nullptr;
  new (&self->holding) Holding;
  self->address = nullptr;
  self->nbytes = self->exports = 0;
  self->allocator = Py_NewRef(allocator);
  self->fences = self->weakrefs = nullptr;
  self->released = true;  // until it owns something
  return self;
}

PyObject* block_new(PyTypeObject*, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"buffer", "allocator", nullptr};
  PyObject *buffer, *allocator;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O$O:Block", const_cast<char**>(names), &buffer,
                                   &allocator))
    return nullptr;
  Block* self = create(allocator);
  if (!self) return nullptr;
  if (PyObject_GetBuffer(buffer, &self->holding.view, PyBUF_WRITABLE) < 0) {
    self->holding.view.obj = nullptr;
    Py_DECREF(self);
    return nullptr;
  }
  self->address = self->holding.view.buf;
  self->nbytes = self->holding.view.len;
  self->released = false;
  PyObject_GC_Track(self);
  return reinterpret_cast<PyObject*>(self);
}

void block_dealloc(Block* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  if (self->weakrefs) PyObject_ClearWeakRefs(reinterpret_cast<PyObject*>(self));
  if (!self->released) let_go(self);
  self->holding.~Holding();
  Py_XDECREF(self->fences);
  Py_XDECREF(self->allocator);
  PyObject_GC_Del(self);
  Py_DECREF(type);
}

// As a tuple does, a block takes part in finding cycles but leaves breaking them to the others.
int block_traverse(Block* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(self->allocator);
  Py_VISIT(self->fences);
  if (!self->released) Py_VISIT(self->holding.view.obj);
  return 0;
}

int block_getbuffer(Block* self, Py_buffer* view, int flags) {
  if (self->released) {
    view->obj = nullptr;
    PyErr_SetString(PyExc_BufferError, "this block has been released");
    return -1;
  }
  if (PyBuffer_FillInfo(view, reinterpret_cast<PyObject*>(self), self->address, self->nbytes, 0,
                        flags) < 0)
    return -1;
  ++self->exports;
  return 0;
}

void block_releasebuffer(Block* self, Py_buffer*) { --self->exports; }

PyObject* block_release(Block* self, PyObject*) {
  if (self->exports > 0)
    return PyErr_Format(invalid_release, "block of %zd bytes is still viewed by %zd buffer%s",
                        self->nbytes, self->exports, self->exports == 1 ? "" : "s");
  if (!self->released) let_go(self);
  Py_RETURN_NONE;
}

PyObject* block_fence(Block* self, PyObject* event) {
  if (self->released) {
    PyErr_SetString(invalid_release, "cannot fence a block that has been released");
    return nullptr;
  }
  if (!PyObject_HasAttrString(event, "done") && !PyObject_HasAttrString(event, "query"))
    return PyErr_Format(PyExc_TypeError, "a fence needs done or query(), %.100s has neither",
                        Py_TYPE(event)->tp_name);
  if (!self->fences && !(self->fences = PyList_New(0))) return nullptr;
  if (PyList_Append(self->fences, event) < 0) return nullptr;
  Py_RETURN_NONE;
}

PyObject* block_address(Block* self, void*) { return PyLong_FromVoidPtr(self->address); }

PyObject* block_released(Block* self, void*) { return PyBool_FromLong(self->released); }

Py_ssize_t block_length(Block* self) { return self->nbytes; }

PyObject* block_repr(Block* self) {
  return PyUnicode_FromFormat("<bigmem.Block of %zd bytes at %p%s>", self->nbytes, self->address,
                              self->released ? ", released" : "");
}

PyMethodDef methods[] = {
    {"release", reinterpret_cast<PyCFunction>(block_release), METH_NOARGS,
     "release()\n--\n\nEnd the block's life now. Idempotent.\n\n"
     "Raises InvalidRelease while an array or a memoryview still views the block."},
    {"fence", reinterpret_cast<PyCFunction>(block_fence), METH_O,
     "fence(event)\n--\n\nKeep the range from being reused or reclaimed until event is done.\n\n"
     "event has done (a method or a property) or query(), which must not block."},
    {nullptr}};

PyGetSetDef getters[] = {
    {"address", reinterpret_cast<getter>(block_address), nullptr, "Address of the first byte."},
    {"released", reinterpret_cast<getter>(block_released), nullptr, "Whether its life has ended."},
    {nullptr}};

PyMemberDef members[] = {
    {"nbytes", T_PYSSIZET, offsetof(Block, nbytes), READONLY, "Size as asked for, in bytes."},
    {"exports", T_PYSSIZET, offsetof(Block, exports), READONLY, "Buffers that view the block."},
    {"allocator", T_OBJECT, offsetof(Block, allocator), READONLY, "Where it came from."},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Block, weakrefs), READONLY, nullptr},
    {nullptr}};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>(
                    "Block(buffer, *, allocator)\n--\n\nA contiguous range of memory that exports "
                    "a writable buffer and dies by its last reference.\n\nAllocators make blocks; "
                    "one written in Python wraps any writable buffer,\nwhose export is kept until "
                    "the block is released.")},
    {Py_tp_new, reinterpret_cast<void*>(block_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(block_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(block_traverse)},
    {Py_tp_repr, reinterpret_cast<void*>(block_repr)},
    {Py_tp_methods, methods},
    {Py_tp_getset, getters},
    {Py_tp_members, members},
    {Py_sq_length, reinterpret_cast<void*>(block_length)},
    {Py_bf_getbuffer, reinterpret_cast<void*>(block_getbuffer)},
    {Py_bf_releasebuffer, reinterpret_cast<void*>(block_releasebuffer)},
    {0, nullptr}};

PyType_Spec spec = {"bigmem.Block", sizeof(Block), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE, slots};

}  // namespace

bool add_block_type(PyObject* module) {
  static const int handler = pthread_atfork(nullptr, nullptr, forget_other_askers);
  (void)handler;
  return (block_type = add_type(module, &spec)) != nullptr;
}

PyObject* new_block(Lease lease, PyObject* allocator) {
  Block* self = create(allocator);
  if (!self) {
    settle(lease, lease.source->release(lease.token, false));
    return nullptr;
  }
  self->address = lease.address;
  self->nbytes = static_cast<Py_ssize_t>(lease.nbytes);
  self->holding.lease = std::move(lease);
  self->released = false;
  PyObject_GC_Track(self);
  return reinterpret_cast<PyObject*>(self);
}

bool poll_fences(bool raise) {
  // Asking runs Python code, in which other threads or this one may park, poll and flush: an item
  // stays in the list until its range is free. No more than were there: none may come for ever.
  static thread_local bool asking = false;
  if (asking || parked().empty()) return true;  // a fence that allocates must not ask itself
  asking = true;
  std::list<Parked> done;
  bool good = true;
  std::size_t left = parked().size();
  for (auto item = parked().begin(); good && left && item != parked().end(); --left) {
    if (item->asked) {
      ++item;
      continue;
    }
    item->asked = true;
    item->asker = pthread_self();
    const int answer = raise ? all_done(item->fences) : all_done_quietly(item->fences);
    item->asked = false;
    if (answer <= 0) {
      good = !(raise && answer < 0);
      ++item;
      continue;
    }
    const Lease& lease = item->holding.lease;
    item->owes = lease && lease.source->unfence(lease.token);
    done.splice(done.end(), parked(), item++);
  }
  asking = false;
  for (Parked& item : done) {
    Py_DECREF(item.fences);
    if (item.holding.lease)
      settle(item.holding.lease, item.owes);
    else
      PyBuffer_Release(&item.holding.view);
    Py_DECREF(item.allocator);
  }
  return good;
}

std::size_t parked_by(const PyObject* allocator) {
  std::size_t count = 0;
  for (const Parked& item : parked()) count += item.allocator == allocator;
  return count;
}

}  // namespace bigmem
