/* Freezing a sandbox that runs. Its code is hostile, its memory is shared with its shadow, and
 * other processes of its pod may write to both through /proc. So:
 *
 *   - in the shadow, which holds E1's capabilities, we run one clone and nothing else; all of its
 *     arguments are in registers, and we check them at its entry;
 *   - calls that we run in the REPL itself can harm only the REPL: it is behind its walls;
 *   - every wait has a deadline;
 *   - anything unexpected fails this freeze and nothing more.
 *
 * The order matters. We stop the REPL's threads first and the rest of the pod afterwards: a thread
 * in vfork cannot stop before its child has gone on.
 */
#define _GNU_SOURCE
#include "live.h"
#include "threads.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
enum {
    KCMP_SAME_MEMORY = 1,
    ANSWER_BYTES = 32,
    TIMERS = 3,
    MAX_TASKS = 8192,
    STRAY_MICROSECONDS = 50,
    FIRST_ROOM = 64
};

/* Makes room for one more than `count` items. Returns where they are now; NULL when there is no
 * memory, and then they are where they were. */
static void *grow(void *items, int count, int *room, size_t size) {
    if (count < *room) return items;
    int wanted = *room ? *room * 2 : FIRST_ROOM;
    void *grown = realloc(items, (size_t)wanted * size);
    if (grown) *room = wanted;
    return grown;
}

/* ---- stragglers: tasks that we could not detach from because they had not stopped ---- */

typedef struct {
    held_task task;
    /* It is the engine's own child. The engine reaps it, and another task may have its number
     * afterwards: the pidfd tells. -1 for all other tasks. */
    int spared;
    int pidfd;
} straggler;
static straggler *stragglers;
static int straggler_count, straggler_room;

static void add_straggler(const paused *p, const held_task *task) {
    int spared = 0, pidfd = -1;
    for (int i = 0; i < p->own_count && !spared; i++) {
        if (task->tid != p->own[i]) continue;
        spared = 1;
        pidfd = fcntl(p->own_pidfds[i], F_DUPFD_CLOEXEC, 0);
    }
    /* There is no descriptor left for it. Better to hold it for ever than to detach from another
     * task that has got its number. */
    if (spared && pidfd < 0) return;
    straggler *grown = grow(stragglers, straggler_count, &straggler_room, sizeof *grown);
    if (!grown) {
        /* It stays seized: its sandbox stops at its next signal, but can still be closed. */
        close(pidfd);
        return;
    }
    stragglers = grown;
    stragglers[straggler_count++] = (straggler){*task, spared, pidfd};
}

/* Gives a task its own registers and mask back and lets it run. Fails when it was just killed. */
static int detach(const held_task *task, long pass_on) {
    failure ignored;
    if (task->touched) {
        write_registers(task->tid, &task->own, &ignored);
        set_mask(task->tid, task->mask);
    }
    return (int)ptrace(PTRACE_DETACH, task->tid, 0, (void *)pass_on);
}

int serve_stragglers(void) {
    int left = 0;
    for (int i = 0; i < straggler_count; i++) {
        stop seen;
        struct pollfd ended = {stragglers[i].pidfd, POLLIN, 0};
        spare(&stragglers[i].task.tid, stragglers[i].spared);
        int gone = stragglers[i].spared && poll(&ended, 1, 0) != 0;
        int found = gone ? 1 : look_for_stop(stragglers[i].task.tid, &seen);
        int waits = found == 0 || (found < 0 && errno == EINTR);
        if (!gone && found == 1 && seen.kind != STOP_GONE)
            waits = detach(&stragglers[i].task, seen.kind == STOP_SIGNAL ? seen.signal : 0) != 0;
        if (waits)
            stragglers[left++] = stragglers[i];
        else if (stragglers[i].pidfd >= 0)
            close(stragglers[i].pidfd);
    }
    spare(NULL, 0);
    straggler_count = left;
    return left;
}

/* ---- stopping ---- */

