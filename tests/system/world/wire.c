/* A connection has two ends and a queue of packets for each. A packet is written, which its writer's death cannot undo,
 * and later due at the reader. A connection's packets are in the kernel at once; a channel's wait in nanomsg's thread a
 * little, and are lost with the process. */

#include "proto/wire/channel.h"
#include "proto/wire/connection.h"
#include "proto/wire/message.h"
#include "tests/system/world/loop.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MOST_ENDS = 8192,
    FIRST_FD = 1 << 20,  /* numbers of connections are above those of files */
    KERNEL_PACKETS = 64, /* of a connection, before its writer must wait */
    NANOMSG_PACKETS = 256,
    DRAINED = 4096,
};

struct packet {
    struct packet *next;
    uint64_t written, due;
    size_t n;
    unsigned n_fds;
    int fds[CONNECTION_MAX_FDS];
    uint8_t bytes[MESSAGE_MAX_BYTES];
};

/* One end. Its queue holds what the other has sent. */
struct end {
    struct end *other; /* NULL: not connected */
    struct process *process;
    struct connection *connection; /* or: */
    struct channel *channel;       /* NULL both: not taken yet, or closed */
    uv_loop_t *loop;
    int fd;
    bool bound;  /* of a channel */
    bool closed; /* by its process, or with it */
    bool cut;
    bool shut;         /* its process sends no more; once what it sent was read, the other reads the end */
    uint64_t shut_due; /* when the other can know */
    uint64_t last_written, last_due;
    struct packet *first; /* to be read here */
    unsigned n;
    char address[108];
};

struct wire_entrance {
    struct wire_entrance *next;
    struct process *process;
    uv_loop_t *loop;
    char path[160];
    void (*take)(void *data, int fd);
    void (*on_closed)(void *data);
    void *data;
    struct end *waiting[64];
    uint64_t due[64];
    unsigned n;
    bool closed;
};

static struct end *ends[MOST_ENDS];
static int n_ends;
static struct wire_entrance *entrances;

static struct end *end_new(void)
{
    struct end *e = world_alloc(sizeof *e);

    assert(e && n_ends < MOST_ENDS);
    e->process = process_running;
    e->fd = FIRST_FD + n_ends;
    return ends[n_ends++] = e;
}

static struct end *of_fd(int fd)
{
    assert(fd >= FIRST_FD && fd < FIRST_FD + n_ends);
    return ends[fd - FIRST_FD];
}

static const char *describe(const uint8_t *bytes, size_t n)
{
    struct message m;
    const char *why;

    return message_decode(&m, bytes, n, &why) ? "?" : message_name(m.kind);
}

/* ---- queues ----------------------------------------------------------------------------------------------------- */

static void free_packet(struct packet *p)
{
    for (unsigned i = 0; i < p->n_fds; i++)
        close(p->fds[i]);
    free(p);
}

static struct packet *pop(struct end *e)
{
    struct packet *p = e->first;

    e->first = p->next;
    e->n--;
    return p;
}

static void clear(struct end *e)
{
    while (e->first)
        free_packet(pop(e));
}

static uint64_t delay_of(const struct process *p)
{
    return world_now() < p->slow_until ? chance(p->slow_ns + 1) : 0;
}

/* The writer's end. */
static int push(struct end *from, const uint8_t *bytes, size_t n, const int *fds, unsigned n_fds)
{
    struct end *to = from->other;
    struct packet *p = world_alloc(sizeof *p), **last = &to->first;

    assert(p && n <= sizeof p->bytes);
    memcpy(p->bytes, bytes, n);
    p->n = n;
    for (; p->n_fds < n_fds; p->n_fds++) {
        p->fds[p->n_fds] = fcntl(fds[p->n_fds], F_DUPFD_CLOEXEC, 0);
        if (p->fds[p->n_fds] < 0) {
            free_packet(p);
            return -errno;
        }
    }
    p->written = world_now() + (from->channel ? chance_time(0, 100 * US) : 0);
    if (p->written < from->last_written)
        p->written = from->last_written;
    p->due = p->written + chance_time(10 * US, chance(8) ? 200 * US : 20 * MS) + delay_of(from->process) +
             delay_of(to->process);
    if (p->due < from->last_due)
        p->due = from->last_due;
    from->last_written = p->written;
    from->last_due = p->due;
    while (*last)
        last = &(*last)->next;
    *last = p;
    to->n++;
    if (world_traces)
        world_say("-> %s: %s", to->process ? to->process->name : "?", describe(bytes, n));
    return 0;
}

