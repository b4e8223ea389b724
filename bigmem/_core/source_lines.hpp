#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "python.hpp"

namespace bigmem {

// Finds the line of the program that the calling thread is at: the innermost one that is neither in
// the machinery (NumPy, bigmem) nor in a library, or else the innermost one outside the machinery.
// Everything needs the GIL, which guards it too.
class SourceLines {
 public:
  enum class Origin { machinery, library, program };
  // Of file names, in UTF-8 with surrogates passed; the longest holds.
  using Prefixes = std::vector<std::pair<std::string, Origin>>;

  explicit SourceLines(Prefixes prefixes);
  SourceLines(const SourceLines&) = delete;
  SourceLines& operator=(const SourceLines&) = delete;
  ~SourceLines();

  // `number(file, line)` numbers a line that has not been seen at this place of the code; 0 where
  // no Python code runs. Keeps an exception in flight, and runs no Python code.
  template <typename Number>
  std::uint32_t current(Number number) {
    std::uint32_t line;
    const Place place = find(&line);
    if (!place.code || line) return line;
    const auto [file, at] = read(place);
    return places_[place] = number(file, at);
  }

 private:
  struct Place {
    PyCodeObject* code = nullptr;
    int instruction = 0;
    bool operator==(const Place& other) const {
      return code == other.code && instruction == other.instruction;
    }
  };
  struct Hash {
    std::size_t operator()(const Place& place) const {
      return reinterpret_cast<std::uintptr_t>(place.code) / 16 * 31 +
             static_cast<std::size_t>(place.instruction);
    }
  };

  Place find(std::uint32_t* line);
  Origin origin(PyCodeObject* code);
  void forget();
  static std::pair<std::string, int> read(const Place& place);

  Prefixes prefixes_;
  std::unordered_map<PyCodeObject*, Origin> origins_;  // owns references
  std::unordered_map<Place, std::uint32_t, Hash> places_;
};

}  // namespace bigmem
