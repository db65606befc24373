/* Copies one file, link, fifo, socket or whiteout from one folder to another. */
#include "copytree.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { DATA_BYTES = 256 * 1024, NAMES_BYTES = 65536, VALUE_BYTES = 65536, SENT_AT_ONCE = 1 << 24 };
#define OVERLAY_ATTRIBUTES "user.overlay."

int copy_fail(struct copy_failure *why, const char *what, const char *name) {
    why->error = errno ? errno : EIO;
    if (name)
        snprintf(why->step, sizeof why->step, "%s \"%s\"", what, name);
    else
        snprintf(why->step, sizeof why->step, "%s", what);
    /* The name comes from a sandbox, and the message is printed on terminals. */
    for (char *at = why->step; *at; at++)
        if (*at < ' ' || *at > '~') *at = '?';
    return -1;
}

int copy_buffers_make(struct copy_buffers *buffers, struct copy_failure *why) {
    buffers->data = malloc(DATA_BYTES);
    buffers->names = malloc(NAMES_BYTES);
    buffers->value = malloc(VALUE_BYTES);
    if (buffers->data && buffers->names && buffers->value) return 0;
    copy_buffers_free(buffers);
    errno = ENOMEM;
    return copy_fail(why, "make room for copying", NULL);
}

void copy_buffers_free(struct copy_buffers *buffers) {
    free(buffers->data);
    free(buffers->names);
    free(buffers->value);
    memset(buffers, 0, sizeof *buffers);
}

int is_whiteout(const struct stat *found) { return S_ISCHR(found->st_mode) && found->st_rdev == 0; }

static int open_to_read(int parent, const char *name, int flags) {
    /* The sandbox may swap a file for a fifo between our look and the open: O_NONBLOCK keeps us
     * from waiting for its other end. O_NOATIME: a copy must not change the original's times. */
    flags |= O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    int opened = openat(parent, name, flags | O_NOATIME);
    return opened >= 0 || errno != EPERM ? opened : openat(parent, name, flags);
}

int open_folder(int parent, const char *name) { return open_to_read(parent, name, O_DIRECTORY); }

static int copy_range(int from, int to, off_t at, off_t end, char *buffer, uint64_t *bytes) {
    if (lseek(to, at, SEEK_SET) < 0) return -1;
    while (at < end) {
        size_t wanted = end - at > SENT_AT_ONCE ? SENT_AT_ONCE : (size_t)(end - at);
        off_t before = at;
        ssize_t count = sendfile(to, from, &at, wanted);
        /* Not every file system can splice. */
        if (count < 0 && (errno == EINVAL || errno == ENOSYS)) {
            count = pread(from, buffer, wanted > DATA_BYTES ? DATA_BYTES : wanted, before);
            if (count > 0) count = pwrite(to, buffer, (size_t)count, before);
            if (count > 0 && lseek(to, before + count, SEEK_SET) < 0) return -1;
            at = before + (count > 0 ? count : 0);
        }
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return -1;
        if (count == 0) return 0; /* the sandbox has shortened it meanwhile */
        *bytes += (uint64_t)count;
    }
    return 0;
}

static int copy_content(int from, int to, const struct stat *found, char *buffer, uint64_t *bytes) {
    off_t size = found->st_size, at = 0;
    int dense = (uint64_t)found->st_blocks * 512 >= (uint64_t)size;
    if (size == 0) return 0;
    if (dense && size <= DATA_BYTES) {
        ssize_t count = pread(from, buffer, (size_t)size, 0);
        if (count <= 0) return (int)count;
        *bytes += (uint64_t)count;
        ssize_t written = pwrite(to, buffer, (size_t)count, 0);
        if (written >= 0 && written < count) errno = ENOSPC;
        return written == count ? 0 : -1;
    }
    /* A tmpfs that knows the size first takes huge pages at once; in a file with holes they would
     * fill the holes. */
    if (dense && ftruncate(to, size)) return -1;
    while (at < size) {
        off_t start = lseek(from, at, SEEK_DATA);
        if (start < 0 && errno == ENXIO) break; /* nothing but a hole from here on */
        if (start < 0) return -1;
        off_t end = lseek(from, start, SEEK_HOLE);
        if (end < 0 || end > size) end = size;
        if (start >= end) break;
        if (copy_range(from, to, start, end, buffer, bytes)) return -1;
        at = end;
    }
    return dense ? 0 : ftruncate(to, size);
}

