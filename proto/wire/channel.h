/* proto/wire/channel.h - packets over a nanomsg PAIR at an ipc address used once, watched by a libuv loop.
 *
 * nanomsg's rules, as measured: its two descriptors are level-triggered and are polled, never read. Every call is
 * NN_DONTWAIT, on the loop's thread. The descriptor for sending is watched only while something waits to be sent;
 * otherwise the loop spins. nn_close follows after the polls are closed. nanomsg does not report a peer's end (the
 * session's connection does), and its reconnection can livelock; so a broken channel is closed, and a new one opened at
 * another address.
 * Packets need no allocation here; the queue grows while the peer does not read. */
#ifndef PROTO_WIRE_CHANNEL_H
#define PROTO_WIRE_CHANNEL_H

#include "proto/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

enum { CHANNEL_MAX_QUEUED = 16 << 20 }; /* bytes; credits keep a live peer far below */

struct channel;

struct channel_events {
    /* bytes are borrowed. n is the sent length: beyond MESSAGE_MAX_BYTES, only that many bytes are present. May close
     * the channel. */
    void (*on_packet)(struct channel *channel, const uint8_t *bytes, size_t n);
    /* nanomsg failed: close the channel. */
    void (*on_fault)(struct channel *channel, const char *fault);
    /* The struct belongs to the caller again. */
    void (*on_closed)(struct channel *channel);
};

struct channel {
    uv_poll_t readable, writable;
    int socket;         /* nanomsg's; -1 when closed */
    int closing_socket; /* for nn_close, once the polls are closed */
    unsigned n_closing; /* polls not yet returned by libuv */
    struct {
        uint8_t *bytes; /* packets, each preceded by its length, u16 */
        size_t head, tail, cap;
    } queue;
    const struct channel_events *events;
    void *data;
};

/* True if "ipc://PATH" is absolute and short enough: nanomsg aborts the process on longer paths. */
bool channel_address_fits(const char *address);

/* An unused socket; nanomsg keeps its thread while one exists. -EMFILE, -ENOMEM. */
int channel_hold_thread(void);
void channel_release_thread(int hold);

/* Binds or connects to an address that fits. On -EMFILE, -EADDRINUSE or -errno no callback follows. Packets wait in the
 * queue until there is a peer. */
int channel_open(struct channel *channel, uv_loop_t *loop, const char *address, bool bind,
                 const struct channel_events *events, void *data);

/* Sends a packet (n at most MESSAGE_MAX_BYTES), or queues it. -ENOBUFS past CHANNEL_MAX_QUEUED, -ENOMEM, -errno. */
int channel_send(struct channel *channel, const uint8_t *bytes, size_t n);
size_t channel_queued(const struct channel *channel); /* bytes not yet taken by nanomsg */

/* True if nanomsg knows a peer: it learns of an end only after everything before it was received. */
bool channel_is_connected(const struct channel *channel);

/* Delivers everything that nanomsg has received so far. It fetches one message ahead, so more may follow. */
void channel_drain(struct channel *channel);

/* Drops what is queued, including what nanomsg has not written; on_closed follows from the loop. Call once. */
void channel_close(struct channel *channel);

#endif
