/* Snapshots on disk; see image.h. The thaw cannot tell a shadow that was poured from one that was
 * frozen here. */
#define _GNU_SOURCE
#include "image.h"
#include "threads.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_rseq
#define SYS_rseq 334
#endif

/* --- out ------------------------------------------------------------------------------------- */

int ask_shadow(const snapshot *from, uint64_t *heap_end, unsigned char *actions, failure *why) {
    scratch region = {0};
    list calls = {0};
    long unmapped = 0;
    const size_t answers_size = (size_t)SIGNALS * ACTION_BYTES;
    const size_t room = SCRATCH_LISTS + SCRATCH_STACK + 4096;
    if (from->shadow <= 0) return failed(why, 0, "this snapshot has no shadow any more");
    if (from->copying) return failed(why, EAGAIN, "ask a shadow that is being copied");
    int bad =
        scratch_make(&region, SCRATCH, room + answers_size + (SIGNALS + 1) * sizeof(call), why);
    uint64_t answers = bad ? 0 : scratch_put(&region, NULL, answers_size, 64);
    /* An impossible end: the kernel leaves the heap as it is and answers where it ends. */
    TRY_CALL(&calls, "ask where the heap ends", SYS_brk, 0);
    for (int number = 1; number <= SIGNALS; number++)
        TRY_CALL(&calls, "ask for a signal handler", SYS_rt_sigaction, (uint64_t)number, 0,
                 answers + (uint64_t)(number - 1) * ACTION_BYTES, 8);
    const registers *r = &from->threads[0].registers;
    bad = bad || list_place(&calls, &region, why) ||
          scratch_map(&region, from->shadow, r, from->syscall_at, why) ||
          list_run(from->shadow, &region, &calls, NULL, why) ||
          /* The result of a call replaces its number. */
          read_memory(from->shadow, calls.at, heap_end, sizeof *heap_end, why) ||
          read_memory(from->shadow, answers, actions, answers_size, why);
    uint64_t gone[6] = {SCRATCH, region.size, 0, 0, 0, 0};
    bad = bad || inject(from->shadow, r, from->syscall_at, SYS_munmap, gone, &unmapped, NULL, why);
    scratch_free(&region);
    list_free(&calls);
    return bad ? -1 : 0;
}

/* The states are this structure of C, with its own size in front: an engine of another build whose
 * structure differs refuses them. */
enum {
    STATES_MAGIC = 0x32545352,
    STATES_ALIGNED = 64,
    EXTENDED_AT_LEAST = 576,
    EXTENDED_AT_MOST = 64 * 1024
};
typedef struct {
    uint32_t magic, threads, state_bytes, padding;
} states_head;

static size_t padded(uint32_t size) {
    return ((size_t)size + STATES_ALIGNED - 1) & ~((size_t)STATES_ALIGNED - 1);
}

size_t states_size(const snapshot *from) {
    size_t size = sizeof(states_head);
    for (int i = 0; i < from->thread_count; i++)
        size += sizeof(thread_state) + padded(from->threads[i].extended_size);
    return size;
}

void states_write(const snapshot *from, unsigned char *to) {
    states_head head = {STATES_MAGIC, (uint32_t)from->thread_count, sizeof(thread_state), 0};
    memset(to, 0, states_size(from));
    memcpy(to, &head, sizeof head);
    to += sizeof head;
    for (int i = 0; i < from->thread_count; i++) {
        thread_state state = from->threads[i];
        state.extended = NULL;
        state.tid = 0;
        memcpy(to, &state, sizeof state);
        to += sizeof state;
        memcpy(to, from->threads[i].extended, state.extended_size);
        to += padded(state.extended_size);
    }
}

/* --- in -------------------------------------------------------------------------------------- */

/* One thread. Registers may hold anything: they have no more effect than those of any process
 * inside the walls. Sizes, ids and addresses are used here, and are checked. */
static int read_state(thread_state *state, const unsigned char **from, size_t *left, failure *why) {
    if (*left < sizeof *state) return failed(why, 0, "the threads of the image are cut short");
    memcpy(state, *from, sizeof *state);
    *from += sizeof *state;
    *left -= sizeof *state;
    state->extended = NULL;
    state->tid = 0;
    state->name[sizeof state->name - 1] = 0;
    size_t size = padded(state->extended_size);
    if (state->extended_size < EXTENDED_AT_LEAST || state->extended_size > EXTENDED_AT_MOST)
        return failed(why, 0, "the image has vector registers of %u bytes", state->extended_size);
    if (*left < size) return failed(why, 0, "the threads of the image are cut short");
    state->extended = malloc(size);
    if (!state->extended) return failed(why, ENOMEM, "read the threads of an image");
    memcpy(state->extended, *from, size);
    *from += size;
    *left -= size;
    uint64_t present;
    memcpy(&present, state->extended + ARCH_XSTATE_BV, sizeof present);
    const char *missing = arch_missing_state(present, frame_extended_features);
    if (missing) return failed(why, 0, "the image uses %s, which this machine lacks", missing);
    /* What lies behind the registers that are in use is not: each set has its place, and the engine
     * has compared the places. */
    if (state->extended_size > frame_extended_size) state->extended_size = frame_extended_size;
    if (state->inner_tid <= 1 || state->inner_tid >= LARGEST_TID)
        return failed(why, 0, "the image has a thread with the id %d", state->inner_tid);
    return check_records(state, why);
}

