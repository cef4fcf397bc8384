/* Places are found for many candidates of a search. So tables are not cleared, programs of a class are placed once
 * where their buffers are the same (are_placed_alike), and workspaces of a microbatch are remembered from one candidate
 * to the next (struct plan_workspaces): most differ in what is resident, or in how many blocks keep values.
 *
 * Buffers of a schedule live from one step to another; two may share memory unless their steps overlap. Finding the
 * least memory is hard in general, so two orders are tried, that of the steps and that of size, each buffer at the
 * lowest place that is free, and the better one is taken. Both are deterministic, so plan and worker find the same
 * places. */
#include "proto/plan/memory/layers.h"

#include "proto/base/size.h"
#include "proto/plan/memory/units.h"

#include <assert.h>

struct operation_setting plan_operation_setting(const struct plan_setting *setting, struct plan_shape shape)
{
    return (struct operation_setting){.backend = setting->backend,
                                      .type = setting->goal.precision,
                                      .attention = setting->attention,
                                      .trains = setting->goal.purpose == PLAN_TRAIN,
                                      .generates = setting->goal.purpose == PLAN_GENERATE,
                                      .packs = setting->goal.packs,
                                      .sampling = setting->goal.sampling,
                                      .n_threads = setting->n_threads,
                                      .n_rows = shape.n_rows,
                                      .n_tokens = shape.n_tokens};
}

/* Scratch of a step. Only operations with scratch have such buffers. */
static uint64_t layers_scratch_bytes(const struct program *p, const struct schedule_step *step,
                                     const struct plan_setting *setting, struct plan_shape shape)
{
    const struct program_operation *op = &p->operations[step->operation];
    struct operation_setting of = plan_operation_setting(setting, shape);

    of.action = step->action;
    return op->kind->scratch(p, op, &of);
}

/* A source is run at once, as all of its tokens see each other. */
uint32_t plan_row_tile(const struct plan *plan)
{
    const struct plan_goal *goal = &plan->setting.goal;

    return goal->source > 0 ? goal->seq : (uint32_t)size_smaller(PLAN_GENERATE_TILE, goal->seq);
}

/* The rows and tokens of the largest call: a microbatch; in generation a tile of one row, or of all rows side by side
 * as one. */
struct plan_shape plan_shape_of(const struct plan *plan)
{
    const struct plan_setting *s = &plan->setting;
    const uint32_t rows = plan->choice.microbatch, joined = s->backend->joins_rows ? rows : 1;

    if (s->goal.purpose != PLAN_GENERATE)
        return (struct plan_shape){rows, s->goal.seq};
    const size_t tile = plan_row_tile(plan), all = size_smaller(joined * tile, PLAN_GENERATE_TILE);
    return (struct plan_shape){1, (uint32_t)(all < tile ? tile : all)};
}

/* Of an operation, what its backward reads and nothing else. */
static bool is_for_backward(const struct program *p, int value)
{
    const struct program_operation *op = &p->operations[p->values[value].operation];

    for (int i = 0; p->values[value].operation >= 0 && i < op->n_outputs; i++)
        if (op->outputs[i] == value)
            return op->kind->for_backward >> i & 1;
    return false;
}

static uint64_t layers_value_bytes(const struct program *p, int value, const struct plan_setting *setting,
                                   struct plan_shape shape)
{
    const struct program_value *v = &p->values[value];

    if (setting->goal.purpose == PLAN_GENERATE && is_for_backward(p, value))
        return 0;
    return program_elements(p, value, shape.n_rows, shape.n_tokens) * v->columns *
           (v->type == PROGRAM_STATISTIC ? sizeof(float) : number_bytes(setting->goal.precision));
}

/* As it is kept; or as the means that backward takes of it. */
static uint64_t kept_bytes(const struct program *p, int value, const struct plan_setting *setting,
                           struct plan_shape shape)
{
    const struct program_value *v = &p->values[value];
    const uint32_t n_elements = program_row_elements(p, value, shape.n_tokens);
    const struct sampling_shape sampled = {.n_rows = shape.n_rows, .n_tokens = n_elements, .x_columns = v->columns};
    const int sampler = program_sampler(p, value);

