/* Thaw: a new sandbox from a snapshot, in an empty pod.
 *
 *   shadow S ──clone──> S'          copy-on-write copy of the memory, outside the pod; it never
 * runs by itself S' ──clone3──> T'               shares memory and signal handlers with S', and is
 * born in the pod's pid namespace T'                              joins the walls, takes its
 * descriptors, re-creates the threads, drops all capabilities, runs
 *
 * S' and T' work through lists of calls (list.h). We map the region of the lists in S' after the
 * copy was made, so no task that ran before can share it. Both start with an empty descriptor
 * table: calls that create a descriptor return the lowest free number, so we know it beforehand.
 */
#define _GNU_SOURCE
#include "list.h"
#include "snapshot.h"
#include "threads.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef CLONE_NEWCGROUP
#define CLONE_NEWCGROUP 0x02000000
#endif
#ifndef SYS_rseq
#define SYS_rseq 334
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

/* Calls with more data than this get a region of their own. */
enum { GIVEN_APART = 64 * 1024 };
/* How long they may take: guesses that leave room for a busy machine. */
#define GIVEN_SECONDS          1.0
#define GIVEN_BYTES_PER_SECOND 50e6
#define THREAD_FLAGS                                                                               \
    (CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |            \
     CLONE_SETTLS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID)

static double microseconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* The block from which a thread goes back to its own code: two words that it pops to find its list,
 * then the frame that rt_sigreturn reads. */
static uint64_t put_departure(scratch *region, const thread_state *thread, uint64_t first,
                              uint64_t end) {
    uint64_t extended = scratch_put(region, NULL, thread->extended_size + 4u, 64);
    uint64_t block = extended ? scratch_put(region, NULL, 16 + sizeof(ucontext_t), 16) : 0;
    if (!block) return 0;
    arch_fill_extended(scratch_here(region, extended), thread->extended, thread->extended_size,
                       frame_extended_features);
    uint64_t *words = scratch_here(region, block);
    words[0] = first;
    words[1] = end;
    ucontext_t *context = (ucontext_t *)(words + 2);
    registers r = thread->registers;
    arch_restart_call(&r);
    arch_fill_context(context, &r, extended);
    context->uc_stack = thread->alternate_stack;
    memcpy(&context->uc_sigmask, &thread->mask, sizeof thread->mask);
    return block;
}

/* From here on the thread has no capability in any namespace. */
static void add_power_drop(list *calls, uint64_t capability_header, uint64_t capability_data) {
    ADD_CALL(calls, "capset", SYS_capset, capability_header, capability_data);
}

/* Calls that the engine decided on. */
typedef struct {
    list calls;
    scratch region; /* only with apart; else they are in the region of the script */
    int apart;
} given_list;

/* Everything that the two tasks will do, laid out before either runs. */
typedef struct {
    scratch region;
    given_list given, powerless;
    list shadow, walls, threads, clear, release, thread, child;
    uint64_t barrier, departure;
    /* By thread: the record of its capset, which holds the number of the call until the thread has
     * made it, and then the result. */
    uint64_t *dropped;
} script;

static void script_free(script *s) {
    scratch_free(&s->region);
    scratch_free(&s->given.region);
    scratch_free(&s->powerless.region);
    free(s->dropped);
    list *all[] = {&s->shadow,          &s->walls,   &s->given.calls,
                   &s->powerless.calls, &s->threads, &s->clear,
                   &s->release,         &s->thread,  &s->child};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        list_free(all[i]);
}

/* Restores what the kernel keeps for each thread and a clone does not copy. */
static void add_thread_set_up(script *s, list *calls, const thread_state *thread) {
    /* The kernel releases the locks in this list when the thread dies. */
    ADD_CALL(calls, "set_robust_list", SYS_set_robust_list, thread->robust_list,
             thread->robust_length);
    /* The scheduler's settings, where the user has asked for other ones than a new thread has. The
     * kernel may refuse them (real-time, less niceness): it had refused the user as well.
     */
    if (thread->nice != usual_scheduling.nice)
        TRY_CALL(calls, "setpriority", SYS_setpriority, PRIO_PROCESS, 0,
                 (uint64_t)(int64_t)thread->nice);
    if (thread->policy != usual_scheduling.policy)
        TRY_CALL(calls, "sched_setscheduler", SYS_sched_setscheduler, 0, (uint64_t)thread->policy,
                 scratch_put(&s->region, NULL, 8, 8));
    if (thread->io_priority > 0 && thread->io_priority != usual_scheduling.io_priority)
        TRY_CALL(calls, "ioprio_set", SYS_ioprio_set, 1, 0, (uint64_t)thread->io_priority);
}

