#include "fences_python.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "fence_table.hpp"

namespace bigmem {
namespace {

PyTypeObject* fences_type;

void fences_dealloc(PyFences* self) {
  PyTypeObject* type = Py_TYPE(self);
  self->fences.~shared_ptr();
  type->tp_free(self);
  Py_DECREF(type);
}

PyType_Slot fences_slots[] = {
    {Py_tp_doc, const_cast<char*>("What an arena may have to wait for: see its subtypes.")},
    {Py_tp_dealloc, reinterpret_cast<void*>(fences_dealloc)},
    {0, nullptr}};
PyType_Spec fences_spec = {"bigmem._core.Fences", sizeof(PyFences), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE |
                               Py_TPFLAGS_DISALLOW_INSTANTIATION,
                           fences_slots};

// --- ProbedFences ---

constexpr const char* operations[] = {"guard", "done", "drop"};
enum Operation : std::size_t { guard_op, done_op, drop_op, operation_count };

// A processor of which tests say how far it is. A fence is its number, and not memory.
class Probe final : public Fences {
 public:
  explicit Probe(bool always_done) : always_done_(always_done) {}

  Fence* guard() noexcept override {
    enter(guard_op);
    return guards_allowed_.load() ? make() : nullptr;
  }

  bool done(Fence* fence) noexcept override {
    enter(done_op);
    std::lock_guard lock(mutex_);
    const auto found = open_.find(number_of(fence));
    if (found == open_.end()) mistakes_.fetch_add(1);
    return found == open_.end() || found->second;
  }

  void drop(Fence* fence) noexcept override {
    enter(drop_op);
    std::lock_guard lock(mutex_);
    if (!open_.erase(number_of(fence))) mistakes_.fetch_add(1);
  }

  Fence* make() {
    std::lock_guard lock(mutex_);
    open_.emplace(++made_, always_done_);
    return reinterpret_cast<Fence*>(made_);
  }

  bool finish(std::uintptr_t number) {
    std::lock_guard lock(mutex_);
    const auto found = open_.find(number);
    if (found != open_.end()) found->second = true;
    return found != open_.end();
  }

  void finish_all() {
    std::lock_guard lock(mutex_);
    for (auto& each : open_) each.second = true;
  }

  std::size_t open() {
    std::lock_guard lock(mutex_);
    return open_.size();
  }

  void allow_guards(bool allowed) { guards_allowed_.store(allowed); }
  void delay(double seconds) { delay_us_.store(static_cast<int>(seconds * 1e6)); }
  std::uint64_t calls(Operation operation) const { return calls_[operation].load(); }
  // Fences that were asked about or dropped after they had been dropped.
  std::uint64_t mistakes() const { return mistakes_.load(); }

  static std::uintptr_t number_of(Fence* fence) { return reinterpret_cast<std::uintptr_t>(fence); }

 private:
  void enter(Operation operation) {
    calls_[operation].fetch_add(1);
    if (const int delay = delay_us_.load())
      std::this_thread::sleep_for(std::chrono::microseconds(delay));
  }

