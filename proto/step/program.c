/* A layer that is a program: runs its schedule's steps.
 *
 * Backward first recomputes the values that it reads and forward did not keep (proto/operation/schedule.h). */
#include "proto/step/operations.h"

static struct operation_run run_of(const struct layer_pass *pass, bool backward)
{
    struct operation_run r = {.pass = pass,
                              .layer = pass->layer->program,
                              .keeping = model_keeping(pass->layer->program, pass->keeping)};

    r.schedule = backward ? &r.layer->backward[r.keeping] : &r.layer->forward[r.keeping];
    plan_places(&r.places, &r.layer->program, r.schedule, pass->setting, plan_shape_of(pass->plan));
    return r;
}

/* Zeroes the elements of a fresh contribution that no product writes, run by run. */
static void clear_vectors(const struct layer_pass *pass)
{
    const struct model_piece *piece = &pass->model->pieces[pass->unit->first_piece];
    const struct model_piece *const end = piece + pass->unit->n_pieces;

    uint64_t first = 0, n = 0;

    for (; piece < end; piece++) {
        const struct model_tensor *tensor = &pass->model->tensors[piece->tensor];
        if (tensor->frozen)
            continue;
        if (tensor->n_dims == 1) {
            first = n ? first : piece->offset;
            n += piece->n;
            continue;
        }
        if (n > 0)
            pass->ops->zero(pass->dev, &(struct device_zero){pass->contribution + first, n * sizeof(float)});
        n = 0;
    }
    if (n > 0)
        pass->ops->zero(pass->dev, &(struct device_zero){pass->contribution + first, n * sizeof(float)});
}

/* In the lowest trained layer, steps after the last contribution serve only layers below, so they are skipped. */
static int count_steps(const struct operation_run *r)
{
    int n = r->schedule->n_steps;

    while (r->pass->lowest && n > r->schedule->n_recomputed && !operation_contributes(r, &r->schedule->steps[n - 1]))
        n--;
    return n;
}

static void run_steps(const struct operation_run *r, int first, int end)
{
    for (const struct schedule_step *step = &r->schedule->steps[first]; step < &r->schedule->steps[end]; step++)
        operation_step(r, step);
}

/* The piece of the unit that the head adds to logits, or NULL. */
static const struct model_piece *logit_bias_of(const struct operation_run *r)
{
    const int tensor = r->layer->program.logit_bias;

    return tensor < 0 ? NULL : &r->pass->model->pieces[r->pass->unit->first_piece + (uint32_t)tensor];
}

/* Its values for the head, in fp32. Once a part is often enough. */
static void offer_logit_bias(const struct operation_run *r)
{
    const struct layer_pass *pass = r->pass;
    const struct model_piece *piece = logit_bias_of(r);

    if (!piece || !pass->fresh)
        return;
    pass->ops->zero(pass->dev, &(struct device_zero){pass->logit_bias, piece->n * sizeof(float)});
    pass->ops->reduce_rows(pass->dev, &(struct device_reduce_rows){pass->logit_bias,
                                                                   layer_element(pass, pass->weights, piece->offset), 1,
                                                                   piece->n, piece->n});
}

/* Adds the sum that the head made of a whole part. */
static void take_logit_bias_sum(const struct operation_run *r)
{
    const struct layer_pass *pass = r->pass;
    const struct model_piece *piece = logit_bias_of(r);

    if (piece && pass->fresh && pass->logit_bias_sum)
        pass->ops->add(pass->dev,
                       &(struct device_add){pass->contribution + piece->offset, pass->logit_bias_sum, piece->n});
}

static void forward(const struct layer_pass *pass)
{
    const struct operation_run r = run_of(pass, false);

    run_steps(&r, 0, r.schedule->n_steps);
    offer_logit_bias(&r);
}

static void backward(const struct layer_pass *pass)
{
    const struct operation_run r = run_of(pass, true);

    run_steps(&r, 0, r.schedule->n_recomputed);
    if (pass->fresh && pass->contribution)
        clear_vectors(pass);
    take_logit_bias_sum(&r);
    run_steps(&r, r.schedule->n_recomputed, count_steps(&r));
}

const struct layer_ops layer_program = {forward, backward};

/* The last step of attention in this direction; backward, of its derivative. */
static const struct schedule_step *find_attention(const struct operation_run *r)
{
    for (int i = r->schedule->n_steps; i-- > 0;)
        if (operation_of(r, &r->schedule->steps[i])->kind == PROGRAM_ATTENTION)
            return &r->schedule->steps[i];
    return NULL;
}

/* A block whose attention has no window, for which libraries have more; else any. */
static const struct model_layer *block_to_prepare(const struct model *model)
{
    const struct model_layer *const first = model_block(model);

    for (const struct model_layer *layer = first; layer < first + model->config.n_layers; layer++) {
        const struct program_operation *op = program_find(&layer->program->program, PROGRAM_ATTENTION);
        if (op && op->attention.window == 0)
            return layer;
    }
    return first;
}

void layer_prepare_attention(const struct layer_pass *pass, bool trains, char told[DEVICE_TOLD])
{
    struct layer_pass block = *pass;

    block.layer = block_to_prepare(pass->model);
    block.unit = &pass->model->units[pass->model->visits[block.layer->first_visit]];
    const struct operation_run r = run_of(&block, trains);
    const struct schedule_step *step = find_attention(&r);
    told[0] = 0;
    if (!step)
        return;
    const struct device_attention attention = operation_attention(&r, step);
    const struct program_operation *op = operation_of(&r, step);
    pass->ops->prepare_attention(pass->dev, &attention, plan_attention_way(&op->attention, pass->setting), told);
}
