/* probe: tries on this host each thing that walls are made of, and says what came back. One line a try:
 *   ok NAME          or          no NAME REASON
 * Each try runs in a process of its own, so that none can spoil the next. */
#include "common.h"
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>

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
    int tree = (int)MUST("open_tree", open_tree_at(AT_FDCWD, "/usr", RAMET_OPEN_TREE_CLONE | RAMET_AT_RECURSIVE));
    struct ramet_mount_attr attributes = {.attr_set = RAMET_ATTR_RDONLY | RAMET_ATTR_NOSUID | RAMET_ATTR_NODEV};
    MUST("mount_setattr", set_mount_attributes(tree, RAMET_AT_RECURSIVE, &attributes));
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

static void try_overlay(void) {
    enter_tmpfs();
    static const char *const folders[] = {"/tmp/lower", "/tmp/lower/folder", "/tmp/upper", "/tmp/work", "/tmp/merged"};
    for (int i = 0; i < 5; i++) MUST(folders[i], mkdir(folders[i], 0755));
    MUST("mount overlay on tmpfs",
         mount("probe", "/tmp/merged", "overlay", 0, "lowerdir=/tmp/lower,upperdir=/tmp/upper,workdir=/tmp/work,userxattr"));
}

/* Without extended attributes on the upper layer a folder of the lower one cannot be marked as removed. */
static void try_overlay_folders(void) {
    try_overlay();
    MUST("rmdir in an overlay", rmdir("/tmp/merged/folder"));
    MUST("mkdir over a removed folder", mkdir("/tmp/merged/folder", 0755));
}

static void try_network(void) {
    struct ifreq request = {.ifr_flags = IFF_UP | IFF_RUNNING};
    enter_user_namespace(CLONE_NEWNET);
    strcpy(request.ifr_name, "lo");
    int any = (int)MUST("socket", socket(AF_INET, SOCK_DGRAM, 0));
    MUST("bring lo up", ioctl(any, SIOCSIFFLAGS, &request));
}

static void try_seccomp(void) {
    struct sock_filter filter[] = {{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
    struct sock_fprog program = {1, filter};
    MUST("no_new_privs", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST("seccomp", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
}

static void try_trace(void) {
    int status;
    enter_user_namespace(0);
    pid_t child = (pid_t)MUST("fork", fork());
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        for (;;) pause();
    }
    MUST("PTRACE_SEIZE", ptrace(PTRACE_SEIZE, child, 0, PTRACE_O_EXITKILL));
    MUST("PTRACE_INTERRUPT", ptrace(PTRACE_INTERRUPT, child, 0, 0));
    MUST("wait", waitpid(child, &status, __WALL));
    kill(child, SIGKILL);
}

static void try_thread_ids(void) {
    int status;
    enter_user_namespace(CLONE_NEWPID);
    pid_t child = (pid_t)MUST("fork", fork());
    if (!child) {
        pid_t wanted = 4321;
        struct clone_args arguments = {.exit_signal = SIGCHLD, .set_tid = (uint64_t)&wanted, .set_tid_size = 1};
        long made = MUST("clone3(set_tid)", syscall(SYS_clone3, &arguments, sizeof arguments));
        _exit(made && made != wanted);
    }
    if (waitpid(child, &status, 0) != child || status) _exit(1);
}

static const struct {
    const char *name;
    void (*run)(void);
} tries[] = {{"user-namespace", try_user_namespace}, {"nested-user-namespace", try_nested_user_namespace}, {"mount", try_mount},
             {"read-only-tree", try_tree},           {"proc", try_proc},                                    {"overlay", try_overlay},
             {"overlay-folders", try_overlay_folders}, {"network-namespace", try_network},     {"seccomp", try_seccomp},                              {"ptrace", try_trace},
             {"thread-ids", try_thread_ids}};

int probe_main(void) {
    int all = 0;
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        int pipe_ends[2], status = 0;
        char text[512];
        MUST("pipe", pipe2(pipe_ends, O_CLOEXEC));
        pid_t child = (pid_t)MUST("fork", fork());
        if (!child) {
            dup2(pipe_ends[1], 2);
            close(pipe_ends[0]), close(pipe_ends[1]);
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
        if (status) dprintf(1, "no %s %s\n", tries[i].name, *reason ? reason : "it ended without saying why");
        else dprintf(1, "ok %s\n", tries[i].name);
        all |= status;
    }
    return all ? 1 : 0;
}