  const bool always_done_;
  std::mutex mutex_;
  std::map<std::uintptr_t, bool> open_;  // whether it is done, by number
  std::uintptr_t made_ = 0;
  std::atomic<bool> guards_allowed_{true};
  std::atomic<int> delay_us_{0};
  std::atomic<std::uint64_t> calls_[operation_count]{}, mistakes_{0};
};

Probe& probe_of(PyFences* self) { return static_cast<Probe&>(*self->fences); }

PyObject* probed_new(PyTypeObject* type, PyObject* args, PyObject*) {
  int always_done = 0;
  if (!PyArg_ParseTuple(args, "|p:ProbedFences", &always_done)) return nullptr;
  return new_fences(type, std::make_shared<Probe>(always_done != 0));
}

PyObject* probed_attach(PyFences* self, PyObject* address) {
  const std::size_t at = PyLong_AsSize_t(address);
  if (at == static_cast<std::size_t>(-1) && PyErr_Occurred()) return nullptr;
  Probe& probe = probe_of(self);
  Fences::Fence* fence = probe.make();
  if (attach_fence(&probe, at, fence)) return PyLong_FromSize_t(Probe::number_of(fence));
  probe.drop(fence);
  Py_RETURN_NONE;
}

PyObject* probed_finish(PyFences* self, PyObject* number) {
  const std::size_t value = PyLong_AsSize_t(number);
  if (value == static_cast<std::size_t>(-1) && PyErr_Occurred()) return nullptr;
  return PyBool_FromLong(probe_of(self).finish(value));
}

PyObject* probed_finish_all(PyFences* self, PyObject*) {
  probe_of(self).finish_all();
  Py_RETURN_NONE;
}

PyObject* probed_allow_guards(PyFences* self, PyObject* allowed) {
  const int truth = PyObject_IsTrue(allowed);
  if (truth < 0) return nullptr;
  probe_of(self).allow_guards(truth != 0);
  Py_RETURN_NONE;
}

PyObject* probed_delay(PyFences* self, PyObject* seconds) {
  const double value = PyFloat_AsDouble(seconds);
  if (value == -1.0 && PyErr_Occurred()) return nullptr;
  probe_of(self).delay(value);
  Py_RETURN_NONE;
}

PyObject* probed_calls(PyFences* self, PyObject* args) {
  const char* name;
  if (!PyArg_ParseTuple(args, "s:calls", &name)) return nullptr;
  for (std::size_t i = 0; i < operation_count; ++i)
    if (std::strcmp(operations[i], name) == 0)
      return PyLong_FromUnsignedLongLong(probe_of(self).calls(static_cast<Operation>(i)));
  return PyErr_Format(PyExc_ValueError, "there is no operation %s", name);
}

PyObject* probed_open(PyFences* self, PyObject*) {
  return PyLong_FromSize_t(probe_of(self).open());
}

PyObject* probed_mistakes(PyFences* self, PyObject*) {
  return PyLong_FromUnsignedLongLong(probe_of(self).mistakes());
}

PyMethodDef probed_methods[] = {
    {"attach", reinterpret_cast<PyCFunction>(probed_attach), METH_O,
     "attach(address)\n--\n\nThe number of a new fence of the live block that contains the "
     "address; None if there is no such block."},
    {"finish", reinterpret_cast<PyCFunction>(probed_finish), METH_O,
     "finish(number)\n--\n\nThe fence is done; False if it has been dropped."},
    {"finish_all", reinterpret_cast<PyCFunction>(probed_finish_all), METH_NOARGS,
     "finish_all()\n--\n\nEvery fence that was made so far is done."},
    {"allow_guards", reinterpret_cast<PyCFunction>(probed_allow_guards), METH_O,
     "allow_guards(allowed)\n--\n\nWhether guards can be made from now on."},
    {"delay", reinterpret_cast<PyCFunction>(probed_delay), METH_O,
     "delay(seconds)\n--\n\nLet every call take longer from now on."},
    {"calls", reinterpret_cast<PyCFunction>(probed_calls), METH_VARARGS,
     "calls(operation)\n--\n\nHow often \"guard\", \"done\" or \"drop\" was called."},
    {"open", reinterpret_cast<PyCFunction>(probed_open), METH_NOARGS,
     "open()\n--\n\nHow many fences have been made and not dropped."},
    {"mistakes", reinterpret_cast<PyCFunction>(probed_mistakes), METH_NOARGS,
     "mistakes()\n--\n\nHow many calls were about fences that had been dropped."},
    {nullptr}};
PyType_Slot probed_slots[] = {
    {Py_tp_doc, const_cast<char*>("ProbedFences(always_done=False)\n--\n\nA test double for the "
                                  "fences of a GPU.")},
    {Py_tp_new, reinterpret_cast<void*>(probed_new)},
    {Py_tp_methods, probed_methods},
    {0, nullptr}};
PyType_Spec probed_spec = {"bigmem._core.ProbedFences", sizeof(PyFences), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, probed_slots};

// --- FenceTable ---

struct PyFenceTable {
  PyObject_HEAD FenceTable* table;
};

Fences::Fence* fence_of(unsigned long long number) {
  return reinterpret_cast<Fences::Fence*>(static_cast<std::uintptr_t>(number));
}

// Null where the number is none.
FenceTable::Moment* moment_of(unsigned long long number) {
  return number ? new FenceTable::Moment{fence_of(number)} : nullptr;
}

PyObject* table_new(PyTypeObject* type, PyObject* args, PyObject*) {
  if (!PyArg_ParseTuple(args, ":FenceTable")) return nullptr;
  auto* self = reinterpret_cast<PyFenceTable*>(type->tp_alloc(type, 0));
  if (self) self->table = new FenceTable;
  return reinterpret_cast<PyObject*>(self);
}

void table_dealloc(PyFenceTable* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete self->table;
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* table_enter(PyFenceTable* self, PyObject* args) {
  unsigned long long begin;
  Py_ssize_t size;
  if (!PyArg_ParseTuple(args, "Kn:enter", &begin, &size)) return nullptr;
  self->table->enter(FenceTable::new_entry(), begin, static_cast<std::size_t>(size), nullptr);
  Py_RETURN_NONE;
}

PyObject* table_attach(PyFenceTable* self, PyObject* args) {
  unsigned long long address, number;
  if (!PyArg_ParseTuple(args, "KK:attach", &address, &number)) return nullptr;
  FenceTable::Moment* moment = moment_of(number);
  const bool attached = self->table->attach(address, moment);
  if (!attached) delete moment;
  return PyBool_FromLong(attached);
}

PyObject* table_release(PyFenceTable* self, PyObject* args) {
  unsigned long long begin;
  int held;
  if (!PyArg_ParseTuple(args, "Kp:release", &begin, &held)) return nullptr;
  self->table->release(begin, held != 0);
  Py_RETURN_NONE;
}

PyObject* table_unhold(PyFenceTable* self, PyObject* begin) {
  const unsigned long long value = PyLong_AsUnsignedLongLong(begin);
  if (PyErr_Occurred()) return nullptr;
  return PyBool_FromLong(!self->table->unhold(value).empty());
}

PyObject* table_waiting(PyFenceTable* self, PyObject*) {
  return PyLong_FromSize_t(self->table->waiting());
}

PyObject* table_begin_round(PyFenceTable* self, PyObject* blocks) {
  const std::size_t value = PyLong_AsSize_t(blocks);
  if (PyErr_Occurred()) return nullptr;
  self->table->begin_round(value);
  Py_RETURN_NONE;
}

PyObject* table_begin_round_of(PyFenceTable* self, PyObject* address) {
  const unsigned long long value = PyLong_AsUnsignedLongLong(address);
  if (PyErr_Occurred()) return nullptr;
  return PyBool_FromLong(self->table->begin_round_of(value));
}

PyObject* table_next(PyFenceTable* self, PyObject*) {
  const FenceTable::Question question = self->table->next();
  if (question.ask == FenceTable::Ask::none) Py_RETURN_NONE;
  if (question.ask == FenceTable::Ask::guard) return PyUnicode_FromString("guard");
  return PyLong_FromVoidPtr(question.fence);
}

PyObject* table_answer(PyFenceTable* self, PyObject* done) {
  const int truth = PyObject_IsTrue(done);
  if (truth < 0) return nullptr;
  self->table->answer(truth != 0);
  Py_RETURN_NONE;
}

PyObject* table_answer_guard(PyFenceTable* self, PyObject* number) {
  const unsigned long long value = PyLong_AsUnsignedLongLong(number);
  if (PyErr_Occurred()) return nullptr;
  self->table->answer(moment_of(value));
  Py_RETURN_NONE;
}

PyObject* table_take_dropped(PyFenceTable* self, PyObject*) {
  FenceTable::Moment* moment = self->table->take_dropped();
  if (!moment) Py_RETURN_NONE;
  PyObject* number = PyLong_FromVoidPtr(moment->fence);
  delete moment;
  return number;
}

PyObject* table_take_free(PyFenceTable* self, PyObject*) {
  const FenceTable::Entry entry = self->table->take_free();
  if (entry.empty()) Py_RETURN_NONE;
  return PyLong_FromUnsignedLongLong(entry.key());
}

PyObject* table_forsake(PyFenceTable* self, PyObject*) {
  self->table->forsake();
  Py_RETURN_NONE;
}

PyObject* table_clear(PyFenceTable* self, PyObject*) {
  self->table->clear();
  Py_RETURN_NONE;
}

PyMethodDef table_methods[] = {
    {"enter", reinterpret_cast<PyCFunction>(table_enter), METH_VARARGS,
     "enter(begin, size)\n--\n\nA block comes alive."},
    {"attach", reinterpret_cast<PyCFunction>(table_attach), METH_VARARGS,
     "attach(address, fence)\n--\n\nWhether a live block contains the address."},
    {"release", reinterpret_cast<PyCFunction>(table_release), METH_VARARGS,
     "release(begin, held)\n--\n\nA live block waits from now on."},
    {"unhold", reinterpret_cast<PyCFunction>(table_unhold), METH_O,
     "unhold(begin)\n--\n\nWhether that sets it free."},
    {"waiting", reinterpret_cast<PyCFunction>(table_waiting), METH_NOARGS,
     "waiting()\n--\n\nHow many released blocks wait for answers."},
    {"begin_round", reinterpret_cast<PyCFunction>(table_begin_round), METH_O,
     "begin_round(blocks)\n--\n\nAsk about released blocks."},
    {"begin_round_of", reinterpret_cast<PyCFunction>(table_begin_round_of), METH_O,
     "begin_round_of(address)\n--\n\nAsk about a live block; False if there is none."},
    {"next", reinterpret_cast<PyCFunction>(table_next), METH_NOARGS,
     "next()\n--\n\nThe fence to ask about, \"guard\", or None at the end of the round."},
    {"answer", reinterpret_cast<PyCFunction>(table_answer), METH_O,
     "answer(done)\n--\n\nTo a question about a fence."},
    {"answer_guard", reinterpret_cast<PyCFunction>(table_answer_guard), METH_O,
     "answer_guard(fence)\n--\n\nTo \"guard\"; 0 if there can be none now."},
    {"take_dropped", reinterpret_cast<PyCFunction>(table_take_dropped), METH_NOARGS,
     "take_dropped()\n--\n\nA fence that is not needed any more, or None."},
    {"take_free", reinterpret_cast<PyCFunction>(table_take_free), METH_NOARGS,
     "take_free()\n--\n\nThe beginning of a block that is free again, or None."},
    {"forsake", reinterpret_cast<PyCFunction>(table_forsake), METH_NOARGS,
     "forsake()\n--\n\nReleased blocks wait for nothing any more, unless they are held."},
    {"clear", reinterpret_cast<PyCFunction>(table_clear), METH_NOARGS,
     "clear()\n--\n\nForget everything, and drop nothing."},
    {nullptr}};
PyType_Slot table_slots[] = {
    {Py_tp_doc, const_cast<char*>("FenceTable()\n--\n\nThe core's table of fences, for tests. "
                                  "Fences are numbers above 0.")},
    {Py_tp_new, reinterpret_cast<void*>(table_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(table_dealloc)},
    {Py_tp_methods, table_methods},
    {0, nullptr}};
PyType_Spec table_spec = {"bigmem._core.FenceTable", sizeof(PyFenceTable), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, table_slots};

}  // namespace

PyTypeObject* add_fences_subtype(PyObject* module, PyType_Spec* spec) {
  auto* type = reinterpret_cast<PyTypeObject*>(
      PyType_FromModuleAndSpec(module, spec, reinterpret_cast<PyObject*>(fences_type)));
  if (type && PyModule_AddType(module, type) < 0) Py_CLEAR(type);
  return type;
}

PyObject* new_fences(PyTypeObject* type, std::shared_ptr<Fences> fences) {
  auto* self = reinterpret_cast<PyFences*>(type->tp_alloc(type, 0));
  if (self) new (&self->fences) std::shared_ptr<Fences>(std::move(fences));
  return reinterpret_cast<PyObject*>(self);
}

bool fences_from_python(PyObject* object, std::shared_ptr<Fences>* fences) {
  if (Py_IsNone(object)) {
    fences->reset();
    return true;
  }
  if (!PyObject_TypeCheck(object, fences_type)) {
    PyErr_Format(PyExc_TypeError, "expected Fences or None, not %.100s", Py_TYPE(object)->tp_name);
    return false;
  }
  *fences = reinterpret_cast<PyFences*>(object)->fences;
  return true;
}

bool add_fences_types(PyObject* module) {
  return (fences_type = add_type(module, &fences_spec)) &&
         add_fences_subtype(module, &probed_spec) && add_type(module, &table_spec);
}

}  // namespace bigmem
