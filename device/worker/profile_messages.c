/* Times a message: from the compute thread by its loop and nanomsg to another loop, and the answer back, as a pull goes. The
 * other side is a thread here, no process. */
#include "device/worker/mailbox.h"
#include "device/worker/profile_measure.h"
#include "proto/wire/channel.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MESSAGES = 300, WARM_UP = 20 };

/* What both sides know. */
struct talk {
    struct mailbox box; /* between the asking side's two threads */
    bool failed;        /* by __atomic; the asking thread has an answer then, too */
};

struct side {
    uv_loop_t loop;
    uv_async_t outgoing; /* to the loop: the mailbox has something to send, or `ends` is set */
    struct channel channel;
    struct talk *talk;
    bool asks, ends; /* ends: by __atomic */
};

static const struct message pull = {.kind = MESSAGE_PULL}, answer = {.kind = MESSAGE_WEIGHTS};

static void fail(struct talk *talk)
{
    __atomic_store_n(&talk->failed, true, __ATOMIC_RELEASE);
    mailbox_deliver(&talk->box, &answer, NULL, 0);
}

static void send_message(struct side *side, const struct message *m)
{
    uint8_t bytes[MESSAGE_MAX_BYTES];

    if (channel_send(&side->channel, bytes, message_encode(bytes, sizeof bytes, m)))
        fail(side->talk);
}

static void on_packet(struct channel *channel, const uint8_t *bytes, size_t n)
{
    struct side *side = channel->data;
    struct message m;
    const char *why;

    if (message_decode(&m, bytes, n, &why))
        fail(side->talk);
    else if (side->asks)
        mailbox_deliver(&side->talk->box, &m, NULL, 0);
    else
        send_message(side, &answer);
}

static void on_fault(struct channel *channel, const char *fault)
{
    struct side *side = channel->data;

    (void)fault;
    fail(side->talk);
}

static void on_closed(struct channel *channel)
{
    (void)channel;
}

static void on_outgoing(uv_async_t *async)
{
    struct side *side = async->data;
    struct message m;

    while (side->asks && mailbox_collect(&side->talk->box, &m))
        send_message(side, &m);
    if (__atomic_load_n(&side->ends, __ATOMIC_ACQUIRE)) {
        channel_close(&side->channel);
        uv_close((uv_handle_t *)async, NULL);
    }
}

static void *run(void *context)
{
    struct side *side = context;

    uv_run(&side->loop, UV_RUN_DEFAULT);
    return NULL;
}

static void wake(void *context)
{
    struct side *side = context;

    uv_async_send(&side->outgoing);
}

static int begin(struct side *side, const char *address, pthread_t *thread)
{
    static const struct channel_events events = {on_packet, on_fault, on_closed};

    if (uv_loop_init(&side->loop))
        return -ENOMEM;
    uv_async_init(&side->loop, &side->outgoing, on_outgoing);
    side->outgoing.data = side;
    int rc = channel_open(&side->channel, &side->loop, address, side->asks, &events, side);
    if (!rc) {
        rc = -pthread_create(thread, NULL, run, side);
        if (!rc)
            return 0;
        channel_close(&side->channel);
    }
    uv_close((uv_handle_t *)&side->outgoing, NULL);
    run(side);
    uv_loop_close(&side->loop);
    return rc;
}

static void end(struct side *side, pthread_t thread)
{
    __atomic_store_n(&side->ends, true, __ATOMIC_RELEASE);
    wake(side);
    pthread_join(thread, NULL);
    uv_loop_close(&side->loop);
}

static int in_order(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Half of the median way there and back. */
static double time_messages(struct talk *talk, double (*now)(void))
{
    double seconds[MESSAGES];
    struct mail mail;

    for (int i = -WARM_UP; i < MESSAGES && !__atomic_load_n(&talk->failed, __ATOMIC_ACQUIRE); i++) {
        const double start = now();
        mailbox_post(&talk->box, &pull);
        mailbox_wait(&talk->box, &mail);
        if (i >= 0)
            seconds[i] = now() - start;
    }
    if (talk->failed)
        return -1;
    qsort(seconds, MESSAGES, sizeof *seconds, in_order);
    return seconds[MESSAGES / 2] / 2;
}

static int time_at(double *out, const char *address, struct talk *talk, double (*now)(void))
{
    struct side asks = {.talk = talk, .asks = true}, answers = {.talk = talk};
    pthread_t threads[2];

    mailbox_init(&talk->box, wake, &asks);
    int rc = begin(&asks, address, &threads[0]);
    if (rc)
        return rc;
    rc = begin(&answers, address, &threads[1]);
    if (!rc) {
        *out = time_messages(talk, now);
        rc = *out < 0 ? -EIO : 0;
        end(&answers, threads[1]);
    }
    end(&asks, threads[0]);
    return rc;
}

int measure_messages(struct profile *out, const struct measured *b, struct error *err)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    char directory[64], address[96], *path = address + strlen("ipc://");
    struct talk *talk = calloc(1, sizeof *talk);
    int rc = talk ? 0 : -ENOMEM;

    snprintf(directory, sizeof directory, "%s/eps-bench-XXXXXX",
             runtime && runtime[0] == '/' && strlen(runtime) < 32 ? runtime : "/tmp");
    if (!rc && !mkdtemp(directory))
        rc = -errno;
    if (!rc) {
        snprintf(address, sizeof address, "ipc://%s/s", directory);
        const int hold = channel_hold_thread();
        rc = hold < 0 ? hold : time_at(&out->message_s, address, talk, b->now);
        if (hold >= 0)
            channel_release_thread(hold);
        unlink(path);
        rmdir(directory);
    }
    free(talk);
    return rc ? error_set(err, rc, "messages could not be timed at %s: %s", directory, strerror(-rc)) : 0;
}