/* The last calls of a thread before its own code. It has no capabilities any more, and neither has
 * any other thread. */
static void add_freedom(script *s, list *calls, const thread_state *thread) {
    /* Not earlier: with an rseq area the kernel goes on where the sandbox's memory says. Refused
     * where the area is not as this kernel wants it; then the C library does without. */
    if (thread->rseq.address)
        TRY_CALL(calls, "rseq", SYS_rseq, thread->rseq.address, thread->rseq.length, 0,
                 thread->rseq.signature);
    /* Until here we kept the thread on the tracer's processor. Refused where the machine has none
     * of its processors any more. */
    static const uint64_t unknown[16];
    const uint64_t *own = memcmp(thread->affinity, unknown, sizeof unknown)
                              ? thread->affinity
                              : usual_scheduling.affinity;
    uint64_t at = scratch_put(&s->region, own, sizeof thread->affinity, 8);
    TRY_CALL(calls, "sched_setaffinity", SYS_sched_setaffinity, 0, sizeof thread->affinity, at);
}

/* S', outside the pod, with E1's capabilities. It makes T' and then stands still for ever. */
static int write_shadow_list(script *s, const snapshot *from, const thaw_plan *plan, failure *why) {
    const thread_state *leader = &from->threads[0];
    list *l = &s->shadow;
    uint64_t zero = scratch_put(&s->region, "0", 2, 8);
    int32_t wanted = plan->main_pid;
    uint64_t set_tid = scratch_put(&s->region, &wanted, sizeof wanted, 8);
    /* VM and SIGHAND: T' shares memory and signal handlers with S'. PARENT: T' is a child of the
     * engine, which reaps it. The C library of T' finds its thread structure and its id where the
     * frozen thread had them. */
    struct clone_args child = {.flags = CLONE_VM | CLONE_SIGHAND | CLONE_PARENT |
                                        CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | CLONE_SETTLS,
                               .child_tid = leader->tid_address,
                               .tls = arch_thread_pointer(&leader->registers),
                               .stack = SCRATCH + s->region.size - SCRATCH_STACK,
                               .stack_size = SCRATCH_STACK,
                               .set_tid = set_tid,
                               .set_tid_size = 1};
    uint64_t arguments = scratch_put(&s->region, &child, sizeof child, 8);
    /* From here on no page of the region is writable and executable at once. */
    ADD_CALL(l, "protect the loop", SYS_mprotect, SCRATCH, SCRATCH_LISTS, PROT_READ | PROT_EXEC);
    ADD_CALL(l, "protect the lists", SYS_mprotect, SCRATCH + SCRATCH_LISTS,
             s->region.size - SCRATCH_LISTS, PROT_READ | PROT_WRITE);
    /* An empty table, so that we know the numbers below. */
    ADD_CALL(l, "close_range in the shadow", SYS_close_range, 0, ~0u);
    /* Becomes 0: for the pod's pid namespace here, and for its other namespaces in T'. */
    ADD_CALL(l, "pidfd_open of the pod", SYS_pidfd_open, (uint64_t)plan->pod_init, 0);
    /* Becomes 1: the way back. */
    ADD_CALL(l, "pidfd_open of the holder", SYS_pidfd_open, 1, 0);
    for (int i = 0; i < plan->cgroup_count; i++) {
        /* The shadow owns the memory, so the kernel counts the shadow's pages; the sandbox inherits
         * the cgroup. A task that moves itself by writing 0 to `tasks` takes no lock over all
         * processes; moving another one costs up to 20 ms of waiting for the kernel. The file comes
         * from the pod's init, because S' has no path to it. Becomes 2. */
        ADD_CALL(l, "fetch a cgroup's file", SYS_pidfd_getfd, 0, (uint64_t)(WIRE_INIT_CGROUPS + i),
                 0);
        ADD_CALL(l, "enter a cgroup", SYS_write, 2, zero, 1);
        ADD_CALL(l, "close", SYS_close, 2);
    }
    /* For a pid namespace, setns moves only the children to come: S' itself stays outside. */
    ADD_CALL(l, "setns to the pod's pid namespace", SYS_setns, 0, CLONE_NEWPID);
    ADD_CALL(l, "clone3 of the sandbox", SYS_clone3, arguments, sizeof child);
    /* So that later copies of S' are born in E1 again. */
    ADD_CALL(l, "setns back", SYS_setns, 1, CLONE_NEWPID);
    /* T' has a table of its own. The shadow outlives this thaw and must hold nothing of the pod. */
    ADD_CALL(l, "close_range in the shadow", SYS_close_range, 0, ~0u);
    return list_place(l, &s->region, why);
}

