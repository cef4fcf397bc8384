#include "plan/layers.h"

static uint64_t take(uint64_t *at, uint64_t bytes)
{
    const uint64_t taken = *at;

    *at += plan_align(bytes);
    return taken;
}

void plan_block(struct plan_block *out, const struct model *model, const struct plan_setting *setting, uint32_t n_rows,
                uint32_t n_tokens)
{
    const struct model_config *c = &model->config;
    const uint64_t tokens = (uint64_t)n_rows * n_tokens;
    const uint64_t column = tokens * number_bytes(setting->precision), statistic = tokens * sizeof(float);
    const uint64_t mlp = 2 * (uint64_t)c->inner_width, qkv = 3 * (uint64_t)c->width;
    uint64_t at = 0;

    out->normed = take(&at, column * c->width);
    out->statistics = take(&at, statistic * 2);
    out->qkv = take(&at, column * qkv);
    out->attended = take(&at, column * c->width);
    out->log_sum_exp = take(&at, statistic * c->n_heads);
    out->residual = take(&at, column * c->width);
    out->pre = take(&at, column * (mlp > qkv ? mlp : qkv));
    out->active = out->pre + column * c->inner_width;
    out->qkv_gradient = out->pre;
    out->scratch =
        take(&at, setting->backend->scratch_bytes(n_rows, n_tokens, c->n_heads, c->width, setting->n_threads));
    out->bytes = at;
}

/* Logits of one tile and the largest chunk. */
static uint64_t head_bytes(const struct model *model, uint64_t tokens)
{
    const struct model_layer *head = &model->layers[model->n_layers - 1];
    uint64_t most = 0;

    for (uint32_t i = 0; i < head->n_visits; i++) {
        const struct model_unit *unit = &model->units[model->visits[head->first_visit + i]];
        if (most < model->pieces[unit->first_piece].n_rows)
            most = model->pieces[unit->first_piece].n_rows;
    }
    return (tokens < PLAN_HEAD_TILE ? tokens : PLAN_HEAD_TILE) * most * sizeof(float);
}

uint64_t plan_workspace(const struct model *model, const struct plan_setting *setting, enum model_layer_kind kind,
                        uint32_t n_rows, uint32_t n_tokens)
{
    const uint64_t tokens = (uint64_t)n_rows * n_tokens;
    struct plan_block block;

    switch (kind) {
    case MODEL_EMBEDDING:
        break;
    case MODEL_BLOCK:
        plan_block(&block, model, setting, n_rows, n_tokens);
        return block.bytes;
    case MODEL_NORM:
        return tokens * 2 * sizeof(float); /* statistics */
    case MODEL_HEAD:
        return head_bytes(model, tokens);
    }
    return 0;
}
