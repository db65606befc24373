/* Thaw: a new sandbox from a snapshot, in an empty pod.
 *
 *   shadow S ──clone──> S'                 copy-on-write copy of the memory, outside the pod, never runs by itself
 *                       S' ──clone3──> T'  shares memory and signal handlers with S', born in the pod's pid namespace
 *                                      T'  joins the walls, takes its descriptors, re-creates the threads, drops all power, runs
 *
 * S' and T' work through lists of calls (list.h). Their region is mapped in S' after the copy was made, so nothing that ran
 * before can share it. Both start with an empty descriptor table: results of creating calls are known beforehand.
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

/* Numbers in the table of the pod's init (isolation/native/pod.c) and in the REPL (ramet_guest). */
enum { GIVEN_CONTROL = 4, GIVEN_STDOUT = 5, GIVEN_STDERR = 6, GIVEN_CGROUPS = 7, REPL_CONTROL = 1000, REPL_STDOUT = 1001, REPL_STDERR = 1002 };
enum { GIVEN_APART = 64 * 1024 };
#define GIVEN_SECONDS 1.0
#define GIVEN_BYTES_PER_SECOND 50e6
enum { SECUREBITS_NO_ROOT_LOCKED = 0x2f }; /* NOROOT, NO_SETUID_FIXUP and KEEP_CAPS off, each locked (capabilities(7)) */
#define THREAD_FLAGS                                                                                                                         \
    (CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID)

static double microseconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* A block from which a thread leaves for its old life: two words it pops to find its list, then the frame of rt_sigreturn. */
static uint64_t put_departure(scratch *region, const thread_state *thread, uint64_t first, uint64_t end) {
    uint64_t extended = scratch_put(region, NULL, thread->extended_size + 4u, 64);
    uint64_t block = extended ? scratch_put(region, NULL, 16 + sizeof(ucontext_t), 16) : 0;
    if (!block) return 0;
    arch_fill_extended(scratch_here(region, extended), thread->extended, thread->extended_size, frame_extended_features);
    uint64_t *words = scratch_here(region, block);
    words[0] = first, words[1] = end;
    ucontext_t *context = (ucontext_t *)(words + 2);
    registers r = thread->registers;
    arch_restart_call(&r);
    arch_fill_context(context, &r, extended);
    context->uc_stack = thread->alternate_stack;
    memcpy(&context->uc_sigmask, &thread->mask, sizeof thread->mask);
    return block;
}

static void add_power_drop(list *calls, uint64_t capability_header, uint64_t capability_data) {
    list_add(calls, "capset", SYS_capset, capability_header, capability_data, 0, 0, 0, 0);
}

/* Everything the two tasks will do, laid out before either runs. */
typedef struct {
    scratch region;
    scratch given_region; /* unless given_apart, they are in the first one */
    int given_apart;
    list shadow, walls, given, threads, release, thread, child;
    uint64_t barrier, departure;
    uint64_t *dropped; /* by thread: the record of its capset, which holds the call's number until the call is made */
} script;

static void script_free(script *s) {
    scratch_free(&s->region), scratch_free(&s->given_region);
    free(s->dropped);
    list *all[] = {&s->shadow, &s->walls, &s->given, &s->threads, &s->release, &s->thread, &s->child};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) list_free(all[i]);
}

static void add_thread_set_up(script *s, list *calls, const thread_state *thread) {
    list_add(calls, "set_robust_list", SYS_set_robust_list, thread->robust_list, thread->robust_length, 0, 0, 0, 0);
    /* Where a user asked for something else than a new thread has. What is refused (real-time, less niceness) was refused before. */
    if (thread->nice != usual_scheduling.nice)
        list_add(calls, "setpriority", SYS_setpriority, PRIO_PROCESS, 0, (uint64_t)(int64_t)thread->nice, 0, 0, 0)->flags = 0;
    if (thread->policy != usual_scheduling.policy)
        list_add(calls, "sched_setscheduler", SYS_sched_setscheduler, 0, (uint64_t)thread->policy, scratch_put(&s->region, NULL, 8, 8), 0, 0, 0)->flags = 0;
    if (thread->io_priority > 0 && thread->io_priority != usual_scheduling.io_priority)
        list_add(calls, "ioprio_set", SYS_ioprio_set, 1, 0, (uint64_t)thread->io_priority, 0, 0, 0)->flags = 0;
}

