/* Scale and shift are computed from the config's floats in double, once for a call: the device then has one
 * multiplication and one addition, with the same bits on every backend. */
#include "proto/operation/kind/pixels.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"
#include "proto/operation/schedule_internal.h"

#include <assert.h>

int program_pixels(struct program *p, const struct program_pixels_options *options)
{
    struct program_operation *op = program_append(p, &operation_pixels);

    assert(options->n <= DEVICE_MAX_CHANNELS);
    op->pixels = *options;
    return program_add_output_in(p, op, PROGRAM_VALUE, PROGRAM_TOKENS, options->n);
}

static void pixels_differentiate(struct schedule_builder *b, int operation)
{
    (void)b, (void)operation;
}

static void pixels_run(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_pixels_options *of = &operation_of(r, step)->pixels;
    struct device_pixels pixels = {.m = (size_t)r->n_rows * r->n_tokens,
                                   .n = of->n,
                                   .ids = r->ids,
                                   .y = r->at[step->outputs[0]]};

    for (uint32_t c = 0; c < of->n; c++) {
        pixels.scale[c] = 1 / (255 * (double)of->deviation[c]);
        pixels.shift[c] = -(double)of->mean[c] / (double)of->deviation[c];
    }
    r->ops->pixels(r->dev, &pixels);
}

const struct operation operation_pixels = {.name = "pixels",
                                           .cheap = true,
                                           .differentiate = pixels_differentiate,
                                           .run = pixels_run};
