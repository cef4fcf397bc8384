/* proto/net/bulk.h - ranges of memory over a connection of their own, in chunks, under a window of credit.
 *
 * Both sides know from their messages which ranges come, in which order (proto/net/payload.h), so frames hold bytes and
 * nothing else: chunks of BULK_CHUNK, the last of a range shorter. The receiver grants credit by messages as it
 * consumes; the sender never has more than BULK_WINDOW chunks that are not granted again. So what a slow peer leaves
 * behind is bounded by the window in the network and by 2 x BULK_BUFFERS chunks of memory here, and nobody else waits
 * for it.
 *
 * Chunks are sealed and opened by libuv's threads, several at once, straight from and into the ranges; they are written
 * and counted in order. An opened chunk was authenticated before any byte of it was written. One loop's thread. */
#ifndef PROTO_NET_BULK_H
#define PROTO_NET_BULK_H

#include "proto/net/cipher.h"
#include "proto/net/fifo.h"
#include "proto/net/handshake.h"

#include <uv.h>

enum {
    BULK_CHUNK = 256 << 10,
    BULK_WINDOW = 32, /* chunks, 8 MiB: more than 25 Gbit/s at a round trip of 2 ms */
    BULK_BUFFERS = 8, /* chunks in work, in each direction */
    BULK_GRANT = 8,   /* chunks granted at a time */
};

struct bulk;

struct bulk_events {
    /* The oldest expected range is there. May close the connection. */
    void (*on_received)(struct bulk *b);
    /* n chunks were consumed: tell the sender. */
    void (*on_consumed)(struct bulk *b, unsigned n);
    /* All ranges are with the socket. */
    void (*on_sent)(struct bulk *b);
    /* The connection is of no use any more. fault: NULL at the end of file. Called once; close it. */
    void (*on_end)(struct bulk *b, const char *fault);
    void (*on_closed)(struct bulk *b);
};

struct bulk_slot {
    uv_work_t work;
    uv_write_t write;
    struct bulk *bulk;
    uint8_t *frame; /* (CIPHER_HEADER_BYTES + BULK_CHUNK + CIPHER_TAG_BYTES) */
    uint8_t *memory;
    size_t n;
    uint64_t number;
    int result;
    bool ready; /* sealed or opened */
};

/* Slots in use are first .. first+n-1, in the order of their chunks, modulo BULK_BUFFERS. */
struct bulk_ring {
    struct bulk_slot slots[BULK_BUFFERS];
    unsigned first, n, n_written; /* n_written: of the oldest, given to the socket */
    struct fifo ranges;           /* struct bulk_range */
    size_t at, of;                /* bytes of the range number `at` (from the oldest) that are begun */
};

struct bulk {
    uv_tcp_t tcp;
    struct cipher send, receive;
    uint64_t n_sent, n_received; /* chunks begun */
    struct bulk_ring out, in;
    unsigned credit;   /* chunks that may be sent */
    unsigned consumed; /* chunks not granted again yet */
    size_t n_in;       /* bytes read of the present frame */
    size_t n_done;     /* bytes of the oldest expected range that are opened */
    unsigned n_working;
    bool reading, ended, closing, tcp_closed;
    uint8_t *frames; /* owned: memory of all slots */
    const struct bulk_events *events;
    void *data;
};

/* As control_open; the flag HANDSHAKE_PLAIN of the handshake means: not encrypted. -ENOMEM. */
int bulk_open(struct bulk *b, uv_loop_t *loop, int fd, const struct handshake *h, const struct bulk_events *events,
              void *data);
/* Appends a range (n > 0), which must stay as it is until the peer has said that it arrived. -ENOBUFS. */
int bulk_send(struct bulk *b, const void *from, size_t n);
/* Expects a range (n > 0), which is the connection's until on_received. -ENOBUFS. */
int bulk_expect(struct bulk *b, void *to, size_t n);
/* The receiver has consumed n chunks. False: more than were sent. */
bool bulk_grant(struct bulk *b, unsigned n);
/* True if neither direction has a range under way. */
bool bulk_is_idle(const struct bulk *b);
/* Nothing more is sent, received or reported, except on_closed; the connection stays open. */
void bulk_stop(struct bulk *b);
/* on_closed follows from the loop, once no thread works on a range. A second call does nothing. */
void bulk_close(struct bulk *b);

#endif
