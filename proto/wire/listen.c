/* Nobody can keep the owner out. Others pass three limits, each at the first moment at which it can be told: MEMBERS
 * in a tick, while nobody knows whose connection is next; USER_SESSIONS and spare descriptors, once the user is
 * known; the budget (proto/wire/budget.h), once there is a session. The owner has a queue in the kernel that others
 * cannot fill, and the last descriptor. */
#include "proto/wire/session_internal.h"

#include "proto/wire/budget.h"
#include "proto/wire/directory.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    BACKLOG = 128,
    ACCEPTS = 16,       /* sockets accepted per event */
    MEMBERS = 128,      /* members accepted in a tick: the kernel does not say which user is next */
    ATTACHING = 4,      /* cost of an attempt to attach, in a user's budget */
    RETRY_MS = 500,     /* pause after running out of descriptors */
    USER_SESSIONS = 64, /* maximum per user other than the daemon's own and root; or a quarter of the descriptors */
    AWAY_LINES = 8,     /* lines of the log per period about peers turned away */
    AWAY_RETRIES = 20,  /* period, in units of RETRY_MS */
};

/* One of the two listening sockets. Members have their own, so they cannot fill the owner's queue. */
struct entrance {
    struct session_listener *listener;
    uv_poll_t poll;
    int fd;              /* -1: not open */
    unsigned n_accepted; /* in this tick */
};

struct session_listener {
    struct entrance owner, members;
    uv_timer_t retry;
    int lock;
    int spare;   /* a descriptor to release when none is left, so that the owner can always come in; -1: released */
    gid_t group; /* the admitted group, or SESSION_NO_GROUP */
    gid_t users; /* members of this group, too, may be more than viewers */
    unsigned n_handles;
    uint32_t n_sessions;           /* the last id assigned */
    unsigned n_retries, n_away;    /* in this period: retries, log lines */
    struct session *sessions;      /* all live sessions */
    struct budget budget;          /* of all users' sessions */
    char directory[DIRECTORY_MAX]; /* absolute */
    uv_loop_t *loop;
    const struct session_events *events;
    void (*on_closed)(void *data);
    void *data;
};

/* Binds a listening socket under a temporary name and renames it once it listens, so that a visible one always has a
 * daemon behind it. Its rights are set before anybody can see it. */
static int bind_listener(int *out, const char *directory, const char *name, gid_t group, struct error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char path[DIRECTORY_MAX + 16];
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return error_set(err, -errno, "no socket: %s", strerror(errno));
    snprintf(path, sizeof path, "%s/%s", directory, name);
    snprintf(address.sun_path, sizeof address.sun_path, "%.90s/%.10s~", directory,
             name); /* fits: resolve_directory checked */
    if (bind(fd, (const struct sockaddr *)&address, sizeof address) < 0 ||
        (group != SESSION_NO_GROUP && chown(address.sun_path, (uid_t)-1, group) < 0) ||
        chmod(address.sun_path, group != SESSION_NO_GROUP ? 0660 : 0600) < 0 || listen(fd, BACKLOG) < 0 ||
        rename(address.sun_path, path) < 0) {
        int rc = -errno;
        close(fd);
        return error_set(err, rc, "listening at %s: %s", path, strerror(-rc));
    }
    *out = fd;
    return 0;
}

