/* Every callback may close, pause or hold the connection. So each loop looks again before it reads the next packet, and
 * the poll is set anew at the end of each event, whatever happened in it.
 *
 * A descriptor has one owner at any time. Those that came belong to on_packet, or are closed here; those in the queue
 * are duplicates, which go with their packet. The end is reported once, and by reading unless the connection is held:
 * then all that the peer sent before it has been delivered, even where sending has noticed first. */
#include "proto/wire/connection.h"

#include "proto/wire/message.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <libgen.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { CONNECTION_FAIR = 32, CONNECTION_DRAIN = 4096 }; /* packets per event; at the end */

struct connection_packet {
    struct connection_packet *next;
    size_t n;
    unsigned n_fds;
    int fds[]; /* (n_fds), followed by the n bytes; so a queue of small packets is small */
};

static uint8_t *packet_bytes(struct connection_packet *packet)
{
    return (uint8_t *)(packet->fds + packet->n_fds);
}

/* Whose process it was that connected, as the kernel noted then: the peer cannot claim another. */
bool connection_peer(struct connection_peer *out, int fd)
{
    struct ucred peer = {0};
    socklen_t size = sizeof peer;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
        return false;
    *out = (struct connection_peer){peer.pid, peer.uid, peer.gid};
    return true;
}

/* Membership by the group file, for kernels that do not report a peer's supplementary groups (before 4.13). */
static bool is_listed(uid_t uid, gid_t gid, gid_t group)
{
    const struct passwd *user = getpwuid(uid);
    gid_t groups[256];
    int n = 256;

    if (!user || getgrouplist(user->pw_name, gid, groups, &n) < 0)
        return false;
    for (int i = 0; i < n; i++)
        if (groups[i] == group)
            return true;
    return false;
}

bool connection_peer_is_member(int fd, gid_t group)
{
    struct connection_peer peer;
    gid_t *groups = NULL;
    socklen_t size = 0;
    bool yes = false;

    if (!connection_peer(&peer, fd))
        return false;
    if (peer.gid == group)
        return true;
    /* The first call only asks for the size, and fails by ERANGE if there are any. */
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &size) < 0 && errno != ERANGE)
        return is_listed(peer.uid, peer.gid, group);
    groups = malloc(size + 1);
    if (groups && getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &size) == 0)
        for (size_t i = 0; i < size / sizeof *groups; i++)
            yes = yes || groups[i] == group;
    free(groups);
    return yes;
}

/* True for the caller's own daemon, and for one that serves a group of the caller's from a directory that shows it. Any
 * other listener could be anyone's, and would be given files. Root may observe all daemons. */
static bool is_trusted(int fd, const char *path)
{
    char directory[PATH_MAX];
    struct connection_peer peer;
    struct stat info;

    if (!connection_peer(&peer, fd))
        return false;
    if (peer.uid == geteuid() || geteuid() == 0)
        return true;
    snprintf(directory, sizeof directory, "%s", path);
    return stat(dirname(directory), &info) == 0 && info.st_uid == peer.uid && (info.st_mode & 07777) == 0710 &&
           (info.st_gid == getegid() || group_member(info.st_gid));
}

int connection_connect(int *out, const char *path, struct error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    if (strlen(path) >= sizeof address.sun_path)
        return error_set(err, -ENAMETOOLONG, "%s: longer than the %zu characters that a socket's path may have", path,
                         sizeof address.sun_path - 1);
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return error_set(err, -errno, "no socket for %s: %s", path, strerror(errno));
    int rc = 0;
    /* The socket does not block: a full queue is EAGAIN at once. */
    while (connect(fd, (const struct sockaddr *)&address, sizeof address) < 0 && (rc = -errno) == -EINTR)
        rc = 0;
    if (rc == 0 && !is_trusted(fd, path))
        rc = -EACCES;
    if (rc == 0) {
        *out = fd;
        return 0;
    }
    close(fd);
    switch (rc) {
    case -ENOENT:
    case -ENOTDIR:
        return error_set(err, -ENOENT, "no daemon at %s: start one with epsd --listen, or check the address", path);
    case -ECONNREFUSED:
        return error_set(err, rc, "nobody listens at %s: its daemon was killed; start epsd there again", path);
    case -EACCES:
        return error_set(err, rc, "the daemon at %s belongs to another user, and serves no group of yours", path);
    case -EAGAIN:
        return error_set(err, rc, "the daemon at %s does not answer: too many wait at its socket", path);
    default:
        return error_set(err, rc, "connecting to %s: %s", path, strerror(-rc));
    }
}

static void connection_close_all(const int *fds, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        close(fds[i]);
}

