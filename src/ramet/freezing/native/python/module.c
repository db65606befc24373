/* ramet.freezing._core: the Python interface. Each call releases the GIL. Calls about a snapshot
 * must come from the thread that froze it: ptrace allows no other. */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include "../image.h"
#include "../live.h"
#include "../snapshot.h"
#include "plans.h"
#include "process_facts.h"
#include "processor.h"
#include <sys/syscall.h>
#include <unistd.h>

static PyObject *core_error;     /* (step, errno) */
static PyObject *replaced_error; /* a subclass: the REPL has called exec */
static const char capsule_name[] = "ramet.freezing.snapshot";
static const char paused_name[] = "ramet.freezing.paused";

static PyObject *raise_failure(const failure *why) {
    PyObject *arguments = Py_BuildValue("(si)", why->step, why->error);
    if (arguments) PyErr_SetObject(why->replaced ? replaced_error : core_error, arguments);
    Py_XDECREF(arguments);
    return NULL;
}

static void capsule_free(PyObject *capsule) {
    snapshot *taken = PyCapsule_GetPointer(capsule, capsule_name);
    if (!taken) return;
    snapshot_free(taken);
    PyMem_Free(taken);
}

/* The snapshot as Python holds it; or its failure, and nothing is left of it. */
static PyObject *as_capsule(snapshot *made, int result, const failure *why) {
    if (!result) return PyCapsule_New(made, capsule_name, capsule_free);
    snapshot_free(made);
    PyMem_Free(made);
    return raise_failure(why);
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
    if (result) end_snapshot(taken);
    Py_END_ALLOW_THREADS;
    return as_capsule(taken, result, &why);
}

static PyObject *core_end_snapshot(PyObject *self, PyObject *capsule) {
    (void)self;
    snapshot *taken = PyCapsule_GetPointer(capsule, capsule_name);
    if (!taken) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    end_snapshot(taken);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static snapshot *held_snapshot(PyObject *capsule) {
    snapshot *from = PyCapsule_GetPointer(capsule, capsule_name);
    if (from && from->tracer != (pid_t)syscall(SYS_gettid)) {
        PyErr_SetString(PyExc_RuntimeError,
                        "a snapshot may be used only by the thread that froze it");
        return NULL;
    }
    return from;
}

static PyObject *core_thaw(PyObject *self, PyObject *arguments) {
    PyObject *capsule, *calls, *powerless, *children, *namespaces;
    thaw_plan plan = {0};
    thawed made;
    failure why = {0};
    double seconds;
    int result;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OiiO!iiO!O!O!ppd", &capsule, &plan.pod_init, &plan.pod_root,
                          &PyTuple_Type, &namespaces, &plan.main_pid, &plan.cgroup_count,
                          &PyTuple_Type, &calls, &PyTuple_Type, &powerless, &PyTuple_Type,
                          &children, &plan.consume, &plan.more, &seconds))
        return NULL;
    snapshot *from = held_snapshot(capsule);
    if (!from || read_namespaces(namespaces, &plan)) return NULL;
    given_call *given = read_given(calls, &plan.given_count);
    given_call *later = given ? read_given(powerless, &plan.powerless_count) : NULL;
    dead_child *dead = later ? read_children(children, &plan.child_count) : NULL;
    if (!dead) {
        PyMem_Free(given);
        PyMem_Free(later);
        return NULL;
    }
    plan.given = given;
    plan.powerless = later;
    plan.children = dead;
    Py_BEGIN_ALLOW_THREADS;
    result = deadline_begin(seconds, &why) || thaw(from, &plan, &made, &why);
    deadline_end();
    Py_END_ALLOW_THREADS;
    PyMem_Free(given);
    PyMem_Free(later);
    PyMem_Free(dead);
    if (result) return raise_failure(&why);
    return Py_BuildValue("(iiii(dddd))", made.shadow, made.shadow_pidfd, made.repl, made.repl_pidfd,
                         made.microseconds[0], made.microseconds[1], made.microseconds[2],
                         made.microseconds[3]);
}

/* Ends a pause that Python has dropped, because of an exception for instance: the sandbox must not
 * stay stopped. */
static void paused_free(PyObject *capsule) {
    paused *p = PyCapsule_GetPointer(capsule, paused_name);
    if (!p) return;
    resume_live(p);
    PyMem_Free((void *)p->before);
    PyMem_Free(p);
}

