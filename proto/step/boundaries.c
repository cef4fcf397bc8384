/* With the stash on the host a set of tiles has two marks, and each microbatch one: `used`, after which computation
 * does not read the set; `saved`, after which its results have left; and the last write of the microbatch to the
 * host, which its next visit reads. Inputs wait for the first and the last alone, so they come while results of the
 * same set leave.
 *
 * A boundary value lies where the plan says, in full rows; a layer sees one microbatch of it. On the device that is an
 * offset. On the host it is a tile, copied into one of the plan's sets before the layer runs and out of it afterwards.
 * Where the layer works in another type than what is stored, a third place holds what it sees (narrow). */
#include "proto/step/boundaries.h"

#include "proto/plan/memory/layers.h"
#include "proto/plan/memory/units.h"
#include "proto/plan/memory/values.h"

/* ---- values that a layer sees in another type ---- */

static bool is_fp32(const struct layer_pass *visit)
{
    return visit->setting->goal.precision == NUMBER_FP32;
}

/* to = from, both of the device's type. */
static void boundaries_copy(const struct layer_pass *visit, const struct device_operand *o, void *to, const void *from)
{
    visit->ops->dropout_add(visit->dev, &(struct device_dropout_add){.n_rows = 1,
                                                                     .n_tokens = o->n / o->shape->columns,
                                                                     .n = o->shape->columns,
                                                                     .h = from,
                                                                     .y = to});
}

/* Returns where the layer reads or writes the operand. */
void *device_operand_enter(const struct layer_pass *visit, const struct device_operand *o)
{
    if (!o->narrow)
        return o->stored;
    if (o->is->loads && !o->is->stores) {
        if (is_fp32(visit))
            boundaries_copy(visit, o, o->narrow, o->stored);
        else
            visit->ops->round_half(visit->dev, &(struct device_round_half){o->narrow, o->stored, o->n,
                                                                           visit->setting->goal.precision});
    }
    return o->narrow;
}

/* Adds to a sum in fp32, or copies; nothing, if the layer wrote where it is stored. */
void device_operand_leave(const struct layer_pass *visit, const struct device_operand *o, const void *made)
{
    if (!o->is->stores || made == o->stored)
        return;
    if (!o->shape->wide) {
        boundaries_copy(visit, o, o->stored, made);
        return;
    }
    if (o->is->begins)
        visit->ops->zero(visit->dev, &(struct device_zero){o->stored, o->n * sizeof(float)});
    visit->ops->reduce_rows(visit->dev, &(struct device_reduce_rows){o->stored, made, 1, o->n, o->n});
}

/* ---- what a visit moves ---- */

static bool is_head(const struct layer_pass *visit)
{
    return visit->layer->kind == MODEL_HEAD;
}

static bool has_sum(const struct device_pass *pass, const struct layer_pass *visit, bool backward)
{
    return pass->worker->plan.head_sums && is_head(visit) && backward;
}

/* Offset of what is stored of an operand for the run's first row. */
static uint64_t boundaries_place_of(const struct device_pass *pass, const struct layer_pass *visit,
                                    const struct model_operand *o, uint32_t run)
{
    const struct plan *plan = visit->plan;
    const struct model_shape *shape = &visit->model->values.shapes[o->shape];
    const uint32_t value = model_value_of(visit->edges, o);
    const bool is_value = o->role == MODEL_INPUT || o->role == MODEL_OUTPUT;
    const uint64_t first = (is_value ? plan_value : plan_gradient)(plan, visit->model, value);

    if (shape->domain == PROGRAM_PART)
        return first + (shape->by_part ? run * plan_align(plan_shape_bytes(plan, shape)) : 0);
    return first +
           plan_shape_elements(shape, (uint64_t)run * pass->run_rows, pass->n_tokens) * plan_element_bytes(plan, shape);
}

/* True of a gradient by part that nobody wants: all that it would add to is frozen. */
static bool is_unwanted(const struct layer_pass *visit, const struct model_operand *o)
{
    return o->role >= MODEL_OUTPUT_GRADIENT && !visit->model->values.of[model_value_of(visit->edges, o)].trained;
}

static void *tile_at(const struct device_pass *pass, const struct model_operand *o, uint32_t set, uint64_t offset)
{
    const struct plan *plan = &pass->worker->plan;
    const uint64_t *const region = o->role == MODEL_INPUT    ? plan->input
                                   : o->role == MODEL_OUTPUT ? plan->output
                                                             : plan->dy;

    return offset == PLAN_NO_TILE ? NULL : device_pass_address(pass, region[set] + offset);
}

