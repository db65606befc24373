#ifndef RAMET_PLANS_H
#define RAMET_PLANS_H
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include "../snapshot.h"

/* Calls from Python: (name, number, arguments, must_work, whole). They point into objects of
 * Python, which live as long as the tuple. To be freed with PyMem_Free; NULL: a Python exception is
 * set. */
given_call *read_given(PyObject *calls, int *count);
/* The same for children that have ended: (pid, status). */
dead_child *read_children(PyObject *children, int *count);
/* Inodes of the pod's namespaces. Returns -1 with a Python exception. */
int read_namespaces(PyObject *namespaces, thaw_plan *plan);
#endif
