/* ramet.isolation._files: copies and compares the files of sandboxes for the engine. Every long
 * call releases the GIL. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include "../copytree.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SYS_FSOPEN = 430, SYS_FSCONFIG = 431, SYS_FSMOUNT = 432, SYS_MOUNT_SETATTR = 442 };
enum { SET_STRING = 1, CREATE = 6, CLOEXEC = 1, ATTR_RDONLY = 1, ATTR_NOSUID = 2, ATTR_NODEV = 4 };

static PyObject *failed(const struct copy_failure *why) {
    char text[512];
    snprintf(text, sizeof text, "%s: %s", why->step, strerror(why->error));
    /* Names are bytes that a sandbox has chosen: any bytes must make a string. */
    PyObject *message = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    PyObject *arguments = message ? Py_BuildValue("(iN)", why->error, message) : NULL;
    if (arguments) {
        PyErr_SetObject(PyExc_OSError, arguments);
        Py_DECREF(arguments);
    }
    return NULL;
}

static PyObject *make_tmpfs(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long size, inodes;
    char size_text[32], inode_text[32];
    struct copy_failure why = {0, "mount a tmpfs"};
    int mounted = -1;
    if (!PyArg_ParseTuple(args, "KK", &size, &inodes)) return NULL;
    snprintf(size_text, sizeof size_text, "%llu", size);
    snprintf(inode_text, sizeof inode_text, "%llu", inodes);
    Py_BEGIN_ALLOW_THREADS;
    int context = (int)syscall(SYS_FSOPEN, "tmpfs", CLOEXEC);
    if (context >= 0) {
        /* It may fail: a kernel without huge pages uses small ones. */
        syscall(SYS_FSCONFIG, context, SET_STRING, "huge", "within_size", 0);
        if (!syscall(SYS_FSCONFIG, context, SET_STRING, "size", size_text, 0) &&
            !syscall(SYS_FSCONFIG, context, SET_STRING, "nr_inodes", inode_text, 0) &&
            !syscall(SYS_FSCONFIG, context, SET_STRING, "mode", "700", 0) &&
            !syscall(SYS_FSCONFIG, context, CREATE, NULL, NULL, 0))
            mounted = (int)syscall(SYS_FSMOUNT, context, CLOEXEC, ATTR_NOSUID | ATTR_NODEV);
    }
    why.error = errno;
    if (context >= 0) close(context);
    Py_END_ALLOW_THREADS;
    return mounted < 0 ? failed(&why) : PyLong_FromLong(mounted);
}

static PyObject *seal(PyObject *self, PyObject *args) {
    (void)self;
    int mount;
    struct {
        uint64_t set, clear, propagation, user_namespace;
    } attributes = {.set = ATTR_RDONLY};
    struct copy_failure why = {0, "seal a layer"};
    if (!PyArg_ParseTuple(args, "i", &mount)) return NULL;
    if (!syscall(SYS_MOUNT_SETATTR, mount, "", AT_EMPTY_PATH, &attributes, sizeof attributes))
        Py_RETURN_NONE;
    why.error = errno;
    return failed(&why);
}

static PyObject *copied(struct copy_report *report, int result, const struct copy_failure *why) {
    PyObject *answer = NULL;
    if (result)
        failed(why);
    else
        answer = Py_BuildValue(
            "(KKKy#)", (unsigned long long)report->bytes, (unsigned long long)report->entries,
            (unsigned long long)report->folders, report->numbers ? (char *)report->numbers : "",
            (Py_ssize_t)(report->number_count * sizeof *report->numbers));
    free(report->numbers);
    return answer;
}

static PyObject *copy_tree_(PyObject *self, PyObject *args) {
    (void)self;
    int from, to, links, fill, numbers, result;
    struct copy_failure why = {0};
    if (!PyArg_ParseTuple(args, "iiipp", &from, &to, &links, &fill, &numbers)) return NULL;
    struct copy_report report = {.keep_numbers = numbers};
    Py_BEGIN_ALLOW_THREADS;
    result = copy_tree(from, to, links, fill, &report, &why);
    Py_END_ALLOW_THREADS;
    return copied(&report, result, &why);
}

