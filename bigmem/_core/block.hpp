#pragma once

#include "python.hpp"
#include "source.hpp"

namespace bigmem {

bool add_block_type(PyObject* module);

// A Block that owns the lease; on failure the lease has been released.
PyObject* new_block(Lease lease, PyObject* allocator);

// Asks every parked fence once and lets go of the ranges whose fences are done. Needs the GIL.
// False with an error set when a fence raised and `raise` is true; otherwise such a fence is
// reported as unraisable and its range stays parked, since nobody knows that it may be reused.
bool poll_fences(bool raise);

// How many released blocks of this allocator wait for fences.
std::size_t parked_by(const PyObject* allocator);

}  // namespace bigmem
