/* Makes a copy in which files have their old inode numbers: programs with a file open may compare
 * them (SQLite does, before it writes).
 *
 * We list everything first, and then create it in the order of the numbers. An entry whose turn
 * comes before that of its folder waits in a folder of our own, and moves into its place at the
 * end.
 */
#include "copytree.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WAITING ".waiting"

struct entry {
    char *name;
    struct stat found;
    uint64_t number; /* wanted; 0: any */
    int parent;      /* index; -1: one of the folders that were asked for */
    int same_as;     /* index of another name of the same file, or -1 */
    int from, to;    /* of a folder */
    int waits;
};

struct plan {
    struct entry *entries;
    struct entry **order; /* one entry for each file, those with numbers first, ascending */
    int count, order_count, waiting;
    uint64_t next, skips_left;
    int root;
    struct copy_buffers buffers;
    struct copy_report *report;
    struct copy_failure *why;
};

static int add(struct plan *plan, const char *name, int parent, const struct stat *found) {
    if (plan->count == COPY_MAX_NUMBERED) {
        errno = E2BIG;
        return copy_fail(plan->why, "too many files for a copy with numbers, at", name);
    }
    struct entry *entry = &plan->entries[plan->count];
    *entry = (struct entry){.name = strdup(name),
                            .found = *found,
                            .parent = parent,
                            .same_as = -1,
                            .from = -1,
                            .to = -1};
    if (!entry->name) return copy_fail(plan->why, "make room for names", NULL);
    plan->count++;
    return 0;
}

static int list_folder(struct plan *plan, int index) {
    struct entry *folder = &plan->entries[index];
    if (folder->from < 0)
        folder->from = open_folder(plan->entries[folder->parent].from, folder->name);
    int again = folder->from < 0
                    ? -1
                    : openat(folder->from, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOATIME);
    DIR *listing = again < 0 ? NULL : fdopendir(again);
    int result = 0;
    if (!listing) {
        copy_fail(plan->why, "open folder", folder->name);
        if (again >= 0) close(again);
        return -1;
    }
    for (struct dirent *found; !result && (found = readdir(listing));) {
        struct stat about;
        if (!strcmp(found->d_name, ".") || !strcmp(found->d_name, "..")) continue;
        if (fstatat(folder->from, found->d_name, &about, AT_SYMLINK_NOFOLLOW))
            result = copy_fail(plan->why, "look at", found->d_name);
        else
            result = add(plan, found->d_name, index, &about);
    }
    closedir(listing);
    return result;
}

static int by_source_number(const void *left, const void *right) {
    const struct entry *a = *(struct entry *const *)left, *b = *(struct entry *const *)right;
    if (a->found.st_ino != b->found.st_ino) return a->found.st_ino < b->found.st_ino ? -1 : 1;
    return a < b ? -1 : 1;
}

static int by_wanted_number(const void *left, const void *right) {
    const struct entry *a = *(struct entry *const *)left, *b = *(struct entry *const *)right;
    if (!a->number != !b->number) return a->number ? -1 : 1;
    if (a->number != b->number) return a->number < b->number ? -1 : 1;
    return a < b ? -1 : 1;
}

/* The source was filled in the order of the list of numbers, and its file system counts upwards, so
 * the order of its own numbers is that of the list. */
static void assign_numbers(struct plan *plan, const uint64_t *numbers, size_t count) {
    struct entry **order = plan->order;
    int total = 0, files = 0;
    for (int i = 0; i < plan->count; i++)
        if (plan->entries[i].parent >= 0) order[total++] = &plan->entries[i];
    qsort(order, (size_t)total, sizeof *order, by_source_number);
    for (int i = 0; i < total; i++) {
        struct entry *entry = order[i];
        if (files && order[files - 1]->found.st_ino == entry->found.st_ino) {
            entry->same_as = (int)(order[files - 1] - plan->entries);
            continue;
        }
        entry->number = (size_t)files < count ? numbers[files] : 0;
        order[files++] = entry;
    }
    plan->order_count = files;
    qsort(order, (size_t)files, sizeof *order, by_wanted_number);
}

static int make(struct plan *plan, struct entry *entry) {
    struct entry *parent = &plan->entries[entry->parent];
    char place[24];
    int to = parent->to, made = 1;
    const char *name = entry->name;
    if (to < 0) {
        snprintf(place, sizeof place, "%td", entry - plan->entries);
        /* Its folder does not exist yet. */
        to = plan->waiting;
        name = place;
        entry->waits = 1;
    }
    plan->next++;
    plan->report->entries++;
    if (!S_ISDIR(entry->found.st_mode))
        return copy_entry(parent->from, to, entry->name, name, &entry->found, &plan->buffers,
                          &plan->report->bytes, &made, plan->why);
    plan->report->folders++;
    if (mkdirat(to, name, 0700) || (entry->to = open_folder(to, name)) < 0)
        return copy_fail(plan->why, "make folder", entry->name);
    return 0;
}

