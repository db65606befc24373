/* Reads the state of a stopped thread. */
#ifndef RAMET_THREADS_H
#define RAMET_THREADS_H
#include "snapshot.h"

enum { MAX_THREADS = 1024, LARGEST_TID = 1 << 22 };
#define PTRACE_GET_RSEQ 0x420f /* PTRACE_GET_RSEQ_CONFIGURATION, Linux 5.13 */

/* Reads everything of a stopped thread but its alternate stack, which only the thread itself can
 * ask for. `trusted`: it is a template's, which must be a thread of the C library. */
int capture(thread_state *thread, int trusted, failure *why);
/* Refuses a shadow with a registered rseq area: code that writes to its memory could choose where
 * it goes on. */
int check_no_rseq(pid_t tid, failure *why);
/* Refuses a thread whose records the kernel would write where the calls of a thaw are laid out. */
int check_records(const thread_state *thread, failure *why);
/* Niceness, policy and affinity; also of a task that is not stopped. */
void read_scheduling(thread_state *thread);
/* Reads a file of /proc in one go and ends it with a zero: its length, -1 with errno. */
ssize_t read_small_file(const char *path, char *text, size_t size);
/* The id of a task in its own pid namespace. */
int inner_pid(pid_t tid, pid_t *inner, failure *why);
/* Finds a syscall instruction in the memory of `pid`: the vdso has one. */
int find_syscall(pid_t pid, uint64_t *at, failure *why);
#endif
