#include "proto/plan/memory/data.h"

uint32_t plan_row_outputs(const struct plan_goal *goal, uint32_t n_labels)
{
    return plan_has_pairs(goal) ? 1 : n_labels;
}

struct plan_data plan_data_of(const struct plan_goal *goal, uint32_t n_labels)
{
    const uint64_t batch = goal->batch, field = batch * goal->seq * sizeof(uint32_t),
                   positions = goal->packs ? field : 0,
                   rows = n_labels || goal->source ? batch * sizeof(struct plan_row) : 0,
                   references = plan_has_pairs(goal) ? batch * sizeof(float) : 0;
    struct plan_data out = {0};

    for (int i = 0; i < 2; i++) {
        out.buffers[i].ids = out.bytes;
        out.buffers[i].labels = out.bytes + field;
        out.buffers[i].positions = out.bytes + 2 * field;
        out.buffers[i].rows = out.buffers[i].positions + positions;
        out.buffers[i].references = out.buffers[i].rows + rows;
        out.bytes = out.buffers[i].references + references;
    }
    out.logits = out.bytes;
    out.bytes += batch * plan_row_outputs(goal, n_labels) * sizeof(float);
    return out;
}

int plan_divide_rows(struct model_config *config, const struct plan_goal *goal, struct error *err)
{
    const bool parts = goal->purpose == PLAN_GENERATE && goal->source == goal->seq && model_has_source(config);

    if (!parts)
        return model_divide_rows(config, goal->source, goal->seq, err);
    model_part_rows(config, goal->seq);
    return 0;
}

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

uint64_t plan_generate_sources(const struct plan_goal *goal)
{
    return rounded((uint64_t)goal->batch * goal->seq * sizeof(uint32_t));
}

uint64_t plan_generate_logits(const struct plan_goal *goal)
{
    return plan_generate_sources(goal) * (goal->source > 0 ? 2 : 1);
}

uint64_t plan_data_bytes(const struct plan_goal *goal, const struct model_config *config)
{
    if (goal->purpose != PLAN_GENERATE)
        return plan_data_of(goal, config->n_labels).bytes;
    return plan_generate_logits(goal) + rounded((uint64_t)goal->batch * config->vocabulary * sizeof(float));
}
