#include "source_lines.hpp"

#include <algorithm>

namespace bigmem {
namespace {

// Beyond so many frames of libraries nobody's line is to be found.
constexpr int most_frames = 100;
// Programs that compile code without end must not fill the memory with it.
constexpr std::size_t most_codes = 20'000;

// Frame objects are made on looking, and until Python 3.12 any making may start the collector,
// whose finalizers must not run inside an allocation of NumPy's.
class WithoutCollector {
 public:
#if PY_VERSION_HEX < 0x030C0000
  WithoutCollector() : was_on_(PyGC_Disable()) {}
  ~WithoutCollector() {
    if (was_on_) PyGC_Enable();
  }

 private:
  const bool was_on_;
#else
  WithoutCollector() {}
#endif
};

}  // namespace

SourceLines::SourceLines(Prefixes prefixes) : prefixes_(std::move(prefixes)) {
  std::sort(prefixes_.begin(), prefixes_.end(), [](const auto& one, const auto& other) {
    return one.first.size() > other.first.size();
  });
}

SourceLines::~SourceLines() { forget(); }

void SourceLines::forget() {
  places_.clear();
  for (const auto& [code, origin] : origins_) Py_DECREF(code);
  origins_.clear();
}

SourceLines::Origin SourceLines::origin(PyCodeObject* code) {
  if (const auto known = origins_.find(code); known != origins_.end()) return known->second;
  const std::string_view file = utf8(code->co_filename);
  Origin found = Origin::program;
  for (const auto& [prefix, origin] : prefixes_) {
    if (file.substr(0, prefix.size()) != prefix) continue;
    found = origin;
    break;
  }
  Py_INCREF(code);
  return origins_[code] = found;
}

SourceLines::Place SourceLines::find(std::uint32_t* line) {
  SavedError saved;
  WithoutCollector quiet;
  if (origins_.size() >= most_codes) forget();
  Place place;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  for (int depth = 0; frame; ++depth) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const Origin from = origin(code);
    if (from == Origin::program || (from == Origin::library && !place.code))
      place = {code, PyFrame_GetLasti(frame)};
    Py_DECREF(code);  // `origins_` keeps it
    const bool more = from != Origin::program && depth < most_frames;
    PyFrameObject* back = more ? PyFrame_GetBack(frame) : nullptr;
    Py_DECREF(frame);
    frame = back;
  }
  const auto known = place.code ? places_.find(place) : places_.end();
  *line = known != places_.end() ? known->second : 0;
  return place;
}

std::pair<std::string_view, int> SourceLines::read(const Place& place) {
  SavedError saved;
  return {utf8(place.code->co_filename), PyCode_Addr2Line(place.code, place.instruction)};
}

}  // namespace bigmem