static rlim_t descriptor_limit(void)
{
    struct rlimit limit;

    return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

/* A new descriptor gets the lowest free number, so fd descriptors are below it. */
bool session_leaves_fds(int fd, unsigned spare)
{
    return (rlim_t)fd + spare <= descriptor_limit();
}

bool session_leaves_spare(int fd)
{
    return session_leaves_fds(fd, SESSION_SPARE_FDS);
}

static bool is_master(uid_t uid)
{
    return uid == geteuid() || uid == 0;
}

/* True if a user has the maximum of sessions, including those not open yet or not closed. */
static bool has_enough(const struct session_listener *listener, uid_t uid)
{
    const rlim_t quarter = descriptor_limit() / 4;
    unsigned n = 0;

    for (const struct session *s = listener->sessions; s; s = s->next)
        n += s->peer_uid == uid;
    return n >= USER_SESSIONS || n >= quarter;
}

/* Returns why the peer is refused; NULL: it is admitted. In order of cost: what the kernel knows first, then groups,
 * then a count of sessions. */
static const char *listen_turn_away(const struct session_listener *listener, int fd, const struct connection_peer *peer)
{
    if (is_master(peer->uid))
        return NULL;
    if (listener->group == SESSION_NO_GROUP)
        return "the daemon belongs to another user";
    if (!connection_peer_is_member(fd, listener->group))
        return "the daemon serves a group that you are not a member of";
    if (!session_leaves_spare(fd))
        return "the daemon has no descriptors left for another session";
    return has_enough(listener, peer->uid) ? "you have as many sessions with the daemon as one user may have" : NULL;
}

void session_note_away(struct session_listener *listener, int pid, uid_t uid, const char *who, const char *why)
{
    if (listener->n_away++ >= AWAY_LINES)
        return;
    if (uid == SESSION_REMOTE_USER)
        log_warning("turned away at the tcp port: %s%s", who, why);
    else
        log_warning("turned away at the listener, pid %d of user %u: %s%s", pid, (unsigned)uid, who, why);
}

/* Sends the refusal and closes. A session for it would give descriptors to a peer that tries again and again.
 * Whether it arrives is the peer's affair: nothing waits for it. */
static void send_away(int fd, const char *why)
{
    struct message m = {.kind = MESSAGE_DISMISSED,
                        .sequence = 1,
                        .dismissed = {.end = END_TURNED_AWAY, .code = -ECONNREFUSED}};
    uint8_t bytes[MESSAGE_MAX_BYTES];

    snprintf(m.dismissed.error.text, sizeof m.dismissed.error.text, "%s", why);
    const size_t n = message_encode(bytes, sizeof bytes, &m);
    while (send(fd, bytes, n, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
    close(fd);
}

/* A channel's address has a number that cannot be guessed, so nobody else can be in its place first. */
static void listen_admit(struct session_listener *listener, int fd)
{
    struct session *s;
    struct connection_peer peer = {.uid = (uid_t)-1};
    char address[DIRECTORY_MAX + 64];
    uint32_t nonce;

    connection_peer(&peer, fd);
    const char *why = listen_turn_away(listener, fd, &peer);
    if (why) {
        session_note_away(listener, (int)peer.pid, peer.uid, "", why);
        send_away(fd, why);
        return;
    }
    if (getrandom(&nonce, sizeof nonce, 0) != sizeof nonce)
        nonce = (uint32_t)uv_hrtime();
    snprintf(address, sizeof address, "ipc://%s/" SESSION_CHANNELS "/%u-%08x", listener->directory,
             ++listener->n_sessions, nonce);
    int rc = session_accept(&s, listener->loop, fd, listener->n_sessions, address, listener->events, listener->data);
    if (rc < 0) {
        session_note_away(listener, (int)peer.pid, peer.uid, "", strerror(-rc));
        return;
    }
    s->listener = listener;
    s->may_only_view = !is_master(peer.uid) && listener->users != listener->group &&
                       (listener->users == SESSION_NO_GROUP || !connection_peer_is_member(fd, listener->users));
    session_enlist(s, &listener->sessions);
    session_charge(s, ATTACHING);
}

/* True if the session's user has no budget: it may ask without a limit. */
static bool is_free(const struct session *s)
{
    return !s->listener || is_master(s->peer_uid) || s->peer_uid == SESSION_REMOTE_USER;
}

static void hold_in_debt(struct session *s)
{
    if (s->is_held || s->connection.fd < 0 || budget_allows(&s->listener->budget, s->peer_uid))
        return;
    s->is_held = true;
    connection_hold(&s->connection);
}

/* Charged first, judged later: a user may exceed the budget by one request, and then waits until it is paid. */
void session_charge(struct session *s, unsigned n)
{
    if (is_free(s))
        return;
    budget_spend(&s->listener->budget, s->peer_uid, n);
    hold_in_debt(s);
}

/* All sessions of the user wait, as one could ask for what costs time in each. */
void session_charge_time(struct session *s, uint64_t ns)
{
    const uint64_t n = ns / (BUDGET_NS / BUDGET_TICK);

    if (is_free(s) || n == 0)
        return;
    session_charge(s, n < UINT_MAX ? (unsigned)n : UINT_MAX);
    for (struct session *other = s->listener->sessions; other; other = other->next)
        if (other->peer_uid == s->peer_uid)
            hold_in_debt(other);
}

/* Of the tcp port: the peer is a proxy in this process, and has shown the key. */
int session_adopt(struct session_listener *listener, int fd)
{
    struct session *s;
    const int rc = session_accept(&s, listener->loop, fd, ++listener->n_sessions, "", listener->events, listener->data);

    if (rc < 0)
        return rc;
    s->peer_uid = SESSION_REMOTE_USER;
    s->peer_pid = 0;
    s->listener = listener;
    session_enlist(s, &listener->sessions);
    return 0;
}

/* Accepts the next peer that waits; -1: there is none. */
static int listen_accept_one(struct entrance *at)
{
    struct session_listener *listener = at->listener;
    int fd = accept4(at->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    /* The spare descriptor is for the owner alone, and taken again when one is free (on_retry). */
    if (fd < 0 && (errno == EMFILE || errno == ENFILE) && at == &listener->owner && listener->spare >= 0) {
        close(listener->spare);
        listener->spare = -1;
        fd = accept4(at->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    }
    return fd;
}

static bool has_enough_accepted(const struct entrance *at)
{
    return at == &at->listener->members && at->n_accepted >= MEMBERS;
}

/* A few at a time, so that a crowd at the socket does not keep the loop from everything else. */
static void listen_on_connection(uv_poll_t *poll, int status, int events)
{
    struct entrance *at = poll->data;
    int fd = 0;

    (void)status, (void)events;
    for (unsigned i = 0; i < ACCEPTS && at->fd >= 0 && !has_enough_accepted(at); i++) {
        fd = listen_accept_one(at);
        if (fd < 0)
            break;
        at->n_accepted++;
        listen_admit(at->listener, fd);
    }
    if (has_enough_accepted(at))
        uv_poll_stop(&at->poll);
    if (fd < 0 && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
        if (at->listener->n_away++ < AWAY_LINES)
            log_warning("the listener: %s", strerror(errno));
        uv_poll_stop(&at->poll); /* a waiting peer would wake the loop again and again */
    }
}

static void listen_watch(struct entrance *at)
{
    if (at->fd >= 0 && !has_enough_accepted(at))
        uv_poll_start(&at->poll, UV_READABLE, listen_on_connection);
}

/* Once a tick: debts are paid, and members may come again. */
void session_refill(struct session_listener *listener)
{
    budget_refill(&listener->budget);
    for (struct session *s = listener->sessions; s; s = s->next)
        if (s->is_held && s->connection.fd >= 0 && budget_allows(&listener->budget, s->peer_uid)) {
            s->is_held = false;
            connection_release(&s->connection);
        }
    listener->members.n_accepted = 0;
    listen_watch(&listener->members);
}

static int open_spare(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void on_retry(uv_timer_t *timer)
{
    struct session_listener *listener = timer->data;

    listen_watch(&listener->owner);
    listen_watch(&listener->members);
    if (listener->spare < 0)
        listener->spare = open_spare();
    if (++listener->n_retries < AWAY_RETRIES)
        return;
    if (listener->n_away > AWAY_LINES)
        log_warning("turned away at the listener: %u more", listener->n_away - AWAY_LINES);
    listener->n_retries = listener->n_away = 0;
}

static int open_entrance(struct entrance *at, const char *name, gid_t group, struct error *err)
{
    const struct session_listener *listener = at->listener;
    int rc = bind_listener(&at->fd, listener->directory, name, group, err);

    if (rc < 0)
        return rc;
    rc = uv_poll_init(listener->loop, &at->poll, at->fd);
    at->poll.data = at;
    if (rc == 0)
        return 0;
    close(at->fd);
    at->fd = -1;
    return error_set(err, rc, "watching the listener of %s: %s", listener->directory, uv_strerror(rc));
}

/* The lock of the directory comes first: of two daemons that begin at once, one is refused before it has changed
 * anything. */
int session_listen(struct session_listener **out, uv_loop_t *loop, const char *directory,
                   const struct session_events *events, void *data, struct error *err)
{
    struct session_listener *listener = calloc(1, sizeof *listener);
    int rc;

    *out = NULL;
    if (!listener)
        return error_memory(err);
    listener->loop = loop;
    listener->events = events;
    listener->data = data;
    listener->owner.listener = listener->members.listener = listener;
    listener->owner.fd = listener->members.fd = listener->lock = -1;
    listener->group = listener->users = SESSION_NO_GROUP;
    rc = directory_take(listener->directory, &listener->lock, directory, err);
    if (rc == 0)
        rc = open_entrance(&listener->owner, "listener", SESSION_NO_GROUP, err);
    if (rc < 0) {
        directory_give_back(listener->directory, &listener->lock);
        free(listener);
        return rc;
    }
    listener->spare = open_spare();
    uv_timer_init(loop, &listener->retry);
    listener->retry.data = listener;
    listener->n_handles = 2;
    listen_watch(&listener->owner);
    uv_timer_start(&listener->retry, on_retry, RETRY_MS, RETRY_MS);
    *out = listener;
    return 0;
}

/* Members may enter the directory, but not list it (0710): they reach what they know the name of. */
int session_admit_group(struct session_listener *listener, gid_t group, struct error *err)
{
    const char *directory = listener->directory;
    int rc = directory_check_way(directory, group, err);

    if (rc < 0)
        return rc;
    if (chown(directory, (uid_t)-1, group) || chmod(directory, 0710))
        return error_set(err, -errno, "%s could not be given to the group: %s", directory, strerror(errno));
    rc = open_entrance(&listener->members, SESSION_MEMBERS, group, err);
    if (rc < 0)
        return rc;
    connection_forbid_fds(listener->members.fd);
    listener->n_handles++;
    listener->group = listener->users = group;
    listen_watch(&listener->members);
    return 0;
}

void session_limit_group(struct session_listener *listener, gid_t users)
{
    listener->users = users;
}

static void listen_give_back(struct session_listener *listener)
{
    if (--listener->n_handles > 0)
        return;
    if (listener->on_closed)
        listener->on_closed(listener->data);
    free(listener);
}

static void on_entrance_closed(uv_handle_t *handle)
{
    listen_give_back(((struct entrance *)handle->data)->listener);
}

static void on_retry_closed(uv_handle_t *handle)
{
    listen_give_back(handle->data);
}

static void close_entrance(struct entrance *at)
{
    if (at->fd < 0)
        return;
    uv_close((uv_handle_t *)&at->poll, on_entrance_closed);
    close(at->fd);
    at->fd = -1;
}

/* Sessions that are open stay; they end one by one, and no longer know the listener. */
void session_unlisten(struct session_listener *listener, void (*on_closed)(void *data))
{
    listener->on_closed = on_closed;
    directory_give_back(listener->directory,
                        &listener->lock); /* first: whoever is refused finds no daemon a moment later */
    for (struct session *s = listener->sessions; s; s = listener->sessions) {
        session_unlist(s);
        s->listener = NULL;
        if (!s->opened)
            session_turn_away(s, "the daemon is stopping");
    }
    close_entrance(&listener->owner);
    close_entrance(&listener->members);
    uv_close((uv_handle_t *)&listener->retry, on_retry_closed);
    if (listener->spare >= 0)
        close(listener->spare);
}