    if (sampler >= 0 && program_pools(&p->operations[sampler]))
        return program_pooled_bytes(p, value, shape.n_rows, number_bytes(setting->goal.precision));
    if (sampler >= 0)
        return sampling_kept_bytes(&setting->goal.sampling, &sampled, setting->goal.precision, v->bits);
    if (v->bits == 0)
        return layers_value_bytes(p, value, setting, shape);
    return shape.n_rows * compress_row_bytes((size_t)n_elements * v->columns, v->bits);
}

uint64_t plan_kept_bytes(const struct program *program, uint64_t kept, const struct plan_setting *setting,
                         struct plan_shape shape)
{
    uint64_t bytes = 0;

    for (int value = 0; value < program->n_values; value++)
        if (kept >> value & 1)
            bytes += plan_align(kept_bytes(program, value, setting, shape));
    return bytes;
}

/* A part is cut into equal microbatches and a smaller last one, whose values are counted as what they are. */
struct plan_kept plan_keep(const struct plan *plan, const struct model *model, uint32_t class, uint32_t keeping)
{
    const struct plan_setting *s = &plan->setting;
    const uint32_t n = s->part_rows / plan->choice.microbatch, rest = s->part_rows % plan->choice.microbatch;
    const struct model_program *block = model->classes[class].program;
    struct plan_kept kept = {.keeping = model_keeping(block, keeping)};
    const uint64_t values = block->kept[kept.keeping];

    kept.microbatch = plan_kept_bytes(&block->program, values, s, plan_shape_of(plan));
    kept.part = n * kept.microbatch;
    if (rest)
        kept.part += plan_kept_bytes(&block->program, values, s, (struct plan_shape){rest, s->goal.seq});
    kept.bytes = s->share_rows / s->part_rows * kept.part;
    return kept;
}

/* ---- caches ---- */

/* What texts, or targets, keep of their tokens. */
static uint64_t program_cache_bytes(const struct plan_setting *s, const struct program *p)
{
    return operation_cache_bytes(p, &(struct operation_texts){s->backend, s->goal.precision, s->goal.seq});
}

/* Programs of a class may keep different amounts of a token; the largest counts. */
uint64_t plan_cache_bytes(const struct plan_setting *s, const struct model *model, uint32_t class)
{
    const struct model_program *const first = &model->programs[model->block];
    uint64_t most = 0;

    for (const struct model_program *p = first; p < first + model->n_block_programs; p++) {
        const uint64_t bytes = p->n_layers > 0 && p->class == class ? program_cache_bytes(s, &p->program) : 0;
        most = most < bytes ? bytes : most;
    }
    return most;
}

uint64_t plan_source_bytes(const struct plan_setting *s, const struct model *model, uint32_t class)
{
    const struct program *p = &model->classes[class].program->program;
    const int value = program_source_read(p);

    return value < 0 ? 0 : (uint64_t)s->goal.seq * p->values[value].columns * number_bytes(s->goal.precision);
}

/* ---- the workspace ---- */

/* Buffers of the workspace, in placing order; then the placed ones, by offset. */
struct placing {
    const struct schedule *schedule;
    uint64_t bytes[SCHEDULE_BUFFERS];
    int order[SCHEDULE_BUFFERS], n;
    int placed[SCHEDULE_BUFFERS], n_placed;
};

