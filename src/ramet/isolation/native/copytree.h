/* Copies a sandbox's files without trusting a single name in them.
 *
 * Sources are the writable layers of overlays: besides files, folders, links, fifos and sockets
 * they hold whiteouts (character devices 0:0) and attributes named user.overlay.*, and a copy must
 * have all of that. Everything is opened relative to a folder, never through a link. No function
 * here ends the process: each reports a failure as a step and an error number.
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
    /* Inode numbers of the source, in the order in which we made the copies; 0 for a whiteout. The
     * caller frees the list. */
    uint64_t *numbers;
    size_t number_count, number_room;
};

/* Buffers for one copy after another; each thread has its own. */
struct copy_buffers {
    char *data, *names, *value;
};
int copy_buffers_make(struct copy_buffers *buffers, struct copy_failure *why);
void copy_buffers_free(struct copy_buffers *buffers);

int copy_fail(struct copy_failure *why, const char *what, const char *name);
int is_whiteout(const struct stat *found);
int open_folder(int parent, const char *name);
/* Copies anything but a folder, under a name that is free. When the source has vanished it returns
 * 0 and leaves *made at 0. */
int copy_entry(int from, int to, const char *name, const char *new_name, const struct stat *found,
               struct copy_buffers *buffers, uint64_t *bytes, int *made, struct copy_failure *why);
/* Copies extended attributes, owner, mode and times of a folder that is complete. `overlay`: also
 * the attributes of overlays. */
int copy_folder_attributes(int from, int to, const struct stat *found, int overlay,
                           struct copy_buffers *buffers, struct copy_failure *why);
int is_opaque(int folder);
int make_opaque(int folder, struct copy_failure *why);

/* Copies the contents and attributes of folder `from` into folder `to`. `links` is an empty folder
 * of the target's file system; it serves for hard links and is empty again afterwards. `fill`: `to`
 * holds the copy of an upper layer, and the function adds only entries that this layer does not
 * hide. So layers that are copied from the top down become one that means the same. */
int copy_tree(int from, int to, int links, int fill, struct copy_report *report,
              struct copy_failure *why);

/* Copies the folders `names` below `from` into those of the same name below `to`, so that each copy
 * gets the inode number that `numbers` has for it: the list that `copy_tree` made when it filled
 * `from`, 0 meaning any. `to` is the root of a tmpfs that no other process uses. A tmpfs counts its
 * inodes upwards, so the function creates and removes files to skip numbers, at most
 * `most_skipped`. A file that cannot get its number gets another one. */
int copy_numbered(int from, int to, const char *const *names, int name_count,
                  const uint64_t *numbers, size_t number_count, uint64_t most_skipped,
                  struct copy_report *report, struct copy_failure *why);
#endif
