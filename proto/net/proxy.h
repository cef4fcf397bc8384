/* proto/net/proxy.h - one remote worker: joins a session's local socket to two encrypted TCP connections.
 *
 * The session (proto/wire/session.h) knows no network. On each side it speaks through one end of a pair of
 * SOCK_SEQPACKET sockets, exactly as to a process of this host, and a proxy has the other end:
 *
 *   epsd: session - socket pair - proxy == control, bulk == proxy - socket pair - session: eps-worker
 *
 * A proxy forwards messages by the control connection, and the bytes that they stand for (proto/net/payload.h) by the
 * bulk connection. A message is handed to the session when its bytes are there, and after all messages before it. These
 * overtake others, since they change nothing that waiting messages depend on: PING and PONG, DISMISSED, PULL, LOSS,
 * FREE, GRANT, DRAIN and the daemon's BYE. So a pull does not wait behind contributions, nor a heartbeat behind
 * anything.
 *
 * ASSIGN's descriptors end at the daemon's proxy, which maps the job's segments as a worker would. The worker's proxy
 * makes segments of its own, and passes those on.
 *
 * The daemon's proxy trusts nothing that comes: a message that does not decode, that its role does not send, or that
 * names bytes that are not of its job is refused, logged once, and ends the session. */
#ifndef PROTO_NET_PROXY_H
#define PROTO_NET_PROXY_H

#include "proto/net/handshake.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

enum { PROXY_NAME_BYTES = 80 };

struct proxy_setup {
    bool is_daemon;                               /* on the daemon's side */
    char peer[PROXY_NAME_BYTES];                  /* "10.0.0.2:4711", for the log */
    int connection, control, bulk;                /* sockets; taken in every case */
    const struct handshake *on_control, *on_bulk; /* done; borrowed until proxy_open returns */
    /* Raised by __atomic for each 2 MiB received, or acknowledged by the peer: a worker's long transfer is no silence.
     * Or NULL. */
    uint64_t *progress;
    void (*on_closed)(void *data); /* the last call; may be NULL */
    void *data;
};

/* Forwards until either side ends; then frees itself and calls on_closed. -ENOMEM, -errno: no callback follows. */
int proxy_open(uv_loop_t *loop, const struct proxy_setup *setup);

#endif
