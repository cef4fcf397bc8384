/* A slot is sealed, written and dropped, or read, opened and dropped. Threads end in any order, and only set `ready`;
 * the pumps act on the oldest slots alone, so chunks leave and arrive in order. A range leaves `out` when its last
 * chunk is begun, as the slots know their bytes, but stays in `in` until its last chunk is opened.
 *
 * Any callback may close the connection. After each, `ended` and `closing` are read again before anything else is; the
 * struct is the caller's once the socket is closed and n_working is 0, as threads write to the ranges until then.
 * Reading stops while no range is expected, so the end of file may be seen late: the control connection sees it.
 *
 * Encryption is what takes time, so chunks are sealed and opened on libuv's threads, several at once. Memory is that of
 * the job's segments: a chunk is sealed from there and opened into there, and nothing else is copied. */
#include "proto/net/bulk.h"

#include "proto/wire/wire.h"

#include <assert.h>
#include <unistd.h>

enum {
    FRAME_BYTES = CIPHER_HEADER_BYTES + BULK_CHUNK + CIPHER_TAG_BYTES,
    KEEPALIVE_S = 60, /* firewalls forget a connection that was idle for minutes, as between jobs */
};

struct bulk_range {
    uint8_t *memory;
    size_t n;
};

/* Nothing more is begun. What threads have begun ends by itself. */
void bulk_stop(struct bulk *b)
{
    b->ended = true;
    b->reading = false;
    if (!b->closing)
        uv_read_stop((uv_stream_t *)&b->tcp);
}

static void bulk_end(struct bulk *b, const char *fault)
{
    if (b->ended || b->closing)
        return;
    bulk_stop(b);
    b->events->on_end(b, fault);
}

/* ---- ranges ----------------------------------------------------------------------------------------------------- */

static int bulk_add_range(struct bulk_ring *ring, void *memory, size_t n)
{
    const struct bulk_range range = {memory, n};
    uint8_t *to = fifo_add(&ring->ranges, sizeof range);

    assert(n > 0);
    if (!to)
        return -ENOBUFS;
    memcpy(to, &range, sizeof range);
    return 0;
}

static struct bulk_range range_at(const struct bulk_ring *ring, size_t i)
{
    struct bulk_range range;

    memcpy(&range, fifo_at(&ring->ranges, i * sizeof range), sizeof range);
    return range;
}

static size_t count_ranges(const struct bulk_ring *ring)
{
    return fifo_n(&ring->ranges) / sizeof(struct bulk_range);
}

/* The size of the next chunk to begin; 0: there is none. */
static size_t next_chunk(const struct bulk_ring *ring)
{
    if (ring->at == count_ranges(ring))
        return 0;
    const size_t left = range_at(ring, ring->at).n - ring->of;
    return left < BULK_CHUNK ? left : BULK_CHUNK;
}

/* Begins that chunk in the next slot, which must be free. The number is part of what the key seals, so a chunk
 * cannot be repeated or moved. */
static struct bulk_slot *begin_chunk(struct bulk_ring *ring, uint64_t number)
{
    struct bulk_slot *slot = &ring->slots[(ring->first + ring->n++) % BULK_BUFFERS];
    const struct bulk_range range = range_at(ring, ring->at);

    assert(ring->n <= BULK_BUFFERS);
    slot->n = next_chunk(ring);
    slot->memory = range.memory + ring->of;
    slot->number = number;
    slot->ready = false;
    ring->of += slot->n;
    if (ring->of == range.n) {
        ring->at++;
        ring->of = 0;
    }
    return slot;
}

static struct bulk_slot *drop_slot(struct bulk_ring *ring)
{
    struct bulk_slot *slot = &ring->slots[ring->first];

    ring->first = (ring->first + 1) % BULK_BUFFERS;
    ring->n--;
    return slot;
}

/* ---- life ------------------------------------------------------------------------------------------------------- */

/* Wiped here, since threads may use the keys until the last one has ended. */
static void finish_close(struct bulk *b)
{
    if (!b->tcp_closed || b->n_working > 0)
        return;
    fifo_free(&b->out.ranges);
    fifo_free(&b->in.ranges);
    free(b->frames);
    sodium_memzero(&b->send, sizeof b->send);
    sodium_memzero(&b->receive, sizeof b->receive);
    b->events->on_closed(b);
}

static void bulk_on_tcp_closed(uv_handle_t *handle)
{
    struct bulk *b = handle->data;

    b->tcp_closed = true;
    finish_close(b);
}

void bulk_close(struct bulk *b)
{
    if (b->closing)
        return;
    b->closing = true;
    uv_close((uv_handle_t *)&b->tcp, bulk_on_tcp_closed);
}

/* A thread is done with a chunk. False: the connection is closing, and may be the caller's again. Read before the
 * count falls, since on_closed may free it all. */
static bool end_work(struct bulk *b, struct bulk_slot *slot)
{
    const bool closing = b->closing;

    b->n_working--;
    slot->ready = true;
    if (closing)
        finish_close(b);
    return !closing;
}

