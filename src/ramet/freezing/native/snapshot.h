/* A snapshot: what is needed to wake a frozen task's threads elsewhere. Plain data, owned by whoever froze it. */
#ifndef RAMET_SNAPSHOT_H
#define RAMET_SNAPSHOT_H
#include "list.h"
#include "tracee.h"
#include <signal.h>

typedef struct {
    uint64_t address;
    uint32_t length, signature, flags, padding;
} rseq_state; /* struct ptrace_rseq_configuration */

typedef struct {
    pid_t tid, inner_tid; /* in the engine's and in the task's own pid namespace */
    registers registers;
    unsigned char *extended;
    uint32_t extended_size;
    uint64_t mask, tid_address, robust_list, robust_length;
    rseq_state rseq;
    stack_t alternate_stack;
    char name[16];
    int nice, policy, io_priority;
    uint64_t affinity[16]; /* 1024 processors; all zero: unknown */
} thread_state;

typedef struct {
    pid_t shadow;       /* stopped; holds the memory */
    pid_t tracer;       /* the engine's thread that traces it: the only one that may touch it */
    int thread_count;   /* main first */
    thread_state *threads;
    uint64_t syscall_at; /* a syscall instruction in this memory */
    int copying;         /* a copy of the shadow is being made ahead of time */
    int is_template;     /* the threads themselves are held as well */
} snapshot;

/* Stops every thread of an idle template for ever and reads its state. */
int freeze_template(pid_t pid, int control, snapshot *taken, failure *why);
/* Kills what is held of a snapshot. Each stopped thread must be reaped by the thread that traces it before its process can be. */
void end_snapshot(snapshot *taken);
void snapshot_free(snapshot *taken);

/* A child process of the frozen REPL: in the new one it is dead, with this status (as waitpid gives it). */
typedef struct {
    pid_t pid;
    int status;
} dead_child;

enum { NAMESPACES = 7 };
typedef struct {
    pid_t pod_init;      /* in E1's numbering */
    int pod_root;        /* where the sandbox must end up: checked */
    pid_t main_pid;      /* in the pod */
    int cgroup_count;    /* how many `tasks` files the pod's init holds for us */
    uint64_t namespaces[NAMESPACES]; /* inodes: user, mnt, net, ipc, uts, cgroup, pid; where it must end up as well */
    int consume;         /* the snapshot's shadow becomes the sandbox's: its last thaw, which saves a copy */
    int more;            /* another thaw of the same snapshot follows at once, and needs a copy */
    int given_count;     /* calls that give the REPL its descriptors, folder, limits... inside the pod, before it loses its power */
    const given_call *given;
    int child_count;
    const dead_child *children;
} thaw_plan;

typedef struct {
    pid_t shadow, repl;
    int shadow_pidfd, repl_pidfd;
    double microseconds[4]; /* fork, shadow's calls, walls and threads, release */
} thawed;

/* With `consume` the snapshot's shadow is no longer the snapshot's, whatever the result. */
int thaw(snapshot *from, const thaw_plan *plan, thawed *made, failure *why);
/* S -> S', a copy-on-write copy that nobody shares, stopped under our hand. SHADOW_ASTRAY: S itself is not where it should be,
 * and must be killed unless its memory is nobody else's. */
enum { SHADOW_ASTRAY = -2 };
int copy_shadow(const snapshot *from, pid_t *copy, failure *why);
/* Begins a copy that the next take_copy waits for. Only for shadows whose memory is theirs alone. */
int copy_ahead(snapshot *from, failure *why);
int take_copy(snapshot *from, pid_t *copy, failure *why);
void end_copy_ahead(snapshot *from);

/* Sandboxes yield to the engine: threads that spin must not delay its answers. Shadows do the engine's work and do not. At least
 * so nice: an owner that is nicer has an engine that is, and nobody without power can become less so. */
enum { SANDBOX_NICENESS = 5 };
/* What the scheduler knew of the template's main thread: what a user has not changed. */
extern thread_state usual_scheduling;

/* The extended state that this kernel puts into signal frames: its size and features, found by looking at one. */
int learn_frame_size(failure *why);
extern uint32_t frame_extended_size;
extern uint64_t frame_extended_features;
#endif
