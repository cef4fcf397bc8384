/* eps/store/store.h - the units: relayed weights, low halves of a split master, moments, sums.
 *
 * Bytes per parameter; each block but the weights has the own units' trained elements (own.trained_n), unless said
 * otherwise:
 *   LEDGER_WEIGHTS        4, or 2 in 16 bits   shared segment, which workers map read-only (struct plan_own); in fp32
 *   it
 *                                             is the master
 *   LEDGER_REPLAY         4, or 2 in 16 bits   training with replay: each unit's trained weights once more, in that
 *   segment
 *   LEDGER_MASTER         2, in 16 bits and training the low halves of the split master (proto/base/number.h), if there
 *                         is
 *                                             one: without a master, updates round the relayed weights stochastically
 *   LEDGER_FIRST_MOMENT   4, or 2 in bf16     training, unless by SGD without momentum; coded, in matrices of blocks, 1
 *                                             and 4 for each group (proto/plan/memory/coded.h)
 *   LEDGER_SECOND_MOMENT  4, or 2 in 8 + 8    training, unless by SGD; coded as the first
 *   LEDGER_SUM            4, or 2 in bf16     training with a fenced commit: the gradient, held until the step is known
 *                                             good
 *   LEDGER_TIED           4, or 2 in bf16     training: own tied units alone, each as model_rounded. Fenced, in several
 *                                             parts, as LEDGER_SUM; not fenced 4, but none by SGD with plain momentum
 *                                             in one part, and 8 in several parts without accumulators
 *   LEDGER_ACCUMULATORS   4                   training, eager: n_accumulators of the largest own unit, as
 *                                             model_rounded; here and above, trained elements only
 *   LEDGER_CHECKSUMS      training, if memory is checked: eps/store/checks.h
 *   LEDGER_NORMS          training, if own units remember norms of gradients: eps/store/norms.h
 *   LEDGER_OTHER          tables over 4 KiB: 8 (sums) + 8 (updates) bytes per unit, 1 with replay, 8 per piece, with
 *                         coded moments 16 more, 4 per accumulator; plan_rewire; in training, for files:
 *                         plan_host_files, and PLAN_HOST_RUN_BYTES unless all is fp32 without a base
 * So fp32 takes 12, bf16 12, with 16-bit moments 8, with coded ones 6 + 8 / 64, by SGD 8, with 16-bit momentum 6,
 * without momentum 4; without a master 2 less; fenced 4 or 2 more, replay 4 or 2 more. An evaluation takes 4 or 2, and
 * so do frozen tensors: in bf16 these weights are the file's, rounded to nearest. With a base, frozen tensors have its
 * bytes (proto/base/form.h): they are coded while they are loaded or drawn, and decoded when they are saved.
 *
 * One host owns all units. In a job on several, each owns consecutive ones (own_first, n_own), and has weights, low
 * halves, moments, norms and sums of these alone; it folds and updates no others. It has a copy of the weights of the
 * embedding's tables, and room for a few other units, the ring; both are fetched from their owners.
 *
 * With replay, a unit's trained weights alternate between two buffers. Folds and updates read them from the current one
 * and write the other, so version t stands, whole, until folds of step t+1 begin. Low halves and moments stay in place,
 * and so do frozen weights, which are in the first buffer alone. The thread that updates may not be the one that
 * answers pulls: the other buffer becomes current when the latter calls store_swap. The bits are those without replay.
 *
 * All but the segment is private to the daemon. Memory is bound by hwloc, requested in huge pages and page-locked where
 * the system allows (eps/store/memory.h), and first touched by the optimizer's threads, in the ranges in which they
 * will work. No memory is allocated after store_init. */
#ifndef EPS_STORE_STORE_H
#define EPS_STORE_STORE_H

#include "eps/store/optimizer.h"
#include "eps/store/pieces.h"
#include "proto/base/ledger.h"
#include "proto/model/model.h"
#include "proto/plan/memory/checksums.h"
#include "proto/plan/memory/division.h"
#include "proto/plan/memory/plan.h"
#include "proto/wire/segment.h"

#include <stdbool.h>

struct file;
struct reserve;

