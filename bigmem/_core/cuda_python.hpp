#pragma once

#include "cuda_fences.hpp"
#include "cuda_pages.hpp"
#include "python.hpp"

namespace bigmem {

// _core.CudaDriver, CudaPages, CudaStage, CudaFences and CudaEvent, and what tells of captures.
bool add_cuda_types(PyObject* module);
bool add_cuda_pages_type(PyObject* module);
bool add_cuda_stage_type(PyObject* module);
bool add_captures(PyObject* module);
// _core.FakeCuda, the driver of tests.
bool add_fake_cuda_type(PyObject* module);

// The pages that an object of _core.CudaPages stands for; null, and no error, for any other.
CudaPages* cuda_pages_of(PyObject* object);

// The driver that an object of _core.CudaDriver stands for; null with an error set.
const cuda::Driver* driver_of(PyObject* object);

// A BigmemError that says what the driver said; null.
PyObject* cuda_refused(const cuda::Driver& driver, const char* function, cuda::Result result);
PyObject* cuda_refused(const cuda::Driver& driver, const CudaFences::Refusal& refusal);

}  // namespace bigmem