static held_task *add_task(paused *p, pid_t tid, pid_t leader, failure *why) {
    if (p->task_count == MAX_TASKS) {
        failed(why, 0, "the sandbox has more than %d threads and processes", MAX_TASKS);
        return NULL;
    }
    held_task *grown = grow(p->tasks, p->task_count, &p->task_room, sizeof *grown);
    if (!grown) {
        failed(why, ENOMEM, "hold the tasks of a sandbox");
        return NULL;
    }
    p->tasks = grown;
    held_task *task = &p->tasks[p->task_count++];
    memset(task, 0, sizeof *task);
    task->tid = tid;
    task->leader = leader;
    return task;
}

static int is_held(const paused *p, pid_t tid) {
    for (int i = p->task_count - 1; i >= 0; i--)
        if (p->tasks[i].tid == tid) return 1;
    return 0;
}

static int has_ended(pid_t tid) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", tid);
    if (read_small_file(path, text, sizeof text) <= 0) return 1;
    const char *state = strrchr(text, ')');
    return !state || !state[1] || state[2] == 'Z' || state[2] == 'X' || state[2] == 'x';
}

/* Seizes the threads of a process that are not held yet; says how many there were. */
static int seize_new(paused *p, pid_t leader, int *found, failure *why) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", leader);
    DIR *folder = opendir(path);
    if (!folder) return leader == p->repl ? failed(why, 0, "the REPL has ended") : 0;
    int result = 0;
    for (struct dirent *entry; !result && (entry = readdir(folder));) {
        pid_t tid = atoi(entry->d_name);
        if (tid <= 0 || is_held(p, tid)) continue;
        /* EXITKILL: the sandbox must not run on without its engine. */
        const long options = PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD;
        if (ptrace(PTRACE_SEIZE, tid, 0, (void *)options)) {
            int reason = errno;
            if (reason == ESRCH) {
                /* It has ended, and its children have another parent now: another pass must look
                 * for them there. */
                ++*found;
                continue;
            }
            if (tid != p->repl && has_ended(tid)) continue;
            result = has_ended(tid) ? failed(why, 0, "the main thread of the REPL has ended")
                                    : failed(why, reason, "seize task %d of the sandbox", tid);
            break;
        }
        /* It fails only when the task has ended, which the wait below sees. */
        ptrace(PTRACE_INTERRUPT, tid, 0, 0);
        if (!add_task(p, tid, leader, why)) {
            add_straggler(p, &(held_task){.tid = tid});
            result = -1;
        }
        ++*found;
    }
    closedir(folder);
    return result;
}

static int wait_until_stopped(const paused *p, held_task *task, failure *why) {
    stop seen;
    for (;;) {
        if (wait_stop(task->tid, &seen, why)) {
            if (why->error == ETIMEDOUT) {
                const char *step = "stop a thread of the sandbox (does it hold a vfork, or hang in "
                                   "the kernel?)";
                return failed(why, ETIMEDOUT, "%s", step);
            }
            if (why->error != ECHILD) return -1;
            seen.kind = STOP_GONE;
        }
        if (seen.kind == STOP_GONE) {
            if (task->tid == p->repl)
                return failed(why, 0, "the REPL ended while it was being frozen");
            task->tid = 0;
            return 0;
        }
        if (seen.kind == STOP_EVENT_STOP) {
            /* We have stopped it, or SIGSTOP has: then it stays stopped after the pause, while its
             * copy runs. */
            task->stopped = 1;
            return 0;
        }
        long pass_on = seen.kind == STOP_SIGNAL ? seen.signal : 0;
        ptrace(PTRACE_CONT, task->tid, 0, (void *)pass_on);
    }
}

static int stop_process(paused *p, pid_t leader, int *found_any, failure *why) {
    /* A thread that has not stopped yet may create another: go on until a pass finds no new one. */
    for (int found = 1; found;) {
        int first = p->task_count;
        found = 0;
        int result = seize_new(p, leader, &found, why);
        for (int i = first; !result && i < p->task_count; i++)
            result = wait_until_stopped(p, &p->tasks[i], why);
        if (result) return -1;
        *found_any += found;
        if (found && deadline_passed())
            return failed(why, ETIMEDOUT,
                          "stop the sandbox: it makes threads as fast as they are stopped");
    }
    return 0;
}

