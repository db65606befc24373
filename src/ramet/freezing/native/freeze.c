/* Freezing a template. It ran trusted code only and no sandbox shares its memory, so calls may be injected that would be too
 * trusting in the shadow of a live sandbox (pointers into a page of its own). */
#define _GNU_SOURCE
#include "list.h"
#include "snapshot.h"
#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define PTRACE_GET_RSEQ 0x420f /* PTRACE_GET_RSEQ_CONFIGURATION, Linux 5.13 */
#ifndef PTRACE_GETSIGMASK
#define PTRACE_GETSIGMASK 0x420a
#endif
enum { MAX_THREADS = 1024, EXTENDED_ROOM = 64 * 1024 };

uint32_t frame_extended_size;
uint64_t frame_extended_features;

static void look_at_frame(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    const unsigned char *frame = (const unsigned char *)((ucontext_t *)context)->uc_mcontext.fpregs;
    uint32_t words[5];
    memcpy(words, frame + ARCH_SOFTWARE_BYTES, sizeof words);
    if (words[0] != ARCH_XSTATE_MAGIC1) return;
    frame_extended_features = words[2] | (uint64_t)words[3] << 32;
    frame_extended_size = words[4];
}

int learn_frame_size(failure *why) {
    struct sigaction action = {.sa_sigaction = look_at_frame, .sa_flags = SA_SIGINFO}, before;
    if (frame_extended_size) return 0;
    if (sigaction(SIGRTMAX - 6, &action, &before)) return failed(why, errno, "install a signal handler");
    raise(SIGRTMAX - 6);
    sigaction(SIGRTMAX - 6, &before, NULL);
    if (!frame_extended_size) return failed(why, 0, "signal frames of this kernel hold no extended state (no XSAVE?)");
    return 0;
}

void snapshot_free(snapshot *taken) {
    for (int i = 0; i < taken->thread_count; i++) free(taken->threads[i].extended);
    free(taken->threads);
    taken->threads = NULL;
    taken->thread_count = 0;
}

void end_template(snapshot *taken) {
    if (taken->shadow <= 0) return; /* nothing was seized; kill(0, ...) would mean our own group */
    kill(taken->shadow, SIGKILL);
    for (int i = 0; i < taken->thread_count; i++)
        if (taken->threads[i].tid != taken->shadow) kill_and_reap(taken->threads[i].tid);
    kill_and_reap(taken->shadow);
}

/* Main first: it is the one that runs our calls. */
static int seize_threads(pid_t pid, snapshot *taken, failure *why) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    for (int found_new = 1; found_new;) { /* a thread not yet stopped may make another: go on until a pass finds nobody new */
        found_new = 0;
        DIR *folder = opendir(path);
        if (!folder) return failed(why, errno, "list the threads of template %d", pid);
        for (struct dirent *entry; (entry = readdir(folder));) {
            pid_t tid = atoi(entry->d_name);
            int known = tid <= 0;
            for (int i = 0; i < taken->thread_count; i++) known |= taken->threads[i].tid == tid;
            if (known) continue;
            if (taken->thread_count == MAX_THREADS) return closedir(folder), failed(why, 0, "the template has more than %d threads", MAX_THREADS);
            if (ptrace(PTRACE_SEIZE, tid, 0, (void *)(long)TRACE_ALWAYS)) {
                if (errno == ESRCH) continue; /* it ended meanwhile */
                return closedir(folder), failed(why, errno, "seize thread %d of the template", tid);
            }
            ptrace(PTRACE_INTERRUPT, tid, 0, 0);
            taken->threads[taken->thread_count++].tid = tid;
            found_new = 1;
            for (;;) {
                stop seen;
                if (wait_stop(tid, &seen, why)) return closedir(folder), -1;
                if (seen.kind == STOP_GONE) return closedir(folder), failed(why, 0, "a thread of the template ended while it was stopped");
                if (seen.kind == STOP_EVENT_STOP) break;
                int pass_on = seen.kind == STOP_SIGNAL ? seen.signal : 0;
                ptrace(PTRACE_CONT, tid, 0, (void *)(long)pass_on);
            }
        }
        closedir(folder);
    }
    for (int i = 1; i < taken->thread_count; i++)
        if (taken->threads[i].tid == pid) {
            thread_state first = taken->threads[0];
            taken->threads[0] = taken->threads[i];
            taken->threads[i] = first;
        }
    return 0;
}

static int read_names(thread_state *thread, failure *why) {
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/status", thread->tid);
    FILE *status = fopen(path, "re");
    if (!status) return failed(why, errno, "open %s", path);
    while (fgets(line, sizeof line, status)) {
        if (!strncmp(line, "NSpid:", 6)) thread->inner_tid = atoi(strrchr(line, '\t') + 1);
        if (!strncmp(line, "Name:\t", 6)) sscanf(line + 6, "%15[^\n]", thread->name);
    }
    fclose(status);
    return 0;
}

/* The C library keeps a thread's id in its thread structure, and that is also the address the kernel clears when the thread
 * ends. glibc on x86-64 has it 720 bytes behind the thread pointer; anything else is found by looking for the id. */
