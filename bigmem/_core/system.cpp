#include "system.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "block.hpp"
#include "clock.hpp"
#include "counters_python.hpp"
#include "source.hpp"
#include "thread_seconds.hpp"

namespace bigmem {
namespace {

// The C library trims or unmaps in free() from about here on: not with the GIL held.
constexpr std::size_t big = std::size_t{1} << 20;

// Precedes what the user gets: over-allocating keeps calloc's knowledge of fresh zero pages, which
// the aligned functions of the C library lack.
struct Header {
  void* base;
  std::size_t nbytes;
};

// Counts with atomics instead of a lock: a child of fork must find none held.
class SystemSource final : public Source {
 public:
  Header* allocate(std::size_t nbytes, std::size_t alignment, bool zeroed) noexcept {
    const double start = seconds_now();
    const std::size_t padding = padding_for(alignment);
    if (nbytes > PTRDIFF_MAX - padding) return nullptr;
    void* base = zeroed ? std::calloc(1, nbytes + padding) : std::malloc(nbytes + padding);
    if (!base) return nullptr;
    Header* header = header_in(base, alignment);
    *header = {base, nbytes};
    ++allocations_;
    count_live(nbytes);
    count(allocate_ns_, thread_seconds.allocate, start);
    return header;
  }

  // The C library moves the pages of what it has mapped.
  Resized resize(Lease& lease, std::size_t nbytes, bool may_block) noexcept override {
    if (std::max(lease.nbytes, nbytes) >= big && !may_block) return Resized::would_block;
    const double start = seconds_now();
    const std::size_t padding = padding_for(lease.alignment);
    if (nbytes > PTRDIFF_MAX - padding) return Resized::refused;
    void* base = static_cast<Header*>(lease.token)->base;
    const std::ptrdiff_t offset = static_cast<char*>(lease.address) - static_cast<char*>(base);
    base = std::realloc(base, nbytes + padding);
    if (!base) return Resized::refused;
    // Where the new place is aligned otherwise, the contents move within it.
    Header* header = header_in(base, lease.alignment);
    const char* contents = static_cast<char*>(base) + offset;
    if (static_cast<void*>(header + 1) != contents)
      std::memmove(header + 1, contents, std::min(lease.nbytes, nbytes));
    *header = {base, nbytes};
    count_live(nbytes - lease.nbytes);
    if (nbytes > lease.nbytes)
      count(allocate_ns_, thread_seconds.allocate, start);
    else
      count(release_ns_, thread_seconds.release, start);
    lease.address = header + 1;
    lease.nbytes = nbytes;
    lease.token = header;
    return Resized::done;
  }

  bool release(void* token, bool fenced) noexcept override {
    const std::size_t nbytes = static_cast<Header*>(token)->nbytes;
    ++releases_;
    live_ -= nbytes;
    if (fenced) pending_ += nbytes;
    return !fenced && pay(token);
  }

  bool unfence(void* token) noexcept override {
    pending_ -= static_cast<Header*>(token)->nbytes;
    return pay(token);
  }

  void settle(void* token) noexcept override {
    const double start = seconds_now();
    reclaimed_ += static_cast<Header*>(token)->nbytes;
    std::free(static_cast<Header*>(token)->base);
    count(release_ns_, thread_seconds.release, start);
  }

  Counters counters() const noexcept {
    Counters now;
    now.live = live_;
    now.pending = pending_;
    now.peak_live = peak_live_;
    now.peak_resident = peak_resident_;
    now.allocations = allocations_;
    now.releases = releases_;
    now.reclaimed = reclaimed_;
    now.allocate_seconds = 1e-9 * static_cast<double>(allocate_ns_);
    now.release_seconds = 1e-9 * static_cast<double>(release_ns_);
    return now;
  }

 private:
  using Count = std::atomic<std::size_t>;

  static std::size_t padding_for(std::size_t alignment) {
    return sizeof(Header) + std::max(alignment, alignof(Header));
  }

  static Header* header_in(void* base, std::size_t alignment) {
    const std::uintptr_t past = reinterpret_cast<std::uintptr_t>(base) + padding_for(alignment);
    return reinterpret_cast<Header*>(past - past % std::max(alignment, alignof(Header))) - 1;
  }

  // The change may be negative, modulo the word.
  void count_live(std::size_t change) {
    raise(peak_live_, live_ += change);
    raise(peak_resident_, live_ + pending_);
  }

  static void count(Count& nanoseconds, double& of_thread, double start) {
    const double seconds = seconds_now() - start;
    nanoseconds += static_cast<std::size_t>(seconds * 1e9);
    of_thread += seconds;
  }

  static void raise(Count& peak, std::size_t value) {
    std::size_t seen = peak;
    while (seen < value && !peak.compare_exchange_weak(seen, value)) continue;
  }

  bool pay(void* token) noexcept {
    if (static_cast<Header*>(token)->nbytes >= big) return true;
    settle(token);
    return false;
  }

  Count live_{0}, pending_{0}, peak_live_{0}, peak_resident_{0};
  Count allocations_{0}, releases_{0}, reclaimed_{0}, allocate_ns_{0}, release_ns_{0};
};

struct System {
  PyObject_HEAD std::shared_ptr<SystemSource> source;
};

PyObject* system_new(PyTypeObject* type, PyObject*, PyObject*) {
  auto* self = reinterpret_cast<System*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  new (&self->source) std::shared_ptr<SystemSource>(std::make_shared<SystemSource>());
  return reinterpret_cast<PyObject*>(self);
}

void system_dealloc(System* self) {
  PyTypeObject* type = Py_TYPE(self);
  self->source.~shared_ptr();
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* system_allocate(System* self, PyObject* args) {
  Py_ssize_t nbytes, alignment;
  int zeroed;
  PyObject* allocator;
  if (!PyArg_ParseTuple(args, "Onnp:allocate", &allocator, &nbytes, &alignment, &zeroed))
    return nullptr;
  if (!poll_fences(nullptr)) return nullptr;
  Header* header;
  if (static_cast<std::size_t>(nbytes) >= big) {
    WithoutGil nogil;
    header = self->source->allocate(nbytes, alignment, zeroed);
  } else {
    header = self->source->allocate(nbytes, alignment, zeroed);
  }
  if (!header) return PyErr_Format(out_of_memory, "the C library has no %zd bytes to give", nbytes);
  return new_block({self->source, header + 1, static_cast<std::size_t>(nbytes), header,
                    static_cast<std::size_t>(alignment)},
                   allocator);
}

PyObject* system_counters(System* self, PyObject*) {
  return counters_to_dict(self->source->counters());
}

PyMethodDef methods[] = {
    {"allocate", reinterpret_cast<PyCFunction>(system_allocate), METH_VARARGS,
     "allocate(allocator, nbytes, alignment, zeroed)\n--\n\nA block of C library memory."},
    {"counters", reinterpret_cast<PyCFunction>(system_counters), METH_NOARGS,
     "counters()\n--\n\nWhat AllocatorStats is made from."},
    {nullptr}};

PyType_Slot slots[] = {{Py_tp_doc, const_cast<char*>("System()\n--\n\nThe C library's allocator.")},
                       {Py_tp_new, reinterpret_cast<void*>(system_new)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(system_dealloc)},
                       {Py_tp_methods, methods},
                       {0, nullptr}};

PyType_Spec spec = {"bigmem._core.System", sizeof(System), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots};

}  // namespace

bool add_system_type(PyObject* module) { return add_type(module, &spec) != nullptr; }

}  // namespace bigmem
