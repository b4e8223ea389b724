#include "arena_python.hpp"
#include "block.hpp"
#include "charge_python.hpp"
#include "clearing.hpp"
#include "cuda_python.hpp"
#include "cuda_stage.hpp"
#include "extent_map_python.hpp"
#include "fences_python.hpp"
#include "fork_python.hpp"
#include "guard_python.hpp"
#include "incidents_python.hpp"
#include "ledger_python.hpp"
#include "numpy_hook.hpp"
#include "pages_python.hpp"
#include "pressure_python.hpp"
#include "python.hpp"
#include "reclaimer.hpp"
#include "system.hpp"
#include "thread_seconds.hpp"
#include "trace_python.hpp"

namespace {

PyObject* poll_fences(PyObject*, PyObject* args) {
  PyObject* owner = nullptr;
  if (!PyArg_ParseTuple(args, "|O:poll_fences", &owner)) return nullptr;
  if (!bigmem::poll_fences(owner)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* parked_by(PyObject*, PyObject* allocator) {
  return PyLong_FromSize_t(bigmem::parked_by(allocator));
}

PyObject* clearing_verdict(PyObject*, PyObject* args) {
  int verdict = bigmem::clearing_verdict();
  if (!PyArg_ParseTuple(args, "|i:clearing_verdict", &verdict)) return nullptr;
  bigmem::set_clearing_verdict(verdict);
  return PyLong_FromLong(verdict);
}

PyObject* end_workers(PyObject*, PyObject*) {
  {
    bigmem::WithoutGil nogil;  // who copies may want it once more
    bigmem::CudaStage::end_all();
  }
  bigmem::Reclaimer::end_all();
  Py_RETURN_NONE;
}

PyObject* huge_pages_work(PyObject*, PyObject*) {
  return PyBool_FromLong(bigmem::huge_pages_work());
}

PyObject* thread_seconds(PyObject*, PyObject*) {
  return Py_BuildValue("(dd)", bigmem::thread_seconds.allocate, bigmem::thread_seconds.release);
}

PyObject* live_blocks(PyObject*, PyObject*) { return bigmem::live_blocks(); }

PyObject* block_at(PyObject*, PyObject* address) {
  const std::size_t at = PyLong_AsSize_t(address);
  if (at == static_cast<std::size_t>(-1) && PyErr_Occurred()) return nullptr;
  PyObject* block = bigmem::block_at(at);
  if (!block) Py_RETURN_NONE;
  return block;
}

PyObject* resize_block(PyObject*, PyObject* args) {
  PyObject* block;
  Py_ssize_t nbytes;
  if (!PyArg_ParseTuple(args, "On:resize_block", &block, &nbytes)) return nullptr;
  if (!bigmem::is_block(block))
    return PyErr_Format(PyExc_TypeError, "expected a Block, not %.100s", Py_TYPE(block)->tp_name);
  if (nbytes < 0) return PyErr_Format(PyExc_ValueError, "no block has %zd bytes", nbytes);
  return PyBool_FromLong(bigmem::resize_block(block, static_cast<std::size_t>(nbytes)));
}

// The core keeps its state in process-wide statics, guarded by one GIL.
int execute(PyObject* module) {
  if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
    PyErr_SetString(PyExc_ImportError, "bigmem does not support subinterpreters");
    return -1;
  }
  bigmem::restart_workers_after_forks();
  const bool good = bigmem::add_errors(module) && bigmem::add_block_type(module) &&
                    bigmem::add_trace_types(module) && bigmem::add_charge_type(module) &&
                    bigmem::add_guard_types(module) && bigmem::add_system_type(module) &&
                    bigmem::add_pages_types(module) && bigmem::add_fences_types(module) &&
                    bigmem::add_cuda_types(module) && bigmem::add_fake_cuda_type(module) &&
                    bigmem::add_pressure_types(module) && bigmem::add_arena_types(module) &&
                    bigmem::add_extent_map_type(module) && bigmem::add_numpy_hook(module) &&
                    bigmem::add_ledger(module);
  return good ? 0 : -1;
}

PyMethodDef functions[] = {
    {"poll_fences", poll_fences, METH_VARARGS,
     "poll_fences([owner])\n--\n\nLet go of released blocks whose fences are done by now. Raises "
     "what a fence of a block of the owner raises."},
    {"parked_by", parked_by, METH_O,
     "parked_by(allocator)\n--\n\nHow many of its released blocks wait for fences."},
    {"report_incidents_to", bigmem::report_incidents_to, METH_O,
     "report_incidents_to(callback)\n--\n\nCall callback(kind, errno) for the first incident of "
     "each kind, in the main thread, after an allocation, flush or stats that found it."},
    {"clearing_verdict", clearing_verdict, METH_VARARGS,
     "clearing_verdict([new])\n--\n\nWhether fresh huge pages cost less than overwriting dirty "
     "ones, 1 or 0; -1 before the first large block has shown it. Tests set it."},
    {"end_workers", end_workers, METH_NOARGS,
     "end_workers()\n--\n\nLet the workers of every pool end, and start no more, and uploads under "
     "way as well: for exit."},
    {"huge_pages_work", huge_pages_work, METH_NOARGS,
     "huge_pages_work()\n--\n\nWhether memory that asks for 2 MiB pages gets any now."},
    {"call_after_fork", bigmem::call_after_fork, METH_O,
     "call_after_fork(function)\n--\n\nCall it in the main thread once the Python code that forks "
     "goes on, when Python has looked for threads; False if that cannot be."},
    {"thread_seconds", thread_seconds, METH_NOARGS,
     "thread_seconds()\n--\n\nWhat the calling thread has spent in allocations and in releases so "
     "far, of all allocators of the core."},
    {"live_blocks", live_blocks, METH_NOARGS,
     "live_blocks()\n--\n\nThe blocks that are not released, those that back others left out."},
    {"block_at", block_at, METH_O,
     "block_at(address)\n--\n\nThe one of these that contains the address, or None."},
    {"resize_block", resize_block, METH_VARARGS,
     "resize_block(block, nbytes)\n--\n\nChange the size of a block that one buffer views at "
     "most, whose view is void afterwards; its address may change. False, and nothing has changed, "
     "where its allocator can do that no cheaper than by a copy."},
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
