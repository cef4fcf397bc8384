/* While libuv holds a connection that nobody has taken (has_queue), it accepts no other: those behind it wait in the
 * system's queue, in order. A place is free only when libuv has returned its handle. So one guest at a time is
 * evicted, and the connection that waits is taken when a guest is closed or has shown the key. */
#include "proto/net/port.h"

#include "proto/net/cipher.h"
#include "proto/net/proxy.h"
#include "proto/net/handshake.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

enum {
    BACKLOG = 128,
    TICK_MS = 250,
    PLACES = PORT_GUESTS + PORT_SESSIONS, /* guests: those that have not shown the key, and those that have */
    AWAY_LINES = 8,                       /* lines of the log per period about connections turned away */
    AWAY_TICKS = 40,                      /* length of such a period */
    SPARE_FDS = 32,                       /* descriptors that stay free for the daemon's own user */
};

enum guest_state {
    GUEST_NONE,
    GUEST_SHAKING, /* ends with the handshake, or after patience_ms */
    GUEST_WAITING, /* it has the key; ends when its second connection has it, when it leaves, or after patience_ms */
    GUEST_CLOSING  /* ends when libuv has returned its handle */
};

struct guest {
    struct port *port;
    enum guest_state state;
    uv_tcp_t tcp;
    struct sockaddr_storage address;
    uint64_t since;  /* when it was accepted, by the loop's clock */
    uint64_t number; /* how many were accepted before */
    struct handshake handshake;
    uint8_t in[HANDSHAKE_HELLO_BYTES];
    size_t n_in;
};

struct port {
    uv_loop_t *loop;
    uv_tcp_t tcp;
    uv_timer_t tick;
    struct session_listener *listener;
    const uint8_t *key; /* the caller's: in memory once */
    unsigned flags, patience_ms;
    bool closing;
    bool has_queue;     /* libuv holds a connection that was not accepted */
    unsigned n_handles; /* guests included */
    unsigned n_proxies;
    unsigned n_ticks, n_away, n_put_off;
    uint64_t n_accepted;
    struct guest guests[PLACES];
};

/* ---- addresses -------------------------------------------------------------------------------------------------- */

static void print_address(char out[PROXY_NAME_BYTES], const struct sockaddr_storage *address)
{
    char name[INET6_ADDRSTRLEN] = "?";
    const bool six = address->ss_family == AF_INET6;
    const unsigned number = ntohs(six ? ((const struct sockaddr_in6 *)address)->sin6_port
                                      : ((const struct sockaddr_in *)address)->sin_port);

    uv_ip_name((const struct sockaddr *)address, name, sizeof name);
    snprintf(out, PROXY_NAME_BYTES, six ? "[%s]:%u" : "%s:%u", name, number);
}

/* IPv4 that came to a socket of IPv6 is IPv4: its addresses share no prefix. */
static void unmap(struct sockaddr_storage *address)
{
    const struct sockaddr_in6 six = *(const struct sockaddr_in6 *)address;
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = six.sin6_port};

    if (six.sin6_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&six.sin6_addr))
        return;
    memcpy(&four.sin_addr, six.sin6_addr.s6_addr + 12, sizeof four.sin_addr);
    memcpy(address, &four, sizeof four);
}

/* True for connections that share the places of one address. Of IPv6, /64: one customer has that many addresses. */
static bool is_same_place(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    if (a->ss_family != b->ss_family)
        return false;
    if (a->ss_family == AF_INET6)
        return memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr, &((const struct sockaddr_in6 *)b)->sin6_addr, 8) ==
               0;
    return ((const struct sockaddr_in *)a)->sin_addr.s_addr == ((const struct sockaddr_in *)b)->sin_addr.s_addr;
}

/* ---- guests ----------------------------------------------------------------------------------------------------- */

static unsigned port_count(const struct port *port, enum guest_state state)
{
    unsigned n = 0;

    for (unsigned i = 0; i < PLACES; i++)
        n += port->guests[i].state == state;
    return n;
}

