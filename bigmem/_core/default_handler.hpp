#pragma once

#include "python.hpp"

#define NPY_NO_DEPRECATED_API NPY_1_22_API_VERSION
#define NPY_TARGET_VERSION NPY_1_22_API_VERSION
#include <numpy/arrayobject.h>

namespace bigmem {

// NumPy's default handler, which NumPy does not promise to be one that can be edited.

// Puts functions into a handler that NumPy may use at any time, in any thread.
void put_functions(PyDataMemAllocator& target, const PyDataMemAllocator& functions);

// Whether the memory of a new array comes from the functions of the default handler, and goes back
// through them: 1 or 0; -1 with an error set. Needs the GIL, and does not give it up.
int is_in_use(PyDataMemAllocator& functions);

}  // namespace bigmem
