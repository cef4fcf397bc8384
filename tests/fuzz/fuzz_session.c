/* tests/fuzz/fuzz_session.c - the beginning and the life of a session, against a hostile peer.
 *
 * The first byte selects our side: the daemon's (0) or its peer's. Then come the hostile side's packets, each as
 * flags u8 | bytes u16 | bytes. Flags: a right header, with the next sequence number, replaces the one in the packet
 * (1); our side runs before the next packet (2); descriptors come with it (12). However it goes, the session ends
 * exactly once, and no descriptor stays open. */
#include "proto/wire/session.h"
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { RIGHT_HEADER = 1, RUNS = 2, DESCRIPTORS = 12, MOST_TURNS = 100000 };

/* nanomsg forgets 736 bytes each time a bind fails. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:nn_bipc_create";
}

static struct {
    uv_loop_t loop;
    int messages_held;
    struct session_listener *listener;
    char daemon[80], peer[80]; /* directories of our daemon, and of the hostile one */
    int hostile;               /* the hostile daemon's listening socket */
    int sent; /* the descriptor that the hostile side sends: not its own socket, which would then stay open */
    bool opened;
    unsigned n_closed;
} f;

static void on_open(struct session *s, const struct message *peer)
{
    const struct message m = {.kind = MESSAGE_STATUS};

    (void)peer;
    fuzz_demand(!f.opened && f.n_closed == 0);
    f.opened = true;
    session_send(s, &m);
}

static void on_message(struct session *s, const struct message *m, const int *fds, unsigned n_fds)
{
    fuzz_demand(f.opened && f.n_closed == 0);
    for (unsigned i = 0; i < n_fds; i++)
        close(fds[i]);
    if (m->kind == MESSAGE_STOP)
        session_refuse(s, "enough");
    else if (m->kind == MESSAGE_CLOSE)
        session_close(s);
}

static void on_closed(struct session *s, const char *reason)
{
    (void)s, (void)reason;
    f.n_closed++;
}

static const struct session_events events = {on_open, on_message, on_closed};

static int listen_at(const char *directory)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    fuzz_demand(mkdir(directory, 0700) == 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%.90s/listener", directory);
    fuzz_demand(fd >= 0 && bind(fd, (const struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 8) == 0);
    return fd;
}

static void begin(void)
{
    struct error err;

    fuzz_demand(uv_loop_init(&f.loop) == 0 && session_hold_thread(&f.messages_held, &err) == 0);
    snprintf(f.daemon, sizeof f.daemon, "%.70s/d", fuzz_directory());
    snprintf(f.peer, sizeof f.peer, "%.70s/p", fuzz_directory());
    fuzz_demand(session_listen(&f.listener, &f.loop, f.daemon, &events, NULL, &err) == 0);
    f.hostile = listen_at(f.peer);
    f.sent = open("/dev/null", O_RDONLY | O_CLOEXEC);
    fuzz_demand(f.sent >= 0);
}

/* The hostile side's socket. */
static int meet(bool we_are_daemon)
{
    const struct message hello = {.kind = MESSAGE_HELLO, .hello = {.role = ROLE_VIEWER}};
    char connection[108];
    struct session *s;
    struct error err;
    int fd;

    snprintf(connection, sizeof connection, "%s/listener", f.daemon);
    if (!we_are_daemon)
        fuzz_demand(session_connect(&s, &f.loop, f.peer, &hello, &events, NULL, &err) == 0);
    if (we_are_daemon) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        memcpy(address.sun_path, connection, sizeof address.sun_path);
        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        fuzz_demand(connect(fd, (const struct sockaddr *)&address, sizeof address) == 0);
    } else {
        fd = accept4(f.hostile, NULL, NULL, SOCK_CLOEXEC);
    }
    fuzz_demand(fd >= 0);
    return fd;
}

static void send_packet(int fd, const uint8_t *bytes, size_t n, unsigned n_fds)
{
    union {
        char bytes[CMSG_SPACE(3 * sizeof(int))];
        struct cmsghdr aligned;
    } control = {{0}};
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n};
    struct msghdr packet = {.msg_iov = &part, .msg_iovlen = 1};

    if (n_fds > 0) {
        packet.msg_control = control.bytes;
        packet.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&packet);
        *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
                              .cmsg_type = SCM_RIGHTS,
                              .cmsg_len = CMSG_LEN(n_fds * sizeof(int))};
        for (unsigned i = 0; i < n_fds; i++)
            memcpy(CMSG_DATA(c) + i * sizeof(int), &f.sent, sizeof f.sent);
    }
    (void)!sendmsg(fd, &packet, MSG_DONTWAIT | MSG_NOSIGNAL); /* our side may have ended already */
}

/* Sends the input's packets. */
static void send_all(int fd, const uint8_t *bytes, size_t n)
{
    uint8_t packet[2 * MESSAGE_MAX_BYTES];
    uint64_t sequence = 0;

    while (n >= 3) {
        const unsigned flags = bytes[0];
        size_t now = (size_t)(bytes[1] | bytes[2] << 8);
        bytes += 3, n -= 3;
        now = now < n ? now : n;
        now = now < sizeof packet ? now : sizeof packet;
        memcpy(packet, bytes, now);
        bytes += now, n -= now;
        if (flags & RIGHT_HEADER && now >= MESSAGE_HEADER_BYTES) {
            const uint64_t body = now - MESSAGE_HEADER_BYTES;
            sequence++;
            packet[0] = MESSAGE_MAGIC & 255, packet[1] = MESSAGE_MAGIC >> 8, packet[2] = MESSAGE_VERSION;
            packet[4] = (uint8_t)body, packet[5] = (uint8_t)(body >> 8), packet[6] = packet[7] = 0;
            for (unsigned i = 0; i < 8; i++)
                packet[8 + i] = (uint8_t)(sequence >> (8 * i));
        }
        send_packet(fd, packet, now, (flags & DESCRIPTORS) >> 2);
        if (flags & RUNS)
            uv_run(&f.loop, UV_RUN_NOWAIT);
    }
}

/* The lowest descriptor that is free. */
static int find_free(void)
{
    const int fd = fcntl(f.sent, F_DUPFD_CLOEXEC, 0);

    fuzz_demand(fd >= 0 && close(fd) == 0);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    if (!f.listener)
        begin();
    if (n == 0)
        return 0;
    f.opened = false;
    f.n_closed = 0;
    const int lowest = find_free(), fd = meet(bytes[0] == 0);
    send_all(fd, bytes + 1, n - 1);
    uv_run(&f.loop, UV_RUN_NOWAIT);
    close(fd);
    for (unsigned i = 0; f.n_closed == 0 || find_free() != lowest; i++) {
        fuzz_demand(i < MOST_TURNS);
        uv_run(&f.loop, UV_RUN_NOWAIT);
    }
    fuzz_demand(f.n_closed == 1);
    return 0;
}
