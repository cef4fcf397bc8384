/* proto/wire/connection.h - packets and descriptors over one connected Unix SOCK_SEQPACKET socket, watched by a libuv
 * loop.
 *
 * libuv's pipes cannot pass memfds, so this uses sendmsg and recvmsg on a uv_poll. A connection carries bytes; the
 * session (proto/wire/session.h) gives them meaning. Its end of file tells one process of the other's death. Nothing
 * here blocks; everything belongs to the loop's thread. */
#ifndef PROTO_WIRE_CONNECTION_H
#define PROTO_WIRE_CONNECTION_H

#include "proto/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

enum { CONNECTION_MAX_FDS = 128, CONNECTION_MAX_QUEUED = 512 };

struct connection;

struct connection_events {
    /* bytes (n) are borrowed; the callee closes fds (n_fds). May close the connection. */
    void (*on_packet)(struct connection *connection, const uint8_t *bytes, size_t n, const int *fds, unsigned n_fds);
    /* Nothing more will come. fault: NULL at the end of file, else the peer's fault. Called once; close the
     * connection. */
    void (*on_end)(struct connection *connection, const char *fault);
    /* The struct belongs to the caller again. */
    void (*on_closed)(struct connection *connection);
};

struct connection {
    uv_poll_t poll;
    int fd; /* -1 when closed */
    bool paused, held, ended, shut, reset;
    bool takes_no_fds; /* set after connection_open: descriptors that come are not taken, and are the peer's fault */
    struct connection_packet *first; /* queue of packets that the socket has not taken yet */
    unsigned n_queued;
    const struct connection_events *events;
    void *data;
};

/* Keeps the peer from sending descriptors, where the kernel can (Linux 6.16). On a listening socket it holds for every
 * socket accepted there. On older kernels takes_no_fds alone has that effect: descriptors are dropped on arrival. */
void connection_forbid_fds(int fd);

/* Connects to the listening socket at path, close-on-exec. -ENOENT (no such socket), -ECONNREFUSED (nobody listens),
 * -ENAMETOOLONG, -EACCES (it belongs to another user and serves no group of the caller's), -errno. */
int connection_connect(int *fd, const char *path, struct error *err);

/* The process behind a connected socket: the one that connected, or that listened. False: unknown. */
struct connection_peer {
    pid_t pid;
    uid_t uid;
    gid_t gid;
};
bool connection_peer(struct connection_peer *out, int fd);

/* True if the process behind the socket is in this group, by its own or a supplementary one. */
bool connection_peer_is_member(int fd, gid_t group);

/* Starts watching fd (connected; always taken). On -errno no callback follows. */
int connection_open(struct connection *connection, uv_loop_t *loop, int fd, const struct connection_events *events,
                    void *data);

/* Sends a packet, or queues it with duplicates of fds (n_fds at most CONNECTION_MAX_FDS), which stay the caller's.
 * -ENOBUFS if CONNECTION_MAX_QUEUED packets wait, -EMFILE, -ENOMEM. A peer that is gone is no error here: on_end
 * reports it. */
int connection_send(struct connection *connection, const uint8_t *bytes, size_t n, const int *fds, unsigned n_fds);

/* While paused, packets stay unread until connection_resume, or until the peer's end: then they precede on_end. */
void connection_pause(struct connection *connection);
void connection_resume(struct connection *connection);

/* While held, packets stay unread until connection_release; at the peer's end they are dropped. */
void connection_hold(struct connection *connection);
void connection_release(struct connection *connection);

/* Delivers everything received so far: calls on_packet, maybe on_end. */
void connection_drain(struct connection *connection);

/* Sends what is queued, then the end of file; still receives packets. */
void connection_shutdown(struct connection *connection);

/* Drops what is queued and closes the socket; on_closed follows from the loop. Call once. */
void connection_close(struct connection *connection);

#endif
