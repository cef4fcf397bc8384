/* Frequencies are computed when the program is written and stored in it, so backward turns back by the very doubles
 * that forward turned by. In generation each span has its own position, and so its own call.
 *
 * Where long rows have frequencies of their own, the length of the run's rows chooses, and in generation the most that
 * a row may come to: what is cached stays as it was rotated, so the choice must not change while a text grows. */
#include "proto/operation/kind/rope.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"

#include <assert.h>
#include <math.h>

int program_rope(struct program *p, int x, const struct program_rope_options *rope)
{
    struct program_operation *op = program_append(p, &operation_rope);
    const uint32_t n = rope->n_rotated ? rope->n_rotated : rope->head_width;

    assert(n % 2 == 0 && n <= rope->head_width && n <= DEVICE_MAX_ROTATED &&
           rope->n_heads * rope->head_width <= p->values[x].columns);
    assert(rope->n_grown == 0 || rope->period > 0);
    op->rope = (struct program_rotation){.n_heads = rope->n_heads,
                                         .head_width = rope->head_width,
                                         .n_rotated = n,
                                         .frequencies = p->n_numbers,
                                         .long_frequencies = p->n_numbers + (rope->long_frequencies ? (int)n / 2 : 0),
                                         .n_short = rope->n_short,
                                         .interleaved = rope->interleaved,
                                         .backwards = rope->backwards,
                                         .factor = rope->factor,
                                         .n_grown = rope->n_grown,
                                         .growth = rope->growth,
                                         .period = rope->period};
    for (uint32_t j = 0; j < n / 2; j++)
        program_add_number(p, rope->frequencies ? rope->frequencies[j] : pow(rope->base, -2.0 * j / n));
    for (uint32_t j = 0; rope->long_frequencies && j < n / 2; j++)
        program_add_number(p, rope->long_frequencies[j]);
    program_add_input(p, op, x);
    return program_add_output(p, op, PROGRAM_VALUE, p->values[x].columns);
}

/* In place; backward, gradients are turned back. */
static void rope_run(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    const bool forward = step->action == SCHEDULE_FORWARD;
    const size_t n_tokens = operation_row_elements(r, op->inputs[0]);
    const bool is_long = (r->spans ? r->n_positions : n_tokens) > op->rope.n_short;
    void *const x = r->at[forward ? step->outputs[0] : step->x_gradient];
    struct device_rope rope = {.n_rows = r->n_rows,
                               .n_tokens = n_tokens,
                               .n_heads = op->rope.n_heads,
                               .head_width = op->rope.head_width,
                               .n_rotated = op->rope.n_rotated,
                               .frequencies =
                                   &r->program->numbers[is_long ? op->rope.long_frequencies : op->rope.frequencies],
                               .positions = operation_positions(r, op->inputs[0]),
                               .x = x,
                               .stride = operation_columns(r, op->inputs[0]),
                               .inverse = forward == op->rope.backwards,
                               .interleaved = op->rope.interleaved,
                               .factor = op->rope.factor,
                               .n_grown = op->rope.n_grown,
                               .growth = op->rope.growth,
                               .period = op->rope.period};

    assert(x == r->at[forward ? step->inputs[0] : step->y_gradient]);
    if (!r->spans)
        r->ops->rope(r->dev, &rope);
    for (uint32_t i = 0; i < r->n_spans; i++) {
        const struct operation_span *span = &r->spans[i];
        rope.n_tokens = span->n;
        rope.first = span->position;
        rope.x = operation_element(r, x, span->at * rope.stride);
        r->ops->rope(r->dev, &rope);
    }
}

const struct operation operation_rope = {.name = "rope",
                                         .over_inputs = OPERATION_FIRST,
                                         .gradient_over = true,
                                         .run = rope_run};
