#include "device/plan.h"

#include "device/layers/layers.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum { NAMED_TERMS = 3 }; /* in a refusal: the largest ones say what to change */

struct layout {
    uint64_t offset;
    uint64_t *bytes; /* (LEDGER_CATEGORIES) */
};

static uint64_t take(struct layout *l, enum ledger_category category, uint64_t bytes)
{
    const uint64_t at = l->offset, rounded = (bytes + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;

    l->offset += rounded;
    l->bytes[category] += bytes;
    l->bytes[LEDGER_OTHER] += rounded - bytes;
    return at;
}

static uint64_t workspace_bytes(const struct model *model, const struct plan_options *o)
{
    uint64_t most = 0;

    for (enum model_layer_kind kind = MODEL_EMBEDDING; kind <= MODEL_HEAD; kind++) {
        uint64_t bytes = layer_table[kind]->workspace_bytes(model, o->ops, o->microbatch, o->seq, o->n_threads);
        if (most < bytes)
            most = bytes;
    }
    return most;
}

/* Everything, in the order in which it lies. Nothing here can overflow: check_options bounds the tokens by 2^32,
 * model_config_check the rest. */
static void lay_out(struct plan *plan, const struct model *model, const struct plan_options *o)
{
    const uint64_t tokens = (uint64_t)o->share_rows * o->seq;
    const uint64_t boundary = tokens * model->config.width * sizeof(float);
    const uint64_t unit = model->largest_unit * sizeof(float);
    struct layout l = {.bytes = plan->bytes};

    *plan = (struct plan){.options = *o};
    for (uint32_t i = 0; i < o->n_weight_buffers; i++)
        plan->weights[i] = take(&l, LEDGER_WEIGHTS, unit);

    plan->n_boundaries = o->train ? model->n_layers - 1 : 2;
    plan->boundaries = l.offset;
    for (uint32_t i = 0; i < plan->n_boundaries; i++)
        take(&l, LEDGER_STASH, boundary);
    plan->boundary_bytes = (l.offset - plan->boundaries) / plan->n_boundaries;

    if (o->train) {
        plan->contribution = take(&l, LEDGER_CONTRIBUTION, unit);
        plan->gradient = take(&l, LEDGER_GRADIENT, boundary);
    }
    plan->running = take(&l, LEDGER_STATISTICS, tokens * 3 * sizeof(float));
    plan->losses = take(&l, LEDGER_STATISTICS, tokens * sizeof(double));
    plan->ids = take(&l, LEDGER_DATA, tokens * sizeof(uint32_t));
    plan->labels = take(&l, LEDGER_DATA, tokens * sizeof(uint32_t));

    plan->workspace_bytes = workspace_bytes(model, o);
    plan->workspace = take(&l, LEDGER_WORKSPACE, plan->workspace_bytes);
    plan->arena_bytes = l.offset;
    plan->bytes[LEDGER_LIBRARY] = o->ops->library_bytes(o->n_threads);
}

/* What a tile of tokens needs: the head's logits have a place of their own, and its product needs no room. */
static uint64_t tile_workspace_bytes(const struct model *model, const struct plan_options *o, uint32_t n_tokens)
{
    uint64_t most = 0;

    for (enum model_layer_kind kind = MODEL_EMBEDDING; kind < MODEL_HEAD; kind++) {
        uint64_t bytes = layer_table[kind]->workspace_bytes(model, o->ops, 1, n_tokens, o->n_threads);
        if (most < bytes)
            most = bytes;
    }
    return most;
}

/* The same to generate, with the lowest n_resident units on the device. */
static void lay_out_generation(struct plan *plan, const struct model *model, const struct plan_options *o,
                               uint32_t n_resident)
{
    const uint32_t tokens = o->seq < PLAN_GENERATE_TILE ? o->seq : PLAN_GENERATE_TILE;
    const struct model_config *c = &model->config;
    struct layout l = {.bytes = plan->bytes};

    *plan = (struct plan){.options = *o, .n_boundaries = 2, .n_resident = n_resident};
    plan->options.microbatch = 1;
    for (uint32_t u = 0; u < n_resident; u++) {
        take(&l, LEDGER_WEIGHTS, model->units[u].n * sizeof(float));
        plan->resident_bytes += model->units[u].n * sizeof(float);
    }
    for (uint32_t i = 0; n_resident < model->n_units && i < o->n_weight_buffers; i++)
        plan->weights[i] = take(&l, LEDGER_WEIGHTS, model->largest_unit * sizeof(float));

    plan->cache = l.offset;
    for (uint32_t i = 0; i < c->n_layers; i++)
        take(&l, LEDGER_CACHE, o->ops->cache_bytes(o->seq, c->n_heads, c->width));
    plan->cache_bytes = (l.offset - plan->cache) / c->n_layers;

    plan->boundaries = l.offset;
    for (uint32_t i = 0; i < plan->n_boundaries; i++)
        take(&l, LEDGER_STASH, (uint64_t)tokens * c->width * sizeof(float));
    plan->boundary_bytes = (l.offset - plan->boundaries) / plan->n_boundaries;
    plan->ids = take(&l, LEDGER_DATA, tokens * sizeof(uint32_t));
    plan->logits = take(&l, LEDGER_DATA, c->vocabulary * sizeof(float));

    plan->workspace_bytes = tile_workspace_bytes(model, o, tokens);
    plan->workspace = take(&l, LEDGER_WORKSPACE, plan->workspace_bytes);
    plan->arena_bytes = l.offset;
    plan->bytes[LEDGER_LIBRARY] = o->ops->library_bytes(o->n_threads);
}

static uint64_t total(const struct plan *plan)
{
    return plan->arena_bytes + plan->bytes[LEDGER_LIBRARY];
}

static void lay_out_rows(struct plan *plan, const struct model *model, const struct plan_options *o, uint32_t rows)
{
    struct plan_options fixed = *o;

    fixed.microbatch = rows;
    lay_out(plan, model, &fixed);
}

/* Lays out with the most of something, from least to most, that the budget holds; with the least, if it does not hold
 * that. Bytes never fall as the number grows. */
static void lay_out_largest(struct plan *plan, const struct model *model, const struct plan_options *o,
                            void (*with)(struct plan *, const struct model *, const struct plan_options *, uint32_t n),
                            uint32_t least, uint32_t most)
{
    while (least < most) {
        const uint32_t n = least + (most - least + 1) / 2;
        with(plan, model, o, n);
        if (total(plan) <= o->budget)
            least = n;
        else
            most = n - 1;
    }
    with(plan, model, o, least);
}

/* All units if the budget holds them, else as many as leave room for the buffers of the others; or the least that can
 * do, if the budget does not hold that. A model of a few units can do with less than its buffers. */
static void lay_out_most_resident(struct plan *plan, const struct model *model, const struct plan_options *o)
{
    lay_out_generation(plan, model, o, model->n_units);
    const uint64_t all = total(plan);
    if (all <= o->budget)
        return;
    lay_out_largest(plan, model, o, lay_out_generation, 0, model->n_units - 1);
    if (all < total(plan))
        lay_out_generation(plan, model, o, model->n_units);
}

/* Rounded up, so that the figure suffices when it is typed back. */
static double mib(uint64_t bytes)
{
    return ceil((double)bytes / (1 << 20) * 10) / 10;
}

/* "stash 120.0 MiB, weights 54.0 MiB, workspace 31.5 MiB": the largest terms. */
static void name_terms(char *text, size_t n, const struct plan *plan)
{
    bool named[LEDGER_CATEGORIES] = {false};
    size_t used = 0;

    for (int i = 0; i < NAMED_TERMS; i++) {
        int largest = -1;
        for (int c = 0; c < LEDGER_CATEGORIES; c++)
            if (!named[c] && (largest < 0 || plan->bytes[c] > plan->bytes[largest]))
                largest = c;
        named[largest] = true;
        int wanted = snprintf(text + used, n - used, "%s%s %.1f MiB", i ? ", " : "",
                              ledger_name((enum ledger_category)largest), mib(plan->bytes[largest]));
        if (wanted < 0 || (size_t)wanted >= n - used)
            return;
        used += (size_t)wanted;
    }
}

static int refuse(struct plan *plan, const struct model *model, const struct plan_options *o, struct error *err)
{
    const uint32_t rows = plan->options.microbatch;
    const uint64_t needed = total(plan), budget = o->budget;
    char terms[160], otherwise[96] = "";

    name_terms(terms, sizeof terms, plan);
    if (o->generate)
        return error_set(err, -ENOSPC,
                         "this model needs at least %.1f MiB (%" PRIu64
                         " bytes) of device memory to generate up to %u tokens (%s); --device-mem is %.1f MiB (%" PRIu64
                         " bytes)",
                         mib(needed), needed, o->seq, terms, (double)budget / (1 << 20), budget);
    if (rows > 1) {
        lay_out_rows(plan, model, o, 1);
        snprintf(otherwise, sizeof otherwise, ", or %.1f MiB (%" PRIu64 " bytes) with microbatches of 1 row",
                 mib(total(plan)), total(plan));
    }
    return error_set(err, -ENOSPC,
                     "this model needs at least %.1f MiB (%" PRIu64
                     " bytes) of device memory with microbatches of %u row%s"
                     " (%s)%s; --device-mem is %.1f MiB (%" PRIu64 " bytes)",
                     mib(needed), needed, rows, rows > 1 ? "s" : "", terms, otherwise, (double)budget / (1 << 20),
                     budget);
}

static int check_options(const struct model *model, const struct plan_options *o, struct error *err)
{
    if (o->part_rows == 0 || o->share_rows < o->part_rows || o->seq == 0 || o->n_threads == 0)
        return error_set(err, -EINVAL,
                         "a share of %u rows in parts of %u rows of %u tokens on %u threads cannot be planned",
                         o->share_rows, o->part_rows, o->seq, o->n_threads);
    if (o->generate && (o->train || o->share_rows != 1))
        return error_set(err, -EINVAL, "generating takes one row at a time, not %u, and does not train", o->share_rows);
    if (o->n_weight_buffers == 0 || o->n_weight_buffers > PLAN_MAX_WEIGHT_BUFFERS)
        return error_set(err, -EINVAL, "%u weight buffers: 1 to %d are possible", o->n_weight_buffers,
                         PLAN_MAX_WEIGHT_BUFFERS);
    if (o->microbatch > o->part_rows)
        return error_set(err, -EINVAL, "--microbatch %u is more than the %u rows of a part", o->microbatch,
                         o->part_rows);
    if (o->seq > model->config.n_positions)
        return error_set(err, -EINVAL, "--seq %u is more than the model's %u positions", o->seq,
                         model->config.n_positions);
    if ((uint64_t)o->share_rows * o->seq > UINT32_MAX)
        return error_set(err, -EINVAL, "%u rows of %u tokens are too many for one worker: at most %u tokens",
                         o->share_rows, o->seq, UINT32_MAX);
    return 0;
}

int plan_make(struct plan *out, const struct model *model, const struct plan_options *options, struct error *err)
{
    int rc = check_options(model, options, err);

    if (rc != 0)
        return rc;
    if (options->generate)
        lay_out_most_resident(out, model, options);
    else if (options->microbatch)
        lay_out(out, model, options);
    else
        lay_out_largest(out, model, options, lay_out_rows, 1, options->part_rows);
    return total(out) <= options->budget ? 0 : refuse(out, model, options, err);
}