/* The process has closed its end, or died: what was not written yet is lost. */
static void hang_up(struct end *e)
{
    struct end *to = e->other;

    if (e->closed)
        return;
    e->closed = true;
    clear(e);
    if (!to)
        return;
    for (struct packet **at = &to->first; *at;) {
        struct packet *p = *at;
        if (p->written > world_now()) {
            *at = p->next;
            to->n--;
            free_packet(p);
        } else {
            at = &p->next;
        }
    }
    if (!e->shut) {
        e->shut = true;
        e->shut_due = world_now() + chance_time(10 * US, 5 * MS);
    }
}

void wire_process_died(struct process *p)
{
    for (int i = 0; i < n_ends; i++)
        if (ends[i]->process == p)
            hang_up(ends[i]);
    for (struct wire_entrance *at = entrances; at; at = at->next)
        if (at->process == p)
            at->closed = true;
}

void wire_cut(struct process *p)
{
    for (int i = 0; i < n_ends; i++)
        if (ends[i]->process == p && !ends[i]->closed) {
            ends[i]->cut = true;
            if (ends[i]->other)
                ends[i]->other->cut = true;
        }
}

void wire_break(struct process *p)
{
    for (int i = 0; i < n_ends; i++) {
        struct end *e = ends[i];
        if (!e->connection || e->closed || !e->other || e->other->closed ||
            (e->process != p && e->other->process != p) || e->shut)
            continue;
        e->shut = true;
        e->shut_due = world_now() + chance_time(10 * US, 5 * MS);
    }
}

unsigned wire_n_packets(void)
{
    unsigned n = 0;

    for (int i = 0; i < n_ends; i++)
        n += ends[i]->n;
    return n;
}

/* ---- the entrance ----------------------------------------------------------------------------------------------- */

static uint64_t due_entrance(void *arg)
{
    const struct wire_entrance *at = arg;

    return at->n ? at->due[0] : NEVER;
}

static void fire_entrance(void *arg)
{
    struct wire_entrance *at = arg;
    struct end *e = at->waiting[0];

    memmove(at->waiting, at->waiting + 1, --at->n * sizeof *at->waiting);
    memmove(at->due, at->due + 1, at->n * sizeof *at->due);
    e->process = at->process;
    at->take(at->data, e->fd);
}

static struct wire_entrance *find_entrance(const char *path)
{
    struct wire_entrance *at = entrances;

    while (at && strcmp(at->path, path) != 0)
        at = at->next;
    return at;
}

bool wire_is_live(const char *path)
{
    const struct wire_entrance *at = find_entrance(path);

    return at && !at->closed;
}

struct wire_entrance *wire_listen(uv_loop_t *loop, const char *path, void (*take)(void *data, int fd), void *data)
{
    struct wire_entrance *at = world_alloc(sizeof *at);

    assert(at);
    at->process = process_running;
    at->loop = loop;
    at->take = take;
    at->data = data;
    snprintf(at->path, sizeof at->path, "%s", path);
    at->next = entrances;
    entrances = at;
    loop_add(loop, at, due_entrance, fire_entrance, at);
    return at;
}

static void on_entrance_closed(void *key)
{
    struct wire_entrance *at = key;

    if (at->on_closed)
        at->on_closed(at->data);
}

void wire_unlisten(struct wire_entrance *at, void (*on_closed)(void *data))
{
    at->closed = true;
    at->path[0] = '\0';
    at->on_closed = on_closed;
    for (unsigned i = 0; i < at->n; i++) {
        at->waiting[i]->process = at->process;
        hang_up(at->waiting[i]);
    }
    at->n = 0;
    loop_close(at->loop, at, on_entrance_closed);
}

/* ---- the connection ---------------------------------------------------------------------------------------------- */

