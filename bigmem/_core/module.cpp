#include <Python.h>

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "bigmem._core", nullptr, 0, nullptr};

PyMODINIT_FUNC PyInit__core() { return PyModule_Create(&definition); }