/* eps/store/norms.h */
struct norms {
    uint32_t n_entries, batch, seq, part_rows;
    uint32_t first_map, n_maps; /* the own units' among the model's */
    uint64_t *gathered;         /* (n_maps) of a unit's first map; NULL: none are remembered here */
    uint16_t *pending, *cache;
    struct norms_step {
        uint32_t *entries; /* (batch, n_tokens) */
        uint32_t n_tokens;
    } steps[2]; /* step t is at t modulo 2 */
};

/* eps/store/checks.h */
struct checks {
    void *memory; /* all of them; NULL: the store checks no memory. Owned */
    struct plan_checksums plan;
    struct block_sum *sums[PLAN_CHECKED_ARRAYS]; /* (plan.n) each; NULL: none */
    uint64_t *first;                             /* (n_pieces) an own trained piece's first block */
    uint64_t *damage; /* the least damage found, or OPTIMIZER_WHOLE (eps/store/optimizer.h). All access is __atomic */
    struct checks_scrub {
        uint32_t unit, piece; /* piece: of the unit's; all: at what steps leave alone */
        uint64_t at, fixed;   /* elements of the piece, or bytes; fixed blocks of the units before */
    } scrub;                  /* where it goes on */
};

struct store_options {
    bool train;                          /* there are moments and sums; else weights alone */
    enum number_type precision, moments; /* types of the relayed weights and of the moments; bf16: 16 bits; or coded */
    bool sgd, nesterov;                  /* as in struct plan_goal */
    double momentum;                     /* as in struct plan_goal */
    enum form base;                      /* FORM_VALUES: no piece of the model is coded */
    bool no_master;                      /* as in struct plan_goal */
    bool checks_memory;                  /* as in struct plan_goal */
    bool fenced;                         /* contributions are held until the step ends: STORE_FOLD_HOLD */
    bool folded;                         /* units are updated when it ends: never STORE_FOLD_DIRECT */
    enum number_type sums;               /* type of held contributions: fp32 or bf16 */
    bool replay;             /* in training, neither fenced nor folded: relayed weights alternate between two buffers */
    bool require_pinned;     /* fail if the memory cannot be locked */
    struct memory *memory;   /* prepares all memory, together with the caller's; NULL: one of the store's own */
    unsigned said;           /* MEMORY_... that the log has reported already */
    uint32_t n_accumulators; /* 0 unless several parts are summed (plan_sums_parts), eager */
    uint64_t seed;           /* for rounding moments, and for tensors that store_load draws */
    const char *thawed;    /* patterns of tensors whose moments store_load_moments may lack: they begin now. Borrowed */
    bool draws_head;       /* files may lack a classifier's head: weights_open_base */
    struct pieces *pieces; /* count store_init, store_draw and the loads; NULL: uncounted. Borrowed */
    double clip_update;    /* d of store_update; 0: updates are not clipped, as SGD's never are (asserted) */
    uint32_t own_first, n_own; /* the own units; n_own 0: all (plan_own). With fewer than all: replay, unless fenced */
    uint32_t n_ring;           /* slots for units of other hosts */
    uint32_t n_parts;          /* of the goal; 0: one */
    uint32_t n_entries, batch, seq; /* of the goal, if the model remembers norms */
};

enum { REWIRE_MOST_DOUBLINGS = 120 };

