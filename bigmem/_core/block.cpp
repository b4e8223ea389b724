#include "block.hpp"

#include <pthread.h>

#include <list>
#include <new>
#include <utility>

#include "clock.hpp"
#include "memory_limit.hpp"
#include "structmember.h"

namespace bigmem {
namespace {

// Everything a block owns: a lease of a native source, or the buffer of a Python object.
struct Holding {
  Lease lease;
  Py_buffer view{};
  PyObject* on_release = nullptr;  // only with a view
};

struct Block {
  PyObject_HEAD void* address;
  Py_ssize_t nbytes;
  Py_ssize_t exports;
  PyObject* allocator;
  PyObject* fences;    // a list, or null while there is none
  unsigned fenced_in;  // the generation that they are from
  PyObject* origin;    // or null
  PyObject* weakrefs;
  double born;
  Py_ssize_t backing;    // what stands on its memory: blocks, and ranges in quarantine
  Block *newer, *older;  // among the living
  bool released;
  bool resizing;  // by a thread that has given up the GIL
  Holding holding;
};

PyTypeObject* block_type = nullptr;

}  // namespace

bool is_block(PyObject* object) { return Py_IS_TYPE(object, block_type); }

namespace {

// The living blocks, linked through themselves. Guarded by the GIL, which a fork holds as well.
Block* newest = nullptr;
Py_ssize_t living = 0;

void come_alive(Block* self) {
  self->born = seconds_now();
  self->released = false;
  self->older = newest;
  if (newest) newest->newer = self;
  newest = self;
  ++living;
}

void cease_to_live(Block* self) {
  self->released = true;
  (self->newer ? self->newer->older : newest) = self->older;
  if (self->older) self->older->newer = self->newer;
  self->newer = self->older = nullptr;
  --living;
}

// The block whose memory a buffer is, seen through any memoryviews; or null.
Block* base_block(PyObject* exporter) {
  while (exporter && PyMemoryView_Check(exporter)) exporter = PyMemoryView_GET_BASE(exporter);
  return exporter && is_block(exporter) ? reinterpret_cast<Block*>(exporter) : nullptr;
}

// Blocks released before their fences were done. Guarded by the GIL; leaked, since a block may
// die after every static destructor has run.
struct Parked {
  Holding holding;
  PyObject* fences;
  unsigned fenced_in;
  PyObject* allocator;
  // While a thread asks its fences, which runs Python code: the others leave the item alone.
  bool asked = false;
  pthread_t asker{};
  bool owes = false;      // the answer of unfence()
  bool reported = false;  // that its fences raise
};
std::list<Parked>& parked() {
  static auto* list = new std::list<Parked>;
  return *list;
}

// Counts forks, in children. What a fence of the parent waits for happens there, to the parent's
// pages: in a child it is void.
unsigned generation = 0;

void become_child() {
  ++generation;
  // Only the thread that forked goes on asking.
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

void let_view_go(Holding& holding) {
  SavedError saved;
  if (holding.on_release) {
    PyObject* answer = PyObject_CallNoArgs(holding.on_release);
    if (!answer) PyErr_WriteUnraisable(holding.on_release);
    Py_XDECREF(answer);
  }
  if (Block* base = base_block(holding.view.obj)) --base->backing;
  PyBuffer_Release(&holding.view);
  // Last: its death tells it that the memory below is gone too.
  Py_CLEAR(holding.on_release);
}

void park(Parked&& item) {
  try {
    parked().push_back(std::move(item));
  } catch (const std::bad_alloc&) {
    // The range stays pending for ever: lost memory is better than reuse under a running copy.
  }
}

void let_go(Block* self) {
  PyObject* fences = std::exchange(self->fences, nullptr);
  Holding holding = std::move(self->holding);
  self->holding.view.obj = self->holding.on_release = nullptr;
  if (fences) {
    SavedError saved;
    if (self->fenced_in != generation || all_done_quietly(fences) > 0) Py_CLEAR(fences);
  }
  if (holding.lease) {
    const bool owes = holding.lease.source->release(holding.lease.token, fences != nullptr);
    if (!fences) return settle(holding.lease, owes);
  } else if (!fences) {
    return let_view_go(holding);
  }
  park({std::move(holding), fences, self->fenced_in, Py_NewRef(self->allocator)});
}

Block* create(PyObject* allocator) {
  auto* self = PyObject_GC_New(Block, block_type);
  if (!self) return nullptr;
  new (&self->holding) Holding;
  self->address = nullptr;
  self->nbytes = self->exports = 0;
  self->allocator = Py_NewRef(allocator);
  self->fences = self->origin = self->weakrefs = nullptr;
  self->newer = self->older = nullptr;
  self->born = 0;
  self->fenced_in = 0;
  self->backing = 0;
  self->released = true;  // until it owns something
  self->resizing = false;
  return self;
}

PyObject* block_new(PyTypeObject*, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"buffer", "allocator", "on_release", "origin", nullptr};
  PyObject *buffer, *allocator = nullptr;
  Origin origin{Py_None, Py_None};
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$OOO:Block", const_cast<char**>(names), &buffer,
                                   &allocator, &origin.on_release, &origin.origin))
    return nullptr;
  if (!allocator) {
    PyErr_SetString(PyExc_TypeError, "Block() needs an allocator");
    return nullptr;
  }
  if (Py_IsNone(origin.on_release)) origin.on_release = nullptr;
  if (origin.on_release && !PyCallable_Check(origin.on_release))
    return PyErr_Format(PyExc_TypeError, "on_release must be callable or None, not %.100s",
                        Py_TYPE(origin.on_release)->tp_name);
  return new_block_over(buffer, 0, -1, allocator, origin);
}

