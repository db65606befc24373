/* A pod: the empty walls of one sandbox, made by three short-lived or quiet processes.
 *
 *   holder (E1)
 *   └─ builder   holds E1's capabilities; a mount namespace of its own that belongs to E1, so no
 *      │         process inside the pod can ever mount
 *      ├─ init   pid 1 of the pod: own user, pid, net, ipc, uts and cgroup namespaces; holds the
 *      │         descriptors that a thaw fetches
 *      └─ (a child in the pod's pid namespace: only a member of it can mount its /proc)
 *
 * The pid namespace belongs to the pod's user namespace, because a thaw re-creates threads under
 * their old ids from inside, which takes a capability over that namespace.
 */
#include "../common.h"
#include "parts.h"
#include "pod.h"

static int kind_of_place(const char *word) {
    static const char *const words[] = {[BIND] = "bind",
                                        [SHOW] = "show",
                                        [OVERLAY] = "overlay",
                                        [MOUNT] = "mount",
                                        [SHOW_MOUNT] = "show-mount"};
    for (size_t kind = 0; kind < sizeof words / sizeof *words; kind++)
        if (!strcmp(word, words[kind])) return (int)kind;
    fail("cannot read the line \"%s\"", word);
}

static void read_place(struct pod *pod, const char *word, char *value) {
    if (pod->place_count == POD_PLACES_AT_MOST) fail("too many mounts");
    struct place *place = &pod->places[pod->place_count++];
    place->kind = kind_of_place(word);
    int has_tree = place->kind != MOUNT && place->kind != SHOW_MOUNT;
    place->tree = has_tree ? (int)strtol(value, &value, 10) : -1;
    place->path = strchr(value, '/');
    if (!place->path) fail("no path in a line \"%s\"", word);
}

static void read_pod(struct pod *pod, char *text) {
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *value = strchr(line, ' ');
        if (!value) fail("cannot read the line \"%s\"", line);
        *value++ = 0;
        if (!strcmp(line, "id"))
            failure_about = pod->id = value;
        else if (!strcmp(line, "boot"))
            pod->boot = atoi(value);
        else if (!strcmp(line, "given"))
            pod->given = atoi(value);
        else if (!strcmp(line, "name"))
            pod->name = value;
        else if (!strcmp(line, "skeleton"))
            pod->skeleton = atoi(value);
        else if (!strcmp(line, "image") && !strcmp(value, "files"))
            pod->has_files = 1;
        else if (!strcmp(line, "image"))
            pod->has_shm = 1;
        else if (!strcmp(line, "memory"))
            pod->memory_bytes = strtoull(value, NULL, 10);
        else if (!strcmp(line, "shm"))
            pod->shm_bytes = strtoull(value, NULL, 10);
        else if (!strcmp(line, "upper")) {
            pod->upper_bytes = strtoull(value, &value, 10);
            pod->upper_inodes = strtoull(value, NULL, 10);
        } else if (!strcmp(line, "layer")) {
            if (pod->layer_count == POD_LAYERS_AT_MOST) fail("too many layers");
            pod->layers[pod->layer_count++] = atoi(value);
        } else
            read_place(pod, line, value);
    }
}

/* The builder joins the pod's pid namespace for its children: a proc shows the namespace of the
 * process that mounts it. */
static void mount_proc(struct pod *pod, int init_pidfd) {
    int status;
    if (!pod->boot) MUST("join the pod's pid namespace", setns(init_pidfd, CLONE_NEWPID));
    pid_t child = (pid_t)MUST("fork", fork());
    if (!child) {
        MUST("mount proc",
             mount("proc", "/new/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL));
        _exit(0);
    }
    if (waitpid(child, &status, 0) != child || status) _exit(1); /* the child has reported why */
}

/* The builder, a child of the holder with E1's capabilities. */
static void build_pod(int channel, struct pod *pod, const int *descriptors, int count) {
    int go[2], done[2];
    char byte, answer[128];
    signal(SIGCHLD, SIG_DFL);
    if (count < 1 + pod->given + pod->has_files + pod->has_shm)
        fail("%d descriptors are too few", count);
    MUST("unshare a mount namespace", unshare(CLONE_NEWNS));
    mount_tree(pod, descriptors, count);
    /* For the engine, in the order of the answer. The first two exist only later. */
    const int flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
    int handles[4] = {-1, -1};
    handles[2] = (int)MUST("open the writable layer", open("/up", flags));
    handles[3] = (int)MUST("open /dev/shm", open("/new/dev/shm", flags));
    MUST("pipe", pipe2(go, O_CLOEXEC));
    MUST("pipe", pipe2(done, O_CLOEXEC));
    /* All namespaces but that of mounts, which stays E1's. */
    const unsigned long namespaces =
        CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;
    pid_t init =
        (pid_t)MUST("clone the pod's init", syscall(SYS_clone, namespaces | SIGCHLD, 0, 0, 0, 0));
    if (!init) {
        /* Child, pid 1 of the pod, still without an id map. */
        close(go[1]);
        close(done[0]);
        run_init(pod, go[0], done[1], descriptors);
    }
    close(go[0]);
    close(done[1]);
    write_single_id_map(init, 0, 0);
    int init_pidfd = (int)MUST("pidfd_open", syscall(SYS_pidfd_open, init, 0));
    if (write(go[1], "x", 1) != 1 || read(done[0], &byte, 1) != 1) fail("the pod's init died");
    mount_proc(pod, init_pidfd);
    if (!pod->boot) mask_proc();
    MUST("chdir", chdir("/new"));
    /* The init shares this root, and moves along. */
    MUST("pivot_root", syscall(SYS_pivot_root, ".", "."));
    MUST("detach the holder's tree", umount2(".", MNT_DETACH));
    MUST("chdir", chdir("/"));
    handles[0] = init_pidfd;
    handles[1] = (int)MUST("open the pod's root", open("/", flags));
    int size = snprintf(answer, sizeof answer, "pod %s %d", pod->id, init);
    MUST("hand over the pod", send_packet(channel, answer, (size_t)size, handles, 4));
    _exit(0);
}

void make_pod(int channel, char *text, const int *descriptors, int count) {
    static struct pod pod;
    memset(&pod, 0, sizeof pod);
    pod.id = "0";
    pod.name = "sandbox";
    pid_t builder = fork();
    if (builder < 0) {
        char answer[128];
        int id = 0, reason = errno;
        sscanf(text, "id %d", &id);
        int size = snprintf(answer, sizeof answer, "error %d fork: %s", id, strerror(reason));
        send_packet(channel, answer, (size_t)size, NULL, 0);
        return;
    }
    if (builder) return;
    /* Child: from here on a failure is an answer to the engine. */
    failure_socket = channel;
    failure_about = pod.id;
    read_pod(&pod, text);
    build_pod(channel, &pod, descriptors, count);
}
