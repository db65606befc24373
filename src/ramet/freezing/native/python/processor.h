/* What the processor says of itself. */
#ifndef RAMET_PROCESSOR_H
#define RAMET_PROCESSOR_H
#include <Python.h>

/* Functions of the Python module. */
PyObject *core_cpuid(PyObject *self, PyObject *arguments);
PyObject *core_enabled_states(PyObject *self, PyObject *ignored);
#endif
