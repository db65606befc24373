/* Reads the state of a stopped thread, from outside: nothing here runs a call in it. */
#define _GNU_SOURCE
#include "list.h"
#include "snapshot.h"
#include "threads.h"
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef PTRACE_GETSIGMASK
#define PTRACE_GETSIGMASK 0x420a
#endif
enum { EXTENDED_ROOM = 64 * 1024 };

uint32_t frame_extended_size;
uint64_t frame_extended_features;

static void look_at_frame(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)info;
    const unsigned char *frame = (const unsigned char *)((ucontext_t *)context)->uc_mcontext.fpregs;
    uint32_t words[5];
    memcpy(words, frame + ARCH_SOFTWARE_BYTES, sizeof words);
    if (words[0] != ARCH_XSTATE_MAGIC1) return;
    frame_extended_features = words[2] | (uint64_t)words[3] << 32;
    frame_extended_size = words[4];
}

int learn_frame_size(failure *why) {
    struct sigaction action = {.sa_sigaction = look_at_frame, .sa_flags = SA_SIGINFO};
    struct sigaction before;
    if (frame_extended_size) return 0;
    if (sigaction(SIGRTMAX - 6, &action, &before))
        return failed(why, errno, "install a signal handler");
    raise(SIGRTMAX - 6);
    sigaction(SIGRTMAX - 6, &before, NULL);
    if (!frame_extended_size)
        return failed(why, 0, "signal frames of this kernel hold no extended state (no XSAVE?)");
    return 0;
}

void snapshot_free(snapshot *taken) {
    for (int i = 0; i < taken->thread_count; i++)
        free(taken->threads[i].extended);
    free(taken->threads);
    taken->threads = NULL;
    taken->thread_count = 0;
}

ssize_t read_small_file(const char *path, char *text, size_t size) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return -1;
    ssize_t length = read(file, text, size - 1);
    close(file);
    if (length >= 0) text[length] = 0;
    return length;
}

int inner_pid(pid_t tid, pid_t *inner, failure *why) {
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/status", tid);
    if (read_small_file(path, text, sizeof text) <= 0) return failed(why, errno, "read %s", path);
    /* A thread's name comes first and may hold anything but a newline, which the kernel writes as
     * \n there. */
    const char *line = strstr(text, "\nNSpid:");
    const char *end = line ? strchr(line + 1, '\n') : NULL;
    while (end && end > line && end[-1] != '\t')
        end--;
    *inner = end ? atoi(end) : 0;
    if (*inner > 0) return 0;
    return failed(why, 0, "the kernel does not say which id task %d has in its own namespace", tid);
}

static int read_names(thread_state *thread, failure *why) {
    char path[64], text[64];
    snprintf(path, sizeof path, "/proc/%d/comm", thread->tid);
    ssize_t length = read_small_file(path, text, sizeof text);
    if (length <= 0) return failed(why, errno, "read %s", path);
    if (text[length - 1] == '\n') text[--length] = 0;
    memcpy(thread->name, text, length < 15 ? (size_t)length : 15);
    return 0;
}

/* The scheduler's settings of a thread. A thaw sets each of them only where it differs from that of
 * a new thread. */
void read_scheduling(thread_state *thread) {
    errno = 0;
    thread->nice = getpriority(PRIO_PROCESS, (id_t)thread->tid);
    thread->policy = sched_getscheduler(thread->tid);
    thread->io_priority = (int)syscall(SYS_ioprio_get, 1 /* IOPRIO_WHO_PROCESS */, thread->tid);
    memset(thread->affinity, 0, sizeof thread->affinity);
    if (syscall(SYS_sched_getaffinity, thread->tid, sizeof thread->affinity, thread->affinity) < 0)
        thread->affinity[0] = 0;
}

/* The C library keeps a thread's id in its thread structure, at the address that the kernel clears
 * when the thread ends. glibc on x86-64 has it 720 bytes behind the thread pointer; elsewhere we
 * search for the id. We take the id of a live thread from there, because asking the kernel takes
 * longer than all the rest. A sandbox that writes a wrong id there gets a copy with wrong ids, or
 * none. */
enum { GLIBC_TID_WORD = 720 / 4 };

