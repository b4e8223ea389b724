#include "arena_python.hpp"

#include <cstring>
#include <new>

#include "arena.hpp"
#include "block.hpp"
#include "charge_python.hpp"
#include "clock.hpp"
#include "counters_python.hpp"
#include "fences_python.hpp"
#include "incidents_python.hpp"
#include "pages_python.hpp"
#include "trace_python.hpp"

namespace bigmem {
namespace {

// Clearing less than this takes less time than giving the GIL up and getting it back may.
constexpr std::size_t clear_with_gil = std::size_t{256} << 10;

struct PyPool {
  PyObject_HEAD std::shared_ptr<Reclaimer> reclaimer;
};

struct PyBudget {
  PyObject_HEAD std::shared_ptr<Budget> budget;
};

struct PyArena {
  PyObject_HEAD std::shared_ptr<Arena> arena;
};

PyTypeObject *pool_type, *budget_type;

template <typename Object, typename Value>
PyObject* wrap(PyTypeObject* type, Value Object::* member, Value value) {
  auto* self = reinterpret_cast<Object*>(type->tp_alloc(type, 0));
  if (self) new (&(self->*member)) Value(std::move(value));
  return reinterpret_cast<PyObject*>(self);
}

template <typename Object, typename Value, Value Object::* member>
void dealloc(Object* self) {
  PyTypeObject* type = Py_TYPE(self);
  (self->*member).~Value();
  type->tp_free(self);
  Py_DECREF(type);
}

// --- ReclaimPool ---

PyObject* pool_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* workers = Py_None;
  if (!PyArg_ParseTuple(args, "O:ReclaimPool", &workers)) return nullptr;
  if (Py_IsNone(workers)) return wrap(type, &PyPool::reclaimer, Reclaimer::process_default());
  const long count = PyLong_AsLong(workers);
  if (count == -1 && PyErr_Occurred()) return nullptr;
  return wrap(type, &PyPool::reclaimer, std::make_shared<Reclaimer>(static_cast<int>(count)));
}

void pool_dealloc(PyPool* self) {
  if (self->reclaimer != Reclaimer::process_default()) self->reclaimer->close();
  dealloc<PyPool, std::shared_ptr<Reclaimer>, &PyPool::reclaimer>(self);
}

PyObject* pool_running(PyPool* self, PyObject*) {
  return PyLong_FromLong(self->reclaimer->running());
}

PyObject* pool_replaced(PyPool* self, PyObject*) {
  return PyLong_FromLong(self->reclaimer->replaced());
}

PyObject* pool_lose_worker(PyPool* self, PyObject*) {
  self->reclaimer->lose_worker();
  Py_RETURN_NONE;
}

PyMethodDef pool_methods[] = {
    {"running", reinterpret_cast<PyCFunction>(pool_running), METH_NOARGS,
     "running()\n--\n\nHow many workers run now."},
    {"replaced", reinterpret_cast<PyCFunction>(pool_replaced), METH_NOARGS,
     "replaced()\n--\n\nHow many workers ended unasked and were replaced."},
    {"lose_worker", reinterpret_cast<PyCFunction>(pool_lose_worker), METH_NOARGS,
     "lose_worker()\n--\n\nFor tests: let one worker end as if by accident."},
    {nullptr}};
PyType_Slot pool_slots[] = {
    {Py_tp_doc, const_cast<char*>("ReclaimPool(workers)\n--\n\nWorkers; None: the process's.")},
    {Py_tp_new, reinterpret_cast<void*>(pool_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(pool_dealloc)},
    {Py_tp_methods, pool_methods},
    {0, nullptr}};
PyType_Spec pool_spec = {"bigmem._core.ReclaimPool", sizeof(PyPool), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, pool_slots};

// --- Budget ---

PyObject* budget_new(PyTypeObject* type, PyObject* args, PyObject*) {
  Py_ssize_t limit;
  double percent = 0;
  if (!PyArg_ParseTuple(args, "n|d:Budget", &limit, &percent)) return nullptr;
  return wrap(type, &PyBudget::budget,
              std::make_shared<Budget>(static_cast<std::size_t>(limit), percent));
}

PyObject* budget_limit(PyBudget* self, PyObject*) {
  return PyLong_FromSize_t(self->budget->limit());
}

PyObject* budget_refresh(PyBudget* self, PyObject*) {
  self->budget->refresh();
  return budget_limit(self, nullptr);
}

PyObject* budget_set_limit(PyBudget* self, PyObject* nbytes) {
  const Py_ssize_t limit = PyLong_AsSsize_t(nbytes);
  if (limit == -1 && PyErr_Occurred()) return nullptr;
  self->budget->set_limit(static_cast<std::size_t>(limit));
  Py_RETURN_NONE;
}

PyObject* budget_listen(PyBudget* self, PyObject*) {
  self->budget->listen();
  Py_RETURN_NONE;
}

PyObject* budget_hear(PyBudget* self, PyObject*) { return PyBool_FromLong(self->budget->hear()); }

PyObject* budget_used(PyBudget* self, PyObject*) { return PyLong_FromSize_t(self->budget->used()); }

PyObject* budget_charge(PyBudget* self, PyObject* nbytes) {
  const std::size_t size = PyLong_AsSize_t(nbytes);
  if (size == static_cast<std::size_t>(-1) && PyErr_Occurred()) return nullptr;
  return charge(self->budget, size);
}

PyMethodDef budget_methods[] = {
    {"used", reinterpret_cast<PyCFunction>(budget_used), METH_NOARGS,
     "used()\n--\n\nBytes charged now."},
    {"limit", reinterpret_cast<PyCFunction>(budget_limit), METH_NOARGS,
     "limit()\n--\n\nBytes at most."},
    {"refresh", reinterpret_cast<PyCFunction>(budget_refresh), METH_NOARGS,
     "refresh()\n--\n\nThe same, after reading a share of the memory again."},
    {"set_limit", reinterpret_cast<PyCFunction>(budget_set_limit), METH_O,
     "set_limit(limit, /)\n--\n\nAnother limit from now on, for a budget that is no share."},
    {"listen", reinterpret_cast<PyCFunction>(budget_listen), METH_NOARGS,
     "listen()\n--\n\nLet allocations return None once after each pressure event."},
    {"hear", reinterpret_cast<PyCFunction>(budget_hear), METH_NOARGS,
     "hear()\n--\n\nWhether there was a pressure event since the last call."},
    {"charge", reinterpret_cast<PyCFunction>(budget_charge), METH_O,
     "charge(nbytes)\n--\n\nA Charge, which credits the bytes again when it is called or dies; "
     "None if there is no room."},
    {nullptr}};
PyType_Slot budget_slots[] = {
    {Py_tp_doc,
     const_cast<char*>("Budget(limit, percent=0)\n--\n\n"
                       "A byte limit that arenas share, or a percentage of the memory.")},
    {Py_tp_new, reinterpret_cast<void*>(budget_new)},
    {Py_tp_dealloc,
     reinterpret_cast<void*>(dealloc<PyBudget, std::shared_ptr<Budget>, &PyBudget::budget>)},
    {Py_tp_methods, budget_methods},
    {0, nullptr}};
PyType_Spec budget_spec = {"bigmem._core.Budget", sizeof(PyBudget), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, budget_slots};

// --- Arena ---

PyObject* arena_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"policy", "advice", "decay",     "max_warm", "max_pending",
                                "huge",   "wipe",   "per_block", "reserve",  "pages",
                                "pool",   "budget", "fences",    nullptr};
  ArenaConfig config;
  int policy, advice, huge, wipe, per_block;
  Py_ssize_t max_warm, max_pending, reserve;
  PyObject *pages, *pool, *budget, *fences;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$iidnnippnOO!OO:Arena", const_cast<char**>(names),
                                   &policy, &advice, &config.decay, &max_warm, &max_pending, &huge,
                                   &wipe, &per_block, &reserve, &pages, pool_type, &pool, &budget,
                                   &fences))
    return nullptr;
  if (!pages_from_python(pages, &config.pages)) return nullptr;
  if (!fences_from_python(fences, &config.fences)) return nullptr;
  if (!Py_IsNone(budget)) {
    if (!PyObject_TypeCheck(budget, budget_type))
      return PyErr_Format(PyExc_TypeError, "budget must be a Budget or None");
    config.budget = reinterpret_cast<PyBudget*>(budget)->budget;
  }
  config.policy = static_cast<ArenaConfig::Policy>(policy);
  config.advice = static_cast<Advice>(advice);
  config.max_warm = static_cast<std::size_t>(max_warm);
  config.max_pending = static_cast<std::size_t>(max_pending);
  config.wipe = wipe;
  config.huge = static_cast<ArenaConfig::Huge>(huge);
  config.mapping_per_block = per_block;
  config.reserve = static_cast<std::size_t>(reserve);
  config.reclaimer = reinterpret_cast<PyPool*>(pool)->reclaimer;
  auto arena = std::make_shared<Arena>(config);
  config.reclaimer->add(arena);
  return wrap(type, &PyArena::arena, std::move(arena));
}