static void start_work(struct bulk *b, struct bulk_slot *slot, uv_work_cb work, uv_after_work_cb after)
{
    slot->work.data = slot;
    b->n_working++;
    uv_queue_work(b->tcp.loop, &slot->work, work, after); /* fails without a callback only */
}

/* ---- sending ---------------------------------------------------------------------------------------------------- */

static void pump_out(struct bulk *b);

static void bulk_on_written(uv_write_t *request, int status)
{
    struct bulk_slot *slot = request->data;
    struct bulk *b = slot->bulk;

    if (b->closing)
        return;
    assert(slot == &b->out.slots[b->out.first] && b->out.n_written > 0);
    drop_slot(&b->out);
    b->out.n_written--;
    if (status < 0) {
        bulk_end(b, uv_strerror(status));
        return;
    }
    pump_out(b);
    if (!b->ended && b->out.n == 0 && next_chunk(&b->out) == 0)
        b->events->on_sent(b);
}

static void bulk_seal(uv_work_t *work)
{
    struct bulk_slot *slot = work->data;

    cipher_seal(&slot->bulk->send, slot->frame, slot->memory, slot->n, slot->number);
}

static void on_sealed(uv_work_t *work, int status)
{
    struct bulk_slot *slot = work->data;

    (void)status;
    if (end_work(slot->bulk, slot))
        pump_out(slot->bulk);
}

/* Forgets the ranges whose last chunk is begun: its slot knows where the bytes are. */
static void drop_begun(struct bulk_ring *ring)
{
    fifo_drop(&ring->ranges, ring->at * sizeof(struct bulk_range));
    ring->at = 0;
}

/* Writes what is sealed, in order, then seals more, as far as there are slots and the peer has granted credit. */
static void pump_out(struct bulk *b)
{
    struct bulk_ring *out = &b->out;

    while (!b->ended && out->n_written < out->n) {
        struct bulk_slot *slot = &out->slots[(out->first + out->n_written) % BULK_BUFFERS];
        const uv_buf_t buffer =
            uv_buf_init((char *)slot->frame, (unsigned)(CIPHER_HEADER_BYTES + slot->n + CIPHER_TAG_BYTES));
        if (!slot->ready)
            break;
        slot->write.data = slot;
        out->n_written++;
        const int rc = uv_write(&slot->write, (uv_stream_t *)&b->tcp, &buffer, 1, bulk_on_written);
        if (rc < 0)
            bulk_end(b, uv_strerror(rc));
    }
    while (!b->ended && out->n < BULK_BUFFERS && b->credit > 0 && next_chunk(out) > 0) {
        b->credit--;
        start_work(b, begin_chunk(out, b->n_sent++), bulk_seal, on_sealed);
    }
    drop_begun(out);
}

int bulk_send(struct bulk *b, const void *from, size_t n)
{
    const int rc = b->ended || b->closing ? 0 : bulk_add_range(&b->out, (void *)(uintptr_t)from, n); /* only read */

    if (!rc && !b->ended && !b->closing)
        pump_out(b);
    return rc;
}

/* A peer that grants more than the window would let this side send without bound. */
bool bulk_grant(struct bulk *b, unsigned n)
{
    if (n > BULK_WINDOW - b->credit)
        return false;
    b->credit += n;
    if (!b->ended && !b->closing)
        pump_out(b);
    return true;
}

/* ---- receiving -------------------------------------------------------------------------------------------------- */

static void read_on(struct bulk *b);

static void open_chunk(uv_work_t *work)
{
    struct bulk_slot *slot = work->data;

    slot->result =
        cipher_open(&slot->bulk->receive, slot->memory, slot->frame + CIPHER_HEADER_BYTES, slot->n, slot->number);
}

/* Credit is returned in portions: a frame for each chunk would double the messages. */
static void consume(struct bulk *b)
{
    if (++b->consumed < BULK_GRANT)
        return;
    b->consumed = 0;
    b->events->on_consumed(b, BULK_GRANT);
}

/* The oldest chunks that are opened, in order. */
static void pump_in(struct bulk *b)
{
    struct bulk_ring *in = &b->in;

    while (!b->ended && !b->closing && in->n > 0 && in->slots[in->first].ready) {
        const struct bulk_slot *slot = drop_slot(in);
        if (slot->result < 0) {
            bulk_end(b, "sent a chunk that its key did not seal, or not at this place");
            return;
        }
        consume(b);
        b->n_done += slot->n;
        if (b->ended || b->closing || b->n_done < range_at(in, 0).n)
            continue;
        b->n_done = 0;
        in->at--;
        fifo_drop(&in->ranges, sizeof(struct bulk_range));
        b->events->on_received(b);
    }
    if (!b->ended && !b->closing)
        read_on(b);
}

static void on_opened(uv_work_t *work, int status)
{
    struct bulk_slot *slot = work->data;

    (void)status;
    if (end_work(slot->bulk, slot))
        pump_in(slot->bulk);
}

