#ifndef RAMET_POD_PARTS_H
#define RAMET_POD_PARTS_H
/* What the parts of a pod share: pod.c reads the request and makes the namespaces, tree.c mounts
 * the files, init.c is the process that stays. */

enum { POD_PLACES_AT_MOST = 48, POD_LAYERS_AT_MOST = 12 };
/* The lines between the REPL and the engine, which the init keeps for the next thaw. */
enum { POD_LINES = WIRE_INIT_CGROUPS - WIRE_INIT_CONTROL };

struct place {
    enum { BIND, SHOW, OVERLAY, MOUNT, SHOW_MOUNT } kind;
    int tree;
    const char *path;
};
struct pod {
    const char *id, *name;
    int boot, given, skeleton, place_count, layer_count, has_files, has_shm;
    int layers[POD_LAYERS_AT_MOST];
    unsigned long long upper_bytes, upper_inodes, shm_bytes, memory_bytes;
    struct place places[POD_PLACES_AT_MOST];
};

/* Mounts the layers of the file tree below /new. `descriptors`: all that came with the request. */
void mount_tree(struct pod *pod, const int *descriptors, int count);
/* Hides files of /proc that show the host or control it, and makes others read-only. */
void mask_proc(void);
/* pid 1 of the pod. It waits for a byte on `go`, writes one to `done` when the pod may be used, and
 * never returns. */
__attribute__((noreturn)) void run_init(struct pod *pod, int go, int done, const int *descriptors);
#endif