static PyObject *core_pause(PyObject *self, PyObject *arguments) {
    failure why = {0};
    double seconds;
    int result;
    Py_buffer before;
    PyObject *terminals;
    unsigned long long syscall_at;
    (void)self;
    paused *p = PyMem_Calloc(1, sizeof *p);
    if (!p) return PyErr_NoMemory();
    if (!PyArg_ParseTuple(arguments, "iiiiO!Ky*d", &p->repl, &p->own_pidfds[0], &p->shadow,
                          &p->init, &PyTuple_Type, &terminals, &syscall_at, &before, &seconds)) {
        PyMem_Free(p);
        return NULL;
    }
    p->own[0] = p->repl;
    p->own_count = 1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(terminals); i++, p->own_count++) {
        if (p->own_count < MAX_OWN &&
            PyArg_ParseTuple(PyTuple_GET_ITEM(terminals, i), "ii", &p->own[p->own_count],
                             &p->own_pidfds[p->own_count]))
            continue;
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "too many terminals");
        PyBuffer_Release(&before);
        PyMem_Free(p);
        return NULL;
    }
    timed_call *kept = PyMem_Malloc((size_t)before.len + 1);
    if (kept) memcpy(kept, before.buf, (size_t)before.len);
    p->syscall_at = syscall_at;
    p->before = kept;
    p->before_count = kept ? (int)((size_t)before.len / sizeof *kept) : 0;
    PyBuffer_Release(&before);
    Py_BEGIN_ALLOW_THREADS;
    result = deadline_begin(seconds, &why) || pause_live(p, &why);
    deadline_end();
    Py_END_ALLOW_THREADS;
    if (result) {
        PyMem_Free(kept);
        PyMem_Free(p);
        return raise_failure(&why);
    }
    return PyCapsule_New(p, paused_name, paused_free);
}

/* Ids of the threads in their own namespace, main first. */
static PyObject *inner_ids(const snapshot *from) {
    PyObject *ids = PyTuple_New(from->thread_count);
    for (int i = 0; ids && i < from->thread_count; i++)
        PyTuple_SET_ITEM(ids, i, PyLong_FromLong(from->threads[i].inner_tid));
    return ids;
}

static PyObject *core_paused_facts(PyObject *self, PyObject *capsule) {
    (void)self;
    paused *p = PyCapsule_GetPointer(capsule, paused_name);
    if (!p) return NULL;
    PyObject *children = PyTuple_New(p->child_count), *processes = PyList_New(0);
    for (int i = 0; children && i < p->child_count; i++)
        PyTuple_SET_ITEM(children, i, PyLong_FromLong(p->children[i]));
    for (int i = 0; processes && i < p->task_count; i++) {
        if (!p->tasks[i].tid || p->tasks[i].tid != p->tasks[i].leader) continue;
        PyObject *pid = PyLong_FromLong(p->tasks[i].leader);
        if (!pid || PyList_Append(processes, pid)) Py_CLEAR(processes);
        Py_XDECREF(pid);
    }
    PyObject *ids = inner_ids(&p->taken);
    if (!children || !processes || !ids) {
        Py_XDECREF(children);
        Py_XDECREF(processes);
        Py_XDECREF(ids);
        return NULL;
    }
    return Py_BuildValue("(NNy#y#N)", children, processes, (const char *)p->timers,
                         (Py_ssize_t)sizeof p->timers, (const char *)p->timed,
                         (Py_ssize_t)p->timed_count * (Py_ssize_t)sizeof *p->timed, ids);
}

