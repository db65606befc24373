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
#include "common.h"
#include "copytree.h"
#include "pod.h"
#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/un.h>

#define MAX_PLACES 48
#define MAX_LAYERS 12
/* The lines between the REPL and the engine, which the init keeps for the next thaw. */
enum { LINES = WIRE_INIT_CGROUPS - WIRE_INIT_CONTROL };
enum { MOST_SKIPPED = 25000 }; /* inode numbers: some 8 microseconds each */

struct place {
    enum { BIND, SHOW, OVERLAY, MOUNT, SHOW_MOUNT } kind;
    int tree;
    const char *path;
};
struct pod {
    const char *id, *name;
    int boot, given, skeleton, place_count, layer_count, has_files, has_shm;
    int layers[MAX_LAYERS];
    unsigned long long upper_bytes, upper_inodes, shm_bytes, memory_bytes;
    struct place places[MAX_PLACES];
};

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
    if (pod->place_count == MAX_PLACES) fail("too many mounts");
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
            if (pod->layer_count == MAX_LAYERS) fail("too many layers");
            pod->layers[pod->layer_count++] = atoi(value);
        } else
            read_place(pod, line, value);
    }
}

static void set_option(int context, const char *key, const char *value) {
    /* 1 is FSCONFIG_SET_STRING, 0 FSCONFIG_SET_FLAG */
    MUST(key, syscall(RAMET_SYS_fsconfig, context, value ? 1 : 0, key, value, 0));
}

/* As soon as the files of another sandbox are copied into it, the tree below /new is hostile: links
 * in it must not lead us out. */
static int open_in_pod(int root, const char *path, uint64_t resolve) {
    struct {
        uint64_t flags, mode, resolve;
    } how = {O_PATH | O_DIRECTORY | O_CLOEXEC, 0,
             RAMET_RESOLVE_IN_ROOT | RAMET_RESOLVE_NO_MAGICLINKS | resolve};
    long opened;
    do {
        opened = syscall(RAMET_SYS_openat2, root, path, &how, sizeof how);
    } while (opened < 0 && (errno == EAGAIN || errno == EINTR));
    return (int)opened;
}

static void attach(int mounted, int root, const char *path, uint64_t resolve) {
    int target = (int)MUST(path, open_in_pod(root, path, resolve));
    MUST(path, syscall(RAMET_SYS_move_mount, mounted, "", target, "",
                       RAMET_MOVE_FROM_FD | RAMET_MOVE_TO_FD));
    close(target);
}

static void make_folders_in_pod(int root, const char *path) {
    char reached[4200];
    int folder = (int)MUST("open the pod's root", open_in_pod(root, "/", 0));
    for (size_t end = 1; end <= strlen(path); end++) {
        if (path[end] != '/' && path[end]) continue;
        snprintf(reached, sizeof reached, "%.*s", (int)end, path);
        int next = open_in_pod(root, reached, 0);
        if (next < 0 && errno == ENOENT) {
            MUST(reached, mkdirat(folder, strrchr(reached, '/') + 1, 0755));
            next = open_in_pod(root, reached, 0);
        }
        close(folder);
        folder = (int)MUST(reached, next);
    }
    close(folder);
}

/* Sealed layers that hold something for this overlay, topmost first, then the tree that all pods
 * show. */
static void list_lower(struct pod *pod, int tree, const char *name, char *list, size_t size) {
    char path[64];
    size_t used = 0;
    for (int i = 0; i <= pod->layer_count; i++) {
        if (i < pod->layer_count)
            snprintf(path, sizeof path, "/trees/%d/%s", pod->layers[i], name);
        else
            snprintf(path, sizeof path, "/trees/%d", tree);
        if (access(path, F_OK)) continue;
        used += (size_t)snprintf(list + used, size - used, "%s%s", used ? ":" : "", path);
        if (used >= size) fail("too many layers");
    }
}

