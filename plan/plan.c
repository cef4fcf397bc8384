#include "plan/plan.h"

#include "plan/layers.h"

#include <errno.h>

struct layout {
    uint64_t offset;
    uint64_t *bytes; /* (LEDGER_CATEGORIES) */
};

static uint64_t take(struct layout *l, enum ledger_category category, uint64_t bytes)
{
    const uint64_t at = l->offset, rounded = plan_align(bytes);

    l->offset += rounded;
    l->bytes[category] += bytes;
    l->bytes[LEDGER_OTHER] += rounded - bytes;
    return at;
}

/* The most that a layer up to `top` asks for. */
static uint64_t workspace_bytes(const struct model *model, const struct plan_setting *s, enum model_layer_kind top,
                                uint32_t n_rows, uint32_t n_tokens)
{
    uint64_t most = 0;

    for (enum model_layer_kind kind = MODEL_EMBEDDING; kind <= top; kind++) {
        uint64_t bytes = plan_workspace(model, s, kind, n_rows, n_tokens);
        if (most < bytes)
            most = bytes;
    }
    return most;
}

static void take_workspace(struct plan *plan, struct layout *l, uint64_t bytes)
{
    plan->workspace_bytes = bytes;
    plan->workspace = take(l, LEDGER_WORKSPACE, bytes);
    plan->arena_bytes = l->offset;
    plan->bytes[LEDGER_LIBRARY] = plan->setting.backend->library_bytes(plan->setting.n_threads);
}

/* Everything, in the order in which it lies. Nothing here can overflow: plan_check bounds the tokens by 2^32,
 * model_config_check the rest. */
static void lay_out(struct plan *plan, const struct model *model)
{
    const struct plan_setting *s = &plan->setting;
    const uint64_t value = number_bytes(s->precision), tokens = (uint64_t)s->share_rows * s->seq;
    const uint64_t boundary = tokens * model->config.width * value;
    struct layout l = {.bytes = plan->bytes};

    for (uint32_t i = 0; i < plan->choice.n_weight_buffers; i++)
        plan->weights[i] = take(&l, LEDGER_WEIGHTS, model->largest_unit * value);

    plan->n_boundaries = s->purpose == PLAN_TRAIN ? model->n_layers - 1 : 2;
    plan->boundaries = l.offset;
    for (uint32_t i = 0; i < plan->n_boundaries; i++)
        take(&l, LEDGER_STASH, boundary);
    plan->boundary_bytes = (l.offset - plan->boundaries) / plan->n_boundaries;

    if (s->purpose == PLAN_TRAIN) {
        plan->contribution = take(&l, LEDGER_CONTRIBUTION, model->largest_unit * sizeof(float));
        plan->gradient = take(&l, LEDGER_GRADIENT, boundary);
    }
    plan->running = take(&l, LEDGER_STATISTICS, tokens * 3 * sizeof(float));
    plan->losses = take(&l, LEDGER_STATISTICS, tokens * sizeof(double));
    plan->ids = take(&l, LEDGER_DATA, tokens * sizeof(uint32_t));
    plan->labels = take(&l, LEDGER_DATA, tokens * sizeof(uint32_t));
    take_workspace(plan, &l, workspace_bytes(model, s, MODEL_HEAD, plan->choice.microbatch, s->seq));
}

/* The same to generate. The head's logits have a place of their own, and its product needs no room. */
static void lay_out_generation(struct plan *plan, const struct model *model)
{
    const struct plan_setting *s = &plan->setting;
    const struct model_config *c = &model->config;
    const uint32_t tokens = s->seq < PLAN_GENERATE_TILE ? s->seq : PLAN_GENERATE_TILE;
    const uint64_t value = number_bytes(s->precision);
    struct layout l = {.bytes = plan->bytes};

    for (uint32_t u = 0; u < plan->choice.n_resident; u++) {
        take(&l, LEDGER_WEIGHTS, model->units[u].n * value);
        plan->resident_bytes += model->units[u].n * value;
    }
    for (uint32_t i = 0; plan->choice.n_resident < model->n_units && i < plan->choice.n_weight_buffers; i++)
        plan->weights[i] = take(&l, LEDGER_WEIGHTS, model->largest_unit * value);

    plan->cache = l.offset;
    for (uint32_t i = 0; i < c->n_layers; i++)
        take(&l, LEDGER_CACHE, s->backend->cache_bytes(s->seq, c->n_heads, c->width));
    plan->cache_bytes = (l.offset - plan->cache) / c->n_layers;

    plan->n_boundaries = 2;
    plan->boundaries = l.offset;
    for (uint32_t i = 0; i < plan->n_boundaries; i++)
        take(&l, LEDGER_STASH, (uint64_t)tokens * c->width * value);
    plan->boundary_bytes = (l.offset - plan->boundaries) / plan->n_boundaries;
    plan->ids = take(&l, LEDGER_DATA, tokens * sizeof(uint32_t));
    plan->logits = take(&l, LEDGER_DATA, c->vocabulary * sizeof(float));
    take_workspace(plan, &l, workspace_bytes(model, s, MODEL_NORM, 1, tokens));
}

void plan_lay_out(struct plan *out, const struct model *model, const struct plan_setting *setting,
                  const struct plan_choice *choice)
{
    *out = (struct plan){.setting = *setting, .choice = *choice};
    if (setting->purpose == PLAN_GENERATE)
        lay_out_generation(out, model);
    else
        lay_out(out, model);
}

uint64_t plan_total(const struct plan *plan)
{
    return plan->arena_bytes + plan->bytes[LEDGER_LIBRARY];
}

int plan_check(const struct model *model, const struct plan_setting *s, struct error *err)
{
    if (s->part_rows == 0 || s->share_rows < s->part_rows || s->seq == 0 || s->n_threads == 0)
        return error_set(err, -EINVAL,
                         "a share of %u rows in parts of %u rows of %u tokens on %u threads cannot be planned",
                         s->share_rows, s->part_rows, s->seq, s->n_threads);
    if (s->purpose == PLAN_GENERATE && s->share_rows != 1)
        return error_set(err, -EINVAL, "generating takes one row at a time, not %u", s->share_rows);
    if (s->seq > model->config.n_positions)
        return error_set(err, -EINVAL, "--seq %u is more than the model's %u positions", s->seq,
                         model->config.n_positions);
    if ((uint64_t)s->share_rows * s->seq > UINT32_MAX)
        return error_set(err, -EINVAL, "%u rows of %u tokens are too many for one worker: at most %u tokens",
                         s->share_rows, s->seq, UINT32_MAX);
    return 0;
}

int plan_check_choice(const struct model *model, const struct plan_setting *s, const struct plan_choice *c,
                      struct error *err)
{
    if (c->n_weight_buffers == 0 || c->n_weight_buffers > PLAN_MAX_WEIGHT_BUFFERS)
        return error_set(err, -EINVAL, "%u weight buffers: 1 to %d are possible", c->n_weight_buffers,
                         PLAN_MAX_WEIGHT_BUFFERS);
    if (c->microbatch == 0 || c->microbatch > s->part_rows)
        return error_set(err, -EINVAL, "--microbatch %u: a part has %u rows", c->microbatch, s->part_rows);
    if (c->n_resident > (s->purpose == PLAN_GENERATE ? model->n_units : 0))
        return error_set(err, -EINVAL, "%u units cannot stay on the device", c->n_resident);
    if (c->host_stash || c->n_kept || c->whole_head)
        return error_set(err, -EINVAL, "a plan that this device does not know");
    return 0;
}
