#ifndef RAMET_PROCESS_FACTS_H
#define RAMET_PROCESS_FACTS_H
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

PyObject *core_descriptors(PyObject *self, PyObject *pid);
PyObject *core_limits(PyObject *self, PyObject *pid);
PyObject *core_shared_maps(PyObject *self, PyObject *arguments);
#endif
