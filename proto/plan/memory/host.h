/* proto/plan/memory/host.h - the daemon's bytes of a job, by category, before any is taken.
 *
 * They are in its ledger once the job is loaded: the store of units (weights, low halves, moments, sums), an inbox for
 * each worker, the minibatches, the workers' stash. Bytes per parameter, by mode:
 *
 *   fp32                    4 weights             + 4 + 4 moments       12
 *   bf16, split master      2 weights + 2 master  + 4 + 4 moments       12
 *   the same, 16-bit        2 weights + 2 master  + 2 + 2 moments        8
 *   fenced commit           + 4 for the sum of its contributions
 *   replay                  + 4 or 2 for a second buffer of relayed weights
 *   frozen                  4 or 2 weights, in bf16 rounded to nearest
 *   evaluated, generated    4 or 2 weights
 *
 * A job on several hosts divides its units among them. Weights, low halves, moments and sums are those of a host's own
 * units. It has a copy of the embedding's tables, too, and a ring of slots through which other hosts' units pass. */
#ifndef PROTO_PLAN_MEMORY_HOST_H
#define PROTO_PLAN_MEMORY_HOST_H

#include "proto/base/ledger.h"
#include "proto/base/number.h"
#include "proto/model/model.h"
#include "proto/plan/memory/plan.h"

#include <stdbool.h>
#include <stdint.h>

/* Buffer in which runs of a checkpoint's file are joined or widened, unless everything is fp32. */
enum { PLAN_HOST_RUN_BYTES = 4 << 20 };

/* Maximum slots of an inbox without the reserved one: a third of the contributions of 200 billion parameters. */
enum { PLAN_HOST_MAX_SLOTS = 1 << 14 };

/* Maximum checkpoints and snapshots in progress. */
enum { PLAN_HOST_SAVES = 16 };

/* Reserved once for all checkpoints of a job (eps/store/store_files.h): upper bounds on each file's header bytes and on
 * its hashed runs. */
struct plan_host_files {
    uint64_t weights_header, moments_header; /* bytes */
    uint64_t weights_runs, moments_runs;
    uint64_t bytes; /* of everything, offsets and counts included */
};
void plan_host_files(struct plan_host_files *out, const struct model *model);

/* Of the reserve from which the headers of files are read (store_load, store_load_moments), kept until the job ends.
 * No files: 0. */
uint64_t plan_load_bytes(const struct model *model, uint32_t n_files, uint64_t header_bytes);

/* With replay, relayed weights alternate between two buffers by update. So version t of a unit stands until step t is
 * folded, and the parts of a lost worker can be redone from it. A fenced commit needs none. */
enum plan_replay { PLAN_REPLAY_NONE, PLAN_REPLAY_ON, PLAN_REPLAY_NO_ROOM, PLAN_REPLAY_OVER_CAP };

struct plan_host_setting {
    struct plan_goal goal;
    uint32_t n_workers;        /* attached; no more than n_parts of them get a share */
    bool beside;               /* some of them compute while the optimizer works */
    bool replay;               /* only in training, not fenced */
    uint64_t host_stash_bytes; /* of all workers */
    uint64_t config_bytes;     /* of config.json; 0: unknown, usually small */
    uint64_t side_bytes;       /* of the text that every checkpoint repeats; 0: none, or unknown */
    uint64_t files_bytes;      /* of the memory by which another user's client serves its files; 0: none */
    uint32_t n_files;          /* of weights, which are loaded; 0: fresh weights */
    uint64_t header_bytes;     /* of these, or of the moments if they have more: safetensors_header_bytes */
    uint32_t own_first, n_own; /* units of this host, of a job on several; n_own 0: all */
    uint32_t own_parts;        /* of a step, this host's; counts if n_own > 0 */
    uint64_t hosts_bytes;      /* of slots for contributions of other hosts */
    uint64_t hosts_tables;     /* bytes of the tables of such a job */
};

struct plan_host {
    uint64_t bytes[LEDGER_CATEGORIES], total;
    uint32_t n_workers; /* that get a share */
    uint32_t n_slots;   /* of an inbox, the reserved one not counted */
    uint64_t slot_bytes;
    uint64_t inbox_bytes; /* of one worker */
    uint32_t n_accumulators;
    uint32_t n_ring;         /* slots for units of other hosts */
    enum plan_replay replay; /* plan_host: NONE, or ON by the setting */
};

/* Bytes that daemon and n_workers on its host take beyond the counted `bytes`: page tables, code, stacks. */
uint64_t plan_host_slack(uint64_t bytes, uint32_t n_workers);

/* Bytes of host memory: free; allowed to the daemon for a job; of arenas. UINT64_MAX: no limit. */
struct plan_room {
    uint64_t available, cap, arenas;
};
bool plan_host_fits(const struct plan_host *host, const struct plan_room *room);

/* Turns replay on, in both, if the job trains with an eager commit and the room suffices; else host->replay is the reason
 * why not. `host` must fit already. */
void plan_host_add_replay(struct plan_host *host, struct plan_host_setting *setting, const struct model *model,
                          const struct plan_room *room);
/* "replay on", "replay off: no room in free memory": of a job that trains. A constant string. */
const char *plan_replay_text(enum plan_replay replay);

