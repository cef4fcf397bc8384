/* proto/net/dial.h - the worker's side of the network: from tcp://HOST:PORT and a key to a session. */
#ifndef PROTO_NET_DIAL_H
#define PROTO_NET_DIAL_H

#include "proto/net/key.h"

#include <stdbool.h>
#include <uv.h>

struct dial_options {
    const char *address; /* tcp://HOST:PORT */
    const uint8_t *key;  /* KEY_BYTES */
    bool plain_bulk;
    uint64_t *progress; /* the worker's counter: proto/net/proxy.h */
    bool *reached;      /* set once somebody has taken a connection; may be NULL */
};

enum { DIAL_PATIENCE_MS = 15000 };

/* Connects twice and shakes hands; if others take the daemon's places (proto/net/port.h), again and again. Blocks up to
 * DIAL_PATIENCE_MS. *connection is then one end of a pair of SOCK_SEQPACKET sockets, for session_connect_by; the other
 * end's proxy is on the loop, and frees itself. -EDOM (no such host), -ECONNREFUSED (nobody listens there), -EAGAIN
 * (cut off: others took its place), -EBUSY (as many workers as the daemon takes), -EACCES (another key), -EPROTO,
 * -ETIMEDOUT, -errno. */
int dial(int *connection, uv_loop_t *loop, const struct dial_options *options, struct error *err);
/* Connects once, and closes without sending anything. 0: somebody listens there. Else errors as dial; blocks as
 * long. */
int dial_knock(const char *address, struct error *err);

#endif
