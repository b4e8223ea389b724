#pragma once

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

  void allocated(Entry& entry, const void* address, const Ledger::Note* moved) const {
    entry.noted = ledger_ && entry.nbytes >= ledger_->min_bytes();
    if (entry.noted)
      ledger_->allocated(entry.note, address, entry.nbytes, begin_, seconds_now() - begin_, moved);
  }

  void released(const Entry& entry, bool held_gil) const {
    if (ledger_ && entry.noted)
      ledger_->released(entry.note, entry.nbytes, begin_, seconds_now() - begin_, held_gil);
  }

  // What the move took counts with the allocation that follows.
  void moved(const Entry& entry) const {
    if (ledger_ && entry.noted) ledger_->released(entry.note, entry.nbytes, begin_, 0, false);
  }

 private:
  Ledger* const ledger_;
  const double begin_;
};

enum class Served { yes, no, not_here };

// A block of the route's allocator at *address, if the request is for it. What goes wrong is
// printed: NumPy has no words for it but "unable to allocate". `moved` is for the ledger; the block
// has `spare` bytes more than asked for, if there is memory for them.
Served serve(const Route* route, std::size_t nbytes, bool zeroed, bool keep_gil, void** address,
             const Ledger::Note* moved = nullptr, std::size_t spare = 0);

// Releases the block of an entry that is out of the table.
void let_go(Entry& entry);

}  // namespace bigmem
