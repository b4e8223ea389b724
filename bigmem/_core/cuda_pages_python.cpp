#include <cstring>
#include <memory>
#include <utility>

#include "cuda_host_pages.hpp"
#include "cuda_python.hpp"
#include "fences_python.hpp"

namespace bigmem {
namespace {

using cuda::Calling;
using cuda::Driver;
using cuda::Result;

PyTypeObject* pages_type;

struct PyCudaPages {
  PyObject_HEAD CudaPages* pages;  // kept for good: an arena may outlive this object
};

PyObject* pages_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *driver_object, *fences_object;
  int device;
  const char* mechanism;
  if (!PyArg_ParseTuple(args, "OisO:CudaPages", &driver_object, &device, &mechanism,
                        &fences_object))
    return nullptr;
  const Driver* found = driver_of(driver_object);
  std::shared_ptr<Fences> fences;
  if (!found || !fences_from_python(fences_object, &fences)) return nullptr;
  if (!fences) return PyErr_Format(PyExc_TypeError, "CudaPages needs fences");
  const bool vmm = std::strcmp(mechanism, "vmm") == 0;
  const bool ours = std::strcmp(mechanism, "register") == 0;
  if (!vmm && !ours && std::strcmp(mechanism, "alloc") != 0)
    return PyErr_Format(PyExc_ValueError, "there is no mechanism %s", mechanism);
  const Driver& driver = *found;
  cuda::Context context = nullptr;
  Result result = cuda::not_initialized;
  {
    WithoutGil nogil;
    const Calling calling(driver);
    // For good: what is pinned must not outlive its context.
    if (calling) result = driver.primary_retain(&context, device);
  }
  if (result != cuda::success) return cuda_refused(driver, "cuDevicePrimaryCtxRetain", result);
  auto* self = reinterpret_cast<PyCudaPages*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  using Way = CudaHostPages::Way;
  if (vmm)
    self->pages = new CudaVirtualPages(driver, device, context);
  else
    self->pages = new CudaHostPages(driver, context, std::move(fences),
                                    ours ? Way::register_ours : Way::take_theirs);
  return reinterpret_cast<PyObject*>(self);
}

void pages_dealloc(PyCudaPages* self) {
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* pages_probe(PyCudaPages* self, PyObject*) {
  int error;
  {
    WithoutGil nogil;
    error = self->pages->probe();
  }
  return PyLong_FromLong(error);
}

PyObject* pages_take_failure(PyCudaPages* self, PyObject*) {
  const CudaFailure failure = self->pages->take_failure();
  if (!failure.function) Py_RETURN_NONE;
  return Py_BuildValue("si", failure.function, failure.result);
}

PyObject* pages_stalls(PyCudaPages* self, PyObject*) {
  const auto [count, seconds] = self->pages->stalls();
  return Py_BuildValue("Kd", static_cast<unsigned long long>(count), seconds);
}

// The operations of the table, for tests that need no arena.

PyObject* pages_reserve(PyCudaPages* self, PyObject* args) {
  Py_ssize_t nbytes, alignment;
  if (!PyArg_ParseTuple(args, "nn:reserve", &nbytes, &alignment)) return nullptr;
  const PagesTable table = self->pages->table();
  void* address = table.reserve(table.context, nbytes, alignment, PageSize::small);
  return address ? PyLong_FromVoidPtr(address) : PyErr_SetFromErrno(PyExc_OSError);
}

template <typename Operation>
PyObject* operate(PyObject* args, Operation operation) {
  unsigned long long address;
  Py_ssize_t nbytes;
  if (!PyArg_ParseTuple(args, "Kn", &address, &nbytes)) return nullptr;
  int error;
  {
    WithoutGil nogil;
    error = operation(reinterpret_cast<void*>(address), static_cast<std::size_t>(nbytes));
  }
  return PyLong_FromLong(error);
}

PyObject* pages_commit(PyCudaPages* self, PyObject* args) {
  const PagesTable table = self->pages->table();
  return operate(args, [&](void* address, std::size_t nbytes) {
    return table.commit(table.context, address, nbytes, PageSize::small);
  });
}

PyObject* pages_decommit(PyCudaPages* self, PyObject* args) {
  const PagesTable table = self->pages->table();
  return operate(args, [&](void* address, std::size_t nbytes) {
    return table.decommit(table.context, address, nbytes, PageSize::small, Advice::dontneed).error;
  });
}

PyObject* pages_wipe(PyCudaPages* self, PyObject* args) {
  const PagesTable table = self->pages->table();
  return operate(args, [&](void* address, std::size_t nbytes) {
    return table.wipe(table.context, address, nbytes);
  });
}

PyObject* pages_unreserve(PyCudaPages* self, PyObject* args) {
  const PagesTable table = self->pages->table();
  return operate(args, [&](void* address, std::size_t nbytes) {
    return table.unreserve(table.context, address, nbytes);
  });
}

PyMethodDef pages_methods[] = {
    {"probe", reinterpret_cast<PyCFunction>(pages_probe), METH_NOARGS,
     "probe()\n--\n\n0, or the errno with which such memory is refused here."},
    {"take_failure", reinterpret_cast<PyCFunction>(pages_take_failure), METH_NOARGS,
     "take_failure()\n--\n\nThe function and the result of the driver's latest refusal since the "
     "last call, or None."},
    {"stalls", reinterpret_cast<PyCFunction>(pages_stalls), METH_NOARGS,
     "stalls()\n--\n\nHow often the process may have waited for a GPU, and the seconds it took."},
    {"reserve", reinterpret_cast<PyCFunction>(pages_reserve), METH_VARARGS,
     "reserve(nbytes, alignment)\n--\n\nThe address of a range."},
    {"commit", reinterpret_cast<PyCFunction>(pages_commit), METH_VARARGS,
     "commit(address, nbytes)\n--\n\n0 or an errno."},
    {"decommit", reinterpret_cast<PyCFunction>(pages_decommit), METH_VARARGS,
     "decommit(address, nbytes)\n--\n\n0 or an errno."},
    {"wipe", reinterpret_cast<PyCFunction>(pages_wipe), METH_VARARGS,
     "wipe(address, nbytes)\n--\n\n0 or an errno."},
    {"unreserve", reinterpret_cast<PyCFunction>(pages_unreserve), METH_VARARGS,
     "unreserve(address, nbytes)\n--\n\n0 or an errno."},
    {nullptr}};
PyType_Slot pages_slots[] = {
    {Py_tp_doc, const_cast<char*>("CudaPages(driver, device, mechanism, fences)\n--\n\nPinned "
                                  "memory by \"vmm\", \"register\" or \"alloc\".")},
    {Py_tp_new, reinterpret_cast<void*>(pages_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(pages_dealloc)},
    {Py_tp_methods, pages_methods},
    {0, nullptr}};
PyType_Spec pages_spec = {"bigmem._core.CudaPages", sizeof(PyCudaPages), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, pages_slots};

}  // namespace

bool add_cuda_pages_type(PyObject* module) {
  return (pages_type = add_type(module, &pages_spec)) != nullptr;
}

CudaPages* cuda_pages_of(PyObject* object) {
  return PyObject_TypeCheck(object, pages_type) ? reinterpret_cast<PyCudaPages*>(object)->pages
                                                : nullptr;
}

}  // namespace bigmem