/* T' creates a child of the frozen REPL again under its id, only for it to die as it had died, or
 * as if killed: the REPL can then wait for it. */
static int add_dead_child(script *s, const dead_child *child, failure *why) {
    list *c = &s->child;
    int signal = child->status & 0x7f;
    c->count = 0;
    /* The child kills itself, so that its parent sees the signal in the status. */
    if (signal) ADD_CALL(c, "die", SYS_kill, (uint64_t)child->pid, (uint64_t)signal);
    ADD_CALL(c, "end", SYS_exit_group, (uint64_t)((child->status >> 8) & 0xff));
    if (list_place(c, &s->region, why)) return -1;
    uint64_t words[2] = {c->at, list_end(c)};
    uint64_t stack = scratch_put(&s->region, words, sizeof words, 16);
    int32_t wanted = child->pid;
    uint64_t set_tid = scratch_put(&s->region, &wanted, sizeof wanted, 8);
    /* VFORK: the parent goes on when the child has let go of the memory that they share. The
     * limit that spawn.c sets keeps it from leaving a core file. */
    struct clone_args made = {.flags = CLONE_VM | CLONE_VFORK,
                              .exit_signal = SIGCHLD,
                              .stack = stack - 4096,
                              .stack_size = 4096,
                              .set_tid = set_tid,
                              .set_tid_size = 1};
    uint64_t arguments = scratch_put(&s->region, &made, sizeof made, 8);
    if (!stack || !set_tid || !arguments) return failed(why, ENOSPC, "lay out a child process");
    ADD_CALL(&s->walls, "re-create a child process", SYS_clone3, arguments, sizeof made, 0, 0, 0,
             ARCH_THREAD_MARK);
    /* VFORK wakes the parent a little before the child is a zombie, which the REPL must find.
     * NOWAIT leaves the zombie to the REPL. */
    TRY_CALL(&s->walls, "wait for a child process to end", SYS_waitid, P_PID, (uint64_t)child->pid,
             0, WEXITED | WNOWAIT);
    return 0;
}

/* T' holds E1's capabilities when it starts, and the pod's after setns. At the end its descriptor
 * table has the three lines to the engine in their places and nothing else. */
