/* The init of a pod: settles the namespaces that it is born in, keeps descriptors for the next
 * thaw, and makes sockets in the pod's network for the engine. */
#include "../common.h"
#include "parts.h"
#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/un.h>

static void bring_loopback_up(void) {
    struct ifreq request = {.ifr_flags = IFF_UP | IFF_RUNNING};
    strcpy(request.ifr_name, "lo");
    int any = (int)MUST("socket", socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    MUST("bring lo up", ioctl(any, SIOCSIFFLAGS, &request));
    close(any);
}

/* The kernel remembers a connection for a while after its end, in memory that no limit of a sandbox
 * counts: with the usual times, 64 000 connections of a few seconds stay for two minutes. The times
 * of open connections stay as they are. Where the kernel has never tracked connections, these files
 * do not exist. */
static void forget_connections_soon(void) {
    static const char *const states[][2] = {{"syn_sent", "2"},
                                            {"syn_recv", "5"},
                                            {"last_ack", "10"},
                                            {"time_wait", "1"},
                                            {"close", "1"}};
    char path[96];
    for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
        snprintf(path, sizeof path, "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_%s",
                 states[i][0]);
        write_text(path, states[i][1], 0);
    }
}

/* No rlimit counts System V memory and queues, and they stay when the last process that used them
 * is gone: then not even the kernel's out-of-memory killer gets them back. So a segment goes with
 * the process that made it (shm_rmid_forced), and all segments together have at most the sandbox's
 * memory. 256 queues of 16 KiB, and 32 000 semaphores (64 bytes each) in sets of a thousand, take a
 * few megabytes of the kernel's memory. Before Linux 6.9 only the host's root may write these
 * files; without a memory cgroup the seccomp filter refuses the calls there. */
static void bound_ipc(unsigned long long memory_bytes) {
    char number[32];
    snprintf(number, sizeof number, "%llu", memory_bytes);
    write_text("/proc/sys/kernel/shmmax", number, 0);
    snprintf(number, sizeof number, "%llu",
             memory_bytes / (unsigned long long)sysconf(_SC_PAGESIZE));
    write_text("/proc/sys/kernel/shmall", number, 0);
    write_text("/proc/sys/kernel/shm_rmid_forced", "1", 0);
    write_text("/proc/sys/kernel/msgmni", "256", 0);
    write_text("/proc/sys/kernel/msgmnb", "16384", 0);
    write_text("/proc/sys/kernel/sem", "1000 32000 500 256", 0);
}

/* Makes a socket in the pod's own network, for the engine. A socket belongs to the network of the
 * process that makes it, wherever it is used.
 *
 *   L unix NAME BACKLOG   listens at an abstract name
 *   L tcp PORT BACKLOG    listens on loopback
 *   L udp PORT            bound on loopback
 *   L plain               TCP, not connected to anything yet
 *   L netlink FAMILY      changes this network: routes (0), packet rules (12)
 */
