#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "address_table.hpp"
#include "clock.hpp"
#include "ledger.hpp"
#include "python.hpp"

namespace bigmem {

// The memory behind NumPy's arrays: who serves a request, and what is known of what was served.
// Everything here needs the GIL, but for the filter of the table.

// Which allocator serves requests of at least min_bytes.
struct Route {
  PyObject* allocator;
  PyObject* quick;         // makes a block without entering Python code; or None
  std::size_t quick_most;  // bytes that it may be asked for
  std::size_t min_bytes;

  Route(PyObject* allocator, PyObject* quick, std::size_t quick_most, std::size_t min_bytes)
      : allocator(Py_NewRef(allocator)),
        quick(Py_NewRef(quick)),
        quick_most(quick_most),
        min_bytes(min_bytes) {}
  ~Route() {
    Py_DECREF(quick);
    Py_DECREF(allocator);
  }
  Route(const Route&) = delete;
  Route& operator=(const Route&) = delete;
};

// Of one range that NumPy was handed: a block of ours, viewed so that nobody can release it, or
// memory of NumPy's own functions that a ledger follows.
struct Entry {
  Py_buffer view{};
  std::size_t nbytes = 0;
  bool noted = false;
  Ledger::Note note;
  std::uint64_t resize = 0;  // the number of the one that is under way, if any

  bool is_block() const { return view.obj != nullptr; }
};

// Never destroyed: arrays die after every static destructor has run.
AddressTable<Entry>& data_table();
extern Ledger* ledger;  // or null

// Times what happens for the ledger, if it is to be told.
class Timing {
 public:
  explicit Timing(std::size_t nbytes)
      : ledger_(ledger && nbytes >= ledger->min_bytes() ? ledger : nullptr),
        begin_(ledger_ ? seconds_now() : 0) {}

  explicit operator bool() const { return ledger_ != nullptr; }

  void allocated(Entry& entry, const void* address) const {
    entry.noted = ledger_ && entry.nbytes >= ledger_->min_bytes();
    if (entry.noted)
      ledger_->allocated(entry.note, address, entry.nbytes, begin_, seconds_now() - begin_);
  }

  void released(const Entry& entry, bool held_gil) const {
    if (ledger_ && entry.noted)
      ledger_->released(entry.note, entry.nbytes, begin_, seconds_now() - begin_, held_gil);
  }

 protected:
  Ledger* const ledger_;
  const double begin_;
};

// The same for memory that gets another size, where it is or elsewhere.
class ResizeTiming : public Timing {
 public:
  ResizeTiming(std::size_t before, std::size_t wanted)
      : Timing(std::max(before, wanted)), wanted_(wanted), faults_(ledger_ ? faults() : 0) {}

  // The memory is still as it was. May be undone by putting back the note.
  void before(Entry& entry, const void* address) const {
    if (ledger_ && entry.noted) ledger_->before_resize(entry.note, address, entry.nbytes, wanted_);
  }

  // The entry, which was one of `before` bytes, is of another size. What has become too small to
  // be told of is released.
  void resized(Entry& entry, std::size_t before, const void* address) const {
    if (!ledger_) return;
    if (!entry.noted) return allocated(entry, address);
    entry.noted = entry.nbytes >= ledger_->min_bytes();
    const double seconds = seconds_now() - begin_;
    if (entry.noted)
      ledger_->resized(entry.note, address, before, entry.nbytes, begin_, seconds,
                       faults() - faults_);
    else
      ledger_->released(entry.note, before, begin_, seconds, true);
  }

 private:
  static std::uint64_t faults() {
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    return static_cast<std::uint64_t>(usage.ru_minflt);
  }

  const std::size_t wanted_;
  const std::uint64_t faults_;
};

enum class Served { yes, no, not_here };

// A block of the route's allocator at *address, if the request is for it. What goes wrong is
// printed: NumPy has no words for it but "unable to allocate".
Served serve(const Route* route, std::size_t nbytes, bool zeroed, bool keep_gil, void** address);

// The same in place of other memory, whose account goes on: the ledger is not told. The block has
// `spare` bytes more than asked for, if there is memory for them.
Served serve_instead(const Route* route, std::size_t nbytes, std::size_t spare, bool keep_gil,
                     void** address);

// Releases the block of an entry that is out of the table.
void let_go(Entry& entry);

}  // namespace bigmem
