/* One stopped thread under our hand: wait for it with a deadline, read and set its state, have it
 * make one system call. */
#ifndef RAMET_TRACEE_H
#define RAMET_TRACEE_H
#include "arch_x86_64.h"
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

/* A failed step and the kernel's answer. Functions fill this in and return -1; else they return 0
 * or a result. */
typedef struct {
    char step[160];
    int error;    /* an errno, 0 when the step itself is the message */
    int replaced; /* the REPL is another program now: a retry cannot succeed */
} failure;
int failed(failure *why, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Faults on purpose, for tests: a freeze or thaw that fails half-way must leave nothing behind. */
void fault_sweep(void);
void fault_begin(void);    /* a freeze begins */
void fault_rest(int rest); /* whether the steps that follow are left out of it */

/* Every wait ends by this moment: a tracee that spins, vanishes or stays in the kernel must not
 * hold up the engine. */
int deadline_begin(double seconds, failure *why);
void deadline_end(void);
int deadline_passed(void);
/* An earlier deadline for one step; returns the one to restore afterwards. */
struct timespec deadline_shorten(double seconds);
void deadline_restore(struct timespec allowed);

enum {
    STOP_EVENT_STOP,
    STOP_SYSCALL,
    STOP_SECCOMP,
    STOP_NEW_TASK,
    STOP_TRAP,
    STOP_SIGNAL,
    STOP_GONE
};
typedef struct {
    int kind, signal;
    pid_t new_task;
} stop;

int wait_stop(pid_t tid, stop *seen, failure *why);
/* Looks without waiting: 1 and what was seen, 0 nothing yet, -1 with errno. */
int look_for_stop(pid_t tid, stop *seen);
/* From now on waits of this thread do not reap these tasks: another thread of the engine does. The
 * array stays the caller's. */
void spare(const pid_t *pids, int count);
int read_registers(pid_t tid, registers *r, failure *why);
int write_registers(pid_t tid, const registers *r, failure *why);
int read_memory(pid_t pid, uint64_t at, void *to, size_t size, failure *why);
int write_memory(pid_t pid, uint64_t at, const void *from, size_t size, failure *why);
int set_mask(pid_t tid, uint64_t mask); /* like ptrace: 0, or -1 with errno */
int block_signals(pid_t tid, failure *why);
int set_options(pid_t tid, long options, failure *why);
void kill_and_reap(pid_t pid);
/* After a failure in the middle of a clone: the task that `maker` created before we heard of it, 0
 * if none. `trusted`: no sandbox shares the memory of `maker`, so that it may go on with its calls
 * until it has created the task. */
pid_t unseen_child(pid_t maker, int trusted);

/* Two processors that hand work to each other have to wake each other each time, which costs more
 * than the work. So we keep this thread and a task on one processor while they take turns. A task
 * that was brought here stays here until it is moved. */
void stay_here(void);
void bring_here(pid_t tid);
/* For work that a task does by itself, while this thread goes on with another. */
void let_roam(pid_t tid);
void roam(void);

/* Options of every task that we hold. EXITKILL: none of them runs on when the engine dies. A task
 * that is about to create others gets TRACE_CHILDREN as well. */
#define TRACE_ALWAYS   (PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACESECCOMP)
#define TRACE_CHILDREN (PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK)

/* Has the stopped `tid` make one call whose arguments are all in registers. We check the call at
 * its entry stop, because hostile code may share the memory and change the instruction there.
 * Returns 0 and the kernel's answer in `result`. */
int inject_begin(pid_t tid, const registers *from, uint64_t instruction, long number,
                 const uint64_t arguments[6], failure *why);
int inject_end(pid_t tid, long *result, pid_t *new_task, failure *why);
int inject(pid_t tid, const registers *from, uint64_t instruction, long number,
           const uint64_t arguments[6], long *result, pid_t *new_task, failure *why);
#endif
