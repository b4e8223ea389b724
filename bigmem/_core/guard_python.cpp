#include "guard_python.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "block.hpp"
#include "frames.hpp"
#include "guard.hpp"

namespace bigmem {
namespace {

// What memory holds that nobody wrote: visible in dumps, far off as a number.
constexpr unsigned char fresh_byte = 0xCB;
constexpr unsigned char canary_byte = 0xFD;
constexpr std::size_t fill_with_gil = std::size_t{256} << 10;

struct Guard;

// Released blocks, oldest first, linked through their guards: a release allocates nothing.
struct Quarantine {
  PyObject_HEAD std::size_t limit;
  std::size_t held;
  Guard *oldest, *youngest;
};

// One block with the pages around it. The block calls it on its release, and the quarantine owns
// it from then on. Neither takes part in the search for cycles, as a block hides what it calls.
struct Guard {
  PyObject_HEAD PyObject* inner;  // the block of the upstream allocator
  Quarantine* quarantine;         // null while in it
  GuardedRange* record;           // null once the memory is accessible again
  std::uintptr_t low, high;       // the accessible pages between the guards
  pid_t process;                  // that made it
  Guard* next;
};

PyTypeObject *quarantine_type, *guard_type;

std::uintptr_t page_size() {
  static const auto size = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  return size;
}

bool protect(std::uintptr_t begin, std::uintptr_t end, int protection) {
  return begin == end || mprotect(reinterpret_cast<void*>(begin), end - begin, protection) == 0;
}

void fill(std::uintptr_t begin, std::uintptr_t end, unsigned char byte) {
  std::memset(reinterpret_cast<void*>(begin), byte, end - begin);
}

// Makes the whole range accessible again; false where the kernel has no room to split a mapping.
bool thaw(Guard* guard) {
  if (!guard->record) return true;
  if (!protect(guard->record->begin, guard->record->end, PROT_READ | PROT_WRITE)) return false;
  give_record(std::exchange(guard->record, nullptr));
  return true;
}

// Hands the oldest blocks back until so many bytes are left.
std::size_t evict(Quarantine* self, std::size_t limit) {
  std::size_t returned = 0;
  while (self->oldest && self->held > limit) {
    Guard* guard = self->oldest;
    if (!thaw(guard)) break;  // stays, and so does what came later
    const std::size_t nbytes = range_of(guard->inner).nbytes;
    self->oldest = guard->next;
    if (!self->oldest) self->youngest = nullptr;
    self->held -= nbytes;
    returned += nbytes;
    Py_DECREF(guard);  // may run anything
  }
  return returned;
}

// Reports the first of the bytes between the guards that are not the block's and were changed.
bool canaries_are_whole(const Guard* guard) {
  const GuardedRange& record = *guard->record;
  const std::uintptr_t parts[][2] = {{guard->low, record.address},
                                     {record.address + record.nbytes, guard->high}};
  for (const auto& [begin, end] : parts) {
    for (std::uintptr_t at = begin; at < end; ++at) {
      if (*reinterpret_cast<const unsigned char*>(at) == canary_byte) continue;
      const bool before = at < record.address;
      PyErr_Format(bigmem_error,
                   "somebody wrote %s a block of %zu bytes at %p, from %s: the byte at offset %zd "
                   "is changed\nallocated at:\n%s",
                   before ? "before" : "past the end of", record.nbytes,
                   reinterpret_cast<void*>(record.address), record.name,
                   static_cast<Py_ssize_t>(at - record.address), record.allocated_at);
      return false;
    }
  }
  return true;
}

void describe(char* buffer, std::size_t size) {
  Text text(buffer, size - 1);
  write_traceback(text);
  if (!text.length()) text << "  no Python code\n";
  buffer[text.length()] = '\0';
}

// --- Guard ---

PyObject* guard_call(Guard* self, PyObject*, PyObject*) {
  if (!self->quarantine || !self->record) Py_RETURN_NONE;  // called twice
  // Secret memory reads as zero in a child, canaries included.
  const bool whole = self->process != getpid() || canaries_are_whole(self);
  SavedError saved;  // of a damaged canary
  describe(self->record->released_at, sizeof self->record->released_at);
  self->record->released.store(true);
  // Between its guards the range is a mapping of its own, so that nothing need be split; should it
  // fail all the same, a use after the release goes unnoticed.
  protect(self->low, self->high, PROT_NONE);

  Quarantine* quarantine = std::exchange(self->quarantine, nullptr);
  self->next = nullptr;
  (quarantine->youngest ? quarantine->youngest->next : quarantine->oldest) = self;
  quarantine->youngest = self;
  Py_INCREF(self);
  quarantine->held += range_of(self->inner).nbytes;
  evict(quarantine, quarantine->limit);
  Py_DECREF(quarantine);
  return whole ? Py_NewRef(Py_None) : nullptr;
}

void guard_dealloc(Guard* self) {
  PyTypeObject* type = Py_TYPE(self);
  // Memory that nobody can access must not be used again: rather lose it.
  if (self->inner) {
    end_backing(self->inner);
    if (thaw(self)) Py_DECREF(self->inner);
  }
  Py_XDECREF(self->quarantine);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* guard_repr(Guard* self) { return PyUnicode_FromFormat("<guard of %R>", self->inner); }

PyType_Slot guard_slots[] = {{Py_tp_doc, const_cast<char*>("The guards of one block.")},
                             {Py_tp_call, reinterpret_cast<void*>(guard_call)},
                             {Py_tp_dealloc, reinterpret_cast<void*>(guard_dealloc)},
                             {Py_tp_repr, reinterpret_cast<void*>(guard_repr)},
                             {0, nullptr}};
PyType_Spec guard_spec = {
    "bigmem._core.Guard", sizeof(Guard), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION, guard_slots};

Guard* new_guard(Quarantine* quarantine, PyObject* inner) {
  auto* self = PyObject_New(Guard, guard_type);
  if (!self) return nullptr;
  self->inner = Py_NewRef(inner);
  begin_backing(inner);
  self->quarantine = reinterpret_cast<Quarantine*>(Py_NewRef(quarantine));
  self->record = nullptr;
  self->low = self->high = 0;
  self->next = nullptr;
  return self;
}

// --- Quarantine ---

PyObject* quarantine_new(PyTypeObject*, PyObject* args, PyObject*) {
  Py_ssize_t limit;
  if (!PyArg_ParseTuple(args, "n:Quarantine", &limit)) return nullptr;
  auto* self = PyObject_New(Quarantine, quarantine_type);
  if (!self) return nullptr;
  self->limit = static_cast<std::size_t>(limit);
  self->held = 0;
  self->oldest = self->youngest = nullptr;
  return reinterpret_cast<PyObject*>(self);
}

void quarantine_dealloc(Quarantine* self) {
  PyTypeObject* type = Py_TYPE(self);
  evict(self, 0);
  // What could not be made accessible stays where it is, for ever.
  type->tp_free(self);
  Py_DECREF(type);
}

bool protect_both(const Guard* guard) {
  const GuardedRange& record = *guard->record;
  return protect(record.begin, guard->low, PROT_NONE) &&
         protect(guard->high, record.end, PROT_NONE);
}

PyObject* quarantine_guard(Quarantine* self, PyObject* args) {
  PyObject *inner, *allocator;
  Py_ssize_t nbytes, alignment;
  int zeroed;
  const char* name;
  if (!PyArg_ParseTuple(args, "OnnpOs:guard", &inner, &nbytes, &alignment, &zeroed, &allocator,
                        &name))
    return nullptr;
  if (!is_block(inner)) return PyErr_Format(PyExc_TypeError, "guard() needs a block");
  const std::uintptr_t page = page_size();
  const Range range = range_of(inner);
  const std::uintptr_t end = range.begin + range.nbytes;
  const std::uintptr_t pages = (static_cast<std::uintptr_t>(nbytes) + page - 1) / page * page;
  const std::uintptr_t step = std::max<std::uintptr_t>(alignment, page);
  const std::uintptr_t low = (range.begin + page + step - 1) / step * step;
  const std::uintptr_t high = low + pages;
  if (range.begin % page || range.nbytes % page || high + page > end)
    return PyErr_Format(bigmem_error, "the upstream allocator of %s gave no whole pages", name);

  Guard* guard = new_guard(self, inner);
  if (!guard) return nullptr;
  PyObject* block = nullptr;
  GuardedRange* record = guard->record = take_record();
  if (!record) {
    PyErr_NoMemory();
  } else {
    guard->low = low;
    guard->process = getpid();
    guard->high = high;
    // Flush against the upper guard as far as the alignment permits: overruns are the common bug.
    record->address = (high - static_cast<std::uintptr_t>(nbytes)) / alignment * alignment;
    record->nbytes = static_cast<std::size_t>(nbytes);
    std::strncpy(record->name, name, sizeof record->name - 1);
    record->name[sizeof record->name - 1] = '\0';
    describe(record->allocated_at, sizeof record->allocated_at);
    record->released_at[0] = '\0';
    record->end.store(end);
    record->begin.store(range.begin);
    watch_faults();
    if (protect_both(guard)) {
      const std::uintptr_t past = record->address + record->nbytes;
      fill(low, record->address, canary_byte);
      fill(past, high, canary_byte);
      if (!zeroed && record->nbytes > fill_with_gil) {
        WithoutGil nogil;
        fill(record->address, past, fresh_byte);
      } else if (!zeroed) {
        fill(record->address, past, fresh_byte);
      }
      PyObject* origin = call_site();
      if (origin)
        block = new_block_over(inner, static_cast<Py_ssize_t>(record->address - range.begin),
                               nbytes, allocator, {reinterpret_cast<PyObject*>(guard), origin});
      Py_XDECREF(origin);
    } else if (errno == ENOMEM) {
      PyErr_Format(out_of_memory,
                   "%s cannot protect the pages around %zd bytes: the process has as many mappings "
                   "as vm.max_map_count allows",
                   name, nbytes);
    } else {
      PyErr_Format(bigmem_error, "%s cannot protect memory of its upstream allocator: %s", name,
                   std::strerror(errno));
    }
  }
  Py_DECREF(guard);
  return block;
}

PyObject* quarantine_empty(Quarantine* self, PyObject*) {
  return PyLong_FromSize_t(evict(self, 0));
}

PyObject* quarantine_close(Quarantine* self, PyObject*) {
  self->limit = 0;
  evict(self, 0);
  Py_RETURN_NONE;
}

PyObject* quarantine_held(Quarantine* self, PyObject*) { return PyLong_FromSize_t(self->held); }

PyMethodDef quarantine_methods[] = {
    {"guard", reinterpret_cast<PyCFunction>(quarantine_guard), METH_VARARGS,
     "guard(block, nbytes, alignment, zeroed, allocator, name)\n--\n\nA block of the allocator "
     "within the given one, between inaccessible pages."},
    {"empty", reinterpret_cast<PyCFunction>(quarantine_empty), METH_NOARGS,
     "empty()\n--\n\nHand everything back; how many bytes that was."},
    {"close", reinterpret_cast<PyCFunction>(quarantine_close), METH_NOARGS,
     "close()\n--\n\nHand everything back, and blocks released later at once."},
    {"held", reinterpret_cast<PyCFunction>(quarantine_held), METH_NOARGS,
     "held()\n--\n\nBytes that wait."},
    {nullptr}};
PyType_Slot quarantine_slots[] = {
    {Py_tp_doc, const_cast<char*>("Quarantine(limit)\n--\n\nThe native part of Guarded.")},
    {Py_tp_new, reinterpret_cast<void*>(quarantine_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(quarantine_dealloc)},
    {Py_tp_methods, quarantine_methods},
    {0, nullptr}};
PyType_Spec quarantine_spec = {"bigmem._core.Quarantine", sizeof(Quarantine), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, quarantine_slots};

}  // namespace

bool add_guard_types(PyObject* module) {
  return (quarantine_type = add_type(module, &quarantine_spec)) &&
         (guard_type = add_type(module, &guard_spec));
}

}  // namespace bigmem