void arena_dealloc(PyArena* self) {
  self->arena->retire();
  dealloc<PyArena, std::shared_ptr<Arena>, &PyArena::arena>(self);
}

PyObject* arena_allocate(PyArena* self, PyObject* args) {
  Py_ssize_t nbytes, alignment;
  int zeroed, prefault;
  PyObject* allocator;
  if (!PyArg_ParseTuple(args, "Opnnp:allocate", &allocator, &prefault, &nbytes, &alignment,
                        &zeroed))
    return nullptr;
  if (!poll_fences(nullptr)) return nullptr;
  report_incidents();
  const double start = seconds_now();
  Arena& arena = *self->arena;
  if (!arena.attend(start)) Py_RETURN_NONE;
  Lease lease;
  Arena::Contents contents;
  auto result = Arena::Result::good;
  if (!arena.allocate_quickly(nbytes, alignment, lease, contents)) {
    WithoutGil nogil;
    result = arena.allocate(nbytes, alignment, lease, contents);
  }
  if (result == Arena::Result::over_budget) Py_RETURN_NONE;
  if (result == Arena::Result::out_of_memory)
    return PyErr_Format(out_of_memory, "the system refused %zd bytes", nbytes);
  lease.source = self->arena;
  lease.alignment = static_cast<std::size_t>(alignment);
  if (prefault && contents.fresh) {
    WithoutGil nogil;
    arena.populate(lease);
  }
  if (zeroed && contents.dirty) {
    if (lease.nbytes <= clear_with_gil) {
      std::memset(lease.address, 0, lease.nbytes);
    } else {
      WithoutGil nogil;
      arena.clear_block(lease);
    }
  }
  arena.count_allocation(seconds_now() - start);
  return new_block(std::move(lease), allocator);
}

