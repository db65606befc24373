/* pages: writes the memory of a frozen process to the page file of an image.
 *
 * Arguments: MEMORY_FD PAGES_FD TABLE_FD BASE_TABLE_FD (-1: the image has no base)
 * MEMORY_FD is /proc/PID/mem. Standard input has the 16 bytes of the key of the hash, then the
 * ranges of memory in ascending order. Standard output gets what became of each page. The engine
 * runs it as a program of its own, at the lowest priority: writing a gigabyte in a thread of the
 * engine would slow down the cells of all sandboxes.
 *
 * A page is written only if it is neither zero nor the same as in the base at its address. The
 * table has a hash of each page that is not zero, so that the next image needs no look at this one.
 */
#include "common.h"
#include <sys/resource.h>

enum { PAGE = 4096, CHUNK = 1 << 20, LONGEST_GAP = 16 };
enum { OWN = 0, ZERO = 1, BASE = 2 };

typedef struct {
    uint64_t start, end;
} range;
typedef struct {
    uint64_t kind, start, end, offset; /* offset in the page file, for OWN */
} run;
typedef struct {
    uint64_t address, hash[2];
} entry;

static uint64_t key[2];
static FILE *table, *base, *runs;
static int pages_fd;
static uint64_t file_end;

/* SipHash-2-4 with a result of 128 bits, of one page. Keyed, because a sandbox that could find two
 * pages of one hash would get the wrong one back. */
static inline uint64_t rotate(uint64_t x, int by) { return x << by | x >> (64 - by); }
#define SIP_ROUND                                                                                  \
    do {                                                                                           \
        v0 += v1;                                                                                  \
        v2 += v3;                                                                                  \
        v1 = rotate(v1, 13) ^ v0;                                                                  \
        v3 = rotate(v3, 16) ^ v2;                                                                  \
        v0 = rotate(v0, 32) + v3;                                                                  \
        v2 += v1;                                                                                  \
        v1 = rotate(v1, 17) ^ v2;                                                                  \
        v3 = rotate(v3, 21) ^ v0;                                                                  \
        v2 = rotate(v2, 32);                                                                       \
    } while (0)

static void hash_page(const uint64_t *words, uint64_t hash[2]) {
    uint64_t v0 = 0x736f6d6570736575 ^ key[0], v1 = 0x646f72616e646f6d ^ key[1] ^ 0xee;
    uint64_t v2 = 0x6c7967656e657261 ^ key[0], v3 = 0x7465646279746573 ^ key[1];
    for (int i = 0; i <= PAGE / 8; i++) {
        /* The last word is the length, of which only the lowest byte counts: it is zero. */
        uint64_t word = i < PAGE / 8 ? words[i] : 0;
        v3 ^= word;
        SIP_ROUND;
        SIP_ROUND;
        v0 ^= word;
    }
    v2 ^= 0xee;
    for (int i = 0; i < 4; i++)
        SIP_ROUND;
    hash[0] = v0 ^ v1 ^ v2 ^ v3;
    v1 ^= 0xdd;
    for (int i = 0; i < 4; i++)
        SIP_ROUND;
    hash[1] = v0 ^ v1 ^ v2 ^ v3;
}

static void write_all(const unsigned char *from, size_t size, uint64_t offset) {
    while (size) {
        ssize_t done = pwrite(pages_fd, from, size, (off_t)offset);
        if (done < 0 && errno == EINTR) continue;
        /* A full disk takes a part first, and says why only the next time. */
        if (done < 0) fail("write pages: %s", strerror(errno));
        from += done;
        size -= (size_t)done;
        offset += (uint64_t)done;
    }
}

