#include "proto/session_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    ATTEMPTS = 4,       /* of 1, 2, 4 and 8 ticks for each of WELCOME and GREETING */
    HELLO_TICKS = 5,    /* that a connection may stay silent at the door */
    GREETING_TICKS = 15 /* a peer tries anew long before, which ends this session */
};

/* The socket that nanomsg has bound is the user's own; here it becomes the group's too, before anyone is told of it. */
static int admit_group(const struct session *s)
{
    const char *path = s->address + strlen("ipc://");

    if (s->group == SESSION_NO_GROUP)
        return 0;
    return chown(path, (uid_t)-1, s->group) || chmod(path, 0660) ? -errno : 0;
}

void attach_on_hello(struct session *s, const struct message *m)
{
    struct message welcome = {.kind = MESSAGE_WELCOME};
    int rc = session_open_channel(s);

    if (rc == 0)
        rc = admit_group(s);
    if (rc < 0) {
        char reason[160];
        snprintf(reason, sizeof reason, "the daemon cannot open a channel: %s", strerror(-rc));
        session_refuse_code(s, rc, reason);
        return;
    }
    s->hello = *m;
    s->nonce = m->hello.nonce;
    welcome.welcome.id = s->id;
    snprintf(welcome.welcome.address, sizeof welcome.welcome.address, "%s", s->address);
    session_enter(s, SESSION_GREETING);
    session_send_by_door(s, &welcome, NULL, 0);
}

static void greet(struct session *s)
{
    const struct message m = {.kind = MESSAGE_GREETING, .greeting = {.id = s->id, .nonce = s->nonce}};

    session_send_by_channel(s, &m);
}

void attach_on_welcome(struct session *s, const struct message *m)
{
    int rc;

    if (!channel_address_fits(m->welcome.address)) {
        session_fault(s, -EPROTO, "sent an address that no channel can have");
        return;
    }
    s->id = m->welcome.id;
    memcpy(s->address, m->welcome.address, sizeof s->address);
    rc = session_open_channel(s);
    if (rc < 0) {
        char reason[128];
        snprintf(reason, sizeof reason, "opening a channel: %s", strerror(-rc));
        session_finish(s, reason);
        return;
    }
    door_pause(&s->door); /* what the daemon sends through it once it has our greeting must not overtake its own */
    session_enter(s, SESSION_GREETING);
    greet(s);
}

void attach_on_greeting(struct session *s, const struct message *m)
{
    struct message welcome = {.kind = MESSAGE_WELCOME, .welcome = {.id = s->id}};

    if (m->greeting.id != s->id || m->greeting.nonce != s->nonce) {
        session_fault(s, -EPROTO, "sent the greeting of another session");
        return;
    }
    if (s->accepted)
        greet(s);
    if (s->state != SESSION_GREETING)
        return;
    session_enter(s, SESSION_OPEN);
    door_resume(&s->door);
    s->opened = true;
    session_unlist(s);
    memcpy(welcome.welcome.address, s->address, sizeof welcome.welcome.address);
    s->events->on_open(s, s->accepted ? &s->hello : &welcome);
}

static int open_door(struct session *s, struct error *err)
{
    int fd = -1, rc = door_connect(&fd, s->path, err);

    if (rc < 0)
        return rc;
    rc = session_open_door(s, fd);
    return rc < 0 ? error_set(err, rc, "watching %s: %s", s->path, uv_strerror(rc)) : 0;
}

static void say_hello(struct session *s)
{
    s->n_attempts++;
    s->on_door.sent = s->on_door.received = s->on_channel.sent = s->on_channel.received = 0;
    if (getrandom(&s->nonce, sizeof s->nonce, 0) != sizeof s->nonce)
        s->nonce = uv_hrtime();
    s->hello.hello.nonce = s->nonce;
    session_enter(s, SESSION_HELLO);
    session_send_by_door(s, &s->hello, NULL, 0);
}

void attach_again(struct session *s)
{
    struct error err;

    if (open_door(s, &err) < 0)
        session_finish(s, err.text);
    else
        say_hello(s);
}

void attach_on_tick(struct session *s)
{
    if (s->accepted) {
        unsigned limit = s->state == SESSION_HELLO ? HELLO_TICKS : GREETING_TICKS;
        if (s->n_ticks >= limit)
            session_fault(s, -ETIMEDOUT, "said nothing for %u s", limit);
    } else if (s->n_ticks >= 1u << (s->n_attempts - 1)) {
        if (s->n_attempts == ATTEMPTS) {
            session_finish(s, "does not answer: it is stopped, or its machine is overloaded");
            return;
        }
        session_enter(s, SESSION_RETRYING);
        session_close_links(s);
    }
}

int session_accept(struct session **out, uv_loop_t *loop, int fd, uint32_t id, const char *address,
                   const struct session_events *events, void *data)
{
    struct session *s = session_new(loop, events, data);
    int rc;

    *out = NULL;
    if (!s) {
        close(fd);
        return -ENOMEM;
    }
    s->accepted = true;
    s->id = id;
    snprintf(s->address, sizeof s->address, "%s", address);
    rc = session_open_door(s, fd);
    if (rc < 0) {
        free(s);
        return rc;
    }
    session_start(s);
    *out = s;
    return 0;
}

int session_connect(struct session **out, uv_loop_t *loop, const char *directory, const struct message *hello,
                    const struct session_events *events, void *data, struct error *err)
{
    struct session *s = session_new(loop, events, data);
    int rc;

    *out = NULL;
    if (!s)
        return error_set(err, -ENOMEM, "out of memory");
    if ((size_t)snprintf(s->path, sizeof s->path, "%s/door", directory) >= sizeof s->path) {
        free(s);
        return error_set(err, -ENAMETOOLONG, "%s: too long a path for a socket: choose a shorter one", directory);
    }
    s->hello = *hello;
    s->hello.kind = MESSAGE_HELLO;
    s->hello.hello.pid = (uint32_t)getpid();
    rc = open_door(s, err);
    if (rc < 0) {
        free(s);
        return rc;
    }
    session_start(s);
    say_hello(s);
    *out = s;
    return 0;
}