static int add_child(paused *p, pid_t pid, failure *why) {
    for (int i = 0; i < p->child_count; i++)
        if (p->children[i] == pid) return 0;
    pid_t *grown = grow(p->children, p->child_count, &p->child_room, sizeof *grown);
    if (!grown) return failed(why, ENOMEM, "hold the children of a sandbox");
    p->children = grown;
    p->children[p->child_count++] = pid;
    return 0;
}

/* Stops the processes below one task. /proc lists children by thread: the thread that created a
 * process is its parent until that thread ends. */
static int stop_below(paused *p, pid_t leader, pid_t tid, int *found, int depth, failure *why);

static int stop_children(paused *p, pid_t leader, int *found, int depth, failure *why) {
    char path[64];
    int result = 0;
    snprintf(path, sizeof path, "/proc/%d/task", leader);
    DIR *folder = opendir(path);
    if (!folder) return 0;
    for (struct dirent *entry; !result && (entry = readdir(folder));) {
        pid_t tid = atoi(entry->d_name);
        if (tid > 0) result = stop_below(p, leader, tid, found, depth, why);
    }
    closedir(folder);
    return result;
}

static int stop_below(paused *p, pid_t leader, pid_t tid, int *found, int depth, failure *why) {
    char path[96];
    int child;
    if (depth > 64) return failed(why, 0, "the processes of the sandbox are nested too deeply");
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", leader, tid);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    int result = 0;
    while (!result && fscanf(file, "%d", &child) == 1) {
        if (leader == p->repl) result = add_child(p, child, why);
        if (!result && child != p->repl) result = stop_process(p, child, found, why);
        if (!result) result = stop_children(p, child, found, depth + 1, why);
    }
    fclose(file);
    return result;
}

/* A thread that the last thaw has woken, and that has not got a processor since, still stands in
 * our lists. Its own registers are in a signal frame there: it must leave the lists before we read
 * it.
 */
static int let_leave_lists(const paused *p, held_task *task, failure *why) {
    registers r;
    for (;;) {
        if (read_registers(task->tid, &r, why)) return -1;
        if (arch_instruction(&r) < SCRATCH || arch_instruction(&r) >= SCRATCH_END) return 0;
        if (deadline_passed())
            return failed(why, ETIMEDOUT, "wait for a thread to leave the lists of its thaw");
        if (ptrace(PTRACE_CONT, task->tid, 0, 0)) return failed(why, errno, "resume a thread");
        task->stopped = 0;
        usleep(STRAY_MICROSECONDS);
        ptrace(PTRACE_INTERRUPT, task->tid, 0, 0);
        if (wait_until_stopped(p, task, why)) return -1;
        if (!task->tid) return 0;
    }
}

/* ---- reading ---- */

/* A thread may stop anywhere inside a restartable sequence. Its copy goes on in another task, where
 * the kernel does not know of the sequence: so it goes on at the sequence's abort address. */
static void leave_rseq(thread_state *thread, registers *own) {
    struct {
        uint32_t version, flags;
        uint64_t start, length, abort;
    } section;
    uint64_t at = 0;
    failure ignored;
    if (!thread->rseq.address ||
        read_memory(thread->tid, thread->rseq.address + 8, &at, sizeof at, &ignored) || !at)
        return;
    if (read_memory(thread->tid, at, &section, sizeof section, &ignored)) return;
    if (arch_instruction(own) - section.start >= section.length) return;
    arch_set_instruction(own, section.abort);
    thread->registers = *own;
}

/* Finds out which timed call a thread is in, so that its copy makes the same one. */
static void name_timed_call(paused *p, const held_task *task, thread_state *thread) {
    registers *r = &thread->registers;
    if (!arch_in_timed_call(r)) return;
    if (arch_goes_on_in_call(r)) {
        long number = -1;
        for (int i = 0; i < p->before_count; i++) {
            const timed_call *known = &p->before[i];
            if (known->tid == task->tid && known->instruction == arch_instruction(r) &&
                known->stack == arch_stack(r))
                number = known->number;
        }
        if (number < 0) {
            /* Another tracer or signal has interrupted it before: the copy sees EINTR. */
            arch_interrupt_call(r);
            return;
        }
        arch_set_current_call(r, number);
    }
    int32_t number = (int32_t)arch_current_call(r);
    timed_call known = {task->tid, number, arch_instruction(r), arch_stack(r)};
    p->timed[p->timed_count++] = known;
}

