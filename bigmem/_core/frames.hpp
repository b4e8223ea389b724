#pragma once

#include "python.hpp"
#include "text.hpp"

namespace bigmem {

// Where the calling Python code is, bigmem's own frames left out. All need the GIL, keep an
// exception in flight, and may be called from a destructor; they write nothing where no Python
// code runs.

// "file.py:12" of the innermost frame.
void write_call_site(Text& text);

// The same as a Python string, None where no Python code runs.
PyObject* call_site();

// The innermost frames, one line each, the innermost first.
void write_traceback(Text& text);

}  // namespace bigmem
