#include "frames.hpp"

namespace bigmem {
namespace {

constexpr int most_frames = 12;
constexpr std::size_t longest_site = 512;

// Told by the module, whose name cannot differ between installations as its path does.
bool is_own(PyFrameObject* frame) {
  static PyObject* const key = PyUnicode_InternFromString("__name__");
  PyObject* globals = PyFrame_GetGlobals(frame);
  if (!globals) return false;
  PyObject* name = key ? PyDict_GetItemWithError(globals, key) : nullptr;
  constexpr std::string_view package = "bigmem";
  bool own = false;
  if (name) {
    const std::string_view text = utf8(name);
    own = text == package || (text.substr(0, package.size()) == package &&
                              text.size() > package.size() && text[package.size()] == '.');
  }
  Py_DECREF(globals);
  return own;
}

// Calls `visit` with the frames outside bigmem, innermost first, until it answers false.
template <typename Visit>
void walk(Visit visit) {
  SavedError saved;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame) {
    bool more = true;
    if (!is_own(frame)) {
      PyCodeObject* code = PyFrame_GetCode(frame);
      more = visit(utf8(code->co_filename), PyFrame_GetLineNumber(frame), utf8(code->co_name));
      Py_DECREF(code);
    }
    PyFrameObject* back = more ? PyFrame_GetBack(frame) : nullptr;
    Py_DECREF(frame);
    frame = back;
  }
  PyErr_Clear();
}

}  // namespace

void write_call_site(Text& text) {
  walk([&](std::string_view file, int line, std::string_view) {
    text << file << ":" << static_cast<std::uint64_t>(line);
    return false;
  });
}

PyObject* call_site() {
  char site[longest_site];
  Text text(site, sizeof site);
  write_call_site(text);
  if (!text.length()) Py_RETURN_NONE;
  return PyUnicode_DecodeUTF8(site, static_cast<Py_ssize_t>(text.length()), "replace");
}

void write_traceback(Text& text) {
  int count = 0;
  walk([&](std::string_view file, int line, std::string_view function) {
    text << "  File \"" << file << "\", line " << static_cast<std::uint64_t>(line) << ", in "
         << function << "\n";
    return ++count < most_frames;
  });
}

}  // namespace bigmem
