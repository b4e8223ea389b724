#include "extent_map_python.hpp"

#include <cstring>
#include <new>

#include "extent_map.hpp"

namespace bigmem {
namespace {

constexpr const char* state_names[] = {"live", "pending", "reclaiming", "warm", "lazy", "clean"};

struct PyExtentMap {
  PyObject_HEAD ExtentMap* map;
};

bool parse_name(const char* name, const char* const* names, std::size_t count, int* value) {
  for (std::size_t i = 0; i < count; ++i) {
    if (std::strcmp(names[i], name) == 0) {
      *value = static_cast<int>(i);
      return true;
    }
  }
  PyErr_Format(PyExc_ValueError, "unknown name %s", name);
  return false;
}

bool parse_state(const char* name, State* state) {
  int value;
  if (!parse_name(name, state_names, state_count, &value)) return false;
  *state = static_cast<State>(value);
  return true;
}

bool ready(PyExtentMap* self) {
  while (!self->map->has_nodes()) {
    void* slab = ExtentMap::new_slab();
    if (!slab) {
      PyErr_NoMemory();
      return false;
    }
    self->map->donate(slab);
  }
  return true;
}

Extent* find(PyExtentMap* self, unsigned long long begin) {
  Extent* extent = self->map->find(begin);
  if (!extent) PyErr_Format(PyExc_KeyError, "no extent begins at %llu", begin);
  return extent;
}

PyObject* range(const Extent* extent) {
  if (!extent) Py_RETURN_NONE;
  return Py_BuildValue("Kn", static_cast<unsigned long long>(extent->begin), extent->size);
}

PyObject* map_new(PyTypeObject* type, PyObject* args, PyObject*) {
  Py_ssize_t unit, page = 4096;
  double decay;
  if (!PyArg_ParseTuple(args, "nd|n:ExtentMap", &unit, &decay, &page)) return nullptr;
  auto* self = reinterpret_cast<PyExtentMap*>(type->tp_alloc(type, 0));
  if (self) self->map = new ExtentMap(unit, decay, page);
  return reinterpret_cast<PyObject*>(self);
}

void map_dealloc(PyExtentMap* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete self->map;
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* map_add_region(PyExtentMap* self, PyObject* args) {
  unsigned long long begin;
  Py_ssize_t size;
  int zero;
  if (!PyArg_ParseTuple(args, "Knp:add_region", &begin, &size, &zero) || !ready(self))
    return nullptr;
  self->map->add_region(begin, size, zero);
  Py_RETURN_NONE;
}

PyObject* map_remove(PyExtentMap* self, PyObject* args) {
  unsigned long long begin;
  if (!PyArg_ParseTuple(args, "K:remove", &begin)) return nullptr;
  Extent* extent = find(self, begin);
  if (!extent) return nullptr;
  self->map->remove(extent);
  Py_RETURN_NONE;
}

PyObject* map_move(PyExtentMap* self, PyObject* args) {
  unsigned long long begin, to;
  Py_ssize_t size;
  int zero;
  if (!PyArg_ParseTuple(args, "KKnp:move", &begin, &to, &size, &zero) || !ready(self))
    return nullptr;
  Extent* extent = find(self, begin);
  if (!extent) return nullptr;
  self->map->move(extent, to, size, zero);
  Py_RETURN_NONE;
}

PyObject* map_regions(PyExtentMap* self, PyObject*) {
  return PyLong_FromSize_t(self->map->regions());
}

PyObject* map_allocate(PyExtentMap* self, PyObject* args) {
  Py_ssize_t size, alignment;
  int clean;
  if (!PyArg_ParseTuple(args, "nnp:allocate", &size, &alignment, &clean) || !ready(self))
    return nullptr;
  const ExtentMap::Allocation found = self->map->allocate(size, alignment, clean);
  if (!found.extent) Py_RETURN_NONE;
  return Py_BuildValue("KsO", static_cast<unsigned long long>(found.extent->begin),
                       state_names[index_of(found.from)], found.zero ? Py_True : Py_False);
}

PyObject* map_release(PyExtentMap* self, PyObject* args) {
  unsigned long long begin, serial;
  const char* name;
  double now;
  State to;
  if (!PyArg_ParseTuple(args, "KsdK:release", &begin, &name, &now, &serial) ||
      !parse_state(name, &to))
    return nullptr;
  Extent* extent = find(self, begin);
  if (!extent) return nullptr;
  return range(self->map->release(extent, to, now, serial));
}

PyObject* map_grow(PyExtentMap* self, PyObject* args) {
  unsigned long long begin;
  Py_ssize_t size;
  int clean;
  if (!PyArg_ParseTuple(args, "Knp:grow", &begin, &size, &clean) || !ready(self)) return nullptr;
  Extent* extent = find(self, begin);
  if (!extent) return nullptr;
  const auto fresh = self->map->clean_to_grow(extent, size, clean);
  if (!fresh) Py_RETURN_NONE;
  self->map->grow(extent, size);
  return PyLong_FromSize_t(*fresh);
}

PyObject* map_shrink(PyExtentMap* self, PyObject* args) {
  unsigned long long begin, serial;
  Py_ssize_t size;
  const char* name;
  double now;
  State to;
  if (!PyArg_ParseTuple(args, "KnsdK:shrink", &begin, &size, &name, &now, &serial) ||
      !parse_state(name, &to) || !ready(self))
    return nullptr;
  Extent* extent = find(self, begin);
  if (!extent) return nullptr;
  return range(self->map->shrink(extent, size, to, now, serial));
}

PyObject* map_park(PyExtentMap* self, PyObject* args) {
  unsigned long long begin, serial;
  double now;
  if (!PyArg_ParseTuple(args, "KdK:park", &begin, &now, &serial)) return nullptr;
  Extent* extent = find(self, begin);
  if (!extent) return nullptr;
  self->map->park(extent, now, serial);
  Py_RETURN_NONE;
}

PyObject* map_unfence(PyExtentMap* self, PyObject* args) {
  unsigned long long begin;
  const char* name;
  double now;
  State to;
  if (!PyArg_ParseTuple(args, "Ksd:unfence", &begin, &name, &now) || !parse_state(name, &to))
    return nullptr;
  Extent* extent = find(self, begin);
  if (!extent) return nullptr;
  return range(self->map->unfence(extent, to, now));
}

PyObject* map_take(PyExtentMap* self, PyObject* args) {
  static const char* const kinds[] = {"pending", "due", "warm", "any"};
  const char* name;
  double now;
  Py_ssize_t limit;
  int kind;
  if (!PyArg_ParseTuple(args, "sdn:take", &name, &now, &limit) ||
      !parse_name(name, kinds, 4, &kind) || !ready(self))
    return nullptr;
  return range(self->map->take(static_cast<ExtentMap::Take>(kind), now, limit));
}

PyObject* map_finish(PyExtentMap* self, PyObject* args) {
  static const char* const outcomes[] = {"clean_zero", "clean", "lazy", "refused", "wiped"};
  unsigned long long begin;
  const char* name;
  int outcome;
  if (!PyArg_ParseTuple(args, "Ks:finish", &begin, &name) ||
      !parse_name(name, outcomes, 5, &outcome))
    return nullptr;
  Extent* extent = find(self, begin);
  if (!extent) return nullptr;
  return range(self->map->finish(extent, static_cast<ExtentMap::Outcome>(outcome)));
}

PyObject* map_requeue(PyExtentMap* self, PyObject*) {
  self->map->requeue();
  Py_RETURN_NONE;
}

PyObject* map_mark_shared(PyExtentMap* self, PyObject*) {
  self->map->mark_shared();
  Py_RETURN_NONE;
}

PyObject* map_settled(PyExtentMap* self, PyObject* serial) {
  const unsigned long long value = PyLong_AsUnsignedLongLong(serial);
  if (PyErr_Occurred()) return nullptr;
  return PyBool_FromLong(self->map->settled(value));
}

PyObject* map_bytes(PyExtentMap* self, PyObject* args) {
  const char* name;
  State state;
  if (!PyArg_ParseTuple(args, "s:bytes", &name) || !parse_state(name, &state)) return nullptr;
  return PyLong_FromSize_t(self->map->bytes(state));
}

PyObject* map_fenced(PyExtentMap* self, PyObject*) {
  return PyLong_FromSize_t(self->map->fenced());
}

PyObject* map_fragments(PyExtentMap* self, PyObject*) {
  return PyLong_FromSize_t(self->map->fragments());
}

PyObject* map_nodes(PyExtentMap* self, PyObject*) {
  return Py_BuildValue("nn", self->map->spare_nodes(), self->map->reserved_nodes());
}

PyObject* map_extents(PyExtentMap* self, PyObject*) {
  PyObject* list = PyList_New(0);
  if (!list) return nullptr;
  bool good = true;
  self->map->for_each([&](const Extent& extent) {
    if (!good) return;
    PyObject* item = Py_BuildValue(
        "KnsOOddK", static_cast<unsigned long long>(extent.begin), extent.size,
        state_names[index_of(extent.state)], extent.zero ? Py_True : Py_False,
        extent.shared ? Py_True : Py_False, extent.since, extent.oldest, extent.serial);
    good = item && PyList_Append(list, item) == 0;
    Py_XDECREF(item);
  });
  if (!good || PyList_Sort(list) < 0) Py_CLEAR(list);
  return list;
}

template <PyObject* (*function)(PyExtentMap*, PyObject*)>
PyCFunction method() {
  return reinterpret_cast<PyCFunction>(function);
}

PyMethodDef methods[] = {
    {"add_region", method<map_add_region>(), METH_VARARGS, "add_region(begin, size, zero)\n--\n"},
    {"remove", method<map_remove>(), METH_VARARGS, "remove(begin)\n--\n"},
    {"move", method<map_move>(), METH_VARARGS, "move(begin, to, size, zero)\n--\n"},
    {"regions", method<map_regions>(), METH_NOARGS, "regions()\n--\n"},
    {"allocate", method<map_allocate>(), METH_VARARGS,
     "allocate(size, alignment, clean)\n--\n\n(begin, state it came from, whether zero) or None."},
    {"release", method<map_release>(), METH_VARARGS,
     "release(begin, to, now, serial)\n--\n\n(begin, size) of the extent of its whole units or "
     "None."},
    {"grow", method<map_grow>(), METH_VARARGS,
     "grow(begin, size, clean)\n--\n\nHow many clean bytes it took, or None if it cannot."},
    {"shrink", method<map_shrink>(), METH_VARARGS,
     "shrink(begin, size, to, now, serial)\n--\n\n(begin, size) of the extent of the whole units "
     "that it let go, or None."},
    {"park", method<map_park>(), METH_VARARGS, "park(begin, now, serial)\n--\n"},
    {"unfence", method<map_unfence>(), METH_VARARGS,
     "unfence(begin, to, now)\n--\n\n(begin, size) of the extent of its whole units or None."},
    {"take", method<map_take>(), METH_VARARGS,
     "take(kind, now, limit)\n--\n\n(begin, size) of an extent to reclaim, or None."},
    {"finish", method<map_finish>(), METH_VARARGS,
     "finish(begin, outcome)\n--\n\n(begin, size) of the extent it is part of now."},
    {"requeue", method<map_requeue>(), METH_NOARGS, "requeue()\n--\n"},
    {"mark_shared", method<map_mark_shared>(), METH_NOARGS, "mark_shared()\n--\n"},
    {"settled", method<map_settled>(), METH_O, "settled(serial)\n--\n"},
    {"bytes", method<map_bytes>(), METH_VARARGS, "bytes(state)\n--\n"},
    {"fenced", method<map_fenced>(), METH_NOARGS, "fenced()\n--\n"},
    {"fragments", method<map_fragments>(), METH_NOARGS, "fragments()\n--\n"},
    {"nodes", method<map_nodes>(), METH_NOARGS,
     "nodes()\n--\n\nHow many extents are spare, and how many of those are set aside."},
    {"extents", method<map_extents>(), METH_NOARGS,
     "extents()\n--\n\n(begin, size, state, zero, shared, since, oldest, serial), in address "
     "order."},
    {nullptr}};

PyType_Slot slots[] = {
    {Py_tp_doc,
     const_cast<char*>("ExtentMap(unit, decay, page=4096)\n--\n\nSee bigmem.arena.extents.")},
    {Py_tp_new, reinterpret_cast<void*>(map_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(map_dealloc)},
    {Py_tp_methods, methods},
    {0, nullptr}};

PyType_Spec spec = {"bigmem._core.ExtentMap", sizeof(PyExtentMap), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots};

}  // namespace

bool add_extent_map_type(PyObject* module) { return add_type(module, &spec) != nullptr; }

}  // namespace bigmem
