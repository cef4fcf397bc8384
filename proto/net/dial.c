/* Runs before the worker has anything else to do, so it blocks; but each socket is non-blocking, as only poll knows the
 * deadline, which all attempts share. The second connection shakes hands with a key from the first one, so that it can
 * be of no other session.
 *
 * A daemon whose port is busy cuts connections off without a word. That alone (-EAGAIN) is tried again, after pauses
 * drawn at random: workers that were cut off together would else come back together. Another key or version stays what
 * it is. */
#include "proto/net/dial.h"

#include "proto/net/cipher.h"
#include "proto/net/proxy.h"
#include "proto/net/handshake.h"
#include "proto/net/port.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PAUSE_MS = 20, MOST_PAUSE_MS = 1000 }; /* between attempts */

static long dial_now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Waits until a socket is ready. */
static int dial_await(int fd, short events, long deadline)
{
    struct pollfd p = {.fd = fd, .events = events};
    const long left = deadline - dial_now_ms();
    int n;

    do
        n = left > 0 ? poll(&p, 1, (int)left) : 0;
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n == 0 ? -ETIMEDOUT : 0;
}

/* Reads or writes all n bytes. -ECONNRESET: the other side closed. */
static int transfer(int fd, uint8_t *bytes, size_t n, bool sends, long deadline)
{
    int rc = 0;

    for (size_t at = 0; !rc && at < n;) {
        const ssize_t done = sends ? send(fd, bytes + at, n - at, MSG_NOSIGNAL) : recv(fd, bytes + at, n - at, 0);
        if (done > 0)
            at += (size_t)done;
        else if (done == 0)
            rc = -ECONNRESET;
        else if (errno == EAGAIN)
            rc = dial_await(fd, sends ? POLLOUT : POLLIN, deadline);
        else if (errno != EINTR)
            rc = errno == EPIPE ? -ECONNRESET : -errno;
    }
    return rc;
}

/* If nobody listens there, the system may give the socket that very port: then it is connected to itself, and holds the
 * port that the daemon needs. */
static bool is_own_end(int fd)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t n_here = sizeof here, n_there = sizeof there;

    return getsockname(fd, (struct sockaddr *)&here, &n_here) == 0 &&
           getpeername(fd, (struct sockaddr *)&there, &n_there) == 0 && n_here == n_there &&
           memcmp(&here, &there, n_here) == 0;
}

/* A connected socket, or -errno. */
static int connect_one(const struct addrinfo *at, long deadline)
{
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), fault = 0;
    socklen_t size = sizeof fault;

    if (fd < 0)
        return -errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)); /* a daemon here may need its port: is_own_end */
    int rc = connect(fd, at->ai_addr, at->ai_addrlen) < 0 && errno != EINPROGRESS ? -errno : 0;
    if (!rc)
        rc = dial_await(fd, POLLOUT, deadline);
    if (!rc && getsockopt(fd, SOL_SOCKET, SO_ERROR, &fault, &size) == 0)
        rc = -fault;
    if (!rc && is_own_end(fd))
        rc = -ECONNREFUSED;
    if (!rc)
        return fd;
    close(fd);
    return rc;
}

/* A connected socket; or why the first address, which the system prefers, has none. An address that does not answer
 * leaves the others their part of the time. */
static int connect_any(const struct addrinfo *found, const char *address, long deadline, struct error *err)
{
    int fd = -1, first = 0;
    long n_left = 0;

    for (const struct addrinfo *at = found; at; at = at->ai_next)
        n_left++;
    for (const struct addrinfo *at = found; at && fd < 0; at = at->ai_next) {
        const long now = dial_now_ms();
        fd = connect_one(at, now + (deadline - now) / n_left--);
        if (fd < 0 && !first)
            first = fd;
    }
    return fd < 0 ? error_set(err, first, "connecting to %s: %s", address, strerror(-first)) : fd;
}

static int shake(struct handshake *h, int fd, const struct handshake_setup *setup, const char *address, long deadline,
                 struct error *err)
{
    uint8_t out[HANDSHAKE_HELLO_BYTES], in[HANDSHAKE_HELLO_BYTES];
    const char *why = NULL;
    size_t n_out;
    int rc;

    handshake_begin(h, setup, out, &n_out);
    rc = transfer(fd, out, n_out, true, deadline);
    while (!rc && handshake_wants(h) > 0) {
        rc = transfer(fd, in, handshake_wants(h), false, deadline);
        if (!rc)
            rc = handshake_take(h, in, out, &n_out, &why);
        if (!rc && n_out > 0)
            rc = transfer(fd, out, n_out, true, deadline);
    }
    if (why)
        return error_set(err, rc, "the daemon at %s %s", address, why);
    if (rc == -ECONNRESET) /* cut off: others took its place, or the daemon ended; trying again may help */
        return error_set(err, -EAGAIN,
                         "%s closed every connection for %d s: its port is busy, as its log then says, or it is no "
                         "daemon of eps",
                         address, DIAL_PATIENCE_MS / 1000);
    return rc ? error_set(err, rc, "the handshake with %s: %s", address,
                          rc == -ETIMEDOUT ? "no answer: its port is busy, or it is no daemon of eps" : strerror(-rc))
              : 0;
}

