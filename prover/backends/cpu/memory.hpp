// Elements and points in byte arrays of any alignment, and a caller's workspace cut into arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "curve.cuh"

namespace prover {

template <class T>
T load(const u8* from) {
  T x;
  std::memcpy(static_cast<void*>(&x), from, sizeof(T));
  return x;
}

template <class T>
void store(u8* to, const T& x) {
  std::memcpy(to, static_cast<const void*>(&x), sizeof(T));
}

// A row-wise view of n values of type T at any address
template <class T>
class Rows {
 public:
  Rows(const u8* data, std::size_t size) : data_(data), size_(size) {}
  std::size_t size() const { return size_; }
  const u8* at(std::size_t i) const { return data_ + i * sizeof(T); }
  T operator[](std::size_t i) const { return load<T>(at(i)); }

 private:
  const u8* data_;
  std::size_t size_;
};

// Hands out arrays from one range of bytes. Over no range at all it only counts.
class Workspace {
 public:
  static constexpr std::size_t alignment = 64;

  Workspace() = default;
  Workspace(u8* data, std::size_t size) : data_(data), size_(size) {
    used_ = -reinterpret_cast<std::uintptr_t>(data) % alignment;
  }

  // Uninitialised; null when counting
  template <class T>
  T* take(std::size_t count) {
    u8* at = data_ == nullptr ? nullptr : data_ + used_;
    used_ += (count * sizeof(T) + alignment - 1) / alignment * alignment;
    return reinterpret_cast<T*>(at);
  }
  std::size_t used() const { return used_; }
  bool fits() const { return used_ <= size_; }

 private:
  u8* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t used_ = 0;
};

}  // namespace prover
