/* A worker may redo a part that another began, and microbatches may differ from plan to plan, but no bit may depend on
 * either. So random bits are keyed by seed, step, unit and site, and rows are counted from the minibatch's first, not
 * the microbatch's or the worker's.
 *
 * A gradient or a weight that shares its place with others is there only between its begin and its end: an operation
 * calls these around each use of a matrix, and nothing else may run between them. */
#include "proto/operation/operation.h"

/* Scale of a residual branch; 0: 1. In training multiplied by 1/(1-p) if steps drop blocks (proto/model/drop.h). */
static float operation_scale_of(const struct operation_run *r, const struct program_dropout *dropout)
{
    const double scale = dropout->scale != 0 ? (double)dropout->scale : 1;

    return r->drops && dropout->survival > 0 ? (float)(scale / (double)dropout->survival) : dropout->scale;
}

struct device_dropout operation_dropout_of(const struct operation_run *r, const struct program_dropout *dropout)
{
    return (struct device_dropout){.p = r->drops ? dropout->p : 0,
                                   .key = random_site_key(r->seed, r->step, r->unit, dropout->site),
                                   .first_row = r->first_row,
                                   .scale = operation_scale_of(r, dropout)};
}

struct device_dropout_add operation_sum_of(const struct operation_run *r, const struct program_dropout *dropout,
                                           int value, void *y, const void *x, const void *h)
{
    return (struct device_dropout_add){.n_rows = r->n_rows,
                                       .n_tokens = operation_row_elements(r, value),
                                       .n = operation_columns(r, value),
                                       .x = x,
                                       .h = h,
                                       .y = y,
                                       .dropout = operation_dropout_of(r, dropout)};
}

void operation_drop_add(const struct operation_run *r, const struct program_dropout *dropout, int value, void *y,
                        const void *x, const void *h)
{
    const struct device_dropout_add sum = operation_sum_of(r, dropout, value, y, x, h);

    r->ops->dropout_add(r->dev, &sum);
}

/* Where what a text keeps for an operation begins, and so ends for the one before. */
static uint64_t cache_at(const struct program *p, const struct program_operation *op,
                         const struct operation_texts *texts)
{
    const uint64_t line = 64;
    uint64_t end = 0;

    for (const struct program_operation *of = p->operations; of < op; of++) {
        const uint64_t bytes = of->kind->cache ? of->kind->cache(p, of, texts) : 0;
        end = bytes > 0 ? (end + line - 1) / line * line + bytes : end;
    }
    return end;
}

uint64_t operation_cache_bytes(const struct program *p, const struct operation_texts *texts)
{
    return cache_at(p, p->operations + p->n_operations, texts);
}

void *operation_cache(const struct operation_run *r, const struct program_operation *op,
                      const struct operation_span *span)
{
    const struct operation_texts texts = {r->backend, r->type, r->n_positions};
    const uint64_t line = 64, at = cache_at(r->program, op, &texts);

    return (char *)span->cache + (at + line - 1) / line * line;
}

/* A value to, from or in few bits. */
static void run_change(const struct operation_run *r, const struct schedule_step *step)
{
    const unsigned bits = r->program->values[step->value].bits;
    const size_t n = operation_row_elements(r, step->value) * operation_columns(r, step->value);
    const struct random_key key = operation_draw_key(r, RANDOM_VALUES + (enum random_site)step->value);
    void *const from = r->at[step->inputs[0]], *const to = r->at[step->outputs[0]];

    if (step->action == SCHEDULE_COMPRESS)
        r->ops->compress(r->dev, &(struct device_compress){r->n_rows, n, bits, from, to, key, r->first_row});
    else if (step->action == SCHEDULE_EXPAND)
        r->ops->expand(r->dev, &(struct device_expand){r->n_rows, n, bits, from, to});
    else
        r->ops->round_values(r->dev, &(struct device_round_values){r->n_rows, n, bits, to, key, r->first_row});
}

void operation_run_steps(const struct operation_run *r, int first, int end)
{
    for (const struct schedule_step *step = &r->schedule->steps[first]; step < &r->schedule->steps[end]; step++)
        if (step->action >= SCHEDULE_COMPRESS)
            run_change(r, step);
        else
            operation_of(r, step)->kind->run(r, step);
}

void operation_begin_weights(const struct operation_run *r, int tensor)
{
    if (r->singly && r->singly[tensor].y)
        r->ops->scatter(r->dev, &r->singly[tensor]);
}

static const struct device_sparse *sparse_of(const struct operation_run *r, int tensor)
{
    return r->sparse && r->sparse[tensor].y ? &r->sparse[tensor] : NULL;
}

void operation_begin_gradient(const struct operation_run *r, int tensor)
{
    const struct device_sparse *const gather = sparse_of(r, tensor);
    struct device_sparse scatter;

    if (!gather || r->fresh)
        return;
    scatter = *gather;
    scatter.x = gather->y, scatter.y = r->gradients[tensor], scatter.wide = true;
    r->ops->scatter(r->dev, &scatter);
}

void operation_end_gradient(const struct operation_run *r, int tensor)
{
    const struct device_sparse *const gather = sparse_of(r, tensor);

    if (gather)
        r->ops->gather(r->dev, gather);
}

static bool operation_contributes(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);

    for (int i = 0; step->contributes && i < op->n_tensors; i++)
        if (r->gradients[op->tensor + i])
            return true;
    return false;
}

int operation_count_steps(const struct operation_run *r, bool lowest)
{
    int n = r->schedule->n_steps;

    while (lowest && n > r->schedule->n_recomputed && !operation_contributes(r, &r->schedule->steps[n - 1]))
        n--;
    return n;
}

size_t operation_norms_at(const struct operation_run *r, const struct program_operation *op)
{
    size_t before = 0;

    for (const struct program_operation *other = r->program->operations; other < op; other++)
        before += program_samples(other);
    return before * r->norms_stride + r->norms_row * operation_row_elements(r, op->inputs[0]);
}
