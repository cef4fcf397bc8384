#include "plan/layers.h"

#include "plan/units.h"

static uint64_t take(uint64_t *at, uint64_t bytes)
{
    const uint64_t taken = *at;

    *at += plan_align(bytes);
    return taken;
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
    out->scratch =
        take(&workspace, setting->backend->scratch_bytes(n_rows, n_tokens, c->n_heads, c->width, setting->n_threads));
    out->bytes = workspace;
    out->kept_bytes = apart;
}

/* Logits of one tile and the largest unit, or of all of them. */
static uint64_t head_bytes(const struct plan *plan, const struct model *model, uint64_t tokens)
{
    const struct model_layer *head = plan_head(model);
    uint64_t n = model->config.vocabulary;

    if (!plan->one_pass)
        n = model->pieces[model->units[model->visits[head->first_visit]].first_piece].n_rows;
    return (tokens < PLAN_HEAD_TILE ? tokens : PLAN_HEAD_TILE) * n * sizeof(float);
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
