/* What the processor says of itself, as programs see it: C libraries choose their functions by it
 * when they are loaded, and the choices are in the memory of every image. */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include "processor.h"
#include <cpuid.h>

enum { LEAF_FEATURES = 1, OSXSAVE = 1 << 27 };

PyObject *core_cpuid(PyObject *self, PyObject *arguments) {
    unsigned leaf, part, a = 0, b = 0, c = 0, d = 0;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "II", &leaf, &part)) return NULL;
    /* Zeros for a leaf that this processor does not know: it would answer with another one. */
    if (!__get_cpuid_count(leaf, part, &a, &b, &c, &d)) a = b = c = d = 0;
    return Py_BuildValue("(IIII)", a, b, c, d);
}

PyObject *core_enabled_states(PyObject *self, PyObject *ignored) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    (void)self;
    (void)ignored;
    /* Without the bit the instruction below is illegal. */
    if (!__get_cpuid(LEAF_FEATURES, &a, &b, &c, &d) || !(c & OSXSAVE))
        return PyLong_FromUnsignedLongLong(0);
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return PyLong_FromUnsignedLongLong(((unsigned long long)d << 32) | a);
}
