/* holder: pid 1 of E1. It owns the namespaces in which shadows and pods live, keeps the trees that
 * pods are made of, and forks one builder for each pod. It sees no host file and no network.
 *
 * Packets from the engine (SOCK_SEQPACKET; text, descriptors alongside):
 *   tree N [show]   + mount         attach it as /trees/N; with "show" the answer "ok REASON" says
 *                                   that no overlay takes it
 *   untree N                        detach it again; pods that show it keep it. No answer
 *   pod\n<lines>    + descriptors   make a pod (pod/); its builder answers by itself
 */
#include "common.h"
#include "pod/pod.h"
#include <poll.h>

static void attach_tree(int channel, const char *number, int mount_fd) {
    char path[64], answer[256];
    snprintf(path, sizeof path, "/trees/%d", atoi(number));
    mkdir(path, 0755);
    if (move_mount_to(mount_fd, path)) {
        int size = snprintf(answer, sizeof answer, "error attach %s: %s", path, strerror(errno));
        send_packet(channel, answer, (size_t)size, NULL, 0);
    } else {
        int reason = strstr(number, " show") ? refuses_overlay(path) : 0;
        int size = reason ? snprintf(answer, sizeof answer, "ok %s", strerror(reason))
                          : snprintf(answer, sizeof answer, "ok");
        send_packet(channel, answer, (size_t)size, NULL, 0);
    }
}

static void detach_tree(const char *number) {
    char path[64];
    snprintf(path, sizeof path, "/trees/%d", atoi(number));
    umount2(path, MNT_DETACH);
    rmdir(path);
}

/* In E0, with the engine's capabilities: makes E1 and starts its pid 1 there, as a child of the
 * engine. */
int holder_start(int argc, char **argv) {
    if (argc != 1) fail("holder: wrong arguments");
    MUST("unshare the namespaces of E1", unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS |
                                                 CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS));
    write_single_id_map(0, 0, 0);
    pid_t child = (pid_t)MUST("clone", syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0));
    if (child) {
        dprintf(1, "%d\n", child);
        _exit(0);
    }
    /* Child, pid 1 of E1, with every capability there. The kernel notes at exec to which user
     * namespace a memory belongs: that of pid 1 and of every pod's init must be E1 and not E0. */
    char *arguments[] = {"ramet-pod", "holder-main", argv[0], NULL}, *environment[] = {NULL};
    execve("/proc/self/exe", arguments, environment);
    fail("exec of the holder: %s", strerror(errno));
}

/* pid 1 of E1, with every capability there: makes a root of its own and leaves the host's. */
static void build_base(void) {
    static const char *const devices[] = {"null", "zero", "full", "random", "urandom", "tty"};
    static const char *const links[][2] = {{"pts/ptmx", "ptmx"},
                                           {"/proc/self/fd", "fd"},
                                           {"/proc/self/fd/0", "stdin"},
                                           {"/proc/self/fd/1", "stdout"},
                                           {"/proc/self/fd/2", "stderr"}};
    char from[64], to[64];
    MUST("make mounts private", mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
    MUST("mount the holder's root",
         mount("holder", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=4m"));
    static const char *const folders[] = {"/tmp/trees", "/tmp/dev", "/tmp/empty", "/tmp/proc",
                                          "/tmp/new",   "/tmp/up",  "/tmp/shm",   "/tmp/lower"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        MUST(folders[i], mkdir(folders[i], 0755));
    MUST("mount the device folder",
         mount("dev", "/tmp/dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=755,size=64k"));
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        snprintf(from, sizeof from, "/dev/%s", devices[i]);
        snprintf(to, sizeof to, "/tmp/dev/%s", devices[i]);
        if (access(from, F_OK)) continue;
        close((int)MUST(to, open(to, O_CREAT | O_WRONLY | O_CLOEXEC, 0644)));
        MUST(to, mount(from, to, NULL, MS_BIND, NULL));
    }
    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        snprintf(to, sizeof to, "/tmp/dev/%s", links[i][1]);
        MUST(to, symlink(links[i][0], to));
    }
    MUST("mkdir pts", mkdir("/tmp/dev/pts", 0755));
    MUST("mkdir shm", mkdir("/tmp/dev/shm", 0755));
    MUST("seal the device folder",
         mount(NULL, "/tmp/dev", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NOEXEC,
               NULL));
    MUST("mount the empty folder",
         mount("empty", "/tmp/empty", "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC,
               "size=4k,mode=555"));
    /* The kernel lets a pod mount proc only where one is fully visible already. This one is never
     * shown to a pod. */
    MUST("mount proc", mount("proc", "/tmp/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL));
    MUST("chdir", chdir("/tmp"));
    MUST("pivot_root", syscall(SYS_pivot_root, ".", "."));
    MUST("detach", umount2(".", MNT_DETACH));
    MUST("chdir", chdir("/"));
}

int holder_main(int argc, char **argv) {
    if (argc != 1) fail("holder: wrong arguments");
    int channel = atoi(argv[0]);
    static char text[RAMET_MAX_MESSAGE];
    int descriptors[RAMET_MAX_DESCRIPTORS], count;
    failure_socket = channel;
    MUST("set the parent's death signal", prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0));
    MUST("stay undumpable", prctl(PR_SET_DUMPABLE, 0, 0, 0, 0));
    fcntl(channel, F_SETFD, FD_CLOEXEC);
    /* Our starter may read these pipes to their end, so we must not hold them. */
    int null = (int)MUST("open /dev/null", open("/dev/null", O_RDWR | O_CLOEXEC));
    for (int standard = 0; standard < 3; standard++)
        MUST("dup2", dup2(null, standard));
    close(null);
    setsid();
    build_base();
    signal(SIGCHLD, SIG_IGN); /* the kernel reaps builders and orphans */
    signal(SIGPIPE, SIG_IGN);
    /* Since Linux 6.9 root of a namespace may set its limits of System V memory and queues. Inits
     * of pods do; the engine has to know whether they can. */
    int settings = open("/proc/sys/kernel/shmmax", O_WRONLY | O_CLOEXEC);
    if (settings >= 0) close(settings);
    send_packet(channel, settings >= 0 ? "ready ipc" : "ready", settings >= 0 ? 9 : 5, NULL, 0);
    for (;;) {
        ssize_t length = receive_packet(channel, text, sizeof text, descriptors, &count);
        if (length <= 0) return 0; /* the engine is gone: pid 1 leaves, and E1 with it */
        if (!strncmp(text, "tree ", 5) && count == 1)
            attach_tree(channel, text + 5, descriptors[0]);
        else if (!strncmp(text, "untree ", 7))
            detach_tree(text + 7);
        else if (!strncmp(text, "pod\n", 4))
            make_pod(channel, text + 4, descriptors, count);
        else
            send_packet(channel, "error unknown request", 21, NULL, 0);
        for (int i = 0; i < count; i++)
            close(descriptors[i]);
    }
}
