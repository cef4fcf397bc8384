/* libuv's callbacks only take note: messages are queued, an end leaves its reason. All else happens in the caller's
 * wait, so no caller is entered from the loop. LOST alone is also passed on as it comes (on_lost): watches are asked
 * before the queue is read, and must know which worker the daemon gave up. */
#include "client/daemon/link.h"

#include "proto/base/process.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TICK_MS = 100, GRACE_MS = 1000 };

static void link_on_tick(uv_timer_t *timer)
{
    (void)timer; /* waking uv_run is all it does */
}

int client_link_init(struct client_link *link, struct error *err)
{
    *link = (struct client_link){0};
    int rc = uv_loop_init(&link->loop);
    if (rc) {
        *link = (struct client_link){0};
        return error_set(err, rc, "no event loop: %s", uv_strerror(rc));
    }
    link->messages_held = -1;
    uv_timer_init(&link->loop, &link->tick);
    link->tick.data = link;
    uv_timer_start(&link->tick, link_on_tick, TICK_MS, TICK_MS);
    link->seen_ms = uv_now(&link->loop);
    return 0;
}

/* A ring that grows: whoever reads may take its time, and the daemon waits for nobody. */
static struct client_mail *mail_place(struct client_link *link)
{
    if (link->n_mail == link->mail_cap) {
        const size_t cap = link->mail_cap ? 2 * link->mail_cap : 8;
        struct client_mail *mail = malloc(cap * sizeof *mail);
        if (!mail)
            return NULL;
        for (size_t i = 0; i < link->n_mail; i++)
            mail[i] = link->mail[(link->first_mail + i) % link->mail_cap];
        free(link->mail);
        link->mail = mail, link->mail_cap = cap, link->first_mail = 0;
    }
    return &link->mail[(link->first_mail + link->n_mail++) % link->mail_cap];
}

static void link_on_open(struct session *s, const struct message *peer)
{
    struct client_link *link = session_data(s);

    (void)peer;
    link->attached = true;
}

/* After -ENOMEM the sequence has a hole, so the next wait ends with it. */
static void link_on_message(struct session *s, const struct message *m, const int *fds, unsigned n_fds)
{
    struct client_link *link = session_data(s);
    struct client_mail *mail = mail_place(link);

    link->n_lost += m->kind == MESSAGE_LOST && m->lost.how != LOSS_UNFIT;
    if (m->kind == MESSAGE_LOST && link->on_lost)
        link->on_lost(link->lost_data, m);
    for (unsigned i = mail ? CLIENT_MAIL_FDS : 0; i < n_fds; i++)
        close(fds[i]);
    if (!mail) {
        link->rc = -ENOMEM;
        return;
    }
    *mail = (struct client_mail){.message = *m, .n_fds = n_fds < CLIENT_MAIL_FDS ? n_fds : CLIENT_MAIL_FDS};
    for (unsigned i = 0; i < mail->n_fds; i++)
        mail->fds[i] = fds[i];
}

static void link_close_all(const int *fds, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        close(fds[i]);
}

/* The daemon lives, and has ended this session for something that this client did, or did not do. */
static bool is_dismissal(enum message_end end)
{
    switch (end) {
    case END_FAULT:
    case END_SILENT:
    case END_UNREAD:
    case END_TURNED_AWAY:
    case END_DISMISSED:
        return true;
    case END_CLOSED:
    case END_LOST:
    case END_UNANSWERED:
    case END_BROKEN:
        break;
    }
    return false;
}

/* Called from the loop, also by a client's own close. */
static void link_on_closed(struct session *s, const char *reason)
{
    struct client_link *link = session_data(s);

    link->session = NULL;
    link->absent = !link->attached && session_end(s) == END_LOST;
    link->dismissed = link->attached && is_dismissal(session_end(s));
    link->stopped = link->attached && session_end(s) == END_CLOSED;
    link->attached = false;
    if (reason)
        snprintf(link->end, sizeof link->end, "%s", reason);
}

static const struct session_events events = {.on_open = link_on_open,
                                             .on_message = link_on_message,
                                             .on_closed = link_on_closed};

/* Watches come before the deadline: a child that died says more than silence. */
static int ask_watches(struct client_link *link, struct error *err)
{
    for (size_t i = 0; i < sizeof link->watches / sizeof *link->watches; i++) {
        int rc = client_watch_ask(&link->watches[i], err);
        if (rc)
            return rc;
    }
    if (link->deadline && link->awake_ms >= link->deadline)
        return error_set(err, -ETIMEDOUT, "the daemon does not answer");
    return 0;
}