void block_dealloc(Block* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  const bool alive = !self->released;
  if (alive) cease_to_live(self);  // before any Python code, which must not be handed the dying
  if (self->weakrefs) PyObject_ClearWeakRefs(reinterpret_cast<PyObject*>(self));
  if (alive) let_go(self);
  self->holding.~Holding();
  Py_XDECREF(self->fences);
  Py_XDECREF(self->origin);
  Py_XDECREF(self->allocator);
  PyObject_GC_Del(self);
  Py_DECREF(type);
}

// As a tuple does, a block takes part in finding cycles but leaves breaking them to the others. It
// hides what it needs whole in its own death: clearing a memoryview would free the memory that a
// fence or a quarantine still holds, clearing the list of fences would forget them, and a function
// that has been cleared cannot be called. Cycles through those are not found.
int block_traverse(Block* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(self->allocator);
  Py_VISIT(self->origin);
  PyObject* exporter = self->holding.view.obj;
  if (exporter && is_block(exporter)) Py_VISIT(exporter);
  return 0;
}

int block_getbuffer(Block* self, Py_buffer* view, int flags) {
  if (self->released || self->resizing) {
    view->obj = nullptr;
    PyErr_SetString(PyExc_BufferError, self->released ? "this block has been released"
                                                      : "this block is being resized");
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
  if (self->resizing)
    return PyErr_Format(invalid_release, "block of %zd bytes is being resized", self->nbytes);
  if (!self->released) {
    cease_to_live(self);
    let_go(self);
  }
  Py_RETURN_NONE;
}

// 1, 0, or -1 with whatever looking raised.
int has_attribute(PyObject* object, const char* name) {
  PyObject* found = PyObject_GetAttrString(object, name);
  if (!found && !PyErr_ExceptionMatches(PyExc_AttributeError)) return -1;
  PyErr_Clear();
  Py_XDECREF(found);
  return found != nullptr;
}

PyObject* block_fence(Block* self, PyObject* event) {
  if (self->released) {
    PyErr_SetString(invalid_release, "cannot fence a block that has been released");
    return nullptr;
  }
  int known = has_attribute(event, "done");
  if (known == 0) known = has_attribute(event, "query");
  if (known < 0) return nullptr;
  if (known == 0)
    return PyErr_Format(PyExc_TypeError, "a fence needs done or query(), %.100s has neither",
                        Py_TYPE(event)->tp_name);
  if (self->fences && self->fenced_in != generation) Py_CLEAR(self->fences);
  self->fenced_in = generation;
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
    {"origin", T_OBJECT, offsetof(Block, origin), READONLY, "Where it was made, if known."},
    {"born", T_DOUBLE, offsetof(Block, born), READONLY, "When, in seconds of time.monotonic()."},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Block, weakrefs), READONLY, nullptr},
    {nullptr}};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>(
                    "Block(buffer, *, allocator, on_release=None, origin=None)\n--\n\nA contiguous "
                    "range of memory that exports "
                    "a writable buffer and dies by its last reference.\n\nAllocators make blocks; "
                    "one written in Python wraps any writable buffer,\nwhose export is kept until "
                    "the block is released. on_release is called without arguments when the buffer "
                    "is\nlet go: after any fences, before the export ends. origin says where the "
                    "block was made.")},
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
  static const int handler = pthread_atfork(nullptr, nullptr, become_child);
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
  come_alive(self);
  PyObject_GC_Track(self);
  return reinterpret_cast<PyObject*>(self);
}

