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

// A path that is no UTF-8 is a string with halves of surrogate pairs in it. They are kept as they
// are, and read back likewise.
std::string file_of(PyCodeObject* code) {
  PyObject* bytes = PyUnicode_AsEncodedString(code->co_filename, "utf-8", "surrogatepass");
  if (!bytes) {
    PyErr_Clear();
    return "?";
  }
  std::string file(PyBytes_AS_STRING(bytes), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes)));
  Py_DECREF(bytes);
  return file;
}

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
  const std::string file = file_of(code);
  Origin found = Origin::program;
  for (const auto& [prefix, origin] : prefixes_) {
    if (file.compare(0, prefix.size(), prefix) != 0) continue;
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

std::pair<std::string, int> SourceLines::read(const Place& place) {
  SavedError saved;
  return {file_of(place.code), PyCode_Addr2Line(place.code, place.instruction)};
}

}  // namespace bigmem
