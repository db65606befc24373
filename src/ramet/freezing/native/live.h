/* Freezing a sandbox that runs: stop it, read it, copy its memory, let it go on. */
#ifndef RAMET_LIVE_H
#define RAMET_LIVE_H
#include "snapshot.h"

/* The timed call that a thread was in when we stopped it. Stopped again in the same call, the
 * thread no longer shows the number of the call (arch_goes_on_in_call). */
typedef struct {
    pid_t tid;
    int32_t number;
    uint64_t instruction, stack;
} timed_call;

typedef struct {
    pid_t tid, leader;
    int stopped;   /* 0: seized, but it has not stopped yet */
    int touched;   /* we have changed its registers and its mask */
    registers own; /* it goes on with these, and with this mask */
    uint64_t mask;
} held_task;

enum { MAX_OWN = 65 };

typedef struct {
    /* The REPL, its shadow, pid 1 of its pod: all in the engine's numbering. */
    pid_t repl, shadow, init;
    /* The engine's own children in the pod: the REPL, then the leaders of its terminals, also those
     * that have ended. The pidfds stay the caller's. */
    pid_t own[MAX_OWN];
    int own_pidfds[MAX_OWN];
    int own_count;
    uint64_t syscall_at;
    const timed_call *before; /* what the last pause of this REPL found */
    int before_count;
    snapshot taken; /* without a shadow until copy_live */
    held_task *tasks;
    int task_count, task_room;
    pid_t *children; /* of the REPL, also dead ones that it has not reaped */
    int child_count, child_room;
    timed_call *timed;
    int timed_count;
    uint64_t timers[3][4]; /* struct itimerval by kind */
} paused;

/* Stops the REPL's threads, then everything else in its pod, and reads the threads. On failure
 * everything goes on. */
int pause_live(paused *p, failure *why);
/* Copies the memory into a new shadow, which then makes the given calls. The snapshot is the
 * caller's. */
int copy_live(paused *p, const given_call *given, int count, snapshot *taken, failure *why);
/* Lets everything go on, and frees what `p` holds. */
void resume_live(paused *p);
/* Some tasks have not stopped when a pause is given up. Detaches from those that have stopped
 * since; returns how many are left. */
int serve_stragglers(void);
#endif