/* The struct has keys of guests in it, so it is wiped. */
static void port_give_back(struct port *port)
{
    if (--port->n_handles > 0 || port->n_proxies > 0)
        return;
    sodium_memzero(port, sizeof *port);
    free(port);
}

static void accept_queued(struct port *port);

/* A place is free, so the connection that libuv holds can be taken. */
static void on_guest_closed(uv_handle_t *handle)
{
    struct guest *guest = handle->data;
    struct port *port = guest->port;

    handshake_wipe(&guest->handshake);
    guest->state = GUEST_NONE;
    accept_queued(port);
    port_give_back(port);
}

static void port_drop(struct guest *guest)
{
    if (guest->state == GUEST_CLOSING || guest->state == GUEST_NONE)
        return;
    guest->state = GUEST_CLOSING;
    uv_close((uv_handle_t *)&guest->tcp, on_guest_closed);
}

static void note_away(struct port *port, const struct sockaddr_storage *address, const char *why)
{
    char name[PROXY_NAME_BYTES];

    if (port->n_away++ >= AWAY_LINES)
        return;
    print_address(name, address);
    log_warning("turned away at the tcp port, %s: %s", name, why);
}

static void port_turn_away(struct guest *guest, const char *why)
{
    note_away(guest->port, &guest->address, why);
    port_drop(guest);
}

/* Closes without a word: a worker comes again by itself. */
static void put_off(struct guest *guest, const char *why)
{
    char name[PROXY_NAME_BYTES];

    if (guest->port->n_put_off++ == 0) {
        print_address(name, &guest->address);
        log_warning("put off at the tcp port, %s: %s", name, why);
    }
    port_drop(guest);
}

static void on_proxy_closed(void *data)
{
    struct port *port = data;

    port->n_proxies--;
    port->n_handles++; /* port_give_back takes it again */
    port_give_back(port);
}

/* A second descriptor of its socket, which outlives the guest. libuv closes the handle's own. */
static int take_socket(const struct guest *guest)
{
    uv_os_fd_t fd;

    return uv_fileno((const uv_handle_t *)&guest->tcp, &fd) == 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
}

/* Both connections of a worker are here: it becomes a session. */
static void port_admit(struct port *port, struct guest *control, struct guest *bulk)
{
    struct proxy_setup setup = {.is_daemon = true,
                                .on_control = &control->handshake,
                                .on_bulk = &bulk->handshake,
                                .on_closed = on_proxy_closed,
                                .data = port};
    int ends[2] = {-1, -1}, rc = 0;

    assert(port->n_proxies < PORT_SESSIONS); /* port_has_room */
    print_address(setup.peer, &control->address);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0)
        rc = -errno;
    setup.connection = ends[1];
    setup.control = take_socket(control);
    setup.bulk = take_socket(bulk);
    if (!rc && (setup.control < 0 || setup.bulk < 0))
        rc = -EMFILE;
    if (rc) {
        const int fds[] = {ends[0], ends[1], setup.control, setup.bulk};
        for (unsigned i = 0; i < 4; i++)
            if (fds[i] >= 0)
                close(fds[i]);
    } else {
        rc = proxy_open(port->loop, &setup);
        port->n_proxies += rc == 0;
        if (rc)
            close(ends[0]);
        else
            rc = session_adopt(port->listener, ends[0]); /* the proxy sees the end of the connection if this fails */
    }
    if (rc)
        note_away(port, &control->address, strerror(-rc));
    else
        log_line("worker at %s has the key; bulk by %s", setup.peer,
                 cipher_name(bulk->handshake.flags & HANDSHAKE_PLAIN ? CIPHER_PLAIN
                             : bulk->handshake.flags & HANDSHAKE_AES ? CIPHER_AES
                                                                     : CIPHER_CHACHA));
    port_drop(control);
    port_drop(bulk);
}

