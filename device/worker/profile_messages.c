/* Times a round trip like a pull's: the compute thread, its loop, nanomsg, another loop, and back. Both ends are
 * threads of this process. */
#include "device/worker/mailbox.h"
#include "device/worker/profile_measure.h"
#include "proto/base/log.h"
#include "proto/base/process.h"
#include "proto/wire/channel.h"
#include "proto/wire/session.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MESSAGES = 300,
    WARM_UP = 20,
    PATIENCE_MS = 10000, /* nanomsg reports no connection that it cannot make */
    PATH_BYTES = 96,     /* of a directory's path, with the rest below the 107 of a Unix socket */
};

/* Between the asking endpoint's threads, and what both endpoints know. */
struct exchange {
    struct mailbox box;
    int rc; /* by __atomic: the first failure, which comes with an answer; or 0 */
};

struct endpoint {
    uv_loop_t loop;
    uv_async_t outgoing; /* to the loop: the mailbox has something to send, or the endpoint ends */
    uv_timer_t patience;
    struct channel channel;
    struct exchange *exchange;
    bool asks, ends; /* ends: by __atomic */
};

static const struct message pull = {.kind = MESSAGE_PULL}, answer = {.kind = MESSAGE_WEIGHTS};

static void profile_messages_fail(struct exchange *exchange, int rc)
{
    int none = 0;

    __atomic_compare_exchange_n(&exchange->rc, &none, rc, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
    mailbox_deliver(&exchange->box, &answer, NULL, 0);
}

static void profile_messages_send_message(struct endpoint *e, const struct message *m)
{
    uint8_t bytes[MESSAGE_MAX_BYTES];
    const int rc = channel_send(&e->channel, bytes, message_encode(bytes, sizeof bytes, m));

    if (rc)
        profile_messages_fail(e->exchange, rc);
}

static void on_packet(struct channel *channel, const uint8_t *bytes, size_t n)
{
    struct endpoint *e = channel->data;
    struct message m;
    const char *why;
    const int rc = message_decode(&m, bytes, n, &why);

    if (rc)
        profile_messages_fail(e->exchange, rc);
    else if (e->asks)
        mailbox_deliver(&e->exchange->box, &m, NULL, 0);
    else
        profile_messages_send_message(e, &answer);
}

static void on_fault(struct channel *channel, const char *fault)
{
    struct endpoint *e = channel->data;

    (void)fault;
    profile_messages_fail(e->exchange, -EIO);
}

static void profile_messages_on_closed(struct channel *channel)
{
    (void)channel;
}

static void on_patience_ends(uv_timer_t *timer)
{
    struct endpoint *e = timer->data;

    profile_messages_fail(e->exchange, -ETIMEDOUT);
}

static void profile_messages_on_outgoing(uv_async_t *async)
{
    struct endpoint *e = async->data;
    struct message m;

    while (e->asks && mailbox_collect(&e->exchange->box, &m))
        profile_messages_send_message(e, &m);
    if (__atomic_load_n(&e->ends, __ATOMIC_ACQUIRE)) {
        channel_close(&e->channel);
        uv_close((uv_handle_t *)&e->patience, NULL);
        uv_close((uv_handle_t *)async, NULL);
    }
}

static void *run_loop(void *context)
{
    struct endpoint *e = context;

    uv_run(&e->loop, UV_RUN_DEFAULT);
    return NULL;
}

static void profile_messages_wake(void *context)
{
    struct endpoint *e = context;

    uv_async_send(&e->outgoing);
}

/* Of an endpoint whose thread does not run. */
static void close_handles(struct endpoint *e)
{
    uv_close((uv_handle_t *)&e->patience, NULL);
    uv_close((uv_handle_t *)&e->outgoing, NULL);
    run_loop(e); /* until all are closed */
    uv_loop_close(&e->loop);
}

static int endpoint_open(struct endpoint *e, const char *address, pthread_t *thread)
{
    static const struct channel_events events = {on_packet, on_fault, profile_messages_on_closed};
    int rc = uv_loop_init(&e->loop);

    if (rc)
        return rc;
    uv_async_init(&e->loop, &e->outgoing, profile_messages_on_outgoing);
    uv_timer_init(&e->loop, &e->patience);
    e->outgoing.data = e->patience.data = e;
    uv_timer_start(&e->patience, on_patience_ends, PATIENCE_MS, 0);
    rc = channel_open(&e->channel, &e->loop, address, e->asks, &events, e);
    if (!rc) {
        rc = -pthread_create(thread, NULL, run_loop, e);
        if (!rc)
            return 0;
        channel_close(&e->channel);
    }
    close_handles(e);
    return rc;
}

static void endpoint_close(struct endpoint *e, pthread_t thread)
{
    __atomic_store_n(&e->ends, true, __ATOMIC_RELEASE);
    profile_messages_wake(e);
    pthread_join(thread, NULL);
    uv_loop_close(&e->loop);
}

/* Connected endpoints need it no more. */
static void profile_messages_remove_directory(const char *directory)
{
    char path[PATH_BYTES + 2];

    snprintf(path, sizeof path, "%s/s", directory);
    unlink(path);
    rmdir(directory);
}

/* Half of the median round trip. */
static int time_messages(double *out, struct exchange *exchange, const char *directory, double (*now)(void))
{
    double seconds[MESSAGES];
    struct mail mail;

    for (int i = -WARM_UP; i < MESSAGES; i++) {
        const double start = now();
        mailbox_post(&exchange->box, &pull);
        mailbox_wait(&exchange->box, &mail);
        const int rc = __atomic_load_n(&exchange->rc, __ATOMIC_ACQUIRE);
        if (rc)
            return rc;
        if (i == -WARM_UP)
            profile_messages_remove_directory(directory);
        if (i >= 0)
            seconds[i] = now() - start;
    }
    *out = measure_median(seconds, MESSAGES) / 2;
    return 0;
}

static int time_in(double *out, const char *directory, double (*now)(void))
{
    char address[PATH_BYTES + 16];
    struct exchange *exchange = calloc(1, sizeof *exchange);
    struct endpoint asking = {.exchange = exchange, .asks = true}, answering = {.exchange = exchange};
    pthread_t threads[2];

    if (!exchange)
        return -ENOMEM;
    snprintf(address, sizeof address, "ipc://%s/s", directory);
    mailbox_init(&exchange->box, profile_messages_wake, &asking);
    int rc = endpoint_open(&asking, address, &threads[0]);
    if (!rc) {
        rc = endpoint_open(&answering, address, &threads[1]);
        if (!rc) {
            rc = time_messages(out, exchange, directory, now);
            endpoint_close(&answering, threads[1]);
        }
        endpoint_close(&asking, threads[0]);
    }
    free(exchange);
    return rc;
}

/* A new directory, in which the socket's address is short enough; of this user alone. */
static int profile_messages_make_directory(char out[PATH_BYTES], const char *parent)
{
    if (!parent || parent[0] != '/' || snprintf(out, PATH_BYTES, "%s/eps-bench-XXXXXX", parent) >= PATH_BYTES)
        return -ENAMETOOLONG;
    return mkdtemp(out) ? 0 : -errno;
}

static int time_anywhere(double *out, double (*now)(void))
{
    char directory[PATH_BYTES];
    int rc = profile_messages_make_directory(directory, getenv("XDG_RUNTIME_DIR"));

    if (rc)
        rc = profile_messages_make_directory(directory, "/tmp");
    if (rc)
        return rc;
    rc = time_in(out, directory, now);
    profile_messages_remove_directory(directory); /* unless a message has come */
    return rc;
}

void measure_messages(struct profile *out, const struct measured *b)
{
    struct error err = {""};
    int hold, rc = process_check_threads(3, &err);

    if (!rc)
        rc = session_hold_thread(&hold, &err);
    if (!rc) {
        rc = time_anywhere(&out->message_s, b->now);
        session_release_thread(hold);
        if (rc)
            error_set(&err, rc, "%s", strerror(-rc));
    }
    if (!rc)
        return;
    out->message_s = profile_default(b->ops->name)->message_s;
    log_warning("messages could not be timed, and are taken for those of another machine: %s", err.text);
}