/* Runs of one kind become one. */
static run last = {.kind = ~0ul};
static void flush_run(void) {
    if (last.kind != ~0ul && fwrite(&last, sizeof last, 1, runs) != 1)
        fail("report pages: %s", strerror(errno));
    last.kind = ~0ul;
}
static void emit(uint64_t kind, uint64_t start, uint64_t end, uint64_t offset) {
    if (last.kind == kind && last.end == start && kind != OWN) {
        last.end = end;
        return;
    }
    flush_run();
    last = (run){kind, start, end, offset};
}

/* The stretch of own pages that is being written, and the pages behind it that need not be: where
 * another own page follows soon, they are written too. Each stretch is mapped by a call of its own,
 * which costs more than a few pages. */
static struct {
    int open;
    uint64_t start, end, offset;
    int gap;
    uint64_t gap_kinds[LONGEST_GAP];
    unsigned char gap_pages[LONGEST_GAP][PAGE];
} own;

static void close_own(void) {
    if (!own.open) return;
    emit(OWN, own.start, own.end, own.offset);
    file_end = own.offset + (own.end - own.start);
    for (int i = 0; i < own.gap; i++) {
        uint64_t at = own.end + (uint64_t)i * PAGE;
        emit(own.gap_kinds[i], at, at + PAGE, 0);
    }
    own.open = own.gap = 0;
}

static void add_own(uint64_t at, const unsigned char *page) {
    if (!own.open) {
        own.open = 1;
        own.start = own.end = at;
        own.offset = file_end;
    }
    for (int i = 0; i < own.gap; i++) {
        write_all(own.gap_pages[i], PAGE, own.offset + (own.end - own.start));
        own.end += PAGE;
    }
    own.gap = 0;
    write_all(page, PAGE, own.offset + (own.end - own.start));
    own.end += PAGE;
}

static void add_other(uint64_t kind, uint64_t at, const unsigned char *page) {
    if (own.open && own.gap < LONGEST_GAP) {
        own.gap_kinds[own.gap] = kind;
        memcpy(own.gap_pages[own.gap++], page, PAGE);
        return;
    }
    close_own();
    emit(kind, at, at + PAGE, 0);
}

static int same_in_base(uint64_t at, const uint64_t hash[2]) {
    static entry next;
    static int known, ended;
    while (base && !ended && (!known || next.address < at)) {
        known = fread(&next, sizeof next, 1, base) == 1;
        ended = !known;
    }
    return known && next.address == at && next.hash[0] == hash[0] && next.hash[1] == hash[1];
}

static void one_page(uint64_t at, const unsigned char *page) {
    static const unsigned char zeros[PAGE];
    entry made = {.address = at};
    if (!memcmp(page, zeros, PAGE)) {
        add_other(ZERO, at, page);
        return;
    }
    hash_page((const uint64_t *)page, made.hash);
    if (fwrite(&made, sizeof made, 1, table) != 1) fail("write hashes: %s", strerror(errno));
    if (same_in_base(at, made.hash))
        add_other(BASE, at, page);
    else
        add_own(at, page);
}

/* Through /proc, because that reads pages that the process itself may not. What cannot be read
 * there either lies behind the end of a mapped file: the process has no bytes there. */
static void read_memory(int memory, uint64_t at, unsigned char *room, size_t size) {
    if (pread(memory, room, size, (off_t)at) == (ssize_t)size) return;
    for (size_t o = 0; o < size; o += PAGE)
        if (pread(memory, room + o, PAGE, (off_t)(at + o)) != PAGE) memset(room + o, 0, PAGE);
}

