/* proto/wire/door.h - packets and descriptors over one connected Unix SOCK_SEQPACKET socket, watched by a libuv loop.
 *
 * libuv's own pipes pass no memfds, so this is sendmsg and recvmsg on a uv_poll. A door carries bytes; what they mean,
 * and when a door may say what, is the session's business (proto/wire/session.h). Its end of file is how one process learns
 * of the other's death. Nothing here blocks; all of it belongs to the loop's thread. */
#ifndef PROTO_WIRE_DOOR_H
#define PROTO_WIRE_DOOR_H

#include "proto/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

enum { DOOR_MAX_FDS = 128, DOOR_MAX_QUEUED = 512 };

struct door;

struct door_events {
    /* bytes (n) are borrowed; fds (n_fds) are the callee's to close. It may close the door. */
    void (*on_packet)(struct door *door, const uint8_t *bytes, size_t n, const int *fds, unsigned n_fds);
    /* Nothing more will come: fault is NULL at the end of file, else what the peer did. Comes once; close the door. */
    void (*on_end)(struct door *door, const char *fault);
    /* The struct is the caller's again. */
    void (*on_closed)(struct door *door);
};

struct door {
    uv_poll_t poll;
    int fd; /* -1 when closed */
    bool paused, ended, shut, reset;
    struct door_packet *first; /* what the socket did not take yet, in order */
    unsigned n_queued;
    const struct door_events *events;
    void *data;
};

/* A connected socket to the door at path, closed on exec. -ENOENT (no such door), -ECONNREFUSED (nobody listens behind
 * it), -ENAMETOOLONG, -EACCES (another user's, who does not serve a group of the caller's with it), -errno. */
int door_connect(int *fd, const char *path, struct error *err);

/* Who is behind a connected socket: the one who connected, or who listened. False if the kernel does not say. */
struct door_peer {
    pid_t pid;
    uid_t uid;
    gid_t gid;
};
bool door_peer(struct door_peer *out, int fd);

/* The process behind the socket is in this group, by its own or a supplementary one. */
bool door_peer_is_member(int fd, gid_t group);

/* Starts watching fd (connected; taken in every case). -errno, then no callback comes. */
int door_open(struct door *door, uv_loop_t *loop, int fd, const struct door_events *events, void *data);

/* Sends a packet, or queues it with duplicates of fds (n_fds at most DOOR_MAX_FDS), which stay the caller's. -ENOBUFS
 * if DOOR_MAX_QUEUED wait already, -EMFILE, -ENOMEM. A peer that is gone is no error here: on_end tells. */
int door_send(struct door *door, const uint8_t *bytes, size_t n, const int *fds, unsigned n_fds);

/* Paused, packets stay unread until door_resume or the peer's end, when they are delivered before on_end. */
void door_pause(struct door *door);
void door_resume(struct door *door);

/* Delivers what has come so far, now: calls on_packet, maybe on_end. */
void door_drain(struct door *door);

/* Sends what is queued, then the end of file; packets still come in. */
void door_shutdown(struct door *door);

/* Drops what is queued and closes the socket; on_closed follows from the loop. Once. */
void door_close(struct door *door);

#endif
