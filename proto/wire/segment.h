/* proto/wire/segment.h - shared memory between the daemon and its peers.
 *
 * Segments are sealed memfds, handed over through the door (SCM_RIGHTS). They hold numbers only: every length and name
 * is in a message. The daemon allocates all of them, so that they outlive a worker and stand in its ledger.
 *   read-only for others (weights): mapped read-write here, then sealed against future writes
 *   read-write (inbox, data): sealed against shrinking and growing only */
#ifndef PROTO_WIRE_SEGMENT_H
#define PROTO_WIRE_SEGMENT_H

#include "proto/base/error.h"

#include <stdbool.h>
#include <stddef.h>

struct segment {
    void *base;   /* page aligned */
    size_t bytes; /* as asked for; the mapping is rounded up to pages */
    int fd;       /* -1 on the side that attached it and closed its descriptor */
};

enum segment_access { SEGMENT_READ, SEGMENT_READ_WRITE };

/* A fresh segment, zero, mapped read-write here; others may map it with `others`. Pages are touched later, by those
 * that will use them. name shows up in /proc/PID/maps. Huge pages are asked for where the system gives them to shared
 * memory. bytes > 0. -ENOMEM, -errno; then *out is zeroed. */
int segment_create(struct segment *out, const char *name, size_t bytes, enum segment_access others, struct error *err);

/* Maps a segment that came through the door. Takes fd, in every case. The file must be at least bytes long and sealed
 * against shrinking (else a hostile peer could raise SIGBUS here): -EINVAL. */
int segment_attach(struct segment *out, int fd, size_t bytes, enum segment_access access, struct error *err);

void segment_close(struct segment *segment); /* safe on a zeroed one */

#endif
