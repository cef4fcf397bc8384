/* proto/wire/segment.h - shared memory between the daemon and its peers.
 *
 * Segments are sealed memfds, passed over the connection (SCM_RIGHTS). They hold numbers only: every length and name is
 * in a message. The daemon allocates all of them, so they outlive a worker and count in its ledger.
 *   read-only for others (weights): mapped read-write here, then sealed against future writes
 *   read-write (inbox, data): sealed against shrinking and growing only */
#ifndef PROTO_WIRE_SEGMENT_H
#define PROTO_WIRE_SEGMENT_H

#include "proto/base/error.h"

#include <stdbool.h>
#include <stddef.h>

struct segment {
    void *base;   /* page aligned */
    size_t bytes; /* as requested; the mapping is rounded up to pages */
    int fd;       /* -1 on the attaching side, which closes its descriptor */
};

enum segment_access { SEGMENT_READ, SEGMENT_READ_WRITE };

/* Creates a zeroed segment, mapped read-write here; others may map it with `others`. Its users touch the pages first.
 * name appears in /proc/PID/maps. Requests huge pages if the system gives them to shared memory. bytes > 0. -ENOMEM,
 * -errno; then *out is zeroed. */
int segment_create(struct segment *out, const char *name, size_t bytes, enum segment_access others, struct error *err);

/* Maps a segment received over the connection. Always takes fd. The file must have at least `bytes` bytes and be sealed
 * against shrinking, else a hostile peer could raise SIGBUS here: -EINVAL. */
int segment_attach(struct segment *out, int fd, size_t bytes, enum segment_access access, struct error *err);

void segment_close(struct segment *segment); /* safe on a zeroed struct */

/* A sealed file in memory with these bytes (n > 0). Whoever gets it can read it without waiting: a file on a disk or a
 * network may hang for ever. Returns the descriptor, owned; or -errno with a sentence. */
int segment_seal(const char *name, const void *bytes, size_t n, struct error *err);
/* The size of a file that segment_seal made. Any other is refused unread: -EINVAL with a sentence that begins with
 * name. */
int segment_sealed_bytes(size_t *out, int fd, const char *name, struct error *err);

#endif
