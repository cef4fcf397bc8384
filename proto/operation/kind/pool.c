/* Max pooling finds the largest pixels again in backward, from x. Kept from forward on, their indices would take memory
 * until then; as scratch they take it for one step. An index is a byte, which bounds the window (IMAGE_MOST_TAPS).
 * Average pooling has no such bound, and its backward reads no input: the gradient depends on sizes alone. */
#include "proto/operation/kind/pool.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"

#include <assert.h>

int program_max_pool(struct program *p, int x, uint32_t domain, const struct image_window *window)
{
    struct program_operation *op = program_append(p, &operation_max_pool);

    assert(p->values[x].domain >= PROGRAM_OWN && domain >= PROGRAM_OWN && window->height > 0);
    op->max_pool.window = *window;
    program_add_input(p, op, x);
    return program_add_output_in(p, op, PROGRAM_VALUE, domain, p->values[x].columns);
}

static int average(struct program *p, int x, uint32_t domain, const struct image_window *window)
{
    struct program_operation *op = program_append(p, &operation_average_pool);

    assert(p->values[x].domain >= PROGRAM_OWN);
    op->average_pool.window = *window;
    program_add_input(p, op, x);
    return program_add_output_in(p, op, PROGRAM_VALUE, domain, p->values[x].columns);
}

int program_average_pool(struct program *p, int x, uint32_t domain, const struct image_window *window)
{
    assert(domain >= PROGRAM_OWN && window->height > 0);
    return average(p, x, domain, window);
}

int program_average_image(struct program *p, int x, uint32_t domain)
{
    return average(p, x, domain, &(struct image_window){.stride = 1});
}

static struct device_pool pool_sizes_of(const struct operation_run *r, const struct program_operation *op,
                                        const struct image_window *window)
{
    const struct program_own *from = &r->program->own[r->program->values[op->inputs[0]].domain - PROGRAM_OWN];
    struct device_pool pool = {.n_rows = r->n_rows,
                               .height = from->height,
                               .width = from->width,
                               .n = operation_columns(r, op->inputs[0]),
                               .window = *window};

    if (window->height == 0)
        pool.window.height = from->height, pool.window.width = from->width;
    assert(device_pool_height(&pool) * device_pool_width(&pool) == operation_row_elements(r, op->outputs[0]));
    return pool;
}

/* Which pixel of each window is the largest: a byte for each element of y, backward. */
static uint64_t pool_scratch(const struct program *p, const struct program_operation *op,
                             const struct operation_setting *s)
{
    return s->action == SCHEDULE_BACKWARD
               ? program_elements(p, op->outputs[0], s->n_rows, s->n_tokens) * p->values[op->outputs[0]].columns
               : 0;
}

static void run_max(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    struct device_pool pool = pool_sizes_of(r, op, &op->max_pool.window);

    pool.x = r->at[step->inputs[0]];
    if (step->action == SCHEDULE_FORWARD) {
        pool.y = r->at[step->outputs[0]];
        r->ops->max_pool(r->dev, &pool);
        return;
    }
    pool.y_gradient = r->at[step->y_gradient];
    pool.x_gradient = r->at[step->x_gradient];
    pool.accumulate = step->accumulate;
    pool.largest = r->at[step->scratch];
    r->ops->max_pool_backward(r->dev, &pool);
}

const struct operation operation_max_pool = {.name = "max pool",
                                             .reads_inputs = OPERATION_FIRST,
                                             .cheap = true,
                                             .mixes_tokens = true,
                                             .scratch = pool_scratch,
                                             .run = run_max};

static void run_average(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    struct device_pool pool = pool_sizes_of(r, op, &op->average_pool.window);

    if (step->action == SCHEDULE_FORWARD) {
        pool.x = r->at[step->inputs[0]];
        pool.y = r->at[step->outputs[0]];
        r->ops->average_pool(r->dev, &pool);
        return;
    }
    pool.y_gradient = r->at[step->y_gradient];
    pool.x_gradient = r->at[step->x_gradient];
    pool.accumulate = step->accumulate;
    r->ops->average_pool_backward(r->dev, &pool);
}

const struct operation operation_average_pool = {.name = "average pool",
                                                 .cheap = true,
                                                 .mixes_tokens = true,
                                                 .run = run_average};