/* Adds slots if the setting's workers compute while the optimizer works. Contributions that arrive faster than they are
 * folded wait there, and are folded during the next step's forward pass; a step then takes as long as its computation
 * or the optimizer, whichever is longer. Forward is at most a third of the computation, so slots for a third of a
 * worker's contributions suffice, plus one unit's that arrive meanwhile. They take at most half of the remaining room.
 * `host` must fit already. */
void plan_host_add_slots(struct plan_host *host, const struct model *model, const struct plan_host_setting *setting,
                         const struct plan_room *room);
/* Bytes of `available` that are left for arenas beside `host` without its stash. */
uint64_t plan_host_left(const struct plan_host *host, uint64_t available);
/* "first_moment 4.0 GiB, second_moment 4.0 GiB, CPU workers 3.1 GiB": the three largest terms, arenas being one. */
void plan_host_name_terms(char *text, size_t n, const struct plan_host *host, uint64_t arenas);

/* Consecutive units, which one host owns: those from `first` to before `end`; and what it has of the relayed weights.
 *
 * Its segment of relayed weights has, in this order, in elements that are rounded up as model_rounded for each unit:
 *   own      buffer 0 of its own units (weights_n), and of other hosts' tables that are looked up (tables_n)
 *   replay   buffer 1 of the same (replay_n, tables_replay_n), with replay
 *   ring     n_slots of slot_n each, for any other unit of another host
 * Of one host that owns all units, these are the model's segment_n and replay_n. */
struct plan_own {
    uint32_t first, end;
    uint64_t weights_n, tables_n, replay_n, tables_replay_n;
    uint64_t replay_before;             /* of the model's replay_n, those of units before `first` */
    uint32_t n_foreign;                 /* units that pass through the ring */
    uint64_t slot_n;                    /* the largest of them; 0: there is none */
    uint64_t trained_offset, trained_n; /* of all the model's trained elements, those from here on; as model_rounded */
    uint64_t tied_bytes;                /* of the sums of its tied units, one block */
    uint64_t accumulator_bytes;         /* of one accumulator, which fits any of its units */
};
/* n_own 0: all units. The units exist (asserted). */
void plan_own(struct plan_own *out, const struct model *model, uint32_t own_first, uint32_t n_own);
/* True if the host has its own copy of the unit's weights: it owns the unit, or workers look rows of it up. */
bool plan_keeps(const struct plan_own *own, const struct model *model, uint32_t unit);
/* Where such a unit is in its segment, in elements. buffer: 0, or with replay 0 or 1 of a unit that is trained. */
uint64_t plan_weights_at(const struct plan_own *own, const struct model *model, uint32_t unit, uint32_t buffer);
/* Elements of its segment: of the first buffers and the ring, and of the second buffers. n_ring: slots. The ring comes
 * last. */
uint64_t plan_weights_n(const struct plan_own *own, uint32_t n_ring);
uint64_t plan_replay_n(const struct plan_own *own);
/* Slots of the ring. Each part's worker may have two units lent, so that it waits for none that another has; and one
 * more is fetched meanwhile. n_parts: of this host. */
uint32_t plan_ring_slots(const struct plan_own *own, uint32_t n_parts);
/* Divides the units among n_hosts, in order, by their trained elements; each host gets at least one that is trained.
 * Host 0 has the first unit. The same on every host. -EINVAL with a sentence: fewer units are trained. */
int plan_divide(uint32_t *own_first, uint32_t *n_own, const struct model *model, uint32_t n_hosts, uint32_t host,
                struct error *err);

/* Bytes of all accumulators of a job: 0 unless several parts are summed. */
uint64_t plan_host_accumulators(const struct model *model, const struct plan_host_setting *setting);

/* Nothing overflows: model_config_check bounds the model, the caller batch * seq (2^32), parts and workers (2^16). */
void plan_host(struct plan_host *out, const struct model *model, const struct plan_host_setting *setting);

/* A row of a classifier's minibatch. */
struct plan_row {
    uint32_t n_tokens; /* its length, at least 1; the step's tokens beyond are padding */
    uint32_t second;   /* the first token of segment 1; n_tokens: there is none */
};

/* Label of a position that does not count. */
#define PLAN_NO_LABEL UINT32_MAX

/* Where everything is in a job's data segment, in bytes from its start: two buffers, each a minibatch; then a classifier's
 * logits.
 *
 * Rows of a step have a length of its own, n_tokens <= seq; ids and labels are then (batch, n_tokens), without gaps. A
 * label is the token to predict. A classifier's row has its label at its first token: the class, or the bits of a float.
 * PLAN_NO_LABEL: no label. */
struct plan_data {
    struct {
        uint64_t ids, labels; /* (batch, n_tokens) u32 */
        uint64_t rows;        /* (batch) struct plan_row, of a classifier */
    } buffers[2];
    uint64_t
        logits; /* (batch, n_labels) float, of a classifier: written by an evaluation, whose rows are the first ones */
    uint64_t bytes;
};
/* n_labels: of struct model_config. */
struct plan_data plan_data_of(uint32_t batch, uint32_t seq, uint32_t n_labels);

/* In a generation the segment has (batch, seq) ids, u32, and at plan_generate_logits (batch, vocabulary) logits,
 * float. */
uint64_t plan_generate_logits(uint32_t batch, uint32_t seq);

/* Bytes of the data segment, by the job's purpose. */
uint64_t plan_data_bytes(const struct plan_goal *goal, const struct model_config *config);

#endif