int pages_main(int argc, char **argv) {
    static unsigned char room[CHUNK] __attribute__((aligned(PAGE)));
    range next;
    if (argc != 4) fail("pages: wrong arguments");
    int memory = atoi(argv[0]), base_fd = atoi(argv[3]);
    pages_fd = atoi(argv[1]);
    setpriority(PRIO_PROCESS, 0, 19);
    syscall(SYS_ioprio_set, 1, 0, 3 << 13); /* IOPRIO_WHO_PROCESS, IOPRIO_CLASS_IDLE */
    table = fdopen(atoi(argv[2]), "w");
    base = base_fd >= 0 ? fdopen(base_fd, "r") : NULL;
    runs = stdout;
    if (!table || (base_fd >= 0 && !base)) fail("pages: no table");
    if (fread(key, sizeof key, 1, stdin) != 1) fail("pages: no key");
    while (fread(&next, sizeof next, 1, stdin) == 1) {
        if (next.start >= next.end || (next.start | next.end) % PAGE) fail("pages: no range");
        for (uint64_t at = next.start; at < next.end; at += CHUNK) {
            size_t size = next.end - at < CHUNK ? next.end - at : CHUNK;
            read_memory(memory, at, room, size);
            for (size_t o = 0; o < size; o += PAGE)
                one_page(at + o, room + o);
        }
        close_own();
        /* A range is of one mapping, and what becomes of it must not reach into the next. */
        flush_run();
    }
    /* Whole pages at the end, so that the last mapping has no page behind the end of the file. */
    MUST("set the size of the page file", ftruncate(pages_fd, (off_t)file_end));
    if (fflush(table) || fflush(runs)) fail("write hashes: %s", strerror(errno));
    /* Before the engine renames it: a page file that has its name is complete, also after a crash
     * of the machine. */
    MUST("flush pages", fdatasync(pages_fd));
    MUST("flush hashes", fdatasync(fileno(table)));
    return 0;
}

/* What is mapped from a page file, in ascending order, after the key. */
typedef struct {
    uint64_t start, end, offset;
} mapped;

static void each_page(int pages, void (*look)(uint64_t at, const unsigned char *page)) {
    static unsigned char page[PAGE] __attribute__((aligned(PAGE)));
    static const unsigned char zeros[PAGE];
    mapped next;
    if (fread(key, sizeof key, 1, stdin) != 1) fail("pages: no key");
    while (fread(&next, sizeof next, 1, stdin) == 1)
        for (uint64_t at = next.start; at < next.end; at += PAGE) {
            ssize_t found = pread(pages, page, PAGE, (off_t)(next.offset + (at - next.start)));
            if (found != PAGE) fail("the page file cannot be read at %#lx", at);
            /* Pages of zeros between others are written, and have no hash. */
            if (memcmp(page, zeros, PAGE)) look(at, page);
        }
}

static void verify_page(uint64_t at, const unsigned char *page) {
    uint64_t hash[2];
    hash_page((const uint64_t *)page, hash);
    if (!same_in_base(at, hash)) fail("the page at %#lx is not what was written", at);
}

/* verify-pages: compares a page file with the hashes that were written with it.
 *
 * Arguments: PAGES_FD TABLE_FD. Ends with 1, and the first page that differs.
 */
int verify_pages_main(int argc, char **argv) {
    if (argc != 2) fail("verify-pages: wrong arguments");
    base = fdopen(atoi(argv[1]), "r");
    if (!base) fail("verify-pages: no table");
    each_page(atoi(argv[0]), verify_page);
    return 0;
}

static void put_hash(uint64_t at, const unsigned char *page) {
    entry made = {.address = at};
    hash_page((const uint64_t *)page, made.hash);
    if (fwrite(&made, sizeof made, 1, table) != 1) fail("write hashes: %s", strerror(errno));
}

/* hash-pages: writes the hashes of a page file that came from elsewhere.
 *
 * Arguments: PAGES_FD TABLE_FD, at the lowest priority like pages.
 */
int hash_pages_main(int argc, char **argv) {
    if (argc != 2) fail("hash-pages: wrong arguments");
    setpriority(PRIO_PROCESS, 0, 19);
    table = fdopen(atoi(argv[1]), "w");
    if (!table) fail("hash-pages: no table");
    each_page(atoi(argv[0]), put_hash);
    if (fflush(table)) fail("write hashes: %s", strerror(errno));
    MUST("flush hashes", fdatasync(fileno(table)));
    return 0;
}
