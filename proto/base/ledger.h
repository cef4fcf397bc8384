/* proto/base/ledger.h - every allocation over 4 KiB of ours, by category, current and peak.
 *
 * One ledger for the daemon and one for each worker; `eps mem` shows both sides. A category is a row of that table and
 * a term of the plan. Sizes are counted as asked for, so that the plan and the ledger can be compared to the byte.
 * Not thread safe: the daemon's belongs to its loop thread, the worker's to its compute thread. */
#ifndef PROTO_BASE_LEDGER_H
#define PROTO_BASE_LEDGER_H

#include <stddef.h>
#include <stdint.h>

enum ledger_category {
    LEDGER_WEIGHTS,       /* daemon: relayed weights, which in fp32 are the master; worker: weight buffers */
    LEDGER_MASTER,        /* daemon: low halves of a split master, whose high halves are the relayed weights */
    LEDGER_FIRST_MOMENT,  /* m */
    LEDGER_SECOND_MOMENT, /* v */
    LEDGER_INBOX,         /* daemon: slots that workers write contributions to */
    LEDGER_ACCUMULATORS,  /* daemon: summed parts (adamw with several) */
    LEDGER_TIED,          /* daemon: summed visits of tied units */
    LEDGER_SUM,           /* daemon: the gradient of all units, held until the step is known good (fenced commit) */
    LEDGER_DATA,          /* daemon: minibatches; worker: ids and labels */
    LEDGER_CONTRIBUTION,  /* worker: the sum over a part's microbatches */
    LEDGER_STASH,         /* boundary activations, one per layer; daemon: those that its workers keep there */
    LEDGER_KEPT,          /* worker: internals of layers, kept from forward to backward */
    LEDGER_GRADIENT,      /* worker: the boundary activations' gradient */
    LEDGER_STATISTICS,    /* worker: log-sum-exp of the head */
    LEDGER_CACHE,         /* worker: keys and values of the tokens so far, while it generates */
    LEDGER_WORKSPACE,     /* worker: one microbatch inside one layer */
    LEDGER_LIBRARY,       /* worker: what a library takes for itself, measured */
    LEDGER_OTHER,         /* tables and the arena's own rounding */
    LEDGER_CATEGORIES
};

struct ledger {
    struct ledger_row {
        uint64_t current, peak; /* bytes */
    } rows[LEDGER_CATEGORIES], total;
};

/* The name in tables and JSON: "weights", "first_moment", ... A constant string; NULL outside the enum. */
const char *ledger_name(enum ledger_category category);

void ledger_add(struct ledger *ledger, enum ledger_category category, uint64_t bytes);

/* The peaks are from here on those of what comes: of the next job. */
void ledger_forget_peaks(struct ledger *ledger);

/* What of a table counts: all of it above 4 KiB, nothing below; in plans as in ledgers. */
static inline uint64_t ledger_table(uint64_t bytes)
{
    return bytes > 4096 ? bytes : 0;
}

/* It is a mistake of ours (assert) to take away more than is there. */
void ledger_sub(struct ledger *ledger, enum ledger_category category, uint64_t bytes);

#endif
