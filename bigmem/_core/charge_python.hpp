#pragma once

#include <memory>

#include "budget.hpp"
#include "python.hpp"

namespace bigmem {

bool add_charge_type(PyObject* module);

// Charges the budget; the object credits it again when it is called, and at the latest when it
// dies, so that no exception can come in between. None where the budget has no room.
PyObject* charge(std::shared_ptr<Budget> budget, std::size_t nbytes);

}  // namespace bigmem