static void skip_to(struct plan *plan, uint64_t number) {
    if (number < plan->next || number - plan->next > plan->skips_left) {
        if (number >= plan->next) plan->skips_left = 0; /* the ones after it are further still */
        return;
    }
    for (; plan->next < number; plan->next++, plan->skips_left--) {
        int skipped = openat(plan->root, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
        if (skipped < 0) {
            plan->skips_left = 0;
            return;
        }
        close(skipped);
    }
}

static int make_all(struct plan *plan) {
    int first_any = 0, any;
    while (first_any < plan->order_count && plan->order[first_any]->number)
        first_any++;
    any = first_any;
    for (int i = 0; i < first_any; i++) {
        struct entry *entry = plan->order[i];
        while (any < plan->order_count && plan->next < entry->number)
            if (make(plan, plan->order[any++])) return -1;
        if (plan->next < entry->number) skip_to(plan, entry->number);
        if (make(plan, entry)) return -1;
    }
    while (any < plan->order_count)
        if (make(plan, plan->order[any++])) return -1;
    return 0;
}

static int put_in_place(struct plan *plan) {
    char place[24];
    for (int i = 0; i < plan->count; i++) {
        struct entry *entry = &plan->entries[i];
        if (!entry->waits) continue;
        snprintf(place, sizeof place, "%d", i);
        if (renameat(plan->waiting, place, plan->entries[entry->parent].to, entry->name))
            return copy_fail(plan->why, "move into its place", entry->name);
    }
    for (int i = 0; i < plan->count; i++) {
        struct entry *entry = &plan->entries[i];
        if (entry->same_as < 0) continue;
        struct entry *first = &plan->entries[entry->same_as];
        if (linkat(plan->entries[first->parent].to, first->name, plan->entries[entry->parent].to,
                   entry->name, 0))
            return copy_fail(plan->why, "link", entry->name);
        plan->report->entries++;
    }
    for (int i = 0; i < plan->count; i++) {
        struct entry *entry = &plan->entries[i];
        if (entry->to >= 0 && copy_folder_attributes(entry->from, entry->to, &entry->found, 1,
                                                     &plan->buffers, plan->why))
            return -1;
    }
    return 0;
}

static int add_top(struct plan *plan, int from, int to, const char *name) {
    struct stat found;
    int source = open_folder(from, name), target = open_folder(to, name);
    if (source < 0 || target < 0 || fstat(source, &found) || add(plan, name, -1, &found)) {
        copy_fail(plan->why, "open folder", name);
        if (source >= 0) close(source);
        if (target >= 0) close(target);
        return -1;
    }
    plan->entries[plan->count - 1].from = source;
    plan->entries[plan->count - 1].to = target;
    return 0;
}

static int run(struct plan *plan, int from, int to, const char *const *names, int name_count,
               const uint64_t *numbers, size_t number_count) {
    struct stat own;
    for (int i = 0; i < name_count; i++)
        if (add_top(plan, from, to, names[i])) return -1;
    for (int i = 0; i < plan->count; i++)
        if (S_ISDIR(plan->entries[i].found.st_mode) && list_folder(plan, i)) return -1;
    assign_numbers(plan, numbers, number_count);
    if (mkdirat(to, WAITING, 0700) || (plan->waiting = open_folder(to, WAITING)) < 0 ||
        fstat(plan->waiting, &own))
        return copy_fail(plan->why, "make a waiting room", NULL);
    plan->next = own.st_ino + 1;
    if (make_all(plan) || put_in_place(plan)) return -1;
    return unlinkat(to, WAITING, AT_REMOVEDIR) ? copy_fail(plan->why, "tidy up", NULL) : 0;
}

int copy_numbered(int from, int to, const char *const *names, int name_count,
                  const uint64_t *numbers, size_t number_count, uint64_t most_skipped,
                  struct copy_report *report, struct copy_failure *why) {
    struct plan plan = {
        .waiting = -1, .root = to, .skips_left = most_skipped, .report = report, .why = why};
    errno = 0;
    if (copy_buffers_make(&plan.buffers, why)) return -1;
    plan.entries = calloc(COPY_MAX_NUMBERED, sizeof *plan.entries);
    plan.order = calloc(COPY_MAX_NUMBERED, sizeof *plan.order);
    int result = plan.entries && plan.order
                     ? run(&plan, from, to, names, name_count, numbers, number_count)
                     : copy_fail(why, "make room for copying", NULL);
    for (int i = 0; i < plan.count; i++) {
        struct entry *entry = &plan.entries[i];
        if (entry->from >= 0) close(entry->from);
        if (entry->to >= 0) close(entry->to);
        free(entry->name);
    }
    if (plan.waiting >= 0) close(plan.waiting);
    free(plan.entries);
    free(plan.order);
    copy_buffers_free(&plan.buffers);
    return result;
}
