/* The buffer has room for the largest frame. So a frame that is not whole yet always leaves room to read on, and whole
 * frames never stay in it. A frame is sealed when it is queued, as its number is its place. What libuv writes must not
 * move, but fifo_add moves what waits: hence two queues, which are exchanged when the first is written.
 *
 * on_frame may close the connection, which leaves the rest of the buffer unread. */
#include "proto/net/control.h"

#include "proto/wire/wire.h"

#include <assert.h>
#include <unistd.h>

static void control_end(struct control *c, const char *fault)
{
    if (c->ended || c->closing)
        return;
    c->ended = true;
    uv_read_stop((uv_stream_t *)&c->tcp);
    c->events->on_end(c, fault);
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

/* Opens the frames that are whole. */
static void take_frames(struct control *c)
{
    uint8_t payload[CONTROL_MAX_BYTES];
    size_t at = 0;

    while (!c->ended && !c->closing && c->n_in - at >= CIPHER_HEADER_BYTES) {
        const size_t n = wire_get(c->in + at, CIPHER_HEADER_BYTES), all = CIPHER_HEADER_BYTES + n + CIPHER_TAG_BYTES;
        if (n < 1 || n > CONTROL_MAX_BYTES) {
            control_end(c, "sent a frame of an impossible length");
            return;
        }
        if (c->n_in - at < all)
            break;
        if (cipher_open(&c->receive, payload, c->in + at + CIPHER_HEADER_BYTES, n, c->n_received++) < 0) {
            control_end(c, "sent a frame that its key did not seal, or not at this place");
            return;
        }
        at += all;
        c->events->on_frame(c, payload, n);
    }
    memmove(c->in, c->in + at, c->n_in - at);
    c->n_in -= at;
}

static void control_on_room(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer)
{
    struct control *c = handle->data;

    (void)suggested;
    *buffer = uv_buf_init((char *)c->in + c->n_in, (unsigned)(sizeof c->in - c->n_in));
}

static void control_on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buffer)
{
    struct control *c = stream->data;

    (void)buffer;
    if (n > 0) {
        c->n_in += (size_t)n;
        take_frames(c);
    } else if (n < 0) {
        control_end(c, c->n_in > 0 ? "was cut off within a frame" : n == UV_EOF ? NULL : uv_strerror((int)n));
    }
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

static void control_pump(struct control *c);

static void on_shut(uv_shutdown_t *request, int status)
{
    (void)request, (void)status;
}

static void control_on_written(uv_write_t *request, int status)
{
    struct control *c = request->data;

    fifo_drop(&c->writing, fifo_n(&c->writing));
    if (c->closing)
        return;
    if (status < 0)
        control_end(c, uv_strerror(status));
    else
        control_pump(c);
}

static void control_pump(struct control *c)
{
    if (fifo_n(&c->writing) > 0 || c->closing)
        return;
    if (fifo_n(&c->out) > 0) {
        const struct fifo empty = c->writing;
        c->writing = c->out;
        c->out = empty;
        const uv_buf_t buffer = uv_buf_init((char *)fifo_at(&c->writing, 0), (unsigned)fifo_n(&c->writing));
        const int rc = uv_write(&c->write, (uv_stream_t *)&c->tcp, &buffer, 1, control_on_written);
        if (rc < 0) {
            fifo_drop(&c->writing, fifo_n(&c->writing));
            control_end(c, uv_strerror(rc));
        }
    } else if (c->finishing && !c->shut) {
        c->shut = uv_shutdown(&c->shutdown, (uv_stream_t *)&c->tcp, on_shut) == 0;
    }
}

int control_send(struct control *c, uint8_t kind, const uint8_t *bytes, size_t n)
{
    uint8_t payload[CONTROL_MAX_BYTES];

    assert(1 + n <= sizeof payload);
    if (c->finishing || c->closing || c->ended)
        return 0;
    uint8_t *frame = fifo_add(&c->out, CIPHER_HEADER_BYTES + 1 + n + CIPHER_TAG_BYTES);
    if (!frame)
        return -ENOBUFS;
    payload[0] = kind;
    memcpy(payload + 1, bytes, n);
    cipher_seal(&c->send, frame, payload, 1 + n, c->n_sent++);
    control_pump(c);
    return 0;
}

void control_finish(struct control *c)
{
    c->finishing = true;
    control_pump(c);
}

/* ---- life ------------------------------------------------------------------------------------------------------- */

int control_open(struct control *c, uv_loop_t *loop, int fd, const struct handshake *h,
                 const struct control_events *events, void *data)
{
    const enum cipher_kind kind = h->flags & HANDSHAKE_AES ? CIPHER_AES : CIPHER_CHACHA;
    int rc;

    memset(c, 0, sizeof *c);
    c->events = events;
    c->data = data;
    cipher_init(&c->send, kind, h->send);
    cipher_init(&c->receive, kind, h->receive);
    rc = uv_tcp_init(loop, &c->tcp);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    c->tcp.data = c->write.data = c;
    rc = uv_tcp_open(&c->tcp, fd);
    if (rc < 0)
        close(fd);
    if (!rc)
        rc = uv_tcp_nodelay(&c->tcp, 1);
    if (!rc)
        rc = uv_read_start((uv_stream_t *)&c->tcp, control_on_room, control_on_read);
    if (rc < 0)
        control_end(c, uv_strerror(rc));
    return 0;
}

static void control_on_tcp_closed(uv_handle_t *handle)
{
    struct control *c = handle->data;

    fifo_free(&c->out);
    fifo_free(&c->writing);
    sodium_memzero(&c->send, sizeof c->send);
    sodium_memzero(&c->receive, sizeof c->receive);
    c->events->on_closed(c);
}

void control_close(struct control *c)
{
    if (c->closing)
        return;
    c->closing = true;
    uv_close((uv_handle_t *)&c->tcp, control_on_tcp_closed);
}
