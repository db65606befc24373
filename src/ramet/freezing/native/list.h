/* Lists of calls: built here in a mirror of the scratch region, written in one go, run by the task itself in one resume. */
#ifndef RAMET_LIST_H
#define RAMET_LIST_H
#include "tracee.h"

/* Where the scratch region is mapped in a task that we own alone: far from where programs and the kernel put things. */
#define SCRATCH 0x1fa000000000ul
#define SCRATCH_GIVEN (SCRATCH + (1ul << 32)) /* a second one, unmapped again when its calls are made */
#define SCRATCH_END (SCRATCH + (1ul << 33))
enum { SCRATCH_LISTS = 0x1000, SCRATCH_STACK = 0x1000 }; /* code page first, a small stack last */
/* In every sandbox, for the questions of its next freeze: two calls and an answer of each of 1024 threads, and some. */
enum { SCRATCH_AT_LEAST = 512 * 1024 };

typedef struct {
    unsigned char *bytes;
    uint64_t base;
    size_t used, size; /* of the whole region, code page included */
} scratch;

typedef struct {
    uint64_t number, argument[6], flags;
} call;
enum { MUST_WORK = 1 };

typedef struct {
    call *calls;
    const char **names;
    int count, room, incomplete; /* incomplete: there was no memory for a call, and the list must not run without it */
    uint64_t at; /* in the task, once placed */
} list;

int scratch_make(scratch *region, uint64_t base, size_t size, failure *why);
void scratch_free(scratch *region);
/* Reserves `size` bytes; returns their address in the task, 0 when the region is full. `from` may be NULL: zeros. */
uint64_t scratch_put(scratch *region, const void *from, size_t size, size_t alignment);
void *scratch_here(scratch *region, uint64_t at);

call *list_add(list *calls, const char *name, long number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f);
int list_place(list *calls, scratch *region, failure *why);
/* Behind the last call of a placed list, in the task. */
static inline uint64_t list_end(const list *calls) { return calls->at + (uint64_t)calls->count * sizeof(call); }
void list_free(list *calls);

/* Calls that were decided on elsewhere. An argument is a number, or bytes that are laid out in the region. */
typedef struct {
    const char *name;
    long number;
    uint64_t arguments[6];
    const void *bytes[6];
    size_t sizes[6];
    int must_work;
} given_call;
size_t given_size(const given_call *given, int count);
int list_add_given(list *calls, scratch *region, const given_call *given, int count, failure *why);

/* Maps the region in the stopped `tid`, which must share its memory with nobody that runs, and fills it. */
int scratch_map(const scratch *region, pid_t tid, const registers *from, uint64_t instruction, failure *why);
/* Runs a placed list of that region in the stopped `tid`; new tasks are reported in `new_task` (the last one). */
int list_run(pid_t tid, const scratch *region, const list *calls, pid_t *new_task, failure *why);
#endif
