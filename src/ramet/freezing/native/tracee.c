#define _GNU_SOURCE
#include "tracee.h"
#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef PTRACE_EVENT_STOP
#define PTRACE_EVENT_STOP 128
#endif
#ifndef PTRACE_SETSIGMASK
#define PTRACE_SETSIGMASK 0x420b
#endif
/* glibc hides the field that names the thread to be signalled. */
#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif
#ifndef SIGEV_THREAD_ID
#define SIGEV_THREAD_ID 4
#endif

int failed(failure *why, int error, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why->step, sizeof why->step, format, arguments);
    va_end(arguments);
    why->error = error;
    return -1;
}

/* waitpid has no timeout. A timer that signals this very thread makes it return EINTR; the handler does nothing. The timer
 * repeats, so a signal that arrives just before the wait begins is not the last one. */
static _Thread_local struct timespec deadline;
static _Thread_local timer_t alarm_timer;
static _Thread_local int have_timer;

static void on_alarm(int number) { (void)number; }

int deadline_begin(double seconds, failure *why) {
    if (!have_timer) {
        struct sigaction action = {.sa_handler = on_alarm}; /* no SA_RESTART: that is the point */
        struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMAX - 7};
        event.sigev_notify_thread_id = (pid_t)syscall(SYS_gettid);
        if (sigaction(SIGRTMAX - 7, &action, NULL)) return failed(why, errno, "install the alarm's handler");
        if (timer_create(CLOCK_MONOTONIC, &event, &alarm_timer)) return failed(why, errno, "make the alarm");
        have_timer = 1;
    }
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += (time_t)seconds;
    deadline.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    if (deadline.tv_nsec >= 1000000000L) deadline.tv_sec++, deadline.tv_nsec -= 1000000000L;
    struct itimerspec when = {.it_value = deadline, .it_interval = {0, 100000000L}};
    if (timer_settime(alarm_timer, TIMER_ABSTIME, &when, NULL)) return failed(why, errno, "set the alarm");
    return 0;
}

void deadline_end(void) {
    struct itimerspec never = {0};
    timer_settime(alarm_timer, 0, &never, NULL);
}

static int deadline_passed(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec > deadline.tv_sec || (now.tv_sec == deadline.tv_sec && now.tv_nsec >= deadline.tv_nsec);
}

int wait_stop(pid_t tid, stop *seen, failure *why) {
    int status;
    pid_t found;
    /* __WNOTHREAD: only what this thread traces; the rest of the engine waits for its own children elsewhere. */
    while ((found = waitpid(tid, &status, __WALL | __WNOTHREAD)) < 0) {
        if (errno != EINTR) return failed(why, errno, "wait for task %d", tid);
        if (deadline_passed()) return failed(why, ETIMEDOUT, "wait for task %d to stop", tid);
    }
    memset(seen, 0, sizeof *seen);
    if (!WIFSTOPPED(status)) {
        seen->kind = STOP_GONE;
        return 0;
    }
    int event = status >> 16, number = WSTOPSIG(status);
    seen->signal = number;
    if (event == PTRACE_EVENT_CLONE || event == PTRACE_EVENT_FORK || event == PTRACE_EVENT_VFORK) {
        unsigned long message = 0;
        if (ptrace(PTRACE_GETEVENTMSG, tid, 0, &message)) return failed(why, errno, "ask which task %d made", tid);
        seen->kind = STOP_NEW_TASK;
        seen->new_task = (pid_t)message;
    } else if (event == PTRACE_EVENT_SECCOMP) {
        seen->kind = STOP_SECCOMP;
    } else if (event == PTRACE_EVENT_STOP) {
        seen->kind = STOP_EVENT_STOP;
    } else if (number == (SIGTRAP | 0x80)) {
        seen->kind = STOP_SYSCALL;
    } else if (number == SIGTRAP && !event) {
        seen->kind = STOP_TRAP;
    } else {
        seen->kind = STOP_SIGNAL;
    }
    return 0;
}

int read_registers(pid_t tid, registers *r, failure *why) {
    struct iovec part = {r, sizeof *r};
    if (ptrace(PTRACE_GETREGSET, tid, (void *)NT_PRSTATUS, &part)) return failed(why, errno, "read the registers of task %d", tid);
    return 0;
}