static int mount_overlay(struct pod *pod, int tree, const char *name, unsigned attributes) {
    char lower[256], upper[128], work[128]; /* the kernel takes no longer option */
    list_lower(pod, tree, name, lower, sizeof lower);
    snprintf(upper, sizeof upper, "/up/%s", name);
    snprintf(work, sizeof work, "/up/.%s", name);
    int context = (int)MUST("fsopen overlay", syscall(RAMET_SYS_fsopen, "overlay", 1));
    set_option(context, "lowerdir", lower);
    set_option(context, "upperdir", upper);
    set_option(context, "workdir", work);
    set_option(context, "userxattr", NULL);
    /* Nothing of a pod outlives it, so the kernel need not sync when the pod goes. */
    set_option(context, "volatile", NULL);
    MUST("create an overlay", syscall(RAMET_SYS_fsconfig, context, 6, NULL, NULL, 0));
    attributes |= RAMET_ATTR_NOSUID | RAMET_ATTR_NODEV;
    int mounted = (int)MUST("fsmount overlay", syscall(RAMET_SYS_fsmount, context, 1, attributes));
    close(context);
    return mounted;
}

/* Begins an overlay without a writable layer, which shows a tree read-only. A plain mount would
 * show the host's own inodes, and with them what the kernel keeps by inode: who uses a file
 * (inotify), locks, the listener behind a socket, the bytes in a FIFO. An overlay has inodes of its
 * own, other ones for each pod; the pages of files stay shared. The second, empty layer is there
 * because the kernel demands two. The kernel obeys no user.* or trusted.* marks of other overlays
 * here: they would be the host's. Returns a context, or -1 with errno. */
static int begin_shown(const char *lower) {
    char layers[128];
    snprintf(layers, sizeof layers, "%s:/empty", lower);
    int context = (int)syscall(RAMET_SYS_fsopen, "overlay", 1);
    if (context < 0) return -1;
    if (syscall(RAMET_SYS_fsconfig, context, 1, "lowerdir", layers, 0) ||
        syscall(RAMET_SYS_fsconfig, context, 6, NULL, NULL, 0)) {
        int reason = errno;
        close(context);
        errno = reason;
        return -1;
    }
    return context;
}

int refuses_overlay(const char *path) {
    int context = begin_shown(path);
    if (context < 0) return errno;
    close(context);
    return 0;
}

static int mount_shown(const char *lower, const char *about) {
    int context = begin_shown(lower);
    if (context < 0) fail("show %s through an overlay: %s", about, strerror(errno));
    const unsigned attributes = RAMET_ATTR_RDONLY | RAMET_ATTR_NOSUID | RAMET_ATTR_NODEV;
    int mounted = (int)MUST("fsmount overlay", syscall(RAMET_SYS_fsmount, context, 1, attributes));
    close(context);
    return mounted;
}

/* The same for a mount that has no place yet. An overlay takes paths, and keeps a mount of its own
 * of what is there, so ours can go again. */
static int show_mount(int given, const char *about) {
    MUST("place a folder", move_mount_to(given, "/lower"));
    int mounted = mount_shown("/lower", about);
    MUST("take a folder away", umount2("/lower", MNT_DETACH));
    return mounted;
}

static void name_overlay(char *name, size_t size, int place) {
    if (place < 0)
        snprintf(name, size, "root");
    else
        snprintf(name, size, "tree%d", place);
}

/* An overlay shows mode and times of its top folder from the writable layer. So we copy them there
 * from the topmost sealed layer. */