/* The guest whose session this is; it waits for its second connection. */
static struct guest *find_waiting(struct port *port, uint64_t session)
{
    for (unsigned i = 0; i < PLACES; i++)
        if (port->guests[i].state == GUEST_WAITING && port->guests[i].handshake.name == session)
            return &port->guests[i];
    return NULL;
}

/* The port's key for a first connection; for a second, the key that the first one's handshake has made for it. */
static const uint8_t *find_key(void *user, enum handshake_channel channel, uint64_t session)
{
    struct port *port = user;
    const struct guest *control = channel == HANDSHAKE_BULK ? find_waiting(port, session) : NULL;

    if (channel == HANDSHAKE_CONTROL)
        return session == 0 ? port->key : NULL;
    return control ? control->handshake.child : NULL;
}

/* Sessions that are still to come count, too: whoever has shown the key is not sent away afterwards. */
static bool port_has_room(void *user)
{
    const struct port *port = user;

    return port->n_proxies + port_count(port, GUEST_WAITING) < PORT_SESSIONS;
}

/* The handshake is done. A worker that waits for its second connection is read on, so that its end is seen. */
static void port_greet(struct guest *guest)
{
    struct port *port = guest->port;

    if (guest->handshake.channel == HANDSHAKE_CONTROL) {
        guest->state = GUEST_WAITING;
        accept_queued(port);
    } else {
        struct guest *control = find_waiting(port, guest->handshake.session);
        if (control)
            port_admit(port, control, guest);
        else
            port_turn_away(guest, "came too late for its session");
    }
}

/* Exactly as much as the handshake wants next, so that no byte behind it is read here: the rest is the proxy's. */
static void port_on_room(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer)
{
    struct guest *guest = handle->data;

    const size_t wanted = guest->state == GUEST_WAITING ? 1 : handshake_wants(&guest->handshake) - guest->n_in;

    (void)suggested;
    *buffer = uv_buf_init((char *)guest->in + guest->n_in, (unsigned)wanted);
}

static void port_on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buffer)
{
    struct guest *guest = stream->data;
    uint8_t out[HANDSHAKE_HELLO_BYTES];
    const char *why;
    size_t n_out;

    (void)buffer;
    if (n == 0)
        return;
    if (guest->state == GUEST_WAITING) {
        if (n < 0)
            port_drop(guest); /* its second connection was put off, or it was told to end */
        else
            port_turn_away(guest, "spoke before its second connection came");
        return;
    }
    if (n < 0) {
        if (guest->n_in || guest->handshake.state == HANDSHAKE_PROOF)
            port_turn_away(guest,
                           guest->n_in ? "was cut off within the handshake" : "left in the middle of the handshake");
        else
            port_drop(guest); /* dial_knock: a worker of a lost daemon checks for a successor */
        return;
    }
    guest->n_in += (size_t)n;
    if (guest->n_in < handshake_wants(&guest->handshake))
        return;
    guest->n_in = 0;
    const int rc = handshake_take(&guest->handshake, guest->in, out, &n_out, &why);
    uv_buf_t reply = uv_buf_init((char *)out, (unsigned)n_out);
    const bool is_sent = n_out == 0 || uv_try_write((uv_stream_t *)&guest->tcp, &reply, 1) == (int)n_out;
    if (rc < 0)
        port_turn_away(guest, why);
    else if (!is_sent) /* a new socket has room for it */
        port_turn_away(guest, "does not take the handshake");
    else if (guest->handshake.state == HANDSHAKE_DONE)
        port_greet(guest);
}

/* ---- the port --------------------------------------------------------------------------------------------------- */

/* A free place for a guest that has not shown the key; NULL: all are taken. */
static struct guest *port_find_place(struct port *port)
{
    if (port_count(port, GUEST_SHAKING) >= PORT_GUESTS)
        return NULL;
    for (unsigned i = 0; i < PLACES; i++)
        if (port->guests[i].state == GUEST_NONE)
            return &port->guests[i];
    return NULL;
}