/* For lists that nobody with power is behind any more. Until here the thread was kept on the tracer's processor. And once its rseq
 * area is registered, the kernel goes where the sandbox's memory says. */
static void add_freedom(script *s, list *calls, const thread_state *thread) {
    if (thread->rseq.address)
        list_add(calls, "rseq", SYS_rseq, thread->rseq.address, thread->rseq.length, 0, thread->rseq.signature, 0, 0)->flags = 0;
    static const uint64_t unknown[16];
    const uint64_t *own = memcmp(thread->affinity, unknown, sizeof unknown) ? thread->affinity : usual_scheduling.affinity;
    uint64_t at = scratch_put(&s->region, own, sizeof thread->affinity, 8);
    list_add(calls, "sched_setaffinity", SYS_sched_setaffinity, 0, sizeof thread->affinity, at, 0, 0, 0)->flags = 0;
}

static int write_shadow_list(script *s, const snapshot *from, const thaw_plan *plan, failure *why) {
    const thread_state *leader = &from->threads[0];
    list *l = &s->shadow;
    uint64_t zero = scratch_put(&s->region, "0", 2, 8);
    int32_t wanted = plan->main_pid;
    uint64_t set_tid = scratch_put(&s->region, &wanted, sizeof wanted, 8);
    struct clone_args child = {.flags = CLONE_VM | CLONE_SIGHAND | CLONE_PARENT | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | CLONE_SETTLS,
                               .child_tid = leader->tid_address,
                               .tls = arch_thread_pointer(&leader->registers),
                               .stack = SCRATCH + s->region.size - SCRATCH_STACK,
                               .stack_size = SCRATCH_STACK,
                               .set_tid = set_tid,
                               .set_tid_size = 1};
    uint64_t arguments = scratch_put(&s->region, &child, sizeof child, 8);
    /* From here on nothing in it is writable and executable at once. */
    list_add(l, "protect the loop", SYS_mprotect, SCRATCH, SCRATCH_LISTS, PROT_READ | PROT_EXEC, 0, 0, 0);
    list_add(l, "protect the lists", SYS_mprotect, SCRATCH + SCRATCH_LISTS, s->region.size - SCRATCH_LISTS, PROT_READ | PROT_WRITE, 0, 0, 0);
    list_add(l, "close_range in the shadow", SYS_close_range, 0, ~0u, 0, 0, 0, 0);
    list_add(l, "pidfd_open of the pod", SYS_pidfd_open, (uint64_t)plan->pod_init, 0, 0, 0, 0, 0); /* 0 */
    list_add(l, "pidfd_open of the holder", SYS_pidfd_open, 1, 0, 0, 0, 0, 0);                       /* 1 */
    for (int i = 0; i < plan->cgroup_count; i++) {
        /* The shadow owns the memory, so it is the shadow that is counted. Moving oneself by writing 0 to `tasks` takes no
         * lock over all processes; moving another costs up to 20 ms of waiting for the kernel. The sandbox inherits it. */
        list_add(l, "fetch a cgroup's file", SYS_pidfd_getfd, 0, (uint64_t)(GIVEN_CGROUPS + i), 0, 0, 0, 0); /* 2 */
        list_add(l, "enter a cgroup", SYS_write, 2, zero, 1, 0, 0, 0);
        list_add(l, "close", SYS_close, 2, 0, 0, 0, 0, 0);
    }
    list_add(l, "setns to the pod's pid namespace", SYS_setns, 0, CLONE_NEWPID, 0, 0, 0, 0);
    list_add(l, "clone3 of the sandbox", SYS_clone3, arguments, sizeof child, 0, 0, 0, 0);
    list_add(l, "setns back", SYS_setns, 1, CLONE_NEWPID, 0, 0, 0, 0);
    list_add(l, "close_range in the shadow", SYS_close_range, 0, ~0u, 0, 0, 0, 0);
    return list_place(l, &s->region, why);
}