PyObject* arena_ticket(PyArena* self, PyObject*) {
  return PyLong_FromUnsignedLongLong(self->arena->ticket());
}

PyObject* arena_drain(PyArena* self, PyObject* args) {
  unsigned long long ticket;
  double seconds;
  if (!PyArg_ParseTuple(args, "Kd:drain", &ticket, &seconds)) return nullptr;
  bool done;
  {
    WithoutGil nogil;
    done = self->arena->drain(ticket, seconds);
  }
  report_incidents();
  return PyBool_FromLong(done);
}

PyObject* arena_reclaim(PyArena* self, PyObject* nbytes) {
  const std::size_t wanted = PyLong_AsSize_t(nbytes);
  if (wanted == static_cast<std::size_t>(-1) && PyErr_Occurred()) return nullptr;
  std::size_t done;
  {
    WithoutGil nogil;
    done = self->arena->reclaim(wanted);
  }
  report_incidents();
  return PyLong_FromSize_t(done);
}

PyObject* arena_trim(PyArena* self, PyObject*) {
  std::size_t done;
  {
    WithoutGil nogil;
    done = self->arena->trim();
  }
  report_incidents();
  return PyLong_FromSize_t(done);
}

PyObject* arena_needed(PyArena* self, PyObject* nbytes) {
  const Py_ssize_t size = PyLong_AsSsize_t(nbytes);
  if (size == -1 && PyErr_Occurred()) return nullptr;
  return PyLong_FromSize_t(self->arena->needed(static_cast<std::size_t>(size)));
}

