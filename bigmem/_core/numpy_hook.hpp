#pragma once

#include <functional>

#include "ledger.hpp"
#include "python.hpp"

namespace bigmem {

// Adds the functions of NumPy's data memory handler (NEP 49) to the module. NumPy is imported when
// the first of them is called.
bool add_numpy_hook(PyObject* module);

// Who keeps account from now on; null for nobody. Needs the GIL. The ledger must live for ever: a
// range that it took note of may be released at any time.
void set_ledger(Ledger* ledger);

// Calls visit(note, address, nbytes) for every range that a ledger has taken note of. Needs the
// GIL.
void for_each_noted(
    const std::function<void(Ledger::Note&, const void* address, std::size_t nbytes)>& visit);

}  // namespace bigmem
