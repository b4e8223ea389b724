#include "cuda_python.hpp"

#include <memory>
#include <new>
#include <utility>

#include "cuda_fences.hpp"
#include "fences_python.hpp"

namespace bigmem {
namespace {

using cuda::Calling;
using cuda::Current;
using cuda::Driver;
using cuda::Result;

PyTypeObject *driver_type, *fences_type, *event_type;

template <typename Object>
void dealloc(Object* self) {
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

// --- CudaDriver ---

struct PyDriver {
  PyObject_HEAD const Driver* driver;  // kept for good
};

PyObject* driver_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* addresses;
  if (!PyArg_ParseTuple(args, "O!:CudaDriver", &PyDict_Type, &addresses)) return nullptr;
  auto* self = reinterpret_cast<PyDriver*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  std::unique_ptr<Driver> driver(cuda::new_driver());
  for (const cuda::Function& function : cuda::functions) {
    PyObject* address = PyDict_GetItemString(addresses, function.name);
    void* pointer = address ? PyLong_AsVoidPtr(address) : nullptr;
    if (!pointer) {
      if (!PyErr_Occurred())
        PyErr_Format(bigmem_error, "NVIDIA's driver has no %s, which came with CUDA %d.%d",
                     function.name, function.version / 1000, function.version % 1000 / 10);
      Py_DECREF(self);
      return nullptr;
    }
    function.set(*driver, pointer);
  }
  self->driver = driver.release();
  return reinterpret_cast<PyObject*>(self);
}

PyObject* driver_start(PyDriver* self, PyObject*) {
  const Driver& driver = *self->driver;
  int count = 0;
  Result result;
  const char* function = "cuInit";
  {
    WithoutGil nogil;
    const Calling calling(driver);
    result = calling ? driver.init(0) : cuda::not_initialized;
    if (result == cuda::success) {
      function = "cuDeviceGetCount";
      result = driver.device_count(&count);
    }
  }
  if (result != cuda::success) return cuda_refused(driver, function, result);
  return PyLong_FromLong(count);
}

// The device in whose primary context the stream works, or -1.
int device_of(const Driver& driver, cuda::Stream stream) {
  const WithoutGil nogil;  // the driver may wait for somebody who wants it
  const Calling calling(driver);
  cuda::Context context = nullptr;
  int count = 0;
  if (!calling || cuda::stream_context(driver, stream, &context) != cuda::success || !context ||
      driver.device_count(&count) != cuda::success)
    return -1;
  for (int device = 0; device < count; ++device) {
    cuda::Context primary;
    if (cuda::primary_context(driver, device, &primary) == cuda::success && primary == context)
      return device;
  }
  return -1;
}

PyObject* driver_device_of(PyDriver* self, PyObject* args) {
  unsigned long long stream = 0;
  if (!PyArg_ParseTuple(args, "|K:device_of", &stream)) return nullptr;
  const int device = device_of(*self->driver, reinterpret_cast<cuda::Stream>(stream));
  if (device < 0) Py_RETURN_NONE;
  return PyLong_FromLong(device);
}

PyObject* driver_enter(PyDriver* self, PyObject* device) {
  const long ordinal = PyLong_AsLong(device);
  if (ordinal == -1 && PyErr_Occurred()) return nullptr;
  const Driver& driver = *self->driver;
  bool entered;
  {
    WithoutGil nogil;
    const Calling calling(driver);
    cuda::Context primary = nullptr;
    entered = calling &&
              cuda::primary_context(driver, static_cast<int>(ordinal), &primary) == cuda::success &&
              primary && driver.ctx_push(primary) == cuda::success;
  }
  return PyBool_FromLong(entered);
}

PyObject* driver_leave(PyDriver* self, PyObject*) {
  const Driver& driver = *self->driver;
  {
    WithoutGil nogil;
    cuda::Context popped;
    if (driver.usable()) driver.ctx_pop(&popped);
  }
  Py_RETURN_NONE;
}

PyObject* driver_usable(PyDriver* self, PyObject*) {
  return PyBool_FromLong(self->driver->usable());
}

PyObject* driver_error_name(PyDriver* self, PyObject* result) {
  const long value = PyLong_AsLong(result);
  if (value == -1 && PyErr_Occurred()) return nullptr;
  return PyUnicode_FromString(self->driver->name_of(static_cast<Result>(value)));
}

template <typename Copy>
PyObject* copy(const Driver& driver, const char* function, unsigned long long stream, Copy run) {
  auto* on = reinterpret_cast<cuda::Stream>(stream);
  Result result;
  {
    WithoutGil nogil;
    if (!driver.usable()) {
      result = cuda::not_initialized;
    } else {
      cuda::Context context = nullptr;
      cuda::stream_context(driver, on, &context);
      const Current current(driver, context);
      result = run(on);
    }
  }
  if (result != cuda::success) return cuda_refused(driver, function, result);
  Py_RETURN_NONE;
}

PyObject* driver_copy_to_device(PyDriver* self, PyObject* args) {
  unsigned long long to, from, stream;
  Py_ssize_t nbytes;
  if (!PyArg_ParseTuple(args, "KKnK:copy_to_device", &to, &from, &nbytes, &stream)) return nullptr;
  const Driver& driver = *self->driver;
  return copy(driver, "cuMemcpyHtoDAsync", stream, [&](cuda::Stream on) {
    return driver.copy_to_device(to, reinterpret_cast<const void*>(from), nbytes, on);
  });
}

PyObject* driver_copy_to_host(PyDriver* self, PyObject* args) {
  unsigned long long to, from, stream;
  Py_ssize_t nbytes;
  if (!PyArg_ParseTuple(args, "KKnK:copy_to_host", &to, &from, &nbytes, &stream)) return nullptr;
  const Driver& driver = *self->driver;
  return copy(driver, "cuMemcpyDtoHAsync", stream, [&](cuda::Stream on) {
    return driver.copy_to_host(reinterpret_cast<void*>(to), from, nbytes, on);
  });
}

PyMethodDef driver_methods[] = {
    {"start", reinterpret_cast<PyCFunction>(driver_start), METH_NOARGS,
     "start()\n--\n\nInitialize the driver; how many devices there are."},
    {"device_of", reinterpret_cast<PyCFunction>(driver_device_of), METH_VARARGS,
     "device_of(stream=0)\n--\n\nThe one in whose primary context a stream works, or None; that of "
     "a default stream is the one that this thread uses."},
    {"enter", reinterpret_cast<PyCFunction>(driver_enter), METH_O,
     "enter(device)\n--\n\nHave this thread use the primary context of a device until leave(); "
     "False if the device has none."},
    {"leave", reinterpret_cast<PyCFunction>(driver_leave), METH_NOARGS,
     "leave()\n--\n\nUndo enter()."},
    {"usable", reinterpret_cast<PyCFunction>(driver_usable), METH_NOARGS,
     "usable()\n--\n\nFalse in a child of the process that made it."},
    {"error_name", reinterpret_cast<PyCFunction>(driver_error_name), METH_O,
     "error_name(result)\n--\n\nWhat CUDA calls a result."},
    {"copy_to_device", reinterpret_cast<PyCFunction>(driver_copy_to_device), METH_VARARGS,
     "copy_to_device(to, from, nbytes, stream)\n--\n\nSubmit a copy."},
    {"copy_to_host", reinterpret_cast<PyCFunction>(driver_copy_to_host), METH_VARARGS,
     "copy_to_host(to, from, nbytes, stream)\n--\n\nSubmit a copy."},
    {nullptr}};
PyType_Slot driver_slots[] = {
    {Py_tp_doc, const_cast<char*>("CudaDriver(functions)\n--\n\nCUDA's driver by the addresses of "
                                  "its functions; see cuda_functions().")},
    {Py_tp_new, reinterpret_cast<void*>(driver_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc<PyDriver>)},
    {Py_tp_methods, driver_methods},
    {0, nullptr}};
PyType_Spec driver_spec = {"bigmem._core.CudaDriver", sizeof(PyDriver), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, driver_slots};

// --- CudaEvent ---

struct PyEvent {
  PyObject_HEAD std::shared_ptr<Fences> fences;
  Fences::Fence* fence;  // null once it has been handed over
};

PyObject* new_event(const std::shared_ptr<Fences>& fences, Fences::Fence* fence) {
  auto* self = reinterpret_cast<PyEvent*>(event_type->tp_alloc(event_type, 0));
  if (!self) {
    fences->drop(fence);
    return nullptr;
  }
  new (&self->fences) std::shared_ptr<Fences>(fences);
  self->fence = fence;
  return reinterpret_cast<PyObject*>(self);
}

void event_dealloc(PyEvent* self) {
  if (self->fence) {
    const WithoutGil nogil;
    self->fences->drop(self->fence);
  }
  self->fences.~shared_ptr();
  dealloc(self);
}

PyObject* event_done(PyEvent* self, void*) {
  return PyBool_FromLong(!self->fence || self->fences->done(self->fence));
}

PyGetSetDef event_getters[] = {
    {"done", reinterpret_cast<getter>(event_done), nullptr, "Whether it has come.", nullptr},
    {nullptr}};
PyType_Slot event_slots[] = {{Py_tp_doc, const_cast<char*>("A moment of a GPU's work.")},
                             {Py_tp_dealloc, reinterpret_cast<void*>(event_dealloc)},
                             {Py_tp_getset, event_getters},
                             {0, nullptr}};
PyType_Spec event_spec = {
    "bigmem._core.CudaEvent", sizeof(PyEvent), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION, event_slots};

// --- CudaFences ---

struct PyCudaFences {
  PyFences base;
  const Driver* driver;