static int write_walls_list(script *s, const snapshot *from, const thaw_plan *plan, failure *why) {
    list *l = &s->walls;
    uint64_t name = scratch_put(&s->region, from->threads[0].name, 16, 8);
    static const int lines[][2] = {{WIRE_INIT_CONTROL, WIRE_REPL_CONTROL},
                                   {WIRE_INIT_STDOUT, WIRE_REPL_STDOUT},
                                   {WIRE_INIT_STDERR, WIRE_REPL_STDERR}};
    /* The holder's pidfd must not be inside the pod. */
    ADD_CALL(l, "close", SYS_close, 1);
    for (int i = 0; i < 3; i++) {
        /* Before setns: afterwards T' has no power over the pod's init. Becomes 1. */
        ADD_CALL(l, "fetch a line to the engine", SYS_pidfd_getfd, 0, (uint64_t)lines[i][0], 0);
        /* CLOEXEC: programs that cells start must not get it. */
        ADD_CALL(l, "place a line to the engine", SYS_dup3, 1, (uint64_t)lines[i][1], O_CLOEXEC);
        ADD_CALL(l, "close", SYS_close, 1);
    }
    /* All namespaces but that of pids, in which T' was born. It gives up E1's capabilities here. */
    const uint64_t namespaces =
        CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;
    ADD_CALL(l, "setns to the pod", SYS_setns, 0, namespaces);
    /* No process inside may hold the pidfd of the pod's init. */
    ADD_CALL(l, "close", SYS_close, 0);
    /* kill(0, 9) in a cell must not reach the engine's process group. */
    ADD_CALL(l, "setsid", SYS_setsid);
    /* A change of credentials may make a process undumpable. Its files in /proc would then belong
     * to root of another namespace, and the user's code could not open them. */
    ADD_CALL(l, "stay dumpable", SYS_prctl, PR_SET_DUMPABLE, 1);
    ADD_CALL(l, "name the main thread", SYS_prctl, PR_SET_NAME, name);
    /* Before its descriptors, some of which may be pidfds of these children. */
    for (int i = 0; i < plan->child_count; i++)
        if (add_dead_child(s, &plan->children[i], why)) return -1;
    return list_place(l, &s->region, why);
}

/* The calls that the engine decided on: descriptors, folder, limits. Large ones are in a region of
 * their own, which T' unmaps afterwards. */
static int write_given_list(script *s, given_list *to, const given_call *given, int count,
                            failure *why) {
    if (!count) return 0;
    size_t size = given_size(given, count);
    to->apart = size > GIVEN_APART;
    scratch *region = to->apart ? &to->region : &s->region;
    if (to->apart && scratch_make(region, SCRATCH_GIVEN, size, why)) return -1;
    if (list_add_given(&to->calls, region, given, count, why)) return -1;
    return list_place(&to->calls, region, why);
}

/* Writes the list of one thread: it is born with the pod's capabilities, sets itself up, drops
 * them and waits until all other threads have done so. Returns the address of the arguments of its
 * clone3, 0 on failure. */
static uint64_t write_thread(script *s, const thread_state *thread, int index,
                             uint64_t capability_header, uint64_t capability_data, failure *why) {
    list *t = &s->thread;
    t->count = 0;
    add_thread_set_up(s, t, thread);
    uint64_t name = scratch_put(&s->region, thread->name, 16, 8);
    ADD_CALL(t, "name a thread", SYS_prctl, PR_SET_NAME, name);
    add_power_drop(t, capability_header, capability_data);
    int drop = t->count - 1;
    /* The main thread waits at the record of the capset. Its address is known when the list is
     * placed, below. */
    TRY_CALL(t, "say that the power is dropped", SYS_futex, 0, FUTEX_WAKE_PRIVATE, 1);
    /* Returns at once where the barrier is open already (EAGAIN). */
    TRY_CALL(t, "wait for the others", SYS_futex, s->barrier, FUTEX_WAIT_PRIVATE, 0);
    add_freedom(s, t, thread);
    /* Restores all registers, the signal mask and the alternate stack from the frame. */
    ADD_CALL(t, "leave", SYS_rt_sigreturn);
    if (list_place(t, &s->region, why)) return 0;
    s->dropped[index] = t->at + (uint64_t)drop * sizeof(call);
    ((call *)scratch_here(&s->region, t->at))[drop + 1].argument[0] = s->dropped[index];
    uint64_t departure = put_departure(&s->region, thread, t->at, list_end(t));
    int32_t wanted = thread->inner_tid;
    uint64_t set_tid = scratch_put(&s->region, &wanted, sizeof wanted, 8);
    struct clone_args child = {.flags = THREAD_FLAGS,
                               .parent_tid = thread->tid_address,
                               .child_tid = thread->tid_address,
                               .tls = arch_thread_pointer(&thread->registers),
                               .stack = departure - 4096,
                               .stack_size = 4096,
                               .set_tid = set_tid,
                               .set_tid_size = 1};
    uint64_t arguments = scratch_put(&s->region, &child, sizeof child, 8);
    if (departure && arguments) return arguments;
    failed(why, ENOSPC, "lay out thread %d", index);
    return 0;
}