static PyObject *copy_numbered_(PyObject *self, PyObject *args) {
    (void)self;
    int from, to, result;
    PyObject *names;
    Py_buffer numbers;
    unsigned long long most_skipped;
    const char *list[64];
    struct copy_failure why = {0};
    struct copy_report report = {0};
    if (!PyArg_ParseTuple(args, "iiO!y*K", &from, &to, &PyTuple_Type, &names, &numbers,
                          &most_skipped))
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(names);
    if (count > 64) {
        PyBuffer_Release(&numbers);
        PyErr_SetString(PyExc_ValueError, "too many folders");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        list[i] = PyUnicode_AsUTF8(PyTuple_GET_ITEM(names, i));
        if (!list[i]) {
            PyBuffer_Release(&numbers);
            return NULL;
        }
    }
    Py_BEGIN_ALLOW_THREADS;
    result = copy_numbered(from, to, list, (int)count, numbers.buf,
                           (size_t)numbers.len / sizeof(uint64_t), most_skipped, &report, &why);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&numbers);
    return copied(&report, result, &why);
}

static PyObject *copy_file_(PyObject *self, PyObject *args) {
    (void)self;
    int from, to, made = 0, result;
    PyObject *name;
    struct stat found;
    struct copy_buffers buffers = {0};
    struct copy_failure why = {0};
    uint64_t bytes = 0;
    if (!PyArg_ParseTuple(args, "iiO&", &from, &to, PyUnicode_FSConverter, &name)) return NULL;
    const char *text = PyBytes_AS_STRING(name);
    Py_BEGIN_ALLOW_THREADS;
    errno = 0;
    if (fstatat(from, text, &found, AT_SYMLINK_NOFOLLOW))
        result = copy_fail(&why, "look at", text);
    else if (S_ISDIR(found.st_mode)) {
        errno = EISDIR;
        result = copy_fail(&why, "copy", text);
    } else if (!(result = copy_buffers_make(&buffers, &why)))
        result = copy_entry(from, to, text, text, &found, &buffers, &bytes, &made, &why);
    copy_buffers_free(&buffers);
    Py_END_ALLOW_THREADS;
    Py_DECREF(name);
    return result ? failed(&why) : PyLong_FromUnsignedLongLong(bytes);
}

