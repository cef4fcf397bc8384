/* proto/session_internal.h - what the listener (proto/listen.c) and the session (proto/session.c) share. */
#ifndef PROTO_SESSION_INTERNAL_H
#define PROTO_SESSION_INTERNAL_H

#include "proto/session.h"

enum {
    SESSION_TICK_MS = 1000,
    SESSION_PINGS = 15,       /* unanswered, and the daemon gives a peer up */
    SESSION_PATIENCE = 60,    /* ticks without a ping, and a peer gives the daemon up, which may be loading a model */
    SESSION_ADDRESS_MAX = 108 /* bytes of an address, its end included: sun_path's */
};

/* The daemon's side of a connected socket (taken in every case), whose channel will be at address. -errno. */
int session_accept(struct session **out, uv_loop_t *loop, int fd, uint32_t id, const char *address,
                   const struct session_events *events, void *data);

/* For tests that cannot wait: another length of a tick, from the next one on. */
void session_set_tick(struct session *s, unsigned ms);

/* 1 if a daemon lives in directory, else 0: is its lock held? Holds nothing itself, so that it cannot be in the way. */
int session_is_live(const char *directory);

#endif
