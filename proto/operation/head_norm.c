/* Queries and keys are two calls of the ordinary norm, with a stride, over columns of one array: they have weights of
 * their own, and no copy makes them dense. Each call writes a dense array of statistics, so all of the queries' lie
 * before all of the keys'.
 *
 * Values are copied so that attention finds all three side by side. Backward may run in place; then they are already
 * there. */
#include "proto/operation/head_norm.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"

#include <assert.h>

int program_head_norm(struct program *p, int qkv, const char *query, const char *key,
                      const struct program_head_norm_options *head_norm)
{
    const uint32_t columns = p->values[qkv].columns, n_normed = head_norm->n_heads + head_norm->n_kv_heads;
    const struct program_tensor weight = {.rows = head_norm->head_width,
                                          .init = head_norm->offset ? MODEL_INIT_ZERO : MODEL_INIT_ONE};
    struct program_operation *op = program_append(p, &operation_head_norm);

    assert((n_normed + head_norm->n_kv_heads) * head_norm->head_width == columns);
    op->head_norm = *head_norm;
    program_add_input(p, op, qkv);
    const int y = program_add_output(p, op, PROGRAM_VALUE, columns);
    program_add_output(p, op, PROGRAM_STATISTIC, 2 * n_normed);
    program_add_tensor(p, op, query, "weight", weight);
    program_add_tensor(p, op, key, "weight", weight);
    return y;
}

/* The heads of queries (which 0) or of keys (1), of x and of arrays with the same rows. */
struct heads {
    size_t first; /* column */
    struct device_norm norm;
};

static struct heads heads_of(const struct operation_run *r, const struct schedule_step *step, int which)
{
    const struct program_operation *op = operation_of(r, step);
    const struct program_head_norm_options *how = &op->head_norm;
    struct heads heads = {.first = which == 0 ? 0 : (size_t)how->n_heads * how->head_width};
    float *statistics = r->at[step->outputs[1]];

    heads.norm =
        (struct device_norm){.kind = DEVICE_RMS_NORM,
                             .m = operation_elements(r, op->inputs[0]),
                             .n = how->head_width,
                             .n_heads = which == 0 ? how->n_heads : how->n_kv_heads,
                             .stride = operation_columns(r, op->inputs[0]),
                             .epsilon = how->epsilon,
                             .offset = how->offset,
                             .x = operation_element(r, r->at[step->inputs[0]], heads.first),
                             .weight = r->weights[op->tensor + which],
                             .statistics = statistics +
                                           (which == 0 ? 0 : 2 * operation_elements(r, op->inputs[0]) * how->n_heads)};
    return heads;
}

/* The columns of values, which have no norm. */
static void copy_values(const struct operation_run *r, const struct program_operation *op, void *to, const void *from)
{
    const struct program_head_norm_options *how = &op->head_norm;
    const size_t first = (size_t)(how->n_heads + how->n_kv_heads) * how->head_width;
    const struct device_dropout_add copy = {.n_rows = r->n_rows,
                                            .n_tokens = operation_row_elements(r, op->inputs[0]),
                                            .n = (size_t)how->n_kv_heads * how->head_width,
                                            .stride = operation_columns(r, op->inputs[0]),
                                            .h = operation_element(r, from, first),
                                            .y = operation_element(r, to, first)};

    if (to != from)
        r->ops->dropout_add(r->dev, &copy);
}

static void head_norm_run_backward(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    void *const dy = r->at[step->y_gradient], *const dx = r->at[step->x_gradient];

    assert(!step->accumulate); /* no other operation reads x */
    for (int which = 0; which < 2; which++) {
        struct heads heads = heads_of(r, step, which);
        heads.norm.y_gradient = operation_element(r, dy, heads.first);
        heads.norm.x_gradient = operation_element(r, dx, heads.first);
        heads.norm.weight_gradient = r->gradients[op->tensor + which];
        r->ops->norm_backward(r->dev, &heads.norm);
    }
    copy_values(r, op, dx, dy);
}

static void head_norm_run(const struct operation_run *r, const struct schedule_step *step)
{
    if (step->action != SCHEDULE_FORWARD) {
        head_norm_run_backward(r, step);
        return;
    }
    void *const y = r->at[step->outputs[0]];
    for (int which = 0; which < 2; which++) {
        struct heads heads = heads_of(r, step, which);
        heads.norm.y = operation_element(r, y, heads.first);
        r->ops->norm(r->dev, &heads.norm);
    }
    copy_values(r, operation_of(r, step), y, r->at[step->inputs[0]]);
}

const struct operation operation_head_norm = {.name = "head norm",
                                              .reads_inputs = OPERATION_FIRST,
                                              .reads_outputs = OPERATION_SECOND,
                                              .gradient_over = true,
                                              .cheap = true,
                                              .run = head_norm_run};
