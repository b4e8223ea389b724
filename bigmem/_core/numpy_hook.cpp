#include "numpy_hook.hpp"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "block.hpp"
#include "data_memory.hpp"
#include "default_handler.hpp"

namespace bigmem {
namespace {

constexpr const char* capsule_name = "mem_handler";  // NumPy's
constexpr std::size_t nothing = SIZE_MAX;            // a threshold that no size reaches

// What use() makes current: a route, in front of the handler that was current before.
struct Detour {
  PyDataMem_Handler handler;
  std::unique_ptr<Route> route;
  PyObject* below;  // the capsule of that handler
  const PyDataMemAllocator* functions;
};

// All guarded by the GIL, but for the filter of the table and the threshold.
AddressTable<Entry>& table = data_table();
PyDataMem_Handler* default_handler = nullptr;
PyDataMemAllocator numpys{};  // the functions of NumPy's default handler
Route* installed = nullptr;
std::atomic<std::size_t> threshold{nothing};  // smaller requests go straight to NumPy's functions

// Both for what is installed if `detour` is null. A route is no longer good once the GIL was given
// up.
const Route* route_of(const Detour* detour) { return detour ? detour->route.get() : installed; }
const PyDataMemAllocator& below(const Detour* detour) {
  return detour ? *detour->functions : numpys;
}

void update_threshold() {
  threshold =
      std::min(installed ? installed->min_bytes : nothing, ledger ? ledger->min_bytes() : nothing);
}

// --- The functions that NumPy calls, installed for every thread or in use in one context ---

void* plain(const PyDataMemAllocator& functions, std::size_t nbytes, bool zeroed) {
  return zeroed ? functions.calloc(functions.ctx, nbytes, 1)
                : functions.malloc(functions.ctx, nbytes);
}

void note_plain(const Timing& timing, void* address, std::size_t nbytes) {
  if (!timing || !address) return;
  Entry entry;
  entry.nbytes = nbytes;
  try {
    timing.allocated(table.insert(address, entry), address);
  } catch (const std::bad_alloc&) {  // not accounted for, then
  }
}

void* allocate_installed(std::size_t nbytes, bool zeroed) {
  WithGil gil;
  if (!gil) return plain(numpys, nbytes, zeroed);
  void* address = nullptr;
  const Served served = serve(installed, nbytes, zeroed, false, &address);
  if (served != Served::not_here) return address;
  const Timing timing(nbytes);
  address = plain(numpys, nbytes, zeroed);
  note_plain(timing, address, nbytes);
  return address;
}

void* allocate_in_use(const Detour& detour, std::size_t nbytes, bool zeroed) {
  if (nbytes >= detour.route->min_bytes) {
    WithGil gil;
    void* address = nullptr;
    if (gil && serve(detour.route.get(), nbytes, zeroed, false, &address) != Served::not_here)
      return address;
  }
  return plain(*detour.functions, nbytes, zeroed);
}

// Of an address that may be ours.
[[gnu::noinline]] void release_listed(const PyDataMemAllocator& functions, void* address,
                                      std::size_t hint) {
  WithGil gil;
  if (!gil) return;  // nobody can tell whose it is any more: it ends with the process
  SavedError saved;
  Entry* entry = table.find(address);
  if (!entry) return functions.free(functions.ctx, address, hint);
  Ledger* const noting = entry->noted ? ledger : nullptr;
  if (noting) noting->before_release(entry->note, address, entry->nbytes);
  Entry taken = table.take(address);
  const Timing timing(noting ? taken.nbytes : 0);
  // Blocks give the GIL up where their release takes time.
  const bool held_gil = gil.had() && !taken.is_block();
  if (taken.is_block())
    let_go(taken);
  else
    numpys.free(numpys.ctx, address, taken.nbytes);
  timing.released(taken, held_gil);
}

// The size that NumPy tells is a hint, and wrong at times. Every small array comes this way: the
// rest is a function of its own, whose registers would be saved here otherwise.
void release(const PyDataMemAllocator& functions, void* address, std::size_t hint) {
  if (!address || !table.may_hold(address)) return functions.free(functions.ctx, address, hint);
  release_listed(functions, address, hint);
}

bool is_numpys(const PyDataMemAllocator* functions);

// A block that changes its size where it lies, or moves without being copied.
bool resize_in_place(void** address, Entry* entry, std::size_t nbytes, bool keep_gil) {
  const ResizeTiming timing(entry->nbytes, nbytes);
  const Entry before = *entry;
  timing.before(*entry, *address);
  bool resized;
  // Once the block has moved, its former address may be another thread's before this one has the
  // GIL again.
  auto node = table.lift(*address);
  {
    std::optional<GilKept> kept;
    if (keep_gil) kept.emplace();
    const bool has_spare = nbytes > before.nbytes && nbytes <= range_of(before.view.obj).nbytes;
    resized = has_spare || resize_block(before.view.obj, nbytes);
  }
  void* moved = reinterpret_cast<void*>(range_of(before.view.obj).begin);
  Entry& after = table.file(moved, std::move(node));
  if (!resized) {
    after.note = before.note;
    return false;
  }
  after.nbytes = nbytes;
  *address = moved;
  timing.resized(after, before.nbytes, moved);
  return true;
}

// What NumPy is resizing while an allocator is asked for other memory. That may run Python code,
// which may get at the same array, here or in another thread: to resize it meanwhile is refused.
class Resizing {
 public:
  explicit Resizing(const void* address) : address_(address) {
    Entry* entry = table.find(address);
    if (!entry) {
      Entry guest;
      // Nobody was told its size but the C library.
      guest.nbytes = malloc_usable_size(const_cast<void*>(address));
      try {
        entry = &table.insert(address, guest);
      } catch (const std::bad_alloc&) {
        return;
      }
      is_guest_ = true;
    }
    entry->resize = number_;
  }
  ~Resizing() {
    Entry* found = entry();
    if (!found) return;
    found->resize = 0;
    if (is_guest_) table.take(address_);
  }
  Resizing(const Resizing&) = delete;
  Resizing& operator=(const Resizing&) = delete;