/* A child of the frozen REPL is made anew under its id, only to die as it had died, or as if killed. */
static int add_dead_child(script *s, const dead_child *child, failure *why) {
    list *c = &s->child;
    int signal = child->status & 0x7f;
    c->count = 0;
    if (signal) list_add(c, "die", SYS_kill, (uint64_t)child->pid, (uint64_t)signal, 0, 0, 0, 0);
    list_add(c, "end", SYS_exit_group, (uint64_t)((child->status >> 8) & 0xff), 0, 0, 0, 0, 0);
    if (list_place(c, &s->region, why)) return -1;
    uint64_t words[2] = {c->at, list_end(c)};
    uint64_t stack = scratch_put(&s->region, words, sizeof words, 16);
    int32_t wanted = child->pid;
    uint64_t set_tid = scratch_put(&s->region, &wanted, sizeof wanted, 8);
    /* VFORK: the list goes on when it has let go of the memory. No core file: nothing of ours is dumpable at that limit. */
    struct clone_args made = {.flags = CLONE_VM | CLONE_VFORK, .exit_signal = SIGCHLD, .stack = stack - 4096, .stack_size = 4096,
                              .set_tid = set_tid, .set_tid_size = 1};
    uint64_t arguments = scratch_put(&s->region, &made, sizeof made, 8);
    if (!stack || !set_tid || !arguments) return failed(why, ENOSPC, "lay out a child process");
    list_add(&s->walls, "re-create a child process", SYS_clone3, arguments, sizeof made, 0, 0, 0, ARCH_THREAD_MARK);
    list_add(&s->walls, "wait for a child process to end", SYS_waitid, P_PID, (uint64_t)child->pid, 0, WEXITED | WNOWAIT, 0, 0)->flags = 0;
    return 0;
}

/* Still E1's capabilities when it starts, the pod's after setns. It ends with the three lines at their places and nothing else. */
static int write_walls_list(script *s, const snapshot *from, const thaw_plan *plan, failure *why) {
    list *l = &s->walls;
    uint64_t name = scratch_put(&s->region, from->threads[0].name, 16, 8);
    static const int lines[][2] = {{GIVEN_CONTROL, REPL_CONTROL}, {GIVEN_STDOUT, REPL_STDOUT}, {GIVEN_STDERR, REPL_STDERR}};
    list_add(l, "close", SYS_close, 1, 0, 0, 0, 0, 0);
    for (int i = 0; i < 3; i++) {
        list_add(l, "fetch a line to the engine", SYS_pidfd_getfd, 0, (uint64_t)lines[i][0], 0, 0, 0, 0);
        list_add(l, "place a line to the engine", SYS_dup3, 1, (uint64_t)lines[i][1], O_CLOEXEC, 0, 0, 0);
        list_add(l, "close", SYS_close, 1, 0, 0, 0, 0, 0);
    }
    list_add(l, "setns to the pod", SYS_setns, 0, CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP, 0, 0, 0, 0);
    list_add(l, "close", SYS_close, 0, 0, 0, 0, 0, 0);
    list_add(l, "setsid", SYS_setsid, 0, 0, 0, 0, 0, 0); /* kill(0, 9) in a cell must reach nobody outside */
    list_add(l, "stay dumpable", SYS_prctl, PR_SET_DUMPABLE, 1, 0, 0, 0, 0);
    list_add(l, "name the main thread", SYS_prctl, PR_SET_NAME, name, 0, 0, 0, 0);
    for (int i = 0; i < plan->child_count; i++) /* before descriptors are made, some of which may name them */
        if (add_dead_child(s, &plan->children[i], why)) return -1;
    return list_place(l, &s->region, why);
}

