/* The listener of tests/system/world: what proto/wire/listen.c does at a real connection, at a simulated one. It is
 * here as it needs the session from inside. */
#include "proto/net/dial.h"
#include "proto/net/port.h"
#include "proto/wire/session_internal.h"
#include "tests/system/world/loop.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct session_listener {
    struct wire_entrance *entrance;
    char directory[128];
    uv_loop_t *loop;
    uint32_t n_sessions;
    struct session *sessions;
    const struct session_events *events;
    void (*on_closed)(void *data);
    void *data;
};

static void admit(void *data, int fd)
{
    struct session_listener *listener = data;
    struct session *s;
    char address[SESSION_ADDRESS_MAX];

    snprintf(address, sizeof address, "ipc://%.60s/" SESSION_CHANNELS "/%u-%08x", listener->directory,
             ++listener->n_sessions, (unsigned)chance(UINT32_MAX));
    if (session_accept(&s, listener->loop, fd, listener->n_sessions, address, listener->events, listener->data))
        return;
    s->listener = listener;
    session_enlist(s, &listener->sessions);
}

int session_listen(struct session_listener **out, uv_loop_t *loop, const char *directory,
                   const struct session_events *events, void *data, struct error *err)
{
    struct session_listener *listener = world_alloc(sizeof *listener);
    char path[160];

    (void)err;
    snprintf(listener->directory, sizeof listener->directory, "%s", directory);
    snprintf(path, sizeof path, "%s/listener", listener->directory);
    listener->loop = loop;
    listener->events = events;
    listener->data = data;
    listener->entrance = wire_listen(loop, path, admit, listener);
    *out = listener;
    return 0;
}

int session_admit_group(struct session_listener *listener, gid_t group, struct error *err)
{
    (void)listener, (void)group, (void)err;
    abort();
}

void session_limit_group(struct session_listener *listener, gid_t users)
{
    (void)listener, (void)users;
    abort();
}

void session_charge(struct session *s, unsigned n)
{
    (void)s, (void)n; /* all are the owner's */
}

void session_charge_time(struct session *s, uint64_t ns)
{
    (void)s, (void)ns;
}

void session_refill(struct session_listener *listener)
{
    (void)listener;
}

static void on_closed(void *data)
{
    struct session_listener *listener = data;

    if (listener->on_closed)
        listener->on_closed(listener->data);
    free(listener);
}

void session_unlisten(struct session_listener *listener, void (*then)(void *data))
{
    listener->on_closed = then;
    for (struct session *s = listener->sessions; s; s = listener->sessions) {
        session_unlist(s);
        s->listener = NULL;
        if (!s->opened)
            session_refuse(s, "the daemon is stopping");
    }
    wire_unlisten(listener->entrance, on_closed);
}

bool session_leaves_spare(int fd)
{
    (void)fd;
    return true;
}

void session_note_away(struct session_listener *listener, int pid, uid_t uid, const char *who, const char *why)
{
    (void)listener, (void)uid;
    log_line("turned away at the listener, pid %d: %s%s", pid, who, why);
}

bool session_is_live(const char *directory)
{
    char path[160];

    snprintf(path, sizeof path, "%.120s/listener", directory);
    return wire_is_live(path);
}

void session_remove_stale(const char *directory)
{
    (void)directory;
}

/* ---- No network in this world. ---- */

bool session_leaves_fds(int fd, unsigned spare)
{
    (void)fd, (void)spare;
    return true;
}

bool port_is_address(const char *address)
{
    return strncmp(address, "tcp://", 6) == 0;
}

int port_split(char name[PORT_NAME_BYTES], char digits[PORT_DIGITS_BYTES], const char *address, struct error *err)
{
    (void)name, (void)digits;
    return error_set(err, -EDOM, "%s: no network", address);
}

int port_listen(struct port **out, uv_loop_t *loop, const struct port_options *options,
                struct session_listener *listener, struct error *err)
{
    (void)out, (void)loop, (void)listener;
    return error_set(err, -EDOM, "%s: no network", options->address);
}

void port_unlisten(struct port *port)
{
    (void)port;
}

int dial(int *connection, uv_loop_t *loop, const struct dial_options *options, struct error *err)
{
    (void)connection, (void)loop;
    return error_set(err, -EDOM, "%s: no network", options->address);
}

int dial_knock(const char *address, struct error *err)
{
    return error_set(err, -EDOM, "%s: no network", address);
}
