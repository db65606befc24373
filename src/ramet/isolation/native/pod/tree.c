/* The file tree of a pod: the builder, with E1's capabilities, mounts it below /new and copies
 * images into it. */
#include "../common.h"
#include "../copytree.h"
#include "parts.h"
#include "pod.h"

enum { MOST_SKIPPED = 25000 }; /* inode numbers: some 8 microseconds each */

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
    char names[POD_PLACES_AT_MOST + 1][16];
    const char *list[POD_PLACES_AT_MOST + 1];
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
    char links[32];
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
        for (int i = 1 + POD_LINES; i < 1 + pod->given; i++)
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
void mount_tree(struct pod *pod, const int *descriptors, int count) {
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
void mask_proc(void) {
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