/* What the engine decided: descriptors, folder, limits. With much data, in a region of its own that is unmapped when they are made. */
static int write_given_list(script *s, const thaw_plan *plan, failure *why) {
    if (!plan->given_count) return 0;
    s->given_apart = given_size(plan->given, plan->given_count) > GIVEN_APART;
    if (!s->given_apart) {
        if (list_add_given(&s->given, &s->region, plan->given, plan->given_count, why)) return -1;
        return list_place(&s->given, &s->region, why);
    }
    if (scratch_make(&s->given_region, SCRATCH_GIVEN, given_size(plan->given, plan->given_count), why)) return -1;
    if (list_add_given(&s->given, &s->given_region, plan->given, plan->given_count, why)) return -1;
    return list_place(&s->given, &s->given_region, why);
}

/* With the pod's capabilities until its last call. */
static int write_threads_list(script *s, const snapshot *from, failure *why) {
    list *l = &s->threads;
    struct __user_cap_header_struct version = {_LINUX_CAPABILITY_VERSION_3, 0};
    uint64_t capability_header = scratch_put(&s->region, &version, sizeof version, 8), capability_data = scratch_put(&s->region, NULL, 24, 8);
    if (s->given_apart) list_add(l, "unmap the calls", SYS_munmap, SCRATCH_GIVEN, s->given_region.size, 0, 0, 0, 0);
    /* Refused only where the shadow is nicer already, because somebody reniced it while it ran: then the sandbox yields all the more. */
    list_add(l, "yield to the engine", SYS_setpriority, PRIO_PROCESS, 0, (uint64_t)(int64_t)usual_scheduling.nice, 0, 0, 0)->flags = 0;
    list_add(l, "lock the secure bits", SYS_prctl, PR_SET_SECUREBITS, SECUREBITS_NO_ROOT_LOCKED, 0, 0, 0, 0);
    add_thread_set_up(s, l, &from->threads[0]);
    for (int i = 1; i < from->thread_count; i++) {
        const thread_state *thread = &from->threads[i];
        list *t = &s->thread;
        t->count = 0;
        add_thread_set_up(s, t, thread);
        list_add(t, "name a thread", SYS_prctl, PR_SET_NAME, scratch_put(&s->region, thread->name, 16, 8), 0, 0, 0, 0);
        add_power_drop(t, capability_header, capability_data);
        int drop = t->count - 1;
        list_add(t, "say that the power is dropped", SYS_futex, 0, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0)->flags = 0;
        list_add(t, "wait for the others", SYS_futex, s->barrier, FUTEX_WAIT_PRIVATE, 0, 0, 0, 0)->flags = 0;
        add_freedom(s, t, thread);
        list_add(t, "leave", SYS_rt_sigreturn, 0, 0, 0, 0, 0, 0);
        if (list_place(t, &s->region, why)) return -1;
        s->dropped[i] = t->at + (uint64_t)drop * sizeof(call);
        ((call *)scratch_here(&s->region, t->at))[drop + 1].argument[0] = s->dropped[i];
        uint64_t departure = put_departure(&s->region, thread, t->at, list_end(t));
        int32_t wanted = thread->inner_tid;
        uint64_t set_tid = scratch_put(&s->region, &wanted, sizeof wanted, 8);
        struct clone_args child = {.flags = THREAD_FLAGS, .parent_tid = thread->tid_address, .child_tid = thread->tid_address,
                                   .tls = arch_thread_pointer(&thread->registers), .stack = departure - 4096, .stack_size = 4096,
                                   .set_tid = set_tid, .set_tid_size = 1};
        uint64_t arguments = scratch_put(&s->region, &child, sizeof child, 8);
        if (!departure || !arguments) return failed(why, ENOSPC, "lay out thread %d", i);
        list_add(l, "re-create a thread", SYS_clone3, arguments, sizeof child, 0, 0, 0, ARCH_THREAD_MARK);
    }
    /* Nobody's code runs before every thread is powerless: a thread that still waits for a processor here holds the pod's
     * capabilities, and its list lies in memory that the sandbox may write. The result of its capset replaces the number. */
    for (int i = 1; i < from->thread_count; i++)
        list_add(l, "wait for a thread to drop its power", SYS_futex, s->dropped[i], FUTEX_WAIT_PRIVATE, SYS_capset, 0, 0, 0)->flags = 0;
    add_power_drop(l, capability_header, capability_data);
    return list_place(l, &s->region, why);
}