/* T', inside the pod, with the pod's capabilities until the last call. */
static int write_threads_list(script *s, const snapshot *from, failure *why) {
    list *l = &s->threads;
    struct __user_cap_header_struct version = {_LINUX_CAPABILITY_VERSION_3, 0};
    uint64_t capability_header = scratch_put(&s->region, &version, sizeof version, 8);
    uint64_t capability_data = scratch_put(&s->region, NULL, 24, 8);
    /* The sandbox has no use for this memory, and would pay for it. */
    if (s->given.apart)
        ADD_CALL(l, "unmap the calls", SYS_munmap, SCRATCH_GIVEN, s->given.region.size);
    /* Refused only where the shadow is nicer already, because the host's user reniced it meanwhile:
     * then the sandbox yields all the more. */
    TRY_CALL(l, "yield to the engine", SYS_setpriority, PRIO_PROCESS, 0,
             (uint64_t)(int64_t)usual_scheduling.nice);
    /* Before the capabilities go: it takes one to set them. */
    ADD_CALL(l, "lock the secure bits", SYS_prctl, PR_SET_SECUREBITS, WIRE_SECURE_BITS);
    add_thread_set_up(s, l, &from->threads[0]);
    for (int i = 1; i < from->thread_count; i++) {
        const thread_state *thread = &from->threads[i];
        uint64_t arguments = write_thread(s, thread, i, capability_header, capability_data, why);
        if (!arguments) return -1;
        /* Under its old id, which takes a capability over the pid namespace. */
        ADD_CALL(l, "re-create a thread", SYS_clone3, arguments, sizeof(struct clone_args), 0, 0, 0,
                 ARCH_THREAD_MARK);
    }
    /* No code of the sandbox runs before every thread is without capabilities. The race: a thread
     * that still waits for a processor here holds the pod's, and its list lies in memory that the
     * sandbox may write. The result of its capset replaces the number of the call, so the wait
     * returns at once where that has happened (EAGAIN). check_powerless looks again. */
    for (int i = 1; i < from->thread_count; i++)
        TRY_CALL(l, "wait for a thread to drop its power", SYS_futex, s->dropped[i],
                 FUTEX_WAIT_PRIVATE, SYS_capset);
    add_power_drop(l, capability_header, capability_data);
    return list_place(l, &s->region, why);
}

static int write_script(script *s, const snapshot *from, const thaw_plan *plan, failure *why) {
    size_t size = SCRATCH_AT_LEAST + 2 * GIVEN_APART + (size_t)plan->child_count * 1024;
    for (int i = 0; i < from->thread_count; i++)
        size += from->threads[i].extended_size + 4096;
    if (scratch_make(&s->region, SCRATCH, size, why)) return -1;
    s->dropped = calloc((size_t)from->thread_count, sizeof *s->dropped);
    if (!s->dropped) return failed(why, ENOMEM, "prepare lists");
    s->barrier = scratch_put(&s->region, NULL, 64, 64);
    if (write_shadow_list(s, from, plan, why) || write_walls_list(s, from, plan, why) ||
        write_given_list(s, &s->given, plan->given, plan->given_count, why) ||
        write_given_list(s, &s->powerless, plan->powerless, plan->powerless_count, why) ||
        write_threads_list(s, from, why))
        return -1;
    /* Both would lie at one place. What comes with capabilities is a few calls, if anything comes
     * without. */
    if (s->given.apart && s->powerless.apart) return failed(why, ENOSPC, "lay out two lists");
    if (s->powerless.apart) {
        ADD_CALL(&s->clear, "unmap the calls", SYS_munmap, SCRATCH_GIVEN, s->powerless.region.size);
        if (list_place(&s->clear, &s->region, why)) return -1;
    }
    /* The main thread, without capabilities and no longer traced. */
    add_freedom(s, &s->release, &from->threads[0]);
    /* We have opened the barrier before; this wakes the threads that wait at it. */
    TRY_CALL(&s->release, "let the threads go", SYS_futex, s->barrier, FUTEX_WAKE_PRIVATE,
             0x7fffffff);
    /* Back to where the frozen thread was stopped. */
    ADD_CALL(&s->release, "leave", SYS_rt_sigreturn);
    if (list_place(&s->release, &s->region, why)) return -1;
    s->departure = put_departure(&s->region, &from->threads[0], 0, 0);
    return s->departure ? 0 : failed(why, ENOSPC, "lay out the main thread");
}

