/* The gradient of the weight reads x, that of x reads the weight: two steps, so that x is recomputed only for a weight
 * that is trained, and before the step that reads it. A value of tokens has a number of elements but no sides, so the
 * options give them; an own domain has its sides, and both must agree with the rows that run. */
#include "proto/operation/kind/conv2d.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"
#include "proto/operation/schedule_internal.h"

#include <assert.h>

enum { WEIGHT, BIAS };

int program_conv2d(struct program *p, int x, const char *stem, uint32_t domain, uint32_t columns,
                   const struct program_conv2d_options *conv)
{
    struct program_operation *op = program_append(p, &operation_conv2d);
    const uint32_t in = p->values[x].columns;

    assert(domain >= PROGRAM_OWN && conv->n_groups > 0 && in % conv->n_groups == 0 && columns % conv->n_groups == 0);
    assert((p->values[x].domain == PROGRAM_TOKENS) == (conv->height > 0));
    op->conv2d = *conv;
    program_add_input(p, op, x);
    program_add_tensor(p, op, stem, "weight",
                       (struct program_tensor){.rows = columns,
                                               .columns =
                                                   conv->window.height * conv->window.width * (in / conv->n_groups),
                                               .height = conv->window.height,
                                               .width = conv->window.width,
                                               .init = MODEL_INIT_NORMAL,
                                               .deviation = conv->deviation});
    if (conv->bias)
        program_add_tensor(p, op, stem, "bias", (struct program_tensor){.rows = columns, .init = MODEL_INIT_ZERO});
    return program_add_output_in(p, op, PROGRAM_VALUE, domain, columns);
}

/* First the gradients of weight and bias, if they are trained, then that of x. */
static void conv2d_differentiate(struct schedule_builder *b, int operation)
{
    const struct program_operation *op = &b->program->operations[operation];
    struct schedule_step *step;

    if (!op->frozen) {
        if (program_pools(op))
            schedule_ensure_sample(b, operation);
        else
            schedule_ensure(b, op->inputs[0]);
        step = schedule_begin_step(b, SCHEDULE_CONTRIBUTE, operation);
        step->contributes = true;
        step->inputs[0] = program_pools(op) ? schedule_read_sample(b, operation) : schedule_read(b, op->inputs[0]);
        step->y_gradient = schedule_read_gradient(b, op->outputs[0]);
        schedule_end_step(b);
    }
    step = schedule_begin_step(b, SCHEDULE_BACKWARD, operation);
    step->y_gradient = schedule_read_gradient(b, op->outputs[0]);
    schedule_write_gradient(b, step, 0);
    schedule_end_step(b);
}

/* The size of an image of an own domain; or of tokens, as it is given. */
static struct device_conv2d conv2d_sizes_of(const struct operation_run *r, const struct program_operation *op)
{
    const struct program_value *x = &r->program->values[op->inputs[0]], *y = &r->program->values[op->outputs[0]];
    const struct program_own *from = x->domain >= PROGRAM_OWN ? &r->program->own[x->domain - PROGRAM_OWN] : NULL,
                             *to = &r->program->own[y->domain - PROGRAM_OWN];
    const struct device_conv2d conv = {.n_rows = r->n_rows,
                                       .height = from ? from->height : op->conv2d.height,
                                       .width = from ? from->width : op->conv2d.width,
                                       .n_in = x->columns,
                                       .n_out = y->columns,
                                       .n_groups = op->conv2d.n_groups,
                                       .window = op->conv2d.window};

    assert(conv.height * conv.width == operation_row_elements(r, op->inputs[0]));
    assert(device_conv2d_height(&conv) == to->height && device_conv2d_width(&conv) == to->width);
    return conv;
}

struct device_conv2d operation_conv2d_call(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    struct device_conv2d conv = conv2d_sizes_of(r, op);

    switch (step->action) {
    case SCHEDULE_FORWARD:
        conv.x = r->at[step->inputs[0]];
        conv.weight = r->weights[op->tensor + WEIGHT];
        conv.bias = op->conv2d.bias ? r->weights[op->tensor + BIAS] : NULL;
        conv.y = r->at[step->outputs[0]];
        break;
    case SCHEDULE_CONTRIBUTE:
        conv.x = r->at[step->inputs[0]];
        conv.y_gradient = r->at[step->y_gradient];
        conv.weight_gradient = r->gradients[op->tensor + WEIGHT];
        conv.beta = r->fresh ? 0 : 1;
        break;
    case SCHEDULE_BACKWARD:
        conv.weight = r->weights[op->tensor + WEIGHT];
        conv.y_gradient = r->at[step->y_gradient];
        conv.x_gradient = r->at[step->x_gradient];
        conv.accumulate = step->accumulate;
        break;
    case SCHEDULE_SAMPLE:
    case SCHEDULE_COMPRESS:
    case SCHEDULE_EXPAND:
    case SCHEDULE_ROUND:
        break;
    }
    return conv;
}

/* ---- means of blocks ----
 *
 * With means for its pixels, every pixel of a block has one number in common, so a weight's gradient is a sum over
 * blocks: the mean, times the sum of y's gradient over the windows of which the weight's tap lies in the block. Means
 * and sums are in the device's type. There is a product for each tap, as long as there are blocks: side x side times
 * shorter than that of an exact gradient. */

