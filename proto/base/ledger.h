/* proto/base/ledger.h - counts every allocation over 4 KiB by category, current and peak.
 *
 * The daemon has one ledger and each worker has one; `eps mem` shows both sides. A category is a row of that table and
 * a term of the plan. Sizes are counted as requested, so the plan and the ledger agree to the byte. Not thread safe:
 * the daemon's belongs to its loop thread, the worker's to its compute thread. */
#ifndef PROTO_BASE_LEDGER_H
#define PROTO_BASE_LEDGER_H

#include <stddef.h>
#include <stdint.h>

enum ledger_category {
    LEDGER_WEIGHTS,       /* daemon: relayed weights, in fp32 the master; worker: weight buffers */
    LEDGER_REPLAY,        /* daemon: second buffer of relayed weights: a step's old ones stand until it is folded */
    LEDGER_MASTER,        /* daemon: low halves of a split master; the relayed weights are the high halves */
    LEDGER_FIRST_MOMENT,  /* m */
    LEDGER_SECOND_MOMENT, /* v */
    LEDGER_INBOX,         /* daemon: slots for workers' contributions */
    LEDGER_ACCUMULATORS,  /* daemon: sums of parts (adamw with several parts) */
    LEDGER_TIED,          /* daemon: sums over the visits of tied units */
    LEDGER_SUM,           /* daemon: gradient of all units, held until the step is known good (fenced commit) */
    LEDGER_CHECKSUMS,     /* daemon: sums of blocks of weights and moments, and of contributions (--check-memory) */
    LEDGER_NORMS,         /* daemon: norms of gradients that are remembered of tokens (proto/model/norms.h) */
    LEDGER_DATA,          /* daemon: minibatches; worker: ids and labels, remembered norms of a unit */
    LEDGER_CONTRIBUTION,  /* worker: sum over a part's microbatches */
    LEDGER_STASH,         /* activation checkpoints, one per layer; daemon: those of its workers on the host */
    LEDGER_KEPT,          /* worker: activations kept from forward to backward */
    LEDGER_GRADIENT,      /* worker: gradient of the boundary activations */
    LEDGER_STATISTICS,    /* worker: log-sum-exp of the head */
    LEDGER_CACHE,         /* worker: keys and values of the tokens so far, during generation */
    LEDGER_WORKSPACE,     /* worker: intermediates of one layer for one microbatch */
    LEDGER_LIBRARY,       /* worker: memory of a library, measured */
    LEDGER_OTHER,         /* tables, and the arena's rounding */
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

/* Resets the peaks to the current values, for the next job. */
void ledger_forget_peaks(struct ledger *ledger);

/* The counted bytes of a table: all if above 4 KiB, otherwise none; the same in plans and ledgers. */
static inline uint64_t ledger_table(uint64_t bytes)
{
    return bytes > 4096 ? bytes : 0;
}

/* Asserts that no more is subtracted than was added. */
void ledger_sub(struct ledger *ledger, enum ledger_category category, uint64_t bytes);

#endif
