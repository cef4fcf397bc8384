/* proto/net/port.h - the daemon's side of the network: a tcp port for workers with the key.
 *
 * Whoever connects meets the handshake (proto/net/handshake.h), and nothing of the daemon behind it. Until it has shown
 * the key it costs one of PORT_GUESTS places, some hundred bytes, and at most PORT_PATIENCE_MS. It may send what the
 * handshake takes, and not a byte more is read. All of this is allocated at the start.
 *
 * A connection finds a place however many hold theirs in silence: if all are taken, it gets one of the address (of IPv6
 * the first 64 bits) that has most. There those that sent nothing go first, then the oldest. Whoever loses a place so,
 * or comes when descriptors are short, is cut off without a word, and a worker tries again (proto/net/dial.h). A wrong
 * key is refused in words.
 *
 * A worker has two connections: messages, and, within the same patience, bulk. Then it is a session like any other,
 * with a proxy (proto/net/proxy.h) in between. At most PORT_SESSIONS workers have shown the key at a time; the
 * handshake tells one more that there is no room. */
#ifndef PROTO_NET_PORT_H
#define PROTO_NET_PORT_H

#include "proto/net/key.h"
#include "proto/wire/session.h"

#include <stdbool.h>

enum { PORT_GUESTS = 64, PORT_SESSIONS = 64, PORT_PATIENCE_MS = 5000 };

struct port; /* freed once it is closed and its last proxy has gone */

struct port_options {
    const char *address; /* tcp://ADDRESS:PORT; port 0: any that is free */
    const uint8_t *key;  /* KEY_BYTES; borrowed until the port is freed */
    bool plain_bulk;
    unsigned patience_ms; /* 0: PORT_PATIENCE_MS. For tests */
};

/* "tcp://..." */
bool port_is_address(const char *address);
/* Splits tcp://HOST:PORT or tcp://[IPv6]:PORT. -EDOM with a sentence: misuse. */
enum { PORT_NAME_BYTES = 256, PORT_DIGITS_BYTES = 8 };
int port_split(char name[PORT_NAME_BYTES], char digits[PORT_DIGITS_BYTES], const char *address, struct error *err);
/* What a host's name in such an address stands for, to connect to, or to listen at: then * is any of this host's. The
 * list is the caller's: freeaddrinfo. -EDOM (misuse, or no such host), -EAGAIN (it may be known later), -EMFILE and
 * other -errno (it cannot be looked up). */
struct addrinfo;
int port_resolve(struct addrinfo **out, const char *address, bool listens, struct error *err);

/* Listens; workers become sessions of the listener. Logs the address. -EDOM (no such address), -EADDRINUSE, -errno. */
int port_listen(struct port **out, uv_loop_t *loop, const struct port_options *options,
                struct session_listener *listener, struct error *err);
/* The number of the port. */
unsigned port_number(const struct port *port);
/* Accepts nobody any more, and drops who has not shown the key. Sessions stay: close each. Call before
 * session_unlisten. */
void port_unlisten(struct port *port);

#endif