static int find_ids(thread_state *thread, int trusted, failure *why) {
    uint32_t words[512];
    uint64_t base = arch_thread_pointer(&thread->registers);
    int readable = !read_memory(thread->tid, base, words, sizeof words, why);
    if (!readable && trusted) return -1;
    if (readable && !trusted && words[GLIBC_TID_WORD] > 1 && words[GLIBC_TID_WORD] < LARGEST_TID) {
        thread->inner_tid = (pid_t)words[GLIBC_TID_WORD];
        thread->tid_address = base + GLIBC_TID_WORD * 4;
        return 0;
    }
    if (inner_pid(thread->tid, &thread->inner_tid, why)) return -1;
    int usual = readable && words[GLIBC_TID_WORD] == (uint32_t)thread->inner_tid;
    int found = usual ? GLIBC_TID_WORD : -1;
    for (int i = 0; readable && found < 0 && i < 512; i++)
        if (words[i] == (uint32_t)thread->inner_tid) found = i;
    if (found < 0 && trusted)
        return failed(why, 0, "the thread id of thread %d is not in its thread structure",
                      thread->inner_tid);
    /* Else it is no thread of the C library, and no join waits for its id to be cleared. */
    if (found >= 0) thread->tid_address = base + (uint64_t)found * 4;
    return 0;
}

int check_no_rseq(pid_t tid, failure *why) {
    rseq_state area = {0};
    /* Since Linux 5.13 the request fails only where the kernel has no rseq. */
    if (ptrace(PTRACE_GET_RSEQ, tid, (void *)sizeof area, &area) < 0) return 0;
    if (!area.address) return 0;
    return failed(why, 0, "task %d has an rseq area: hostile code could lead it", tid);
}

/* The kernel writes to a thread's records during a thaw. They must not lie where we lay out the
 * calls of the thaw: the sandbox could have the kernel change a call before it is made. */
static int check_range(uint64_t at, uint64_t size, failure *why) {
    if (at + size > SCRATCH && at < SCRATCH_END)
        return failed(why, 0, "use %#lx: the sandbox has put a thread's records there", SCRATCH);
    return at + size < at ? failed(why, 0, "a thread's records lie at no address") : 0;
}

int check_records(const thread_state *thread, failure *why) {
    if (check_range(thread->tid_address, 64, why)) return -1;
    if (check_range(thread->rseq.address, 4096, why)) return -1;
    if (check_range(thread->robust_list, 4096, why)) return -1;
    return check_range(arch_thread_pointer(&thread->registers), 4096, why) ? -1 : 0;
}

int capture(thread_state *thread, int trusted, failure *why) {
    struct iovec part = {NULL, EXTENDED_ROOM};
    if (read_registers(thread->tid, &thread->registers, why)) return -1;
    static _Thread_local unsigned char room[EXTENDED_ROOM];
    part.iov_base = room;
    if (ptrace(PTRACE_GETREGSET, thread->tid, (void *)NT_X86_XSTATE, &part))
        return failed(why, errno, "read the extended state");
    thread->extended = malloc(part.iov_len);
    if (!thread->extended) return failed(why, ENOMEM, "keep the state of a thread");
    memcpy(thread->extended, room, part.iov_len);
    thread->extended_size =
        part.iov_len < frame_extended_size ? (uint32_t)part.iov_len : frame_extended_size;
    if (ptrace(PTRACE_GETSIGMASK, thread->tid, (void *)8, &thread->mask))
        return failed(why, errno, "read the signal mask");
    if (syscall(SYS_get_robust_list, thread->tid, &thread->robust_list, &thread->robust_length))
        return failed(why, errno, "read the robust list");
    if (ptrace(PTRACE_GET_RSEQ, thread->tid, (void *)sizeof thread->rseq, &thread->rseq) < 0)
        memset(&thread->rseq, 0, sizeof thread->rseq);
    if (read_names(thread, why)) return -1;
    read_scheduling(thread);
    return find_ids(thread, trusted, why) || check_records(thread, why) ? -1 : 0;
}

int find_syscall(pid_t pid, uint64_t *at, failure *why) {
    char path[64], line[512];
    uint64_t start, end;
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *maps = fopen(path, "re");
    if (!maps) return failed(why, errno, "open %s", path);
    *at = 0;
    while (!*at && fgets(line, sizeof line, maps)) {
        if (!strstr(line, "[vdso]") || sscanf(line, "%lx-%lx", &start, &end) != 2 ||
            end - start > 1 << 20)
            continue;
        size_t size = end - start;
        unsigned char *bytes = malloc(size);
        if (bytes && !read_memory(pid, start, bytes, size, why))
            for (size_t i = 0; !*at && i + 1 < size; i++)
                if (!memcmp(bytes + i, arch_syscall_bytes, ARCH_SYSCALL_LENGTH)) *at = start + i;
        free(bytes);
    }
    fclose(maps);
    return *at ? 0 : failed(why, 0, "no syscall instruction in the vdso of task %d", pid);
}
