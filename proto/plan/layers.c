#include "proto/plan/layers.h"

#include "proto/plan/units.h"

static uint64_t take(uint64_t *at, uint64_t bytes)
{
    const uint64_t taken = *at;

    *at += plan_align(bytes);
    return taken;
}

/* Of attention, forward and backward. */
static uint64_t scratch_bytes(const struct model *model, const struct plan_setting *setting, uint32_t n_rows,
                              uint32_t n_tokens)
{
    const struct model_config *c = &model->config;
    const uint64_t own = setting->backend->scratch_bytes(n_rows, n_tokens, c->n_heads, c->width, setting->n_threads);
    struct plan_attention_scratch scratch;

    if (plan_attention_way(model, setting) == PLAN_ATTENTION_OWN)
        return own;
    plan_attention_lay_out(&scratch, setting->attention, n_rows, n_tokens, c->n_heads, c->width);
    return scratch.bytes;
}

enum plan_attention plan_attention_way(const struct model *model, const struct plan_setting *setting)
{
    const bool suits =
        setting->purpose == PLAN_TRAIN && setting->precision == NUMBER_BF16 && model->config.dropout_attention == 0;

    return suits ? setting->attention : PLAN_ATTENTION_OWN;
}

void plan_block(struct plan_block *out, const struct model *model, const struct plan_setting *setting, uint32_t n_rows,
                uint32_t n_tokens, bool kept)
{
    const struct model_config *c = &model->config;
    const uint64_t tokens = (uint64_t)n_rows * n_tokens, statistic = tokens * sizeof(float);
    const uint64_t width = tokens * number_bytes(setting->precision) * c->width, qkv = 3 * width;
    const uint64_t inner = tokens * number_bytes(setting->precision) * c->inner_width;
    uint64_t apart = 0, workspace = 0, *at = kept ? &apart : &workspace;

    out->normed = take(&workspace, width);
    out->statistics = take(&workspace, statistic * 2);
    out->qkv = take(at, qkv);
    out->attended = take(at, width);
    out->log_sum_exp = take(at, statistic * c->n_heads);
    out->residual = take(at, width);
    if (kept) {
        out->pre = take(at, inner);
        out->active = out->qkv_gradient = take(&workspace, inner > qkv ? inner : qkv);
    } else {
        out->pre = out->qkv_gradient = take(at, 2 * inner > qkv ? 2 * inner : qkv);
        out->active = out->pre + inner;
    }
    out->scratch = take(&workspace, scratch_bytes(model, setting, n_rows, n_tokens));
    out->bytes = workspace;
    out->kept_bytes = apart;
}

/* Logits of one tile and the largest unit, or of all of them, and then what they add up. */
static uint64_t head_bytes(const struct plan *plan, const struct model *model, uint64_t tokens)
{
    const struct model_layer *head = plan_head(model);
    const uint64_t width = model->config.width;
    uint64_t n = 0;

    for (uint32_t i = 0; i < (plan->one_pass ? head->n_visits : 1); i++)
        n += plan_unit_room(model, model->visits[head->first_visit + i], plan->head_pad) / width;
    if (plan->one_pass && plan->head_sums)
        n += width;
    return (tokens < plan->head_tile ? tokens : plan->head_tile) * n * sizeof(float);
}

uint64_t plan_workspace(const struct plan *plan, const struct model *model, enum model_layer_kind kind, uint32_t n_rows,
                        uint32_t n_tokens)
{
    const uint64_t tokens = (uint64_t)n_rows * n_tokens;
    struct plan_block block;

    switch (kind) {
    case MODEL_EMBEDDING:
        break;
    case MODEL_BLOCK:
        plan_block(&block, model, &plan->setting, n_rows, n_tokens, plan->choice.n_kept == model->config.n_layers);
        return block.bytes;
    case MODEL_NORM:
        return tokens * 2 * sizeof(float); /* statistics */
    case MODEL_HEAD:
        return head_bytes(plan, model, tokens);
    }
    return 0;
}
