/* A plan has one offset a segment, not one a value: a value's place is the sum of the sizes before it in its segment,
 * computed when it is asked for. That needs values in the order of the layers that write them first, and a segment's
 * first layer to write the segment's lowest value. plan_may_cut sees to the latter: no cut lies inside a sum to which a
 * layer above it adds. */
#include "proto/plan/memory/segments.h"

struct plan_segment plan_segment_at(const struct plan_choice *choice, const struct model *model, uint32_t s)
{
    return (struct plan_segment){s > 0 ? choice->cuts[s - 1] : 0,
                                 s < choice->n_cuts ? choice->cuts[s] : model->n_layers};
}

static uint32_t find_segment(const struct plan_choice *choice, uint32_t layer)
{
    uint32_t s = 0;

    while (s < choice->n_cuts && choice->cuts[s] <= layer)
        s++;
    return s;
}

/* True if a layer of the block that is below `layer` adds to what is begun below it. */
static bool divides_sum(const struct model *model, uint32_t layer)
{
    const struct model_layer *below = &model->layers[layer - 1];

    for (const struct model_layer *l = below + 1; l < model->layers + model->n_layers; l++) {
        if (l->kind != below->kind || l->index != below->index)
            return false;
        for (uint32_t i = 0; i < l->edges.n_writes; i++)
            if (model->values.of[l->edges.writes[i]].first < layer)
                return true;
    }
    return false;
}

bool plan_may_cut(const struct model *model, uint32_t layer)
{
    const struct model_value *const of = model->values.of;

    if (model->layers[layer].kind == MODEL_EMBEDDING || divides_sum(model, layer))
        return false;
    for (const struct model_value *v = of; v < of + model->values.n && v->first < layer; v++)
        if (v->top >= layer && !v->stashed && !model_is_small(&model->values.shapes[v->shape]))
            return false;
    return true;
}

/* True of a value that lies in a segment's stored or inner ones. */
static bool is_placed(const struct model *model, const struct model_value *v)
{
    return v->stashed && !model_is_small(&model->values.shapes[v->shape]);
}

static bool writes_inner(const struct model *model, const struct model_layer *layer, uint32_t end)
{
    for (uint32_t i = 0; i < layer->edges.n_writes; i++) {
        const struct model_value *v = &model->values.of[layer->edges.writes[i]];
        if (is_placed(model, v) && v->top < end)
            return true;
    }
    return false;
}

uint32_t plan_again_end(const struct model *model, struct plan_segment segment)
{
    uint32_t end = segment.end;

    while (end > segment.first && !writes_inner(model, &model->layers[end - 1], segment.end))
        end--;
    return end;
}

struct plan_visits plan_again_of(const struct plan_choice *choice, const struct model *model, uint32_t s)
{
    const struct plan_segment segment = plan_segment_at(choice, model, s);
    const uint32_t first = model->layers[segment.first].first_visit;

    if (s == 0 || s == choice->n_cuts)
        return (struct plan_visits){first, 0};
    return (struct plan_visits){first, model->layers[plan_again_end(model, segment)].first_visit - first};
}

static bool reads_derivable(const struct model *model, const struct model_edges *edges)
{
    bool reads = false;

    for (uint32_t i = 0; i < edges->n_reads; i++)
        reads |= model->values.of[edges->reads[i]].chain > 0;
    return reads;
}

uint32_t plan_count_stored(const struct plan_choice *choice, const struct model *model)
{
    const uint32_t topmost = plan_segment_at(choice, model, choice->n_cuts).first;
    uint32_t n = model->n_layers - 1;

    for (uint32_t l = 1; choice->derives && l < model->n_layers; l++)
        n -= reads_derivable(model, &model->layers[l].edges);
    if (choice->derives)
        return n;
    return choice->n_cuts > 0 ? choice->cuts[0] - 1 + choice->n_cuts - 1 + model->n_layers - topmost
                              : model->n_layers - 1;
}

/* The first value that a segment's layers write. The head, which is the topmost, writes none. */
static uint32_t first_value(const struct model *model, struct plan_segment segment)
{
    const struct model_layer *first = &model->layers[segment.first];

    return first->edges.n_writes > 0 ? first->edges.writes[0] : model->values.n;
}

static bool is_inner(const struct model_value *v, struct plan_segment segment)
{
    return segment.first > 0 && v->top < segment.end;
}

/* Bytes of a segment's stored or inner values before this one. */
static uint64_t sum_before(const struct plan *plan, const struct model *model, struct plan_segment segment, bool inner,
                           uint32_t value)
{
    uint64_t bytes = 0;

    for (uint32_t i = first_value(model, segment); i < value && model->values.of[i].first < segment.end; i++) {
        const struct model_value *v = &model->values.of[i];
        if (is_placed(model, v) && is_inner(v, segment) == inner)
            bytes += plan->values[v->shape].bytes;
    }
    return bytes;
}

static uint64_t sum_all(const struct plan *plan, const struct model *model, uint32_t s, bool inner)
{
    return sum_before(plan, model, plan_segment_at(&plan->choice, model, s), inner, model->values.n);
}

uint64_t plan_place_segments(struct plan *plan, const struct model *model, uint64_t begin)
{
    plan->stored[0] = begin;
    for (uint32_t s = 0; s <= plan->choice.n_cuts; s++)
        plan->stored[s + 1] = plan->stored[s] + sum_all(plan, model, s, false);
    return plan_segments_end(plan, model, 0, model->n_layers - 1);
}

uint64_t plan_segment_value(const struct plan *plan, const struct model *model, uint32_t value)
{
    const struct model_value *v = &model->values.of[value];
    const uint32_t s = find_segment(&plan->choice, v->first);
    const struct plan_segment segment = plan_segment_at(&plan->choice, model, s);
    const bool inner = is_inner(v, segment);

    return plan->stored[s + inner] + sum_before(plan, model, segment, inner, value);
}

uint64_t plan_segments_end(const struct plan *plan, const struct model *model, uint32_t lowest, uint32_t topmost)
{
    uint64_t end = plan->stored[0];

    for (uint32_t s = find_segment(&plan->choice, lowest); s <= find_segment(&plan->choice, topmost); s++) {
        const uint64_t of_segment = plan->stored[s + 1] + sum_all(plan, model, s, true);
        end = end < of_segment ? of_segment : end;
    }
    return end;
}
