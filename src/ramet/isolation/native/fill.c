/* fill: copies the pages of an image into the memory of an empty process.
 *
 * Arguments: PID PAGES_FD...
 * Standard input has what goes where: number of the page file, offset in it, address, length. The
 * process is stopped under the engine's hand, and its memory is mapped and writable there.
 *
 * Copied and not mapped from the page file, because memory that is mapped from a file is not like
 * memory: it cannot grow (mremap), and where it is given back (MADV_DONTNEED) the bytes of the file
 * return instead of zeros, which allocators rely on.
 */
#include "common.h"
#include <sys/mman.h>
#include <sys/uio.h>

enum { AT_ONCE = 64 << 20, MOST_FILES = 16 };

int fill_main(int argc, char **argv) {
    struct {
        uint64_t source, offset, start, length;
    } next;
    if (argc < 2 || argc - 1 > MOST_FILES) fail("fill: wrong arguments");
    pid_t pid = atoi(argv[0]);
    while (fread(&next, sizeof next, 1, stdin) == 1) {
        if (next.source >= (uint64_t)argc - 1) fail("fill: no such page file");
        int file = atoi(argv[1 + next.source]);
        for (uint64_t at = 0; at < next.length; at += AT_ONCE) {
            size_t size = next.length - at < AT_ONCE ? next.length - at : AT_ONCE;
            struct stat found;
            /* A file that somebody has cut short since the engine looked would be SIGBUS. */
            if (fstat(file, &found) || (uint64_t)found.st_size < next.offset + at + size)
                fail("a page file became shorter");
            void *pages = mmap(NULL, size, PROT_READ, MAP_PRIVATE, file, (off_t)(next.offset + at));
            if (pages == MAP_FAILED) fail("map a page file: %s", strerror(errno));
            struct iovec from = {pages, size}, to = {(void *)(next.start + at), size};
            ssize_t done = process_vm_writev(pid, &from, 1, &to, 1, 0);
            if (done != (ssize_t)size)
                fail("fill memory: %s", done < 0 ? strerror(errno) : "there is not enough of it");
            munmap(pages, size);
        }
    }
    return 0;
}