/* The slot that the next frame is read into. */
static struct bulk_slot *incoming(struct bulk *b)
{
    return &b->in.slots[(b->in.first + b->in.n) % BULK_BUFFERS];
}

/* Bytes of the present frame that must be there before it goes on: its header, then all of it. */
static size_t frame_bytes(const struct bulk *b)
{
    return b->n_in < CIPHER_HEADER_BYTES ? CIPHER_HEADER_BYTES
                                         : CIPHER_HEADER_BYTES + next_chunk(&b->in) + CIPHER_TAG_BYTES;
}

static void bulk_on_room(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer)
{
    struct bulk *b = handle->data;

    (void)suggested;
    *buffer = uv_buf_init((char *)incoming(b)->frame + b->n_in, (unsigned)(frame_bytes(b) - b->n_in));
}

/* A frame's bytes have come: n_in stands at its header's end, or at its end. The length is known from the message,
 * so what the frame says is only compared. */
static void take_bytes(struct bulk *b)
{
    if (b->n_in == CIPHER_HEADER_BYTES) {
        if (wire_get(incoming(b)->frame, CIPHER_HEADER_BYTES) != next_chunk(&b->in))
            bulk_end(b, "sent a chunk of another length than its message said");
        return;
    }
    b->n_in = 0;
    start_work(b, begin_chunk(&b->in, b->n_received++), open_chunk, on_opened);
    read_on(b);
}

static void bulk_on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buffer)
{
    struct bulk *b = stream->data;

    (void)buffer;
    if (n < 0) {
        bulk_end(b, b->n_in > 0 || count_ranges(&b->in) > 0 ? "was cut off within a transfer"
                    : n == UV_EOF                           ? NULL
                                                            : uv_strerror((int)n));
    } else if (n > 0) {
        const size_t wanted = frame_bytes(b);
        b->n_in += (size_t)n;
        if (b->n_in == wanted)
            take_bytes(b);
    }
}

/* Reads while a range is expected and there is a slot for its next chunk; else the network holds what the peer
 * sends. */
static void read_on(struct bulk *b)
{
    const bool wanted = b->in.n < BULK_BUFFERS && next_chunk(&b->in) > 0;

    if (wanted == b->reading || b->ended || b->closing)
        return;
    b->reading = wanted;
    if (wanted)
        uv_read_start((uv_stream_t *)&b->tcp, bulk_on_room, bulk_on_read);
    else
        uv_read_stop((uv_stream_t *)&b->tcp);
}

int bulk_expect(struct bulk *b, void *to, size_t n)
{
    const int rc = b->ended || b->closing ? 0 : bulk_add_range(&b->in, to, n);

    if (!rc)
        read_on(b);
    return rc;
}

/* No thread works on the job's memory, and no range of it is still to be sent or filled. What is sealed lies in frames
 * of our own. */
bool bulk_is_idle(const struct bulk *b)
{
    return b->n_working == 0 && b->in.n == 0 && count_ranges(&b->in) == 0 && count_ranges(&b->out) == 0;
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

static void set_up(struct bulk *b, struct bulk_ring *ring, uint8_t *frames)
{
    for (unsigned i = 0; i < BULK_BUFFERS; i++) {
        ring->slots[i].bulk = b;
        ring->slots[i].frame = frames + (size_t)i * FRAME_BYTES;
    }
}

/* A socket that is broken already reports its end like one that breaks later, so the caller has one way to hear of
 * it. */
int bulk_open(struct bulk *b, uv_loop_t *loop, int fd, const struct handshake *h, const struct bulk_events *events,
              void *data)
{
    const enum cipher_kind kind = h->flags & HANDSHAKE_PLAIN ? CIPHER_PLAIN
                                  : h->flags & HANDSHAKE_AES ? CIPHER_AES
                                                             : CIPHER_CHACHA;
    int rc;

    memset(b, 0, sizeof *b);
    b->events = events;
    b->data = data;
    b->credit = BULK_WINDOW;
    b->frames = malloc((size_t)2 * BULK_BUFFERS * FRAME_BYTES);
    rc = b->frames ? uv_tcp_init(loop, &b->tcp) : -ENOMEM;
    if (rc < 0) {
        free(b->frames);
        close(fd);
        return rc;
    }
    cipher_init(&b->send, kind, h->send);
    cipher_init(&b->receive, kind, h->receive);
    set_up(b, &b->out, b->frames);
    set_up(b, &b->in, b->frames + (size_t)BULK_BUFFERS * FRAME_BYTES);
    b->tcp.data = b;
    rc = uv_tcp_open(&b->tcp, fd);
    if (rc < 0)
        close(fd);
    if (!rc)
        rc = uv_tcp_nodelay(&b->tcp, 1);
    if (!rc)
        rc = uv_tcp_keepalive(&b->tcp, 1, KEEPALIVE_S);
    if (rc < 0)
        bulk_end(b, uv_strerror(rc));
    return 0;
}