static PyObject *core_copy(PyObject *self, PyObject *arguments) {
    PyObject *capsule, *calls;
    failure why = {0};
    double seconds;
    int result, count = 0;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OO!d", &capsule, &PyTuple_Type, &calls, &seconds))
        return NULL;
    paused *p = PyCapsule_GetPointer(capsule, paused_name);
    if (!p) return NULL;
    given_call *given = read_given(calls, &count);
    snapshot *taken = PyMem_Calloc(1, sizeof *taken);
    if (!given || !taken) {
        PyMem_Free(given);
        PyMem_Free(taken);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    result = deadline_begin(seconds, &why) || copy_live(p, given, count, taken, &why);
    deadline_end();
    Py_END_ALLOW_THREADS;
    PyMem_Free(given);
    if (result) {
        PyMem_Free(taken);
        return raise_failure(&why);
    }
    return PyCapsule_New(taken, capsule_name, capsule_free);
}

static PyObject *core_resume(PyObject *self, PyObject *capsule) {
    (void)self;
    paused *p = PyCapsule_GetPointer(capsule, paused_name);
    if (!p) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    resume_live(p);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *core_serve_stragglers(PyObject *self, PyObject *nothing) {
    int left;
    (void)self;
    (void)nothing;
    Py_BEGIN_ALLOW_THREADS;
    left = serve_stragglers();
    Py_END_ALLOW_THREADS;
    return PyLong_FromLong(left);
}

static PyObject *core_sweep_faults(PyObject *self, PyObject *nothing) {
    (void)self;
    (void)nothing;
    fault_sweep();
    Py_RETURN_NONE;
}

static PyObject *core_syscall_at(PyObject *self, PyObject *capsule) {
    (void)self;
    const snapshot *from = PyCapsule_GetPointer(capsule, capsule_name);
    return from ? PyLong_FromUnsignedLongLong(from->syscall_at) : NULL;
}

static PyObject *core_shadow(PyObject *self, PyObject *capsule) {
    (void)self;
    const snapshot *from = PyCapsule_GetPointer(capsule, capsule_name);
    return from ? PyLong_FromLong(from->shadow) : NULL;
}

static PyObject *core_thread_ids(PyObject *self, PyObject *capsule) {
    (void)self;
    const snapshot *from = PyCapsule_GetPointer(capsule, capsule_name);
    return from ? inner_ids(from) : NULL;
}

static PyObject *core_stands_in(PyObject *self, PyObject *arguments) {
    PyObject *capsule;
    unsigned long long start, end;
    int found = 0;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OKK", &capsule, &start, &end)) return NULL;
    const snapshot *from = PyCapsule_GetPointer(capsule, capsule_name);
    if (!from) return NULL;
    for (int i = 0; i < from->thread_count; i++)
        found |= arch_instruction(&from->threads[i].registers) - start < end - start;
    return PyBool_FromLong(found);
}

static PyObject *core_usable(PyObject *self, PyObject *capsule) {
    registers r;
    failure why;
    (void)self;
    const snapshot *from = PyCapsule_GetPointer(capsule, capsule_name);
    if (!from) return NULL;
    /* ptrace reads the registers only of a task that is stopped under our hand. */
    return PyBool_FromLong(!read_registers(from->shadow, &r, &why));
}

static PyObject *core_states(PyObject *self, PyObject *arguments) {
    PyObject *capsule;
    failure why = {0};
    double seconds;
    uint64_t heap_end = 0;
    unsigned char actions[SIGNALS * ACTION_BYTES];
    int result;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "Od", &capsule, &seconds)) return NULL;
    const snapshot *from = held_snapshot(capsule);
    if (!from) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    result = deadline_begin(seconds, &why) || ask_shadow(from, &heap_end, actions, &why);
    deadline_end();
    Py_END_ALLOW_THREADS;
    if (result) return raise_failure(&why);
    PyObject *states = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)states_size(from));
    if (!states) return NULL;
    states_write(from, (unsigned char *)PyBytes_AS_STRING(states));
    return Py_BuildValue("(NKy#)", states, heap_end, (const char *)actions,
                         (Py_ssize_t)sizeof actions);
}

static PyObject *core_hold_blank(PyObject *self, PyObject *arguments) {
    failure why = {0};
    double seconds;
    int pid, result;
    Py_buffer states;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "iy*d", &pid, &states, &seconds)) return NULL;
    snapshot *made = PyMem_Calloc(1, sizeof *made);
    if (!made) {
        PyBuffer_Release(&states);
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS;
    result = deadline_begin(seconds, &why) ||
             hold_blank(pid, states.buf, (size_t)states.len, made, &why);
    deadline_end();
    if (result) end_snapshot(made);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&states);
    return as_capsule(made, result, &why);
}

