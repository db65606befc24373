/* Lists of calls that a task makes by itself; see list.h. */
#define _GNU_SOURCE
#include "list.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>

int scratch_make(scratch *region, uint64_t base, size_t size, failure *why) {
    size = (size + 4095) & ~4095ul;
    region->base = base;
    region->bytes = calloc(1, size);
    if (!region->bytes) return failed(why, ENOMEM, "prepare lists");
    memcpy(region->bytes, arch_loop, sizeof arch_loop);
    region->used = SCRATCH_LISTS;
    region->size = size;
    return 0;
}

void scratch_free(scratch *region) {
    free(region->bytes);
    region->bytes = NULL;
}

uint64_t scratch_put(scratch *region, const void *from, size_t size, size_t alignment) {
    size_t at = (region->used + alignment - 1) & ~(alignment - 1);
    if (at > region->size || size > region->size || at + size > region->size - SCRATCH_STACK)
        return 0;
    if (from) memcpy(region->bytes + at, from, size);
    region->used = at + size;
    return region->base + at;
}

void *scratch_here(scratch *region, uint64_t at) { return region->bytes + (at - region->base); }

/* So that callers need not check each list_add: list_place refuses the list as a whole. */
static call *list_lost(list *calls) {
    static _Thread_local call nowhere;
    calls->incomplete = 1;
    return &nowhere;
}

call *list_add(list *calls, const char *name, long number, uint64_t a, uint64_t b, uint64_t c,
               uint64_t d, uint64_t e, uint64_t f) {
    if (calls->count == calls->room) {
        int room = calls->room ? calls->room * 2 : 32;
        call *grown = realloc(calls->calls, (size_t)room * sizeof *grown);
        if (!grown) return list_lost(calls);
        calls->calls = grown;
        const char **names = realloc(calls->names, (size_t)room * sizeof *names);
        if (!names) return list_lost(calls);
        calls->names = names;
        calls->room = room;
    }
    calls->names[calls->count] = name;
    call *made = &calls->calls[calls->count++];
    *made = (call){(uint64_t)number, {a, b, c, d, e, f}, MUST_WORK};
    return made;
}

int list_place(list *calls, scratch *region, failure *why) {
    if (calls->incomplete) return failed(why, ENOMEM, "prepare lists");
    calls->at = scratch_put(region, calls->calls, (size_t)calls->count * sizeof(call), 64);
    return calls->at ? 0 : failed(why, ENOSPC, "lay out %d calls", calls->count);
}

void list_free(list *calls) {
    free(calls->calls);
    free(calls->names);
}

size_t given_size(const given_call *given, int count) {
    size_t size = SCRATCH_LISTS + SCRATCH_STACK + 4096 + (size_t)count * sizeof(call);
    for (int i = 0; i < count; i++)
        for (int k = 0; k < 6; k++)
            size += given[i].bytes[k] ? given[i].sizes[k] + 8 : 0;
    return size;
}

int list_add_given(list *calls, scratch *region, const given_call *given, int count, failure *why) {
    for (int i = 0; i < count; i++) {
        uint64_t arguments[6];
        for (int k = 0; k < 6; k++) {
            arguments[k] = given[i].arguments[k];
            if (!given[i].bytes[k]) continue;
            arguments[k] = scratch_put(region, given[i].bytes[k], given[i].sizes[k], 8);
            if (!arguments[k]) return failed(why, ENOSPC, "lay out %s", given[i].name);
        }
        call *made = list_add(calls, given[i].name, given[i].number, arguments[0], arguments[1],
                              arguments[2], arguments[3], arguments[4], arguments[5]);
        made->flags = (given[i].must_work ? MUST_WORK : 0) | (given[i].whole ? WHOLE : 0);
    }
    return 0;
}

int scratch_map(const scratch *region, pid_t tid, const registers *from, uint64_t instruction,
                failure *why) {
    long result;
    /* Writable and executable only until its first list runs, which protects both parts. FIXED: the
     * copy may still have the region of its parent there, and nothing else. */
    const uint64_t protection = PROT_READ | PROT_WRITE | PROT_EXEC;
    const uint64_t flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    uint64_t map[6] = {region->base, region->size, protection, flags, (uint64_t)-1, 0};
    if (inject(tid, from, instruction, SYS_mmap, map, &result, NULL, why)) return -1;
    if (result != (long)region->base) return failed(why, (int)-result, "map the scratch region");
    return write_memory(tid, region->base, region->bytes, region->used, why);
}

/* The loop has put each result in the place of the call's number. */
static int check_whole(pid_t tid, const list *calls, failure *why) {
    for (int i = 0; i < calls->count; i++) {
        uint64_t result;
        if (!(calls->calls[i].flags & WHOLE)) continue;
        if (read_memory(tid, calls->at + (uint64_t)i * sizeof(call), &result, sizeof result, why))
            return -1;
        if (result != calls->calls[i].argument[2])
            return failed(why, EAGAIN, "%s: %ld bytes of %lu", calls->names[i], (long)result,
                          calls->calls[i].argument[2]);
    }
    return 0;
}

int list_run(pid_t tid, const scratch *region, const list *calls, pid_t *new_task, failure *why) {
    registers r;
    stop seen;
    uint64_t end = list_end(calls);
    if (read_registers(tid, &r, why)) return -1;
    arch_set_list(&r, region->base, calls->at, end, region->base + region->size - 64);
    if (write_registers(tid, &r, why)) return -1;
    for (;;) {
        if (ptrace(PTRACE_CONT, tid, 0, 0)) return failed(why, errno, "resume task %d", tid);
        if (wait_stop(tid, &seen, why)) return -1;
        if (seen.kind == STOP_NEW_TASK && new_task) *new_task = seen.new_task;
        /* The calls that create tasks, or that the filter reports to us, stop it on the way. */
        if (seen.kind == STOP_NEW_TASK || seen.kind == STOP_SECCOMP) continue;
        break;
    }
    if (seen.kind == STOP_GONE)
        return failed(why, 0, "task %d ended in the middle of its calls", tid);
    if (read_registers(tid, &r, why)) return -1;
    uint64_t position = arch_list_position(&r);
    if (seen.kind != STOP_TRAP)
        return failed(why, 0, "task %d stopped oddly (%d, signal %d) in its calls", tid, seen.kind,
                      seen.signal);
    /* The loop ends with int3, and its position says whether a call failed. */
    if (position == end) return check_whole(tid, calls, why);
    if (position < calls->at || position > end)
        return failed(why, 0, "task %d left its calls", tid);
    return failed(why, (int)-arch_result(&r), "%s",
                  calls->names[(position - calls->at) / sizeof(call)]);
}