/* A head's visits and an embedding's share a value: the first one begins it, later ones add to it. */
static bool loads(const struct layer_pass *visit, const struct model_operand *o)
{
    if (visit->layer->kind == MODEL_EMBEDDING && o->role == MODEL_OUTPUT)
        return !visit->bottom;
    if (is_head(visit) && o->role == MODEL_INPUT_GRADIENT)
        return !visit->top;
    return o->loads;
}

/* Dropout changes the gradient of the embedding's output in its place; nobody reads it after the last visit. */
static bool stores(const struct layer_pass *visit, const struct model_operand *o)
{
    if (visit->layer->kind == MODEL_EMBEDDING && o->role == MODEL_OUTPUT_GRADIENT)
        return !visit->bottom;
    return o->stores;
}

/* A small gradient that the layer is the first to add to, before its first visit does: for a row with its microbatch,
 * for a part with the first. */
static bool clears(const struct layer_pass *visit, const struct model_operand *o)
{
    return o->role == MODEL_INPUT_GRADIENT && o->begins && visit->top &&
           model_is_small(&visit->model->values.shapes[o->shape]);
}

/* All that does not change from row to row is found once. */
static struct device_move move_of(const struct device_pass *pass, const struct layer_pass *visit,
                                  const struct model_operand *o, const struct plan_tile *tile, uint32_t run)
{
    const struct plan *plan = visit->plan;
    const struct model_shape *shape = &visit->model->values.shapes[o->shape];
    const bool on_host = plan_is_on_host(plan, shape), shared = shape->domain == PROGRAM_PART;

    struct device_move m = {.operand = {.is = o, .shape = shape, .n = shape->columns},
                            .first = boundaries_place_of(pass, visit, o, run),
                            .row_bytes = shared ? 0
                                                : plan_shape_elements(shape, 1, pass->n_tokens) *
                                                      plan_element_bytes(plan, shape),
                            .shared = shared,
                            .on_host = on_host,
                            .loads = on_host && loads(visit, o),
                            .stores = on_host && stores(visit, o),
                            .clears = clears(visit, o)};

    for (uint32_t set = 0; set < PLAN_MAX_SETS; set++) {
        m.stored[set] = tile_at(pass, o, set, tile->stored);
        m.narrow[set] = tile_at(pass, o, set, tile->narrow);
    }
    return m;
}

/* True if the last one is made elsewhere than it is stored, and added or copied to it. Most layers write where the
 * value is stored, so this is looked for once a run, not once a microbatch. */
static bool is_added(const struct device_moves *moves)
{
    const struct device_move *last = &moves->of[moves->n - 1], *m = moves->of;

    while (last->operand.is->passes && m->operand.is->role != MODEL_OUTPUT_GRADIENT)
        m++; /* made where the first output's gradient was */
    return last->operand.is->stores && (last->operand.is->passes ? m->first != last->first : last->narrow[0] != NULL);
}

/* True of what a skipped layer leaves alone: all but the value that it passes on, whose gradient it passes down, and
 * gradients that it would be the first to add to, which begin with zeros instead. */
static bool is_left_alone(const struct layer_pass *visit, const struct model_operand *o, bool backward)
{
    const bool is_gradient = o->role == MODEL_OUTPUT_GRADIENT || o->role == MODEL_INPUT_GRADIENT;

    return visit->skipped && (is_gradient != backward || (o->index > 0 && !o->begins));
}

/* Adds the operands of a direction; or of those, the gradients of inputs alone. Inputs come first: their uploads
 * wait for less. */
static void add_moves(struct device_moves *moves, const struct device_pass *pass, const struct layer_pass *visit,
                      bool backward, bool gradients_alone)
{
    const bool sums = has_sum(pass, visit, backward && !gradients_alone);
    const struct model_passage *passage = &visit->model->values.passages[visit->edges->passage];
    struct plan_tiles tiles;

    plan_tiles(&tiles, visit->plan, visit->model, passage, backward);
    for (uint32_t i = 0; i < passage->n[backward]; i++) {
        const struct model_operand *o = &passage->operands[backward][i];
        const bool is_gradient = o->role == MODEL_INPUT_GRADIENT;
        if ((gradients_alone && !is_gradient) || is_unwanted(visit, o) || (is_gradient && o->index == 0 && sums) ||
            is_left_alone(visit, o, backward))
            continue;
        moves->n_inputs += o->role == MODEL_INPUT;
        moves->of[moves->n++] = move_of(pass, visit, o, &tiles.of[i], moves->run);
        moves->adds |= is_added(moves);
    }
}

/* A head in one pass makes the gradients of its inputs forward. */
void device_boundaries_begin(struct device_moves *moves, const struct device_pass *pass, const struct layer_pass *visit,
                             uint32_t run, bool backward)
{
    moves->run = run, moves->backward = backward, moves->adds = false, moves->n = moves->n_inputs = 0;
    add_moves(moves, pass, visit, backward, false);
    if (!backward && visit->chunks)
        add_moves(moves, pass, visit, true, true);
}

