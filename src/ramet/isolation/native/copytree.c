/* Copies a whole tree, depth first, with a stack of our own: however deep a sandbox nests folders,
 * it cannot exhaust the real one. */
#include "copytree.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct level {
    DIR *from;
    int to;
    struct stat found; /* of the folder in the source; in the target when it was there before */
    int was_there;
    int opaque_after; /* layers below this one do not show in it */
};

struct walk {
    struct level *levels;
    int depth, links, fill, links_used;
    struct copy_buffers buffers;
    struct copy_report *report;
    struct copy_failure *why;
};

static int note_number(struct copy_report *report, uint64_t number, struct copy_failure *why) {
    if (!report->keep_numbers) return 0;
    if (report->number_count == report->number_room) {
        size_t room = report->number_room ? report->number_room * 2 : 256;
        uint64_t *more = realloc(report->numbers, room * sizeof *more);
        if (!more) return copy_fail(why, "make room for numbers", NULL);
        report->numbers = more;
        report->number_room = room;
    }
    report->numbers[report->number_count++] = number;
    return 0;
}

/* Owns both descriptors from now on, also when it fails. */
static int enter(struct walk *walk, int from, int to, const char *name, int was_there) {
    struct level *level = &walk->levels[walk->depth];
    memset(level, 0, sizeof *level);
    if (walk->depth == COPY_MAX_DEPTH) {
        errno = ELOOP;
        copy_fail(walk->why, "folders are nested too deeply at", name);
    } else if (from < 0 || to < 0 || fstat(was_there ? to : from, &level->found)) {
        copy_fail(walk->why, "open folder", name);
    } else if (!(level->from = fdopendir(from))) {
        copy_fail(walk->why, "read folder", name);
    } else {
        level->to = to;
        level->was_there = was_there;
        level->opaque_after = was_there && walk->fill && is_opaque(dirfd(level->from));
        walk->depth++;
        return 0;
    }
    if (from >= 0) close(from);
    if (to >= 0) close(to);
    return -1;
}

static int leave(struct walk *walk) {
    struct level *level = &walk->levels[--walk->depth];
    int result = 0;
    if (level->was_there && walk->fill) {
        const struct timespec times[2] = {level->found.st_atim, level->found.st_mtim};
        if (level->opaque_after) result = make_opaque(level->to, walk->why);
        if (!result && futimens(level->to, times))
            result = copy_fail(walk->why, "set the times of a folder", NULL);
    } else {
        result = copy_folder_attributes(dirfd(level->from), level->to, &level->found, 1,
                                        &walk->buffers, walk->why);
    }
    closedir(level->from);
    close(level->to);
    return result;
}

static int copy_folder(struct walk *walk, int from, int to, const char *name) {
    int source = open_folder(from, name);
    if (source < 0 && errno == ENOENT) return 0;
    if (source < 0) return copy_fail(walk->why, "open folder", name);
    if (mkdirat(to, name, 0700)) {
        copy_fail(walk->why, "make folder", name);
        close(source);
        return -1;
    }
    walk->report->folders++;
    if (enter(walk, source, open_folder(to, name), name, 0)) return -1;
    return note_number(walk->report, walk->levels[walk->depth - 1].found.st_ino, walk->why);
}

/* A file with several names: we link its first copy into a folder of our own, under its number, and
 * find it there for the other names. */
static int copy_other(struct walk *walk, int from, int to, const char *name,
                      const struct stat *found) {
    char number[24];
    int made, many = found->st_nlink > 1 && !is_whiteout(found);
    snprintf(number, sizeof number, "%llx", (unsigned long long)found->st_ino);
    if (many && !linkat(walk->links, number, to, name, 0)) return 0;
    if (many && errno != ENOENT) return copy_fail(walk->why, "link", name);
    if (copy_entry(from, to, name, name, found, &walk->buffers, &walk->report->bytes, &made,
                   walk->why))
        return -1;
    if (!made) return 0;
    if (many && linkat(to, name, walk->links, number, 0)) return copy_fail(walk->why, "link", name);
    walk->links_used |= many;
    return note_number(walk->report, is_whiteout(found) ? 0 : found->st_ino, walk->why);
}

/* An entry of an upper layer has this name already: it hides the one below, or two folders become
 * one. */
static int fill_in(struct walk *walk, int from, int to, const char *name, const struct stat *found,
                   const struct stat *above) {
    if (!S_ISDIR(above->st_mode)) return 0;
    int target = open_folder(to, name);
    if (target < 0) return copy_fail(walk->why, "open folder", name);
    if (is_opaque(target)) {
        close(target);
        return 0;
    }
    if (S_ISDIR(found->st_mode)) return enter(walk, open_folder(from, name), target, name, 1);
    /* Nothing below the file in between may show in the folder above it. */
    int result = make_opaque(target, walk->why);
    close(target);
    return result;
}

static int copy_name(struct walk *walk, const char *name) {
    struct level *level = &walk->levels[walk->depth - 1];
    int from = dirfd(level->from), to = level->to;
    struct stat found, above;
    if (!strcmp(name, ".") || !strcmp(name, "..")) return 0;
    if (fstatat(from, name, &found, AT_SYMLINK_NOFOLLOW))
        return errno == ENOENT ? 0 : copy_fail(walk->why, "look at", name);
    walk->report->entries++;
    if (walk->fill && !fstatat(to, name, &above, AT_SYMLINK_NOFOLLOW))
        return fill_in(walk, from, to, name, &found, &above);
    return S_ISDIR(found.st_mode) ? copy_folder(walk, from, to, name)
                                  : copy_other(walk, from, to, name, &found);
}

static int remove_links(struct walk *walk) {
    DIR *folder = fdopendir(openat(walk->links, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder) return copy_fail(walk->why, "tidy up", NULL);
    for (struct dirent *entry; (entry = readdir(folder));)
        if (entry->d_name[0] != '.') unlinkat(walk->links, entry->d_name, 0);
    closedir(folder);
    return 0;
}

int copy_tree(int from, int to, int links, int fill, struct copy_report *report,
              struct copy_failure *why) {
    struct walk walk = {.links = links, .fill = fill, .report = report, .why = why};
    int result = -1;
    errno = 0;
    if (copy_buffers_make(&walk.buffers, why)) return -1;
    walk.levels = calloc(COPY_MAX_DEPTH + 1, sizeof *walk.levels);
    if (!walk.levels)
        copy_fail(why, "make room for copying", NULL);
    else
        result = enter(&walk, open_folder(from, "."), open_folder(to, "."), ".", fill);
    while (!result && walk.depth) {
        errno = 0;
        struct dirent *entry = readdir(walk.levels[walk.depth - 1].from);
        if (entry)
            result = copy_name(&walk, entry->d_name);
        else
            result = errno ? copy_fail(why, "read a folder", NULL) : leave(&walk);
    }
    while (walk.depth > 0) { /* after a failure */
        struct level *level = &walk.levels[--walk.depth];
        closedir(level->from);
        close(level->to);
    }
    if (walk.links_used && remove_links(&walk)) result = -1;
    free(walk.levels);
    copy_buffers_free(&walk.buffers);
    return result;
}