static PyObject *copy_top_(PyObject *self, PyObject *args) {
    (void)self;
    int from, to, result;
    struct stat found;
    struct copy_buffers buffers = {0};
    struct copy_failure why = {0};
    if (!PyArg_ParseTuple(args, "ii", &from, &to)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    errno = 0;
    if (fstat(from, &found))
        result = copy_fail(&why, "look at a folder", NULL);
    else if (!(result = copy_buffers_make(&buffers, &why)))
        result = copy_folder_attributes(from, to, &found, 0, &buffers, &why);
    copy_buffers_free(&buffers);
    Py_END_ALLOW_THREADS;
    if (result) return failed(&why);
    Py_RETURN_NONE;
}

enum {
    SYS_OPENAT2 = 437,
    NO_XDEV = 0x01,
    NO_MAGICLINKS = 0x02,
    NO_SYMLINKS = 0x04,
    BENEATH = 0x08,
    BLOCK = 65536
};

static int open_regular(int folder, const char *name, struct stat *found) {
    struct {
        uint64_t flags, mode, resolve;
    } how = {O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0,
             NO_XDEV | NO_MAGICLINKS | NO_SYMLINKS | BENEATH};
    if (fstatat(folder, name, found, AT_SYMLINK_NOFOLLOW) || !S_ISREG(found->st_mode)) return -1;
    int file = (int)syscall(SYS_OPENAT2, folder, name, &how, sizeof how);
    if (file >= 0 && !fstat(file, found) && S_ISREG(found->st_mode)) return file;
    if (file >= 0) close(file);
    return -1;
}

enum verdict { UNREAD = -1, DIFFERENT = 0, SAME = 1 };

/* The bounds of one comparison. Another thread sets `stop`: volatile, to be read each time. */
struct bounds {
    const volatile char *stop;
    double until; /* of CLOCK_MONOTONIC */
    unsigned long long bytes_left;
};

static int is_over(const struct bounds *bounds) {
    struct timespec now;
    if (*bounds->stop || bounds->bytes_left == 0) return 1;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9 > bounds->until;
}

static off_t next_data(int file, off_t at, off_t size) {
    off_t found = lseek(file, at, SEEK_DATA);
    return found < 0 || found > size ? size : found; /* ENXIO: nothing but a hole from here on */
}

/* Where a range that begins at `at`, and is a hole or is data throughout, ends. `data`: where the
 * next data of the file begins. */
static off_t end_of_range(int file, off_t at, off_t data, off_t size) {
    if (data > at) return data;
    off_t end = lseek(file, at, SEEK_HOLE);
    return end < 0 || end > size ? size : end;
}

/* Both are of the same size. A hole is equal to a hole of any length without being read, so that
 * the time depends on what is there: a file of 2^60 bytes costs a sandbox nothing. */
static enum verdict compare_contents(int one, int other, off_t size, struct bounds *bounds) {
    char mine[BLOCK], theirs[BLOCK];
    for (off_t at = 0;;) {
        off_t my_data = next_data(one, at, size), their_data = next_data(other, at, size);
        at = my_data < their_data ? my_data : their_data;
        if (at >= size) return SAME;
        off_t my_end = end_of_range(one, at, my_data, size),
              their_end = end_of_range(other, at, their_data, size);
        off_t end = my_end < their_end ? my_end : their_end;
        /* The sandbox has made a hole there meanwhile: the loop must make progress all the same. */
        if (end <= at) end = at + 1;
        while (at < end) {
            size_t wanted = end - at > BLOCK ? BLOCK : (size_t)(end - at);
            if (is_over(bounds)) return UNREAD;
            ssize_t count = pread(one, mine, wanted, at), same = pread(other, theirs, wanted, at);
            if (count <= 0 || count != same || memcmp(mine, theirs, (size_t)count))
                return DIFFERENT;
            bounds->bytes_left -= (unsigned long long)count < bounds->bytes_left
                                      ? (unsigned long long)count
                                      : bounds->bytes_left;
            at += count;
        }
    }
}

static PyObject *compare_files_(PyObject *self, PyObject *args) {
    (void)self;
    int one, other;
    enum verdict result = DIFFERENT;
    PyObject *name;
    Py_buffer stop;
    struct stat mine, theirs;
    struct bounds bounds = {0};
    if (!PyArg_ParseTuple(args, "iiO&Kdw*", &one, &other, PyUnicode_FSConverter, &name,
                          &bounds.bytes_left, &bounds.until, &stop))
        return NULL;
    if (stop.len < 1) {
        PyBuffer_Release(&stop);
        Py_DECREF(name);
        PyErr_SetString(PyExc_ValueError, "stop has no room for a flag");
        return NULL;
    }
    unsigned long long allowed = bounds.bytes_left;
    bounds.stop = stop.buf;
    Py_BEGIN_ALLOW_THREADS;
    int first = open_regular(one, PyBytes_AS_STRING(name), &mine);
    int second = first < 0 ? -1 : open_regular(other, PyBytes_AS_STRING(name), &theirs);
    if (second >= 0) {
        if (mine.st_mode == theirs.st_mode && mine.st_size == theirs.st_size)
            result = compare_contents(first, second, mine.st_size, &bounds);
        close(second);
    }
    if (first >= 0) close(first);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&stop);
    Py_DECREF(name);
    return Py_BuildValue("(iK)", (int)result, allowed - bounds.bytes_left);
}

static PyMethodDef methods[] = {
    {"make_tmpfs", make_tmpfs, METH_VARARGS,
     "make_tmpfs(size_bytes, inodes): a tmpfs that is mounted nowhere, as a descriptor."},
    {"seal", seal, METH_VARARGS, "seal(mount): nobody can write through this mount any more."},
    {"copy_tree", copy_tree_, METH_VARARGS,
     "copy_tree(from, to, links, fill, numbers): bytes, entries, folders, inode numbers; see "
     "native/copytree.h."},
    {"copy_numbered", copy_numbered_, METH_VARARGS,
     "copy_numbered(from, to, names, numbers, most_skipped): bytes, entries, folders, nothing; see "
     "native/copytree.h."},
    {"copy_file", copy_file_, METH_VARARGS,
     "copy_file(from, to, name): bytes of one file, copied from one folder to another."},
    {"copy_top", copy_top_, METH_VARARGS,
     "copy_top(from, to): attributes of a folder, except those by which overlays join and hide "
     "layers."},
    {"compare_files", compare_files_, METH_VARARGS,
     "compare_files(one, other, name, most_bytes, until, stop): whether both folders have a "
     "regular file of that name, with the same "
     "mode and content (1, 0, or -1 where that would have taken too long), and how many bytes were "
     "read of each."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "ramet.isolation._files", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__files(void) { return PyModule_Create(&definition); }