/* Reported once, whoever notices it first. */
static void connection_end(struct connection *connection, const char *fault)
{
    if (connection->ended)
        return;
    connection->ended = true;
    uv_poll_stop(&connection->poll); /* the end is level-triggered: it would repeat */
    connection->events->on_end(connection, fault);
}

/* Copies out the descriptors of a received packet. */
static unsigned received_fds(struct msghdr *header, int *fds)
{
    unsigned n = 0;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        unsigned here = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        assert(n + here <= CONNECTION_MAX_FDS); /* the kernel respects our buffer */
        memcpy(fds + n, CMSG_DATA(c), here * sizeof(int));
        n += here;
    }
    return n;
}

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

/* Kernels that do not know this option deliver descriptors all the same; takes_no_fds then keeps them out. */
void connection_forbid_fds(int fd)
{
    const int off = 0;

    (void)setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof off);
}

/* Reads and delivers one packet; false if there is none. A connection that takes no descriptors has no room for them:
 * so they are never in this process's table, where closing them could wait for the disk of a file. */
static bool connection_read_one(struct connection *connection)
{
    uint8_t bytes[MESSAGE_MAX_BYTES];
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(CONNECTION_MAX_FDS * sizeof(int))];
    int fds[CONNECTION_MAX_FDS];
    struct iovec vector = {.iov_base = bytes, .iov_len = sizeof bytes};
    struct msghdr header = {.msg_iov = &vector,
                            .msg_iovlen = 1,
                            .msg_control = connection->takes_no_fds ? NULL : control,
                            .msg_controllen = connection->takes_no_fds ? 0 : sizeof control};
    ssize_t n = recvmsg(connection->fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

    if (n < 0) {
        if (errno == EINTR)
            return true;
        if (errno == EAGAIN)
            return false;
        if (errno == ECONNRESET && !connection->reset) { /* reported once; earlier packets may still follow */
            connection->reset = true;
            return true;
        }
        connection_end(connection, NULL);
        return false;
    }
    unsigned n_fds = received_fds(&header, fds);
    if (n == 0 || header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
        connection_close_all(fds, n_fds);
        connection_end(
            connection,
            n == 0 ? NULL
            : connection->takes_no_fds && header.msg_flags & MSG_CTRUNC
                ? "sent descriptors, which only the daemon's own user and root may: use programs of one build"
                : "sent more over the connection than one message holds");
        return false;
    }
    connection->events->on_packet(connection, bytes, (size_t)n, fds, n_fds);
    return connection->fd >= 0 && !connection->ended;
}

/* A packet goes whole or not at all, so nothing is left to be sent of one. */
static ssize_t connection_write_one(int fd, const uint8_t *bytes, size_t n, const int *fds, unsigned n_fds)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(CONNECTION_MAX_FDS * sizeof(int))] = {0};
    struct iovec vector = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1};
    ssize_t rc;

    if (n_fds > 0) {
        header.msg_control = control;
        header.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
    }
    do
        rc = sendmsg(fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (rc < 0 && errno == EINTR);
    return rc < 0 ? -errno : rc;
}

/* Its descriptors are our duplicates: the kernel has its own references to what was sent. */
static void drop_first(struct connection *connection)
{
    struct connection_packet *packet = connection->first;

    connection->first = packet->next;
    connection->n_queued--;
    connection_close_all(packet->fds, packet->n_fds);
    free(packet);
}

/* Linux also says ENOBUFS or ENOMEM where it has no memory for a packet at the moment. Such a packet waits too: without
 * it, the peer would miss a number in the sequence. */
static bool connection_may_send_later(ssize_t rc)
{
    return rc == -EAGAIN || rc == -ENOBUFS || rc == -ENOMEM;
}

static bool connection_is_gone(ssize_t rc)
{
    return rc == -EPIPE || rc == -ECONNRESET;
}

/* False: the first packet in the queue can never be sent. */
static bool connection_flush(struct connection *connection)
{
    while (connection->first) {
        struct connection_packet *packet = connection->first;
        const ssize_t rc =
            connection_write_one(connection->fd, packet_bytes(packet), packet->n, packet->fds, packet->n_fds);
        if (connection_may_send_later(rc))
            return true;
        if (rc < 0 && !connection_is_gone(rc))
            return false;
        drop_first(connection); /* sent; or the peer is gone, and reading will report it */
    }
    if (connection->shut)
        shutdown(connection->fd, SHUT_WR);
    return true;
}

static void on_poll(uv_poll_t *poll, int status, int events);