  CudaFences& get() { return static_cast<CudaFences&>(*base.fences); }
};

PyObject* fences_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyDriver* driver;
  if (!PyArg_ParseTuple(args, "O!:CudaFences", driver_type, &driver)) return nullptr;
  PyObject* self = new_fences(type, std::make_shared<CudaFences>(*driver->driver));
  if (self) reinterpret_cast<PyCudaFences*>(self)->driver = driver->driver;
  return self;
}

PyObject* fences_record(PyCudaFences* self, PyObject* stream) {
  const unsigned long long value = PyLong_AsUnsignedLongLong(stream);
  if (value == static_cast<unsigned long long>(-1) && PyErr_Occurred()) return nullptr;
  CudaFences::Refusal refusal;
  Fences::Fence* fence;
  {
    WithoutGil nogil;
    fence = self->get().record(reinterpret_cast<cuda::Stream>(value), refusal);
  }
  if (fence) return new_event(self->base.fences, fence);
  return cuda_refused(*self->driver, refusal);
}

PyObject* fences_past(PyCudaFences* self, PyObject*) {
  Fences::Fence* fence = self->get().past();
  return fence ? new_event(self->base.fences, fence) : PyErr_NoMemory();
}

PyObject* fences_guard(PyCudaFences* self, PyObject*) {
  Fences::Fence* fence;
  {
    WithoutGil nogil;
    fence = self->get().guard();
  }
  if (!fence) Py_RETURN_NONE;
  return new_event(self->base.fences, fence);
}

PyObject* fences_probe(PyCudaFences* self, PyObject*) {
  CudaFences::Refusal refusal;
  {
    WithoutGil nogil;
    if (Fences::Fence* fence = self->get().guard(refusal)) self->get().drop(fence);
  }
  if (refusal.function && !refusal.capturing)
    return cuda_refused(*self->driver, refusal.function, refusal.result);
  Py_RETURN_NONE;
}

PyObject* fences_attach(PyCudaFences* self, PyObject* args) {
  unsigned long long address;
  PyEvent* event;
  if (!PyArg_ParseTuple(args, "KO!:attach", &address, event_type, &event)) return nullptr;
  if (!event->fence || event->fences != self->base.fences)
    return PyErr_Format(PyExc_ValueError, "the event is not one of these, or no longer");
  // Not while others might ask about it: it belongs to the arena from here on.
  Fences::Fence* fence = std::exchange(event->fence, nullptr);
  bool attached;
  {
    WithoutGil nogil;
    attached = attach_fence(event->fences.get(), address, fence);
  }
  if (!attached) event->fence = fence;
  return PyBool_FromLong(attached);
}

PyMethodDef fences_methods[] = {
    {"record", reinterpret_cast<PyCFunction>(fences_record), METH_O,
     "record(stream)\n--\n\nThe moment after all that was submitted to the stream so far."},
    {"past", reinterpret_cast<PyCFunction>(fences_past), METH_NOARGS,
     "past()\n--\n\nA moment that has come already."},
    {"guard", reinterpret_cast<PyCFunction>(fences_guard), METH_NOARGS,
     "guard()\n--\n\nThe moment after all that was submitted anywhere; None while a graph is being "
     "captured."},
    {"probe", reinterpret_cast<PyCFunction>(fences_probe), METH_NOARGS,
     "probe()\n--\n\nRaises what CUDA says where it refuses guards for another reason than a "
     "capture."},
    {"attach", reinterpret_cast<PyCFunction>(fences_attach), METH_VARARGS,
     "attach(address, event)\n--\n\nLet the pinned block at the address wait for the event, which "
     "is used up; False if there is none."},
    {nullptr}};
PyType_Slot fences_slots[] = {
    {Py_tp_doc, const_cast<char*>("CudaFences(driver)\n--\n\nWhat GPUs do, told by events.")},
    {Py_tp_new, reinterpret_cast<void*>(fences_new)},
    {Py_tp_methods, fences_methods},
    {0, nullptr}};
PyType_Spec fences_spec = {"bigmem._core.CudaFences", sizeof(PyCudaFences), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, fences_slots};

// --- IdleFences ---

PyObject* idle_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyCudaFences* fences;
  double patience;
  if (!PyArg_ParseTuple(args, "O!d:IdleFences", fences_type, &fences, &patience)) return nullptr;
  return new_fences(type, std::make_shared<IdleFences>(fences->base.fences, patience));
}

