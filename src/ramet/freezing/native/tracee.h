/* One stopped thread under our hand: wait for it with a deadline, read and set it, have it make one system call. */
#ifndef RAMET_TRACEE_H
#define RAMET_TRACEE_H
#include "arch_x86_64.h"
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

/* What was tried and what came back. Functions return 0 or a result, and -1 after filling this in. */
typedef struct {
    char step[160];
    int error;    /* an errno, 0 when the step itself is the message */
    int replaced; /* the REPL is another program now, so that no other try will do better */
} failure;
int failed(failure *why, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Faults on purpose, for tests: what fails half-way must leave nothing behind and harm nobody. */
void fault_sweep(void);
void fault_begin(void);     /* a freeze begins */
void fault_rest(int rest);  /* what follows is not part of it, or is again */

/* Every wait ends by this moment: a tracee that spins, vanishes or stays in the kernel must not hold the engine. */
int deadline_begin(double seconds, failure *why);
void deadline_end(void);
int deadline_passed(void);
/* For one step that must not take long; returns what to restore afterwards. */
struct timespec deadline_shorten(double seconds);
void deadline_restore(struct timespec allowed);

enum { STOP_EVENT_STOP, STOP_SYSCALL, STOP_SECCOMP, STOP_NEW_TASK, STOP_TRAP, STOP_SIGNAL, STOP_GONE };
typedef struct {
    int kind, signal;
    pid_t new_task;
} stop;

int wait_stop(pid_t tid, stop *seen, failure *why);
/* Without waiting: 1 and what was seen, 0 nothing yet, -1 with errno. */
int look_for_stop(pid_t tid, stop *seen);
/* From now on waits of this thread leave these, which the caller keeps, to be collected by others when they have ended. */
void spare(const pid_t *pids, int count);
int read_registers(pid_t tid, registers *r, failure *why);
int write_registers(pid_t tid, const registers *r, failure *why);
int read_memory(pid_t pid, uint64_t at, void *to, size_t size, failure *why);
int write_memory(pid_t pid, uint64_t at, const void *from, size_t size, failure *why);
int set_mask(pid_t tid, uint64_t mask); /* like ptrace: 0, or -1 with errno */
int block_signals(pid_t tid, failure *why);
int set_options(pid_t tid, long options, failure *why);
void kill_and_reap(pid_t pid);
/* After a failure in the middle of a clone: the task that `maker` made without our having heard of it, 0 if none.
 * `trusted`: its memory is its own, so that it may be let go on with the calls it was given. */
pid_t unseen_child(pid_t maker, int trusted);

/* Two processors that hand work to each other wake each other each time, which costs more than the work. So while this thread
 * and a task take turns, both are kept on one processor; a task that is brought here stays until it is moved. */
void stay_here(void);
void bring_here(pid_t tid);
void let_roam(pid_t tid); /* for work that it does by itself, while this thread goes on with another */
void roam(void);

/* Options of everything we hold; a thread about to create tasks gets TRACE_CHILDREN as well. */
#define TRACE_ALWAYS (PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACESECCOMP)
#define TRACE_CHILDREN (PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK)

/* Has the stopped `tid` make one call, with everything in registers. The call is checked at its entry stop: the memory may be
 * shared with hostile code, and what runs must be what was set. Returns 0 and the kernel's answer in `result`. */
int inject_begin(pid_t tid, const registers *from, uint64_t instruction, long number, const uint64_t arguments[6], failure *why);
int inject_end(pid_t tid, long *result, pid_t *new_task, failure *why);
int inject(pid_t tid, const registers *from, uint64_t instruction, long number, const uint64_t arguments[6], long *result, pid_t *new_task,
           failure *why);
#endif
