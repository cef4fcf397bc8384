/* A layer that is a program: runs its schedule's steps.
 *
 * Backward first recomputes the values that it reads and forward did not keep (proto/operation/schedule.h). */
#include "proto/step/layers.h"
#include "proto/step/weights.h"

#include <assert.h>

/* The address of a kept value: after the kept values before it. */
static void *program_kept_at(const struct layer_pass *pass, uint32_t keeping, int value)
{
    const struct model_program *p = pass->program;
    const uint64_t before = p->kept[keeping] & ((UINT64_C(1) << value) - 1);

    return (char *)pass->kept +
           plan_kept_bytes(&p->program, before, pass->setting, (struct plan_shape){pass->n_rows, pass->n_tokens});
}

/* What the workspace was laid out for: a microbatch, or for what finishes a layer a part. */
static struct plan_shape largest_shape(const struct layer_pass *pass)
{
    if (pass->program == pass->layer->program)
        return plan_shape_of(pass->plan);
    return (struct plan_shape){pass->setting->part_rows, pass->setting->goal.seq};
}

static void place_buffers(struct operation_run *r, const struct layer_pass *pass, uint32_t keeping)
{
    struct plan_places places;

    plan_places(&places, r->program, r->schedule, pass->setting, largest_shape(pass));
    for (int i = 0; i < r->schedule->n_buffers; i++) {
        const struct schedule_buffer *b = &r->schedule->buffers[i];
        switch (b->place) {
        case SCHEDULE_WORKSPACE:
            r->at[i] = (char *)pass->workspace + places.at[i];
            break;
        case SCHEDULE_KEPT:
            r->at[i] = program_kept_at(pass, keeping, b->value);
            break;
        case SCHEDULE_INPUT:
            r->at[i] = pass->at[MODEL_INPUT][b->boundary]; /* no step writes it */
            break;
        case SCHEDULE_OUTPUT:
            r->at[i] = pass->at[MODEL_OUTPUT][b->boundary];
            break;
        case SCHEDULE_GRADIENT:
            r->at[i] = pass->at[MODEL_OUTPUT_GRADIENT][b->boundary];
            break;
        case SCHEDULE_INPUT_GRADIENT:
            r->at[i] = pass->at[MODEL_INPUT_GRADIENT][b->boundary];
            break;
        }
    }
}

static const struct model_piece *piece_of(const struct layer_pass *pass, int tensor)
{
    return &pass->model->pieces[pass->unit->first_piece + program_tensors_before(&pass->program->program, tensor)];
}

/* In generation what targets read of a source stays in the text's cache. */
static void place_source(struct operation_run *r, const struct layer_pass *pass)
{
    const int value = pass->source ? program_source_read(r->program) : -1;

    for (int i = 0; value >= 0 && i < r->schedule->n_buffers; i++)
        if (r->schedule->buffers[i].value == value)
            r->at[i] = pass->source;
}

static void place_tensors(struct operation_run *r, const struct layer_pass *pass)
{
    for (int i = 0; i < r->program->n_tensors; i++) {
        const struct model_piece *piece = piece_of(pass, i);
        const bool trained = pass->contribution && !pass->model->tensors[piece->tensor].frozen;
        r->weights[i] = layer_piece(pass, piece);
        r->gradients[i] = !trained ? NULL : piece->dense > 0 ? pass->dense : pass->contribution + piece->offset;
    }
}

/* What brings weights of sparse pieces into the place of all, where they are decoded singly: (n_tensors). */
static void scatter_singly(struct operation_run *r, struct device_sparse *out, const struct layer_pass *pass)
{
    const enum number_type precision = pass->setting->goal.precision;

    if (!pass->plan->choice.sparse_singly || !pass->unit->sparse)
        return;
    for (int i = 0; i < r->program->n_tensors; i++) {
        const struct model_piece *piece = piece_of(pass, i);
        out[i] = device_weights_sparse(pass->unit, piece, pass->weights, precision,
                                       device_element(precision, pass->weights, piece->offset), pass->dense);
        if (piece->dense > 0)
            r->weights[i] = pass->dense;
    }
    r->singly = out;
}

/* Backward, what takes gradients of sparse pieces into the contribution: (n_tensors). */
static void gather_sparse(struct operation_run *r, struct device_sparse *out, const struct layer_pass *pass)
{
    if (!pass->contribution || !pass->unit->sparse)
        return;
    for (int i = 0; i < r->program->n_tensors; i++) {
        const struct model_piece *piece = piece_of(pass, i);
        out[i] = device_weights_sparse(pass->unit, piece, pass->weights, pass->setting->goal.precision, pass->dense,
                                       pass->contribution + piece->offset);
    }
    r->sparse = out;
}

static struct operation_run program_run_of(const struct layer_pass *pass, bool backward)
{
    const struct model_program *p = pass->program;
    const uint32_t keeping = model_keeping(p, pass->keeping);
    struct operation_run r = {.ops = pass->ops,
                              .dev = pass->dev,
                              .type = pass->setting->goal.precision,
                              .program = &p->program,
                              .schedule = backward ? &p->backward[keeping] : &p->forward[keeping],
                              .fresh = pass->fresh,
                              .n_rows = pass->n_rows,
                              .n_tokens = pass->n_tokens,
                              .ids = pass->ids,
                              .lengths = pass->lengths,
                              .positions = pass->positions,
                              .norms = pass->norms,
                              .norms_out = pass->norms_out,
                              .norms_stride = pass->norms_stride,
                              .norms_row = pass->norms_row,
                              .layer = pass->layer->index,
                              .sampling = pass->setting->goal.sampling,
                              .drops = pass->dropout,
                              .base = pass->base,
                              .part_rows = pass->setting->part_rows,
                              .n_parts = pass->setting->goal.batch / pass->setting->part_rows,
                              .seed = pass->seed,
                              .step = pass->step,
                              .unit = pass->unit->id,
                              .first_row = pass->first_row,
                              .spans = pass->spans,
                              .n_spans = pass->n_spans,
                              .n_positions = pass->setting->goal.seq,
                              .backend = pass->setting->backend};

