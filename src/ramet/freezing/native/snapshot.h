/* A snapshot: a frozen task's memory in a shadow, and the state of its threads as plain data. The
 * thread that froze it owns it. */
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
    pid_t shadow;     /* stopped; holds the memory */
    pid_t tracer;     /* the engine's thread that traces it: the only one that may touch it */
    int thread_count; /* main first */
    thread_state *threads;
    uint64_t syscall_at; /* a syscall instruction in this memory */
    int copying;         /* a copy of the shadow is being made ahead of time */
    int is_template;     /* we still trace the frozen threads themselves */
} snapshot;

/* Stops every thread of an idle template for ever and reads their state. */
int freeze_template(pid_t pid, int control, snapshot *taken, failure *why);
/* Kills and reaps the tasks of a snapshot. The thread that traces a stopped thread must reap it
 * before anybody can reap its process. */
void end_snapshot(snapshot *taken);
void snapshot_free(snapshot *taken);

/* A child process of the frozen REPL. In the new REPL it is dead, with this status (as waitpid
 * reports it). */
typedef struct {
    pid_t pid;
    int status;
} dead_child;

enum { NAMESPACES = WIRE_NAMESPACES_COUNT };
typedef struct {
    pid_t pod_init;   /* in E1's numbering */
    int pod_root;     /* where the sandbox must end up; a thaw checks it */
    pid_t main_pid;   /* in the pod */
    int cgroup_count; /* how many `tasks` files the pod's init holds for us */
    /* Inodes, in the order of WIRE_NAMESPACES: where the sandbox must end up as well. */
    uint64_t namespaces[NAMESPACES];
    /* The last thaw of the snapshot: its shadow becomes the sandbox's, which saves a copy. */
    int consume;
    /* Another thaw of the same snapshot follows at once and needs a copy. */
    int more;
    /* Calls that give the REPL its descriptors, folder and limits. It makes them inside the pod,
     * before it drops its capabilities. */
    int given_count;
    const given_call *given;
    /* Calls that it makes when it has dropped them: those that an image from elsewhere asks for. */
    int powerless_count;
    const given_call *powerless;
    int child_count;
    const dead_child *children;
} thaw_plan;

typedef struct {
    pid_t shadow, repl;
    int shadow_pidfd, repl_pidfd;
    double microseconds[4]; /* fork, shadow's calls, walls and threads, release */
} thawed;

/* With `consume` the snapshot has lost its shadow afterwards, also when the thaw failed. */
int thaw(snapshot *from, const thaw_plan *plan, thawed *made, failure *why);
/* S -> S', a copy-on-write copy whose memory no other task shares, stopped under our hand.
 * SHADOW_ASTRAY: S itself is not where it should be. The caller must kill it if a sandbox shares
 * its memory. */
enum { SHADOW_ASTRAY = -2 };
int copy_shadow(const snapshot *from, pid_t *copy, failure *why);
/* Begins a copy that the next take_copy waits for. Only for shadows that share their memory with no
 * other task. */
int copy_ahead(snapshot *from, failure *why);
int take_copy(snapshot *from, pid_t *copy, failure *why);
void end_copy_ahead(snapshot *from);

/* Sandboxes yield to the engine: threads that spin must not delay its answers. Shadows do not
 * yield, because they do the engine's work. It is a minimum: where the owner is nicer, so is its
 * engine, and a process without capabilities cannot become less nice. */
enum { SANDBOX_NICENESS = WIRE_SANDBOX_NICENESS };
/* The scheduler's settings of a process that no user has changed. */
extern thread_state usual_scheduling;
/* Reads them once, from a process that the engine has started and nobody else has touched. */
void learn_usual_scheduling(pid_t pid);

/* Learns the size and the features of the extended state that this kernel puts into signal frames,
 * from a frame of our own. */
int learn_frame_size(failure *why);
extern uint32_t frame_extended_size;
extern uint64_t frame_extended_features;
#endif
