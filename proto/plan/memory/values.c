/* An address is a base and an index. So all places of a shape lie side by side, and gradients of a shape are placed
 * as one range.
 *
 * Stashed values have a place each, from their forward to their backward. Passing ones are needed by neighbours alone,
 * and take turns. Gradients come when values begin to be done with, and are placed over them: where exactly follows
 * from which layers each of them is there for (struct life). */
#include "proto/plan/memory/values.h"

#include "proto/plan/memory/chains.h"
#include "proto/plan/memory/layers.h"
#include "proto/plan/memory/segments.h"
#include "proto/plan/memory/units.h"

#include <assert.h>

static bool values_is_training(const struct plan *plan)
{
    return plan->setting.goal.purpose == PLAN_TRAIN;
}

uint64_t plan_shape_bytes(const struct plan *plan, const struct model_shape *shape)
{
    const struct plan_setting *s = &plan->setting;
    const uint64_t each = plan_element_bytes(plan, shape);

    if (s->goal.purpose == PLAN_GENERATE && !model_is_small(shape)) /* rows that are not joined begin apart */
        return (plan->choice.microbatch - 1) * plan_align(plan_row_tile(plan) * each) + plan_row_tile(plan) * each;
    return plan_shape_elements(shape, s->share_rows, s->goal.seq) * each;
}

/* What eps plan calls activation checkpoints. Evaluation keeps nothing for backward, and has only what passes. */
uint64_t plan_stash_bytes(const struct plan *plan, const struct model *model)
{
    uint64_t bytes = 0;

    if (plan->choice.n_cuts > 0)
        return plan_segments_end(plan, model, 0, model->n_layers - 1) - plan->stored[0];
    if (plan->choice.derives)
        return plan_most_derived(plan, model);
    for (const struct model_shape *s = model->values.shapes; s < model->values.shapes + model->values.n_shapes; s++)
        bytes += model_is_small(s)
                     ? 0
                     : (values_is_training(plan) ? s->n_stashed : s->n_forward) * plan_shape_bytes(plan, s);
    return bytes;
}

/* The ways of a plan to store values: none (evaluation), segments, derived chains, or all. Small values, of rows or
 * parts, have places of their own in each of them. */
uint64_t plan_value(const struct plan *plan, const struct model *model, uint32_t value)
{
    const struct model_value *v = &model->values.of[value];
    const struct plan_values *values = &plan->values[v->shape];

    if (!values_is_training(plan) && !model_is_small(&model->values.shapes[v->shape]))
        return values->passing + v->forward_place * values->bytes;
    if (plan->choice.n_cuts > 0 && v->stashed && !model_is_small(&model->values.shapes[v->shape]))
        return plan_segment_value(plan, model, value);
    if (plan->choice.derives && v->stashed)
        return (v->chain > 0 ? plan->chains[v->chain - 1] : values->stashed) + v->stored_place * values->bytes;
    return (v->stashed ? values->stashed : values->passing) + v->place * values->bytes;
}

/* The head's place may be wider than the others. */
uint64_t plan_gradient(const struct plan *plan, const struct model *model, uint32_t value)
{
    const struct model_value *v = &model->values.of[value];
    const struct model_value *of_head = &model->values.of[plan_head(model)->edges.reads[0]];
    const struct plan_values *values = &plan->values[v->gradient_shape];

    if (v->gradient_shape == of_head->gradient_shape && v->gradient_place == of_head->gradient_place)
        return plan->gradient;
    return values->gradients + v->gradient_place * values->bytes;
}

/* ---- places that are taken in turn ---- */

/* Gradients of a shape, apart from the head's. That one has its own place, as it may be summed in fp32. */
static uint32_t count_gradients(const struct model *model, uint32_t shape)
{
    const struct model_shape *s = &model->values.shapes[shape];
    const uint32_t of_head = model->values.of[plan_head(model)->edges.reads[0]].gradient_shape;

    return model_is_small(s) || s->n_gradients == 0 ? 0 : s->n_gradients - (shape == of_head);
}

/* The layers, lowest .. topmost, in whose backward something is there. */
struct life {
    uint32_t lowest, topmost;
};

static bool are_together(struct life a, struct life b)
{
    return a.lowest <= b.topmost && b.lowest <= a.topmost;
}

static struct life life_of_chain(const struct model_chain *chain)
{
    return (struct life){chain->lowest, chain->topmost};
}

static struct life life_of_gradients(const struct model_shape *shape)
{
    return (struct life){shape->lowest, shape->topmost};
}

/* What is in the way. */
struct ranges {
    uint64_t at[3 * MODEL_SHAPES + MODEL_CHAINS + 2], end[3 * MODEL_SHAPES + MODEL_CHAINS + 2];
    uint32_t n;
};

static void values_add_range(struct ranges *ranges, uint64_t at, uint64_t bytes)
{
    if (bytes > 0)
        ranges->at[ranges->n] = at, ranges->end[ranges->n++] = at + bytes;
}

