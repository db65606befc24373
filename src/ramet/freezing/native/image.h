/* Snapshots on disk. Out: what the kernel keeps for a frozen task besides its memory. In: an empty
 * process that becomes the shadow of a snapshot. The memory itself is read from outside and mapped
 * by calls that the engine decides on (freezing/images). */
#ifndef RAMET_IMAGE_H
#define RAMET_IMAGE_H
#include "snapshot.h"

/* The kernel's struct sigaction, by signal from 1 on. */
enum { SIGNALS = 64, ACTION_BYTES = 32 };

/* Asks a frozen shadow, whose memory no other task shares, where its heap ends and which signal
 * handlers it has. */
int ask_shadow(const snapshot *from, uint64_t *heap_end, unsigned char *actions, failure *why);

/* The states of all threads as bytes. */
size_t states_size(const snapshot *from);
void states_write(const snapshot *from, unsigned char *to);

/* Takes hold of an empty process, which is the snapshot's shadow from then on, and gives the
 * snapshot the threads that states_write has written. Trusts nothing of those bytes. */
int hold_blank(pid_t pid, const unsigned char *states, size_t size, snapshot *made, failure *why);
/* Has the empty process make the calls that replace its memory by that of an image. */
int pour(snapshot *into, const given_call *given, int count, failure *why);
#endif
