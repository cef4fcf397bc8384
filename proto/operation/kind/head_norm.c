/* Queries and keys are two calls of the ordinary norm, with a stride, over columns of one array: they have weights of
 * their own, and no copy makes them dense. Where each head has a weight, it has a call, too. Each call writes a dense
 * array of statistics, so all of the queries' lie before all of the keys'.
 *
 * Values are copied so that attention finds all three side by side. Backward may run in place; then they are already
 * there. */
#include "proto/operation/kind/head_norm.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"

#include <assert.h>
#include <stdio.h>

/* Of queries (which 0) or keys (1): how many runs of columns are normed, and how wide each is. */
static uint32_t count_normed(const struct program_head_norm_options *how, uint32_t which)
{
    return how->whole ? 1 : which == 0 ? how->n_heads : how->n_kv_heads;
}

static uint32_t width_of_normed(const struct program_head_norm_options *how, uint32_t which)
{
    return how->whole ? (which == 0 ? how->n_heads : how->n_kv_heads) * how->head_width : how->head_width;
}

/* Adds a tensor for all heads of queries or keys, or one for each. */
static void add_tensors(struct program *p, struct program_operation *op, const char *stem, const char *name,
                        uint32_t which, enum model_init init)
{
    const struct program_head_norm_options *how = &op->head_norm;
    const uint32_t heads = how->stacked ? count_normed(how, which) : 0;
    const struct program_tensor tensor = {.rows = (heads ? heads : 1) * width_of_normed(how, which),
                                          .heads = heads,
                                          .init = init};

    if (!how->each || how->stacked)
        program_add_tensor(p, op, stem, name, tensor);
    for (uint32_t i = 0; how->each && !how->stacked && i < count_normed(how, which); i++) {
        char of_head[PROGRAM_NAME_BYTES];
        snprintf(of_head, sizeof of_head, "%s.norms.%u", stem, i);
        program_add_tensor(p, op, of_head, name, tensor);
    }
}

int program_head_norm(struct program *p, int qkv, const char *query, const char *key,
                      const struct program_head_norm_options *head_norm)
{
    const uint32_t columns = p->values[qkv].columns;
    const enum model_init init = head_norm->offset ? MODEL_INIT_ZERO : MODEL_INIT_ONE;
    struct program_operation *op = program_append(p, &operation_head_norm);

    assert((head_norm->n_heads + 2 * head_norm->n_kv_heads) * head_norm->head_width == columns);
    assert(!head_norm->bare || !(head_norm->layer || head_norm->each || head_norm->offset));
    assert(!head_norm->stacked || head_norm->each);
    assert(!head_norm->each || head_norm->stacked ||
           head_norm->n_heads + head_norm->n_kv_heads <= PROGRAM_NORMED_HEADS);
    op->head_norm = *head_norm;
    program_add_input(p, op, qkv);
    const int y = program_add_output(p, op, PROGRAM_VALUE, columns);
    program_add_output(p, op, PROGRAM_STATISTIC, 2 * (count_normed(head_norm, 0) + count_normed(head_norm, 1)));
    if (!head_norm->bare) {
        add_tensors(p, op, query, "weight", 0, init);
        add_tensors(p, op, key, "weight", 1, init);
    }
    if (head_norm->layer) {
        add_tensors(p, op, query, "bias", 0, MODEL_INIT_ZERO);
        add_tensors(p, op, key, "bias", 1, MODEL_INIT_ZERO);
    }
    return y;
}

/* The heads of a call: all of queries (call 0) or of keys (1); or one, of all these. Of x and of arrays with the same
 * rows. */
struct heads {
    size_t first;     /* column */
    int tensor;       /* the weight's */
    size_t in_tensor; /* its first element there */
    struct device_norm norm;
};

enum { BIASES = 2 }; /* tensors from a weight to its bias */

static uint32_t head_norm_calls(const struct program_head_norm_options *how)
{
    return how->each ? how->n_heads + how->n_kv_heads : 2;
}

static struct heads heads_of(const struct operation_run *r, const struct schedule_step *step, uint32_t call)
{
    const struct program_operation *op = operation_of(r, step);
    const struct program_head_norm_options *how = &op->head_norm;
    const uint32_t which = call >= (how->each ? how->n_heads : 1);
    const uint32_t before = how->each ? call : which == 0 ? 0 : count_normed(how, 0); /* norms of earlier calls */
    struct heads heads = {.first = (how->whole && which ? how->n_heads : before) * (size_t)how->head_width,
                          .tensor = op->tensor + (int)(how->stacked ? which : call),
                          .in_tensor = how->stacked ? (call - which * how->n_heads) * (size_t)how->head_width : 0};
    const void *const weight = how->bare ? NULL : r->weights[heads.tensor];
    float *statistics = r->at[step->outputs[1]];

    heads.norm = (struct device_norm){.kind = how->layer || how->each ? DEVICE_LAYER_NORM : DEVICE_RMS_NORM,
                                      .m = operation_elements(r, op->inputs[0]),
                                      .n = width_of_normed(how, which),
                                      .n_heads = how->each ? 1 : count_normed(how, which),
                                      .stride = operation_columns(r, op->inputs[0]),
                                      .epsilon = how->epsilon,
                                      .bare = how->bare,
                                      .offset = how->offset,
                                      .x = operation_element(r, r->at[step->inputs[0]], heads.first),
                                      .weight = weight ? operation_element(r, weight, heads.in_tensor) : NULL,
                                      .bias = how->layer ? r->weights[op->tensor + (int)call + BIASES] : NULL,
                                      .statistics = statistics + 2 * operation_elements(r, op->inputs[0]) * before};
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
    for (uint32_t call = 0; call < head_norm_calls(&op->head_norm); call++) {
        struct heads heads = heads_of(r, step, call);
        heads.norm.y_gradient = operation_element(r, dy, heads.first);
        heads.norm.x_gradient = operation_element(r, dx, heads.first);
        if (!op->head_norm.bare && r->gradients[heads.tensor])
            heads.norm.weight_gradient = r->gradients[heads.tensor] + heads.in_tensor;
        heads.norm.bias_gradient = op->head_norm.layer ? r->gradients[op->tensor + (int)call + BIASES] : NULL;
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
    for (uint32_t call = 0; call < head_norm_calls(&operation_of(r, step)->head_norm); call++) {
        struct heads heads = heads_of(r, step, call);
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