static bool layers_overlap(const struct schedule_buffer *a, const struct schedule_buffer *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* Places a buffer at the lowest free offset. Returns its end. `placed` is kept in order of offsets, so one walk
 * finds the first gap. */
static uint64_t layers_place(struct placing *g, struct plan_places *out, int buffer)
{
    const struct schedule_buffer *buffers = g->schedule->buffers;
    uint64_t at = 0;
    int i;

    for (i = 0; i < g->n_placed; i++) {
        const int other = g->placed[i];
        if (!layers_overlap(&buffers[buffer], &buffers[other]))
            continue;
        if (at + g->bytes[buffer] <= out->at[other])
            break;
        if (at < out->at[other] + plan_align(g->bytes[other]))
            at = out->at[other] + plan_align(g->bytes[other]);
    }
    out->at[buffer] = at;
    for (i = g->n_placed++; i > 0 && out->at[g->placed[i - 1]] > at; i--)
        g->placed[i] = g->placed[i - 1];
    g->placed[i] = buffer;
    return at + g->bytes[buffer];
}

static void layers_place_all(struct placing *g, struct plan_places *out)
{
    g->n_placed = 0;
    out->bytes = 0;
    for (int i = 0; i < g->n; i++) {
        const uint64_t end = layers_place(g, out, g->order[i]);
        if (out->bytes < end)
            out->bytes = end;
    }
}

/* Stable: buffers of equal size stay in order. */
static void sort_by_size(struct placing *g)
{
    for (int i = 1; i < g->n; i++) {
        const int buffer = g->order[i];
        int k = i;
        for (; k > 0 && g->bytes[g->order[k - 1]] < g->bytes[buffer]; k--)
            g->order[k] = g->order[k - 1];
        g->order[k] = buffer;
    }
}

void plan_places(struct plan_places *out, const struct program *program, const struct schedule *schedule,
                 const struct plan_setting *setting, struct plan_shape shape)
{
    struct placing g; /* its tables are long: what is not used stays as it is */
    struct plan_places other;

    g.schedule = schedule;
    g.n = 0;
    for (int i = 0; i < schedule->n_buffers; i++) {
        const struct schedule_buffer *b = &schedule->buffers[i];
        out->at[i] = 0;
        if (b->place != SCHEDULE_WORKSPACE || b->last < b->first)
            continue;
        g.bytes[i] = b->value == SCHEDULE_NONE
                         ? layers_scratch_bytes(program, &schedule->steps[b->first], setting, shape)
                     : b->sample ? kept_bytes(program, b->value, setting, shape)
                                 : layers_value_bytes(program, b->value, setting, shape);
        g.order[g.n++] = i;
    }
    layers_place_all(&g, out);
    sort_by_size(&g);
    layers_place_all(&g, &other);
    if (other.bytes < out->bytes) {
        for (int i = 0; i < g.n; i++)
            out->at[g.order[i]] = other.at[g.order[i]];
        out->bytes = other.bytes;
    }
}

/* The largest workspace of a program's schedules that the plan runs with this keeping. */
static uint64_t program_bytes(const struct plan *plan, const struct model_program *p, struct plan_shape shape,
                              uint32_t keeping)
{
    const struct plan_setting *setting = &plan->setting;
    const uint32_t index = model_keeping(p, keeping);
    struct plan_places places;
    uint64_t most = 0;

    for (int backward = 0; backward < (setting->goal.purpose == PLAN_TRAIN ? 2 : 1); backward++) {
        plan_places(&places, &p->program, backward ? &p->backward[index] : &p->forward[index], setting, shape);
        if (most < places.bytes)
            most = places.bytes;
    }
    return most;
}

static bool layers_is_same(const struct schedule_buffer *a, const struct schedule_buffer *b)
{
    return a->place == b->place && a->boundary == b->boundary && a->value == b->value && a->first == b->first &&
           a->last == b->last;
}

/* True if two programs of a class place the same buffers, as they do unless the scratch of their operations differs. */
static bool are_placed_alike(const struct model_program *a, const struct model_program *b, uint32_t keeping,
                             const struct plan_setting *setting, struct plan_shape shape)
{
    const struct schedule *const pairs[][2] = {{&a->forward[keeping], &b->forward[keeping]},
                                               {&a->backward[keeping], &b->backward[keeping]}};

    for (int i = 0; i < (setting->goal.purpose == PLAN_TRAIN ? 2 : 1); i++) {
        const struct schedule *of_a = pairs[i][0], *of_b = pairs[i][1];
        if (of_a->n_buffers != of_b->n_buffers)
            return false;
        for (int k = 0; k < of_a->n_buffers; k++) {
            const struct schedule_buffer *buffer = &of_a->buffers[k];
            if (!layers_is_same(buffer, &of_b->buffers[k]))
                return false;
            if (buffer->value == SCHEDULE_NONE && buffer->first <= buffer->last &&
                layers_scratch_bytes(&a->program, &of_a->steps[buffer->first], setting, shape) !=
                    layers_scratch_bytes(&b->program, &of_b->steps[buffer->first], setting, shape))
                return false;
        }
    }
    return true;
}

/* The largest workspace of a class's programs that the model has. */
static uint64_t class_bytes(const struct plan *plan, const struct model *model, struct plan_shape shape, uint32_t class,
                            uint32_t keeping)
{
    const struct model_program *const first = &model->programs[model->block], *lowest = model->classes[class].program;
    const uint32_t index = model_keeping(lowest, keeping);
    uint64_t most = program_bytes(plan, lowest, shape, keeping);

    for (const struct model_program *p = first; p < first + model->n_block_programs; p++)
        if (p->n_layers > 0 && p->class == class && p != lowest &&
            !are_placed_alike(lowest, p, index, &plan->setting, shape)) {
            const uint64_t bytes = program_bytes(plan, p, shape, keeping);
            most = most < bytes ? bytes : most;
        }
    return most;
}

static uint64_t known_class_bytes(const struct plan *plan, const struct model *model, uint32_t class, uint32_t keeping,
                                  struct plan_workspaces *known)
{
    uint64_t *const bytes = &known->classes[class][model_keeping(model->classes[class].program, keeping)];

    if (*bytes == 0)
        *bytes = class_bytes(plan, model, known->shape, class, keeping);
    return *bytes;
}

/* A block's workspace depends on what it keeps, so both halves of a class count, if it has any block in them. */
static uint64_t block_bytes(const struct plan *plan, const struct model *model, struct plan_workspaces *known)
{
    uint64_t most = 0, bytes;

    for (uint32_t c = 0; c < model->n_classes; c++) {
        const struct plan_keeping *keeping = &plan->choice.keeping[c];
        if (keeping->n_kept < model->classes[c].n_blocks &&
            most < (bytes = known_class_bytes(plan, model, c, keeping->kept_below, known)))
            most = bytes;
        if (keeping->n_kept > 0 && most < (bytes = known_class_bytes(plan, model, c, keeping->kept, known)))
            most = bytes;
    }
    return most;
}

/* Logits of a tile for the largest unit, or for all units, and then the sums. */
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

/* The largest workspace of programs that finish a layer, each over a whole part. */
static uint64_t finishes_bytes(const struct plan *plan, const struct model *model)
{
    const struct plan_shape part = {plan->setting.part_rows, plan->setting.goal.seq};
    uint64_t most = 0;

    for (uint32_t i = 0; i < model->n_finishes; i++) {
        const uint64_t bytes = program_bytes(plan, &model->programs[model->n_programs + i], part, MODEL_KEEPS_NOTHING);
        most = most < bytes ? bytes : most;
    }
    return most;
}

/* The largest workspace of the layers with a program that are not blocks, and of what finishes layers. */
static uint64_t singles_bytes(const struct plan *plan, const struct model *model, struct plan_shape shape)
{
    uint64_t most = finishes_bytes(plan, model);

    for (uint32_t i = 0; i < model->n_programs; i++) {
        const uint64_t bytes =
            model_runs_in_blocks(model, i) ? 0 : program_bytes(plan, &model->programs[i], shape, MODEL_KEEPS_NOTHING);
        if (most < bytes)
            most = bytes;
    }
    return most;
}

/* One workspace serves all layers in turn; this is what one kind of them needs. */
uint64_t plan_workspace(const struct plan *plan, const struct model *model, enum model_layer_kind kind,
                        struct plan_workspaces *known)
{
    const struct plan_shape shape = plan_shape_of(plan);
    struct plan_workspaces own;

    if (!known || known->shape.n_rows != shape.n_rows || known->shape.n_tokens != shape.n_tokens) {
        known = known ? known : &own;
        *known = (struct plan_workspaces){.shape = shape};
    }
    switch (kind) {
    case MODEL_EMBEDDING:
        break;
    case MODEL_BLOCK:
        return block_bytes(plan, model, known);
    case MODEL_SINGLE:
        known->singles = known->singles ? known->singles : singles_bytes(plan, model, shape);
        return known->singles;
    case MODEL_HEAD:
        return head_bytes(plan, model, (uint64_t)shape.n_rows * model_predicted(model, shape.n_tokens));
    }
    return 0;
}
