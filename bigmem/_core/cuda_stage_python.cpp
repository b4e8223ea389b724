#include <memory>
#include <new>

#include "cuda_python.hpp"
#include "cuda_stage.hpp"
#include "fences_python.hpp"

namespace bigmem {
namespace {

struct PyStage {
  PyObject_HEAD CudaStage* stage;
  const cuda::Driver* driver;
};

PyObject* stage_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* fences_object;
  unsigned long long stream, slots;
  Py_ssize_t piece, threads, depth;
  if (!PyArg_ParseTuple(args, "OKKnnn:CudaStage", &fences_object, &stream, &slots, &piece, &threads,
                        &depth))
    return nullptr;
  std::shared_ptr<Fences> any;
  if (!fences_from_python(fences_object, &any)) return nullptr;
  auto fences = std::dynamic_pointer_cast<CudaFences>(any);
  if (!fences) return PyErr_Format(PyExc_TypeError, "CudaStage needs CudaFences");
  if (piece < 1 || threads < 1 || depth < 1)
    return PyErr_Format(PyExc_ValueError, "piece, threads and depth are at least 1");
  auto* self = reinterpret_cast<PyStage*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->driver = &fences->driver();
  CudaStage::Plan plan{};
  plan.slots = reinterpret_cast<char*>(slots);
  plan.piece = static_cast<std::size_t>(piece);
  plan.threads = static_cast<std::size_t>(threads);
  plan.depth = static_cast<std::size_t>(depth);
  try {
    self->stage = new CudaStage(std::move(fences), reinterpret_cast<cuda::Stream>(stream), plan);
  } catch (const std::exception&) {
    Py_DECREF(self);
    return PyErr_NoMemory();
  }
  return reinterpret_cast<PyObject*>(self);
}

void stage_dealloc(PyStage* self) {
  delete self->stage;
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

// False where a signal's handler has raised.
bool handle_signals() {
  WithGil gil;
  return !gil || PyErr_CheckSignals() == 0;
}

PyObject* stage_send(PyStage* self, PyObject* args) {
  Py_buffer source;
  unsigned long long target;
  if (!PyArg_ParseTuple(args, "y*K:send", &source, &target)) return nullptr;
  CudaFences::Refusal refusal;
  bool sent = false, enough_memory = true;
  try {
    WithoutGil nogil;
    sent = self->stage->send(static_cast<const char*>(source.buf),
                             static_cast<std::size_t>(source.len), target, handle_signals, refusal);
  } catch (const std::bad_alloc&) {
    enough_memory = false;
  }
  PyBuffer_Release(&source);
  if (PyErr_Occurred()) return nullptr;
  if (!enough_memory) return PyErr_NoMemory();
  if (sent) Py_RETURN_NONE;
  if (refusal.function) return cuda_refused(*self->driver, refusal);
  // The process is about to end. That of a thread goes unnoticed.
  PyErr_SetNone(PyExc_SystemExit);
  return nullptr;
}

PyMethodDef methods[] = {
    {"send", reinterpret_cast<PyCFunction>(stage_send), METH_VARARGS,
     "send(source, target)\n--\n\nCopy a buffer to an address of the device; on return it has been "
     "read, and its copies are submitted."},
    {nullptr}};
PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("CudaStage(fences, stream, slots, piece, threads, depth)\n--\n\n"
                                  "Threads that copy by way of pinned slots, threads * depth "
                                  "pieces from that address.")},
    {Py_tp_new, reinterpret_cast<void*>(stage_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(stage_dealloc)},
    {Py_tp_methods, methods},
    {0, nullptr}};
PyType_Spec spec = {"bigmem._core.CudaStage", sizeof(PyStage), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots};

}  // namespace

bool add_cuda_stage_type(PyObject* module) { return add_type(module, &spec) != nullptr; }

}  // namespace bigmem
