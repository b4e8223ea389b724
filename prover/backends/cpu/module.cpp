#include <nanobind/nanobind.h>

namespace nb = nanobind;

NB_MODULE(_cpu, m) { m.doc() = "Groth16 arithmetic on the CPU"; }
