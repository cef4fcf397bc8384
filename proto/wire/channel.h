/* proto/wire/channel.h - packets over a nanomsg PAIR at an ipc address used once, watched by a libuv loop.
 *
 * nanomsg's rules, measured: its two descriptors are level-triggered and are only polled, never read; every call is
 * NN_DONTWAIT, on the loop's thread; the one for sending is watched only while something waits to be sent, else the
 * loop spins; nn_close comes after the polls are closed. nanomsg says nothing of a peer that is gone (the door does)
 * and its reconnection can livelock, so that a channel that does not work is closed, and a new one opened at another
 * address. No allocation of ours per packet; the queue grows while the peer does not read. */
#ifndef PROTO_WIRE_CHANNEL_H
#define PROTO_WIRE_CHANNEL_H

#include "proto/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

enum { CHANNEL_MAX_QUEUED = 16 << 20 }; /* bytes; credits keep a live peer far below it */

struct channel;

struct channel_events {
    /* bytes are borrowed. n as it was sent: past MESSAGE_MAX_BYTES, only that many bytes are there. It may close the
     * channel. */
    void (*on_packet)(struct channel *channel, const uint8_t *bytes, size_t n);
    /* nanomsg failed: close the channel. */
    void (*on_fault)(struct channel *channel, const char *fault);
    /* The struct is the caller's again. */
    void (*on_closed)(struct channel *channel);
};

struct channel {
    uv_poll_t readable, writable;
    int socket;         /* nanomsg's; -1 when closed */
    int closing_socket; /* what nn_close gets once the polls are closed */
    unsigned n_closing; /* polls that libuv still holds */
    struct {
        uint8_t *bytes; /* packets, each behind its length, u16 */
        size_t head, tail, cap;
    } queue;
    const struct channel_events *events;
    void *data;
};

/* "ipc://PATH" and its path are short enough and absolute? nanomsg aborts the process on longer ones. */
bool channel_address_fits(const char *address);

/* A socket that is used for nothing: nanomsg has its thread as long as there is one. -EMFILE, -ENOMEM. */
int channel_hold(void);
void channel_let_go(int hold);

/* Binds or connects to an address that fits. -EMFILE, -EADDRINUSE, -errno, then no callback comes. Until a peer is
 * there, packets wait in the queue. */
int channel_open(struct channel *channel, uv_loop_t *loop, const char *address, bool bind,
                 const struct channel_events *events, void *data);

/* Sends a packet (n at most MESSAGE_MAX_BYTES), or queues it. -ENOBUFS past CHANNEL_MAX_QUEUED, -ENOMEM, -errno. */
int channel_send(struct channel *channel, const uint8_t *bytes, size_t n);
size_t channel_queued(const struct channel *channel); /* bytes that nanomsg does not have yet */

/* Someone is at the other end, as far as nanomsg knows: it learns of an end only once all before it was received. */
bool channel_is_connected(const struct channel *channel);

/* Delivers what nanomsg has received so far, now. It fetches ahead one message only, so that more may follow at once.
 * */
void channel_drain(struct channel *channel);

/* Drops what is queued; on_closed follows from the loop. Once. What nanomsg has not written yet is lost. */
void channel_close(struct channel *channel);

#endif
