/* Freezing a sandbox that runs: stop it, read it, copy its memory, let it go on. */
#ifndef RAMET_LIVE_H
#define RAMET_LIVE_H
#include "snapshot.h"

/* A thread that was in a timed call when it was stopped. Stopped again in the same call it no longer says which one it is. */
typedef struct {
    pid_t tid;
    int32_t number;
    uint64_t instruction, stack;
} timed_call;

typedef struct {
    pid_t tid, leader;
    int stopped;    /* 0: seized, but has not come to a stop yet */
    int touched;    /* its registers and mask are not its own at the moment */
    registers own;  /* with which it goes on */
    uint64_t mask;
} held_task;

enum { MAX_OWN = 65 };

typedef struct {
    pid_t repl, shadow, init; /* the REPL, what shares its memory, pid 1 of its pod: all in the engine's numbering */
    pid_t own[MAX_OWN];       /* the engine's own children in the pod: the REPL, then the leaders of its terminals, dead ones too */
    int own_pidfds[MAX_OWN];  /* the caller's */
    int own_count;
    uint64_t syscall_at;
    const timed_call *before; /* of the last pause of this REPL */
    int before_count;
    snapshot taken; /* without a shadow until copy_live */
    held_task *tasks;
    int task_count, task_room;
    pid_t *children; /* of the REPL, the dead ones that nobody waited for included */
    int child_count, child_room;
    timed_call *timed;
    int timed_count;
    uint64_t timers[3][4]; /* struct itimerval by kind */
} paused;

/* Stops the REPL's threads, then everything else in its pod, and reads the threads. On failure everything goes on. */
int pause_live(paused *p, failure *why);
/* The memory as it is now, in a new shadow, which then makes the given calls. The snapshot is the caller's. */
int copy_live(paused *p, const given_call *given, int count, snapshot *taken, failure *why);
/* Lets everything go on, and frees what `p` holds. */
void resume_live(paused *p);
/* Tasks that had not stopped when they were given up on: lets those go that have stopped since. Returns how many are left. */
int serve_stragglers(void);
#endif