struct store {
    const struct model *model; /* borrowed */
    struct store_options options;
    struct plan_own own;                   /* the own units */
    const struct optimizer_kernel *kernel; /* this machine's best */
    struct segment weights;                /* elements of the precision: kept units at plan_weights_at, then the ring */
    uint8_t *current; /* (n_units) the buffer that has the unit's weights; NULL without replay: buffer 0 */
    int16_t *low;     /* (own.trained_n) low halves of a split master; NULL if there is none */
    float *m, *v;     /* (own.trained_n) each, fp32 moments; else NULL. Of SGD m alone, if it has momentum */
    /* Codes and scales of coded moments; then m and v have the others, and own all. m NULL: none are coded. Where each
     * piece's are: (n_pieces) eps/store/moments.h. */
    struct coded_moments coded;
    struct moments_place *moment_places;
    uint16_t *m16, *v16; /* (own.trained_n) each, 16-bit moments; else NULL */
    float *held;         /* (own.trained_n) fenced: the sum of the contributions, in fp32; else NULL */
    uint16_t *held16;    /* the same in bf16 */
    float **sums;        /* (n_units) NULL, or where the unit's contributions are summed in this step, in fp32 */
    /* Sums of the own tied units, one block, each rounded up as in the segment (plan_tied_sums). Fenced: of the lower
     * visits, in the type of the held sums. Else: of the upper visits, or of both; then the lower ones', unless they
     * take accumulators. */
    float *tied;
    uint16_t *tied16;
    float *accumulators;        /* n_accumulators blocks of the largest own unit, rounded likewise */
    uint32_t *accumulator_unit; /* (n_accumulators) the unit that uses each, or UINT32_MAX */
    uint32_t n_accumulators;
    struct norms norms;
    struct rewiring {
        void *room;            /* (plan_rewire); NULL: no piece is sparse */
        uint64_t version;      /* of the weights, in which places changed last; 0: they have not */
        float begin;           /* the threshold before doublings; 0: it is chosen when places first change */
        int doublings;         /* of it, REWIRE_MOST_DOUBLINGS or fewer of either sign */
        bool has_places;       /* store_load_places has read them */
    } rewiring;                /* eps/store/rewire.h */
    float *run;                /* training, not all fp32: room for a run of a file (eps/store/store_files.h) */
    struct checks checks;      /* sums of memory (eps/store/checks.h) */
    uint64_t *updates;         /* (n_units) updates of each unit; for other hosts' units as loaded */
    uint64_t *late;            /* (n_pieces) of these, how many came before the piece was trained */
    struct store_files *files; /* training: used by one save after the other; owned */
    unsigned denied;           /* MEMORY_...: what the system refused (eps/store/memory.h) */
    struct ledger *ledger;     /* borrowed */
    uint64_t ledgered[LEDGER_CATEGORIES]; /* bytes that store_free gives back */
};

/* Allocates and zeroes all memory. The caller's OpenMP team touches the pages. Logs once what the system did not allow.
 * -ENOMEM with a sentence. -EPERM if locking was required and refused; the sentence says what `ulimit -l` is and must
 * be. -ECANCELED: its pieces are abandoned. Undo: store_free. */
int store_init(struct store *store, const struct model *model, const struct store_options *options,
               struct ledger *ledger, struct error *err);
void store_free(struct store *store); /* safe on a zeroed store */

/* Draws the model's initial weights. Each element is a function of (seed, tensor, index) alone. -ECANCELED: its pieces
 * are abandoned, and the weights are of no use. */
int store_draw(struct store *store, uint64_t seed);
/* Draws the initial weights of one piece of a unit, as store_draw does. */
void store_draw_piece(struct store *store, uint64_t seed, uint32_t unit, const struct model_piece *piece);
/* Reads weights from open safetensors files of F32, F16 or BF16, which stay the caller's. The files' tensors are
 * matched with the model's before any is read: errors as weights_open (proto/model/weights.h). Then -EINVAL, with the
 * tensor's name, for a value that is not finite, and for a tied model's copy of its head that differs from the table of
 * tokens; -ENOMEM; -EIO, -errno if a file cannot be read; -ECANCELED as store_draw. With options.draws_head, draws what
 * weights_open_base allows to miss. After a failure the weights must be loaded again. The reserve (plan_load_bytes)
 * stays the caller's, and is all free again at the end. */
int store_load(struct store *store, const struct file *files, unsigned n_files, struct reserve *reserve,
               struct error *err);

/* Before store_load, of a store that goes on training sparse weights: reads their places from its
 * optimizer.safetensors. Does nothing if none are sparse. -EINVAL with a sentence, -ENOMEM, -EIO. Without it,
 * store_load takes the largest weights of each matrix. */
int store_load_places(struct store *store, const struct file *from, struct reserve *reserve, struct error *err);

