/* Every callback may close the channel. So each loop looks at the socket again before it goes on, and nothing is
 * touched after a fault was reported.
 *
 * Packets keep their order: once one waits in the queue, all later ones wait behind it, even if nanomsg would take one.
 * The queue is one array and not a list, so a step, whose packets are many and small, allocates nothing once it has
 * grown. */
#include "proto/wire/channel.h"

#include "proto/wire/message.h"

#include <assert.h>
#include <errno.h>
#include <nanomsg/nn.h>
#include <nanomsg/pair.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHANNEL_FAIR = 32,         /* packets per event, so that one peer cannot hold the loop */
    CHANNEL_DRAIN = 4096,      /* at the end: more than nanomsg and the kernel hold back */
    CHANNEL_FIRST_CAP = 16384, /* initial bytes of the queue */
};

bool channel_address_fits(const char *address)
{
    return strncmp(address, "ipc:///", 7) == 0 && strlen(address) <= 107;
}

static void channel_fault(struct channel *channel, const char *doing)
{
    char text[ERROR_TEXT_BYTES];

    snprintf(text, sizeof text, "%s: %s", doing, nn_strerror(nn_errno()));
    channel->events->on_fault(channel, text);
}

/* Receives and delivers one packet; false if there is none. */
static bool channel_read_one(struct channel *channel)
{
    uint8_t bytes[MESSAGE_MAX_BYTES];
    int n = nn_recv(channel->socket, bytes, sizeof bytes, NN_DONTWAIT);

    if (n < 0) {
        if (nn_errno() == EINTR)
            return true;
        if (nn_errno() != EAGAIN)
            channel_fault(channel, "receiving from the channel");
        return false;
    }
    channel->events->on_packet(channel, bytes, (size_t)n);
    return channel->socket >= 0;
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct channel *channel = poll->data;

    (void)status, (void)events; /* an eventfd has no errors of its own */
    for (unsigned i = 0; i < CHANNEL_FAIR && channel_read_one(channel); i++)
        ;
}

void channel_drain(struct channel *channel)
{
    for (unsigned i = 0; i < CHANNEL_DRAIN && channel->socket >= 0 && channel_read_one(channel); i++)
        ;
}

/* Returns 0, -EAGAIN, or another -errno. */
static int channel_write_one(struct channel *channel, const uint8_t *bytes, size_t n)
{
    int rc;

    do
        rc = nn_send(channel->socket, bytes, n, NN_DONTWAIT);
    while (rc < 0 && nn_errno() == EINTR);
    return rc < 0 ? -nn_errno() : 0;
}

static void on_writable(uv_poll_t *poll, int status, int events)
{
    struct channel *channel = poll->data;

    (void)status, (void)events;
    while (channel->queue.head < channel->queue.tail) {
        const uint8_t *packet = channel->queue.bytes + channel->queue.head;
        size_t n = (size_t)packet[0] | (size_t)packet[1] << 8;
        int rc = channel_write_one(channel, packet + 2, n);
        if (rc == -EAGAIN)
            return;
        if (rc < 0) {
            channel_fault(channel, "sending by the channel");
            return;
        }
        channel->queue.head += 2 + n;
    }
    channel->queue.head = channel->queue.tail = 0;
    uv_poll_stop(&channel->writable);
}

/* Makes room for n bytes at the tail: moves the queue to the front if that frees half, otherwise doubles it. */
static int channel_make_room(struct channel *channel, size_t n)
{
    size_t used = channel_queued(channel);
    size_t cap = channel->queue.cap ? channel->queue.cap : CHANNEL_FIRST_CAP;

    if (used + n > CHANNEL_MAX_QUEUED)
        return -ENOBUFS;
    if (channel->queue.tail + n <= channel->queue.cap)
        return 0;
    if (used > 0)
        memmove(channel->queue.bytes, channel->queue.bytes + channel->queue.head, used);
    channel->queue.head = 0;
    channel->queue.tail = used;
    while (used + n > cap / 2)
        cap *= 2;
    if (cap == channel->queue.cap)
        return 0;
    uint8_t *bytes = realloc(channel->queue.bytes, cap);
    if (!bytes)
        return -ENOMEM;
    channel->queue.bytes = bytes;
    channel->queue.cap = cap;
    return 0;
}

