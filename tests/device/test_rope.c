/* Rotary positions against the formula in double: plain cosines and sines of the angles. */
#include "tests/kit/device/operation.h"
#include "tests/kit/test.h"

#include <math.h>

SUITE_LABELS(on_cuda)

/* Heads in rows that are longer than they are; rotated columns of no whole vector, of part of a head, and the most. */
static const struct shape {
    size_t n_rows, n_tokens, n_heads, head_width, n_rotated, gap;
    uint64_t first;
} shapes[] = {
    {1, 1, 1, 2, 2, 0, 0},    {2, 3, 3, 10, 10, 5, 0},      {1, 5, 2, 64, 64, 64, 7}, {2, 4, 5, 24, 16, 8, 100},
    {1, 3, 2, 128, 96, 0, 0}, {1, 2, 3, 256, 256, 8, 5000}, {1, 1, 2, 16, 0, 0, 3},   {1, 4, 8, 128, 128, 0, 131070},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_CASES = N_SHAPES * NUMBER_TYPES };

struct rope {
    const struct shape *shape;
    enum number_type type;
    double frequencies[DEVICE_MAX_ROTATED / 2];
    bool inverse;
};

static void set_up(struct rope *t, int i)
{
    const struct shape *s = &shapes[i / NUMBER_TYPES];

    *t = (struct rope){.shape = s, .type = (enum number_type)(i % NUMBER_TYPES)};
    for (size_t j = 0; j < s->n_rotated / 2; j++)
        t->frequencies[j] = pow(10000, -2 * (double)j / (double)s->n_rotated);
}

static size_t stride(const struct shape *s)
{
    return s->n_heads * s->head_width + s->gap;
}

static size_t elements(const struct shape *s)
{
    return s->n_rows * s->n_tokens * stride(s);
}

static struct device_rope rope_of(const struct rope *t, void *x)
{
    const struct shape *s = t->shape;

    return (struct device_rope){.n_rows = s->n_rows,
                                .n_tokens = s->n_tokens,
                                .n_heads = s->n_heads,
                                .head_width = s->head_width,
                                .n_rotated = s->n_rotated,
                                .frequencies = t->frequencies,
                                .first = s->first,
                                .x = x,
                                .stride = stride(s),
                                .inverse = t->inverse};
}

static void run_rope(struct mirror *at, void *const out[], const void *context)
{
    const struct device_rope op = rope_of(context, out[0]);

    at->ops->rope(at->dev, &op);
}

static void run_back_and_forth(struct mirror *at, void *const out[], const void *context)
{
    struct device_rope op = rope_of(context, out[0]);

    at->ops->rope(at->dev, &op);
    op.inverse = true;
    at->ops->rope(at->dev, &op);
}

/* In place, of x (n_rows*n_tokens, stride). */
static void rotate(double *x, const struct rope *t)
{
    const struct shape *s = t->shape;
    const size_t half = s->n_rotated / 2;

    for (size_t i = 0; i < s->n_rows * s->n_tokens; i++)
        for (size_t j = 0; j < s->n_heads * half; j++) {
            double *a = x + i * stride(s) + j / half * s->head_width + j % half, *b = a + half, was = *a;
            const double angle = (double)(s->first + i % s->n_tokens) * t->frequencies[j % half];
            const double sine = t->inverse ? -sin(angle) : sin(angle);
            *a = was * cos(angle) - *b * sine;
            *b = *b * cos(angle) + was * sine;
        }
}

SUITE_FIXTURE(mirror_forget, NULL)

/* Two products and a sum of values up to 4, of which the cosine and the sine are each within 2^-24: in both directions. */
TEST_EACH(rope_turns_pairs_by_their_position, 2 * N_CASES)
{
    struct rope t;

    set_up(&t, _i / 2);
    t.inverse = _i % 2;
    const size_t n = elements(t.shape);
    const void *x = operation_values(t.type, n, 1);
    double *want = operation_widen(t.type, x, n);
    rotate(want, &t);
    operation_check(&(struct operation){
        .type = t.type, .run = run_rope, .context = &t, .parts = {{"x", n, want, 3 * 0x1p-23, x, OPERATION_VALUES}}});
}

/* Exactly what came in, but for the roundings of each way. */
TEST_EACH(the_inverse_takes_a_rotation_back, N_SHAPES)
{
    struct rope t;

    set_up(&t, _i * NUMBER_TYPES);
    const size_t n = elements(t.shape);
    const void *x = operation_values(t.type, n, 1);
    operation_check(
        &(struct operation){.type = t.type,
                            .run = run_back_and_forth,
                            .context = &t,
                            .parts = {{"x", n, operation_widen(t.type, x, n), 6 * 0x1p-23, x, OPERATION_VALUES}}});
}

/* By hand: a quarter of a turn takes (1, 2) to (-2, 1), and a position of 3 to (2, -1). */
TEST(a_quarter_of_a_turn_is_exact)
{
    static const struct shape s = {.n_rows = 1, .n_tokens = 4, .n_heads = 1, .head_width = 2, .n_rotated = 2};
    const struct rope t = {.shape = &s, .frequencies = {1.5707963267948966}};
    float *x = operation_room(NUMBER_FP32, 8);

    for (size_t i = 0; i < 8; i++)
        x[i] = (float)(1 + i % 2);
    operation_check(&(struct operation){.run = run_rope,
                                        .context = &t,
                                        .parts = {{"x", 8, (const double[]){1, 2, -2, 1, -1, -2, 2, -1}, 0x1p-23, x,
                                                   OPERATION_VALUES}}});
}
