/* What the kernel says of a process in /proc, read in C because the sandbox stands still meanwhile.
 */
#include "process_facts.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

/* (number, link, fdinfo) of each descriptor of a process. In C, because the sandbox stands still
 * meanwhile. fdinfo is None where it is longer than the usual few lines. */
PyObject *core_descriptors(PyObject *self, PyObject *argument) {
    char path[64], link[4096], text[4096];
    (void)self;
    long pid = PyLong_AsLong(argument);
    if (pid == -1 && PyErr_Occurred()) return NULL;
    snprintf(path, sizeof path, "/proc/%ld/fd", pid);
    DIR *links = opendir(path);
    snprintf(path, sizeof path, "/proc/%ld/fdinfo", pid);
    int facts = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    PyObject *found =
        links && facts >= 0 ? PyList_New(0) : PyErr_SetFromErrnoWithFilename(PyExc_OSError, path);
    for (struct dirent *entry; found && (entry = readdir(links));) {
        if (entry->d_name[0] == '.') continue;
        ssize_t link_length = readlinkat(dirfd(links), entry->d_name, link, sizeof link);
        int file = openat(facts, entry->d_name, O_RDONLY | O_CLOEXEC);
        ssize_t length = file >= 0 ? read(file, text, sizeof text) : -1;
        if (file >= 0) close(file);
        if (link_length < 0 && errno == ENAMETOOLONG) link_length = (ssize_t)sizeof link;
        if (link_length < 0 || length < 0) {
            Py_CLEAR(found);
            PyErr_SetFromErrnoWithFilename(PyExc_OSError, path);
            break;
        }
        PyObject *one = Py_BuildValue("(iy#z#)", atoi(entry->d_name), link,
                                      link_length < (ssize_t)sizeof link ? link_length : (ssize_t)0,
                                      length < (ssize_t)sizeof text ? text : NULL, length);
        if (!one || PyList_Append(found, one)) Py_CLEAR(found);
        Py_XDECREF(one);
    }
    if (links) closedir(links);
    if (facts >= 0) close(facts);
    return found;
}

/* (resource, soft, hard) of each limit of a process; all bits set means no limit. */
PyObject *core_limits(PyObject *self, PyObject *argument) {
    (void)self;
    long pid = PyLong_AsLong(argument);
    if (pid == -1 && PyErr_Occurred()) return NULL;
    PyObject *limits = PyTuple_New(RLIM_NLIMITS);
    for (int kind = 0; limits && kind < RLIM_NLIMITS; kind++) {
        struct rlimit limit;
        if (prlimit((pid_t)pid, kind, NULL, &limit)) {
            Py_DECREF(limits);
            return PyErr_SetFromErrno(PyExc_OSError);
        }
        PyObject *one = Py_BuildValue("(iKK)", kind, (unsigned long long)limit.rlim_cur,
                                      (unsigned long long)limit.rlim_max);
        if (!one) {
            Py_DECREF(limits);
            return NULL;
        }
        PyTuple_SET_ITEM(limits, kind, one);
    }
    return limits;
}

/* struct procmap_query of linux/fs.h, Linux 6.11 */
typedef struct {
    uint64_t size, query_flags, query_address, start, end, flags, page_size, offset, inode;
    uint32_t device_major, device_minor, name_size, build_id_size;
    uint64_t name_address, build_id_address;
} map_query;
enum { QUERY_SHARED_AND_NEXT = 0x08 | 0x10, MAP_NAME_BYTES = 4096 };
#define PROCMAP_QUERY_REQUEST _IOWR(0x66, 17, map_query)

/* (start, end, protection, offset, inode, name) of each shared mapping; the kernel itself skips the
 * private ones. A name that is too long is empty. None: the kernel does not know the request.
 */
PyObject *core_shared_maps(PyObject *self, PyObject *arguments) {
    int maps, most;
    uint64_t address = 0;
    char name[MAP_NAME_BYTES];
    (void)self;
    if (!PyArg_ParseTuple(arguments, "ii", &maps, &most)) return NULL;
    PyObject *found = PyList_New(0);
    while (found && PyList_GET_SIZE(found) < most) {
        map_query query = {.size = sizeof query,
                           .query_flags = QUERY_SHARED_AND_NEXT,
                           .query_address = address,
                           .name_size = sizeof name,
                           .name_address = (uint64_t)name};
        name[0] = 0;
        int failed = ioctl(maps, PROCMAP_QUERY_REQUEST, &query);
        if (failed && errno == ENAMETOOLONG) {
            query.name_size = 0;
            query.name_address = 0;
            failed = ioctl(maps, PROCMAP_QUERY_REQUEST, &query);
        }
        if (failed && errno == ENOENT) return found;
        if (failed) {
            int unknown = errno == ENOTTY; /* a kernel without this request */
            Py_DECREF(found);
            return unknown ? Py_NewRef(Py_None) : PyErr_SetFromErrno(PyExc_OSError);
        }
        PyObject *one = Py_BuildValue("(KKiKKy)", query.start, query.end, (int)(query.flags & 7),
                                      query.offset, query.inode, name);
        if (!one || PyList_Append(found, one)) Py_CLEAR(found);
        Py_XDECREF(one);
        address = query.end;
    }
    return found;
}
