/* proto/net/control.h - small frames over a connection whose handshake is done: the messages of a remote session.
 *
 * Everything is encrypted, also with --plain-bulk. A frame that does not open, or is too long, ends the connection.
 * What the socket does not take waits, up to FIFO_MOST. One loop's thread; nothing blocks. */
#ifndef PROTO_NET_CONTROL_H
#define PROTO_NET_CONTROL_H

#include "proto/net/cipher.h"
#include "proto/net/fifo.h"
#include "proto/net/handshake.h"
#include "proto/wire/message.h"

#include <uv.h>

enum { CONTROL_MAX_BYTES = 1 + MESSAGE_MAX_BYTES }; /* payload of a frame */

struct control;

struct control_events {
    /* payload is borrowed. May close the connection. */
    void (*on_frame)(struct control *c, const uint8_t *payload, size_t n);
    /* Nothing more will come. fault: NULL at the end of file, else what is wrong. Called once; close the connection. */
    void (*on_end)(struct control *c, const char *fault);
    /* The struct belongs to the caller again. */
    void (*on_closed)(struct control *c);
};

struct control {
    uv_tcp_t tcp;
    struct cipher send, receive;
    uint64_t n_sent, n_received; /* frames */
    uint8_t in[CIPHER_HEADER_BYTES + CONTROL_MAX_BYTES + CIPHER_TAG_BYTES];
    size_t n_in;
    struct fifo out, writing; /* writing belongs to libuv while it is not empty */
    uv_write_t write;
    uv_shutdown_t shutdown;
    bool ended, finishing, closing, shut;
    const struct control_events *events;
    void *data;
};

/* Takes fd in every case, a connected socket with nothing left to read of its handshake h. On -errno no callback
 * follows. */
int control_open(struct control *c, uv_loop_t *loop, int fd, const struct handshake *h,
                 const struct control_events *events, void *data);
/* Sends a frame of two pieces, the second may be empty. -ENOBUFS: the peer does not read. */
int control_send(struct control *c, uint8_t kind, const uint8_t *bytes, size_t n);
/* Sends what waits, then the end of file. */
void control_finish(struct control *c);
/* on_closed follows from the loop. A second call does nothing. */
void control_close(struct control *c);

#endif
