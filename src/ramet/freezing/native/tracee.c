/* One stopped thread under our hand; see tracee.h. */
#define _GNU_SOURCE
#include "tracee.h"
#include <elf.h>
#include <errno.h>
#include <sched.h>
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
    why->replaced = 0;
    return -1;
}

/* For tests: the first freeze after `fault_sweep`, and the thaws from it, fail at their first step,
 * the next ones at their second step, and so on. */
static int fault_sweeping, fault_armed, fault_at, fault_step;

void fault_sweep(void) { fault_sweeping = 1; }
void fault_begin(void) {
    fault_armed = fault_sweeping;
    fault_at++;
    fault_step = 0;
}
void fault_rest(int rest) { fault_armed = fault_sweeping && !rest && fault_step < fault_at; }

static int fault(failure *why) {
    if (!fault_armed || ++fault_step < fault_at) return 0;
    fault_armed = 0;
    return failed(why, EIO, "step %d, made to fail", fault_step);
}

/* waitpid has no timeout. A timer signals this very thread, and waitpid returns EINTR; the handler
 * does nothing. The race: a signal that arrives just before the wait begins interrupts nothing. So
 * the timer repeats. */
static _Thread_local struct timespec deadline;
static _Thread_local timer_t alarm_timer;
static _Thread_local int have_timer;

/* For a task to execute a few instructions. A guess that leaves room for a busy machine. */
#define ENTRY_SECONDS 1.0

static void on_alarm(int number) { (void)number; }

static struct timespec later(double seconds) {
    struct timespec when;
    clock_gettime(CLOCK_MONOTONIC, &when);
    when.tv_sec += (time_t)seconds;
    when.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    if (when.tv_nsec >= 1000000000L) {
        when.tv_sec++;
        when.tv_nsec -= 1000000000L;
    }
    return when;
}

static int set_alarm(struct timespec when) {
    struct itimerspec repeated = {.it_value = when, .it_interval = {0, 100000000L}};
    deadline = when;
    return timer_settime(alarm_timer, TIMER_ABSTIME, &repeated, NULL);
}

int deadline_begin(double seconds, failure *why) {
    if (!have_timer) {
        struct sigaction action = {.sa_handler = on_alarm}; /* no SA_RESTART: that is the point */
        struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMAX - 7};
        event.sigev_notify_thread_id = (pid_t)syscall(SYS_gettid);
        if (sigaction(SIGRTMAX - 7, &action, NULL))
            return failed(why, errno, "install the alarm's handler");
        if (timer_create(CLOCK_MONOTONIC, &event, &alarm_timer))
            return failed(why, errno, "make the alarm");
        have_timer = 1;
    }
    return set_alarm(later(seconds)) ? failed(why, errno, "set the alarm") : 0;
}

void deadline_end(void) {
    struct itimerspec never = {0};
    timer_settime(alarm_timer, 0, &never, NULL);
}

static int is_before(struct timespec one, struct timespec other) {
    return one.tv_sec < other.tv_sec || (one.tv_sec == other.tv_sec && one.tv_nsec < other.tv_nsec);
}

int deadline_passed(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return !is_before(now, deadline);
}

/* Children of the engine that the engine reaps itself: a wait here must not take their exit status
 * away from it. */
static _Thread_local const pid_t *spared;
static _Thread_local int spared_count;

void spare(const pid_t *pids, int count) {
    spared = pids;
    spared_count = count;
}

static int is_spared(pid_t tid) {
    for (int i = 0; i < spared_count; i++)
        if (spared[i] == tid) return 1;
    return 0;
}