/* What is polled for follows from the state alone; called after whatever may have changed it. */
static void connection_watch(struct connection *connection)
{
    int events = UV_DISCONNECT | (connection->paused || connection->held ? 0 : UV_READABLE) |
                 (connection->first ? UV_WRITABLE : 0);

    if (connection->fd >= 0 && !connection->ended)
        uv_poll_start(&connection->poll, events, on_poll);
}

/* libuv reports a socket error (a reset) as a negative status and stops watching. */
static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct connection *connection = poll->data;

    if (connection->first && (status < 0 || events & UV_WRITABLE) && !connection_flush(connection))
        connection_end(connection, "cannot be sent the messages that wait for it");
    if ((status < 0 || events & UV_DISCONNECT) && connection->held)
        connection_end(connection, NULL);
    else if (status < 0 || events & UV_DISCONNECT)
        connection_drain(connection);
    else if (events & UV_READABLE && !connection->paused)
        for (unsigned i = 0;
             i < CONNECTION_FAIR && !connection->paused && !connection->held && connection_read_one(connection); i++)
            ;
    connection_watch(connection);
}

int connection_open(struct connection *connection, uv_loop_t *loop, int fd, const struct connection_events *events,
                    void *data)
{
    *connection = (struct connection){.fd = -1, .events = events, .data = data};
    int rc = uv_poll_init(loop, &connection->poll, fd);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    connection->poll.data = connection;
    connection->fd = fd;
    connection_watch(connection);
    return 0;
}

/* The caller may close its descriptors at once, so the packet keeps duplicates. */
static int enqueue(struct connection *connection, const uint8_t *bytes, size_t n, const int *fds, unsigned n_fds)
{
    struct connection_packet *packet, **last = &connection->first;

    if (connection->n_queued == CONNECTION_MAX_QUEUED)
        return -ENOBUFS;
    packet = malloc(sizeof *packet + n_fds * sizeof *fds + n);
    if (!packet)
        return -ENOMEM;
    *packet = (struct connection_packet){.n = n, .n_fds = n_fds};
    memcpy(packet_bytes(packet), bytes, n);
    for (unsigned i = 0; i < n_fds; i++) {
        packet->fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
        if (packet->fds[i] < 0) {
            int rc = -errno;
            connection_close_all(packet->fds, i);
            free(packet);
            return rc;
        }
    }
    while (*last)
        last = &(*last)->next;
    *last = packet;
    connection->n_queued++;
    connection_watch(connection);
    return 0;
}

/* A peer that is gone is no error here: what it sent before is still to be read, and its end is then reported. */
int connection_send(struct connection *connection, const uint8_t *bytes, size_t n, const int *fds, unsigned n_fds)
{
    assert(n > 0 && n <= MESSAGE_MAX_BYTES && n_fds <= CONNECTION_MAX_FDS && !connection->shut);
    if (!connection->first) {
        ssize_t rc = connection_write_one(connection->fd, bytes, n, fds, n_fds);
        if (rc >= 0 || connection_is_gone(rc))
            return 0;
        if (!connection_may_send_later(rc))
            return (int)rc;
    }
    return enqueue(connection, bytes, n, fds, n_fds);
}

/* Paused by its owner, who has no room; held by the listener, whose user is in debt. Each is undone by its own call. */
void connection_pause(struct connection *connection)
{
    connection->paused = true;
    connection_watch(connection);
}

void connection_resume(struct connection *connection)
{
    connection->paused = false;
    connection_watch(connection);
}

void connection_hold(struct connection *connection)
{
    connection->held = true;
    connection_watch(connection);
}

void connection_release(struct connection *connection)
{
    connection->held = false;
    connection_watch(connection);
}

/* Reads what has come, as the end was noticed elsewhere. Bounded, since a peer that still lives could send for ever. */
void connection_drain(struct connection *connection)
{
    for (unsigned i = 0; i < CONNECTION_DRAIN && connection->fd >= 0 && !connection->ended && !connection->held &&
                         connection_read_one(connection);
         i++)
        ;
}

void connection_shutdown(struct connection *connection)
{
    connection->shut = true;
    (void)connection_flush(connection); /* what cannot be sent is found at the next event */
}

static void connection_on_handle_closed(uv_handle_t *handle)
{
    struct connection *connection = handle->data;

    connection->events->on_closed(connection);
}

/* Frees nothing of the struct: on_closed comes when libuv has returned the handle. */
void connection_close(struct connection *connection)
{
    assert(connection->fd >= 0);
    while (connection->first)
        drop_first(connection);
    uv_close((uv_handle_t *)&connection->poll, connection_on_handle_closed);
    close(connection->fd);
    connection->fd = -1;
}
