/* spawn: starts the interpreter that becomes a template.
 *
 * Arguments: HOLDER_PIDFD POD_PIDFD FILTER_FD CONTROL_FD STDOUT_FD STDERR_FD -- COMMAND...
 * The engine starts it in E0. The interpreter ends up as a child of the engine, in E1's user and
 * pid namespaces and in the mount namespace of a pod made for booting, so that it sees the paths
 * that its sandboxes will see. The seccomp filter is on before the interpreter's first instruction,
 * and every sandbox that is thawed from it inherits the filter.
 */
#include "common.h"
#include <linux/seccomp.h>

extern char **environ;

/* A number above all places of the REPL's descriptors. */
enum { FIRST_ASIDE = 1100 };

int spawn_main(int argc, char **argv) {
    if (argc < 8 || strcmp(argv[6], "--")) fail("spawn: wrong arguments");
    int holder = atoi(argv[0]), pod = atoi(argv[1]), filter_fd = atoi(argv[2]);
    int wanted[5] = {-1, atoi(argv[4]), atoi(argv[5]), atoi(argv[3]), -1};
    struct sock_fprog program = read_filter(filter_fd);
    /* While we see the files of E0. */
    wanted[0] = (int)MUST("open /dev/null", open("/dev/null", O_RDWR | O_CLOEXEC));
    /* From E0 into E1: from here on we hold E1's capabilities and none of E0's. */
    MUST("enter E1",
         setns(holder, CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS));
    MUST("enter the boot tree", setns(pod, CLONE_NEWNS));
    /* PARENT: the interpreter is a child of the engine, not of this program, which ends here. */
    pid_t child = (pid_t)MUST("clone", syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0));
    if (child) {
        dprintf(1, "%d\n", child);
        _exit(0);
    }
    /* Child, in E1's user and pid namespaces, with E1's capabilities until the exec. */
    setsid();
    /* Out of the way of the final places first, so that no dup2 below overwrites one of them. */
    for (int i = 0; i < 4; i++)
        wanted[i] = (int)MUST("dup", fcntl(wanted[i], F_DUPFD_CLOEXEC, FIRST_ASIDE));
    static const struct {
        int from, to;
    } places[] = {{0, 0},
                  {1, 1},
                  {2, 2},
                  {3, WIRE_REPL_CONTROL},
                  {1, WIRE_REPL_STDOUT},
                  {2, WIRE_REPL_STDERR}};
    close_range(3, FIRST_ASIDE - 1, 0);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        MUST("dup2", dup2(wanted[places[i].from], places[i].to));
    close_from(WIRE_REPL_STDERR + 1);
    /* When memory runs out, the kernel ends sandboxes before the engine and its owner. */
    raise_oom_score(500);
    settle_like_new();
    MUST("seccomp", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
    execve(argv[7], argv + 7, environ);
    fail("exec %s: %s", argv[7], strerror(errno));
}
