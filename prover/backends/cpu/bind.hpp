// The parts of the extension module, and how they take arrays from Python.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstddef>
#include <string>

#include "engine.hpp"

namespace prover {

namespace nb = nanobind;

void bind_vectors(nb::module_&);
void bind_points(nb::module_&);
void bind_testing(nb::module_&);
void bind_emulator(nb::module_&);
void bind_pairing(nb::module_&);
void bind_setup(nb::module_&);

// The bytes of a C-contiguous uint8 array, held for one call. Everything that does not fit raises
// ValueError with the argument's name.
class Bytes {
 public:
  enum class Access { read, write };

  Bytes(nb::handle object, const char* name, Access access = Access::read);
  ~Bytes() { PyBuffer_Release(&view_); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  u8* data() const { return static_cast<u8*>(view_.buf); }
  std::size_t size() const { return std::size_t(view_.len); }
  // Number of rows of an array of shape (n, width)
  std::size_t rows(std::size_t width) const;
  void expect_rows(std::size_t n, std::size_t width) const;
  // One row of `width` bytes, of one or two dimensions
  void expect_row(std::size_t width) const;

 private:
  [[noreturn]] void refuse(const std::string& expected) const;

  Py_buffer view_;
  const char* name_;
};

Group group_of(int group);
// `threads` as the engine wants it
int threads_of(int threads);
// A new uint8 array of shape (size,), which `fill(data)` writes
template <class Fill>
nb::object new_row(std::size_t size, Fill&& fill) {
  u8* data = new u8[size];
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<u8*>(p); });
  {
    nb::gil_scoped_release release;
    fill(data);
  }
  return nb::cast(nb::ndarray<nb::numpy, u8, nb::ndim<1>>(data, {size}, owner));
}

}  // namespace prover