static int copy_attributes(int from, int to, int overlay, struct copy_buffers *buffers) {
    ssize_t length = flistxattr(from, buffers->names, NAMES_BYTES);
    if (length < 0) return errno == EOPNOTSUPP ? 0 : -1;
    for (char *name = buffers->names; name < buffers->names + length; name += strlen(name) + 1) {
        if (!overlay && !strncmp(name, OVERLAY_ATTRIBUTES, strlen(OVERLAY_ATTRIBUTES))) continue;
        ssize_t size = fgetxattr(from, name, buffers->value, VALUE_BYTES);
        if (size < 0) continue; /* it is gone, or we may not read it */
        /* A sandbox can set only attributes named user.*; others that we cannot set are not its
         * own.
         */
        if (fsetxattr(to, name, buffers->value, (size_t)size, 0) && !strncmp(name, "user.", 5))
            return -1;
    }
    return 0;
}

static int is_other_owner(const struct stat *found) {
    return found->st_uid != geteuid() || found->st_gid != getegid();
}

static int copy_metadata(int from, int to, const struct stat *found, int overlay,
                         struct copy_buffers *buffers) {
    const struct timespec times[2] = {found->st_atim, found->st_mtim};
    if (copy_attributes(from, to, overlay, buffers)) return -1;
    if (is_other_owner(found) && fchown(to, found->st_uid, found->st_gid)) return -1;
    /* After the owner, because a change of owner clears set-id bits. */
    if (fchmod(to, found->st_mode & 07777)) return -1;
    return futimens(to, times);
}

int copy_folder_attributes(int from, int to, const struct stat *found, int overlay,
                           struct copy_buffers *buffers, struct copy_failure *why) {
    if (!copy_metadata(from, to, found, overlay, buffers)) return 0;
    return copy_fail(why, "set the attributes of a folder", NULL);
}

static int copy_file(int from, int to, const char *name, const char *new_name,
                     struct copy_buffers *buffers, uint64_t *bytes, int *made,
                     struct copy_failure *why) {
    struct stat found;
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int source = open_to_read(from, name, 0), target = -1, result = -1;
    if (source < 0) return errno == ENOENT ? 0 : copy_fail(why, "open", name);
    if (fstat(source, &found) || !S_ISREG(found.st_mode)) {
        errno = ESTALE;
        copy_fail(why, "open", name);
    } else if ((target = openat(to, new_name, flags, 0600)) < 0) {
        copy_fail(why, "create", name);
    } else if (copy_content(source, target, &found, buffers->data, bytes)) {
        copy_fail(why, "copy the content of", name);
    } else if (copy_metadata(source, target, &found, 1, buffers)) {
        copy_fail(why, "set the attributes of", name);
    } else {
        *made = 1;
        result = 0;
    }
    if (target >= 0) close(target);
    close(source);
    return result;
}

static int copy_node(int from, int to, const char *name, const char *new_name,
                     const struct stat *found, struct copy_buffers *buffers) {
    const struct timespec times[2] = {found->st_atim, found->st_mtim};
    if (S_ISLNK(found->st_mode)) {
        ssize_t length = readlinkat(from, name, buffers->data, DATA_BYTES - 1);
        if (length < 0) return -1;
        buffers->data[length] = 0;
        if (symlinkat(buffers->data, to, new_name)) return -1;
    } else {
        if (S_ISBLK(found->st_mode) || (S_ISCHR(found->st_mode) && !is_whiteout(found))) {
            errno = EPERM; /* no sandbox can make one */
            return -1;
        }
        if (mknodat(to, new_name, found->st_mode & (S_IFMT | 0777), 0)) return -1;
        if (is_whiteout(found)) return 0;
    }
    if (is_other_owner(found) &&
        fchownat(to, new_name, found->st_uid, found->st_gid, AT_SYMLINK_NOFOLLOW))
        return -1;
    if (!S_ISLNK(found->st_mode) && fchmodat(to, new_name, found->st_mode & 07777, 0)) return -1;
    return utimensat(to, new_name, times, AT_SYMLINK_NOFOLLOW);
}

int copy_entry(int from, int to, const char *name, const char *new_name, const struct stat *found,
               struct copy_buffers *buffers, uint64_t *bytes, int *made, struct copy_failure *why) {
    *made = 0;
    if (S_ISREG(found->st_mode))
        return copy_file(from, to, name, new_name, buffers, bytes, made, why);
    if (copy_node(from, to, name, new_name, found, buffers)) return copy_fail(why, "make", name);
    *made = 1;
    return 0;
}

int is_opaque(int folder) {
    char value = 0;
    return fgetxattr(folder, OVERLAY_ATTRIBUTES "opaque", &value, 1) == 1 && value == 'y';
}

int make_opaque(int folder, struct copy_failure *why) {
    if (!fsetxattr(folder, OVERLAY_ATTRIBUTES "opaque", "y", 1, 0)) return 0;
    return copy_fail(why, "hide the layers below a folder", NULL);
}
