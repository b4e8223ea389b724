#include "arena_python.hpp"
#include "block.hpp"
#include "extent_map_python.hpp"
#include "pages_python.hpp"
#include "python.hpp"
#include "system.hpp"

namespace {

PyObject* poll_fences(PyObject*, PyObject*) {
  if (!bigmem::poll_fences(true)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* parked_by(PyObject*, PyObject* allocator) {
  return PyLong_FromSize_t(bigmem::parked_by(allocator));
}

// The core keeps its state in process-wide statics, guarded by one GIL.
int execute(PyObject* module) {
  if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
    PyErr_SetString(PyExc_ImportError, "bigmem does not support subinterpreters");
    return -1;
  }
  const bool good = bigmem::add_errors(module) && bigmem::add_block_type(module) &&
                    bigmem::add_system_type(module) && bigmem::add_pages_type(module) &&
                    bigmem::add_arena_types(module) && bigmem::add_extent_map_type(module);
  return good ? 0 : -1;
}

PyMethodDef functions[] = {
    {"poll_fences", poll_fences, METH_NOARGS,
     "poll_fences()\n--\n\nLet go of released blocks whose fences are done by now."},
    {"parked_by", parked_by, METH_O,
     "parked_by(allocator)\n--\n\nHow many of its released blocks wait for fences."},
    {nullptr}};

PyModuleDef_Slot slots[] = {
    {Py_mod_exec, reinterpret_cast<void*>(execute)},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_USED},
#endif
    {0, nullptr}};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "bigmem._core", "The native core of bigmem.", 0, functions, slots};

}  // namespace

PyMODINIT_FUNC PyInit__core() { return PyModuleDef_Init(&definition); }