static int capture_threads(paused *p, failure *why) {
    int count = 0;
    for (int i = 0; i < p->task_count; i++)
        count += p->tasks[i].tid && p->tasks[i].leader == p->repl;
    if (count > MAX_THREADS)
        return failed(why, 0, "the sandbox has %d threads, more than %d cannot be frozen", count,
                      MAX_THREADS);
    p->taken.threads = calloc((size_t)count, sizeof *p->taken.threads);
    p->timed = calloc((size_t)count, sizeof *p->timed);
    if (!p->taken.threads || !p->timed) return failed(why, ENOMEM, "freeze");
    for (int main_first = 1; main_first >= 0; main_first--)
        for (int i = 0; i < p->task_count; i++) {
            held_task *task = &p->tasks[i];
            if (!task->tid || task->leader != p->repl || (task->tid == p->repl) != main_first)
                continue;
            thread_state *thread = &p->taken.threads[p->taken.thread_count++];
            thread->tid = task->tid;
            if (capture(thread, 0, why)) return -1;
            task->own = thread->registers;
            task->mask = thread->mask;
            leave_rseq(thread, &task->own);
            arch_go_on(&task->own);
            name_timed_call(p, task, thread);
        }
    return 0;
}

static held_task *task_of(const paused *p, pid_t tid) {
    for (int i = 0; i < p->task_count; i++)
        if (p->tasks[i].tid == tid) return &p->tasks[i];
    return NULL;
}

/* A thaw has run its lists in a region of the REPL's own memory. We use the region again, with the
 * loop that is there, unless the sandbox has unmapped it. We do not overwrite a mapping that the
 * sandbox itself has put there. */
static int place_questions(paused *p, const scratch *region, failure *why) {
    long result;
    unsigned char loop[sizeof arch_loop];
    const registers *r = &p->taken.threads[0].registers;
    if (!read_memory(p->repl, region->base, loop, sizeof loop, why)) {
        if (memcmp(loop, arch_loop, sizeof loop))
            return failed(why, 0,
                          "use %#lx: the sandbox has memory of its own there, which forks need",
                          SCRATCH);
        return write_memory(p->repl, region->base + SCRATCH_LISTS, region->bytes + SCRATCH_LISTS,
                            region->used - SCRATCH_LISTS, why);
    }
    if (why->error != EFAULT) return -1;
    /* In the REPL, behind its walls. NOREPLACE: a mapping that we could not read stays as well. */
    const uint64_t flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    uint64_t map[6] = {region->base, region->size, PROT_READ | PROT_WRITE, flags, (uint64_t)-1, 0};
    if (inject(p->repl, r, p->syscall_at, SYS_mmap, map, &result, NULL, why)) return -1;
    if (result != (long)region->base)
        return failed(why, (int)-result, "map a region in the sandbox");
    if (write_memory(p->repl, region->base, region->bytes, region->used, why)) return -1;
    /* The page with the loop becomes executable, and is not writable from then on. */
    uint64_t run[6] = {region->base, SCRATCH_LISTS, PROT_READ | PROT_EXEC, 0, 0, 0};
    if (inject(p->repl, r, p->syscall_at, SYS_mprotect, run, &result, NULL, why)) return -1;
    return result ? failed(why, (int)-result, "protect a page in the sandbox") : 0;
}