int write_registers(pid_t tid, const registers *r, failure *why) {
    struct iovec part = {(void *)r, sizeof *r};
    if (ptrace(PTRACE_SETREGSET, tid, (void *)NT_PRSTATUS, &part)) return failed(why, errno, "set the registers of task %d", tid);
    return 0;
}

int read_memory(pid_t pid, uint64_t at, void *to, size_t size, failure *why) {
    struct iovec here = {to, size}, there = {(void *)at, size};
    if (process_vm_readv(pid, &here, 1, &there, 1, 0) != (ssize_t)size) return failed(why, errno, "read %zu bytes of task %d", size, pid);
    return 0;
}

int write_memory(pid_t pid, uint64_t at, const void *from, size_t size, failure *why) {
    struct iovec here = {(void *)from, size}, there = {(void *)at, size};
    if (process_vm_writev(pid, &here, 1, &there, 1, 0) != (ssize_t)size) return failed(why, errno, "write %zu bytes of task %d", size, pid);
    return 0;
}

int block_signals(pid_t tid, failure *why) {
    /* All but SIGTRAP: a blocked SIGTRAP at int3 would make the kernel reset its handler. */
    uint64_t mask = ~(1ul << (SIGTRAP - 1));
    if (ptrace(PTRACE_SETSIGMASK, tid, (void *)sizeof mask, &mask)) return failed(why, errno, "block the signals of task %d", tid);
    return 0;
}

int set_options(pid_t tid, long options, failure *why) {
    if (ptrace(PTRACE_SETOPTIONS, tid, 0, (void *)options)) return failed(why, errno, "set trace options of task %d", tid);
    return 0;
}

void kill_and_reap(pid_t pid) {
    int status;
    if (pid <= 0) return;
    pid_t here = waitpid(pid, &status, __WALL | __WNOTHREAD | WNOHANG);
    if (here < 0 || (here == pid && !WIFSTOPPED(status))) return;
    kill(pid, SIGKILL); /* ours and not yet reaped: the number cannot have been given to another */
    /* A while, not for ever: what hangs in the kernel must not hold the tracer. */
    for (int attempt = 0; attempt < 10000; attempt++) {
        pid_t found = waitpid(pid, &status, __WALL | __WNOTHREAD | WNOHANG);
        if (found < 0 && errno != EINTR) return;
        if (found == pid && !WIFSTOPPED(status)) return;
        if (found == 0) usleep(attempt < 100 ? 50 : 1000);
    }
}

int inject(pid_t tid, const registers *from, uint64_t instruction, long number, const uint64_t arguments[6], long *result, pid_t *new_task,
           failure *why) {
    registers r = *from;
    stop seen;
    arch_set_call(&r, instruction, number, arguments);
    if (write_registers(tid, &r, why)) return -1;
    if (ptrace(PTRACE_SYSCALL, tid, 0, 0)) return failed(why, errno, "resume task %d", tid);
    if (wait_stop(tid, &seen, why)) return -1;
    if (seen.kind == STOP_GONE) return failed(why, 0, "task %d ended while it was held", tid);
    if (read_registers(tid, &r, why)) return -1;
    if (seen.kind != STOP_SYSCALL || !arch_is_call(&r, instruction, number, arguments))
        return failed(why, 0, "task %d stood elsewhere than at the call it was told to make (stop %d): its memory was tampered with", tid, seen.kind);
    for (;;) {
        if (ptrace(PTRACE_SYSCALL, tid, 0, 0)) return failed(why, errno, "resume task %d", tid);
        if (wait_stop(tid, &seen, why)) return -1;
        if (seen.kind == STOP_SECCOMP) continue;
        if (seen.kind == STOP_NEW_TASK) {
            if (new_task) *new_task = seen.new_task;
            continue;
        }
        if (seen.kind != STOP_SYSCALL) return failed(why, 0, "task %d stopped oddly (%d) in call %ld", tid, seen.kind, number);
        break;
    }
    if (read_registers(tid, &r, why)) return -1;
    *result = arch_result(&r);
    return 0;
}