static int write_script(script *s, const snapshot *from, const thaw_plan *plan, failure *why) {
    size_t size = SCRATCH_AT_LEAST + GIVEN_APART + (size_t)plan->child_count * 1024;
    for (int i = 0; i < from->thread_count; i++) size += from->threads[i].extended_size + 4096;
    if (scratch_make(&s->region, SCRATCH, size, why)) return -1;
    s->dropped = calloc((size_t)from->thread_count, sizeof *s->dropped);
    if (!s->dropped) return failed(why, ENOMEM, "prepare lists");
    s->barrier = scratch_put(&s->region, NULL, 64, 64);
    if (write_shadow_list(s, from, plan, why) || write_walls_list(s, from, plan, why) || write_given_list(s, plan, why) ||
        write_threads_list(s, from, why))
        return -1;
    add_freedom(s, &s->release, &from->threads[0]);
    list_add(&s->release, "let the threads go", SYS_futex, s->barrier, FUTEX_WAKE_PRIVATE, 0x7fffffff, 0, 0, 0)->flags = 0;
    list_add(&s->release, "leave", SYS_rt_sigreturn, 0, 0, 0, 0, 0, 0);
    if (list_place(&s->release, &s->region, why)) return -1;
    s->departure = put_departure(&s->region, &from->threads[0], 0, 0);
    return s->departure ? 0 : failed(why, ENOSPC, "lay out the main thread");
}

/* A joined mount namespace that was not pivoted would show the host: compare the roots. */
static int check_root(pid_t repl, int pod_root, failure *why) {
    struct stat expected, found;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/root/", repl);
    if (fstat(pod_root, &expected) || stat(path, &found)) return failed(why, errno, "look at the sandbox's root");
    if (expected.st_dev != found.st_dev || expected.st_ino != found.st_ino) return failed(why, 0, "the sandbox's root is not its pod's");
    return 0;
}

/* From outside, whatever the lists say of themselves: the namespaces are the pod's. */
static int check_namespaces(pid_t repl, const uint64_t *expected, failure *why) {
    static const char *const names[NAMESPACES] = {"user", "mnt", "net", "ipc", "uts", "cgroup", "pid"};
    for (int i = 0; i < NAMESPACES; i++) {
        struct stat found;
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/ns/%s", repl, names[i]);
        if (stat(path, &found)) return failed(why, errno, "look at the sandbox's %s namespace", names[i]);
        if (found.st_ino != expected[i]) return failed(why, 0, "the sandbox's %s namespace is not its pod's", names[i]);
    }
    return 0;
}

/* And no thread holds a capability. */
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
        if (syscall(SYS_capget, &header, held)) result = failed(why, errno, "ask for the capabilities of a thread");
        else if (held[0].effective | held[0].permitted | held[0].inheritable | held[1].effective | held[1].permitted | held[1].inheritable)
            result = failed(why, 0, "a thread of the new sandbox still has capabilities");
    }
    closedir(folder);
    if (!result && count != expected_count) result = failed(why, 0, "the new sandbox has %d threads, expected %d", count, expected_count);
    return result;
}

/* A wait can end early; this cannot. */
static int check_powerless(const snapshot *from, pid_t repl, const script *s, failure *why) {
    for (int i = 1; i < from->thread_count; i++) {
        uint64_t result;
        if (read_memory(repl, s->dropped[i], &result, sizeof result, why)) return -1;
        if (result) return failed(why, result == SYS_capset ? 0 : (int)-(long)result, "thread %d did not drop its capabilities", i);
    }
    return 0;
}

