/* Shared by all parts of the helper program: raw system calls that older C libraries lack, and one
 * way to report a failure.
 *
 * The helper is one small program with ten commands (see main.c):
 *   launch   outside all walls, starts the engine and hands it mounts
 *   holder   pid 1 of E1, makes pods
 *   spawn    starts the interpreter that becomes a template
 *   enter    starts a program on a terminal in a pod that is in use
 *   blank    makes an empty process that an image is poured into
 *   fill     copies the pages of an image into that process
 *   pages    writes the memory of a frozen process to an image
 *   verify-pages  compares what was written with its hashes
 *   hash-pages    writes the hashes of pages that came from elsewhere
 *   probe    tries what this host allows (ramet doctor)
 *   network  runs a command in a network of its own (ramet doctor)
 */
#ifndef RAMET_COMMON_H
#define RAMET_COMMON_H
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>
#include "wire.h"

/* Numbers are the same on x86-64 and arm64 (asm-generic order from 424 on). */
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#define RAMET_SYS_open_tree     428
#define RAMET_SYS_move_mount    429
#define RAMET_SYS_fsopen        430
#define RAMET_SYS_fsconfig      431
#define RAMET_SYS_fsmount       432
#define RAMET_SYS_close_range   436
#define RAMET_SYS_openat2       437
#define RAMET_SYS_mount_setattr 442

#define RAMET_OPEN_TREE_CLONE       1
#define RAMET_AT_RECURSIVE          0x8000
#define RAMET_MOVE_FROM_FD          0x4  /* MOVE_MOUNT_F_EMPTY_PATH */
#define RAMET_MOVE_TO_FD            0x40 /* MOVE_MOUNT_T_EMPTY_PATH */
#define RAMET_RESOLVE_NO_MAGICLINKS 0x02
#define RAMET_RESOLVE_NO_SYMLINKS   0x04
#define RAMET_RESOLVE_IN_ROOT       0x10
#define RAMET_ATTR_RDONLY           0x1
#define RAMET_ATTR_NOSUID           0x2
#define RAMET_ATTR_NODEV            0x4
#define RAMET_ATTR_NOEXEC           0x8
#define RAMET_ATTR_IDMAP            0x00100000
#ifndef CLONE_NEWCGROUP
#define CLONE_NEWCGROUP 0x02000000
#endif

struct ramet_mount_attr {
    uint64_t attr_set, attr_clr, propagation, userns_fd;
};

static inline int open_tree_at(int dir, const char *path, unsigned flags) {
    return (int)syscall(RAMET_SYS_open_tree, dir, path, flags | O_CLOEXEC);
}
static inline int move_mount_to(int mount_fd, const char *target) {
    return (int)syscall(RAMET_SYS_move_mount, mount_fd, "", AT_FDCWD, target, RAMET_MOVE_FROM_FD);
}
static inline int set_mount_attributes(int mount_fd, unsigned flags,
                                       struct ramet_mount_attr *attributes) {
    return (int)syscall(RAMET_SYS_mount_setattr, mount_fd, "", AT_EMPTY_PATH | flags, attributes,
                        sizeof *attributes);
}
static inline void close_from(unsigned first) { syscall(RAMET_SYS_close_range, first, ~0u, 0); }

#define RAMET_MAX_MESSAGE     WIRE_PACKET_BYTES_AT_MOST
#define RAMET_MAX_DESCRIPTORS 64

/* Receives one packet with descriptors. Returns the length, 0 at end of file, -1 with errno. The
 * descriptors are close-on-exec. */
ssize_t receive_packet(int socket_fd, char *text, size_t size, int *descriptors, int *count);
ssize_t send_packet(int socket_fd, const char *text, size_t length, const int *descriptors,
                    int count);

/* Where `fail` reports: a socket that takes "error ..." packets, or standard error if it is -1. */
extern int failure_socket;
/* The subject of a failure (the number of a pod), named first when set. */
extern const char *failure_about;
__attribute__((noreturn, format(printf, 1, 2))) void fail(const char *format, ...);
/* A step that must work: else the program ends with its name and the kernel's answer. */
#define MUST(what, expression)                                                                     \
    ({                                                                                             \
        long must_result = (long)(expression);                                                     \
        if (must_result < 0) fail("%s: %s", what, strerror(errno));                                \
        must_result;                                                                               \
    })

void write_text(const char *path, const char *text, int required);
/* Has the kernel end this process and its children before others when memory runs out. It never
 * lowers the score, because Kubernetes sets its own. */
void raise_oom_score(int wanted);
/* The filter of system calls that the engine has compiled. The program that is returned stays
 * valid. */
struct sock_fprog read_filter(int filter_fd);
/* Signals, limits, folder and umask as a program finds them that was started afresh. */
void settle_like_new(void);
void make_folders(const char *path);
/* Maps only id 0 to `outside`, for user and group. `pid` 0 means the calling process. */
void write_single_id_map(pid_t pid, unsigned outside_uid, unsigned outside_gid);

int launch_main(int argc, char **argv);
int holder_start(int argc, char **argv);
int holder_main(int argc, char **argv);
int spawn_main(int argc, char **argv);
int enter_main(int argc, char **argv);
int blank_main(int argc, char **argv);
int pages_main(int argc, char **argv);
int verify_pages_main(int argc, char **argv);
int hash_pages_main(int argc, char **argv);
int fill_main(int argc, char **argv);
int probe_main(void);
int network_main(char **argv);

/* Exit code of a step that this host does not allow. */
enum { EXIT_NOT_CAPABLE = WIRE_EXIT_NOT_CAPABLE };
#endif
