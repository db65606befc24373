/* ramet.freezing._core: the Python face. Each call releases the GIL and must come from the one thread that froze the snapshot. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include "snapshot.h"
#include <sys/syscall.h>
#include <unistd.h>

static PyObject *core_error; /* (step, errno) */
static const char capsule_name[] = "ramet.freezing.snapshot";

static PyObject *raise_failure(const failure *why) {
    PyObject *arguments = Py_BuildValue("(si)", why->step, why->error);
    if (arguments) PyErr_SetObject(core_error, arguments);
    Py_XDECREF(arguments);
    return NULL;
}

static void capsule_free(PyObject *capsule) {
    snapshot *taken = PyCapsule_GetPointer(capsule, capsule_name);
    if (!taken) return;
    snapshot_free(taken);
    PyMem_Free(taken);
}

static PyObject *core_freeze_template(PyObject *self, PyObject *arguments) {
    int pid, control, result;
    double seconds;
    failure why = {0};
    (void)self;
    if (!PyArg_ParseTuple(arguments, "iid", &pid, &control, &seconds)) return NULL;
    snapshot *taken = PyMem_Calloc(1, sizeof *taken);
    if (!taken) return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS;
    result = deadline_begin(seconds, &why) || freeze_template(pid, control, taken, &why);
    deadline_end();
    if (result) end_template(taken);
    Py_END_ALLOW_THREADS;
    if (result) {
        snapshot_free(taken);
        PyMem_Free(taken);
        return raise_failure(&why);
    }
    return PyCapsule_New(taken, capsule_name, capsule_free);
}

static PyObject *core_end_template(PyObject *self, PyObject *capsule) {
    (void)self;
    snapshot *taken = PyCapsule_GetPointer(capsule, capsule_name);
    if (!taken) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    end_template(taken);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static int read_limits(PyObject *limits, thaw_plan *plan) {
    Py_ssize_t count = PyTuple_Size(limits);
    if (count < 0 || count > 16) return PyErr_SetString(PyExc_ValueError, "limits: a tuple of at most 16"), -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        unsigned long long resource, soft, hard;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(limits, i), "KKK", &resource, &soft, &hard)) return -1;
        plan->limits[i][0] = resource, plan->limits[i][1] = soft, plan->limits[i][2] = hard;
    }
    plan->limit_count = (int)count;
    return 0;
}

static int read_files(PyObject *files, thaw_plan *plan) {
    Py_ssize_t count = PyTuple_Size(files);
    if (count < 0 || count > MAX_FILES) return PyErr_SetString(PyExc_ValueError, "files: a tuple of at most 64"), -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        file_recipe *file = &plan->files[i];
        const char *path;
        Py_ssize_t length;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(files, i), "iiLy#", &file->number, &file->flags, &file->offset, &path, &length)) return -1;
        if ((size_t)length >= sizeof file->path) return PyErr_SetString(PyExc_ValueError, "files: a path is too long"), -1;
        memcpy(file->path, path, (size_t)length);
    }
    plan->file_count = (int)count;
    return 0;
}

static PyObject *core_thaw(PyObject *self, PyObject *arguments) {
    PyObject *capsule, *limits, *files;
    static thaw_plan plan; /* large, and used by one thread only */
    thawed made;
    failure why = {0};
    double seconds;
    int result;
    (void)self;
    memset(&plan, 0, sizeof plan);
    if (!PyArg_ParseTuple(arguments, "OiiiiO!O!d", &capsule, &plan.pod_init, &plan.pod_root, &plan.main_pid, &plan.cgroup_count, &PyTuple_Type, &limits,
                          &PyTuple_Type, &files, &seconds))
        return NULL;
    const snapshot *from = PyCapsule_GetPointer(capsule, capsule_name);
    if (!from || read_limits(limits, &plan) || read_files(files, &plan)) return NULL;
    if (from->tracer != (pid_t)syscall(SYS_gettid))
        return PyErr_SetString(PyExc_RuntimeError, "a snapshot may be used only by the thread that froze it"), NULL;
    Py_BEGIN_ALLOW_THREADS;
    result = deadline_begin(seconds, &why) || thaw(from, &plan, &made, &why);
    deadline_end();
    Py_END_ALLOW_THREADS;
    if (result) return raise_failure(&why);
    return Py_BuildValue("(iiii(dddd))", made.shadow, made.shadow_pidfd, made.repl, made.repl_pidfd, made.microseconds[0], made.microseconds[1],
                         made.microseconds[2], made.microseconds[3]);
}

static PyObject *core_thread_ids(PyObject *self, PyObject *capsule) {
    (void)self;
    const snapshot *from = PyCapsule_GetPointer(capsule, capsule_name);
    if (!from) return NULL;
    PyObject *ids = PyTuple_New(from->thread_count);
    for (int i = 0; ids && i < from->thread_count; i++) PyTuple_SET_ITEM(ids, i, PyLong_FromLong(from->threads[i].inner_tid));
    return ids;
}

static PyObject *core_usable(PyObject *self, PyObject *capsule) {
    registers r;
    failure why;
    (void)self;
    const snapshot *from = PyCapsule_GetPointer(capsule, capsule_name);
    if (!from) return NULL;
    return PyBool_FromLong(!read_registers(from->shadow, &r, &why)); /* only what is stopped under our hand can be read */
}

static PyMethodDef methods[] = {
    {"freeze_template", core_freeze_template, METH_VARARGS, "freeze_template(pid, control_descriptor, seconds) -> snapshot"},
    {"thaw", core_thaw, METH_VARARGS,
     "thaw(snapshot, pod_init, pod_root, main_pid, cgroups, limits, files, seconds) -> (shadow, its pidfd, repl, its pidfd, microseconds)"},
    {"usable", core_usable, METH_O, "usable(snapshot) -> whether its shadow still stands where it was frozen"},
    {"end_template", core_end_template, METH_O, "end_template(snapshot): kill and reap the frozen template"},
    {"thread_ids", core_thread_ids, METH_O, "thread_ids(snapshot) -> ids of its threads, main first"},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_core", "Freeze and thaw: the ptrace sequences.", -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__core(void) {
    PyObject *module = PyModule_Create(&definition);
    if (!module) return NULL;
    core_error = PyErr_NewException("ramet.freezing._core.FreezeError", PyExc_RuntimeError, NULL);
    if (!core_error || PyModule_AddObjectRef(module, "FreezeError", core_error)) return NULL;
    return module;
}