  // Null if it has been released.
  Entry* entry() const {
    Entry* found = table.find(address_);
    return found && found->resize == number_ ? found : nullptr;
  }

 private:
  static inline std::uint64_t begun_ = 0;

  const void* const address_;
  const std::uint64_t number_ = ++begun_;
  bool is_guest_ = false;
};

// The bytes at `address` go to `other`, of `nbytes` bytes, which is returned; null if they are
// not there any more. Where a block of ours takes their place, their account goes on.
void* copy_over(const Detour* detour, const ResizeTiming& timing, const Resizing& resizing,
                void* address, void* other, std::size_t nbytes) {
  Entry* entry = resizing.entry();
  if (!entry) {
    release(below(detour), other, nbytes);
    return nullptr;
  }
  const std::size_t before = entry->nbytes;
  std::memcpy(other, address, std::min(before, nbytes));
  Entry* const after = table.find(other);
  if (after && after->is_block()) {
    timing.before(*entry, address);
    after->note = entry->note;
    after->noted = std::exchange(entry->noted, false);
    timing.resized(*after, before, other);
  }
  release(below(detour), address, before);
  return other;
}

void* resize(const Detour* detour, void* address, Entry* entry, std::size_t nbytes, bool keep_gil) {
  SavedError saved;
  const Route* route = route_of(detour);
  if ((!route || nbytes >= route->min_bytes) && resize_in_place(&address, entry, nbytes, keep_gil))
    return address;
  // Parsing text, which gives up the GIL, grows by small steps: not each is to be a copy.
  const std::size_t spare = !keep_gil && nbytes > entry->nbytes ? nbytes / 4 : 0;
  const ResizeTiming timing(entry->nbytes, nbytes);
  const Resizing resizing(address);
  void* other = nullptr;
  const Served served = serve_instead(route_of(detour), nbytes, spare, keep_gil, &other);
  if (served == Served::not_here) other = plain(below(detour), nbytes, false);
  if (other) return copy_over(detour, timing, resizing, address, other, nbytes);
  // Nobody needs room for less than there is.
  const Entry* still = resizing.entry();
  return still && nbytes <= still->nbytes ? address : nullptr;
}

// Memory of NumPy's own functions, which may grow so large that the route serves it.
void* outgrow(const Detour* detour, void* address, const Entry* entry, std::size_t nbytes,
              bool keep_gil, Served* served) {
  const ResizeTiming timing(entry ? entry->nbytes : 0, nbytes);
  const Resizing resizing(address);
  void* grown = nullptr;
  *served = serve_instead(route_of(detour), nbytes, 0, keep_gil, &grown);
  if (*served == Served::yes) return copy_over(detour, timing, resizing, address, grown, nbytes);
  if (!resizing.entry()) *served = Served::no;
  return nullptr;
}

void* reallocate_plain(void* address, Entry* entry, std::size_t nbytes) {
  if (!entry) {
    const Timing timing(nbytes);
    void* grown = numpys.realloc(numpys.ctx, address, nbytes);
    note_plain(timing, grown, nbytes);
    return grown;
  }
  const ResizeTiming timing(entry->nbytes, nbytes);
  const Entry before = *entry;
  timing.before(*entry, address);
  auto node = table.lift(address);
  void* grown = numpys.realloc(numpys.ctx, address, nbytes);
  Entry& after = table.file(grown ? grown : address, std::move(node));
  if (grown) {
    after.nbytes = nbytes;
    timing.resized(after, before.nbytes, grown);
  } else {
    after.note = before.note;
  }
  return grown;
}

void* reallocate(const Detour* detour, void* address, std::size_t nbytes) {
  WithGil gil;
  const PyDataMemAllocator& functions = below(detour);
  if (!gil)
    return table.may_hold(address) ? nullptr : functions.realloc(functions.ctx, address, nbytes);
  // NumPy holds the GIL over a resize, from looking who else uses the array to telling it the new
  // address: nobody may get to see the array in between.
  const bool keep_gil = gil.had();
  Entry* entry = table.find(address);
  if (entry && entry->resize) return nullptr;
  if (entry && entry->is_block()) return resize(detour, address, entry, nbytes, keep_gil);
  if (is_numpys(&functions)) {
    Served served;
    void* grown = outgrow(detour, address, entry, nbytes, keep_gil, &served);
    if (served != Served::not_here) return grown;
  }
  if (detour) return functions.realloc(functions.ctx, address, nbytes);
  return reallocate_plain(address, table.find(address), nbytes);
}

void* installed_malloc(void*, std::size_t nbytes) {
  if (nbytes < threshold.load(std::memory_order_relaxed)) return numpys.malloc(numpys.ctx, nbytes);
  return allocate_installed(nbytes, false);
}

void* installed_calloc(void*, std::size_t count, std::size_t size) {
  std::size_t nbytes;
  if (__builtin_mul_overflow(count, size, &nbytes)) return nullptr;
  if (nbytes < threshold.load(std::memory_order_relaxed))
    return numpys.calloc(numpys.ctx, count, size);
  return allocate_installed(nbytes, true);
}

void* installed_realloc(void*, void* address, std::size_t nbytes) {
  if (!address) return installed_malloc(nullptr, nbytes);
  if (nbytes < threshold.load(std::memory_order_relaxed) && !table.may_hold(address))
    return numpys.realloc(numpys.ctx, address, nbytes);
  return reallocate(nullptr, address, nbytes);
}

void installed_free(void*, void* address, std::size_t hint) { release(numpys, address, hint); }

void* detour_malloc(void* context, std::size_t nbytes) {
  return allocate_in_use(*static_cast<Detour*>(context), nbytes, false);
}

void* detour_calloc(void* context, std::size_t count, std::size_t size) {
  std::size_t nbytes;
  if (__builtin_mul_overflow(count, size, &nbytes)) return nullptr;
  return allocate_in_use(*static_cast<Detour*>(context), nbytes, true);
}

void* detour_realloc(void* context, void* address, std::size_t nbytes) {
  const auto& detour = *static_cast<Detour*>(context);
  if (!address) return detour_malloc(context, nbytes);
  if (nbytes < detour.route->min_bytes && !table.may_hold(address))
    return detour.functions->realloc(detour.functions->ctx, address, nbytes);
  return reallocate(&detour, address, nbytes);
}

void detour_free(void* context, void* address, std::size_t hint) {
  release(*static_cast<Detour*>(context)->functions, address, hint);
}

// Whether what these functions pass on comes from NumPy's own in the end.
bool is_numpys(const PyDataMemAllocator* functions) {
  while (functions->malloc == detour_malloc)
    functions = static_cast<Detour*>(functions->ctx)->functions;
  return functions->malloc == installed_malloc || functions->malloc == numpys.malloc;
}

// For NumPys whose default handler cannot be edited.
PyDataMem_Handler floating{
    "bigmem", 1, {nullptr, installed_malloc, installed_calloc, installed_realloc, installed_free}};

// --- The module's functions ---

bool import_numpy() {
  if (default_handler) return true;
  if (PyArray_ImportNumPyAPI() < 0) return false;
  auto* handler =
      static_cast<PyDataMem_Handler*>(PyCapsule_GetPointer(PyDataMem_DefaultHandler, capsule_name));
  if (!handler) return false;
  numpys = handler->allocator;
  default_handler = handler;
  return true;
}

PyObject* numpy_default(PyObject*, PyObject*) {
  if (!import_numpy()) return nullptr;
  return Py_BuildValue("(siK)", default_handler->name, default_handler->version,
                       static_cast<unsigned long long>(
                           reinterpret_cast<std::uintptr_t>(&default_handler->allocator)));
}

PyObject* numpy_edit(PyObject*, PyObject*) {
  if (!import_numpy()) return nullptr;
  // The GIL is kept from the question to the answer: no two threads try it out at once.
  static bool edited = false;
  if (!edited) {
    const int in_use = is_in_use(default_handler->allocator);
    if (in_use < 0) return nullptr;
    if (in_use) put_functions(default_handler->allocator, floating.allocator);
    edited = in_use;
  }
  return PyBool_FromLong(edited);
}

PyObject* numpy_floating(PyObject*, PyObject*) {
  if (!import_numpy()) return nullptr;
  return PyCapsule_New(&floating, capsule_name, nullptr);
}

PyObject* numpy_set(PyObject*, PyObject* handler) {
  if (!import_numpy()) return nullptr;
  return PyDataMem_SetHandler(Py_IsNone(handler) ? nullptr : handler);
}

std::unique_ptr<Route> route_from(PyObject* args) {
  PyObject *allocator, *quick;
  Py_ssize_t quick_most, min_bytes;
  if (!PyArg_ParseTuple(args, "OOnn", &allocator, &quick, &quick_most, &min_bytes)) return nullptr;
  return std::make_unique<Route>(allocator, quick, static_cast<std::size_t>(quick_most),
                                 static_cast<std::size_t>(min_bytes));
}

PyObject* numpy_install(PyObject*, PyObject* args) {
  if (!import_numpy()) return nullptr;
  std::unique_ptr<Route> route;
  if (PyTuple_GET_SIZE(args) && !(route = route_from(args))) return nullptr;
  Route* former = std::exchange(installed, route.release());
  update_threshold();
  delete former;
  Py_RETURN_NONE;
}

void end_detour(PyObject* capsule) {
  auto* handler = static_cast<PyDataMem_Handler*>(PyCapsule_GetPointer(capsule, capsule_name));
  auto* detour = static_cast<Detour*>(handler->allocator.ctx);
  Py_DECREF(detour->below);
  delete detour;
}

PyObject* numpy_detour(PyObject*, PyObject* args) {
  if (!import_numpy()) return nullptr;
  std::unique_ptr<Route> route = route_from(args);
  if (!route) return nullptr;
  PyObject* below = PyDataMem_GetHandler();
  if (!below) return nullptr;
  auto* handler = static_cast<PyDataMem_Handler*>(PyCapsule_GetPointer(below, capsule_name));
  if (!handler) {
    Py_DECREF(below);
    return nullptr;
  }
  auto* detour = new Detour{
      {"bigmem", 1, {nullptr, detour_malloc, detour_calloc, detour_realloc, detour_free}},
      std::move(route),
      below,
      &handler->allocator};
  detour->handler.allocator.ctx = detour;
  PyObject* capsule = PyCapsule_New(&detour->handler, capsule_name, end_detour);
  if (capsule) return capsule;
  Py_DECREF(below);
  delete detour;
  return nullptr;
}

PyObject* numpy_ranges(PyObject*, PyObject*) {
  std::size_t count = 0;
  table.for_each([&](const void*, const Entry& entry) { count += entry.is_block(); });
  return PyLong_FromSize_t(count);
}

PyMethodDef functions[] = {
    {"numpy_default", numpy_default, METH_NOARGS,
     "numpy_default()\n--\n\nName, version and address of the functions of NumPy's default "
     "handler."},
    {"numpy_edit", numpy_edit, METH_NOARGS,
     "numpy_edit()\n--\n\nPut our functions into NumPy's default handler, for good, unless NumPy "
     "turns out not to use what stands there; whether they are in it."},
    {"numpy_floating", numpy_floating, METH_NOARGS,
     "numpy_floating()\n--\n\nA handler of our functions, where the default cannot be edited."},
    {"numpy_set", numpy_set, METH_O,
     "numpy_set(handler)\n--\n\nMake a handler current in this context; the one before."},
    {"numpy_install", numpy_install, METH_VARARGS,
     "numpy_install([allocator, quick, quick_most, min_bytes])\n--\n\nWho serves the requests that "
     "reach our functions in the default handler; without arguments NumPy does."},
    {"numpy_detour", numpy_detour, METH_VARARGS,
     "numpy_detour(allocator, quick, quick_most, min_bytes)\n--\n\nA handler in front of the "
     "current one."},
    {"numpy_ranges", numpy_ranges, METH_NOARGS,
     "numpy_ranges()\n--\n\nHow many blocks NumPy has of us now."},
    {nullptr}};

}  // namespace

bool add_numpy_hook(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }

void set_ledger(Ledger* chosen) {
  ledger = chosen;
  update_threshold();
}

void for_each_noted(const std::function<void(Ledger::Note&, const void*, std::size_t)>& visit) {
  table.for_each([&](const void* address, Entry& entry) {
    if (entry.noted) visit(entry.note, address, entry.nbytes);
  });
}

}  // namespace bigmem
