#include "bind.hpp"

#include <cstring>

#include "threads.hpp"

namespace prover {

Bytes::Bytes(nb::handle object, const char* name, Access access) : name_(name) {
  const int flags =
      PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (access == Access::write ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) {
    PyErr_Clear();
    const std::string kind = access == Access::write ? "writable C-contiguous" : "C-contiguous";
    throw nb::value_error((std::string(name) + ": expected a " + kind + " uint8 array").c_str());
  }
  if (view_.itemsize != 1 || std::strcmp(view_.format, "B") != 0) {
    PyBuffer_Release(&view_);
    throw nb::value_error((std::string(name) + ": expected an array of uint8").c_str());
  }
}

std::size_t Bytes::rows(std::size_t width) const {
  if (view_.ndim != 2 || std::size_t(view_.shape[1]) != width)
    refuse("(n, " + std::to_string(width) + ")");
  return std::size_t(view_.shape[0]);
}

void Bytes::expect_rows(std::size_t n, std::size_t width) const {
  if (rows(width) != n) refuse("(" + std::to_string(n) + ", " + std::to_string(width) + ")");
}

void Bytes::expect_row(std::size_t width) const {
  if (size() != width || view_.ndim > 2) refuse("(" + std::to_string(width) + ",)");
}

void Bytes::refuse(const std::string& expected) const {
  std::string shape;
  for (int i = 0; i < view_.ndim; ++i)
    shape += (i == 0 ? "" : ", ") + std::to_string(view_.shape[i]);
  throw nb::value_error(
      (std::string(name_) + ": expected shape " + expected + ", got (" + shape + ")").c_str());
}

Group group_of(int group) {
  if (group != 1 && group != 2) throw nb::value_error("group: expected 1 or 2");
  return Group(group);
}

int threads_of(int threads) {
  if (threads < 0) throw nb::value_error("threads: expected 0 (all cores) or more");
  return resolve_threads(threads);
}

}  // namespace prover
