#include "charge_python.hpp"

#include <new>
#include <utility>

namespace bigmem {
namespace {

struct Charge {
  PyObject_HEAD std::shared_ptr<Budget> budget;  // empty once credited
  std::size_t nbytes;
};

PyTypeObject* charge_type;

void credit(Charge* self) {
  if (const auto budget = std::exchange(self->budget, nullptr)) budget->credit(self->nbytes);
}

PyObject* charge_call(Charge* self, PyObject*, PyObject*) {
  credit(self);
  Py_RETURN_NONE;
}

void charge_dealloc(Charge* self) {
  PyTypeObject* type = Py_TYPE(self);
  credit(self);
  self->budget.~shared_ptr();
  type->tp_free(self);
  Py_DECREF(type);
}

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("Bytes that count against a budget until it is called or dies.")},
    {Py_tp_call, reinterpret_cast<void*>(charge_call)},
    {Py_tp_dealloc, reinterpret_cast<void*>(charge_dealloc)},
    {0, nullptr}};

PyType_Spec spec = {
    "bigmem._core.Charge", sizeof(Charge), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

}  // namespace

bool add_charge_type(PyObject* module) {
  return (charge_type = add_type(module, &spec)) != nullptr;
}

PyObject* charge(std::shared_ptr<Budget> budget, std::size_t nbytes) {
  auto* self = reinterpret_cast<Charge*>(charge_type->tp_alloc(charge_type, 0));
  if (!self) return nullptr;
  new (&self->budget) std::shared_ptr<Budget>;
  self->nbytes = nbytes;
  if (budget->charge(nbytes)) {
    self->budget = std::move(budget);
    return reinterpret_cast<PyObject*>(self);
  }
  Py_DECREF(self);
  Py_RETURN_NONE;
}

}  // namespace bigmem