static int read_states(snapshot *to, const unsigned char *from, size_t size, failure *why) {
    states_head head;
    if (size < sizeof head) return failed(why, 0, "the threads of the image are cut short");
    memcpy(&head, from, sizeof head);
    from += sizeof head;
    size -= sizeof head;
    if (head.magic != STATES_MAGIC || head.state_bytes != sizeof(thread_state))
        return failed(why, 0, "the threads of the image were written by another build of Ramet");
    if (head.threads < 1 || head.threads > MAX_THREADS)
        return failed(why, 0, "the image has %u threads, allowed are 1 to %d", head.threads,
                      MAX_THREADS);
    to->threads = calloc(head.threads, sizeof *to->threads);
    if (!to->threads) return failed(why, ENOMEM, "read the threads of an image");
    while (to->thread_count < (int)head.threads)
        /* Counted first: snapshot_free frees what a failed read has allocated. */
        if (read_state(&to->threads[to->thread_count++], &from, &size, why)) return -1;
    return 0;
}

/* The C library of the empty process has registered an area in memory that is about to go. */
static int take_rseq(pid_t pid, const registers *r, uint64_t syscall_at, failure *why) {
    rseq_state area = {0};
    long result;
    if (ptrace(PTRACE_GET_RSEQ, pid, (void *)sizeof area, &area) < 0 || !area.address) return 0;
    uint64_t arguments[6] = {area.address,   area.length, 1 /* RSEQ_FLAG_UNREGISTER */,
                             area.signature, 0,           0};
    if (inject(pid, r, syscall_at, SYS_rseq, arguments, &result, NULL, why)) return -1;
    if (result) return failed(why, (int)-result, "take the rseq area from an empty process");
    return check_no_rseq(pid, why);
}

/* Stops the empty process in its `pause`, which is the last thing that it does by itself. The
 * helper tells its number as soon as it exists: stopped earlier, it would still have descriptors of
 * the engine and, worse, no filter yet. */
static int stop_in_pause(pid_t pid, registers *r, failure *why) {
    stop seen;
    for (;;) {
        ptrace(PTRACE_INTERRUPT, pid, 0, 0);
        if (wait_stop(pid, &seen, why)) return -1;
        if (seen.kind != STOP_EVENT_STOP)
            return failed(why, 0, "an empty process stopped oddly (%d)", seen.kind);
        if (read_registers(pid, r, why)) return -1;
        if (arch_current_call(r) == SYS_pause) return 0;
        if (deadline_passed()) return failed(why, 0, "an empty process did not become ready");
        if (ptrace(PTRACE_CONT, pid, 0, 0)) return failed(why, errno, "resume an empty process");
        usleep(200);
    }
}

/* Looks from outside: every sandbox that is thawed from the image inherits the filter. */
static int check_filter(pid_t pid, failure *why) {
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    if (read_small_file(path, text, sizeof text) <= 0) return failed(why, errno, "read %s", path);
    if (strstr(text, "\nSeccomp:\t2\n")) return 0;
    return failed(why, 0, "an empty process has no filter of system calls");
}

int hold_blank(pid_t pid, const unsigned char *states, size_t size, snapshot *made, failure *why) {
    registers r;
    memset(made, 0, sizeof *made);
    made->tracer = (pid_t)syscall(SYS_gettid);
    made->shadow = pid; /* the caller's end_snapshot ends it, whatever fails below */
    if (learn_frame_size(why)) return -1;
    if (ptrace(PTRACE_SEIZE, pid, 0, (void *)(long)TRACE_ALWAYS))
        return failed(why, errno, "seize an empty process");
    if (stop_in_pause(pid, &r, why) || check_filter(pid, why) ||
        read_states(made, states, size, why) || block_signals(pid, why) ||
        find_syscall(pid, &made->syscall_at, why) || take_rseq(pid, &r, made->syscall_at, why))
        return -1;
    learn_usual_scheduling(pid);
    return set_options(pid, TRACE_ALWAYS | TRACE_CHILDREN, why);
}

/* Threads of an image remember on which processor they ran last. A kernel that does not take their
 * rseq areas, because it is older, would leave them in that belief: so they are told that nobody
 * knows. One that takes them writes the truth. */
static void forget_processors(const snapshot *of) {
    /* cpu_id_start, cpu_id: RSEQ_CPU_ID_REGISTRATION_FAILED */
    static const int32_t unknown[2] = {0, -2};
    failure ignored;
    for (int i = 0; i < of->thread_count; i++)
        if (of->threads[i].rseq.address)
            write_memory(of->shadow, of->threads[i].rseq.address, unknown, sizeof unknown,
                         &ignored);
}

int pour(snapshot *into, const given_call *given, int count, failure *why) {
    scratch region = {0};
    list calls = {0};
    registers r;
    long result = 0;
    stay_here();
    bring_here(into->shadow);
    int bad = scratch_make(&region, SCRATCH, given_size(given, count), why) ||
              list_add_given(&calls, &region, given, count, why) ||
              list_place(&calls, &region, why) || read_registers(into->shadow, &r, why) ||
              scratch_map(&region, into->shadow, &r, into->syscall_at, why) ||
              list_run(into->shadow, &region, &calls, NULL, why) ||
              /* The vdso has moved, and with it the instruction that enters the kernel. */
              find_syscall(into->shadow, &into->syscall_at, why);
    uint64_t gone[6] = {SCRATCH, region.size, 0, 0, 0, 0};
    bad = bad || inject(into->shadow, &into->threads[0].registers, into->syscall_at, SYS_munmap,
                        gone, &result, NULL, why);
    if (!bad) forget_processors(into);
    let_roam(into->shadow);
    roam();
    scratch_free(&region);
    list_free(&calls);
    if (bad) return -1;
    return result ? failed(why, (int)-result, "unmap the calls of an image") : 0;
}