/* To the microbatch that begins at this row. */
static void move_to(struct device_moves *moves, const struct device_pass *pass, const struct layer_pass *visit,
                    uint32_t row)
{
    for (struct device_move *m = moves->of; m < moves->of + moves->n; m++) {
        m->place = m->first + row * m->row_bytes;
        if (!m->shared)
            m->operand.n =
                plan_shape_elements(m->operand.shape, visit->n_rows, visit->n_tokens) * m->operand.shape->columns;
        m->operand.stored = m->on_host ? m->stored[pass->tile] : device_pass_address(pass, m->place);
        m->operand.narrow = m->narrow[pass->tile];
    }
}

static void boundaries_record(const struct device_pass *pass, const struct layer_pass *visit, uint64_t since,
                              const char *what, size_t bytes)
{
    char name[MODEL_NAME_BYTES];

    if (pass->worker->trace)
        trace_end(pass->worker->trace, since, what,
                  model_unit_name(name, visit->model, (uint32_t)(visit->unit - visit->model->units)),
                  (struct trace_arg[]){{"bytes", bytes}, {NULL, 0}});
}

static void boundaries_upload(const struct device_pass *pass, const struct layer_pass *visit, void *to, uint64_t place,
                              size_t bytes)
{
    const uint64_t since = trace_begin(pass->worker->trace);

    visit->ops->upload(visit->dev, to, (const char *)pass->worker->stash + place, bytes);
    boundaries_record(pass, visit, since, "upload tile", bytes);
}

static void boundaries_download(const struct device_pass *pass, const struct layer_pass *visit, uint64_t place,
                                const void *from, size_t bytes)
{
    const uint64_t since = trace_begin(pass->worker->trace);

    visit->ops->download(visit->dev, (char *)pass->worker->stash + place, from, bytes);
    boundaries_record(pass, visit, since, "download tile", bytes);
}

/* Mark of the last write of the microbatch that begins at this row of the share. */
static uint64_t *stashed_of(const struct device_pass *pass, uint32_t run, uint32_t row)
{
    return &pass->worker->stashed[run * pass->run_rows + row];
}

/* ---- the sum of the head's input gradient, in fp32 ---- */

static uint64_t place_of_sum(const struct device_pass *pass, const struct layer_pass *visit, uint32_t run, uint32_t row)
{
    return pass->worker->plan.gradient_sum +
           device_pass_token(pass, run, row) * visit->model->config.width * sizeof(float);
}

static size_t sum_bytes(const struct layer_pass *visit)
{
    return layer_tokens(visit) * visit->model->config.width * sizeof(float);
}

/* Offset of the gradient itself. */
static uint64_t place_of_rounded(const struct device_pass *pass, const struct layer_pass *visit, uint32_t run,
                                 uint32_t row)
{
    return pass->worker->plan.gradient + device_pass_token(pass, run, row) * visit->model->config.width *
                                             number_bytes(visit->setting->goal.precision);
}

/* On the host, its tile takes the place of those of outputs and gradients, and the rounded gradient that of the
 * input. */
static void enter_sum(struct device_pass *pass, struct layer_pass *visit, uint32_t run, uint32_t row)
{
    const struct plan *plan = visit->plan;
    const bool on_host = plan->choice.host_stash;

    visit->gradient_sum =
        device_pass_address(pass, on_host ? plan->output[pass->tile] : place_of_sum(pass, visit, run, row));
    visit->at[MODEL_INPUT_GRADIENT][0] =
        device_pass_address(pass, on_host ? plan->input[pass->tile] : place_of_rounded(pass, visit, run, row));
    if (on_host && !visit->top)
        boundaries_upload(pass, visit, visit->gradient_sum, place_of_sum(pass, visit, run, row), sum_bytes(visit));
}

/* The sum leaves after each of the head's visits but the last, which leaves the rounded gradient instead. */
static void leave_sum(struct device_pass *pass, const struct layer_pass *visit, uint32_t run, uint32_t row)
{
    if (!visit->bottom)
        boundaries_download(pass, visit, place_of_sum(pass, visit, run, row), visit->gradient_sum, sum_bytes(visit));
    else
        boundaries_download(pass, visit, place_of_rounded(pass, visit, run, row), visit->at[MODEL_INPUT_GRADIENT][0],
                            layer_tokens(visit) * visit->model->config.width *
                                number_bytes(visit->setting->goal.precision));
}

/* ---- entering and leaving ---- */