/* Reads the moments of the own units, and all counts of updates, from an open optimizer.safetensors
 * (proto/model/file/checkpoint.h), which stays the caller's. It must hold "m.NAME" and "v.NAME" of every trained tensor
 * exactly once, of SGD "m.NAME" if it has momentum, as F32 or in 16 bits (checkpoint_moment_type), with the tensor's
 * shape, of sparse ones as vectors, those of the own units finite, v not negative, and "updates". Coded ones it has as
 * codes and scales, which are taken as they are; no other form becomes coded. Tensors of options.thawed may have no
 * moment, if they have had no update: theirs stay zero. It may hold norms (norms_load) of all maps, of all but those of
 * units whose tensors all thaw now, or of none: what is missing begins at 0. -EINVAL, by name, for anything else. F32
 * ones that become 16-bit moments are rounded to nearest, which is exact if they were such moments. -ENOMEM. The store
 * trains (asserted). After a failure it must be freed. Writing: eps/store/store_files.h. */
int store_load_moments(struct store *store, const struct file *from, struct reserve *reserve, struct error *err);

/* The buffer that has a unit's weights, 0 or 1; `before`: the weights before its last update (with replay, if it has
 * been updated). Only the owner's thread may call this while updates are under way. */
uint32_t store_buffer(const struct store *store, uint32_t unit, bool before);

/* The goal, as far as the store knows it: for the plan's rules. */
static inline struct plan_goal store_goal(const struct store_options *o)
{
    return (struct plan_goal){.sgd = o->sgd,
                              .nesterov = o->nesterov,
                              .momentum = o->momentum,
                              .precision = o->precision,
                              .moments = o->moments,
                              .no_master = o->no_master,
                              .checks_memory = o->checks_memory,
                              .fenced = o->fenced,
                              .folded = o->folded,
                              .adamw = o->n_accumulators > 0,
                              .sums = o->sums,
                              .n_parts = o->n_parts,
                              .entries = o->n_entries,
                              .batch = o->batch,
                              .seq = o->seq};
}

/* The element of `tied` at which the sums of lower visits begin; UINT64_MAX: it has none. */
static inline uint64_t store_lower_at(const struct store *store)
{
    const struct plan_goal goal = store_goal(&store->options);
    const uint32_t n_upper = store->options.fenced ? 0 : 1;

    return plan_tied_sums(&goal) > n_upper ? n_upper * store->own.tied_n : UINT64_MAX;
}

static inline unsigned store_moments(const struct store *store)
{
    const struct plan_goal goal = store_goal(&store->options);

    return plan_moments(&goal);
}

/* Adam's t of a trained piece of the unit: its updates so far. piece: index in the model. */
static inline uint64_t store_updates(const struct store *store, uint32_t unit, uint32_t piece)
{
    return store->updates[unit] - store->late[piece];
}

/* True if the unit's low halves, moments and sums are here. */
static inline bool store_owns(const struct store *store, uint32_t unit)
{
    return unit >= store->own.first && unit < store->own.end;
}

/* True if the unit's weights are here: it is an own unit, or another host's table of the embedding. */
static inline bool store_keeps(const struct store *store, uint32_t unit)
{
    return plan_keeps(&store->own, store->model, unit);
}

/* Offset of a buffer of a kept unit in a host's segment of weights, in bytes; it holds the trained weights, and
 * the first one the frozen ones behind them. own: the plan_own of that host, this one or another. */
uint64_t store_weights_at(const struct store *store, const struct plan_own *own, uint32_t unit, uint32_t buffer);
/* Offset of a slot of the ring in this host's segment, in bytes. */
uint64_t store_ring_at(const struct store *store, uint32_t slot);

/* A unit's current weights. The store's are fp32 (asserted). */
float *store_weights(const struct store *store, uint32_t unit);

/* The piece of a unit that has this element. */
const struct model_piece *store_piece(const struct store *store, uint32_t unit, uint64_t element);

/* A coded piece of a unit: its codes, and its scales, of which bf16 has none. */
struct store_codes {
    enum form form;
    uint64_t columns;
    void *codes;
    float *scales;
};
struct store_codes store_codes(const struct store *store, uint32_t unit, const struct model_piece *piece);

/* n elements of a unit, from this one on, all of one piece or none of them coded, as fp32. */
void store_read(const struct store *store, uint32_t unit, uint64_t first, size_t n, float *out);

