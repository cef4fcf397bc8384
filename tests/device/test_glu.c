/* Gated linear units against the formula in double. */
#include "tests/kit/device/operation.h"
#include "tests/kit/device/reference.h"
#include "tests/kit/test.h"

SUITE_LABELS(on_cuda)

/* Gate and up are columns of one array, `gap` columns before, between and behind them. */
static const struct shape {
    size_t m, n, gap;
} shapes[] = {{1, 1, 0}, {3, 16, 0}, {5, 33, 3}, {64, 24, 8}, {2, 1000, 8}};
enum {
    N_SHAPES = sizeof shapes / sizeof *shapes,
    N_ACTIVATIONS = MODEL_SILU + 1,
    N_CASES = N_SHAPES * NUMBER_TYPES * N_ACTIVATIONS
};

struct glu {
    const struct shape *shape;
    enum number_type type;
    enum model_activation activation;
    size_t stride, up; /* of the array; where up begins in a row */
    void *both, *dy;   /* (m, stride), (m, n) */
    bool in_place;
};

static void set_up(struct glu *t, int i)
{
    const struct shape *s = &shapes[i / N_ACTIVATIONS / NUMBER_TYPES];

    *t = (struct glu){.shape = s,
                      .type = (enum number_type)(i / N_ACTIVATIONS % NUMBER_TYPES),
                      .activation = (enum model_activation)(i % N_ACTIVATIONS),
                      .stride = 2 * s->n + 3 * s->gap,
                      .up = s->n + 2 * s->gap};
    t->both = operation_values(t->type, s->m * t->stride, 1);
    t->dy = operation_values(t->type, s->m * s->n, 2);
}

static struct device_glu glu_of(const struct glu *t, void *both)
{
    return (struct device_glu){.m = t->shape->m,
                               .n = t->shape->n,
                               .activation = t->activation,
                               .gate = device_element(t->type, both, t->shape->gap),
                               .up = device_element(t->type, both, t->up),
                               .stride = t->stride};
}

static void run_forward(struct mirror *at, void *const out[], const void *context)
{
    const struct glu *t = context;
    struct device_glu op = glu_of(t, mirror_of(at, t->both));

    op.y = out[0];
    at->ops->glu(at->dev, &op);
}

static void run_backward(struct mirror *at, void *const out[], const void *context)
{
    const struct glu *t = context;
    struct device_glu op = glu_of(t, t->in_place ? out[0] : mirror_of(at, t->both));

    op.y_gradient = mirror_of(at, t->dy);
    op.gate_gradient = device_element(t->type, out[0], t->shape->gap);
    op.up_gradient = device_element(t->type, out[0], t->up);
    op.gradient_stride = t->stride;
    at->ops->glu_backward(at->dev, &op);
}

static double both_at(const struct glu *t, size_t i, size_t column)
{
    return (double)operation_get(t->type, t->both, i * t->stride + column);
}

SUITE_FIXTURE(mirror_forget, NULL)

/* The activation within 3 units in the last place, as test_rows.c has it, and a product or two. */
static const double tolerance = 5 * 0x1p-23;

TEST_EACH(glu_is_the_formula, N_CASES)
{
    struct glu t;

    set_up(&t, _i);
    const size_t n = t.shape->n;
    double *want = operation_zeros(t.shape->m * n);
    for (size_t i = 0; i < t.shape->m; i++)
        for (size_t j = 0; j < n; j++)
            want[i * n + j] =
                reference_activation(t.activation, both_at(&t, i, t.shape->gap + j)) * both_at(&t, i, t.up + j);
    operation_check(&(struct operation){.type = t.type,
                                        .run = run_forward,
                                        .context = &t,
                                        .is_elementwise = true,
                                        .parts = {{"y", t.shape->m * n, want, tolerance, NULL, OPERATION_VALUES}}});
}

/* Into an array of its own, or over gate and up. Columns beside them stay as they are. */
TEST_EACH(glu_backward_is_the_formula, 2 * N_CASES)
{
    struct glu t;

    set_up(&t, _i / 2);
    t.in_place = _i % 2;
    const size_t n = t.shape->n, all = t.shape->m * t.stride;
    const void *initial = t.in_place ? t.both : operation_values(t.type, all, 3);
    double *want = operation_widen(t.type, initial, all);
    for (size_t i = 0; i < t.shape->m; i++)
        for (size_t j = 0; j < n; j++) {
            const double gate = both_at(&t, i, t.shape->gap + j), up = both_at(&t, i, t.up + j);
            const double dy = (double)operation_get(t.type, t.dy, i * n + j);
            want[i * t.stride + t.shape->gap + j] = dy * up * reference_activation_gradient(t.activation, gate);
            want[i * t.stride + t.up + j] = dy * reference_activation(t.activation, gate);
        }
    operation_check(&(struct operation){.type = t.type,
                                        .run = run_backward,
                                        .context = &t,
                                        .is_elementwise = true,
                                        .parts = {{"gradients", all, want, tolerance, initial, OPERATION_VALUES}}});
}
