/* launch: starts the engine inside E0 and stays outside as its broker.
 *
 *   owner (the user's program)
 *   └─ launch            sees host paths; started by root it is the real root, else root of E0 only
 *      └─ engine         pid 1 of E0: own user, pid and mount namespace, a file tree of system
 *                        folders and nothing else
 *
 * The broker does two things for the engine that the engine cannot do from inside: it opens host
 * folders as detached mounts (an interpreter's prefix, a folder that the user wants to show), and
 * when the engine is gone it removes the engine's cgroups. It kills the engine when the owner ends:
 * with pid 1 every process, mount and namespace below it goes.
 */
#include "common.h"
#include <grp.h>
#include <poll.h>
#include <sys/resource.h>

#define MAX_ITEMS 64

struct plan {
    pid_t owner;
    int primary;
    int listener;      /* where the engine accepts connections; 0: it has none */
    unsigned base_uid; /* as root: the host uid that is uid 0 in E0; 0 means "map the caller" */
    const char *trees[MAX_ITEMS], *link_at[MAX_ITEMS], *link_to[MAX_ITEMS], *cgroups[MAX_ITEMS];
    int tree_count, link_count, cgroup_count;
    char **command;
};

static void read_plan(struct plan *plan, int argc, char **argv) {
    for (int i = 0; i < argc; i++) {
        const char *option = argv[i];
        if (!strcmp(option, "--")) {
            plan->command = argv + i + 1;
            return;
        }
        if (i + 1 >= argc) fail("option %s lacks its value", option);
        const char *value = argv[++i];
        if (!strcmp(option, "--owner"))
            plan->owner = atoi(value);
        else if (!strcmp(option, "--primary"))
            plan->primary = atoi(value);
        else if (!strcmp(option, "--listener"))
            plan->listener = atoi(value);
        else if (!strcmp(option, "--base-uid"))
            plan->base_uid = (unsigned)strtoul(value, NULL, 10);
        else if (!strcmp(option, "--tree") && plan->tree_count < MAX_ITEMS)
            plan->trees[plan->tree_count++] = value;
        else if (!strcmp(option, "--cgroup") && plan->cgroup_count < MAX_ITEMS)
            plan->cgroups[plan->cgroup_count++] = value;
        else if (!strcmp(option, "--link") && plan->link_count < MAX_ITEMS && i + 1 < argc) {
            plan->link_at[plan->link_count] = value;
            plan->link_to[plan->link_count++] = argv[++i];
        } else
            fail("cannot take option %s %s", option, value);
    }
    fail("no command given");
}

/* As root: makes a user namespace in which uid 0 is an unused host uid. A helper process unshares
 * it; we, with root's capabilities, write its map and keep its descriptor. */
static int make_user_namespace(unsigned base_uid) {
    int ready[2], done[2];
    char byte, path[64];
    MUST("pipe", pipe2(ready, O_CLOEXEC));
    MUST("pipe", pipe2(done, O_CLOEXEC));
    pid_t helper = (pid_t)MUST("fork", fork());
    if (!helper) {
        /* Child: in the new namespace, until we have opened it. */
        close(done[1]);
        byte = unshare(CLONE_NEWUSER) ? (char)errno : 0;
        if (write(ready[1], &byte, 1) != 1 || read(done[0], &byte, 1) < 0) _exit(1);
        _exit(0);
    }
    if (read(ready[0], &byte, 1) != 1) fail("the helper for the user namespace died");
    if (byte) fail("unshare(CLONE_NEWUSER): %s", strerror(byte));
    write_single_id_map(helper, base_uid, base_uid);
    snprintf(path, sizeof path, "/proc/%d/ns/user", helper);
    int namespace_fd = (int)MUST("open the user namespace", open(path, O_RDONLY | O_CLOEXEC));
    close(ready[0]);
    close(ready[1]);
    close(done[0]);
    close(done[1]);
    waitpid(helper, NULL, 0);
    return namespace_fd;
}

/* Opens a host folder as a detached mount. As root we shift the ids on disk so that host root's
 * files belong to uid 0 of E0: else the engine could not read an interpreter below a private home
 * folder, and pip could not write over it. File systems that cannot shift ids are shown as they
 * are.
 */
