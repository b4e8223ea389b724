#pragma once

#include "python.hpp"
#include "source.hpp"

namespace bigmem {

bool add_block_type(PyObject* module);

// A Block that owns the lease; on failure the lease has been released.
PyObject* new_block(Lease lease, PyObject* allocator);

// What a block over a Python object's buffer may be told besides; null for nothing.
struct Origin {
  // Called when the buffer is let go, after the fences and before the export ends, which ends
  // before the object does.
  PyObject* on_release = nullptr;
  PyObject* origin = nullptr;  // where the block was made
};

// A Block over part of a writable buffer, all of it if nbytes is negative.
PyObject* new_block_over(PyObject* buffer, Py_ssize_t offset, Py_ssize_t nbytes,
                         PyObject* allocator, Origin origin);

// Changes the size of a block that one buffer views at most, whose view is void afterwards. The
// contents up to the smaller size stay; the address may change. False when the block's source
// cannot do that for less than a copy, or the block is fenced or backs something else: nothing has
// changed then. Gives the GIL up around system calls.
bool resize_block(PyObject* block, std::size_t nbytes);

struct Range {
  std::uintptr_t begin;
  std::size_t nbytes;
};

bool is_block(PyObject* object);
Range range_of(PyObject* block);

// Whether the memory of a block backs something else now: live_blocks() leaves it out while it
// does. Counted.
void begin_backing(PyObject* block);
void end_backing(PyObject* block);

// A new list of the living blocks that back nothing else.
PyObject* live_blocks();

// The one of these that contains the address, a new reference; null, and no error, if none does.
PyObject* block_at(std::uintptr_t address);

// Asks every parked fence once and lets go of the ranges whose fences are done. Needs the GIL.
// A range whose fence raises stays parked, since nobody knows that it may be reused. False with the
// error set if it is a range of the allocator `owner`; of others that is reported as unraisable,
// once.
bool poll_fences(const PyObject* owner);

// How many released blocks of this allocator wait for fences.
std::size_t parked_by(const PyObject* allocator);

}  // namespace bigmem