int channel_send(struct channel *channel, const uint8_t *bytes, size_t n)
{
    assert(n <= MESSAGE_MAX_BYTES);
    if (channel_queued(channel) == 0) {
        int rc = channel_write_one(channel, bytes, n);
        if (rc != -EAGAIN)
            return rc;
        uv_poll_start(&channel->writable, UV_READABLE, on_writable); /* readable means: the socket is writable */
    }
    int rc = channel_make_room(channel, 2 + n);
    if (rc < 0)
        return rc;
    uint8_t *packet = channel->queue.bytes + channel->queue.tail;
    packet[0] = (uint8_t)n;
    packet[1] = (uint8_t)(n >> 8);
    memcpy(packet + 2, bytes, n);
    channel->queue.tail += 2 + n;
    return 0;
}

size_t channel_queued(const struct channel *channel)
{
    return channel->queue.tail - channel->queue.head;
}

bool channel_is_connected(const struct channel *channel)
{
    return nn_get_statistic(channel->socket, NN_STAT_CURRENT_CONNECTIONS) > 0;
}

int channel_hold_thread(void)
{
    const int hold = nn_socket(AF_SP, NN_PAIR);

    return hold < 0 ? -nn_errno() : hold;
}

void channel_release_thread(int hold)
{
    while (nn_close(hold) < 0 && nn_errno() == EINTR)
        ;
}

static int descriptor(int socket, int which)
{
    int fd;
    size_t size = sizeof fd;
    int rc = nn_getsockopt(socket, NN_SOL_SOCKET, which, &fd, &size);

    assert(rc == 0); /* PAIR has both descriptors */
    return fd;
}

int channel_open(struct channel *channel, uv_loop_t *loop, const char *address, bool bind,
                 const struct channel_events *events, void *data)
{
    *channel = (struct channel){.socket = -1, .events = events, .data = data};
    assert(channel_address_fits(address));
    int socket = nn_socket(AF_SP, NN_PAIR);
    if (socket < 0)
        return -nn_errno();
    if ((bind ? nn_bind(socket, address) : nn_connect(socket, address)) < 0) {
        int rc = -nn_errno();
        nn_close(socket);
        return rc;
    }
    int rc = uv_poll_init(loop, &channel->readable, descriptor(socket, NN_RCVFD));
    if (rc == 0) {
        rc = uv_poll_init(loop, &channel->writable, descriptor(socket, NN_SNDFD));
        if (rc < 0)
            uv_close((uv_handle_t *)&channel->readable, NULL);
    }
    if (rc < 0) {
        nn_close(socket);
        return rc;
    }
    channel->readable.data = channel->writable.data = channel;
    channel->socket = socket;
    uv_poll_start(&channel->readable, UV_READABLE, on_readable);
    return 0;
}

static void channel_on_handle_closed(uv_handle_t *handle)
{
    struct channel *channel = handle->data;

    if (--channel->n_closing > 0)
        return;
    while (nn_close(channel->closing_socket) < 0 && nn_errno() == EINTR)
        ;
    free(channel->queue.bytes);
    channel->queue.bytes = NULL;
    channel->events->on_closed(channel);
}

void channel_close(struct channel *channel)
{
    assert(channel->socket >= 0);
    channel->closing_socket = channel->socket;
    channel->socket = -1;
    channel->queue.head = channel->queue.tail = 0;
    channel->n_closing = 2;
    uv_close((uv_handle_t *)&channel->readable, channel_on_handle_closed);
    uv_close((uv_handle_t *)&channel->writable, channel_on_handle_closed);
}
