/* Lists of system calls and other parts of a plan, from Python's tuples to C. */
#include "plans.h"

given_call *read_given(PyObject *calls, int *count) {
    Py_ssize_t size = PyTuple_GET_SIZE(calls);
    given_call *given = PyMem_Calloc((size_t)size + 1, sizeof *given);
    if (!given) return (given_call *)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < size; i++) {
        PyObject *arguments;
        given_call *call = &given[i];
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(calls, i), "slO!pp", &call->name, &call->number,
                              &PyTuple_Type, &arguments, &call->must_work, &call->whole))
            goto bad;
        Py_ssize_t used = PyTuple_GET_SIZE(arguments);
        if (used > 6) {
            PyErr_SetString(PyExc_ValueError, "a system call has at most six arguments");
            goto bad;
        }
        for (Py_ssize_t k = 0; k < used; k++) {
            PyObject *value = PyTuple_GET_ITEM(arguments, k);
            if (PyBytes_Check(value)) {
                call->bytes[k] = PyBytes_AS_STRING(value);
                /* With the zero behind them, where paths end. */
                call->sizes[k] = (size_t)PyBytes_GET_SIZE(value) + 1;
            } else {
                call->arguments[k] = PyLong_AsUnsignedLongLongMask(value);
                if (PyErr_Occurred()) goto bad;
            }
        }
    }
    *count = (int)size;
    return given;
bad:
    PyMem_Free(given);
    return NULL;
}

dead_child *read_children(PyObject *children, int *count) {
    Py_ssize_t size = PyTuple_GET_SIZE(children);
    dead_child *dead = PyMem_Calloc((size_t)size + 1, sizeof *dead);
    if (!dead) return (dead_child *)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < size; i++) {
        PyObject *child = PyTuple_GET_ITEM(children, i);
        if (!PyArg_ParseTuple(child, "ii", &dead[i].pid, &dead[i].status)) {
            PyMem_Free(dead);
            return NULL;
        }
    }
    *count = (int)size;
    return dead;
}

int read_namespaces(PyObject *namespaces, thaw_plan *plan) {
    if (PyTuple_GET_SIZE(namespaces) != NAMESPACES) {
        PyErr_SetString(PyExc_ValueError, "namespaces: seven inodes");
        return -1;
    }
    for (int i = 0; i < NAMESPACES; i++)
        plan->namespaces[i] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(namespaces, i));
    return PyErr_Occurred() ? -1 : 0;
}