/* Resumes all threads, then waits for all, so that they do not wait for one another. */
static int run_questions(paused *p, const scratch *region, const list *lists, failure *why) {
    for (int i = 0; i < p->taken.thread_count; i++) {
        registers r = p->taken.threads[i].registers;
        arch_set_list(&r, region->base, lists[i].at, list_end(&lists[i]),
                      region->base + region->size - 64);
        if (write_registers(p->taken.threads[i].tid, &r, why)) return -1;
        if (ptrace(PTRACE_CONT, p->taken.threads[i].tid, 0, 0))
            return failed(why, errno, "resume a thread of the sandbox");
        task_of(p, p->taken.threads[i].tid)->stopped = 0;
    }
    for (int i = 0; i < p->taken.thread_count; i++) {
        stop seen;
        pid_t tid = p->taken.threads[i].tid;
        if (wait_stop(tid, &seen, why)) return -1;
        /* SIGSTOP cannot be blocked. The thread gets it, and stays stopped after the pause. */
        while (seen.kind == STOP_EVENT_STOP || seen.kind == STOP_SIGNAL) {
            if (deadline_passed()) return failed(why, ETIMEDOUT, "ask a thread of the sandbox");
            long pass_on = seen.kind == STOP_SIGNAL && seen.signal == SIGSTOP ? SIGSTOP : 0;
            if (ptrace(PTRACE_CONT, tid, 0, (void *)pass_on) || wait_stop(tid, &seen, why))
                return failed(why, errno, "resume a thread of the sandbox");
        }
        if (seen.kind != STOP_GONE) task_of(p, tid)->stopped = 1;
        if (seen.kind != STOP_TRAP)
            return failed(why, 0, "a thread of the sandbox did not do what it was told (stop %d)",
                          seen.kind);
    }
    return 0;
}

static int write_questions(const paused *p, scratch *region, list *lists, uint64_t *answers,
                           failure *why) {
    int count = p->taken.thread_count;
    *answers = scratch_put(region, NULL, (size_t)(count + TIMERS) * ANSWER_BYTES, 64);
    if (!*answers) return failed(why, ENOSPC, "lay out questions");
    for (int i = 0; i < count; i++) {
        /* Each thread has an alternate stack of its own; 0: set none, report the current one. */
        uint64_t answer = *answers + (uint64_t)i * ANSWER_BYTES;
        ADD_CALL(&lists[i], "sigaltstack", SYS_sigaltstack, 0, answer);
        /* Interval timers belong to the process: the main thread asks for them. */
        for (int kind = 0; i == 0 && kind < TIMERS; kind++) {
            uint64_t timer = *answers + (uint64_t)(count + kind) * ANSWER_BYTES;
            ADD_CALL(&lists[i], "getitimer", SYS_getitimer, (uint64_t)kind, timer);
        }
        if (list_place(&lists[i], region, why)) return -1;
    }
    return 0;
}

static int read_answers(paused *p, uint64_t answers, failure *why) {
    int count = p->taken.thread_count;
    size_t size = (size_t)(count + TIMERS) * ANSWER_BYTES;
    unsigned char *all = malloc(size);
    if (!all) return failed(why, ENOMEM, "read answers");
    int result = read_memory(p->repl, answers, all, size, why);
    for (int i = 0; !result && i < count; i++)
        memcpy(&p->taken.threads[i].alternate_stack, all + i * ANSWER_BYTES, sizeof(stack_t));
    if (!result) memcpy(p->timers, all + count * ANSWER_BYTES, sizeof p->timers);
    free(all);
    return result;
}

/* Asks for what the kernel tells only the tasks themselves: alternate stacks and interval timers.
 * The sandbox may change these calls, but they run behind its walls: it can harm only itself. */
static int ask(paused *p, failure *why) {
    scratch region = {0};
    uint64_t answers = 0;
    int count = p->taken.thread_count;
    list *lists = calloc((size_t)count, sizeof *lists);
    if (!lists) return failed(why, ENOMEM, "ask the threads");
    int result = scratch_make(&region, SCRATCH, SCRATCH_AT_LEAST, why) ||
                 write_questions(p, &region, lists, &answers, why);
    for (int i = 0; !result && i < count; i++) {
        held_task *task = task_of(p, p->taken.threads[i].tid);
        task->touched = 1;
        result = block_signals(task->tid, why);
    }
    result = result || place_questions(p, &region, why) || run_questions(p, &region, lists, why) ||
             read_answers(p, answers, why);
    for (int i = 0; i < count; i++)
        list_free(&lists[i]);
    free(lists);
    scratch_free(&region);
    return result ? -1 : 0;
}

/* ---- the freeze ---- */