static int map_regions(const snapshot *from, const script *s, pid_t shadow, failure *why) {
    const registers *r = &from->threads[0].registers;
    if (scratch_map(&s->region, shadow, r, from->syscall_at, why)) return -1;
    return s->given_apart ? scratch_map(&s->given_region, shadow, r, from->syscall_at, why) : 0;
}

static int run_script(snapshot *from, const thaw_plan *plan, script *s, thawed *made, failure *why) {
    stop seen;
    registers r;
    double time[5] = {microseconds_now()};
    if (plan->consume) made->shadow = from->shadow, from->shadow = 0;
    else if (take_copy(from, &made->shadow, why) || (plan->more && copy_ahead(from, why))) return -1;
    bring_here(made->shadow);
    time[1] = microseconds_now();
    if (map_regions(from, s, made->shadow, why)) return -1;
    if (list_run(made->shadow, &s->region, &s->shadow, &made->repl, why)) return -1;
    if (!made->repl) return failed(why, 0, "the shadow made no sandbox");
    if (wait_stop(made->repl, &seen, why)) return -1;
    if (seen.kind != STOP_EVENT_STOP) return failed(why, 0, "the new sandbox stopped oddly (%d)", seen.kind);
    time[2] = microseconds_now();
    /* Threads it makes are not to be traced: they set themselves up and wait. */
    if (set_options(made->repl, TRACE_ALWAYS, why) || block_signals(made->repl, why)) return -1;
    if (list_run(made->repl, &s->region, &s->walls, NULL, why) || check_root(made->repl, plan->pod_root, why) ||
        check_namespaces(made->repl, plan->namespaces, why))
        return -1;
    const scratch *given_at = s->given_apart ? &s->given_region : &s->region;
    if (s->given.count) { /* made from what the sandbox had: one that found out how to block in it must not hold the others */
        double seconds = GIVEN_SECONDS + (double)given_at->used / GIVEN_BYTES_PER_SECOND;
        struct timespec allowed = deadline_shorten(seconds);
        int stuck = list_run(made->repl, given_at, &s->given, NULL, why);
        deadline_restore(allowed);
        if (stuck) return -1;
    }
    if (list_run(made->repl, &s->region, &s->threads, NULL, why) || check_powerless(from, made->repl, s, why) ||
        check_capabilities(made->repl, from->thread_count, why))
        return -1;
    time[3] = microseconds_now();
    made->shadow_pidfd = (int)syscall(SYS_pidfd_open, made->shadow, 0);
    made->repl_pidfd = (int)syscall(SYS_pidfd_open, made->repl, 0);
    if (made->shadow_pidfd < 0 || made->repl_pidfd < 0) return failed(why, errno, "pidfd_open of the sandbox");
    uint32_t open_barrier = 1;
    if (write_memory(made->repl, s->barrier, &open_barrier, sizeof open_barrier, why) || read_registers(made->repl, &r, why)) return -1;
    arch_set_list(&r, SCRATCH, s->release.at, list_end(&s->release), s->departure + 16);
    if (write_registers(made->repl, &r, why)) return -1;
    if (ptrace(PTRACE_DETACH, made->repl, 0, 0)) return failed(why, errno, "let the sandbox go");
    time[4] = microseconds_now();
    for (int i = 0; i < 4; i++) made->microseconds[i] = time[i + 1] - time[i];
    return 0;
}

int thaw(snapshot *from, const thaw_plan *plan, thawed *made, failure *why) {
    script s = {0};
    memset(made, 0, sizeof *made);
    if (from->shadow <= 0) return failed(why, 0, "this snapshot has no shadow any more");
    made->shadow_pidfd = made->repl_pidfd = -1;
    fault_rest(from->is_template);
    stay_here();
    int result = write_script(&s, from, plan, why) || run_script(from, plan, &s, made, why) ? -1 : 0;
    if (result) { /* nothing half-made stays */
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
