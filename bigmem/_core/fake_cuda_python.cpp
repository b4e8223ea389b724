#include <stdexcept>

#include "cuda_python.hpp"
#include "fake_cuda.hpp"

namespace bigmem {
namespace {

FakeCuda& fake() { return FakeCuda::only(); }

// Tests name streams and devices that may not exist.
template <typename Call>
bool tried(Call call) {
  try {
    call();
    return true;
  } catch (const std::out_of_range&) {
    PyErr_SetString(PyExc_ValueError, "there is no such stream or device");
    return false;
  }
}

PyObject* fake_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"devices", "memory", "host_vmm", nullptr};
  int devices = 1, host_vmm = 1;
  Py_ssize_t memory = Py_ssize_t{4} << 30;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|inp:FakeCuda", const_cast<char**>(names),
                                   &devices, &memory, &host_vmm))
    return nullptr;
  PyObject* self = type->tp_alloc(type, 0);
  if (self) fake().configure(devices, static_cast<std::size_t>(memory), host_vmm != 0);
  return self;
}

void fake_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* fake_functions(PyObject*, PyObject*) {
  PyObject* found = PyDict_New();
  for (const cuda::Function& function : cuda::functions) {
    PyObject* address = found ? PyLong_FromVoidPtr(FakeCuda::function(function.name)) : nullptr;
    if (!address || PyDict_SetItemString(found, function.name, address) < 0) Py_CLEAR(found);
    Py_XDECREF(address);
  }
  return found;
}

PyObject* fake_stream(PyObject*, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"device", "blocking", nullptr};
  int device = 0, blocking = 1;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|ip:stream", const_cast<char**>(names), &device,
                                   &blocking))
    return nullptr;
  return PyLong_FromSize_t(fake().new_stream(device, blocking != 0));
}

PyObject* fake_submit(PyObject*, PyObject* args) {
  Py_ssize_t stream = 0;
  if (!PyArg_ParseTuple(args, "|n:submit", &stream)) return nullptr;
  if (!tried([&] { fake().submit(static_cast<std::uintptr_t>(stream)); })) return nullptr;
  Py_RETURN_NONE;
}

PyObject* fake_finish(PyObject*, PyObject* args) {
  Py_ssize_t stream = 0, count = 0;
  if (!PyArg_ParseTuple(args, "|nn:finish", &stream, &count)) return nullptr;
  if (!tried([&] {
        fake().finish(static_cast<std::uintptr_t>(stream), static_cast<std::size_t>(count));
      }))
    return nullptr;
  Py_RETURN_NONE;
}

PyObject* fake_begin_capture(PyObject*, PyObject* args) {
  Py_ssize_t stream;
  if (!PyArg_ParseTuple(args, "n:begin_capture", &stream)) return nullptr;
  if (!tried([&] { fake().begin_capture(static_cast<std::uintptr_t>(stream)); })) return nullptr;
  Py_RETURN_NONE;
}

PyObject* fake_end_capture(PyObject*, PyObject* args) {
  Py_ssize_t stream;
  bool good = false;
  if (!PyArg_ParseTuple(args, "n:end_capture", &stream)) return nullptr;
  if (!tried([&] { good = fake().end_capture(static_cast<std::uintptr_t>(stream)); }))
    return nullptr;
  return PyBool_FromLong(good);
}

PyObject* fake_fail(PyObject*, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"function", "result", "after", "times", nullptr};
  const char* function;
  int result, after = 0, times = -1;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "si|ii:fail", const_cast<char**>(names), &function,
                                   &result, &after, &times))
    return nullptr;
  fake().fail(function, result, after, times);
  Py_RETURN_NONE;
}

PyObject* fake_delay(PyObject*, PyObject* args) {
  const char* function;
  double seconds;
  if (!PyArg_ParseTuple(args, "sd:delay", &function, &seconds)) return nullptr;
  fake().delay(function, seconds);
  Py_RETURN_NONE;
}