/* A mount namespace whose root was not changed would show the host: compare the roots. */
static int check_root(pid_t repl, int pod_root, failure *why) {
    struct stat expected, found;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/root/", repl);
    if (fstat(pod_root, &expected) || stat(path, &found))
        return failed(why, errno, "look at the sandbox's root");
    if (expected.st_dev != found.st_dev || expected.st_ino != found.st_ino)
        return failed(why, 0, "the sandbox's root is not its pod's");
    return 0;
}

/* Looks from outside, because the results in the lists could be forged: the namespaces are the
 * pod's. */
static int check_namespaces(pid_t repl, const uint64_t *expected, failure *why) {
    static const char *const names[NAMESPACES] = WIRE_NAMESPACES;
    for (int i = 0; i < NAMESPACES; i++) {
        struct stat found;
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/ns/%s", repl, names[i]);
        if (stat(path, &found))
            return failed(why, errno, "look at the sandbox's %s namespace", names[i]);
        if (found.st_ino != expected[i])
            return failed(why, 0, "the sandbox's %s namespace is not its pod's", names[i]);
    }
    return 0;
}

/* Looks from outside as well: no thread holds a capability. */
static int check_capabilities(pid_t repl, int expected_count, failure *why) {
    char path[64];
    int count = 0, result = 0;
    snprintf(path, sizeof path, "/proc/%d/task", repl);
    DIR *folder = opendir(path);
    if (!folder) return failed(why, errno, "list the threads of the sandbox");
    for (struct dirent *entry; !result && (entry = readdir(folder));) {
        struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, atoi(entry->d_name)};
        struct __user_cap_data_struct held[2] = {{0}};
        if (header.pid <= 0) continue;
        count++;
        if (syscall(SYS_capget, &header, held))
            result = failed(why, errno, "ask for the capabilities of a thread");
        else if (held[0].effective | held[0].permitted | held[0].inheritable | held[1].effective |
                 held[1].permitted | held[1].inheritable)
            result = failed(why, 0, "a thread of the new sandbox still has capabilities");
    }
    closedir(folder);
    if (result || count == expected_count) return result;
    return failed(why, 0, "the new sandbox has %d threads, expected %d", count, expected_count);
}

/* A futex wait may return early, so look at the result of each thread's capset. */
static int check_powerless(const snapshot *from, pid_t repl, const script *s, failure *why) {
    for (int i = 1; i < from->thread_count; i++) {
        uint64_t result;
        if (read_memory(repl, s->dropped[i], &result, sizeof result, why)) return -1;
        if (result)
            return failed(why, result == SYS_capset ? 0 : (int)-(long)result,
                          "thread %d did not drop its capabilities", i);
    }
    return 0;
}

static int map_regions(const snapshot *from, const script *s, pid_t shadow, failure *why) {
    const registers *r = &from->threads[0].registers;
    if (scratch_map(&s->region, shadow, r, from->syscall_at, why)) return -1;
    const given_list *apart = s->given.apart       ? &s->given
                              : s->powerless.apart ? &s->powerless
                                                   : NULL;
    return apart ? scratch_map(&apart->region, shadow, r, from->syscall_at, why) : 0;
}

/* These calls are made from the descriptors of the frozen sandbox. Where it has found a way to make
 * one of them block, it must not hold up other sandboxes. */
static int run_given(pid_t repl, const script *s, const given_list *given, failure *why) {
    if (!given->calls.count) return 0;
    const scratch *region = given->apart ? &given->region : &s->region;
    double seconds = GIVEN_SECONDS + (double)region->used / GIVEN_BYTES_PER_SECOND;
    struct timespec allowed = deadline_shorten(seconds);
    int stuck = list_run(repl, region, &given->calls, NULL, why);
    deadline_restore(allowed);
    return stuck;
}

