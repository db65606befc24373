/* fill: copies the pages of an image into the memory of an empty process.
 *
 * Arguments: PID PAGES_FD...
 * Standard input has what goes where: number of the page file, offset in it, address, length. The
 * process is stopped under the engine's hand, and its memory is mapped and writable there.
 *
 * Copied and not mapped from the page file, because memory that is mapped from a file is not like
 * memory: it cannot grow (mremap), and where it is given back (MADV_DONTNEED) the bytes of the file
 * return instead of zeros, which allocators rely on. For which blocks that does not matter, and
 * which are mapped therefore, is in freezing/images/blocks.py.
 */
#include "common.h"
#include <sys/mman.h>
#include <sys/uio.h>

/* Pieces of this size are taken in turn by several processes. Fewer than this many bytes in all are
 * not worth a second one. */
enum { AT_ONCE = 4 << 20, WORTH_ANOTHER = 24 << 20, MOST_FILES = 16, MOST_FILLERS = 4 };

struct piece {
    uint64_t source, offset, start, length;
};

static void copy_piece(pid_t pid, int file, uint64_t offset, uint64_t to_address, size_t size) {
    struct stat found;
    /* A file that somebody has cut short since the engine looked would be SIGBUS. */
    if (fstat(file, &found) || (uint64_t)found.st_size < offset + size)
        fail("a page file became shorter");
    void *pages = mmap(NULL, size, PROT_READ, MAP_PRIVATE, file, (off_t)offset);
    if (pages == MAP_FAILED) fail("map a page file: %s", strerror(errno));
    struct iovec from = {pages, size}, to = {(void *)to_address, size};
    ssize_t done = process_vm_writev(pid, &from, 1, &to, 1, 0);
    if (done != (ssize_t)size)
        fail("fill memory: %s", done < 0 ? strerror(errno) : "there is not enough of it");
    munmap(pages, size);
}

/* Every `fillers`th piece, from `number` on. */
static void fill_share(pid_t pid, char **files, const struct piece *pieces, size_t count,
                       int number, int fillers) {
    int turn = 0;
    for (const struct piece *next = pieces; next < pieces + count; next++)
        for (uint64_t at = 0; at < next->length; at += AT_ONCE, turn = (turn + 1) % fillers) {
            size_t size = next->length - at < AT_ONCE ? next->length - at : AT_ONCE;
            if (turn == number)
                copy_piece(pid, atoi(files[next->source]), next->offset + at, next->start + at,
                           size);
        }
}

/* Most of the time goes into pages that the kernel finds, clears and charges, so that processors
 * share it well. Processes and not threads: a thread's faults in its own mappings would wait for
 * the others' mmap. */
static int fillers_for(uint64_t bytes) {
    cpu_set_t ours;
    if (bytes < WORTH_ANOTHER || sched_getaffinity(0, sizeof ours, &ours)) return 1;
    return CPU_COUNT(&ours) < MOST_FILLERS ? CPU_COUNT(&ours) : MOST_FILLERS;
}

int fill_main(int argc, char **argv) {
    if (argc < 2 || argc - 1 > MOST_FILES) fail("fill: wrong arguments");
    pid_t pid = atoi(argv[0]);
    struct piece *pieces = NULL;
    size_t count = 0, room = 0;
    uint64_t bytes = 0;
    for (;;) {
        if (count == room) {
            room = room ? room * 2 : 1024;
            pieces = realloc(pieces, room * sizeof *pieces);
            if (!pieces) fail("fill: no memory for the list");
        }
        if (fread(&pieces[count], sizeof *pieces, 1, stdin) != 1) break;
        if (pieces[count].source >= (uint64_t)argc - 1) fail("fill: no such page file");
        bytes += pieces[count++].length;
    }
    int fillers = fillers_for(bytes), failures = 0, status;
    pid_t others[MOST_FILLERS] = {0};
    for (int number = 1; number < fillers; number++) {
        others[number] = (pid_t)MUST("fork", fork());
        if (!others[number]) {
            /* When the engine gives up, it ends the first one, and this must not write on. */
            prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
            fill_share(pid, argv + 1, pieces, count, number, fillers);
            _exit(0);
        }
    }
    fill_share(pid, argv + 1, pieces, count, 0, fillers);
    for (int number = 1; number < fillers; number++)
        failures += waitpid(others[number], &status, 0) != others[number] || status != 0;
    return failures ? 1 : 0; /* whoever failed has said why */
}