/* The tick wakes the loop, so that a longer silence of the clock is a stop, or work outside the link. */
static void note_time(struct client_link *link)
{
    const uint64_t now = uv_now(&link->loop), passed = now - link->seen_ms;

    link->awake_ms += passed < 2 * TICK_MS ? passed : TICK_MS;
    link->seen_ms = now;
}

/* Runs the loop once, then asks the watches. */
static int link_run_once(struct client_link *link, struct error *err)
{
    uv_run(&link->loop, UV_RUN_ONCE);
    note_time(link);
    return link->rc ? error_memory(err) : ask_watches(link, err);
}

/* If a child's exit is the cause, its own last words explain more than the symptom seen first. Waits up to GRACE_MS for
 * them; returns 0 if there are none. */
static int child_error(struct client_link *link, struct error *err)
{
    const uint64_t until = uv_now(&link->loop) + GRACE_MS;
    int rc = 0;

    while (rc == 0 && link->watches[0].ask && uv_now(&link->loop) < until) {
        uv_run(&link->loop, UV_RUN_ONCE);
        rc = client_watch_ask(&link->watches[0], err);
    }
    return rc;
}

/* Reports that the session ended by itself. Of a private daemon, its workers end with it: they are not the cause. */
static int report_end(struct client_link *link, struct error *err)
{
    static const char refused[] = "refused: ";
    const size_t n = sizeof refused - 1;
    const char *why = strncmp(link->end, refused, n) == 0 ? link->end + n : link->end;

    if (link->dismissed)
        return error_set(err, -EIO, "the daemon has ended the session of this client: %s", why);
    const int rc = child_error(link, err);
    if (rc)
        return rc;
    return error_set(err, -EIO, "the daemon is gone: %s", link->end[0] ? link->end : "closed");
}

/* Holds nanomsg's thread; clients speak through nanomsg. */
static int hold_thread(struct client_link *link, struct error *err)
{
    int rc = link->messages_held < 0 ? process_check_threads(1, err) : 0;

    return rc || link->messages_held >= 0 ? rc : session_hold_thread(&link->messages_held, err);
}

int client_link_open(struct client_link *link, const char *directory, enum message_role role, struct error *err)
{
    const struct message hello = {.kind = MESSAGE_HELLO, .hello = {.role = role}};

    assert(!link->session);
    link->end[0] = 0;
    link->dismissed = link->stopped = false;
    int rc = role == ROLE_CLIENT ? hold_thread(link, err) : 0;
    if (rc)
        return rc;
    rc = session_connect(&link->session, &link->loop, directory, &hello, &events, link, err);
    if (rc) {
        link->session = NULL;
        return rc;
    }
    while (link->session && !link->attached) {
        rc = link_run_once(link, err);
        if (rc)
            return rc;
    }
    return link->session
               ? 0
               : error_set(err, link->absent ? -ECONNREFUSED : -EIO, "the daemon at %s: %s", directory, link->end);
}

void client_link_send(struct client_link *link, const struct message *m)
{
    if (link->session)
        session_send(link->session, m);
}

void client_link_send_fds(struct client_link *link, const struct message *m, const int *fds, unsigned n_fds)
{
    if (link->session)
        session_send_fds(link->session, m, fds, n_fds);
}

/* REFUSED and FAILED are errors. A worker that was lost may be the cause, while a job runs (-EIO), or because a job
 * found none (-EAGAIN). */
static int report_fault(struct client_link *link, const struct message *m, struct error *err)
{
    if (m->kind != MESSAGE_REFUSED && m->kind != MESSAGE_FAILED)
        return 0;
    const bool refused = m->kind == MESSAGE_REFUSED;
    const int code = refused ? m->refused.code : m->failed.code;
    if (!refused)
        link->failed = code;
    const int rc = code == (refused ? -EAGAIN : -EIO) ? child_error(link, err) : 0;
    if (rc)
        return rc;
    return refused ? error_set(err, code < 0 ? code : -EIO, "%s", m->refused.error.text)
                   : error_set(err, -EIO, "%s", m->failed.error.text);
}

/* What a watch said while a message was there to be read first: this wait's end. */
static int take_asked(struct client_link *link, struct error *err)
{
    const int rc = link->asked;

    link->asked = 0;
    return rc ? error_set(err, rc, "%s", link->why.text) : 0;
}