int connection_connect(int *out, const char *path, struct error *err)
{
    struct wire_entrance *at = find_entrance(path);
    struct end *mine, *theirs;

    if (!at)
        return error_set(err, -ENOENT, "no daemon at %s: start one with epsd --listen, or check the address", path);
    if (at->closed)
        return error_set(err, -ECONNREFUSED, "nobody listens at %s: its daemon was killed; start epsd there again",
                         path);
    if (at->n == sizeof at->waiting / sizeof *at->waiting)
        return error_set(err, -EAGAIN, "the daemon at %s does not answer: too many wait at its socket", path);
    mine = end_new();
    theirs = end_new();
    theirs->process = at->process;
    mine->other = theirs;
    theirs->other = mine;
    at->waiting[at->n] = theirs;
    at->due[at->n] = world_now() + chance_time(10 * US, 1 * MS);
    if (at->n > 0 && at->due[at->n] < at->due[at->n - 1])
        at->due[at->n] = at->due[at->n - 1];
    at->n++;
    *out = mine->fd;
    return 0;
}

bool connection_peer(struct connection_peer *out, int fd)
{
    const struct end *e = of_fd(fd);

    *out = (struct connection_peer){e->other->process->pid, geteuid(), getegid()};
    return true;
}

bool connection_peer_is_member(int fd, gid_t group)
{
    (void)fd, (void)group;
    return false;
}

/* What waits beyond the kernel's room is the connection's own queue. */
static void count_queued(struct end *from)
{
    if (from->connection && !from->closed)
        from->connection->n_queued = from->other->n > KERNEL_PACKETS ? from->other->n - KERNEL_PACKETS : 0;
}

static bool read_connection(struct end *e)
{
    struct connection *connection = e->connection;
    struct packet *p;

    if (!e->first)
        return false;
    p = pop(e);
    count_queued(e->other);
    if (world_traces)
        world_say("<- %s: %s (connection)", e->other->process->name, describe(p->bytes, p->n));
    connection->events->on_packet(connection, p->bytes, p->n, p->fds, p->n_fds);
    free(p);
    return e->connection == connection && !connection->ended;
}

static bool has_ended(const struct end *e)
{
    return e->other->shut && e->other->shut_due <= world_now();
}

static void end_connection(struct end *e)
{
    struct connection *connection = e->connection;

    if (connection->ended)
        return;
    connection->ended = true;
    connection->events->on_end(connection, NULL);
}

/* The end, like all before it, is read at once: the kernel has it. */
void connection_drain(struct connection *connection)
{
    struct end *e = connection->fd >= 0 ? of_fd(connection->fd) : NULL;

    for (unsigned i = 0;
         i < DRAINED && e && e->connection == connection && !connection->ended && !e->cut && read_connection(e); i++)
        ;
    if (e && e->connection == connection && !e->first && has_ended(e))
        end_connection(e);
}

static uint64_t due_connection(void *arg)
{
    const struct end *e = arg;
    uint64_t due = NEVER;

    if (e->connection->ended || e->cut)
        return NEVER;
    if (!e->connection->paused && e->first)
        due = e->first->due;
    if (e->other->shut && e->other->shut_due < due)
        due = e->other->shut_due;
    return due;
}

static void fire_connection(void *arg)
{
    struct end *e = arg;

    if (has_ended(e))
        connection_drain(e->connection);
    else
        read_connection(e);
}

int connection_open(struct connection *connection, uv_loop_t *loop, int fd, const struct connection_events *events,
                    void *data)
{
    struct end *e = of_fd(fd);

    *connection = (struct connection){.fd = fd, .events = events, .data = data};
    e->process = process_running;
    e->connection = connection;
    e->loop = loop;
    loop_add(loop, connection, due_connection, fire_connection, e);
    return 0;
}

int connection_send(struct connection *connection, const uint8_t *bytes, size_t n, const int *fds, unsigned n_fds)
{
    struct end *e = of_fd(connection->fd);
    int rc;

    assert(n > 0 && n <= MESSAGE_MAX_BYTES && n_fds <= CONNECTION_MAX_FDS && !connection->shut);
    if (e->other->closed || e->shut)
        return 0;
    if (connection->n_queued == CONNECTION_MAX_QUEUED)
        return -ENOBUFS;
    rc = push(e, bytes, n, fds, n_fds);
    count_queued(e);
    return rc;
}

void connection_pause(struct connection *connection)
{
    connection->paused = true;
}

void connection_resume(struct connection *connection)
{
    connection->paused = false;
}

