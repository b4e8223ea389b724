#include "data_memory.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <new>
#include <optional>

#include "block.hpp"

namespace bigmem {

Ledger* ledger = nullptr;

AddressTable<Entry>& data_table() {
  static auto* table = new AddressTable<Entry>;
  return *table;
}

namespace {

// What every block is aligned to that is asked for, and what NumPy relies on.
constexpr int alignment = 64;
constexpr int least_alignment = 16;

// Whether this thread is inside an allocator, whose own arrays are not for it to serve.
thread_local bool inside = false;
class Inside {
 public:
  Inside() : before_(inside) { inside = true; }
  ~Inside() { inside = before_; }

 private:
  const bool before_;
};

int raise_now(void* error) {
#if PY_VERSION_HEX >= 0x030C0000
  PyErr_SetRaisedException(static_cast<PyObject*>(error));
#else
  PyErr_SetObject(PyExceptionInstance_Class(static_cast<PyObject*>(error)),
                  static_cast<PyObject*>(error));
  Py_DECREF(static_cast<PyObject*>(error));
#endif
  return -1;
}

// An interrupt, or an exit that a signal handler asks for, came while the allocator ran. NumPy
// would turn it into a MemoryError: it is raised as soon as NumPy has returned instead.
void raise_later() {
#if PY_VERSION_HEX >= 0x030C0000
  PyObject* error = PyErr_GetRaisedException();
#else
  PyObject *type, *error, *traceback;
  PyErr_Fetch(&type, &error, &traceback);
  PyErr_NormalizeException(&type, &error, &traceback);
  if (traceback) PyException_SetTraceback(error, traceback);
  Py_DECREF(type);
  Py_XDECREF(traceback);
#endif
  const bool main_thread = syscall(SYS_gettid) == getpid();
  if (main_thread && Py_AddPendingCall(raise_now, error) == 0) return;
  PyThreadState_SetAsyncExc(PyThread_get_thread_ident(),
                            reinterpret_cast<PyObject*>(Py_TYPE(error)));
  Py_DECREF(error);
}

PyObject* ask_quickly(const Route& route, std::size_t nbytes, bool zeroed) {
  return PyObject_CallFunction(route.quick, "niO", static_cast<Py_ssize_t>(nbytes), alignment,
                               zeroed ? Py_True : Py_False);
}

PyObject* ask(const Route& route, std::size_t nbytes, bool zeroed) {
  static PyObject* const method = PyUnicode_InternFromString("allocate");
  static PyObject* const names = Py_BuildValue("(s)", "zeroed");
  PyObject* size = PyLong_FromSize_t(nbytes);
  if (!size || !method || !names) return nullptr;
  PyObject* const arguments[] = {route.allocator, size, zeroed ? Py_True : Py_False};
  PyObject* block = PyObject_VectorcallMethod(method, arguments, 2, names);
  Py_DECREF(size);
  return block;
}

// Whether the block is one to hand to NumPy; if so `entry` views it.
bool accept(const Route& route, PyObject* block, std::size_t nbytes, Entry& entry) {
  if (!is_block(block)) {
    PyErr_Format(PyExc_TypeError, "allocate() of %R returned %.100s, not a bigmem.Block",
                 route.allocator, Py_TYPE(block)->tp_name);
    return false;
  }
  const Range range = range_of(block);
  if (range.nbytes < nbytes) {
    PyErr_Format(bigmem_error, "asked for %zu bytes, %R made a block of %zu", nbytes,
                 route.allocator, range.nbytes);
    return false;
  }
  const void* address = reinterpret_cast<const void*>(range.begin);
  if (range.begin % least_alignment) {
    PyErr_Format(bigmem_error, "%R made a block at %p, which is no multiple of %d", route.allocator,
                 address, least_alignment);
    return false;
  }
  if (data_table().find(address)) {
    PyErr_Format(bigmem_error, "%R made a block at %p, where NumPy has one", route.allocator,
                 address);
    return false;
  }
  entry.nbytes = nbytes;
  return PyObject_GetBuffer(block, &entry.view, PyBUF_WRITABLE) == 0;
}

}  // namespace

void let_go(Entry& entry) {
  Inside scope;
  PyBuffer_Release(&entry.view);
}

namespace {

bool is_closed(PyObject* allocator) {
  static PyObject* const name = PyUnicode_InternFromString("_closed");
  PyObject* closed = PyObject_GetAttr(allocator, name);
  if (!closed) PyErr_Clear();
  Py_XDECREF(closed);
  return closed != Py_False;
}

// A new block; null with the error set.
PyObject* make_block(const Route& route, std::size_t nbytes, bool zeroed, bool keep_gil) {
  if (!Py_IsNone(route.quick) && nbytes <= route.quick_most && !is_closed(route.allocator)) {
    std::optional<GilKept> kept;
    if (keep_gil) kept.emplace();
    PyObject* block = ask_quickly(route, nbytes, zeroed);
    if (block && !Py_IsNone(block)) return block;
    Py_XDECREF(block);
    if (!block && !PyErr_ExceptionMatches(PyExc_MemoryError)) return nullptr;
    PyErr_Clear();
  }
  return ask(route, nbytes, zeroed);
}

Served serve(const Route* route, std::size_t nbytes, std::size_t spare, bool zeroed, bool keep_gil,
             void** address, bool told) {
  if (!route || nbytes < route->min_bytes || inside || WithGil::finalizing())
    return Served::not_here;
  SavedError saved;
  Inside scope;
  // Another one may be installed while this one is at work.
  const Route mine(route->allocator, route->quick, route->quick_most, route->min_bytes);
  const Timing timing(nbytes);
  PyObject* block = make_block(mine, nbytes + spare, zeroed, keep_gil);
  if (!block && spare && PyErr_ExceptionMatches(PyExc_MemoryError)) {
    PyErr_Clear();
    block = make_block(mine, nbytes, zeroed, keep_gil);
  }
  Entry entry;
  const bool accepted = block && accept(mine, block, nbytes, entry);
  Py_XDECREF(block);  // the view holds it
  if (!accepted) {
    if (PyErr_ExceptionMatches(PyExc_Exception)) {
      // Having no memory is what NumPy says anyway, and what a program may be prepared for.
      const bool plain = !Py_IsNone(mine.quick) && PyErr_ExceptionMatches(out_of_memory);
      if (plain)
        PyErr_Clear();
      else
        PyErr_WriteUnraisable(mine.allocator);
      return Served::no;
    }
    raise_later();
    return Served::not_here;
  }
  *address = entry.view.buf;
  try {
    Entry& made = data_table().insert(*address, entry);
    if (told) timing.allocated(made, *address);
  } catch (const std::bad_alloc&) {
    let_go(entry);
    return Served::no;
  }
  return Served::yes;
}

}  // namespace

Served serve(const Route* route, std::size_t nbytes, bool zeroed, bool keep_gil, void** address) {
  return serve(route, nbytes, 0, zeroed, keep_gil, address, true);
}

Served serve_instead(const Route* route, std::size_t nbytes, std::size_t spare, bool keep_gil,
                     void** address) {
  return serve(route, nbytes, spare, false, keep_gil, address, false);
}

}  // namespace bigmem