static int link_next(struct client_link *link, struct message *out, int fds[CLIENT_MAIL_FDS], unsigned *n_fds,
                     struct error *err)
{
    *n_fds = 0;
    while (link->n_mail == 0) {
        if (!link->asked)
            link->asked = link->session ? link_run_once(link, &link->why) : report_end(link, &link->why);
        if (link->asked && link->n_mail == 0) /* read the last messages before the end is reported */
            return take_asked(link, err);
    }
    const struct client_mail *mail = &link->mail[link->first_mail];
    *out = mail->message;
    *n_fds = mail->n_fds;
    memcpy(fds, mail->fds, mail->n_fds * sizeof *fds);
    link->first_mail = (link->first_mail + 1) % link->mail_cap;
    link->n_mail--;
    return report_fault(link, out, err);
}

/* Keeps the first of the descriptors, if it is wanted and there is one, and closes the others. */
static void keep_first(int *fd, const int *fds, unsigned n_fds)
{
    const unsigned n_kept = fd && n_fds > 0;

    if (fd)
        *fd = n_kept ? fds[0] : -1;
    link_close_all(fds + n_kept, n_fds - n_kept);
}

int client_link_next(struct client_link *link, struct message *out, int *fd, struct error *err)
{
    int fds[CLIENT_MAIL_FDS];
    unsigned n_fds;
    const int rc = link_next(link, out, fds, &n_fds, err);

    keep_first(fd, fds, n_fds);
    return rc;
}

bool client_link_is_aside(const struct message *m)
{
    return m->kind == MESSAGE_SAVED || m->kind == MESSAGE_SAVE_FAILED || m->kind == MESSAGE_STOP ||
           m->kind == MESSAGE_MEMORY_REPLY || m->kind == MESSAGE_STATUS_REPLY || m->kind == MESSAGE_OUTPUT ||
           m->kind == MESSAGE_LOST;
}

/* True if the message was passed on, and the wait goes on. */
static bool pass_on(struct client_link *link, const struct message *m)
{
    const bool is_aside = client_link_is_aside(m) && link->on_aside;

    if (is_aside)
        link->on_aside(link->aside_data, m);
    else if (m->kind == MESSAGE_QUEUED && link->on_queued)
        link->on_queued(link->queued_data, m);
    return is_aside || m->kind == MESSAGE_QUEUED;
}

int client_link_expect_fds(struct client_link *link, enum message_kind kind, struct message *out,
                           int fds[CLIENT_MAIL_FDS], unsigned *n_fds, struct error *err)
{
    int rc = link_next(link, out, fds, n_fds, err);

    while (!rc && out->kind != kind && pass_on(link, out)) {
        link_close_all(fds, *n_fds);
        rc = link_next(link, out, fds, n_fds, err);
    }
    if (!rc && out->kind == kind)
        return 0;
    link_close_all(fds, *n_fds);
    *n_fds = 0;
    return rc ? rc
              : error_set(err, -EPROTO, "the daemon sent %s where %s was due", message_name(out->kind),
                          message_name(kind));
}

int client_link_expect(struct client_link *link, enum message_kind kind, struct message *out, int *fd,
                       struct error *err)
{
    int fds[CLIENT_MAIL_FDS];
    unsigned n_fds;
    const int rc = client_link_expect_fds(link, kind, out, fds, &n_fds, err);

    keep_first(fd, fds, n_fds);
    return rc;
}

int client_link_pause(struct client_link *link, uint64_t ms, struct error *err)
{
    uv_timer_start(&link->tick, link_on_tick, ms % TICK_MS, TICK_MS); /* the last of the ticks comes at the end */
    const uint64_t until = uv_now(&link->loop) + ms;
    int rc = take_asked(link, err);

    while (!rc && uv_now(&link->loop) < until)
        rc = link_run_once(link, err);
    return rc;
}

void client_link_serve(struct client_link *link)
{
    if (link->session)
        uv_run(&link->loop, UV_RUN_NOWAIT);
    note_time(link);
}

void client_link_close(struct client_link *link)
{
    if (link->session)
        session_close(link->session);
    while (link->session)
        uv_run(&link->loop, UV_RUN_ONCE);
}

void client_link_free(struct client_link *link)
{
    if (!link->tick.data)
        return;
    client_link_close(link);
    for (; link->n_mail > 0; link->n_mail--) {
        const struct client_mail *mail = &link->mail[link->first_mail];
        link_close_all(mail->fds, mail->n_fds);
        link->first_mail = (link->first_mail + 1) % link->mail_cap;
    }
    free(link->mail);
    uv_close((uv_handle_t *)&link->tick, NULL);
    uv_run(&link->loop, UV_RUN_DEFAULT);
    int rc = uv_loop_close(&link->loop);
    assert(rc == 0);
    (void)rc;
    if (link->messages_held >= 0)
        session_release_thread(link->messages_held);
    *link = (struct client_link){0};
}
