/* Each term is computed by the function that the daemon also sizes its allocation with, or repeats that allocation's
 * formula. One that is missing here is not an estimate that is a little low: the job is admitted, and fails while it
 * loads.
 *
 * The inbox is sized first, as training counts sums for its slots; the total comes last, and is what decides. */
#include "proto/plan/memory/host.h"

#include "proto/plan/memory/checksums.h"
#include "proto/plan/memory/coded.h"
#include "proto/plan/memory/data.h"
#include "proto/plan/memory/division.h"
#include "proto/plan/memory/files.h"

enum {
    MIN_SLOTS = 2,
    MAX_SLOTS = 4,    /* slots of an inbox besides slot 0, unless contributions wait in it: 64 MiB in transfer */
    ACCUMULATORS = 2, /* parts that are summed: for the unit being contributed, and for the one above, being updated */
    NO_INBOX = 64,    /* bytes without contributions: a segment is never empty */
};

/* The minimum of slots: for all slices of the largest unit, within limits. */
static void size_inbox(struct plan_host *out, const struct model *model, const struct plan_host_setting *s)
{
    out->n_slots = MIN_SLOTS;
    for (uint32_t u = 0; u < model->n_units; u++)
        if (model->units[u].n_slices > out->n_slots)
            out->n_slots = model->units[u].n_slices;
    if (out->n_slots > MAX_SLOTS)
        out->n_slots = MAX_SLOTS;
    out->slot_bytes = model_slot_bytes(model, s->goal.grad);
    out->inbox_bytes = s->goal.purpose == PLAN_TRAIN ? (1 + out->n_slots) * out->slot_bytes : NO_INBOX;
    out->inbox_sums = s->goal.checks_memory ? (1 + out->n_slots) * sizeof(struct block_sum) : 0;
}

/* n_hosts <= n_parts: a job on several hosts has several parts, even if this host has one of them. */
static uint32_t count_accumulators(const struct plan_host_setting *s)
{
    const bool several = s->goal.n_parts > 1 || s->n_own > 0;

    return plan_sums_parts(&s->goal) && several && !plan_updates_last(&s->goal) ? ACCUMULATORS : 0;
}

uint64_t plan_host_sums(const struct model *model, const struct plan_host_setting *s)
{
    struct plan_own own;

    plan_own(&own, model, s->goal.precision, s->own_first, s->n_own);
    return count_accumulators(s) * own.accumulator_bytes + plan_tied_bytes(&own, &s->goal);
}

uint64_t plan_tied_bytes(const struct plan_own *own, const struct plan_goal *goal)
{
    return plan_tied_sums(goal) * own->tied_n * (goal->fenced ? number_bytes(goal->sums) : sizeof(float));
}

/* Moments, and sums: with fenced commit one sum per unit, which also serves parts. */
static void add_training(struct plan_host *out, const struct model *model, const struct plan_host_setting *s)
{
    struct plan_checksums sums;
    struct plan_own own;

    plan_own(&own, model, s->goal.precision, s->own_first, s->n_own);
    const uint64_t n = own.trained_n, moment = plan_moment_bytes(model, &own, s->goal.moments);
    out->bytes[LEDGER_MASTER] = s->goal.precision != NUMBER_FP32 && !s->goal.no_master ? n * sizeof(int16_t) : 0;
    out->bytes[LEDGER_FIRST_MOMENT] = plan_moments(&s->goal) > 0 ? moment : 0;
    out->bytes[LEDGER_SECOND_MOMENT] = plan_moments(&s->goal) > 1 ? moment : 0;
    out->bytes[LEDGER_NORMS] = plan_norms_bytes(&s->goal, own.n_norm_maps);
    out->bytes[LEDGER_TIED] = plan_tied_bytes(&own, &s->goal);
    out->bytes[LEDGER_SUM] = s->goal.fenced ? n * number_bytes(s->goal.sums) : 0;
    out->n_accumulators = count_accumulators(s);
    out->bytes[LEDGER_ACCUMULATORS] = out->n_accumulators * own.accumulator_bytes;
    plan_checksums(&sums, model, &own, &s->goal, s->replay, out->n_accumulators);
    out->bytes[LEDGER_CHECKSUMS] = sums.bytes + out->n_workers * out->inbox_sums;
}

