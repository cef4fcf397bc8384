/* proto/net/payload.h - the bytes of a job's shared memory that a message stands for.
 *
 * On one host a message says where bytes are. To another host the bytes must travel, and both sides derive from the
 * same ASSIGN which ones:
 *   to the worker    ASSIGN       config.json
 *                    SHARE        the minibatch: ids, labels, positions, lengths of rows, references of pairs, weights
 *                    EVALUATE     the same of its rows
 *                    GENERATE     the new tokens of each row
 *                    WEIGHTS      the unit, from the buffer that is named; norms that the daemon remembers of it, for
 *                                 the tokens of the last SHARE, if these weights are of its step
 *   to the daemon    CONTRIBUTION the slice in its slot
 *                    EVALUATED    a classifier's logits of those rows, log p of pairs or tokens
 *                    GENERATED    the logits of the rows' last tokens
 * The worker's host has segments of its own for the same job: weights (all units, each filled when it is pulled), an
 * inbox of as many slots, the minibatch, and the stash if that is on the host: it is the worker's host's, never
 * sent. */
#ifndef PROTO_NET_PAYLOAD_H
#define PROTO_NET_PAYLOAD_H

#include "proto/plan/memory/data.h"
#include "proto/wire/message.h"
#include "proto/wire/segment.h"

/* In the order of ASSIGN's descriptors. */
enum payload_segment {
    PAYLOAD_WEIGHTS,
    PAYLOAD_INBOX,
    PAYLOAD_DATA,
    PAYLOAD_CONFIG,
    PAYLOAD_STASH,
    PAYLOAD_SEGMENTS,
};

enum { PAYLOAD_MAX_RANGES = 2 * PLAN_GENERATE_ROWS };

struct payload {
    bool begun, open; /* begun: ASSIGN has come; open: its segments exist */
    struct message assign;
    struct model model;
    struct plan_data data;
    size_t slot_bytes;
    struct segment segments[PAYLOAD_SEGMENTS];
    uint8_t *given;             /* (1 + n_slots) the slot has a contribution that is not freed yet */
    uint32_t first_row, n_rows; /* rows of the last EVALUATE */
    struct message generate;    /* the last GENERATE */
    struct payload_share {
        uint64_t step;
        uint32_t buffer;
        bool known;
    } share; /* the last SHARE */
};

struct payload_range {
    enum payload_segment segment;
    uint64_t at, bytes;
};

/* The daemon's side: attaches the segments that came with ASSIGN. Always takes fds. -EPROTO, -ENOMEM, -errno. */
int payload_attach(struct payload *p, const struct message *assign, const int *fds, unsigned n_fds, struct error *err);
/* The worker's side, in two steps, as config.json says how large the rest is: makes room for it, and, once it has
 * arrived, the other segments. -ENOMEM, with a sentence, if this host has too little free memory; -EINVAL, -errno. */
int payload_begin(struct payload *p, const struct message *assign, struct error *err);
int payload_create(struct payload *p, struct error *err);
/* The descriptors for ASSIGN, borrowed; returns their number. */
unsigned payload_fds(const struct payload *p, int fds[PAYLOAD_SEGMENTS]);
void payload_free(struct payload *p); /* safe on a zeroed struct */

/* The message's bytes, all within the segments. Returns the number of ranges, or -EPROTO and *why: no such message can
 * be in this job. */
int payload_ranges(struct payload_range out[PAYLOAD_MAX_RANGES], struct payload *p, const struct message *m,
                   const char **why);

#endif