/* Asks the kernel about a traced task: 0 nothing yet, 1 something in `seen`, -1 with errno. */
static int look(pid_t tid, int options, stop *seen) {
    siginfo_t info = {0};
    /* __WNOTHREAD: only tasks that this thread traces, because other threads of the engine wait for
     * children of their own. WNOWAIT leaves an exit status to be reaped by the engine; it leaves a
     * stop as well, which is over as soon as the task is resumed. */
    if (is_spared(tid)) options |= WNOWAIT;
    if (waitid(P_PID, (id_t)tid, &info, WSTOPPED | WEXITED | __WALL | __WNOTHREAD | options))
        return -1;
    if (!info.si_pid) return 0;
    memset(seen, 0, sizeof *seen);
    if (info.si_code != CLD_TRAPPED && info.si_code != CLD_STOPPED) {
        seen->kind = STOP_GONE;
        return 1;
    }
    int event = info.si_status >> 8, number = info.si_status & 0xff;
    seen->signal = number;
    if (event == PTRACE_EVENT_CLONE || event == PTRACE_EVENT_FORK || event == PTRACE_EVENT_VFORK) {
        unsigned long message = 0;
        if (ptrace(PTRACE_GETEVENTMSG, tid, 0, &message)) return -1;
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
    return 1;
}

int wait_stop(pid_t tid, stop *seen, failure *why) {
    if (fault(why)) return -1;
    while (look(tid, 0, seen) != 1) {
        if (errno != EINTR) return failed(why, errno, "wait for task %d", tid);
        if (deadline_passed()) return failed(why, ETIMEDOUT, "wait for task %d to stop", tid);
    }
    return 0;
}

int look_for_stop(pid_t tid, stop *seen) { return look(tid, WNOHANG, seen); }

int read_registers(pid_t tid, registers *r, failure *why) {
    struct iovec part = {r, sizeof *r};
    if (ptrace(PTRACE_GETREGSET, tid, (void *)NT_PRSTATUS, &part))
        return failed(why, errno, "read the registers of task %d", tid);
    return 0;
}

int write_registers(pid_t tid, const registers *r, failure *why) {
    struct iovec part = {(void *)r, sizeof *r};
    if (ptrace(PTRACE_SETREGSET, tid, (void *)NT_PRSTATUS, &part))
        return failed(why, errno, "set the registers of task %d", tid);
    return 0;
}

int read_memory(pid_t pid, uint64_t at, void *to, size_t size, failure *why) {
    struct iovec here = {to, size}, there = {(void *)at, size};
    if (fault(why)) return -1;
    if (process_vm_readv(pid, &here, 1, &there, 1, 0) != (ssize_t)size)
        return failed(why, errno, "read %zu bytes of task %d", size, pid);
    return 0;
}

int write_memory(pid_t pid, uint64_t at, const void *from, size_t size, failure *why) {
    struct iovec here = {(void *)from, size}, there = {(void *)at, size};
    if (fault(why)) return -1;
    if (process_vm_writev(pid, &here, 1, &there, 1, 0) != (ssize_t)size)
        return failed(why, errno, "write %zu bytes of task %d", size, pid);
    return 0;
}

int set_mask(pid_t tid, uint64_t mask) {
    return (int)ptrace(PTRACE_SETSIGMASK, tid, (void *)sizeof mask, &mask);
}

int block_signals(pid_t tid, failure *why) {
    /* All but SIGTRAP: when a blocked SIGTRAP comes at int3, the kernel resets its handler. */
    if (set_mask(tid, ~(1ul << (SIGTRAP - 1))))
        return failed(why, errno, "block the signals of task %d", tid);
    return 0;
}

int set_options(pid_t tid, long options, failure *why) {
    if (fault(why)) return -1;
    if (ptrace(PTRACE_SETOPTIONS, tid, 0, (void *)options))
        return failed(why, errno, "set trace options of task %d", tid);
    return 0;
}

void kill_and_reap(pid_t pid) {
    int status;
    if (pid <= 0) return;
    pid_t here = waitpid(pid, &status, __WALL | __WNOTHREAD | WNOHANG);
    if (here < 0 || (here == pid && !WIFSTOPPED(status))) return;
    /* It is our child and not yet reaped, so no other process can have got its number. */
    kill(pid, SIGKILL);
    /* For a while and not for ever: a task that hangs in the kernel must not hold up the tracer. */
    for (int attempt = 0; attempt < 10000; attempt++) {
        pid_t found = waitpid(pid, &status, __WALL | __WNOTHREAD | WNOHANG);
        if (found < 0 && errno != EINTR) return;
        if (found == pid && !WIFSTOPPED(status)) return;
        if (found == 0) usleep(attempt < 100 ? 50 : 1000);
    }
}

pid_t unseen_child(pid_t maker, int trusted) {
    stop seen;
    for (int attempt = 0; attempt < 200; attempt++) {
        int found = look_for_stop(maker, &seen);
        if (found < 0 && errno != EINTR) return 0;
        if (found == 1 && seen.kind == STOP_SECCOMP && trusted) {
            ptrace(PTRACE_CONT, maker, 0, 0);
        } else if (found == 1) {
            return seen.kind == STOP_NEW_TASK ? seen.new_task : 0;
        }
        usleep(100);
    }
    return 0;
}

static _Thread_local cpu_set_t roaming;
static _Thread_local int here = -1;

void stay_here(void) {
    cpu_set_t one;
    here = sched_getcpu();
    if (here < 0 || sched_getaffinity(0, sizeof roaming, &roaming)) {
        here = -1;
        return;
    }
    CPU_ZERO(&one);
    CPU_SET(here, &one);
    if (sched_setaffinity(0, sizeof one, &one)) here = -1;
}

void bring_here(pid_t tid) {
    cpu_set_t one;
    if (here < 0) return;
    CPU_ZERO(&one);
    CPU_SET(here, &one);
    sched_setaffinity(tid, sizeof one, &one); /* only for speed */
}

void let_roam(pid_t tid) {
    if (here >= 0) sched_setaffinity(tid, sizeof roaming, &roaming);
}

void roam(void) {
    if (here >= 0) sched_setaffinity(0, sizeof roaming, &roaming);
    here = -1;
}

struct timespec deadline_shorten(double seconds) {
    struct timespec allowed = deadline, soon = later(seconds);
    if (is_before(soon, allowed)) set_alarm(soon);
    return allowed;
}

void deadline_restore(struct timespec allowed) { set_alarm(allowed); }

/* Asks the kernel how `tid` entered the call that it stands at. The registers do not show it: where
 * hostile code has put `int 0x80` over the bytes of `syscall` they are the same, but the kernel
 * looks the number up in its 32-bit table, where it means another call. The layout is that of
 * struct ptrace_syscall_info, Linux 5.3. */
static int came_in_by_our_instruction(pid_t tid) {
    struct {
        uint8_t op, pad[3];
        uint32_t arch;
        uint64_t instruction_pointer, stack_pointer, number, arguments[6];
        uint64_t room; /* the seccomp and exit forms are longer */
    } info = {0};
    long size = ptrace((enum __ptrace_request)0x420e /* PTRACE_GET_SYSCALL_INFO */, tid,
                       (void *)sizeof info, &info);
    return size > 0 && info.op == 1 /* PTRACE_SYSCALL_INFO_ENTRY */ && info.arch == ARCH_AUDIT;
}

int inject_begin(pid_t tid, const registers *from, uint64_t instruction, long number,
                 const uint64_t arguments[6], failure *why) {
    registers r = *from;
    stop seen;
    arch_set_call(&r, instruction, number, arguments);
    if (write_registers(tid, &r, why)) return -1;
    /* It stands at the instruction that enters the kernel. Hostile code may have put another one
     * there that never does, so this wait is short. */
    if (ptrace(PTRACE_SYSCALL, tid, 0, 0)) return failed(why, errno, "resume task %d", tid);
    struct timespec allowed = deadline_shorten(ENTRY_SECONDS);
    int arrived = wait_stop(tid, &seen, why);
    deadline_restore(allowed);
    if (arrived) return -1;
    if (seen.kind == STOP_GONE) return failed(why, 0, "task %d ended while it was held", tid);
    if (read_registers(tid, &r, why)) return -1;
    if (seen.kind != STOP_SYSCALL || !arch_is_call(&r, instruction, number, arguments) ||
        !came_in_by_our_instruction(tid))
        return failed(why, 0,
                      "task %d stood elsewhere than at the call it was told to make (stop %d): its "
                      "memory was tampered with",
                      tid, seen.kind);
    if (ptrace(PTRACE_SYSCALL, tid, 0, 0)) return failed(why, errno, "resume task %d", tid);
    return 0;
}

int inject_end(pid_t tid, long *result, pid_t *new_task, failure *why) {
    registers r;
    stop seen;
    for (;;) {
        if (wait_stop(tid, &seen, why)) return -1;
        if (seen.kind == STOP_NEW_TASK && new_task) *new_task = seen.new_task;
        if (seen.kind == STOP_SYSCALL) break;
        if (seen.kind != STOP_SECCOMP && seen.kind != STOP_NEW_TASK)
            return failed(why, 0, "task %d stopped oddly (%d) in a call", tid, seen.kind);
        if (ptrace(PTRACE_SYSCALL, tid, 0, 0)) return failed(why, errno, "resume task %d", tid);
    }
    if (read_registers(tid, &r, why)) return -1;
    *result = arch_result(&r);
    return 0;
}

int inject(pid_t tid, const registers *from, uint64_t instruction, long number,
           const uint64_t arguments[6], long *result, pid_t *new_task, failure *why) {
    if (inject_begin(tid, from, instruction, number, arguments, why)) return -1;
    return inject_end(tid, result, new_task, why);
}