static PyObject *core_pour(PyObject *self, PyObject *arguments) {
    PyObject *capsule, *calls;
    failure why = {0};
    double seconds;
    int result, count = 0;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OO!d", &capsule, &PyTuple_Type, &calls, &seconds))
        return NULL;
    snapshot *into = held_snapshot(capsule);
    if (!into) return NULL;
    given_call *given = read_given(calls, &count);
    if (!given) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    result = deadline_begin(seconds, &why) || pour(into, given, count, &why);
    deadline_end();
    Py_END_ALLOW_THREADS;
    PyMem_Free(given);
    if (result) return raise_failure(&why);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"freeze_template", core_freeze_template, METH_VARARGS,
     "freeze_template(pid, control_descriptor, seconds) -> snapshot"},
    {"thaw", core_thaw, METH_VARARGS,
     "thaw(snapshot, pod_init, pod_root, namespaces, main_pid, cgroups, calls, powerless calls, "
     "children, consume, more, seconds) -> (shadow, its pidfd, repl, its pidfd, microseconds)"},
    {"pause", core_pause, METH_VARARGS,
     "pause(repl, its pidfd, shadow, init, ((leader of a terminal, its pidfd), ...), syscall_at, "
     "timed, seconds) -> paused: a live sandbox, stopped and read"},
    {"paused_facts", core_paused_facts, METH_O,
     "paused_facts(paused) -> (children of the REPL, processes of the pod, interval timers, timed "
     "calls, thread ids)"},
    {"copy", core_copy, METH_VARARGS,
     "copy(paused, calls, seconds) -> snapshot of it, whose shadow has made the calls"},
    {"resume", core_resume, METH_O, "resume(paused): let it go on"},
    {"serve_stragglers", core_serve_stragglers, METH_NOARGS,
     "serve_stragglers() -> how many tasks could still not be let go"},
    {"descriptors", core_descriptors, METH_O,
     "descriptors(pid) -> [(number, link, text of fdinfo or None)]; a link that is too long is "
     "empty"},
    {"limits", core_limits, METH_O, "limits(pid) -> ((resource, soft, hard), ...)"},
    {"shared_maps", core_shared_maps, METH_VARARGS,
     "shared_maps(descriptor of maps, most) -> [(start, end, protection, offset, inode, name)] or "
     "None"},
    {"sweep_faults", core_sweep_faults, METH_NOARGS,
     "sweep_faults(): for tests, let each fork fail one step later than the last"},
    {"syscall_at", core_syscall_at, METH_O,
     "syscall_at(snapshot) -> where its memory has a syscall instruction"},
    {"shadow", core_shadow, METH_O,
     "shadow(snapshot) -> pid of its shadow, 0 when it has none any more"},
    {"usable", core_usable, METH_O,
     "usable(snapshot) -> whether its shadow still stands where it was frozen"},
    {"end_snapshot", core_end_snapshot, METH_O,
     "end_snapshot(snapshot): kill and reap what it holds"},
    {"states", core_states, METH_VARARGS,
     "states(snapshot, seconds) -> (states of its threads, end of its heap, signal handlers)"},
    {"hold_blank", core_hold_blank, METH_VARARGS,
     "hold_blank(pid, states, seconds) -> snapshot whose shadow is an empty process"},
    {"pour", core_pour, METH_VARARGS,
     "pour(snapshot, calls, seconds): have its shadow make the calls that map its memory"},
    {"thread_ids", core_thread_ids, METH_O,
     "thread_ids(snapshot) -> ids of its threads, main first"},
    {"stands_in", core_stands_in, METH_VARARGS,
     "stands_in(snapshot, start, end) -> whether one of its threads runs code there"},
    {"cpuid", core_cpuid, METH_VARARGS, "cpuid(leaf, part) -> (eax, ebx, ecx, edx)"},
    {"enabled_states", core_enabled_states, METH_NOARGS,
     "enabled_states() -> bits of the register sets that the kernel keeps (XCR0)"},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                                        "_core",
                                        "Freeze and thaw: the ptrace sequences.",
                                        -1,
                                        methods,
                                        NULL,
                                        NULL,
                                        NULL,
                                        NULL};

PyMODINIT_FUNC PyInit__core(void) {
    PyObject *module = PyModule_Create(&definition);
    if (!module) return NULL;
    core_error = PyErr_NewException("ramet.freezing._core.FreezeError", PyExc_RuntimeError, NULL);
    if (!core_error || PyModule_AddObjectRef(module, "FreezeError", core_error)) return NULL;
    replaced_error = PyErr_NewException("ramet.freezing._core.ReplacedError", core_error, NULL);
    if (!replaced_error || PyModule_AddObjectRef(module, "ReplacedError", replaced_error))
        return NULL;
    return module;
}