static int pause_steps(paused *p, failure *why) {
    int found = 0;
    if (learn_frame_size(why) || stop_process(p, p->repl, &found, why)) return -1;
    for (int i = 0; i < p->task_count; i++)
        if (p->tasks[i].tid && let_leave_lists(p, &p->tasks[i], why)) return -1;
    /* exec gives the REPL a memory that its shadow does not share. We look after the stop: before,
     * the REPL could still call exec between our look and the copy. */
    long differ = syscall(SYS_kcmp, p->repl, p->shadow, KCMP_SAME_MEMORY, 0, 0);
    if (differ < 0) return failed(why, errno, "compare the memory of the REPL and its shadow");
    if (differ) {
        failed(why, 0, "the REPL replaced itself (exec): what it was cannot be frozen any more");
        why->replaced = 1;
        return -1;
    }
    /* Go on until a pass finds no new task, and once more if there was any: while children end, a
     * list of children in /proc may leave one out. */
    int first = p->task_count, quiet = 0;
    while (quiet < 1 + (p->task_count > first)) {
        found = 0;
        /* The REPL and the leaders of terminals are children of the engine. Their orphans are
         * children of the pod's init. */
        for (int i = 0; i < p->own_count; i++) {
            if (i && stop_process(p, p->own[i], &found, why)) return -1;
            if (stop_children(p, p->own[i], &found, 0, why)) return -1;
        }
        if (stop_children(p, p->init, &found, 0, why)) return -1;
        if (found && deadline_passed())
            return failed(why, ETIMEDOUT, "stop the processes of the sandbox");
        quiet = found ? 0 : quiet + 1;
    }
    return capture_threads(p, why) || ask(p, why) ? -1 : 0;
}

int pause_live(paused *p, failure *why) {
    p->taken.tracer = (pid_t)syscall(SYS_gettid);
    p->taken.syscall_at = p->syscall_at;
    serve_stragglers();
    fault_begin();
    spare(p->own, p->own_count);
    int result = pause_steps(p, why);
    spare(NULL, 0);
    if (result) resume_live(p);
    return result;
}

/* In the new shadow S', which shares its memory with no other task: here a list may run. */
static int make_given(const snapshot *taken, const given_call *given, int count, failure *why) {
    scratch region = {0};
    list calls = {0};
    int result =
        scratch_make(&region, SCRATCH, given_size(given, count), why) ||
        list_add_given(&calls, &region, given, count, why) || list_place(&calls, &region, why) ||
        scratch_map(&region, taken->shadow, &taken->threads[0].registers, taken->syscall_at, why) ||
        list_run(taken->shadow, &region, &calls, NULL, why);
    scratch_free(&region);
    list_free(&calls);
    return result ? -1 : 0;
}

int copy_live(paused *p, const given_call *given, int count, snapshot *taken, failure *why) {
    snapshot source = p->taken;
    pid_t copy = 0;
    source.shadow = p->shadow;
    stay_here();
    int result = copy_shadow(&source, &copy, why);
    if (!result) {
        /* The snapshot takes the threads' states over, but not the REPL's tasks. */
        *taken = p->taken;
        taken->shadow = copy;
        for (int i = 0; i < taken->thread_count; i++)
            taken->threads[i].tid = 0;
        memset(&p->taken, 0, sizeof p->taken);
        result = count ? make_given(taken, given, count, why) : 0;
        if (result) {
            end_snapshot(taken);
            snapshot_free(taken);
        }
    } else {
        if (result == SHADOW_ASTRAY) {
            if (!copy) copy = unseen_child(p->shadow, 0);
            /* It is outside the walls, and we do not know what it does there. */
            kill(p->shadow, SIGKILL);
        }
        kill_and_reap(copy);
    }
    roam();
    return result ? -1 : 0;
}

static void let_go(const paused *p, const held_task *task) {
    if (task->stopped && !detach(task, 0)) return;
    /* It has not stopped yet, or was killed meanwhile and we have to reap it. */
    add_straggler(p, task);
}

void resume_live(paused *p) {
    for (int i = 0; i < p->task_count; i++)
        if (p->tasks[i].tid) let_go(p, &p->tasks[i]);
    snapshot_free(&p->taken);
    free(p->tasks);
    free(p->children);
    free(p->timed);
    p->tasks = NULL;
    p->children = NULL;
    p->timed = NULL;
    p->task_count = p->task_room = p->child_count = p->child_room = p->timed_count = 0;
}
