#include "default_handler.hpp"

namespace bigmem {
namespace {

constexpr npy_intp probe_bytes = 1 << 16;  // NumPy keeps smaller ones for itself

// What stands in the handler while it is tried out: NumPy's own functions, and a note of what they
// did in this thread. Nothing of ours is handed out, so that they can be taken away again whatever
// other threads do meanwhile, which may call them without the GIL.
PyDataMemAllocator numpys{};
thread_local void* given;
thread_local void* taken;

void* probe_malloc(void* context, std::size_t nbytes) {
  return given = numpys.malloc(context, nbytes);
}

void probe_free(void* context, void* address, std::size_t hint) {
  taken = address;
  numpys.free(context, address, hint);
}

// Where the memory of an array was that is gone again; null with an error set.
void* make_array() {
  // In an empty context nobody has chosen another handler.
  PyObject* context = PyContext_New();
  if (!context) return nullptr;
  void* address = nullptr;
  if (PyContext_Enter(context) == 0) {
    if (PyObject* array = PyArray_SimpleNew(1, &probe_bytes, NPY_UINT8)) {
      address = PyArray_DATA(reinterpret_cast<PyArrayObject*>(array));
      Py_DECREF(array);
    }
    PyContext_Exit(context);
  }
  Py_DECREF(context);
  return address;
}

}  // namespace

void put_functions(PyDataMemAllocator& target, const PyDataMemAllocator& functions) {
  const auto set = [](auto& slot, auto value) { __atomic_store_n(&slot, value, __ATOMIC_RELEASE); };
  // The ones that pass on what is not ours come first.
  set(target.free, functions.free);
  set(target.realloc, functions.realloc);
  set(target.calloc, functions.calloc);
  set(target.malloc, functions.malloc);
}

int is_in_use(PyDataMemAllocator& functions) {
  if (PyArray_ImportNumPyAPI() < 0) return -1;
  // Python 3.11 may collect garbage whenever it makes an object, and run anything then.
  const bool collects = PyGC_Disable();
  numpys = functions;
  given = taken = nullptr;
  put_functions(functions, {numpys.ctx, probe_malloc, numpys.calloc, numpys.realloc, probe_free});
  const void* address = make_array();
  put_functions(functions, numpys);
  if (collects) PyGC_Enable();
  if (!address) return -1;
  return address == given && address == taken;
}

}  // namespace bigmem
