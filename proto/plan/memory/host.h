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
    uint64_t bytes; /* the whole reserve, offsets and counts included */
};
void plan_host_files(struct plan_host_files *out, const struct model *model);

/* Bytes of the reserve into which headers of files are read (store_load, store_load_moments), kept until the job ends.
 * 0 without files. */
uint64_t plan_load_bytes(const struct model *model, uint32_t n_files, uint64_t header_bytes);

/* With replay, relayed weights alternate between two buffers by update. So version t of a unit stands until step t is
 * folded, and the parts of a lost worker can be redone from it. A fenced commit needs none. */
enum plan_replay { PLAN_REPLAY_NONE, PLAN_REPLAY_ON, PLAN_REPLAY_NO_ROOM, PLAN_REPLAY_OVER_CAP };

struct plan_host_setting {
    struct plan_goal goal;
    uint32_t n_workers;        /* attached; no more than n_parts of them get a share */
    bool beside;               /* some of them compute while the optimizer works */
    bool replay;               /* only in training, not fenced */
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
    uint32_t n_accumulators;
    uint32_t n_ring;         /* slots for units of other hosts */
    enum plan_replay replay; /* from plan_host: NONE, or ON if the setting says so */
};

/* Bytes that daemon and n_workers on its host take beyond the counted `bytes`: page tables, code, stacks. */
uint64_t plan_host_slack(uint64_t bytes, uint32_t n_workers);

/* Room on the host, in bytes. */
struct plan_room {
    uint64_t available; /* free memory; UINT64_MAX: unknown */
    uint64_t cap;       /* what the daemon may take for a job; UINT64_MAX: no limit */
    uint64_t arenas;    /* arenas of devices that use the host's memory */
};
bool plan_host_fits(const struct plan_host *host, const struct plan_room *room);

/* Turns replay on, in host and setting, if the job trains with an eager commit and the room suffices; else host->replay
 * says why not. `host` must fit already. */
void plan_host_add_replay(struct plan_host *host, struct plan_host_setting *setting, const struct model *model,
                          const struct plan_room *room);
/* "replay on", "replay off: no room in free memory", for a job that trains. A constant string. */
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

/* A host's own units, first .. end-1, and its segment of relayed weights. The segment has three ranges, counted in
 * elements, each unit rounded up by model_rounded:
 *   own      buffer 0 of its own units (weights_n), and of other hosts' tables that are looked up (tables_n)
 *   replay   with replay, buffer 1 of these units (replay_n) and tables (tables_replay_n)
 *   ring     slots of slot_n each, for any other unit of another host
 * If one host owns all units, weights_n is the model's segment_n, and replay_n its replay_n. */
struct plan_own {
    uint32_t first, end;
    uint64_t weights_n, tables_n, replay_n, tables_replay_n;
    uint64_t replay_before; /* elements of the model's replay_n that units before `first` have */
    uint32_t n_foreign;     /* units that pass through the ring */
    uint64_t slot_n;        /* the largest of these units; 0: there is none */
    uint64_t trained_offset,
        trained_n;       /* trained elements of the own units, in the model's: offset and number; as model_rounded */
    uint64_t tied_bytes; /* sums of the own tied units, one block */
    uint64_t accumulator_bytes; /* one accumulator, which fits any own unit */
};
/* n_own 0: all units. The units exist (asserted). */
void plan_own(struct plan_own *out, const struct model *model, uint32_t own_first, uint32_t n_own);
/* True if the host has its own copy of the unit's weights: it owns the unit, or workers look rows of it up. */
bool plan_keeps(const struct plan_own *own, const struct model *model, uint32_t unit);
/* Offset in the host's segment, in elements, of a unit that it keeps (plan_keeps). buffer: 0; with replay, 0 or 1 for a
 * trained unit. */
uint64_t plan_weights_at(const struct plan_own *own, const struct model *model, uint32_t unit, uint32_t buffer);
/* Elements of the host's segment: plan_weights_n counts buffers 0 and the ring of n_ring slots, plan_replay_n buffers
 * 1. The ring comes last. */
uint64_t plan_weights_n(const struct plan_own *own, uint32_t n_ring);
uint64_t plan_replay_n(const struct plan_own *own);
/* Number of slots of the ring: two for each worker, which may have two units lent and so waits for no other worker, and
 * one for the unit that is being fetched. n_parts: this host's parts, at least as many as its workers. */
uint32_t plan_ring_slots(const struct plan_own *own, uint32_t n_parts);
/* Divides the units among n_hosts, in order, by their trained elements; each host gets at least one that is trained.
 * Host 0 has the first unit. All hosts compute the same division. -EINVAL with a sentence: fewer units are trained. */
int plan_divide(uint32_t *own_first, uint32_t *n_own, const struct model *model, uint32_t n_hosts, uint32_t host,
                struct error *err);

/* Bytes of all accumulators of a job: 0 unless several parts are summed. */
uint64_t plan_host_accumulators(const struct model *model, const struct plan_host_setting *setting);

/* Nothing overflows: model_config_check bounds the model, the caller batch * seq (2^32), parts and workers (2^16). */
void plan_host(struct plan_host *out, const struct model *model, const struct plan_host_setting *setting);

/* A row of a classifier's minibatch. */
struct plan_row {
    uint32_t n_tokens; /* length of the row, at least 1; the step's tokens beyond are padding */
    uint32_t second;   /* the first token of segment 1; n_tokens: there is none */
};

/* Label of a position that does not count. */
#define PLAN_NO_LABEL UINT32_MAX

/* Layout of a job's data segment, in bytes from its start: two buffers, each a minibatch; then a classifier's logits.
 *
 * Rows of a step have a length of its own, n_tokens <= seq; ids and labels are then (batch, n_tokens), without gaps. A
 * label is the token to predict. A classifier's row has its label at its first token: the class, or the bits of a
 * float. PLAN_NO_LABEL: no label. */
struct plan_data {
    struct {
        uint64_t ids, labels; /* (batch, n_tokens) u32 */
        uint64_t rows;        /* (batch) struct plan_row; classifiers alone */
    } buffers[2];
    uint64_t logits; /* (batch, n_labels) float; classifiers alone: an evaluation writes its rows' */
    uint64_t bytes;
};
/* n_labels: model_config.n_labels. */
struct plan_data plan_data_of(uint32_t batch, uint32_t seq, uint32_t n_labels);

/* In a generation the segment has (batch, seq) ids, u32, and at plan_generate_logits (batch, vocabulary) logits,
 * float. */
uint64_t plan_generate_logits(uint32_t batch, uint32_t seq);

/* Bytes of a job's data segment. */
uint64_t plan_data_bytes(const struct plan_goal *goal, const struct model_config *config);

#endif
