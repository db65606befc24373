/* blank: makes an empty process that an image is poured into.
 *
 * Arguments: HOLDER_PIDFD POD_PIDFD FILTER_FD LOADED_FD MONOTONIC_SECONDS BOOTTIME_SECONDS
 *            FIRST PAGES_FD...
 * It stands where the interpreter of a template would be (spawn.c): a child of the engine, in E1's
 * user and pid namespaces, in the tree of a pod made for booting, behind the same filter. The
 * engine seizes it, has it unmap everything that it is and map what the image has, and another
 * process fills that (fill.c).
 *
 * Its only descriptors are the page files, for reading, from number FIRST on: it maps large blocks
 * from them. The engine has it close them before it is a snapshot.
 *
 * LOADED_FD lists files and folders that the image was made of, with sizes and times. It is refused
 * when the tree of the pod shows one of them in another state: a library was upgraded, say.
 *
 * The seconds are added to its clocks. Deadlines in the memory of an image are times of the clocks
 * that it was frozen with, and after a reboot those would begin again at zero.
 */
#include "common.h"
#include <linux/seccomp.h>
#include <sys/mman.h>

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

/* Children from now on live in a time namespace of their own. A process cannot enter one later,
 * because its memory shows the clock of the namespace that it was made in. */
static void shift_clocks(int offsets, long monotonic, long boottime) {
    char text[96];
    int length =
        snprintf(text, sizeof text, "monotonic %ld 0\nboottime %ld 0\n", monotonic, boottime);
    MUST("make a time namespace", unshare(CLONE_NEWTIME));
    MUST("shift its clock", write(offsets, text, (size_t)length));
}

/* A file is not as the image knows it. With an exit code of its own: there is a cure for it. */
enum { STALE = 3 };
static void stale(const char *path, const char *how) {
    dprintf(2, "%s %s\n", path, how);
    _exit(STALE);
}

/* Rows of "SIZE MTIME CTIME PATH" with times in nanoseconds, each ended by a zero. */
static void check_loaded(int list) {
    off_t size = lseek(list, 0, SEEK_END);
    char *rows = size > 0 ? malloc((size_t)size + 1) : NULL;
    if (size == 0) return;
    if (!rows || pread(list, rows, (size_t)size, 0) != size) fail("cannot read the list of files");
    rows[size] = 0;
    for (char *row = rows; row < rows + size; row += strlen(row) + 1) {
        struct stat found;
        long long bytes, modified, changed;
        int path = 0;
        if (sscanf(row, "%lld %lld %lld %n", &bytes, &modified, &changed, &path) != 3 || !path)
            fail("the list of files cannot be read");
        if (stat(row + path, &found)) stale(row + path, "is not there any more");
        if (S_ISDIR(found.st_mode)) found.st_size = 0;
        if (found.st_size != bytes ||
            found.st_mtim.tv_sec * 1000000000ll + found.st_mtim.tv_nsec != modified ||
            found.st_ctim.tv_sec * 1000000000ll + found.st_ctim.tv_nsec != changed)
            stale(row + path, "has changed since the image was written");
    }
    free(rows);
}

enum { LEADING = 7, MOST_FILES = 16, OUT_OF_THE_WAY = 100 };

/* Moves the page files to the numbers that the engine expects, and closes everything else. */
static void keep_page_files(int count, char **numbers, int first) {
    int moved[MOST_FILES];
    /* Two steps: a file may stand at the number that another one is to get. */
    for (int i = 0; i < count; i++)
        moved[i] = (int)MUST("move a page file", fcntl(atoi(numbers[i]), F_DUPFD, OUT_OF_THE_WAY));
    for (int i = 0; i < count; i++)
        MUST("place a page file", dup2(moved[i], first + i));
    close_from(first + count);
    for (int number = 0; number < first; number++)
        close(number);
}

int blank_main(int argc, char **argv) {
    if (argc < LEADING || argc > LEADING + MOST_FILES) fail("blank: wrong arguments");
    int holder = atoi(argv[0]), pod = atoi(argv[1]), filter_fd = atoi(argv[2]);
    int loaded = atoi(argv[3]);
    long monotonic = atol(argv[4]), boottime = atol(argv[5]);
    struct sock_fprog program = read_filter(filter_fd);
    /* While we see the /proc of E0: the boot tree has none that knows us. */
    int offsets = open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC);
    /* From E0 into E1: from here on we hold E1's capabilities and none of E0's. */
    MUST("enter E1",
         setns(holder, CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS));
    MUST("enter the boot tree", setns(pod, CLONE_NEWNS));
    check_loaded(loaded);
    if (monotonic || boottime) shift_clocks(offsets, monotonic, boottime);
    /* So that the engine sees where the kernel places mappings. */
    if (mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
        fail("map a page: %s", strerror(errno));
    /* PARENT: a child of the engine, not of this program, which ends here. */
    pid_t child = (pid_t)MUST("clone", syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0));
    if (child) {
        dprintf(1, "%d\n", child);
        _exit(0);
    }
    setsid();
    raise_oom_score(500);
    keep_page_files(argc - LEADING, argv + LEADING, atoi(argv[6]));
    /* A person who lists the processes of the host should not take it for a helper. */
    prctl(PR_SET_NAME, "ramet-image", 0, 0, 0);
    settle_like_new();
    /* An exec would do this for a template: without it the files of this process in /proc, which
     * the engine reads, belong to another user. */
    MUST("stay dumpable", prctl(PR_SET_DUMPABLE, 1, 0, 0, 0));
    MUST("seccomp", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
    for (;;)
        pause();
}