static int run_script(snapshot *from, const thaw_plan *plan, script *s, thawed *made,
                      failure *why) {
    stop seen;
    registers r;
    double time[5] = {microseconds_now()};
    if (plan->consume) {
        made->shadow = from->shadow;
        from->shadow = 0;
    } else if (take_copy(from, &made->shadow, why) || (plan->more && copy_ahead(from, why))) {
        return -1;
    }
    bring_here(made->shadow);
    time[1] = microseconds_now();
    if (map_regions(from, s, made->shadow, why)) return -1;
    if (list_run(made->shadow, &s->region, &s->shadow, &made->repl, why)) return -1;
    if (!made->repl) return failed(why, 0, "the shadow made no sandbox");
    if (wait_stop(made->repl, &seen, why)) return -1;
    if (seen.kind != STOP_EVENT_STOP)
        return failed(why, 0, "the new sandbox stopped oddly (%d)", seen.kind);
    time[2] = microseconds_now();
    /* Without TRACE_CHILDREN: its threads set themselves up and wait, untraced. */
    if (set_options(made->repl, TRACE_ALWAYS, why) || block_signals(made->repl, why)) return -1;
    if (list_run(made->repl, &s->region, &s->walls, NULL, why) ||
        check_root(made->repl, plan->pod_root, why) ||
        check_namespaces(made->repl, plan->namespaces, why))
        return -1;
    /* T' is inside the pod and holds the pod's capabilities until its threads are there. */
    if (run_given(made->repl, s, &s->given, why) ||
        list_run(made->repl, &s->region, &s->threads, NULL, why) ||
        check_powerless(from, made->repl, s, why) ||
        check_capabilities(made->repl, from->thread_count, why))
        return -1;
    /* It holds none any more; its other threads wait at the barrier. */
    if (run_given(made->repl, s, &s->powerless, why) ||
        (s->clear.count && list_run(made->repl, &s->region, &s->clear, NULL, why)))
        return -1;
    time[3] = microseconds_now();
    /* While we hold both: afterwards another process may have got the number. */
    made->shadow_pidfd = (int)syscall(SYS_pidfd_open, made->shadow, 0);
    made->repl_pidfd = (int)syscall(SYS_pidfd_open, made->repl, 0);
    if (made->shadow_pidfd < 0 || made->repl_pidfd < 0)
        return failed(why, errno, "pidfd_open of the sandbox");
    uint32_t open_barrier = 1;
    if (write_memory(made->repl, s->barrier, &open_barrier, sizeof open_barrier, why) ||
        read_registers(made->repl, &r, why))
        return -1;
    /* From the detach on the code of the sandbox runs, and nothing of ours may trust its memory. */
    arch_set_list(&r, SCRATCH, s->release.at, list_end(&s->release), s->departure + 16);
    if (write_registers(made->repl, &r, why)) return -1;
    if (ptrace(PTRACE_DETACH, made->repl, 0, 0)) return failed(why, errno, "let the sandbox go");
    time[4] = microseconds_now();
    for (int i = 0; i < 4; i++)
        made->microseconds[i] = time[i + 1] - time[i];
    return 0;
}

int thaw(snapshot *from, const thaw_plan *plan, thawed *made, failure *why) {
    script s = {0};
    memset(made, 0, sizeof *made);
    if (from->shadow <= 0) return failed(why, 0, "this snapshot has no shadow any more");
    made->shadow_pidfd = made->repl_pidfd = -1;
    fault_rest(from->is_template);
    stay_here();
    int stuck = write_script(&s, from, plan, why) || run_script(from, plan, &s, made, why);
    int result = stuck ? -1 : 0;
    if (result) {
        /* Nothing half-made stays. */
        if (made->shadow && !made->repl) made->repl = unseen_child(made->shadow, 1);
        kill_and_reap(made->repl);
        kill_and_reap(made->shadow);
        if (made->shadow_pidfd >= 0) close(made->shadow_pidfd);
        if (made->repl_pidfd >= 0) close(made->repl_pidfd);
    }
    roam();
    script_free(&s);
    return result;
}