/* Stashed values that backward still reads when this life begins, with its topmost layer, or in whose place a layer
 * works (model_passage): those that no higher layer writes. They are the first of each shape, as places ascend with
 * layers. */
static void add_stashed(struct ranges *ranges, const struct plan *plan, const struct model *model, struct life life)
{
    const struct model_value *const of = model->values.of;
    uint32_t done[MODEL_SHAPES] = {0};

    if (plan->choice.n_cuts > 0)
        values_add_range(ranges, plan->stored[0],
                         plan_segments_end(plan, model, life.lowest, life.topmost) - plan->stored[0]);
    for (uint32_t i = model->values.n; i-- > 0 && of[i].first > life.topmost;)
        done[of[i].shape] += of[i].stashed && !(plan->choice.derives && of[i].chain > 0);
    for (uint32_t i = 0; i < model->values.n_shapes; i++) {
        const struct model_shape *s = &model->values.shapes[i];
        const struct plan_values *values = &plan->values[i];
        if (model_is_small(s))
            continue;
        if (plan->choice.n_cuts == 0)
            values_add_range(ranges, values->stashed, (plan_count_stashed(plan, s) - done[i]) * values->bytes);
        values_add_range(ranges, values->passing, s->n_passing * values->bytes);
    }
}

/* The lowest place from `at` on for so many bytes. A range may begin anywhere, so after each move all are looked at
 * again; at most once for each range. */
static uint64_t find_lowest(const struct ranges *ranges, uint64_t at, uint64_t bytes)
{
    bool moved;

    do {
        moved = false;
        for (uint32_t i = 0; i < ranges->n; i++)
            if (at < ranges->end[i] && ranges->at[i] < at + bytes)
                at = ranges->end[i], moved = true;
    } while (moved);
    return at;
}

uint64_t plan_gradients_bytes(const struct plan *plan, const struct model *model, uint32_t shape)
{
    return count_gradients(model, shape) * plan->values[shape].bytes;
}

/* The largest shape whose bit is not in the set `placed`; of equal ones the first. */
static uint32_t values_find_next(const struct plan *plan, const struct model *model, uint64_t placed)
{
    uint64_t most = 0;
    uint32_t next = MODEL_SHAPES;

    for (uint32_t i = 0; i < model->values.n_shapes; i++)
        if (!(placed >> i & 1) && plan_gradients_bytes(plan, model, i) > most)
            most = plan_gradients_bytes(plan, model, i), next = i;
    return next;
}

/* A chain's values are there in forward, too, when no higher layer has stashed anything yet. n: how many are placed
 * already. */
static void add_chains(struct ranges *ranges, const struct plan *plan, const struct model *model, uint32_t n,
                       struct life life)
{
    const struct model_chain *chains = model->values.chains;

    for (uint32_t i = 0; i < n; i++)
        if (are_together(life, life_of_chain(&chains[i])))
            values_add_range(ranges, plan->chains[i], plan_chain_bytes(plan, &chains[i]));
}

static uint64_t values_later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* From `fixed` on nothing has a place of its own. Chains are placed before gradients, in the order of the model,
 * each at the lowest place that is free. */
static uint64_t place_chains(struct plan *plan, const struct model *model, uint64_t begin, uint64_t fixed)
{
    uint64_t end = fixed;

    for (uint32_t i = 0; plan->choice.derives && i < model->values.n_chains; i++) {
        const struct model_chain *chain = &model->values.chains[i];
        const uint64_t bytes = plan_chain_bytes(plan, chain);
        struct ranges ranges = {.n = 0};
        add_stashed(&ranges, plan, model, life_of_chain(chain));
        add_chains(&ranges, plan, model, i, life_of_chain(chain));
        values_add_range(&ranges, plan->gradient, fixed - plan->gradient);
        plan->chains[i] = find_lowest(&ranges, begin, bytes);
        end = values_later(end, plan->chains[i] + bytes);
    }
    return end;
}

