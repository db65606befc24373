/* What is kept of a stopped thread, and how it is read. */
#ifndef RAMET_THREADS_H
#define RAMET_THREADS_H
#include "snapshot.h"

enum { MAX_THREADS = 1024 };

/* Reads everything of a stopped thread but its alternate stack, which only the thread itself can tell. `trusted`: a
 * template's, which must be a thread of the C library. */
int capture(thread_state *thread, int trusted, failure *why);
/* A shadow with a registered rseq area could be led by whoever writes to its memory: refused. */
int check_no_rseq(pid_t tid, failure *why);
/* Niceness, policy, affinity: also of a task that is not stopped. */
void read_scheduling(thread_state *thread);
/* Reads a file of /proc in one go and ends it with a zero: its length, -1 with errno. */
ssize_t read_small_file(const char *path, char *text, size_t size);
/* The id of a task in its own pid namespace. */
int inner_pid(pid_t tid, pid_t *inner, failure *why);
/* A syscall instruction in the memory of `pid`: the vdso has one. */
int find_syscall(pid_t pid, uint64_t *at, failure *why);
#endif
