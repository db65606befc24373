/* One stopped thread under our hand: wait for it with a deadline, read and set it, have it make one system call. */
#ifndef RAMET_TRACEE_H
#define RAMET_TRACEE_H
#include "arch_x86_64.h"
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* What was tried and what came back. Functions return 0 or a result, and -1 after filling this in. */
typedef struct {
    char step[160];
    int error; /* an errno, 0 when the step itself is the message */
} failure;
int failed(failure *why, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Every wait ends by this moment: a tracee that spins, vanishes or stays in the kernel must not hold the engine. */
int deadline_begin(double seconds, failure *why);
void deadline_end(void);

enum { STOP_EVENT_STOP, STOP_SYSCALL, STOP_SECCOMP, STOP_NEW_TASK, STOP_TRAP, STOP_SIGNAL, STOP_GONE };
typedef struct {
    int kind, signal;
    pid_t new_task;
} stop;

int wait_stop(pid_t tid, stop *seen, failure *why);
int read_registers(pid_t tid, registers *r, failure *why);
int write_registers(pid_t tid, const registers *r, failure *why);
int read_memory(pid_t pid, uint64_t at, void *to, size_t size, failure *why);
int write_memory(pid_t pid, uint64_t at, const void *from, size_t size, failure *why);
int block_signals(pid_t tid, failure *why);
int set_options(pid_t tid, long options, failure *why);
void kill_and_reap(pid_t pid);

/* Options of everything we hold; a thread about to create tasks gets TRACE_CHILDREN as well. */
#define TRACE_ALWAYS (PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACESECCOMP)
#define TRACE_CHILDREN (PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK)

/* Has the stopped `tid` make one call, with everything in registers. The call is checked at its entry stop: the memory may be
 * shared with hostile code, and what runs must be what was set. Returns 0 and the kernel's answer in `result`. */
int inject(pid_t tid, const registers *from, uint64_t instruction, long number, const uint64_t arguments[6], long *result, pid_t *new_task,
           failure *why);
#endif