/* Connects, and shakes hands as this session's channel. Returns the socket. */
static int dial_open_channel(struct handshake *h, const struct addrinfo *found, struct handshake_setup *setup,
                             const struct dial_options *options, long deadline, struct error *err)
{
    int fd = connect_any(found, options->address, deadline, err), rc;

    if (fd < 0)
        return fd;
    if (options->reached)
        *options->reached = true;
    randombytes_buf(setup->secret, sizeof setup->secret);
    rc = shake(h, fd, setup, options->address, deadline, err);
    if (!rc)
        return fd;
    close(fd);
    return rc;
}

/* Both channels. */
static int open_both(struct proxy_setup *proxy, struct handshake *control, struct handshake *bulk,
                     const struct addrinfo *found, const struct dial_options *options, long deadline, struct error *err)
{
    struct handshake_setup setup = {.calls = true, .channel = HANDSHAKE_CONTROL, .key = options->key};

    setup.flags = (cipher_has_aes() ? HANDSHAKE_AES : 0) | (options->plain_bulk ? HANDSHAKE_PLAIN : 0);
    proxy->control = dial_open_channel(control, found, &setup, options, deadline, err);
    proxy->bulk = -1;
    if (proxy->control >= 0) {
        setup.channel = HANDSHAKE_BULK;
        setup.session = control->name;
        setup.key = control->child;
        proxy->bulk = dial_open_channel(bulk, found, &setup, options, deadline, err);
        if (proxy->bulk < 0)
            close(proxy->control);
    }
    sodium_memzero(&setup, sizeof setup);
    return proxy->control < 0 ? proxy->control : proxy->bulk < 0 ? proxy->bulk : 0;
}

/* Waits ever longer, each time for a half to the whole of *pause_ms: those that were put off together come again one
 * by one. False: the deadline is nearer. */
static bool dial_rest(long *pause_ms, long deadline)
{
    const long ms = *pause_ms / 2 + (long)randombytes_uniform((uint32_t)*pause_ms / 2 + 1);

    if (dial_now_ms() + ms >= deadline)
        return false;
    poll(NULL, 0, (int)ms);
    *pause_ms = 2 * *pause_ms < MOST_PAUSE_MS ? 2 * *pause_ms : MOST_PAUSE_MS;
    return true;
}

/* Only whether anybody listens there: the connection is closed without a word. */
int dial_knock(const char *address, struct error *err)
{
    struct addrinfo *found = NULL;
    const int rc = port_resolve(&found, address, false, err);

    if (rc)
        return rc;
    const int fd = connect_any(found, address, dial_now_ms() + DIAL_PATIENCE_MS, err);
    freeaddrinfo(found);
    if (fd >= 0)
        close(fd);
    return fd < 0 ? fd : 0;
}

/* Takes both sockets, also after a failure. */
static int dial_join(int *connection, uv_loop_t *loop, struct proxy_setup *setup, struct error *err)
{
    int ends[2], rc;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0) {
        rc = -errno;
        close(setup->control);
        close(setup->bulk);
        return error_set(err, rc, "no pair of sockets: %s", strerror(-rc));
    }
    setup->connection = ends[1];
    rc = proxy_open(loop, setup);
    if (rc) {
        close(ends[0]);
        return error_set(err, rc, "no connection: %s", uv_strerror(rc));
    }
    *connection = ends[0];
    return 0;
}

int dial(int *connection, uv_loop_t *loop, const struct dial_options *options, struct error *err)
{
    const long deadline = dial_now_ms() + DIAL_PATIENCE_MS;
    struct handshake control, bulk;
    struct proxy_setup proxy = {.on_control = &control, .on_bulk = &bulk, .progress = options->progress};
    struct addrinfo *found = NULL;
    long pause_ms = PAUSE_MS;
    int rc = port_resolve(&found, options->address, false, err);

    if (rc)
        return rc;
    snprintf(proxy.peer, sizeof proxy.peer, "%.79s", options->address + 6);
    do
        rc = open_both(&proxy, &control, &bulk, found, options, deadline, err);
    while (rc == -EAGAIN && dial_rest(&pause_ms, deadline));
    freeaddrinfo(found);
    if (!rc)
        rc = dial_join(connection, loop, &proxy, err);
    handshake_wipe(&control);
    handshake_wipe(&bulk);
    return rc;
}