/* The largest first: small ones fit into the gaps that it leaves. */
void plan_take_turns(struct plan *plan, const struct model *model, struct plan_turns *turns)
{
    const struct model_shape *shapes = model->values.shapes;
    const uint64_t fixed = turns->end, before = place_chains(plan, model, turns->begin, fixed);
    const uint32_t n_chains = plan->choice.derives ? model->values.n_chains : 0;
    uint64_t at[MODEL_SHAPES], placed = 0; /* placed: a set of shapes */
    static_assert(MODEL_SHAPES <= 64, "a bit for each");

    turns->chains = before - fixed;
    turns->gradients = 0;
    turns->end = before;
    for (uint32_t i; (i = values_find_next(plan, model, placed)) < MODEL_SHAPES; placed |= UINT64_C(1) << i) {
        const struct life life = life_of_gradients(&shapes[i]);
        const uint64_t all = plan_gradients_bytes(plan, model, i);
        const uint32_t n = count_gradients(model, i);
        struct ranges ranges = {.n = 0};
        add_stashed(&ranges, plan, model, life);
        add_chains(&ranges, plan, model, n_chains, life);
        values_add_range(&ranges, plan->gradient, fixed - plan->gradient);
        for (uint32_t k = 0; k < model->values.n_shapes; k++)
            if (placed >> k & 1 && are_together(life, life_of_gradients(&shapes[k])))
                values_add_range(&ranges, at[k], plan_gradients_bytes(plan, model, k));
        at[i] = find_lowest(&ranges, turns->begin, all);
        plan->values[i].gradients =
            at[i] - (shapes[i].n_gradients - n) * plan->values[i].bytes; /* the head's is first */
        turns->gradients += at[i] >= before ? n * plan_shape_bytes(plan, &shapes[i]) : 0;
        turns->end = values_later(turns->end, at[i] + all);
    }
    /* Counted is what lies behind all values. What lies over them is memory that the stash has. */
    turns->gradients = turns->gradients < turns->end - before ? turns->gradients : turns->end - before;
}

/* ---- tiles ---- */

static unsigned region_of(enum model_role role)
{
    return role == MODEL_INPUT ? 0 : role == MODEL_OUTPUT ? 1 : 2;
}

/* True if a layer cannot work on what is stored, which is fp32: reading it in bf16, or adding to it. */
static bool is_converted(const struct plan *plan, const struct model_shape *shape, const struct model_operand *o)
{
    if (!shape->wide || o->passes)
        return false;
    return plan->setting.goal.precision != NUMBER_FP32 || (o->stores && !o->begins);
}

static uint64_t memory_values_take(uint64_t *end, uint64_t bytes)
{
    const uint64_t at = plan_align(*end);

    *end = at + bytes;
    return at;
}

/* A gradient that is made where the first output's was needs a tile only if it is added to a sum. */
void plan_tiles(struct plan_tiles *out, const struct plan *plan, const struct model *model,
                const struct model_passage *passage, bool backward)
{
    const struct plan_shape most = plan_shape_of(plan);

    *out = (struct plan_tiles){0};
    for (uint32_t i = 0; i < passage->n[backward]; i++) {
        const struct model_operand *o = &passage->operands[backward][i];
        const struct model_shape *shape = &model->values.shapes[o->shape];
        const uint64_t n = plan_shape_elements(shape, most.n_rows, most.n_tokens);
        uint64_t *const end = &out->bytes[region_of((enum model_role)o->role)];
        out->of[i] = (struct plan_tile){PLAN_NO_TILE, PLAN_NO_TILE};
        if (model_is_small(shape))
            continue;
        if (plan_is_on_host(plan, shape) && !(o->passes && !shape->wide))
            out->of[i].stored = memory_values_take(end, n * plan_element_bytes(plan, shape));
        if (is_converted(plan, shape, o))
            out->of[i].narrow =
                memory_values_take(end, n * shape->columns * number_bytes(plan->setting.goal.precision));
    }
}

/* ---- what passes between host and device (proto/step/boundaries.c) ---- */

/* Values of the stream that a visit of embedding or head moves. Forward, the embedding writes its output; backward it
 * reads and writes the gradient. Later visits add to what earlier ones wrote. The head reads no gradient, and the
 * embedding writes none. */
static uint64_t count_streams(const struct plan *plan, const struct model_layer *layer, uint32_t visit, bool backward)
{
    const bool bottom = visit == layer->first_visit, top = visit == layer->first_visit + layer->n_visits - 1;
    const bool head = layer->kind == MODEL_HEAD;

    if (head && plan->one_pass && (backward || !top))
        return 0;
    if (backward && head && plan->head_sums) /* twice the bytes, except for the rounded gradient */
        return 1u + (top ? 0u : 2u) + (bottom ? 1u : 2u);
    if (backward || (head && plan->one_pass))
        return head ? 3u - top : 2u - bottom;
    return head || bottom ? 1 : 2;
}

/* Of one visit, for all rows of the share: what the link carries besides weights and contributions. */
uint64_t plan_moved_bytes(const struct plan *plan, const struct model *model, uint32_t visit, bool backward)
{
    const struct model_layer *layer = &model->layers[model->visit_layers[visit]];
    const struct model_passage *passage = &model->values.passages[layer->edges.passage];
    uint64_t bytes = 0;

    if (!plan->choice.host_stash)
        return 0;
    if (!layer->program)
        return count_streams(plan, layer, visit, backward) *
               plan_shape_bytes(plan, &model->values.shapes[passage->operands[0][0].shape]);
    for (uint32_t i = 0; i < passage->n[backward]; i++) {
        const struct model_operand *o = &passage->operands[backward][i];
        const struct model_shape *shape = &model->values.shapes[o->shape];
        if (plan_is_on_host(plan, shape))
            bytes += (o->loads + (uint64_t)o->stores) * plan_shape_bytes(plan, shape);
    }
    return bytes;
}