PyType_Slot idle_slots[] = {
    {Py_tp_doc, const_cast<char*>("IdleFences(fences, patience)\n--\n\nFor memory that had better "
                                  "end while nothing runs, if that comes within so many seconds.")},
    {Py_tp_new, reinterpret_cast<void*>(idle_new)},
    {0, nullptr}};
PyType_Spec idle_spec = {"bigmem._core.IdleFences", sizeof(PyFences), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, idle_slots};

// --- functions ---

PyObject* cuda_functions(PyObject*, PyObject*) {
  PyObject* list = PyList_New(0);
  for (const cuda::Function& function : cuda::functions) {
    PyObject* item = list ? Py_BuildValue("si", function.name, function.version) : nullptr;
    if (!item || PyList_Append(list, item) < 0) Py_CLEAR(list);
    Py_XDECREF(item);
  }
  return list;
}

PyObject* buffer_range(PyObject*, PyObject* object) {
  Py_buffer view;
  if (PyObject_GetBuffer(object, &view, PyBUF_FULL_RO) < 0) return nullptr;
  PyObject* range = Py_BuildValue("Nn", PyLong_FromVoidPtr(view.buf), view.len);
  PyBuffer_Release(&view);
  return range;
}

PyMethodDef functions[] = {
    {"cuda_functions", cuda_functions, METH_NOARGS,
     "cuda_functions()\n--\n\nWhat CudaDriver needs: names, and the versions of CUDA whose "
     "parameters are meant."},
    {"buffer_range", buffer_range, METH_O,
     "buffer_range(object)\n--\n\nAddress and size of what exports a buffer."},
    {nullptr}};

}  // namespace

