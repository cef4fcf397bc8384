/* proto/plan/host.h - the daemon's bytes of a job, by category, before any is taken.
 *
 * What stands in its ledger once the job is loaded: the store of units (weights and what completes them, moments, sums),
 * one inbox for each worker, the minibatches, the stash that workers keep there. Bytes of a parameter, by mode:
 *
 *   fp32                    4 weights             + 4 + 4 moments       12
 *   bf16, split master      2 weights + 2 master  + 4 + 4 moments       12
 *   the same, 16-bit        2 weights + 2 master  + 2 + 2 moments        8
 *   fenced commit           + 4 for the sum of its contributions
 *   frozen                  4 or 2 weights, in bf16 rounded to nearest
 *   evaluated, generated    4 or 2 weights */
#ifndef PROTO_PLAN_HOST_H
#define PROTO_PLAN_HOST_H

#include "proto/base/ledger.h"
#include "proto/base/number.h"
#include "proto/model/model.h"
#include "proto/plan/plan.h"

#include <stdbool.h>
#include <stdint.h>

/* A run of a checkpoint's file, which is joined or widened in a buffer of this size, where not all is fp32. */
enum { PLAN_HOST_RUN_BYTES = 4 << 20 };

/* Slots of an inbox, at most, apart from the reserved one: a third of the contributions of 200 billion parameters. */
enum { PLAN_HOST_MAX_SLOTS = 1 << 14 };

/* Checkpoints and snapshots that are under way at a time, at most. */
enum { PLAN_HOST_SAVES = 16 };

/* What is laid out once for all checkpoints of a job (eps/store/store_files.h): the most bytes of each file's header, and runs
 * that are hashed. Some are fewer; the room is taken for so many. */
struct plan_host_files {
    uint64_t weights_header, moments_header; /* bytes */
    uint64_t weights_runs, moments_runs;
    uint64_t bytes; /* of all of it, offsets and counts too */
};
void plan_host_files(struct plan_host_files *out, const struct model *model);

struct plan_host_setting {
    struct plan_goal goal;
    uint32_t n_workers;        /* attached; no more than n_parts of them get a share */
    bool beside;               /* some of them compute while the optimizer works */
    uint64_t host_stash_bytes; /* of all workers */
    uint64_t config_bytes;     /* of config.json; 0: not known, and small in general */
    uint64_t side_bytes;       /* of the text that every checkpoint repeats; 0: none, or not known */
};

struct plan_host {
    uint64_t bytes[LEDGER_CATEGORIES], total;
    uint32_t n_workers; /* that get a share */
    uint32_t n_slots;   /* of an inbox, the reserved one not counted */
    uint64_t slot_bytes;
    uint64_t inbox_bytes; /* of one worker */
    uint32_t n_accumulators;
};

/* What the daemon and n_workers on its host take besides, of all bytes that they count: page tables, code, stacks. */
uint64_t plan_host_slack(uint64_t bytes, uint32_t n_workers);

/* The host's memory: bytes that are free, those of them that the daemon may take for a job, and those that devices
 * take whose memory this is. UINT64_MAX: no limit. */
struct plan_room {
    uint64_t available, cap, arenas;
};
bool plan_host_fits(const struct plan_host *host, const struct plan_room *room);

/* More slots, where the setting's workers compute beside the optimizer: what they contribute faster than it is folded waits
 * there, and is folded while they go forward in the next step. Then a step takes as long as the computing or the
 * optimizer, whichever is longer. Forward is a third of the computing at most, so slots for a third of a worker's
 * contributions suffice, and for those of one unit more, which comes while the others wait. They take no more than half
 * of the room that is left. The host fits as it is. */
void plan_host_add_slots(struct plan_host *host, const struct model *model, const struct plan_host_setting *setting,
                         const struct plan_room *room);
/* Of the bytes that are free, what there is for such devices beside this without its stash. */
uint64_t plan_host_left(const struct plan_host *host, uint64_t available);
/* "first_moment 4.0 GiB, second_moment 4.0 GiB, CPU workers 3.1 GiB": the three largest terms, arenas one of them. */
void plan_host_name_terms(char *text, size_t n, const struct plan_host *host, uint64_t arenas);

/* Of the sums of all tied units, one block; and of one accumulator, which any unit fits. */
uint64_t plan_host_tied_bytes(const struct model *model);
uint64_t plan_host_accumulator_bytes(const struct model *model);
/* Of all accumulators of a job: 0 unless several parts are summed. */
uint64_t plan_host_accumulators(const struct model *model, const struct plan_host_setting *setting);

/* Nothing overflows: model_config_check bounds the model, the caller batch * seq (2^32), parts and workers (2^16). */
void plan_host(struct plan_host *out, const struct model *model, const struct plan_host_setting *setting);

/* Bytes of a job's data segment: two buffers, each of batch * seq ids and then as many labels, u32. */
uint64_t plan_data_bytes(uint32_t batch, uint32_t seq);
/* Of a job that generates: seq ids, u32, and at plan_generate_logits the vocabulary's logits, float. */
uint64_t plan_generate_bytes(uint32_t seq, uint32_t vocabulary);
uint64_t plan_generate_logits(uint32_t seq);

#endif