/* n parameters of a unit, from its element `first` on, all trained (with coded moments, or beside some, of one piece:
 * eps/store/moments.h), all frozen in the job's type, or all of one piece in bf16; other coded ones have no parameters
 * (asserted). part: as in struct parameters. Frozen ones, another host's, and those of an evaluation have no moments,
 * and no low halves in bf16. */
struct parameters store_parameters(const struct store *store, uint32_t unit, uint64_t first, size_t n, uint64_t part);

/* The tasks of the optimizer thread, for own units (asserted). slice: 0-based, of MODEL_SLICE elements.
 *
 * How the contributions to a unit become its update; the same for a whole step:
 *   DIRECT    one part, untied, eager: one pass folds and updates; store_update then only counts
 *   MOMENTS   AdamA, and SGD with plain momentum: each contribution is folded into the moments; store_update updates
 *             the weights
 *   SUM       Adam's tied units, all tied ones of several parts, and several parts of AdamW, or of SGD with Nesterov's
 *             momentum or none: they are summed; store_update folds the sum and updates the weights. Where there are
 *             accumulators, an untied unit takes one at its first fold and returns it in store_update. The relay
 *             guarantees that one is free (assert). Several parts of a tied unit: each of its visits has a sum, of
 *             which the lower one takes an accumulator, too; store_update adds the two
 *   HOLD      fenced: as SUM, in a buffer of the unit's own. Nothing else changes until store_update, which first
 *             multiplies the sum by hp->grad_scale. Without store_update, the step leaves no trace. The bits are those
 *             of an eager commit, unless that is MOMENTS
 * -EDOM: the slice is not finite; -EBADMSG: it is not what its sender summed; nothing has changed. -EIO: memory is
 * damaged: the slice has changed while it was folded, or a block has another sum; the unit is void. -ERANGE: done, but
 * a weight is not finite now, because a sum of finite slices overflowed or the learning rate is too high; the unit's
 * weights are void. */
enum store_fold { STORE_FOLD_DIRECT, STORE_FOLD_MOMENTS, STORE_FOLD_SUM, STORE_FOLD_HOLD };

struct store_contribution {
    const void *g; /* the slice, in an inbox; not trusted */
    enum number_type type;
    bool first; /* the first contribution to the slice's sum in this step */
    uint32_t part, visit;
    bool has_sum; /* the slice must have this sum (contribution_sum): */
    struct block_sum sum;
};

/* Whether the contribution, of n elements, has its sum, and is finite: 0, -EBADMSG, -EDOM. */
int store_check(const struct store *store, const struct store_contribution *contribution, uint64_t n);

int store_fold(struct store *store, uint32_t unit, uint32_t slice, const struct store_contribution *contribution,
               enum store_fold how, const struct hyper *hp);

/* With clip_update = d, the update u = mhat / (sqrt(vhat) + epsilon) of each tensor is divided by max(1, RMS(u) / d)
 * before it is multiplied by the learning rate (Shazeer & Stern, arXiv:1804.04235, section 6). In a tensor that spans
 * several units, each unit's piece is clipped by its own RMS, so that no unit waits for another. Returns 0 or -ERANGE,
 * as above. */
int store_update(struct store *store, uint32_t unit, enum store_fold how, const struct hyper *hp);

/* Makes a unit's other buffer current, after store_update of the unit, here or at its owner, and before its next fold.
 * So all hosts have the same buffer current. Does nothing without replay. updater_take calls it for an updater's
 * tasks. */
void store_swap(struct store *store, uint32_t unit);

/* All contributions to the unit are folded. Adds the sum of a tied unit's lower visit to that of the upper one, if they
 * are apart. Fenced, before store_sum_squares; eager, store_update does it. */
void store_join(struct store *store, uint32_t unit);

/* The sum of squares of a unit's held sum, with the same bits for every number of threads; infinite if a sum of
 * contributions has overflowed. The gradient's norm is the root of the sum of these over all units; tied weights count
 * once. */
double store_sum_squares(const struct store *store, uint32_t unit);

/* How contributions to a unit are folded. Visits of a tied unit are summed before the square, as are parts if
 * sums_parts (plan_sums_parts). Clipped updates need all moments first, so they are never DIRECT. */
enum store_fold store_fold_kind(const struct store *store, uint32_t unit, uint32_t n_parts, bool sums_parts);

#endif