/* Number of guests of this guest's address that have not shown the key, itself included. */
static unsigned count_same(const struct guest *guest)
{
    unsigned n = 0;

    for (unsigned i = 0; i < PLACES; i++) {
        const struct guest *other = &guest->port->guests[i];
        n += other->state == GUEST_SHAKING && is_same_place(&other->address, &guest->address);
    }
    return n;
}

static bool is_silent(const struct guest *guest)
{
    return guest->handshake.state == HANDSHAKE_HELLO;
}

/* Evicts a guest that has not shown the key, to make room: at the address that has most guests, one that sent nothing,
 * else the oldest. */
static void port_make_room(struct port *port)
{
    struct guest *victim = NULL;
    unsigned most = 0;

    for (unsigned i = 0; i < PLACES; i++) {
        struct guest *guest = &port->guests[i];
        const unsigned n = guest->state == GUEST_SHAKING ? count_same(guest) : 0;
        if (n == 0 || n < most)
            continue;
        if (n > most || is_silent(guest) > is_silent(victim) ||
            (is_silent(guest) == is_silent(victim) && guest->number < victim->number))
            victim = guest;
        most = n;
    }
    if (victim)
        put_off(victim, "others need the places of those that have not shown the key");
}

static void port_begin(struct guest *guest)
{
    struct port *port = guest->port;
    struct handshake_setup setup = {.flags = port->flags,
                                    .find_key = find_key,
                                    .has_room = port_has_room,
                                    .user = port};
    uint8_t none[HANDSHAKE_HELLO_BYTES];
    int length = sizeof guest->address;
    uv_os_fd_t fd;
    size_t n;

    randombytes_buf(setup.secret, sizeof setup.secret);
    handshake_begin(&guest->handshake, &setup, none, &n);
    sodium_memzero(&setup, sizeof setup);
    guest->n_in = 0;
    guest->since = uv_now(port->loop);
    if (uv_tcp_getpeername(&guest->tcp, (struct sockaddr *)&guest->address, &length) < 0) {
        port_drop(guest);
        return;
    }
    unmap(&guest->address);
    if (uv_fileno((const uv_handle_t *)&guest->tcp, &fd) == 0 && !session_leaves_fds(fd, SPARE_FDS))
        put_off(guest, "the daemon has no descriptors left");
    else
        uv_read_start((uv_stream_t *)&guest->tcp, port_on_room, port_on_read);
}

static void port_accept_one(struct port *port)
{
    struct guest *guest = port_find_place(port);

    port->has_queue = !guest;
    if (!guest) { /* until on_guest_closed, libuv keeps the connection, and the system those after it */
        if (port_count(port, GUEST_CLOSING) == 0)
            port_make_room(port);
        return;
    }
    uv_tcp_init(port->loop, &guest->tcp); /* cannot fail: it makes no socket */
    guest->tcp.data = guest;
    guest->state = GUEST_SHAKING;
    guest->number = port->n_accepted++;
    memset(&guest->address, 0, sizeof guest->address);
    port->n_handles++;
    if (uv_accept((uv_stream_t *)&port->tcp, (uv_stream_t *)&guest->tcp) < 0)
        port_drop(guest);
    else
        port_begin(guest);
}

static void accept_queued(struct port *port)
{
    if (port->has_queue && !port->closing)
        port_accept_one(port);
}

static void port_on_connection(uv_stream_t *server, int status)
{
    struct port *port = server->data;

    if (status == 0)
        port_accept_one(port);
    else if (port->n_away++ < AWAY_LINES)
        log_warning("the tcp port: %s", uv_strerror(status));
}

