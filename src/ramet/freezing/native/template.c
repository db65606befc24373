/* Freezing a template. It has run trusted code only, and no sandbox shares its memory. So we may
 * inject calls here that would trust the shadow of a live sandbox too much: their arguments point
 * into its memory. */
#define _GNU_SOURCE
#include "list.h"
#include "snapshot.h"
#include "threads.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_rseq
#define SYS_rseq 334
#endif

void end_snapshot(snapshot *taken) {
    /* Nothing was seized, and kill(0, ...) would mean our own process group. */
    if (taken->shadow <= 0) return;
    end_copy_ahead(taken);
    kill(taken->shadow, SIGKILL);
    for (int i = 0; taken->is_template && i < taken->thread_count; i++)
        if (taken->threads[i].tid != taken->shadow) kill_and_reap(taken->threads[i].tid);
    kill_and_reap(taken->shadow);
    taken->shadow = 0;
}

thread_state usual_scheduling;

void learn_usual_scheduling(pid_t pid) {
    thread_state own = {.tid = pid};
    if (usual_scheduling.tid) return;
    read_scheduling(&own);
    if (own.nice < SANDBOX_NICENESS) own.nice = SANDBOX_NICENESS;
    usual_scheduling = own;
}

static int is_known(const snapshot *taken, pid_t tid) {
    int known = tid <= 0;
    for (int i = 0; i < taken->thread_count; i++)
        known |= taken->threads[i].tid == tid;
    return known;
}

/* Seizes one thread and waits until it has stopped. Leaves out one that has ended meanwhile. */
static int seize_thread(pid_t tid, snapshot *taken, failure *why) {
    if (taken->thread_count == MAX_THREADS)
        return failed(why, 0, "the template has more than %d threads", MAX_THREADS);
    /* SEIZE and not ATTACH, which sends SIGSTOP and does not allow PTRACE_INTERRUPT. */
    if (ptrace(PTRACE_SEIZE, tid, 0, (void *)(long)TRACE_ALWAYS)) {
        if (errno == ESRCH) return 0;
        return failed(why, errno, "seize thread %d of the template", tid);
    }
    ptrace(PTRACE_INTERRUPT, tid, 0, 0);
    taken->threads[taken->thread_count++].tid = tid;
    for (;;) {
        stop seen;
        if (wait_stop(tid, &seen, why)) return -1;
        if (seen.kind == STOP_GONE)
            return failed(why, 0, "a thread of the template ended while it was stopped");
        if (seen.kind == STOP_EVENT_STOP) return 0;
        /* A signal came first: the thread gets it, and stops for us afterwards. */
        int pass_on = seen.kind == STOP_SIGNAL ? seen.signal : 0;
        ptrace(PTRACE_CONT, tid, 0, (void *)(long)pass_on);
    }
}

/* Puts the main thread first, because it runs our calls. */
static int seize_threads(pid_t pid, snapshot *taken, failure *why) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    /* A thread that has not stopped yet may create another: go on until a pass finds no new one. */
    for (int before = -1; before != taken->thread_count;) {
        before = taken->thread_count;
        DIR *folder = opendir(path);
        if (!folder) return failed(why, errno, "list the threads of template %d", pid);
        int result = 0;
        for (struct dirent *entry; !result && (entry = readdir(folder));) {
            pid_t tid = atoi(entry->d_name);
            if (!is_known(taken, tid)) result = seize_thread(tid, taken, why);
        }
        closedir(folder);
        if (result) return -1;
    }
    for (int i = 1; i < taken->thread_count; i++)
        if (taken->threads[i].tid == pid) {
            thread_state first = taken->threads[0];
            taken->threads[0] = taken->threads[i];
            taken->threads[i] = first;
        }
    return 0;
}

/* Only the thread itself can ask for its alternate stack. The template never runs again, so we need
 * not restore its registers. */