PyObject* new_block_over(PyObject* buffer, Py_ssize_t offset, Py_ssize_t nbytes,
                         PyObject* allocator, Origin origin) {
  Block* self = create(allocator);
  if (!self) return nullptr;
  Py_buffer& view = self->holding.view;
  if (PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE) < 0) {
    view.obj = nullptr;
    Py_DECREF(self);
    return nullptr;
  }
  self->address = static_cast<char*>(view.buf) + offset;
  self->nbytes = nbytes < 0 ? view.len : nbytes;
  self->holding.on_release = Py_XNewRef(origin.on_release);
  self->origin = Py_XNewRef(origin.origin);
  if (Block* base = base_block(view.obj)) ++base->backing;
  come_alive(self);
  PyObject_GC_Track(self);
  return reinterpret_cast<PyObject*>(self);
}

bool resize_block(PyObject* block, std::size_t nbytes) {
  auto* self = reinterpret_cast<Block*>(block);
  Lease& lease = self->holding.lease;
  if (self->released || self->resizing || self->exports > 1 || self->backing || self->fences ||
      !lease)
    return false;
  // As in an allocation: the system might grant more than there is, and kill us on touch.
  if (nbytes > lease.nbytes && nbytes > physical_memory()) return false;
  auto resized = lease.source->resize(lease, nbytes, false);
  if (resized == Source::Resized::would_block) {
    self->resizing = true;
    {
      WithoutGil nogil;
      resized = lease.source->resize(lease, nbytes, true);
    }
    self->resizing = false;
  }
  self->address = lease.address;
  self->nbytes = static_cast<Py_ssize_t>(lease.nbytes);
  return resized == Source::Resized::done;
}

Range range_of(PyObject* block) {
  const auto* self = reinterpret_cast<Block*>(block);
  return {reinterpret_cast<std::uintptr_t>(self->address), static_cast<std::size_t>(self->nbytes)};
}

void begin_backing(PyObject* block) { ++reinterpret_cast<Block*>(block)->backing; }

void end_backing(PyObject* block) { --reinterpret_cast<Block*>(block)->backing; }

PyObject* live_blocks() {
  // Making the list may collect garbage, and so end blocks: it is made before anything is counted
  // on, and made again if it came out too short.
  for (;;) {
    const Py_ssize_t room = living;
    PyObject* list = PyList_New(room);
    if (!list) return nullptr;
    if (living > room) {
      Py_DECREF(list);
      continue;
    }
    Py_ssize_t count = 0;
    for (Block* block = newest; block; block = block->older)
      if (!block->backing)
        PyList_SET_ITEM(list, count++, Py_NewRef(reinterpret_cast<PyObject*>(block)));
    if (PyList_SetSlice(list, count, room, nullptr) == 0) return list;
    Py_DECREF(list);
    return nullptr;
  }
}

PyObject* block_at(std::uintptr_t address) {
  for (Block* block = newest; block; block = block->older) {
    const Range range = range_of(reinterpret_cast<PyObject*>(block));
    if (!block->backing && address - range.begin < range.nbytes)
      return Py_NewRef(reinterpret_cast<PyObject*>(block));
  }
  return nullptr;
}

bool poll_fences(const PyObject* owner) {
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
    const bool owned = item->allocator == owner;
    const int answer = item->fenced_in != generation ? 1 : all_done(item->fences);
    item->asked = false;
    if (answer < 0 && !owned) {
      if (std::exchange(item->reported, true))
        PyErr_Clear();
      else
        PyErr_WriteUnraisable(item->fences);
    }
    if (answer <= 0) {
      good = !(owned && answer < 0);
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
      let_view_go(item.holding);
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