static int make_socket(const char *request, struct sockaddr_storage *address, socklen_t *length,
                       int *backlog) {
    char kind[8] = "", name[64] = "";
    int number = 0;
    *length = 0;
    *backlog = 0;
    struct sockaddr_un *local = (struct sockaddr_un *)address;
    struct sockaddr_in *loopback = (struct sockaddr_in *)address;
    sscanf(request, "L %7s", kind);
    if (!strcmp(kind, "unix") && sscanf(request, "L unix %63s %d", name, backlog) == 2) {
        local->sun_family = AF_UNIX;
        *length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
        memcpy(local->sun_path + 1, name, strlen(name)); /* the NUL before it makes it abstract */
        return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    }
    if (!strcmp(kind, "plain"))
        return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (!strcmp(kind, "netlink") && sscanf(request, "L netlink %d", &number) == 1)
        return socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, number);
    int stream = !strcmp(kind, "tcp") && sscanf(request, "L tcp %d %d", &number, backlog) == 2;
    if (!stream && (strcmp(kind, "udp") || sscanf(request, "L udp %d", &number) != 1)) {
        errno = EINVAL;
        return -1;
    }
    loopback->sin_family = AF_INET;
    loopback->sin_port = htons((uint16_t)number);
    loopback->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    *length = sizeof *loopback;
    return socket(AF_INET, (stream ? SOCK_STREAM : SOCK_DGRAM) | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* Returns the socket, or -1 with errno. */
static int listen_in_pod(const char *request) {
    struct sockaddr_storage address = {0};
    socklen_t length;
    int backlog, yes = 1;
    int made = make_socket(request, &address, &length, &backlog);
    if (made < 0) return -1;
    /* Connections that a copy of a sandbox had may still use this port, but accept nothing. */
    if (address.ss_family == AF_INET && backlog)
        setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if ((length && bind(made, (struct sockaddr *)&address, length)) ||
        (backlog && listen(made, backlog))) {
        int reason = errno;
        close(made);
        errno = reason;
        return -1;
    }
    return made;
}

static ssize_t answer_listen(const char *request) {
    char answer[128];
    int made = listen_in_pod(request);
    if (made < 0) {
        int size = snprintf(answer, sizeof answer, "error %s",
                            errno == EADDRINUSE ? "taken" : strerror(errno));
        return send_packet(WIRE_INIT_COMMAND, answer, (size_t)size, NULL, 0);
    }
    ssize_t sent = send_packet(WIRE_INIT_COMMAND, "ok", 2, &made, 1);
    if (sent < 0) {
        /* Too many descriptors of this user are in flight. The pod must not end for that: the
         * engine gets an answer without one. */
        int size = snprintf(answer, sizeof answer, "error %s", strerror(errno));
        sent = send_packet(WIRE_INIT_COMMAND, answer, (size_t)size, NULL, 0);
    }
    close(made);
    return sent;
}

/* pid 1 of the pod, holding every capability of the pod's user namespace and none outside it. It
 * runs no foreign code. It keeps descriptors for the next thaw, ends the pod's processes and makes
 * sockets in the pod's network on request, and exits when the engine closes its socket. */
void run_init(struct pod *pod, int go, int done, const int *descriptors) {
    static const char *const zero[] = {"user", "pid", "uts", "ipc", "net", "mnt", "cgroup", "time"};
    char byte, path[96], text[128];
    int given[RAMET_MAX_DESCRIPTORS], count;
    /* The builder writes our id map first: before that we have no capabilities to use. */
    if (read(go, &byte, 1) != 1) _exit(1);
    setsid();
    bring_loopback_up();
    /* Best effort: podman's usual filter refuses it. Then the pod keeps the engine's name, and no
     * wall depends on it. */
    if (sethostname(pod->name, strlen(pod->name))) errno = 0;
    /* No process of the pod may make a namespace, even if it got past the seccomp filter. */
    for (size_t i = 0; i < sizeof zero / sizeof *zero; i++) {
        snprintf(path, sizeof path, "/proc/sys/user/max_%s_namespaces", zero[i]);
        write_text(path, "0", 0);
    }
    /* The kernel counts these per user over all pods as well: one pod must not take them all. */
    write_text("/proc/sys/user/max_inotify_instances", "16", 0);
    write_text("/proc/sys/user/max_inotify_watches", "8192", 0);
    /* Any pod may use low ports of its own network, and ping itself. */
    write_text("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0", 0);
    forget_connections_soon();
    bound_ipc(pod->memory_bytes);
    /* Out of the way of their final places first. */
    for (int i = 0; i <= pod->given; i++)
        given[i] = (int)MUST("dup", fcntl(descriptors[i], F_DUPFD_CLOEXEC, 200));
    int ready = (int)MUST("dup", fcntl(done, F_DUPFD_CLOEXEC, 200));
    close_range(0, 199, 0);
    for (int i = 0; i <= pod->given; i++)
        if (dup3(given[i], WIRE_INIT_COMMAND + i, O_CLOEXEC) < 0) _exit(1);
    /* Not earlier: a thaw may fetch the descriptors as soon as the pod is reported. */
    if (write(ready, "x", 1) != 1) _exit(1);
    close_from(200);
    /* Root of the pod must not trace us or take our descriptors. */
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    signal(SIGCHLD, SIG_IGN);
    for (;;) {
        ssize_t length = receive_packet(WIRE_INIT_COMMAND, text, sizeof text, given, &count);
        if (length <= 0) _exit(0);
        /* 'K': kill until no process is left. The next thaw takes ids that dead ones still hold. */
        for (int attempt = 0; text[0] == 'K' && attempt < 5000 && !kill(-1, SIGKILL); attempt++)
            usleep(200);
        if (text[0] == 'C') {
            /* The REPL has its lines. With a copy here, the engine would not see that it closed
             * them.
             */
            close_range(WIRE_INIT_CONTROL, WIRE_INIT_CONTROL + POD_LINES - 1, 0);
            continue;
        }
        if (text[0] == 'L') {
            if (answer_listen(text) < 0) _exit(0);
            continue;
        }
        /* 'F': descriptors for the next thaw, in the order of the first ones. */
        for (int i = 0; i < count; i++) {
            if (text[0] == 'F') dup3(given[i], WIRE_INIT_CONTROL + i, O_CLOEXEC);
            close(given[i]);
        }
        if (send_packet(WIRE_INIT_COMMAND, "ok", 2, NULL, 0) < 0) _exit(0);
    }
}
