/* spawn: starts the interpreter that becomes a template.
 *
 * Arguments: HOLDER_PIDFD POD_PIDFD FILTER_FD CONTROL_FD STDOUT_FD STDERR_FD -- COMMAND...
 * Started by the engine in E0. The interpreter ends up as a child of the engine, in E1's user and pid namespaces and in the
 * mount namespace of a pod made for booting, so that it sees the paths its sandboxes will see. The seccomp filter is on
 * before its first instruction, and everything thawed from it inherits the filter.
 */
#include "common.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/resource.h>

extern char **environ;

int spawn_main(int argc, char **argv) {
    if (argc < 8 || strcmp(argv[6], "--")) fail("spawn: wrong arguments");
    int holder = atoi(argv[0]), pod = atoi(argv[1]), filter_fd = atoi(argv[2]);
    int wanted[5] = {-1, atoi(argv[4]), atoi(argv[5]), atoi(argv[3]), -1};
    static struct sock_filter filter[4096];
    ssize_t size = pread(filter_fd, filter, sizeof filter, 0);
    if (size <= 0 || size % (ssize_t)sizeof *filter) fail("spawn: cannot read the seccomp filter");
    struct sock_fprog program = {(unsigned short)((size_t)size / sizeof *filter), filter};
    wanted[0] = (int)MUST("open /dev/null", open("/dev/null", O_RDWR | O_CLOEXEC));
    MUST("enter E1", setns(holder, CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS));
    MUST("enter the boot tree", setns(pod, CLONE_NEWNS));
    pid_t child = (pid_t)MUST("clone", syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0));
    if (child) {
        dprintf(1, "%d\n", child);
        _exit(0);
    }
    setsid();
    for (int i = 0; i < 4; i++) wanted[i] = (int)MUST("dup", fcntl(wanted[i], F_DUPFD_CLOEXEC, 1100));
    static const struct { int from, to; } places[] = {{0, 0}, {1, 1}, {2, 2}, {3, 1000}, {1, 1001}, {2, 1002}};
    close_range(3, 1099, 0);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) MUST("dup2", dup2(wanted[places[i].from], places[i].to));
    close_from(1003);
    raise_oom_score(500); /* when the host runs out of memory, a sandbox goes before the engine and its owner */
    for (int number = 1; number <= 64; number++) signal(number, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    struct rlimit no_core = {1, 1}; /* 1, not 0: only that keeps the kernel from piping a core to the host's handler */
    setrlimit(RLIMIT_CORE, &no_core);
    umask(022);
    MUST("chdir /root", chdir("/root"));
    MUST("no_new_privs", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST("seccomp", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
    execve(argv[7], argv + 7, environ);
    fail("exec %s: %s", argv[7], strerror(errno));
}