static size_t conv2d_blocks_of(const struct device_conv2d *conv, uint32_t side)
{
    return conv->n_rows * device_blocks(conv->height, side) * device_blocks(conv->width, side);
}

/* Sums of y's gradient for one tap. */
static uint64_t conv2d_scratch(const struct program *p, const struct program_operation *op,
                               const struct operation_setting *setting)
{
    if (!program_pools(op) || setting->action != SCHEDULE_CONTRIBUTE)
        return 0;
    return program_pooled_bytes(p, op->inputs[0], setting->n_rows, number_bytes(setting->type)) /
           p->values[op->inputs[0]].columns * p->values[op->outputs[0]].columns;
}

static void run_means(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    const struct device_conv2d conv = conv2d_sizes_of(r, op);

    r->ops->sum_blocks(r->dev, &(struct device_sum_blocks){.n_rows = conv.n_rows,
                                                           .height = conv.height,
                                                           .width = conv.width,
                                                           .n = conv.n_in,
                                                           .side = op->conv2d.pooled,
                                                           .window = {1, 1, 1, 0},
                                                           .mean = true,
                                                           .g = r->at[step->inputs[0]],
                                                           .y = r->at[step->outputs[0]]});
}

/* The gradient of the weights of a tap, of each group: += sums^T means. */
static void contribute_tap(const struct operation_run *r, const struct device_conv2d *conv, size_t tap,
                           const void *sums, uint32_t side)
{
    const size_t in = conv->n_in / conv->n_groups, out = conv->n_out / conv->n_groups,
                 columns = conv->window.height * conv->window.width * in;

    for (uint32_t group = 0; group < conv->n_groups; group++)
        r->ops->matmul(r->dev, &(struct device_matmul){.transpose_a = true,
                                                       .m = out,
                                                       .n = in,
                                                       .k = conv2d_blocks_of(conv, side),
                                                       .a = operation_element(r, sums, group * out),
                                                       .a_stride = conv->n_out,
                                                       .b = operation_element(r, conv->x, group * in),
                                                       .b_stride = conv->n_in,
                                                       .c = conv->weight_gradient + group * out * columns + tap * in,
                                                       .c_stride = columns,
                                                       .wide = true,
                                                       .over_rows = true,
                                                       .beta = conv->beta});
}

/* conv->x: the means. */
static void contribute_pooled(const struct operation_run *r, const struct device_conv2d *conv, uint32_t side,
                              void *sums)
{
    const struct image_window *w = &conv->window;
    struct device_sum_blocks sum = {.n_rows = conv->n_rows,
                                    .height = conv->height,
                                    .width = conv->width,
                                    .n = conv->n_out,
                                    .side = side,
                                    .window = *w,
                                    .g = conv->y_gradient,
                                    .y = sums};

    for (sum.down = 0; sum.down < w->height; sum.down++)
        for (sum.across = 0; sum.across < w->width; sum.across++) {
            r->ops->sum_blocks(r->dev, &sum);
            contribute_tap(r, conv, sum.down * w->width + sum.across, sums, side);
        }
}

static void contribute_weight(const struct operation_run *r, const struct schedule_step *step,
                              const struct device_conv2d *conv)
{
    const struct program_operation *op = operation_of(r, step);
    const int weight = op->tensor + WEIGHT;

    operation_begin_gradient(r, weight);
    if (program_pools(op))
        contribute_pooled(r, conv, op->conv2d.pooled, r->at[step->scratch]);
    else
        r->ops->conv2d_weight_gradient(r->dev, conv);
    operation_end_gradient(r, weight);
}

static void conv2d_run_contributions(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    float *const bias = op->conv2d.bias ? r->gradients[op->tensor + BIAS] : NULL;
    const struct device_conv2d conv = operation_conv2d_call(r, step);

    if (conv.weight_gradient)
        contribute_weight(r, step, &conv);
    if (bias)
        r->ops->reduce_rows(r->dev, &(struct device_reduce_rows){bias, conv.y_gradient, device_conv2d_pixels(&conv),
                                                                 conv.n_out, conv.n_out});
}

static void operation_conv2d_run(const struct operation_run *r, const struct schedule_step *step)
{
    if (step->action == SCHEDULE_SAMPLE) {
        run_means(r, step);
    } else if (step->action == SCHEDULE_CONTRIBUTE) {
        conv2d_run_contributions(r, step);
    } else {
        const struct device_conv2d conv = operation_conv2d_call(r, step);
        operation_begin_weights(r, operation_of(r, step)->tensor + WEIGHT);
        (step->action == SCHEDULE_FORWARD ? r->ops->conv2d : r->ops->conv2d_input_gradient)(r->dev, &conv);
    }
}

const struct operation operation_conv2d = {.name = "convolution",
                                           .reads_inputs = OPERATION_FIRST,
                                           .reads_frozen = OPERATION_FIRST,
                                           .bears_4_bits = true,
                                           .mixes_tokens = true,
                                           .contributes_with_scratch = true,
                                           .scratch = conv2d_scratch,
                                           .differentiate = conv2d_differentiate,
                                           .run = operation_conv2d_run};
