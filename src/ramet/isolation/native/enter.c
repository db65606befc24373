/* enter: starts a program on a terminal inside a pod that is in use, beside its REPL and behind the
 * same walls.
 *
 * Arguments: POD_PIDFD FILTER_FD REQUEST_FD TERMINAL_FD REPORT_FD
 *            [--group GROUP_FD]... [--limit KIND SOFT HARD]...
 *
 *   engine (E0)
 *   ├─ enter    joins the pod's namespaces and groups, but is not in its pid namespace: no process
 *   │           of the pod sees it
 *   └─ child    born in the pod; the engine's child, so that the engine learns how it ends; the
 *               leader of the terminal's session
 *
 * The pod is hostile ground: its files, its other processes, the other end of the terminal. So the
 * child looks up no path in the pod, and reads and runs nothing of it, before it has dropped all
 * capabilities. The engine has opened the terminal. For a few calls the child holds the pod's
 * capabilities while other processes of the pod can see it. They can kill or stop it, and the
 * engine copes with that. They cannot look into it or take its descriptors, because it is not
 * dumpable and its memory belongs to E0.
 *
 * Packets on REPORT: "pid N" of the child in the engine's numbering; "ready" when it has dropped
 * its capabilities: then it waits for a byte from the engine, which checks it meanwhile; "error
 * ...". The end of the socket: the program runs, or the child is dead.
 */
#include "common.h"
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

enum { MAX_REQUEST = 4 * 1024 * 1024, MAX_GROUPS = 8, REPORT = 3 };

extern char **environ;

/* The program to run, as strings with a NUL after each: folder (empty: the usual one), number of
 * arguments, arguments, environment. */
struct request {
    char *folder, **arguments;
};

static void read_request(struct request *request, int descriptor) {
    struct stat found;
    MUST("look at the request", fstat(descriptor, &found));
    if (found.st_size < 4 || found.st_size > MAX_REQUEST)
        fail("enter: a request of %lld bytes", (long long)found.st_size);
    char *text = malloc((size_t)found.st_size + 1);
    if (!text || pread(descriptor, text, (size_t)found.st_size, 0) != found.st_size)
        fail("enter: cannot read the request");
    text[found.st_size] = 0;
    int count = 0, at = 0;
    for (char *seen = text; seen < text + found.st_size; seen++)
        count += !*seen;
    char **strings = calloc((size_t)count + 1, sizeof *strings);
    if (!strings) fail("enter: no memory");
    for (char *seen = text; at < count; seen += strlen(seen) + 1)
        strings[at++] = seen;
    int wanted = count > 2 ? atoi(strings[1]) : 0;
    if (wanted < 1 || wanted > count - 2) fail("enter: a request without arguments");
    request->folder = strings[0];
    environ = strings + 2 + wanted; /* ends with the NULL after the last string */
    request->arguments = calloc((size_t)wanted + 1, sizeof *strings);
    if (!request->arguments) fail("enter: no memory");
    memcpy(request->arguments, strings + 2, (size_t)wanted * sizeof *strings);
}

static void drop_all_power(const struct sock_fprog *program) {
    struct __user_cap_header_struct version = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0}};
    /* The same as a thaw does for the REPL. First what takes a capability itself. */
    MUST("lock the secure bits", prctl(PR_SET_SECUREBITS, WIRE_SECURE_BITS, 0, 0, 0));
    for (unsigned long number = 0; prctl(PR_CAPBSET_READ, number, 0, 0, 0) >= 0; number++)
        MUST("empty the bounding set", prctl(PR_CAPBSET_DROP, number, 0, 0, 0));
    MUST("capset", syscall(SYS_capset, &version, none));
    MUST("no_new_privs", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST("seccomp", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, program));
}

/* Child, inside the pod, with every capability of the pod's user namespace until drop_all_power. */
static void run_child(const struct request *request, const struct sock_fprog *program) {
    char word;
    /* Only the leader of a session can take a terminal. */
    setsid();
    MUST("take the terminal", ioctl(0, TIOCSCTTY, 0));
    drop_all_power(program);
    if (send_packet(REPORT, "ready", 5, NULL, 0) < 0 || read(REPORT, &word, 1) != 1) _exit(1);
    /* From here on it has no more rights than any process of the pod. */
    if (*request->folder)
        MUST("go to the folder", chdir(request->folder));
    else if (chdir("/root"))
        MUST("go to the root folder", chdir("/"));
    execvp(request->arguments[0], request->arguments);
    fail("run: %s", strerror(errno));
}

