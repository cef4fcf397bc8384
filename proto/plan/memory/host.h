/* proto/plan/memory/host.h - the daemon's bytes of a job, by category, before any is taken.
 *
 * They are in its ledger once the job is loaded: the store of units (weights, low halves, moments, sums), an inbox for
 * each worker, the minibatches, the workers' stash. Bytes per parameter, by mode:
 *
 *   fp32                    4 weights             + 4 + 4 moments       12
 *   bf16, split master      2 weights + 2 master  + 4 + 4 moments       12
 *   the same, 16-bit        2 weights + 2 master  + 2 + 2 moments        8
 *   the same, coded         2 weights + 2 master  + 1 + 1 moments        6 + 8 / 64 for scales, in matrices of blocks;
 *                                                                        elsewhere 12 (proto/plan/memory/coded.h)
 *   SGD                     4, or 2 + 2, weights  + 4 or 2 momentum      8 or 6; without momentum 4
 *   16 bits, no master      - 2
 *   fenced commit           + 4, or 2 in bf16, for the sum of its contributions; the same once more for a tied table,
 *                           in several parts
 *   eager or folded         + 4 of tied tables; AdamA's, and those of SGD with plain momentum, + 8 in several parts
 *   replay                  + 4 or 2 for a second buffer of trained weights
 *   frozen                  4 or 2 weights, in bf16 rounded to nearest; with --base as in proto/base/form.h
 *   evaluated, generated    4 or 2 weights
 *
 * A job on several hosts divides its units among them. Weights, low halves, moments, norms and sums are those of a
 * host's own units. It has a copy of the embedding's tables, too, and a ring of slots through which other hosts' units
 * pass. */
#ifndef PROTO_PLAN_MEMORY_HOST_H
#define PROTO_PLAN_MEMORY_HOST_H

#include "proto/base/ledger.h"
#include "proto/model/model.h"
#include "proto/plan/memory/plan.h"

#include <stdbool.h>
#include <stdint.h>

struct plan_own; /* proto/plan/memory/division.h */

/* Maximum slots of an inbox without the reserved one: a third of the contributions of 200 billion parameters. */
enum { PLAN_HOST_MAX_SLOTS = 1 << 14 };

/* Maximum checkpoints and snapshots in progress. */
enum { PLAN_HOST_SAVES = 16 };

/* With replay, relayed weights alternate between two buffers by update. So version t of a unit stands until step t is
 * folded, and the parts of a lost worker can be redone from it. Where units are updated last, it stands anyway. */
enum plan_replay { PLAN_REPLAY_NONE, PLAN_REPLAY_ON, PLAN_REPLAY_NO_ROOM, PLAN_REPLAY_OVER_CAP };

struct plan_host_setting {
    struct plan_goal goal;
    uint32_t n_workers;        /* attached; no more than plan_host_parts of them get a share */
    bool beside;               /* some of them compute while the optimizer works */
    bool replay;               /* only in training, and unless plan_updates_last */
    uint64_t host_stash_bytes; /* stashes of all workers that are on the host */
    uint64_t config_bytes;     /* size of config.json; 0: unknown, usually small */
    uint64_t side_bytes;       /* size of the text that every checkpoint repeats; 0: none, or unknown */
    uint64_t files_bytes;      /* memory through which another user's client serves its files; 0: none */
    uint32_t n_files;          /* files of weights that are loaded; 0: fresh weights */
    uint64_t header_bytes;     /* safetensors_header_bytes of these files, or of the moments' if more */
    uint32_t own_first, n_own; /* units of this host in a job on several hosts; n_own 0: all */
    uint32_t own_parts;        /* parts of a step that this host computes; used if n_own > 0 */
    uint64_t hosts_bytes;      /* bytes of slots for contributions of other hosts */
    uint64_t hosts_tables;     /* bytes of tables for a job on several hosts */
};

struct plan_host {
    uint64_t bytes[LEDGER_CATEGORIES], total;
    uint32_t n_workers; /* workers that get a share */
    uint32_t n_slots;   /* slots of an inbox, without the reserved one */
    uint64_t slot_bytes;
    uint64_t inbox_bytes; /* one worker's inbox */
    uint64_t inbox_sums;  /* bytes of the checksums of its slots; 0: memory is not checked */
    uint32_t n_accumulators;
    uint32_t n_ring;         /* slots for units of other hosts */
    enum plan_replay replay; /* from plan_host: NONE, or ON if the setting says so */
};

/* Parts of a step that this host's workers share. */
static inline uint32_t plan_host_parts(const struct plan_host_setting *setting)
{
    return setting->n_own > 0 ? setting->own_parts : setting->goal.n_parts;
}

/* Bytes of plan_tied_sums. */
uint64_t plan_tied_bytes(const struct plan_own *own, const struct plan_goal *goal);

/* Bytes of all accumulators and tied sums of a job. */
uint64_t plan_host_sums(const struct model *model, const struct plan_host_setting *setting);

/* Numbers in the table of units that a step does not update: those without trained pieces; if steps drop or freeze
 * blocks, at most all of these, too; and one. */
static inline uint32_t plan_host_frozen(const struct model *model, const struct plan_goal *goal)
{
    return model->n_frozen_units + (plan_may_drop(goal) ? model->n_block_layers : 0) + 1;
}

/* Visits in the tables of a step's own order, if the client may choose one. */
static inline uint32_t plan_host_ordered(const struct model *model, const struct plan_goal *goal)
{
    return goal->chooses ? model->n_visits : 0;
}

/* Nothing overflows: model_config_check bounds the model, the caller batch * seq (2^32), parts and workers (2^16). */
void plan_host(struct plan_host *out, const struct model *model, const struct plan_host_setting *setting);

#endif