    place_buffers(&r, pass, keeping);
    place_source(&r, pass);
    place_tensors(&r, pass);
    return r;
}

/* Zeroes the elements of a fresh contribution that no product writes, run by run, and its norms, as shorter rows write
 * fewer. */
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
    if (pass->norms_out)
        pass->ops->zero(pass->dev, &(struct device_zero){pass->norms_out, pass->unit->n_norms * sizeof(float)});
}

/* False if the step is of the other side's tokens. What is of none is computed on both sides. */
static bool program_is_wanted(const struct layer_pass *pass, const struct operation_run *r,
                              const struct schedule_step *step)
{
    const uint32_t domain = r->program->values[operation_of(r, step)->outputs[0]].domain;

    return pass->side == 0 || domain == pass->side || domain < PROGRAM_OWN;
}

static void program_forward(const struct layer_pass *pass)
{
    struct operation_run r = program_run_of(pass, false);
    struct device_sparse singly[PROGRAM_TENSORS];

    scatter_singly(&r, singly, pass);
    for (int i = 0; i < r.schedule->n_steps; i++)
        if (program_is_wanted(pass, &r, &r.schedule->steps[i]))
            operation_run_steps(&r, i, i + 1);
}

/* Inputs whose gradients are the same, as a sum passes one on, have it copied to their places. */
static void copy_gradients(const struct operation_run *r, const struct layer_pass *pass)
{
    const struct program_dropout none = {0};

    for (int i = 0; i < r->program->n_inputs; i++) {
        void *const made = r->at[r->schedule->gradients[i]], *const place = pass->at[MODEL_INPUT_GRADIENT][i];
        if (made != place)
            operation_drop_add(r, &none, r->program->inputs[i].value, place, NULL, made);
    }
}

static void program_backward(const struct layer_pass *pass)
{
    struct operation_run r = program_run_of(pass, true);
    struct device_sparse sparse[PROGRAM_TENSORS], singly[PROGRAM_TENSORS];

    scatter_singly(&r, singly, pass);
    gather_sparse(&r, sparse, pass);
    operation_run_steps(&r, 0, r.schedule->n_recomputed);
    if (pass->fresh && pass->contribution)
        clear_vectors(pass);
    operation_run_steps(&r, r.schedule->n_recomputed, operation_count_steps(&r, pass->lowest));
    if (!pass->lowest)
        copy_gradients(&r, pass);
}

const struct layer_ops layer_program = {program_forward, program_backward};

size_t layer_attentions(struct device_attention *ops, enum plan_attention *ways, size_t n,
                        const struct layer_pass *pass, bool trains)
{
    const struct operation_run r = program_run_of(pass, trains);
    const struct operation_setting setting = plan_operation_setting(pass->setting, plan_shape_of(pass->plan));
    const enum schedule_action action = trains ? SCHEDULE_BACKWARD : SCHEDULE_FORWARD;

    for (int i = 0; i < r.schedule->n_steps && n < LAYER_ATTENTIONS; i++) {
        const struct schedule_step *step = &r.schedule->steps[i];
        if (step->action != action || step->operation < 0 || operation_of(&r, step)->kind != &operation_attention)
            continue;
        size_t seen = 0;
        ops[n] = operation_attention_call(&r, step);
        ways[n] = operation_attention_way(&operation_of(&r, step)->attention, &setting);
        while (!device_attention_alike(&ops[seen], &ops[n]))
            seen++;
        n += seen == n;
    }
    return n;
}

/* Those of a schedule, behind n others. */
static size_t add_convolutions(struct device_conv2d *out, size_t n, const struct model_program *p,
                               const struct schedule *schedule, struct plan_shape rows, void *at)
{
    struct operation_run r = {.program = &p->program,
                              .schedule = schedule,
                              .n_rows = rows.n_rows,
                              .n_tokens = rows.n_tokens};

    for (int i = 0; i < SCHEDULE_BUFFERS; i++)
        r.at[i] = at;
    for (int i = 0; i < PROGRAM_TENSORS; i++)
        r.weights[i] = r.gradients[i] = at;
    for (int i = 0; i < schedule->n_steps; i++) {
        const struct schedule_step *step = &schedule->steps[i];
        const struct program_operation *op = step->operation >= 0 ? operation_of(&r, step) : NULL;
        if (!op || op->kind != &operation_conv2d || step->action > SCHEDULE_BACKWARD ||
            (step->action == SCHEDULE_CONTRIBUTE && program_pools(op)))
            continue;
        if (out)
            out[n] = operation_conv2d_call(&r, step);
        n++;
    }
    return n;
}

size_t layer_convolutions(struct device_conv2d *out, const struct model *model, struct plan_shape rows, bool trains,
                          void *at)
{
    size_t n = 0;

    for (uint32_t i = 0; i < model->n_programs; i++) {
        const struct model_program *p = &model->programs[i];
        n = add_convolutions(out, n, p, &p->forward[0], rows, at);
        if (trains)
            n = add_convolutions(out, n, p, &p->backward[0], rows, at);
    }
    return n;
}