PyObject* fake_calls(PyObject*, PyObject* args) {
  const char* function = "";
  if (!PyArg_ParseTuple(args, "|s:calls", &function)) return nullptr;
  return PyLong_FromUnsignedLongLong(fake().calls(function));
}

// What takes one number and answers nothing.
template <auto method>
PyObject* tell(PyObject*, PyObject* number) {
  const long value = PyLong_AsLong(number);
  if (value == -1 && PyErr_Occurred()) return nullptr;
  if (!tried([&] { (fake().*method)(static_cast<int>(value)); })) return nullptr;
  Py_RETURN_NONE;
}

// What takes nothing and answers a number.
template <auto method>
PyObject* ask(PyObject*, PyObject*) {
  return PyLong_FromSize_t((fake().*method)());
}

PyMethodDef methods[] = {
    {"functions", fake_functions, METH_NOARGS,
     "functions()\n--\n\nAddresses by name, for CudaDriver."},
    {"stream", reinterpret_cast<PyCFunction>(fake_stream), METH_VARARGS | METH_KEYWORDS,
     "stream(device=0, blocking=True)\n--\n\nA new one."},
    {"submit", fake_submit, METH_VARARGS,
     "submit(stream=0)\n--\n\nGive a stream, or the default one, something to do."},
    {"finish", fake_finish, METH_VARARGS,
     "finish(stream=0, count=0)\n--\n\nLet the oldest work of a stream be done, or all of it; of "
     "every stream if none is named."},
    {"begin_capture", fake_begin_capture, METH_VARARGS, "begin_capture(stream)\n--\n\n"},
    {"end_capture", fake_end_capture, METH_VARARGS,
     "end_capture(stream)\n--\n\nFalse if something had invalidated it."},
    {"fail", reinterpret_cast<PyCFunction>(fake_fail), METH_VARARGS | METH_KEYWORDS,
     "fail(function, result, after=0, times=-1)\n--\n\nLet calls return this, after so many, so "
     "many times or for ever."},
    {"delay", fake_delay, METH_VARARGS, "delay(function, seconds)\n--\n\nLet it take longer."},
    {"calls", fake_calls, METH_VARARGS,
     "calls(function=...)\n--\n\nHow many, of one function or of all."},
    {"lose", tell<&FakeCuda::lose>, METH_O,
     "lose(result)\n--\n\nLet every call return this from now on; 0 heals it."},
    {"activate", tell<&FakeCuda::activate>, METH_O,
     "activate(device)\n--\n\nLet somebody else have its primary context."},
    {"reset_device", tell<&FakeCuda::reset_device>, METH_O,
     "reset_device(device)\n--\n\nDestroy its primary context."},
    {"memory", ask<&FakeCuda::memory>, METH_NOARGS, "memory()\n--\n\nBytes in use."},
    {"mappings", ask<&FakeCuda::mappings>, METH_NOARGS, "mappings()\n--\n\nHow many chunks."},
    {"stalls", ask<&FakeCuda::stalls>, METH_NOARGS,
     "stalls()\n--\n\nCalls that would have waited for work."},
    {"events", ask<&FakeCuda::events>, METH_NOARGS, "events()\n--\n\nHow many exist."},
    {"own_calls", ask<&FakeCuda::own_calls>, METH_NOARGS,
     "own_calls()\n--\n\nHow many this thread has made."},
    {nullptr}};
PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("FakeCuda(devices=1, memory=4 << 30, host_vmm=True)\n--\n\nA "
                                  "driver without a GPU, for tests. There is one, which this "
                                  "configures anew.")},
    {Py_tp_new, reinterpret_cast<void*>(fake_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(fake_dealloc)},
    {Py_tp_methods, methods},
    {0, nullptr}};
PyType_Spec spec = {"bigmem._core.FakeCuda", sizeof(PyObject), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots};

}  // namespace

bool add_fake_cuda_type(PyObject* module) { return add_type(module, &spec) != nullptr; }

}  // namespace bigmem