PyObject* cuda_refused(const Driver& driver, const char* function, Result result) {
  return PyErr_Format(bigmem_error, "%s: %s", function, driver.name_of(result));
}

PyObject* cuda_refused(const Driver& driver, const CudaFences::Refusal& refusal) {
  if (!driver.usable())
    return PyErr_Format(bigmem_error, "a process forked from one that uses CUDA cannot use it");
  if (refusal.capturing)
    return PyErr_Format(bigmem_error,
                        "the stream is recording a graph, which may run at any time from now on: "
                        "keep the array alive for as long as the graph instead");
  return cuda_refused(driver, refusal.function, refusal.result);
}

const Driver* driver_of(PyObject* object) {
  if (PyObject_TypeCheck(object, driver_type)) return reinterpret_cast<PyDriver*>(object)->driver;
  PyErr_Format(PyExc_TypeError, "expected CudaDriver, not %.100s", Py_TYPE(object)->tp_name);
  return nullptr;
}

bool add_cuda_types(PyObject* module) {
  cuda::count_forks();
  return (driver_type = add_type(module, &driver_spec)) &&
         (event_type = add_type(module, &event_spec)) &&
         (fences_type = add_fences_subtype(module, &fences_spec)) &&
         add_fences_subtype(module, &idle_spec) && add_cuda_pages_type(module) &&
         add_cuda_stage_type(module) && add_captures(module) &&
         PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace bigmem