static int open_tree_for_engine(const char *path, int writable, int user_namespace, int shift_ids,
                                unsigned recursive) {
    int tree = open_tree_at(AT_FDCWD, path, RAMET_OPEN_TREE_CLONE | recursive);
    if (tree < 0) return -1;
    struct ramet_mount_attr attributes = {.attr_set = RAMET_ATTR_NOSUID | RAMET_ATTR_NODEV |
                                                      (writable ? 0u : RAMET_ATTR_RDONLY)};
    if (set_mount_attributes(tree, RAMET_AT_RECURSIVE, &attributes)) {
        int reason = errno;
        close(tree);
        errno = reason;
        return -1;
    }
    if (user_namespace >= 0 && shift_ids) {
        struct ramet_mount_attr idmap = {.attr_set = RAMET_ATTR_IDMAP,
                                         .userns_fd = (uint64_t)user_namespace};
        /* Some file systems refuse it: then the engine reads only files that anybody may read. */
        set_mount_attributes(tree, 0, &idmap);
    }
    return tree;
}

/* Makes an empty file, as a mount point for a file. */
static void make_file(char *at) {
    char *slash = strrchr(at, '/');
    *slash = 0;
    make_folders(at);
    *slash = '/';
    close((int)MUST(at, open(at, O_CREAT | O_WRONLY | O_CLOEXEC, 0644)));
}

/* Child of launch, still with the capabilities of launch: puts the engine's root together at /tmp
 * of a private mount namespace. The trees were opened before, so that no mount here can hide them.
 */
