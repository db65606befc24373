/* probe: tries on this host each thing that walls are made of, and reports the result, a line each:
 *
 *   ok NAME
 *   no NAME REASON
 *   untried NAME WHAT-IT-NEEDS
 *
 * Each try runs in a process of its own, so that none can spoil the next.
 *
 * network: runs a command in a network of its own, to try packet rules. This program makes the
 * namespaces, because a host may allow them to it alone (AppArmor). */
#include "common.h"
#include <linux/filter.h>
#include <linux/kcmp.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

static void enter_user_namespace(int more) {
    uid_t uid = geteuid();
    gid_t gid = getegid();
    MUST("unshare(CLONE_NEWUSER)", unshare(CLONE_NEWUSER | more));
    write_single_id_map(0, uid, gid);
}

static void try_user_namespace(void) { enter_user_namespace(0); }

static void try_nested_user_namespace(void) {
    enter_user_namespace(0);
    MUST("unshare(CLONE_NEWUSER) inside another", unshare(CLONE_NEWUSER));
}

static void enter_tmpfs(void) {
    enter_user_namespace(CLONE_NEWNS | CLONE_NEWPID);
    MUST("make mounts private", mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
    MUST("mount tmpfs", mount("probe", "/tmp", "tmpfs", 0, "mode=755"));
}

static void try_mount(void) { enter_tmpfs(); }

static void try_tree(void) {
    enter_tmpfs();
    int tree = (int)MUST(
        "open_tree", open_tree_at(AT_FDCWD, "/usr", RAMET_OPEN_TREE_CLONE | RAMET_AT_RECURSIVE));
    struct ramet_mount_attr attributes = {.attr_set = RAMET_ATTR_RDONLY | RAMET_ATTR_NOSUID |
                                                      RAMET_ATTR_NODEV};
    MUST("mount_setattr", set_mount_attributes(tree, RAMET_AT_RECURSIVE, &attributes));
    MUST("mkdir", mkdir("/tmp/usr", 0755));
    MUST("move_mount", move_mount_to(tree, "/tmp/usr"));
}

static void try_root(void) {
    enter_tmpfs();
    MUST("chdir", chdir("/tmp"));
    MUST("pivot_root", syscall(SYS_pivot_root, ".", "."));
    MUST("umount2", umount2(".", MNT_DETACH));
}

static void try_proc(void) {
    int status;
    enter_tmpfs();
    pid_t child = (pid_t)MUST("fork", fork());
    if (!child) {
        MUST("mkdir", mkdir("/tmp/proc", 0755));
        MUST("mount proc", mount("proc", "/tmp/proc", "proc", 0, NULL));
        _exit(0);
    }
    if (waitpid(child, &status, 0) != child || status) _exit(1);
}

/* With the same calls as pod/tree.c: some profiles allow mount and refuse these, and "volatile" is
 * newer than overlays in user namespaces. */
static void try_overlay(void) {
    static const char *const folders[] = {"/tmp/lower", "/tmp/lower/folder", "/tmp/upper",
                                          "/tmp/work", "/tmp/merged"};
    static const char *const options[][2] = {{"lowerdir", "/tmp/lower"},
                                             {"upperdir", "/tmp/upper"},
                                             {"workdir", "/tmp/work"},
                                             {"userxattr", NULL},
                                             {"volatile", NULL}};
    char step[64];
    enter_tmpfs();
    for (int i = 0; i < 5; i++)
        MUST(folders[i], mkdir(folders[i], 0755));
    int context = (int)MUST("fsopen overlay", syscall(RAMET_SYS_fsopen, "overlay", 1));
    for (int i = 0; i < 5; i++) {
        snprintf(step, sizeof step, "fsconfig %s", options[i][0]);
        MUST(step, syscall(RAMET_SYS_fsconfig, context, options[i][1] ? 1 : 0, options[i][0],
                           options[i][1], 0));
    }
    MUST("fsconfig: create an overlay on tmpfs",
         syscall(RAMET_SYS_fsconfig, context, 6, NULL, NULL, 0));
    int mounted = (int)MUST("fsmount overlay", syscall(RAMET_SYS_fsmount, context, 1,
                                                       RAMET_ATTR_NOSUID | RAMET_ATTR_NODEV));
    MUST("move_mount", move_mount_to(mounted, "/tmp/merged"));
}

/* Without extended attributes on the upper layer a folder of the lower one cannot be marked as
 * removed. */
static void try_overlay_folders(void) {
    try_overlay();
    MUST("rmdir in an overlay", rmdir("/tmp/merged/folder"));
    MUST("mkdir over a removed folder", mkdir("/tmp/merged/folder", 0755));
}

static void enter_network(void) {
    struct ifreq request = {.ifr_flags = IFF_UP | IFF_RUNNING};
    enter_user_namespace(CLONE_NEWNET);
    strcpy(request.ifr_name, "lo");
    int any = (int)MUST("socket", socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    MUST("bring lo up", ioctl(any, SIOCSIFFLAGS, &request));
}

static void try_network(void) { enter_network(); }

static void try_hostname(void) {
    enter_user_namespace(CLONE_NEWUTS);
    MUST("sethostname", sethostname("sandbox", 7));
}

/* Starts a process in namespaces of its own (0: in ours) that waits, and ends with us. */
static pid_t start_other(int namespaces) {
    int ready[2];
    char byte;
    MUST("pipe", pipe2(ready, O_CLOEXEC));
    pid_t other = (pid_t)MUST("fork", fork());
    if (!other) {
        prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        if (namespaces) MUST("unshare in another process", unshare(namespaces));
        if (write(ready[1], "x", 1) != 1) _exit(1);
        for (;;)
            pause();
    }
    close(ready[1]);
    if (read(ready[0], &byte, 1) != 1) _exit(1); /* it has reported why */
    close(ready[0]);
    return other;
}

static int open_other(pid_t other) {
    return (int)MUST("pidfd_open", syscall(SYS_pidfd_open, other, 0));
}

static void try_join(void) {
    enter_user_namespace(0);
    int other = open_other(start_other(CLONE_NEWUSER | CLONE_NEWNET));
    MUST("setns", setns(other, CLONE_NEWUSER | CLONE_NEWNET));
}

static void try_fetch(void) {
    enter_user_namespace(0);
    int other = open_other(start_other(0));
    MUST("pidfd_getfd", syscall(SYS_pidfd_getfd, other, 2, 0));
}

static void try_compare(void) {
    enter_user_namespace(0);
    MUST("kcmp", syscall(SYS_kcmp, getpid(), start_other(0), KCMP_VM, 0, 0));
}

static void try_seccomp(void) {
    struct sock_filter filter[] = {{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
    struct sock_fprog program = {1, filter};
    MUST("no_new_privs", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST("seccomp", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
}

static void try_trace(void) {
    int status, word = 0;
    enter_user_namespace(0);
    pid_t other = start_other(0);
    struct iovec here = {&word, sizeof word}, there = {&word, sizeof word};
    MUST("PTRACE_SEIZE", ptrace(PTRACE_SEIZE, other, 0, PTRACE_O_EXITKILL));
    MUST("PTRACE_INTERRUPT", ptrace(PTRACE_INTERRUPT, other, 0, 0));
    MUST("wait", waitpid(other, &status, __WALL));
    MUST("process_vm_readv", process_vm_readv(other, &here, 1, &there, 1, 0));
    MUST("process_vm_writev", process_vm_writev(other, &here, 1, &there, 1, 0));
    kill(other, SIGKILL);
}

static void try_thread_ids(void) {
    int status;
    enter_user_namespace(CLONE_NEWPID);
    pid_t child = (pid_t)MUST("fork", fork());
    if (!child) {
        pid_t wanted = 4321;
        struct clone_args arguments = {
            .exit_signal = SIGCHLD, .set_tid = (uint64_t)&wanted, .set_tid_size = 1};
        long made = MUST("clone3(set_tid)", syscall(SYS_clone3, &arguments, sizeof arguments));
        _exit(made && made != wanted);
    }
    if (waitpid(child, &status, 0) != child || status) _exit(1);
}

static const struct {
    const char *name, *needs; /* what must work for the try to say anything */
    void (*run)(void);
} tries[] = {
    {"user-namespace", NULL, try_user_namespace},
    {"nested-user-namespace", "user-namespace", try_nested_user_namespace},
    {"mount", "user-namespace", try_mount},
    {"read-only-tree", "mount", try_tree},
    {"own-root", "mount", try_root},
    {"proc", "mount", try_proc},
    {"overlay", "mount", try_overlay},
    {"overlay-folders", "overlay", try_overlay_folders},
    {"network-namespace", "user-namespace", try_network},
    {"join-namespaces", "user-namespace", try_join},
    {"hostname", "user-namespace", try_hostname},
    {"seccomp", NULL, try_seccomp},
    {"ptrace", "user-namespace", try_trace},
    {"fetch-descriptors", "user-namespace", try_fetch},
    {"compare-processes", "user-namespace", try_compare},
    {"thread-ids", "user-namespace", try_thread_ids},
};
enum { TRIES = sizeof tries / sizeof *tries };

/* The first of its requirements, and of theirs, that did not work. */
static const char *find_missing(const int *failed, const char *needs) {
    for (int i = 0; needs && i < TRIES; i++) {
        if (strcmp(tries[i].name, needs)) continue;
        const char *deeper = find_missing(failed, tries[i].needs);
        return deeper ? deeper : failed[i] ? needs : NULL;
    }
    return NULL;
}

int probe_main(void) {
    int all = 0, failed[TRIES] = {0};
    for (int i = 0; i < TRIES; i++) {
        int pipe_ends[2], status = 0;
        char text[512];
        const char *missing = find_missing(failed, tries[i].needs);
        if (missing) {
            dprintf(1, "untried %s %s\n", tries[i].name, missing);
            failed[i] = 1;
            continue;
        }
        MUST("pipe", pipe2(pipe_ends, O_CLOEXEC));
        pid_t child = (pid_t)MUST("fork", fork());
        if (!child) {
            dup2(pipe_ends[1], 2);
            close(pipe_ends[0]);
            close(pipe_ends[1]);
            tries[i].run();
            _exit(0);
        }
        close(pipe_ends[1]);
        ssize_t length = read(pipe_ends[0], text, sizeof text - 1);
        close(pipe_ends[0]);
        waitpid(child, &status, 0);
        text[length > 0 ? length : 0] = 0;
        text[strcspn(text, "\n")] = 0;
        const char *reason = strncmp(text, "ramet-pod: ", 11) ? text : text + 11;
        if (status)
            dprintf(1, "no %s %s\n", tries[i].name,
                    *reason ? reason : "it ended without saying why");
        else
            dprintf(1, "ok %s\n", tries[i].name);
        failed[i] = status != 0;
        all |= status;
    }
    return all ? 1 : 0;
}

int network_main(char **argv) {
    extern char **environ;
    enter_network();
    execve(argv[0], argv, environ);
    fail("exec %s: %s", argv[0], strerror(errno));
}