static int find_tid_address(thread_state *thread, failure *why) {
    uint32_t words[512];
    uint64_t base = arch_thread_pointer(&thread->registers);
    if (read_memory(thread->tid, base, words, sizeof words, why)) return -1;
    int found = words[720 / 4] == (uint32_t)thread->inner_tid ? 720 / 4 : -1;
    for (int i = 0; found < 0 && i < 512; i++)
        if (words[i] == (uint32_t)thread->inner_tid) found = i;
    if (found < 0) return failed(why, 0, "the thread id of thread %d is not in its thread structure", thread->inner_tid);
    thread->tid_address = base + (uint64_t)found * 4;
    return 0;
}

static int capture(thread_state *thread, failure *why) {
    struct iovec part = {NULL, EXTENDED_ROOM};
    if (read_registers(thread->tid, &thread->registers, why)) return -1;
    part.iov_base = thread->extended = malloc(EXTENDED_ROOM);
    if (!part.iov_base) return failed(why, ENOMEM, "keep the state of a thread");
    if (ptrace(PTRACE_GETREGSET, thread->tid, (void *)NT_X86_XSTATE, &part)) return failed(why, errno, "read the extended state");
    thread->extended_size = part.iov_len < frame_extended_size ? (uint32_t)part.iov_len : frame_extended_size;
    if (ptrace(PTRACE_GETSIGMASK, thread->tid, (void *)8, &thread->mask)) return failed(why, errno, "read the signal mask");
    if (syscall(SYS_get_robust_list, thread->tid, &thread->robust_list, &thread->robust_length)) return failed(why, errno, "read the robust list");
    if (ptrace(PTRACE_GET_RSEQ, thread->tid, (void *)sizeof thread->rseq, &thread->rseq) < 0) memset(&thread->rseq, 0, sizeof thread->rseq);
    if (read_names(thread, why)) return -1;
    return find_tid_address(thread, why);
}

static int find_syscall(pid_t pid, uint64_t *at, failure *why) {
    char path[64], line[512];
    uint64_t start, end;
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *maps = fopen(path, "re");
    if (!maps) return failed(why, errno, "open %s", path);
    *at = 0;
    while (!*at && fgets(line, sizeof line, maps)) {
        if (!strstr(line, "[vdso]") || sscanf(line, "%lx-%lx", &start, &end) != 2 || end - start > 1 << 20) continue;
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

/* The alternate stack can only be asked for by the thread itself. The template never runs again, so its registers need not be put back. */
static int ask_alternate_stacks(snapshot *taken, failure *why) {
    long result;
    uint64_t map[6] = {SCRATCH, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, (uint64_t)-1, 0};
    if (inject(taken->shadow, &taken->threads[0].registers, taken->syscall_at, SYS_mmap, map, &result, NULL, why)) return -1;
    if (result != (long)SCRATCH) return failed(why, (int)-result, "map a page in the template");
    for (int i = 0; i < taken->thread_count; i++) {
        thread_state *thread = &taken->threads[i];
        uint64_t ask[6] = {0, SCRATCH, 0, 0, 0, 0};
        if (inject(thread->tid, &thread->registers, taken->syscall_at, SYS_sigaltstack, ask, &result, NULL, why)) return -1;
        if (result) return failed(why, (int)-result, "ask for the alternate stack");
        if (read_memory(taken->shadow, SCRATCH, &thread->alternate_stack, sizeof(stack_t), why)) return -1;
    }
    return 0;
}

int freeze_template(pid_t pid, int control, snapshot *taken, failure *why) {
    memset(taken, 0, sizeof *taken);
    taken->threads = calloc(MAX_THREADS, sizeof *taken->threads);
    if (!taken->threads) return failed(why, ENOMEM, "freeze");
    taken->shadow = pid;
    taken->tracer = (pid_t)syscall(SYS_gettid);
    if (learn_frame_size(why) || seize_threads(pid, taken, why)) return -1;
    for (int i = 0; i < taken->thread_count; i++)
        if (capture(&taken->threads[i], why)) return -1;
    registers *main_registers = &taken->threads[0].registers;
    if (arch_current_call(main_registers) != SYS_recvfrom || arch_first_argument(main_registers) != (uint64_t)control)
        return failed(why, 0, "the template does not wait for its first cell (it is in call %ld)", arch_current_call(main_registers));
    if (find_syscall(pid, &taken->syscall_at, why)) return -1;
    for (int i = 0; i < taken->thread_count; i++)
        if (block_signals(taken->threads[i].tid, why)) return -1;
    if (ask_alternate_stacks(taken, why)) return -1;
    /* From now on it holds no descriptor of anybody. */
    long result;
    uint64_t all[6] = {0, ~0u, 0, 0, 0, 0};
    if (inject(pid, main_registers, taken->syscall_at, SYS_close_range, all, &result, NULL, why)) return -1;
    if (result) return failed(why, (int)-result, "close the template's descriptors");
    return set_options(pid, TRACE_ALWAYS | TRACE_CHILDREN, why);
}