PyObject* arena_counters(PyArena* self, PyObject*) {
  report_incidents();
  return counters_to_dict(self->arena->counters());
}

PyObject* arena_fenced(PyArena* self, PyObject*) {
  return PyLong_FromSize_t(self->arena->fenced());
}

PyObject* arena_count_wait(PyArena* self, PyObject* seconds) {
  const double value = PyFloat_AsDouble(seconds);
  if (value == -1.0 && PyErr_Occurred()) return nullptr;
  self->arena->count_wait(value);
  Py_RETURN_NONE;
}

PyObject* arena_observe(PyArena* self, PyObject* log) {
  std::shared_ptr<Observer> observer;
  if (!observer_from_python(log, &observer)) return nullptr;
  self->arena->observe(std::move(observer));
  Py_RETURN_NONE;
}

PyObject* arena_retire(PyArena* self, PyObject*) {
  self->arena->retire();
  Py_RETURN_NONE;
}

PyMethodDef arena_methods[] = {
    {"allocate", reinterpret_cast<PyCFunction>(arena_allocate), METH_VARARGS,
     "allocate(allocator, prefault, nbytes, alignment, zeroed)\n--\n\nA block, or None if the "
     "budget must be asked first."},
    {"ticket", reinterpret_cast<PyCFunction>(arena_ticket), METH_NOARGS,
     "ticket()\n--\n\nThe latest release so far, for drain()."},
    {"drain", reinterpret_cast<PyCFunction>(arena_drain), METH_VARARGS,
     "drain(ticket, seconds)\n--\n\nReclaim what was released up to the ticket; False if some of "
     "it is left after that time."},
    {"reclaim", reinterpret_cast<PyCFunction>(arena_reclaim), METH_O,
     "reclaim(nbytes)\n--\n\nGive back at least so many idle bytes; return how many."},
    {"trim", reinterpret_cast<PyCFunction>(arena_trim), METH_NOARGS,
     "trim()\n--\n\nGive back every idle byte, those behind fences once they are done; return how "
     "many went at once."},
    {"needed", reinterpret_cast<PyCFunction>(arena_needed), METH_O,
     "needed(nbytes)\n--\n\nBytes that a budget must have left for a block of that size."},
    {"counters", reinterpret_cast<PyCFunction>(arena_counters), METH_NOARGS,
     "counters()\n--\n\nWhat AllocatorStats is made from."},
    {"fenced", reinterpret_cast<PyCFunction>(arena_fenced), METH_NOARGS,
     "fenced()\n--\n\nBytes that wait for a fence."},
    {"count_wait", reinterpret_cast<PyCFunction>(arena_count_wait), METH_O,
     "count_wait(seconds)\n--\n\nCount time that a caller spent waiting or reclaiming."},
    {"observe", reinterpret_cast<PyCFunction>(arena_observe), METH_O,
     "observe(log)\n--\n\nWrite reclaims and waits to this TraceLog from now on; None stops it."},
    {"retire", reinterpret_cast<PyCFunction>(arena_retire), METH_NOARGS,
     "retire()\n--\n\nGive everything back as it is released."},
    {nullptr}};
PyType_Slot arena_slots[] = {
    {Py_tp_doc, const_cast<char*>("Arena(...)\n--\n\nThe native part of ArenaAllocator.")},
    {Py_tp_new, reinterpret_cast<void*>(arena_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(arena_dealloc)},
    {Py_tp_methods, arena_methods},
    {0, nullptr}};
PyType_Spec arena_spec = {"bigmem._core.Arena", sizeof(PyArena), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, arena_slots};

}  // namespace

bool add_arena_types(PyObject* module) {
  return (pool_type = add_type(module, &pool_spec)) &&
         (budget_type = add_type(module, &budget_spec)) && add_type(module, &arena_spec);
}

}  // namespace bigmem