/* What is moved of a microbatch. */
static size_t boundaries_bytes_of(const struct layer_pass *visit, const struct device_move *m)
{
    return m->shared ? 0
                     : plan_shape_elements(m->operand.shape, visit->n_rows, visit->n_tokens) *
                           plan_element_bytes(visit->plan, m->operand.shape);
}

static void upload_moves(const struct device_pass *pass, const struct layer_pass *visit,
                         const struct device_move *first, const struct device_move *end)
{
    for (const struct device_move *m = first; m < end; m++)
        if (m->loads)
            boundaries_upload(pass, visit, m->operand.stored, m->place, boundaries_bytes_of(visit, m));
}

static void set_addresses(struct layer_pass *visit, const struct device_moves *moves)
{
    for (const struct device_move *m = moves->of; m < moves->of + moves->n; m++) {
        const struct model_operand *o = m->operand.is;
        visit->at[o->role][o->index] =
            o->passes ? visit->at[MODEL_OUTPUT_GRADIENT][0] : device_operand_enter(visit, &m->operand);
        if (m->clears && (!m->shared || visit->fresh))
            visit->ops->zero(visit->dev, &(struct device_zero){m->operand.stored, m->operand.n * sizeof(float)});
    }
}

/* Inputs, which are never written to, need not wait for downloads. */
void device_boundaries_enter(struct device_pass *pass, struct device_moves *moves, struct layer_pass *visit,
                             uint32_t row)
{
    const struct device_tiles *tiles = &pass->tiles[pass->tile]; /* the set of the next tiles */
    const struct device_ops *ops = visit->ops;
    const bool on_host = visit->plan->choice.host_stash;

    move_to(moves, pass, visit, row);
    if (on_host) {
        ops->follow(visit->dev, DEVICE_PULL, DEVICE_COMPUTE, tiles->used);
        ops->follow(visit->dev, DEVICE_PULL, DEVICE_PUSH, *stashed_of(pass, moves->run, row));
        upload_moves(pass, visit, moves->of, moves->of + moves->n_inputs);
        ops->follow(visit->dev, DEVICE_PULL, DEVICE_PUSH, tiles->saved);
        upload_moves(pass, visit, moves->of + moves->n_inputs, moves->of + moves->n);
    }
    if (has_sum(pass, visit, moves->backward))
        enter_sum(pass, visit, moves->run, row);
    if (on_host)
        ops->follow(visit->dev, DEVICE_COMPUTE, DEVICE_PULL,
                    ops->mark(visit->dev, DEVICE_PULL)); /* includes earlier waits */
    set_addresses(visit, moves);
}

/* A finish reads and writes statistics alone, which are on the device: nothing is uploaded. */
void device_boundaries_finish(const struct device_pass *pass, struct layer_pass *finish, uint32_t run, bool backward)
{
    struct device_moves moves;

    device_boundaries_begin(&moves, pass, finish, run, backward);
    move_to(&moves, pass, finish, 0);
    set_addresses(finish, &moves);
}

static void download_moves(const struct device_pass *pass, const struct layer_pass *visit,
                           const struct device_moves *moves)
{
    for (const struct device_move *m = moves->of; m < moves->of + moves->n; m++) {
        const struct model_operand *o = m->operand.is;
        if (m->stores)
            boundaries_download(pass, visit, m->place,
                                m->operand.stored ? m->operand.stored : visit->at[o->role][o->index],
                                boundaries_bytes_of(visit, m));
    }
}

void device_boundaries_leave(struct device_pass *pass, const struct device_moves *moves, const struct layer_pass *visit,
                             uint32_t row)
{
    struct device_tiles *tiles = &pass->tiles[pass->tile];
    const struct device_ops *ops = visit->ops;
    const bool sums = has_sum(pass, visit, moves->backward);

    for (const struct device_move *m = moves->of; moves->adds && m < moves->of + moves->n; m++)
        if (m->operand.stored)
            device_operand_leave(visit, &m->operand, visit->at[m->operand.is->role][m->operand.is->index]);
    if (!visit->plan->choice.host_stash)
        return;
    tiles->used = ops->mark(visit->dev, DEVICE_COMPUTE);
    ops->follow(visit->dev, DEVICE_PUSH, DEVICE_COMPUTE, tiles->used);
    download_moves(pass, visit, moves);
    if (sums)
        leave_sum(pass, visit, moves->run, row);
    tiles->saved = *stashed_of(pass, moves->run, row) = ops->mark(visit->dev, DEVICE_PUSH);
    if (sums && visit->bottom) /* away from the next input's place */
        ops->follow(visit->dev, DEVICE_PULL, DEVICE_PUSH, tiles->saved);
    pass->tile = (pass->tile + 1) % visit->plan->n_sets;
}
