#pragma once

#include "cuda_pages.hpp"
#include "python.hpp"

namespace bigmem {

// _core.CudaDriver, CudaPages, CudaFences and CudaEvent, and the functions that count captures.
bool add_cuda_types(PyObject* module);
// _core.FakeCuda, the driver of tests.
bool add_fake_cuda_type(PyObject* module);

// The pages that an object of _core.CudaPages stands for; null, and no error, for any other.
CudaPages* cuda_pages_of(PyObject* object);

}  // namespace bigmem
