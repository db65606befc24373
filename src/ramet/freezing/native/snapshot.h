/* A snapshot: what is needed to wake a frozen task's threads elsewhere. Plain data, owned by whoever froze it. */
#ifndef RAMET_SNAPSHOT_H
#define RAMET_SNAPSHOT_H
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
} thread_state;

typedef struct {
    pid_t shadow;       /* stopped; holds the memory */
    pid_t tracer;       /* the engine's thread that traces it: the only one that may touch it */
    int thread_count;   /* main first */
    thread_state *threads;
    uint64_t syscall_at; /* a syscall instruction in this memory */
} snapshot;

/* Stops every thread of an idle template for ever and reads its state. */
int freeze_template(pid_t pid, int control, snapshot *taken, failure *why);
/* Ends a frozen template. Each stopped thread must be reaped by the thread that traces it before the process can be. */
void end_template(snapshot *taken);
void snapshot_free(snapshot *taken);

/* A read-only file that the template had open: made anew from its path, inside the pod. */
typedef struct {
    int number, flags;
    int64_t offset;
    char path[1024];
} file_recipe;
enum { MAX_FILES = 64 };

typedef struct {
    pid_t pod_init;          /* in E1's numbering */
    int pod_root;            /* where the sandbox must end up: checked */
    pid_t main_pid;          /* in the pod */
    int cgroup_count;        /* how many `tasks` files the pod's init holds for us */
    int limit_count;
    uint64_t limits[16][3];  /* resource, soft, hard */
    int file_count;
    file_recipe files[MAX_FILES];
} thaw_plan;

typedef struct {
    pid_t shadow, repl;
    int shadow_pidfd, repl_pidfd;
    double microseconds[4]; /* fork, shadow's calls, walls and threads, release */
} thawed;

int thaw(const snapshot *from, const thaw_plan *plan, thawed *made, failure *why);

/* The extended state that this kernel puts into signal frames: its size and features, found by looking at one. */
int learn_frame_size(failure *why);
extern uint32_t frame_extended_size;
extern uint64_t frame_extended_features;
#endif