/* Still in E0, with the engine's capabilities until setns. Sets what the child inherits and must
 * not have to look for in the pod. */
static void prepare(int pod, int terminal, int report, const int *groups, int group_count) {
    /* As for templates: the kernel ends sandboxes before the engine and its owner. */
    raise_oom_score(group_count ? 500 : 1000);
    /* Before the pod's processes can see anything of us. */
    MUST("stay undumpable", prctl(PR_SET_DUMPABLE, 0, 0, 0, 0));
    /* Before the clone, so that the child counts there from its first moment: where the pod may
     * have no more processes, the clone fails. */
    for (int i = 0; i < group_count; i++)
        if (write(groups[i], "0", 1) != 1) fail("enter the pod's groups: %s", strerror(errno));
    MUST("enter the pod", setns(pod, CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET |
                                         CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP));
    /* All descriptors of the child: the terminal three times, and its socket to the engine until it
     * runs the program. */
    for (int standard = 0; standard < 3; standard++)
        MUST("dup2", dup2(terminal, standard));
    MUST("dup3", dup3(report, REPORT, O_CLOEXEC));
    failure_socket = REPORT;
    close_from(REPORT + 1);
}

static void set_limits(int count, char **arguments) {
    for (int i = 0; i < count; i += 4) {
        if (i + 3 >= count || strcmp(arguments[i], "--limit"))
            fail("enter: cannot take %s", arguments[i]);
        struct rlimit limit = {strtoull(arguments[i + 2], NULL, 10),
                               strtoull(arguments[i + 3], NULL, 10)};
        MUST("set a limit", setrlimit(atoi(arguments[i + 1]), &limit));
    }
    struct rlimit no_core = {1, 1}; /* 1, not 0, as in spawn.c */
    MUST("set a limit", setrlimit(RLIMIT_CORE, &no_core));
    if (getpriority(PRIO_PROCESS, 0) < WIRE_SANDBOX_NICENESS)
        MUST("yield to the engine", setpriority(PRIO_PROCESS, 0, WIRE_SANDBOX_NICENESS));
}

int enter_main(int argc, char **argv) {
    static struct sock_filter filter[4096];
    struct request request;
    int given[5], groups[MAX_GROUPS], group_count = 0, next = 5;
    if (argc < 5) fail("enter: wrong arguments");
    /* The report's socket first, because it reports the other failures. All of them move out of the
     * way of the child's final numbers. */
    for (int i = 4; i >= 0; i--) {
        given[i] = (int)MUST("dup", fcntl(atoi(argv[i]), F_DUPFD_CLOEXEC, 100));
        failure_socket = given[4];
    }
    for (; next + 1 < argc && !strcmp(argv[next], "--group") && group_count < MAX_GROUPS; next += 2)
        groups[group_count++] = (int)MUST("dup", fcntl(atoi(argv[next + 1]), F_DUPFD_CLOEXEC, 100));
    ssize_t size = pread(given[1], filter, sizeof filter, 0);
    if (size <= 0 || size % (ssize_t)sizeof *filter) fail("enter: cannot read the seccomp filter");
    struct sock_fprog program = {(unsigned short)((size_t)size / sizeof *filter), filter};
    read_request(&request, given[2]);
    prepare(given[0], given[3], given[4], groups, group_count);
    set_limits(argc - next, argv + next);
    for (int number = 1; number <= 64; number++)
        signal(number, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    umask(022);
    /* PARENT: the child is the engine's, which reaps it. */
    pid_t child = (pid_t)MUST("clone", syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0));
    if (!child) run_child(&request, &program);
    char answer[32];
    int length = snprintf(answer, sizeof answer, "pid %d", child);
    return send_packet(REPORT, answer, (size_t)length, NULL, 0) < 0;
}
