/* Copies of a sandbox's files, made without trusting a single name in them.
 *
 * Sources are the writable layers of overlays: besides files, folders, links, fifos and sockets they hold whiteouts (character
 * devices 0:0) and attributes named user.overlay.*, and a copy must have all of that. Everything is opened relative to a folder,
 * never through a link. No function here ends the process: a failure is told as a step and an error number.
 */
#ifndef RAMET_COPYTREE_H
#define RAMET_COPYTREE_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

/* Each level takes two descriptors while its folder is being copied. */
enum { COPY_MAX_DEPTH = 500, COPY_MAX_NUMBERED = 4096 };

struct copy_failure {
    int error;
    char step[384];
};

struct copy_report {
    uint64_t bytes;   /* of content, holes left out */
    uint64_t entries; /* names */
    uint64_t folders;
    int keep_numbers; /* set by the caller: fill the list below */
    uint64_t *numbers; /* inode numbers of the source in the order in which copies were made; 0 for a whiteout. To be freed. */
    size_t number_count, number_room;
};

/* What one copy after another needs; one for each thread. */
struct copy_buffers {
    char *data, *names, *value;
};
int copy_buffers_make(struct copy_buffers *buffers, struct copy_failure *why);
void copy_buffers_free(struct copy_buffers *buffers);

int copy_fail(struct copy_failure *why, const char *what, const char *name);
int is_whiteout(const struct stat *found);
int open_folder(int parent, const char *name);
/* Anything but a folder, under a name that is free. A source that vanished is no failure: *made stays 0. */
int copy_entry(int from, int to, const char *name, const char *new_name, const struct stat *found, struct copy_buffers *buffers,
               uint64_t *bytes, int *made, struct copy_failure *why);
/* Extended attributes, owner, mode and times of a folder that is complete. `overlay`: the attributes of overlays as well. */
int copy_folder_attributes(int from, int to, const struct stat *found, int overlay, struct copy_buffers *buffers,
                           struct copy_failure *why);
int is_opaque(int folder);
int make_opaque(int folder, struct copy_failure *why);

/* The contents and attributes of folder `from` into folder `to`. `links` is an empty folder of the target's file system, used for
 * hard links and left empty. `fill`: `to` holds the copy of an upper layer, and only what that lets show through is added, so that
 * layers copied from the top down become one that means the same. */
int copy_tree(int from, int to, int links, int fill, struct copy_report *report, struct copy_failure *why);

/* Folders below `from` (each of `names`) into those of the same name below `to`, so that each copy gets the inode number that
 * `numbers` has for it: the list that `copy_tree` made when it filled `from`, 0 meaning any. `to` is the root of a tmpfs that nobody
 * else uses: it numbers inodes in order, and numbers that are to be skipped are taken and given back, at most `most_skipped`.
 * Numbers that cannot be had are not a failure. */
int copy_numbered(int from, int to, const char *const *names, int name_count, const uint64_t *numbers, size_t number_count,
                  uint64_t most_skipped, struct copy_report *report, struct copy_failure *why);
#endif