static void inherit_top(struct pod *pod, const char *name, const char *upper) {
    struct copy_buffers buffers;
    struct copy_failure why = {0};
    struct stat found;
    char path[64];
    for (int i = 0; i < pod->layer_count; i++) {
        snprintf(path, sizeof path, "/trees/%d/%s", pod->layers[i], name);
        int from = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (from < 0) continue;
        int to = (int)MUST(upper, open(upper, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        MUST(path, fstat(from, &found));
        if (copy_buffers_make(&buffers, &why) ||
            copy_folder_attributes(from, to, &found, 0, &buffers, &why))
            fail("%s: %s", why.step, strerror(why.error));
        copy_buffers_free(&buffers);
        close(from);
        close(to);
        return;
    }
}

static void make_upper_folders(struct pod *pod) {
    char name[16], path[32];
    for (int i = -1; i < pod->place_count; i++) {
        if (i >= 0 && pod->places[i].kind != OVERLAY) continue;
        name_overlay(name, sizeof name, i);
        snprintf(path, sizeof path, "/up/.%s", name);
        MUST(path, mkdir(path, 0755));
        snprintf(path, sizeof path, "/up/%s", name);
        MUST(path, mkdir(path, 0755));
        inherit_top(pod, name, path);
    }
}

static void copy_files(struct pod *pod, int image) {
    static uint64_t numbers[COPY_MAX_NUMBERED];
    char names[MAX_PLACES + 1][16];
    const char *list[MAX_PLACES + 1];
    int count = 0;
    struct copy_failure why = {0};
    struct copy_report report = {0};
    int up = (int)MUST("open the writable layer", open("/up", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    int file = (int)MUST("open the list of numbers",
                         openat(image, "numbers", O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    ssize_t size = MUST("read the list of numbers", read(file, numbers, sizeof numbers));
    for (int i = -1; i < pod->place_count; i++) {
        name_overlay(names[count], sizeof names[count], i);
        list[count] = names[count];
        if ((i < 0 || pod->places[i].kind == OVERLAY) && !faccessat(image, list[count], F_OK, 0))
            count++;
    }
    if (copy_numbered(image, up, list, count, numbers, (size_t)size / sizeof *numbers, MOST_SKIPPED,
                      &report, &why))
        fail("%s: %s", why.step, strerror(why.error));
}

static void copy_shm(int image) {
    char links[16];
    struct stat found;
    struct copy_failure why = {0};
    struct copy_report report = {0};
    int from = (int)MUST("open the image of /dev/shm",
                         openat(image, "shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    int to = (int)MUST("open /dev/shm", open("/shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    /* Any name that is not among those to be copied. */
    for (int i = 0;; i++) {
        snprintf(links, sizeof links, ".links%d", i);
        if (fstatat(from, links, &found, AT_SYMLINK_NOFOLLOW)) break;
    }
    MUST("make a folder in /dev/shm", mkdirat(to, links, 0700));
    int folder = (int)MUST("open a folder in /dev/shm",
                           openat(to, links, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (copy_tree(from, to, folder, 0, &report, &why))
        fail("%s: %s", why.step, strerror(why.error));
    MUST("remove a folder in /dev/shm", unlinkat(to, links, AT_REMOVEDIR));
}

/* A child enters the pod's cgroups and makes the copies, so that their memory counts there. The
 * builder itself stays outside, because the init that it makes must be in no group. */
static void copy_images(struct pod *pod, const int *descriptors, const int *images) {
    int status;
    if (!pod->has_files && !pod->has_shm) return;
    pid_t child = (pid_t)MUST("fork", fork());
    if (!child) {
        for (int i = 1 + LINES; i < 1 + pod->given; i++)
            if (write(descriptors[i], "0", 1) != 1)
                fail("enter the pod's groups: %s", strerror(errno));
        if (pod->has_files) copy_files(pod, *images++);
        if (pod->has_shm) copy_shm(*images);
        _exit(0);
    }
    MUST("wait for the copy of the files", waitpid(child, &status, 0));
    if (WIFSIGNALED(status)) fail("copy the files: %s", strerror(ENOMEM));
    if (status) _exit(1); /* the child has reported why */
}

/* The builder, with E1's capabilities: mounts the layers of the file tree below /new. The skeleton
 * holds every mount point, so that we create nothing in a shown tree. */
static void mount_tree(struct pod *pod, const int *descriptors, int count) {
    char options[128], name[16];
    const int *next = descriptors + 1 + pod->given, *end = descriptors + count;
    const unsigned whole = RAMET_OPEN_TREE_CLONE | RAMET_AT_RECURSIVE;
    /* A tmpfs of this size is the limit of the sandbox's disk. */
    snprintf(options, sizeof options, "mode=755,size=%llu,nr_inodes=%llu", pod->upper_bytes,
             pod->upper_inodes);
    MUST("mount the writable layer", mount("upper", "/up", "tmpfs", MS_NOSUID | MS_NODEV, options));
    snprintf(options, sizeof options, "mode=1777,size=%llu,nr_inodes=%llu", pod->shm_bytes,
             pod->upper_inodes);
    MUST("mount /dev/shm", mount("shm", "/shm", "tmpfs", MS_NOSUID | MS_NODEV, options));
    make_upper_folders(pod);
    copy_images(pod, descriptors, next);
    next += pod->has_files + pod->has_shm;
    int mounted = mount_overlay(pod, pod->skeleton, "root", 0);
    MUST("mount the pod's root", move_mount_to(mounted, "/new"));
    close(mounted);
    int root = (int)MUST("open the pod's root", open("/new", O_PATH | O_DIRECTORY | O_CLOEXEC));
    for (int i = 0; i < pod->place_count; i++) {
        struct place *place = &pod->places[i];
        if (place->kind == OVERLAY) {
            name_overlay(name, sizeof name, i);
            /* Every sandbox keeps the template's /proc/self/exe, a file of the tree in which the
             * template booted. If that was writable, all of its sandboxes would share one file. */
            mounted = mount_overlay(pod, place->tree, name, pod->boot ? RAMET_ATTR_RDONLY : 0);
        } else if (place->kind == BIND) {
            snprintf(options, sizeof options, "/trees/%d", place->tree);
            mounted = (int)MUST(options, open_tree_at(AT_FDCWD, options, whole));
        } else if (place->kind == SHOW) {
            snprintf(options, sizeof options, "/trees/%d", place->tree);
            mounted = mount_shown(options, place->path);
        } else {
            if (next == end) fail("no descriptor for %s", place->path);
            make_folders_in_pod(root, place->path);
            mounted = place->kind == MOUNT ? *next : show_mount(*next, place->path);
            next++;
        }
        attach(mounted, root, place->path,
               place->kind == MOUNT || place->kind == SHOW_MOUNT ? 0 : RAMET_RESOLVE_NO_SYMLINKS);
        if (place->kind != MOUNT) close(mounted);
    }
    int device_tree = (int)MUST("clone /dev", open_tree_at(AT_FDCWD, "/dev", whole));
    attach(device_tree, root, "/dev", RAMET_RESOLVE_NO_SYMLINKS);
    close(device_tree);
    /* The paths below go through /proc: it must be a folder and no link. */
    close((int)MUST("/proc", open_in_pod(root, "/proc", RAMET_RESOLVE_NO_SYMLINKS)));
    close(root);
    /* The kernel has a few thousand terminals for all instances of devpts together: a pod gets at
     * most 64 of them. */
    MUST("mount devpts", mount("devpts", "/new/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC,
                               "newinstance,ptmxmode=0666,mode=620,max=64"));
    MUST("show /dev/shm", mount("/shm", "/new/dev/shm", NULL, MS_MOVE, NULL));
}

/* Hides files of /proc that show the host or control it, and makes others read-only. The builder,
 * with E1's capabilities: root of the pod cannot undo it, because the mount namespace is E1's. */
static void mask_proc(void) {
    static const char *const files[] = {
        "kcore",       "keys",          "key-users",   "timer_list", "sysrq-trigger", "kallsyms",
        "kmsg",        "interrupts",    "config.gz",   "cmdline",    "diskstats",     "partitions",
        "consoles",    "latency_stats", "sched_debug", "kpagecount", "kpageflags",    "kpagecgroup",
        "vmallocinfo", "slabinfo",      "softirqs",    "iomem",      "ioports",
    };
    static const char *const folders[] = {"acpi", "scsi", "fs", "driver", "asound", "pressure"};
    static const char *const sealed[] = {"sys", "bus", "irq"};
    char path[64];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "/new/proc/%s", files[i]);
        if (!access(path, F_OK)) MUST(path, mount("/dev/null", path, NULL, MS_BIND, NULL));
    }
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        snprintf(path, sizeof path, "/new/proc/%s", folders[i]);
        if (!access(path, F_OK)) MUST(path, mount("/empty", path, NULL, MS_BIND, NULL));
    }
    for (size_t i = 0; i < sizeof sealed / sizeof *sealed; i++) {
        snprintf(path, sizeof path, "/new/proc/%s", sealed[i]);
        if (access(path, F_OK)) continue;
        const unsigned whole = RAMET_OPEN_TREE_CLONE | RAMET_AT_RECURSIVE;
        int tree = (int)MUST(path, open_tree_at(AT_FDCWD, path, whole));
        struct ramet_mount_attr attributes = {.attr_set = RAMET_ATTR_RDONLY | RAMET_ATTR_NOSUID |
                                                          RAMET_ATTR_NODEV | RAMET_ATTR_NOEXEC};
        MUST(path, set_mount_attributes(tree, RAMET_AT_RECURSIVE, &attributes));
        MUST(path, move_mount_to(tree, path));
        close(tree);
    }
}

static void bring_loopback_up(void) {
    struct ifreq request = {.ifr_flags = IFF_UP | IFF_RUNNING};
    strcpy(request.ifr_name, "lo");
    int any = (int)MUST("socket", socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    MUST("bring lo up", ioctl(any, SIOCSIFFLAGS, &request));
    close(any);
}

/* The kernel remembers a connection for a while after its end, in memory that no limit of a sandbox
 * counts: with the usual times, 64 000 connections of a few seconds stay for two minutes. The times
 * of open connections stay as they are. Where the kernel has never tracked connections, these files
 * do not exist. */
static void forget_connections_soon(void) {
    static const char *const states[][2] = {{"syn_sent", "2"},
                                            {"syn_recv", "5"},
                                            {"last_ack", "10"},
                                            {"time_wait", "1"},
                                            {"close", "1"}};
    char path[96];
    for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
        snprintf(path, sizeof path, "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_%s",
                 states[i][0]);
        write_text(path, states[i][1], 0);
    }
}

/* No rlimit counts System V memory and queues, and they stay when the last process that used them
 * is gone: then not even the kernel's out-of-memory killer gets them back. So a segment goes with
 * the process that made it (shm_rmid_forced), and all segments together have at most the sandbox's
 * memory. 256 queues of 16 KiB, and 32 000 semaphores (64 bytes each) in sets of a thousand, take a
 * few megabytes of the kernel's memory. Before Linux 6.9 only the host's root may write these
 * files; without a memory cgroup the seccomp filter refuses the calls there. */
static void bound_ipc(unsigned long long memory_bytes) {
    char number[32];
    snprintf(number, sizeof number, "%llu", memory_bytes);
    write_text("/proc/sys/kernel/shmmax", number, 0);
    snprintf(number, sizeof number, "%llu",
             memory_bytes / (unsigned long long)sysconf(_SC_PAGESIZE));
    write_text("/proc/sys/kernel/shmall", number, 0);
    write_text("/proc/sys/kernel/shm_rmid_forced", "1", 0);
    write_text("/proc/sys/kernel/msgmni", "256", 0);
    write_text("/proc/sys/kernel/msgmnb", "16384", 0);
    write_text("/proc/sys/kernel/sem", "1000 32000 500 256", 0);
}

/* Makes a socket in the pod's own network, for the engine. A socket belongs to the network of the
 * process that makes it, wherever it is used.
 *
 *   L unix NAME BACKLOG   listens at an abstract name
 *   L tcp PORT BACKLOG    listens on loopback
 *   L udp PORT            bound on loopback
 *   L plain               TCP, not connected to anything yet
 *   L netlink FAMILY      changes this network: routes (0), packet rules (12)
 */
static int make_socket(const char *request, struct sockaddr_storage *address, socklen_t *length,
                       int *backlog) {
    char kind[8] = "", name[64] = "";
    int number = 0;
    *length = 0;
    *backlog = 0;
    struct sockaddr_un *local = (struct sockaddr_un *)address;
    struct sockaddr_in *loopback = (struct sockaddr_in *)address;
    sscanf(request, "L %7s", kind);
    if (!strcmp(kind, "unix") && sscanf(request, "L unix %63s %d", name, backlog) == 2) {
        local->sun_family = AF_UNIX;
        *length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
        memcpy(local->sun_path + 1, name, strlen(name)); /* the NUL before it makes it abstract */
        return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    }
    if (!strcmp(kind, "plain"))
        return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (!strcmp(kind, "netlink") && sscanf(request, "L netlink %d", &number) == 1)
        return socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, number);
    int stream = !strcmp(kind, "tcp") && sscanf(request, "L tcp %d %d", &number, backlog) == 2;
    if (!stream && (strcmp(kind, "udp") || sscanf(request, "L udp %d", &number) != 1)) {
        errno = EINVAL;
        return -1;
    }
    loopback->sin_family = AF_INET;
    loopback->sin_port = htons((uint16_t)number);
    loopback->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    *length = sizeof *loopback;
    return socket(AF_INET, (stream ? SOCK_STREAM : SOCK_DGRAM) | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* Returns the socket, or -1 with errno. */
static int listen_in_pod(const char *request) {
    struct sockaddr_storage address = {0};
    socklen_t length;
    int backlog, yes = 1;
    int made = make_socket(request, &address, &length, &backlog);
    if (made < 0) return -1;
    /* Connections that a copy of a sandbox had may still use this port, but accept nothing. */
    if (address.ss_family == AF_INET && backlog)
        setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if ((length && bind(made, (struct sockaddr *)&address, length)) ||
        (backlog && listen(made, backlog))) {
        int reason = errno;
        close(made);
        errno = reason;
        return -1;
    }
    return made;
}

static ssize_t answer_listen(const char *request) {
    char answer[128];
    int made = listen_in_pod(request);
    if (made < 0) {
        int size = snprintf(answer, sizeof answer, "error %s",
                            errno == EADDRINUSE ? "taken" : strerror(errno));
        return send_packet(WIRE_INIT_COMMAND, answer, (size_t)size, NULL, 0);
    }
    ssize_t sent = send_packet(WIRE_INIT_COMMAND, "ok", 2, &made, 1);
    if (sent < 0) {
        /* Too many descriptors of this user are in flight. The pod must not end for that: the
         * engine gets an answer without one. */
        int size = snprintf(answer, sizeof answer, "error %s", strerror(errno));
        sent = send_packet(WIRE_INIT_COMMAND, answer, (size_t)size, NULL, 0);
    }
    close(made);
    return sent;
}

/* pid 1 of the pod, holding every capability of the pod's user namespace and none outside it. It
 * runs no foreign code. It keeps descriptors for the next thaw, ends the pod's processes and makes
 * sockets in the pod's network on request, and exits when the engine closes its socket. */
static void run_init(struct pod *pod, int go, int done, const int *descriptors) {
    static const char *const zero[] = {"user", "pid", "uts", "ipc", "net", "mnt", "cgroup", "time"};
    char byte, path[96], text[128];
    int given[RAMET_MAX_DESCRIPTORS], count;
    /* The builder writes our id map first: before that we have no capabilities to use. */
    if (read(go, &byte, 1) != 1) _exit(1);
    setsid();
    bring_loopback_up();
    /* Best effort: podman's usual filter refuses it. Then the pod keeps the engine's name, and no
     * wall depends on it. */
    if (sethostname(pod->name, strlen(pod->name))) errno = 0;
    /* No process of the pod may make a namespace, even if it got past the seccomp filter. */
    for (size_t i = 0; i < sizeof zero / sizeof *zero; i++) {
        snprintf(path, sizeof path, "/proc/sys/user/max_%s_namespaces", zero[i]);
        write_text(path, "0", 0);
    }
    /* The kernel counts these per user over all pods as well: one pod must not take them all. */
    write_text("/proc/sys/user/max_inotify_instances", "16", 0);
    write_text("/proc/sys/user/max_inotify_watches", "8192", 0);
    /* Any pod may use low ports of its own network, and ping itself. */
    write_text("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0", 0);
    forget_connections_soon();
    bound_ipc(pod->memory_bytes);
    /* Out of the way of their final places first. */
    for (int i = 0; i <= pod->given; i++)
        given[i] = (int)MUST("dup", fcntl(descriptors[i], F_DUPFD_CLOEXEC, 200));
    int ready = (int)MUST("dup", fcntl(done, F_DUPFD_CLOEXEC, 200));
    close_range(0, 199, 0);
    for (int i = 0; i <= pod->given; i++)
        if (dup3(given[i], WIRE_INIT_COMMAND + i, O_CLOEXEC) < 0) _exit(1);
    /* Not earlier: a thaw may fetch the descriptors as soon as the pod is reported. */
    if (write(ready, "x", 1) != 1) _exit(1);
    close_from(200);
    /* Root of the pod must not trace us or take our descriptors. */
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    signal(SIGCHLD, SIG_IGN);
    for (;;) {
        ssize_t length = receive_packet(WIRE_INIT_COMMAND, text, sizeof text, given, &count);
        if (length <= 0) _exit(0);
        /* 'K': kill until no process is left. The next thaw takes ids that dead ones still hold. */
        for (int attempt = 0; text[0] == 'K' && attempt < 5000 && !kill(-1, SIGKILL); attempt++)
            usleep(200);
        if (text[0] == 'C') {
            /* The REPL has its lines. With a copy here, the engine would not see that it closed
             * them.
             */
            close_range(WIRE_INIT_CONTROL, WIRE_INIT_CONTROL + LINES - 1, 0);
            continue;
        }
        if (text[0] == 'L') {
            if (answer_listen(text) < 0) _exit(0);
            continue;
        }
        /* 'F': descriptors for the next thaw, in the order of the first ones. */
        for (int i = 0; i < count; i++) {
            if (text[0] == 'F') dup3(given[i], WIRE_INIT_CONTROL + i, O_CLOEXEC);
            close(given[i]);
        }
        if (send_packet(WIRE_INIT_COMMAND, "ok", 2, NULL, 0) < 0) _exit(0);
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