static void port_on_tick(uv_timer_t *timer)
{
    struct port *port = timer->data;

    for (unsigned i = 0; i < PLACES; i++) {
        struct guest *guest = &port->guests[i];
        if ((guest->state == GUEST_SHAKING || guest->state == GUEST_WAITING) &&
            uv_now(port->loop) - guest->since >= port->patience_ms)
            port_turn_away(guest, guest->state == GUEST_WAITING ? "its second connection did not come"
                                                                : "did not finish the handshake in time");
    }
    if (++port->n_ticks < AWAY_TICKS)
        return;
    if (port->n_away > AWAY_LINES)
        log_warning("turned away at the tcp port: %u more", port->n_away - AWAY_LINES);
    if (port->n_put_off > 1)
        log_warning("put off at the tcp port: %u more", port->n_put_off - 1);
    port->n_ticks = port->n_away = port->n_put_off = 0;
}

static int bind_address(struct port *port, const char *address, struct error *err)
{
    struct addrinfo *found = NULL;
    char bound[PROXY_NAME_BYTES];
    struct sockaddr_storage at = {0};
    int length = sizeof at, rc = port_resolve(&found, address, true, err);

    if (rc) /* -EAGAIN: a service manager starts it again */
        return rc;
    rc = uv_tcp_bind(&port->tcp, found->ai_addr, 0);
    freeaddrinfo(found);
    if (!rc)
        rc = uv_listen((uv_stream_t *)&port->tcp, BACKLOG, port_on_connection);
    if (!rc)
        rc = uv_tcp_getsockname(&port->tcp, (struct sockaddr *)&at, &length);
    if (rc)
        return error_set(err, rc, "listening at %s: %s%s", address, uv_strerror(rc),
                         rc == -EADDRINUSE      ? ": choose another port"
                         : rc == -EADDRNOTAVAIL ? ": it is no address of this host"
                         : rc == -EACCES        ? ": choose a port above 1023"
                                                : "");
    print_address(bound, &at);
    log_line("listening at tcp://%s for workers with the key%s", bound,
             port->flags & HANDSHAKE_PLAIN ? "; their bulk is authenticated, but not encrypted" : "");
    return 0;
}

unsigned port_number(const struct port *port)
{
    struct sockaddr_storage at = {0};
    int length = sizeof at;

    if (uv_tcp_getsockname(&port->tcp, (struct sockaddr *)&at, &length) < 0)
        return 0;
    return ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                          : ((struct sockaddr_in *)&at)->sin_port);
}

static void on_own_closed(uv_handle_t *handle)
{
    port_give_back(handle->data);
}

int port_listen(struct port **out, uv_loop_t *loop, const struct port_options *options,
                struct session_listener *listener, struct error *err)
{
    struct port *port = calloc(1, sizeof *port);
    int rc;

    *out = NULL;
    if (!port || sodium_init() < 0) {
        free(port);
        return error_memory(err);
    }
    port->loop = loop;
    port->listener = listener;
    port->key = options->key;
    port->flags = (cipher_has_aes() ? HANDSHAKE_AES : 0) | (options->plain_bulk ? HANDSHAKE_PLAIN : 0);
    port->patience_ms = options->patience_ms ? options->patience_ms : PORT_PATIENCE_MS;
    for (unsigned i = 0; i < PLACES; i++)
        port->guests[i].port = port;
    rc = uv_tcp_init(loop, &port->tcp);
    if (rc) {
        free(port);
        return error_set(err, rc, "no socket: %s", uv_strerror(rc));
    }
    uv_timer_init(loop, &port->tick);
    port->tcp.data = port->tick.data = port;
    port->n_handles = 2;
    rc = bind_address(port, options->address, err);
    if (rc) {
        port_unlisten(port);
        return rc;
    }
    uv_timer_start(&port->tick, port_on_tick, TICK_MS, TICK_MS);
    *out = port;
    return 0;
}

void port_unlisten(struct port *port)
{
    assert(!port->closing);
    port->closing = true;
    for (unsigned i = 0; i < PLACES; i++)
        port_drop(&port->guests[i]);
    uv_close((uv_handle_t *)&port->tcp, on_own_closed);
    uv_close((uv_handle_t *)&port->tick, on_own_closed);
}
