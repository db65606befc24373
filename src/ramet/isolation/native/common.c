#include "common.h"
#include <sys/resource.h>

int failure_socket = -1;
const char *failure_about = NULL;

void fail(const char *format, ...) {
    char text[1024] = "error ";
    size_t used = 6;
    va_list arguments;
    if (failure_about) used += (size_t)snprintf(text + used, 64, "%.60s ", failure_about);
    va_start(arguments, format);
    vsnprintf(text + used, sizeof text - used, format, arguments);
    va_end(arguments);
    if (failure_socket >= 0) {
        send_packet(failure_socket, text, strlen(text), NULL, 0);
    } else {
        dprintf(2, "ramet-pod: %s\n", text + 6);
    }
    _exit(EXIT_NOT_CAPABLE);
}

ssize_t receive_packet(int socket_fd, char *text, size_t size, int *descriptors, int *count) {
    union {
        char bytes[CMSG_SPACE(sizeof(int) * RAMET_MAX_DESCRIPTORS)];
        struct cmsghdr align;
    } control;
    struct iovec part = {text, size - 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t length;
    do {
        length = recvmsg(socket_fd, &message, MSG_CMSG_CLOEXEC);
    } while (length < 0 && errno == EINTR);
    *count = 0;
    if (length < 0) return length;
    text[length] = 0;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header;
         header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        *count = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(descriptors, CMSG_DATA(header), (size_t)*count * sizeof(int));
    }
    return length;
}

ssize_t send_packet(int socket_fd, const char *text, size_t length, const int *descriptors,
                    int count) {
    union {
        char bytes[CMSG_SPACE(sizeof(int) * RAMET_MAX_DESCRIPTORS)];
        struct cmsghdr align;
    } control;
    struct iovec part = {(void *)text, length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (count > 0) {
        memset(&control, 0, sizeof control);
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)count);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)count);
        memcpy(CMSG_DATA(header), descriptors, sizeof(int) * (size_t)count);
    }
    ssize_t sent;
    do {
        sent = sendmsg(socket_fd, &message, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent;
}

void write_text(const char *path, const char *text, int required) {
    int descriptor = open(path, O_WRONLY | O_CLOEXEC);
    if (descriptor < 0) {
        if (required) fail("open %s: %s", path, strerror(errno));
        return;
    }
    ssize_t written = write(descriptor, text, strlen(text));
    int reason = errno;
    close(descriptor);
    if (written < 0 && required) fail("write \"%s\" to %s: %s", text, path, strerror(reason));
}

void raise_oom_score(int wanted) {
    char text[16] = "";
    int descriptor = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
    if (descriptor < 0) return;
    if (read(descriptor, text, sizeof text - 1) > 0 && atoi(text) < wanted) {
        int size = snprintf(text, sizeof text, "%d", wanted);
        if (pwrite(descriptor, text, (size_t)size, 0) != size) errno = 0; /* best effort */
    }
    close(descriptor);
}

void make_folders(const char *path) {
    char copy[4096];
    snprintf(copy, sizeof copy, "%s", path);
    for (char *at = copy + 1; *at; at++) {
        if (*at != '/') continue;
        *at = 0;
        mkdir(copy, 0755);
        *at = '/';
    }
    mkdir(copy, 0755);
}

void write_single_id_map(pid_t pid, unsigned outside_uid, unsigned outside_gid) {
    char path[64], map[64], who[16] = "self";
    if (pid) snprintf(who, sizeof who, "%d", pid);
    snprintf(path, sizeof path, "/proc/%s/setgroups", who);
    /* The kernel demands it of a writer without privilege in the outer namespace
     * (user_namespaces(7)); for others it is harmless. */
    write_text(path, "deny", 0);
    snprintf(path, sizeof path, "/proc/%s/uid_map", who);
    snprintf(map, sizeof map, "0 %u 1", outside_uid);
    write_text(path, map, 1);
    snprintf(path, sizeof path, "/proc/%s/gid_map", who);
    snprintf(map, sizeof map, "0 %u 1", outside_gid);
    write_text(path, map, 1);
}

struct sock_fprog read_filter(int filter_fd) {
    static struct sock_filter filter[4096];
    ssize_t size = pread(filter_fd, filter, sizeof filter, 0);
    if (size <= 0 || size % (ssize_t)sizeof *filter) fail("cannot read the seccomp filter");
    return (struct sock_fprog){(unsigned short)((size_t)size / sizeof *filter), filter};
}

void settle_like_new(void) {
    for (int number = 1; number <= 64; number++)
        signal(number, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    /* 1 and not 0: the kernel pipes a core to the host's handler even at 0, and only at 1 it does
     * not (core(5), fs/coredump.c). */
    struct rlimit no_core = {1, 1};
    setrlimit(RLIMIT_CORE, &no_core);
    umask(022);
    MUST("chdir /root", chdir("/root"));
    /* Also what allows an unprivileged process to install a filter. */
    MUST("no_new_privs", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
}