static int ask_alternate_stacks(snapshot *taken, failure *why) {
    long result;
    /* A page for the answers. */
    const uint64_t flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    uint64_t map[6] = {SCRATCH, 4096, PROT_READ | PROT_WRITE, flags, (uint64_t)-1, 0};
    if (inject(taken->shadow, &taken->threads[0].registers, taken->syscall_at, SYS_mmap, map,
               &result, NULL, why))
        return -1;
    if (result != (long)SCRATCH) return failed(why, (int)-result, "map a page in the template");
    for (int i = 0; i < taken->thread_count; i++) {
        thread_state *thread = &taken->threads[i];
        /* Sets nothing, and writes the current one to the page. */
        uint64_t ask[6] = {0, SCRATCH, 0, 0, 0, 0};
        if (inject(thread->tid, &thread->registers, taken->syscall_at, SYS_sigaltstack, ask,
                   &result, NULL, why))
            return -1;
        if (result) return failed(why, (int)-result, "ask for the alternate stack");
        if (read_memory(taken->shadow, SCRATCH, &thread->alternate_stack, sizeof(stack_t), why))
            return -1;
    }
    return 0;
}

/* Every copy of the memory inherits a registered rseq area, and the kernel jumps to the address in
 * that area when it resumes the task: in a shadow, code of the sandbox would choose that address. A
 * thawed thread registers its own area again once it has dropped its capabilities. */
static int unregister_rseq(const snapshot *taken, failure *why) {
    long result;
    const rseq_state *area = &taken->threads[0].rseq;
    uint64_t arguments[6] = {
        area->address, area->length, 1 /* RSEQ_FLAG_UNREGISTER */, area->signature, 0, 0};
    if (!area->address) return 0;
    if (inject(taken->shadow, &taken->threads[0].registers, taken->syscall_at, SYS_rseq, arguments,
               &result, NULL, why))
        return -1;
    if (result) return failed(why, (int)-result, "take the rseq area from the template");
    return check_no_rseq(taken->shadow, why);
}

int freeze_template(pid_t pid, int control, snapshot *taken, failure *why) {
    memset(taken, 0, sizeof *taken);
    taken->threads = calloc(MAX_THREADS, sizeof *taken->threads);
    if (!taken->threads) return failed(why, ENOMEM, "freeze");
    taken->shadow = pid;
    taken->is_template = 1;
    taken->tracer = (pid_t)syscall(SYS_gettid);
    if (learn_frame_size(why) || seize_threads(pid, taken, why)) return -1;
    for (int i = 0; i < taken->thread_count; i++)
        if (capture(&taken->threads[i], 1, why)) return -1;
    for (int i = 0; i < taken->thread_count; i++)
        if (taken->threads[i].nice < SANDBOX_NICENESS) taken->threads[i].nice = SANDBOX_NICENESS;
    learn_usual_scheduling(pid);
    registers *main_registers = &taken->threads[0].registers;
    /* Every sandbox goes on from here, so it must be the wait for the first cell. */
    if (arch_current_call(main_registers) != SYS_recvfrom ||
        arch_first_argument(main_registers) != (uint64_t)control)
        return failed(why, 0, "the template does not wait for its first cell (it is in call %ld)",
                      arch_current_call(main_registers));
    if (find_syscall(pid, &taken->syscall_at, why)) return -1;
    for (int i = 0; i < taken->thread_count; i++)
        if (block_signals(taken->threads[i].tid, why)) return -1;
    if (ask_alternate_stacks(taken, why)) return -1;
    if (unregister_rseq(taken, why)) return -1;
    /* Close every descriptor: copies inherit the table, and none may keep a pipe of the engine or a
     * file of the host open. */
    long result;
    uint64_t all[6] = {0, ~0u, 0, 0, 0, 0};
    if (inject(pid, main_registers, taken->syscall_at, SYS_close_range, all, &result, NULL, why))
        return -1;
    if (result) return failed(why, (int)-result, "close the template's descriptors");
    return set_options(pid, TRACE_ALWAYS | TRACE_CHILDREN, why);
}