/* Tables of units and visits, and the job's texts. */
static uint64_t host_table_bytes(const struct model *model, const struct plan_host_setting *s)
{
    struct plan_host_files files;
    uint64_t bytes = ledger_table(s->config_bytes) + ledger_table(s->side_bytes) + ledger_table(s->files_bytes) +
                     ledger_table(s->hosts_tables) + ledger_table(plan_load_bytes(model, s->n_files, s->header_bytes));

    bytes += ledger_table(model->n_visits * sizeof(uint32_t));                        /* slices of each visit */
    bytes += ledger_table(model->n_units * sizeof(double));                           /* a fenced step's squares */
    bytes += ledger_table(model->n_units * sizeof(uint32_t));                         /* number of its folds */
    bytes += 2 * ledger_table(plan_host_ordered(model, &s->goal) * sizeof(uint32_t)); /* homes and units of visits */
    bytes += ledger_table(plan_host_frozen(model, &s->goal) * sizeof(uint32_t));      /* frozen units */
    if (s->replay)
        bytes += ledger_table(model->n_units); /* which of its two buffers is current */
    if (s->goal.purpose == PLAN_TRAIN) {
        bytes += ledger_table(model->n_units * sizeof(float *));   /* where each unit's sum is */
        bytes += ledger_table(model->n_units * sizeof(uint64_t));  /* number of its updates */
        bytes += ledger_table(model->n_pieces * sizeof(uint64_t)); /* how many of these each piece lacks */
        bytes += ledger_table(plan_rewire(model).bytes);
        if (s->goal.moments == NUMBER_CODED)
            bytes += ledger_table(model->n_pieces * (uint64_t)PLAN_CODED_PLACE); /* where each piece's moments are */
        plan_host_files(&files, model, plan_moments(&s->goal), s->goal.moments);
        bytes += ledger_table(files.bytes);
        bytes += ledger_table(model->n_units * (uint64_t)PLAN_HOST_SAVES); /* flags of each save in progress */
        if (plan_has_run(model, s->goal.precision != NUMBER_FP32 || s->goal.moments != NUMBER_FP32 ||
                                    s->goal.base != FORM_VALUES))
            bytes += PLAN_HOST_RUN_BYTES;
    }
    return bytes;
}

static void add_weights(struct plan_host *out, const struct model *model, const struct plan_host_setting *s)
{
    struct plan_own own;

    plan_own(&own, model, s->goal.precision, s->own_first, s->n_own);
    out->n_ring = plan_ring_slots(&own, s->own_parts);
    out->bytes[LEDGER_WEIGHTS] = plan_weights_bytes(&own, out->n_ring);
    out->bytes[LEDGER_REPLAY] = s->replay ? plan_replay_bytes(&own) : 0;
}

void plan_host(struct plan_host *out, const struct model *model, const struct plan_host_setting *s)
{
    const uint32_t n_parts = plan_host_parts(s);

    *out = (struct plan_host){.n_workers = s->n_workers < n_parts ? s->n_workers : n_parts};
    size_inbox(out, model, s);
    out->replay = s->replay ? PLAN_REPLAY_ON : PLAN_REPLAY_NONE;
    add_weights(out, model, s);
    out->bytes[LEDGER_INBOX] = out->n_workers * out->inbox_bytes + s->hosts_bytes;
    out->bytes[LEDGER_STASH] = s->host_stash_bytes;
    out->bytes[LEDGER_DATA] = plan_data_bytes(&s->goal, model);
    out->bytes[LEDGER_OTHER] = host_table_bytes(model, s);
    if (s->goal.purpose == PLAN_TRAIN)
        add_training(out, model, s);
    for (int c = 0; c < LEDGER_CATEGORIES; c++)
        out->total += out->bytes[c];
}