static void assemble_root(struct plan *plan, const int *trees, int etc_tree) {
    static const char *const devices[] = {"null", "zero", "full", "random", "urandom", "tty"};
    static const char *const folders[] = {"proc", "dev", "dev/shm", "tmp",          "etc",
                                          "run",  "sys", "sys/fs",  "sys/fs/cgroup"};
    char at[4200];
    int device_fds[6], cgroup_tree = open_tree_at(AT_FDCWD, "/sys/fs/cgroup",
                                                  RAMET_OPEN_TREE_CLONE | RAMET_AT_RECURSIVE);
    for (int i = 0; i < 6; i++) {
        snprintf(at, sizeof at, "/dev/%s", devices[i]);
        device_fds[i] = open_tree_at(AT_FDCWD, at, RAMET_OPEN_TREE_CLONE);
    }
    MUST("mount the engine's root",
         mount("ramet", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=64m"));
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        snprintf(at, sizeof at, "/tmp/%s", folders[i]);
        MUST(at, mkdir(at, 0755));
    }
    for (int i = 0; i < 6; i++) {
        if (device_fds[i] < 0) continue;
        snprintf(at, sizeof at, "/tmp/dev/%s", devices[i]);
        close((int)MUST(at, open(at, O_CREAT | O_WRONLY | O_CLOEXEC, 0644)));
        MUST(at, move_mount_to(device_fds[i], at));
        close(device_fds[i]);
    }
    /* Before the trees: an interpreter may live below /tmp. */
    MUST("mount tmpfs", mount("tmp", "/tmp/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777"));
    for (int i = 0; i < plan->tree_count; i++) {
        struct stat found;
        snprintf(at, sizeof at, "/tmp%s", plan->trees[i]);
        MUST(at, fstat(trees[i], &found));
        if (S_ISDIR(found.st_mode))
            make_folders(at);
        else
            make_file(at);
        MUST(at, move_mount_to(trees[i], at));
        close(trees[i]);
    }
    for (int i = 0; i < plan->link_count; i++) {
        snprintf(at, sizeof at, "/tmp%s", plan->link_at[i]);
        char *slash = strrchr(at, '/');
        *slash = 0;
        make_folders(at);
        *slash = '/';
        if (symlink(plan->link_to[i], at) && errno != EEXIST)
            fail("symlink %s: %s", at, strerror(errno));
    }
    MUST("show /etc", move_mount_to(etc_tree, "/tmp/etc"));
    close(etc_tree);
    if (cgroup_tree >= 0) {
        MUST("show /sys/fs/cgroup", move_mount_to(cgroup_tree, "/tmp/sys/fs/cgroup"));
        close(cgroup_tree);
    }
}

/* In version 2, moving a process takes the right to write to the group above both places. In a
 * group of its own below the delegated folder, the engine needs no right above that folder. Best
 * effort: where the kernel refuses, the engine stays in its owner's group. */
static void enter_cgroup(const char *folder) {
    char path[4200];
    snprintf(path, sizeof path, "%s/cgroup.controllers", folder);
    if (access(path, F_OK)) return; /* version 1 has no such rule */
    snprintf(path, sizeof path, "%s/engine", folder);
    mkdir(path, 0755);
    snprintf(path, sizeof path, "%s/engine/cgroup.procs", folder);
    write_text(path, "0", 0);
}

/* pid 1 of E0, with every capability there: enters the assembled root and becomes the engine. */
static void become_engine(struct plan *plan, int owner_pidfd, int broker) {
    MUST("unshare a mount namespace for the engine", unshare(CLONE_NEWNS));
    MUST("make mounts private", mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
    /* The kernel locks mounts that it copies into a less privileged namespace in place. The top of
     * a cloned tree is not locked. */
    const unsigned whole = RAMET_OPEN_TREE_CLONE | RAMET_AT_RECURSIVE;
    int root = (int)MUST("clone the engine's root", open_tree_at(AT_FDCWD, "/tmp", whole));
    MUST("attach the engine's root", move_mount_to(root, "/tmp"));
    close(root);
    MUST("mount proc (is /proc of this container masked?)",
         mount("proc", "/tmp/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL));
    MUST("chdir", chdir("/tmp"));
    MUST("pivot_root", syscall(SYS_pivot_root, ".", "."));
    MUST("detach the host's tree", umount2(".", MNT_DETACH));
    MUST("chdir", chdir("/"));
    /* Nothing of the engine may share a session or keyring with its owner's terminal. */
    setsid();
    /* Out of the way of their final places first. */
    int descriptors[4] = {plan->primary, owner_pidfd, broker, plan->listener};
    int count = plan->listener ? 4 : 3; /* from WIRE_ENGINE_PRIMARY to WIRE_ENGINE_LISTENER */
    for (int i = 0; i < count; i++)
        descriptors[i] = (int)MUST("dup", fcntl(descriptors[i], F_DUPFD_CLOEXEC, 100));
    for (int i = 0; i < count; i++)
        MUST("dup2", dup2(descriptors[i], WIRE_ENGINE_PRIMARY + i));
    close_from((unsigned)(WIRE_ENGINE_PRIMARY + count));
    MUST("set the parent's death signal", prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0));
    char *environment[] = {"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/", "LANG=C.UTF-8",
                           "PYTHONDONTWRITEBYTECODE=1", NULL};
    execve(plan->command[0], plan->command, environment);
    fail("exec %s: %s", plan->command[0], strerror(errno));
}

/* The kernel refuses (EBUSY) while the last processes of a group end: so try for two seconds. */
static void remove_cgroup(const char *path) {
    char command[4200];
    /* A cgroup file system allows only folders to be removed. Ramet makes two levels. */
    for (int attempt = 0; attempt < 200; attempt++) {
        int parent = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (parent < 0) return;
        char buffer[8192];
        long length;
        while ((length = syscall(SYS_getdents64, parent, buffer, sizeof buffer)) > 0) {
            for (long at = 0; at < length;) {
                struct {
                    uint64_t inode;
                    int64_t offset;
                    unsigned short size;
                    unsigned char type;
                    char name[];
                } *entry = (void *)(buffer + at);
                at += entry->size;
                if (entry->type != 4 /* DT_DIR */ || entry->name[0] == '.') continue;
                snprintf(command, sizeof command, "%s/%s", path, entry->name);
                rmdir(command);
            }
        }
        close(parent);
        if (!rmdir(path) || errno == ENOENT) return;
        usleep(10000);
    }
}

/* mountinfo writes a blank, a tab, a newline and a backslash as \040 and so on
 * (fs/proc_namespace.c). */
static void unescape(char *text) {
    char *to = text;
    for (char *from = text; *from; to++) {
        unsigned value;
        if (*from == '\\' && sscanf(from, "\\%3o", &value) == 1) {
            *to = (char)value;
            from += 4;
        } else {
            *to = *from++;
        }
    }
    *to = 0;
}

/* Lists the mounts below a folder: it adds a line with the rest of each path after `used` bytes of
 * `answer`. The engine has to know of them, because an overlay shows a folder without the mounts in
 * it, and the kernel refuses one where these mounts are locked. Returns the new length, -1 when
 * there is no room for all of them. */
static int list_mounts_below(const char *folder, char *answer, int used, int size) {
    char real[4096], *line = NULL;
    size_t room = 0;
    FILE *mounts = realpath(folder, real) ? fopen("/proc/self/mountinfo", "re") : NULL;
    if (!mounts) return used; /* opening a folder that does not exist reports it */
    size_t length = strcmp(real, "/") ? strlen(real) : 0;
    while (used >= 0 && getline(&line, &room, mounts) > 0) {
        char *rest = line, *point = NULL;
        for (int field = 0; field < 5 && rest; field++)
            point = strsep(&rest, " "); /* id, parent, device, root, mount point */
        if (!point || !rest) continue;
        unescape(point);
        if (strncmp(point, real, length) || point[length] != '/' || !point[length + 1] ||
            strchr(point, '\n'))
            continue;
        if (strlen(point + length) + 2 > (size_t)(size - used))
            used = -1;
        else
            used += snprintf(answer + used, (size_t)(size - used), "\n%s", point + length);
    }
    free(line);
    fclose(mounts);
    return used;
}

/* Outside all walls, for the engine, which alone holds the other end. "tree KIND /path": answers
 * "ok" with a mount, and a line for each mount below the folder; or "error ...".
 *
 *   KIND   with the mounts below   without
 *          r                       o         read-only
 *          p                       q         read-only, with the host's own ids
 *          w                                 writable
 */
static int serve_broker(int broker, int user_namespace) {
    char answer[16384];
    char text[RAMET_MAX_MESSAGE];
    int descriptors[RAMET_MAX_DESCRIPTORS], count;
    ssize_t length = receive_packet(broker, text, sizeof text, descriptors, &count);
    for (int i = 0; i < count; i++)
        close(descriptors[i]);
    if (length <= 0) return 0;
    if (length < 8 || strncmp(text, "tree ", 5) || text[6] != ' ' || text[7] != '/') {
        send_packet(broker, "error unknown request", 21, NULL, 0);
        return 1;
    }
    char kind = text[5];
    int alone = kind == 'o' || kind == 'q';
    int tree = open_tree_for_engine(text + 7, kind == 'w', user_namespace,
                                    kind != 'p' && kind != 'q', alone ? 0 : RAMET_AT_RECURSIVE);
    int reason = errno;
    int used = snprintf(answer, sizeof answer, "ok");
    int size = list_mounts_below(text + 7, answer, used, sizeof answer);
    if (tree >= 0 && size >= 0) {
        /* The kernel counts descriptors in flight per user, and other processes of this user may
         * have used the count up. The engine waits for an answer: so it gets one without a
         * descriptor, which the kernel always takes. */
        if (send_packet(broker, answer, (size_t)size, &tree, 1) < 0) {
            size = snprintf(answer, sizeof answer, "error busy: %s", strerror(errno));
            send_packet(broker, answer, (size_t)size, NULL, 0);
        }
    } else {
        char first[256] = "";
        if (size < 0 || (alone && reason == EINVAL)) sscanf(answer, "ok\n%255[^\n]", first);
        if (size < 0) {
            size = snprintf(answer, sizeof answer,
                            "error too much is mounted below it: %.4000s%s and others", text + 7,
                            first);
        } else if (*first) {
            /* Locked mounts hide the files below them from us, and would from the sandbox. */
            size = snprintf(answer, sizeof answer,
                            "error %.4000s%s is mounted below it, and cannot be left out or shown",
                            text + 7, first);
        } else {
            size = snprintf(answer, sizeof answer, "error open %.4000s: %s", text + 7,
                            strerror(reason));
        }
        send_packet(broker, answer, (size_t)size, NULL, 0);
    }
    if (tree >= 0) close(tree);
    return 1;
}

/* Serves the broker's socket until the engine ends, and kills it when the owner ends. Returns the
 * engine's exit code. */
static int watch(pid_t engine, int owner_pidfd, int broker, int user_namespace) {
    int engine_pidfd = (int)MUST("pidfd_open", syscall(SYS_pidfd_open, engine, 0));
    int status = 0;
    struct pollfd watched[3] = {
        {engine_pidfd, POLLIN, 0}, {owner_pidfd, POLLIN, 0}, {broker, POLLIN, 0}};
    for (;;) {
        if (poll(watched, 3, -1) < 0) continue;
        if (watched[0].revents) break;
        if (watched[1].revents) {
            kill(engine, SIGKILL);
            watched[1].fd = -1;
        }
        if (watched[2].revents && !serve_broker(broker, user_namespace)) watched[2].fd = -1;
    }
    waitpid(engine, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* The engine must not inherit what the owner's thread happens to have: blocked or ignored signals,
 * low soft limits. */
static void forget_inherited(void) {
    static const int kinds[] = {RLIMIT_NOFILE, RLIMIT_FSIZE};
    struct rlimit limit;
    sigset_t none;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (getrlimit(kinds[i], &limit)) continue;
        limit.rlim_cur = limit.rlim_max;
        setrlimit(kinds[i], &limit);
    }
    for (int number = 1; number <= 64; number++)
        signal(number, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

int launch_main(int argc, char **argv) {
    struct plan plan = {0};
    int trees[MAX_ITEMS], user_namespace = -1, channel[2], link[2];
    uid_t uid = geteuid();
    gid_t gid = getegid();
    read_plan(&plan, argc, argv);
    forget_inherited();
    int owner_pidfd = (int)MUST("pidfd_open of the owner", syscall(SYS_pidfd_open, plan.owner, 0));
    if (getppid() != plan.owner) return 0; /* the owner ended while we started */
    signal(SIGPIPE, SIG_IGN);
    /* As root we have another uid than the engine, which must enter folders that we make. */
    umask(022);
    setsid();
    /* The engine must not share the keyring of its owner's session. */
    syscall(SYS_keyctl, 1 /* KEYCTL_JOIN_SESSION_KEYRING */, 0, 0, 0, 0);
    if (plan.base_uid) {
        user_namespace = make_user_namespace(plan.base_uid);
        MUST("unshare(CLONE_NEWNS)", unshare(CLONE_NEWNS));
    } else {
        /* Sandboxes must not read files that only the caller's groups may read. Only a privileged
         * process (here: root of a container) can leave its groups, and none can once the namespace
         * is made; for all others the documents state it. */
        if (!uid) setgroups(0, NULL);
        MUST("unshare(CLONE_NEWUSER)", unshare(CLONE_NEWUSER | CLONE_NEWNS));
        write_single_id_map(0, uid, gid);
    }
    /* Slave: folders mounted on the host later can still be shown to sandboxes. */
    MUST("make mounts slaves", mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL));
    for (int i = 0; i < plan.tree_count; i++)
        trees[i] = (int)MUST(plan.trees[i], open_tree_for_engine(plan.trees[i], 0, user_namespace,
                                                                 1, RAMET_AT_RECURSIVE));
    /* Never shifted: /etc holds files that only root may read. */
    int etc_tree = (int)MUST("/etc", open_tree_for_engine("/etc", 0, -1, 0, RAMET_AT_RECURSIVE));
    MUST("socketpair", socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, channel));
    MUST("pipe", pipe2(link, O_CLOEXEC));
    pid_t builder = (pid_t)MUST("fork", fork());
    if (!builder) {
        /* Child, with the capabilities of launch until it enters the user namespace. */
        close(channel[0]);
        for (int i = 0; i < plan.cgroup_count; i++)
            enter_cgroup(plan.cgroups[i]);
        MUST("unshare(CLONE_NEWNS)", unshare(CLONE_NEWNS));
        MUST("make mounts private", mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
        assemble_root(&plan, trees, etc_tree);
        if (user_namespace >= 0) {
            MUST("leave the groups of root", setgroups(0, NULL)); /* sandboxes would inherit them */
            MUST("enter the user namespace", setns(user_namespace, CLONE_NEWUSER));
            MUST("setresgid", setresgid(0, 0, 0));
            MUST("setresuid", setresuid(0, 0, 0));
            MUST("stay dumpable", prctl(PR_SET_DUMPABLE, 1, 0, 0, 0));
        }
        MUST("unshare(CLONE_NEWPID)", unshare(CLONE_NEWPID));
        /* CLONE_PARENT: the engine is a child of launch, and this builder can go. */
        pid_t engine = (pid_t)MUST("clone", syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0));
        if (!engine) become_engine(&plan, owner_pidfd, channel[1]);
        if (write(link[1], &engine, sizeof engine) != sizeof engine) _exit(1);
        _exit(0);
    }
    close(channel[1]);
    close(link[1]);
    close(plan.primary);
    close(etc_tree);
    /* When the engine has ended, no process may be left that could accept connections. */
    if (plan.listener) close(plan.listener);
    for (int i = 0; i < plan.tree_count; i++)
        close(trees[i]);
    pid_t engine = 0;
    int status = 1;
    if (read(link[0], &engine, sizeof engine) == sizeof engine) {
        waitpid(builder, NULL, 0);
        status = watch(engine, owner_pidfd, channel[0], user_namespace);
    } else {
        /* The builder has reported on standard error what did not work. */
        int ended = 0;
        waitpid(builder, &ended, 0);
        status = WIFEXITED(ended) ? WEXITSTATUS(ended) : 1;
    }
    for (int i = 0; i < plan.cgroup_count; i++)
        remove_cgroup(plan.cgroups[i]);
    return status;
}