void connection_shutdown(struct connection *connection)
{
    struct end *e = of_fd(connection->fd);

    connection->shut = true;
    if (e->shut)
        return;
    e->shut = true;
    e->shut_due = world_now() > e->last_due ? world_now() : e->last_due;
}

static void on_connection_closed(void *key)
{
    struct connection *connection = key;

    connection->events->on_closed(connection);
}

void connection_close(struct connection *connection)
{
    struct end *e = of_fd(connection->fd);

    hang_up(e);
    e->connection = NULL;
    connection->fd = -1;
    connection->n_queued = 0;
    loop_close(e->loop, connection, on_connection_closed);
}

/* ---- the channel ------------------------------------------------------------------------------------------------ */

bool channel_address_fits(const char *address)
{
    return strncmp(address, "ipc:///", 7) == 0 && strlen(address) <= 107;
}

int channel_hold_thread(void)
{
    return 0;
}

void channel_release_thread(int hold)
{
    (void)hold;
}

static bool read_channel(struct end *e)
{
    struct channel *channel = e->channel;
    struct packet *p;

    if (!e->first || e->first->due > world_now() || e->cut)
        return false;
    p = pop(e);
    if (world_traces)
        world_say("<- %s: %s", e->other->process->name, describe(p->bytes, p->n));
    channel->events->on_packet(channel, p->bytes, p->n);
    free_packet(p);
    return e->channel == channel && channel->socket >= 0;
}

static uint64_t due_channel(void *arg)
{
    const struct end *e = arg;

    return e->first && !e->cut ? e->first->due : NEVER;
}

static void fire_channel(void *arg)
{
    read_channel(arg);
}

/* Those who come to one address are two. */
static struct end *find_partner(const struct end *e)
{
    for (int i = n_ends; i-- > 0;)
        if (ends[i] != e && ends[i]->channel && !ends[i]->closed && !ends[i]->other && ends[i]->bound != e->bound &&
            strcmp(ends[i]->address, e->address) == 0)
            return ends[i];
    return NULL;
}

int channel_open(struct channel *channel, uv_loop_t *loop, const char *address, bool bind,
                 const struct channel_events *events, void *data)
{
    struct end *e = end_new();

    *channel = (struct channel){.socket = e->fd, .events = events, .data = data};
    snprintf(e->address, sizeof e->address, "%s", address);
    e->bound = bind;
    e->channel = channel;
    e->loop = loop;
    struct end *partner = find_partner(e);
    if (partner) {
        e->other = partner;
        partner->other = e;
    }
    loop_add(loop, channel, due_channel, fire_channel, e);
    return 0;
}

/* A daemon that was killed may have left a socket to which nobody answers. */
int channel_send(struct channel *channel, const uint8_t *bytes, size_t n)
{
    struct end *e = of_fd(channel->socket);

    if (!e->other || e->other->closed)
        return 0;
    if (channel_queued(channel) + n > CHANNEL_MAX_QUEUED)
        return -ENOBUFS;
    return push(e, bytes, n, NULL, 0);
}

size_t channel_queued(const struct channel *channel)
{
    const struct end *e = of_fd(channel->socket);
    const unsigned n = e->other ? e->other->n : 0;

    return n > NANOMSG_PACKETS ? (size_t)(n - NANOMSG_PACKETS) * MESSAGE_MAX_BYTES : 0;
}

/* The far end is known to be gone once all before that was read. */
bool channel_is_connected(const struct channel *channel)
{
    const struct end *e = of_fd(channel->socket);

    return e->other && !(e->other->closed && !e->first);
}

void channel_drain(struct channel *channel)
{
    for (unsigned i = 0; i < DRAINED && channel->socket >= 0 && read_channel(of_fd(channel->socket)); i++)
        ;
}

static void on_channel_closed(void *key)
{
    struct channel *channel = key;

    channel->events->on_closed(channel);
}

void channel_close(struct channel *channel)
{
    struct end *e = of_fd(channel->socket);

    for (const struct packet *p = e->first; p && !e->cut && !e->other->process->alive; p = p->next)
        e->other->process->n_unread += p->due <= world_now();
    hang_up(e);
    e->channel = NULL;
    channel->socket = -1;
    loop_close(e->loop, channel, on_channel_closed);
}
