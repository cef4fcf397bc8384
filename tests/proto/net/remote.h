/* tests/proto/net/remote.h - a daemon's tcp port on a stage, and a worker's side of it by hand. One of them at a
 * time. */
#ifndef TESTS_PROTO_NET_REMOTE_H
#define TESTS_PROTO_NET_REMOTE_H

#include "proto/net/control.h"
#include "proto/net/port.h"
#include "tests/kit/inprocess/stage.h"

struct secured {
    int fd;
    struct handshake h;
    struct cipher send, receive;
    uint64_t n_sent;
};

struct remote {
    struct secured control, bulk;
};

extern struct stage remote_stage;
extern struct side remote_epsd, remote_later; /* the daemon's first session, and its next */
extern struct side remote_worker;             /* the peer of the first */
extern struct port *remote_port;
extern const uint8_t remote_key[KEY_BYTES], remote_other_key[KEY_BYTES];

/* ---- the daemon's ---- */
const char *remote_log_path(void);
void remote_listen_with(const struct port_options *options);
/* A fixture; the log goes to a file. */
void remote_begin(void);
void remote_end(void);

/* ---- a worker's, by hand ---- */
/* Connects from a loopback address, 127.0.0.`from`. */
int remote_connect_from(unsigned from);
void remote_say(int fd, const void *bytes, size_t n);
/* Runs the loop until n bytes have come. False: the daemon closed. */
bool remote_hear(int fd, uint8_t *bytes, size_t n);
bool remote_is_closed(int fd);
/* Until the daemon has closed it; it says nothing before. */
void remote_expect_end(int fd);
/* False: turned away. */
bool remote_shake(struct secured *c, enum handshake_channel channel, uint64_t session, const uint8_t *with);
/* Both connections, with the key. */
void remote_join(struct remote *r);
enum { REMOTE_FRAME_BYTES = CIPHER_HEADER_BYTES + CONTROL_MAX_BYTES + CIPHER_TAG_BYTES };
/* A frame with a message of the control connection; its size. */
size_t remote_seal_message(uint8_t frame[REMOTE_FRAME_BYTES], struct secured *c, const struct message *m);
void remote_send_message(struct secured *c, const struct message *m);
/* Attaches by hand. */
void remote_attach(struct remote *r);
void remote_leave(struct remote *r);

#endif
