/* Copies of shadows: S clones itself, copy-on-write, and the copy S' stops under our hand.
 *
 * The kernel makes a clone without our help, so the next copy of a snapshot can be under way while
 * we thaw the last one.
 */
#define _GNU_SOURCE
#include "snapshot.h"
#include "threads.h"
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>

/* The only call that we inject into a shadow that shares its memory with a live sandbox: S holds
 * E1's capabilities, and the sandbox cannot change arguments that are all in registers. PARENT: the
 * copy is a child of the engine, which has to reap it. */
static const uint64_t clone_arguments[6] = {CLONE_PARENT | SIGCHLD, 0, 0, 0, 0, 0};

/* The call is over, there is no new task, and the error is none that a clone returns. */
enum { NOT_A_CLONE = -3 };

static int clone_begin(const snapshot *from, failure *why) {
    return inject_begin(from->shadow, &from->threads[0].registers, from->syscall_at, SYS_clone,
                        clone_arguments, why);
}

static int clone_end(const snapshot *from, pid_t *copy, failure *why) {
    long result;
    stop seen;
    if (inject_end(from->shadow, &result, copy, why)) return SHADOW_ASTRAY;
    if (!*copy) {
        failed(why, result < 0 ? (int)-result : 0, "clone of the shadow");
        /* The host has no task or memory to give just now, or a signal interrupted the clone
         * (513, ERESTARTNOINTR): the next one may work. No clone gives any other answer without a
         * new task, so we do not know what the shadow did there, and do not keep it. */
        return result == -EAGAIN || result == -ENOMEM || result == -513 ? -1 : NOT_A_CLONE;
    }
    if (result < 0) return failed(why, (int)-result, "clone of the shadow");
    if (wait_stop(*copy, &seen, why)) return -1;
    if (seen.kind != STOP_EVENT_STOP)
        return failed(why, 0, "the new shadow stopped oddly (%d)", seen.kind);
    if (set_options(*copy, TRACE_ALWAYS | TRACE_CHILDREN, why)) return -1;
    if (block_signals(*copy, why)) return -1;
    return check_no_rseq(*copy, why) ? -1 : 0;
}

int copy_shadow(const snapshot *from, pid_t *copy, failure *why) {
    *copy = 0;
    bring_here(from->shadow);
    if (clone_begin(from, why)) return SHADOW_ASTRAY;
    int result = clone_end(from, copy, why);
    return result == NOT_A_CLONE ? SHADOW_ASTRAY : result;
}

int copy_ahead(snapshot *from, failure *why) {
    stop seen;
    if (from->copying || from->shadow <= 0) return 0;
    let_roam(from->shadow);
    if (clone_begin(from, why)) return -1;
    from->copying = 1;
    /* The seccomp filter reports each clone. Past that stop the kernel needs nothing from us until
     * the clone is done. */
    if (wait_stop(from->shadow, &seen, why)) return -1;
    if (seen.kind != STOP_SECCOMP)
        return failed(why, 0, "the shadow stopped oddly (%d) in its clone", seen.kind);
    return ptrace(PTRACE_SYSCALL, from->shadow, 0, 0) ? failed(why, errno, "resume the shadow") : 0;
}

int take_copy(snapshot *from, pid_t *copy, failure *why) {
    if (!from->copying) return copy_shadow(from, copy, why);
    *copy = 0;
    int result = clone_end(from, copy, why);
    if (result != SHADOW_ASTRAY) from->copying = 0;
    return result;
}

void end_copy_ahead(snapshot *from) {
    if (!from->copying) return;
    from->copying = 0;
    kill_and_reap(unseen_child(from->shadow, 1));
}
