/* Lists of calls. We build a list in a mirror of the task's scratch region, write the region into
 * the task in one go, and resume the task once: it makes all of the calls by itself. */
#ifndef RAMET_LIST_H
#define RAMET_LIST_H
#include "tracee.h"
#include "wire.h"

/* Where the scratch region is mapped in a task:
 *
 *   SCRATCH            the loop that runs lists, one page: read and execute
 *   + SCRATCH_LISTS    lists and what their calls point to: read and write
 *   - SCRATCH_STACK    a small stack, up to the end of the region
 *   SCRATCH_GIVEN      a second region for large lists; the task unmaps it when they are done
 */
#define SCRATCH       WIRE_SCRATCH_START
#define SCRATCH_GIVEN (SCRATCH + (1ul << 32))
#define SCRATCH_END   WIRE_SCRATCH_END
enum { SCRATCH_LISTS = 0x1000, SCRATCH_STACK = 0x1000 };
/* A thaw leaves a region of this size in every sandbox, because the next freeze asks its questions
 * there: two calls and one answer for each of 1024 threads, and some room to spare. */
enum { SCRATCH_AT_LEAST = 512 * 1024 };

typedef struct {
    unsigned char *bytes;
    uint64_t base;
    size_t used, size; /* of the whole region, code page included */
} scratch;

typedef struct {
    uint64_t number, argument[6], flags;
} call;
/* WHOLE: the result must be the third argument. The task itself does not look at it: the kernel
 * takes a part of what is written, and that is no error. */
enum { MUST_WORK = 1, WHOLE = 2 };

typedef struct {
    call *calls;
    const char **names;
    int count, room;
    int incomplete; /* there was no memory for one of the calls: the list must not run */
    uint64_t at;    /* in the task, once placed */
} list;

int scratch_make(scratch *region, uint64_t base, size_t size, failure *why);
void scratch_free(scratch *region);
/* Reserves `size` bytes, copied from `from` or zero where it is NULL. Returns their address in the
 * task, 0 when the region is full. */
uint64_t scratch_put(scratch *region, const void *from, size_t size, size_t alignment);
void *scratch_here(scratch *region, uint64_t at);

/* Adds one call; when it fails, the list ends there and the error names the call. ADD_CALL takes
 * only the arguments that the call has. */
call *list_add(list *calls, const char *name, long number, uint64_t a, uint64_t b, uint64_t c,
               uint64_t d, uint64_t e, uint64_t f);
#define ADD_CALL(calls, name, ...) LIST_ADD_PADDED(calls, name, __VA_ARGS__, 0, 0, 0, 0, 0, 0, 0)
#define LIST_ADD_PADDED(calls, name, number, a, b, c, d, e, f, ...)                                \
    list_add(calls, name, number, a, b, c, d, e, f)
/* The same for a call that may fail: the list goes on. */
#define TRY_CALL(calls, ...) (ADD_CALL(calls, __VA_ARGS__)->flags = 0)
/* Copies the list into the region: from then on it has an address in the task. */
int list_place(list *calls, scratch *region, failure *why);
/* The address behind the last call of a placed list. */
static inline uint64_t list_end(const list *calls) {
    return calls->at + (uint64_t)calls->count * sizeof(call);
}
void list_free(list *calls);

/* A call that the engine's Python has decided on (freezing/calls.py). An argument is a number, or
 * bytes that are laid out in the region. */
typedef struct {
    const char *name;
    long number;
    uint64_t arguments[6];
    const void *bytes[6];
    size_t sizes[6];
    int must_work, whole;
} given_call;
size_t given_size(const given_call *given, int count);
int list_add_given(list *calls, scratch *region, const given_call *given, int count, failure *why);

/* Maps and fills the region in the stopped `tid`. Its memory must be its own: code that shared it
 * could change the lists before they run. */
int scratch_map(const scratch *region, pid_t tid, const registers *from, uint64_t instruction,
                failure *why);
/* Runs a placed list of that region in the stopped `tid`. `new_task`: the last task that a call of
 * the list created. */
int list_run(pid_t tid, const scratch *region, const list *calls, pid_t *new_task, failure *why);
#endif
