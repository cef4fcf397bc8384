/* Attention in tiles against attention by the formula. */
#include "tests/kit/device/operation.h"
#include "tests/kit/device/reference.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

SUITE_LABELS(single, on_cuda, on_cudnn)

/* Sequences of 1, of less than a tile, of exactly one, and ending anywhere in the third; head widths of 1, of no
 * multiple of any vector, and over 64. */
static const struct shape {
    size_t n_rows, n_tokens, n_heads, width;
    float p;
    bool is_prepared; /* a CUDA device computes it through cuDNN, where that is found and can */
} shapes[] = {
    {1, 1, 1, 1, 0, false},     {2, 1, 3, 24, 0.5f, false},  {1, 5, 2, 6, 0, false},    {2, 17, 1, 40, 0.1f, false},
    {1, 64, 2, 128, 0, false},  {2, 65, 3, 75, 0, false},    {1, 100, 5, 80, 0, false}, {1, 130, 2, 160, 0.2f, false},
    {1, 191, 1, 100, 0, false}, {1, 67, 2, 14, 0.3f, false}, {1, 256, 1, 64, 0, false}, {1, 128, 2, 16, 0, true},
    {2, 384, 1, 64, 0, true},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_CASES = N_SHAPES * NUMBER_TYPES };

static const struct random_key key = {{11, 22}};
enum { FIRST_ROW = 5 };

/* One shape's inputs and what the reference makes of them. */
struct attention {
    const struct shape *shape;
    enum number_type type;
    struct device_attention op;
    size_t n_out, n_qkv, n_sum;
    void *qkv, *out, *dy;
    float *sum;
    double *want_out, *want_sum, *want_gradient;
};

static void set_up(struct attention *t, const struct shape *s, enum number_type type)
{
    const size_t n_out = s->n_rows * s->n_tokens * s->width, n_sum = s->n_rows * s->n_heads * s->n_tokens;
    double *factors = operation_zeros(n_sum * s->n_tokens), *qkv, *dy, *out;
    struct reference_attention op = {s->n_rows, s->n_tokens, s->n_heads, s->width, (double)0.4f, factors, NULL};

    *t = (struct attention){.shape = s, .type = type, .n_out = n_out, .n_qkv = 3 * n_out, .n_sum = n_sum};
    t->qkv = operation_values(type, t->n_qkv, 1), t->dy = operation_values(type, n_out, 2);
    t->out = operation_room(type, n_out), t->sum = operation_room(NUMBER_FP32, n_sum);
    t->want_out = operation_zeros(n_out), t->want_sum = operation_zeros(n_sum);
    t->want_gradient = operation_zeros(t->n_qkv);
    for (size_t i = 0; i < n_sum * s->n_tokens; i++) {
        const size_t row = s->n_heads * s->n_tokens * s->n_tokens;
        factors[i] = reference_dropout(s->p, key, FIRST_ROW + i / row, i % row);
    }
    qkv = operation_widen(type, t->qkv, t->n_qkv), dy = operation_widen(type, t->dy, n_out);
    reference_attention(t->want_out, t->want_sum, qkv, &op);
    for (size_t i = 0; i < n_out; i++)
        operation_set(type, t->out, i, (float)t->want_out[i]);
    op.out = out = operation_widen(type, t->out, n_out);
    reference_attention_backward(t->want_gradient, dy, qkv, &op);
    t->op = (struct device_attention){.n_rows = s->n_rows,
                                      .n_tokens = s->n_tokens,
                                      .n_heads = s->n_heads,
                                      .width = s->width,
                                      .scale = 0.4f,
                                      .qkv = t->qkv,
                                      .out = t->out,
                                      .log_sum_exp = t->sum,
                                      .out_gradient = t->dy,
                                      .dropout = {s->p, key, FIRST_ROW}};
}

static size_t scratch_bytes(const struct mirror *at, const struct attention *t)
{
    const struct device_attention *op = &t->op;
    struct plan_attention_scratch scratch;

    plan_attention_lay_out(&scratch, backend_get()->attention, t->shape->n_rows, op->n_tokens, op->n_heads, op->width);
    return t->shape->is_prepared && scratch.way != PLAN_ATTENTION_OWN
               ? scratch.bytes
               : at->plan->scratch_bytes(op->n_rows, op->n_tokens, op->n_heads, op->n_heads, op->width, at->n_threads);
}

/* The inputs on the device; scratch that holds NaNs before, and not a byte more than asked for. */
static struct device_attention place(struct mirror *at, const struct attention *t)
{
    struct device_attention op = t->op;

    op.qkv = mirror_of(at, t->op.qkv), op.out_gradient = mirror_of(at, t->op.out_gradient);
    op.out = mirror_of(at, t->op.out), op.log_sum_exp = mirror_of(at, t->op.log_sum_exp);
    op.scratch = mirror_scratch(at, scratch_bytes(at, t));
    return op;
}

static void prepare(struct mirror *at, const struct attention *t, const struct device_attention *op)
{
    char told[DEVICE_TOLD];

    if (t->shape->is_prepared)
        at->ops->prepare_attention(at->dev, op, backend_get()->attention, told);
}

static void run_forward(struct mirror *at, void *const out[], const void *context)
{
    const struct attention *t = context;
    struct device_attention op = place(at, t);

    op.out = out[0], op.log_sum_exp = out[1];
    prepare(at, t, &op);
    at->ops->attention(at->dev, &op);
}

/* From the log-sum-exp of the device's own forward pass, of whose rounding backward makes up for its own, and the
 * output of the reference's, rounded: a device's might be on the other side of a tie. */
static void run_backward(struct mirror *at, void *const out[], const void *context)
{
    const struct attention *t = context;
    struct device_attention op = place(at, t);
    void *const out_of_reference = op.out;

    op.out = mirror_scratch(at, t->n_out * number_bytes(t->type));
    op.log_sum_exp = mirror_scratch(at, t->n_sum * sizeof(float));
    op.qkv_gradient = out[0];
    prepare(at, t, &op);
    at->ops->attention(at->dev, &op);
    op.out = out_of_reference;
    at->ops->attention_backward(at->dev, &op);
}

static void run_both(struct mirror *at, void *const out[], const void *context)
{
    const struct attention *t = context;
    struct device_attention op = place(at, t);

    op.out = mirror_scratch(at, t->n_out * number_bytes(t->type));
    op.log_sum_exp = mirror_scratch(at, t->n_sum * sizeof(float));
    op.qkv_gradient = out[0];
    at->ops->attention(at->dev, &op);
    op.scratch = place(at, t).scratch;
    at->ops->attention_backward(at->dev, &op);
}

/* Sums of a few hundred terms of size 1 in fp32, in blocks: a few times 2^-24; scores of up to 0.4 * 4 * sqrt(width),
 * whose own rounding the exponential passes on, make it a few more. */
static const double tolerance = 40 * 0x1p-24;

/* Where the values are bf16, a CUDA device's matrix units are given probabilities, and in backward gradients of scores,
 * rounded to bf16 too: each by up to 2^-8 of itself, either way, and a sum of them by less than that of the largest. */
static double near(const struct attention *t)
{
    return backend_get()->cuda && t->type == NUMBER_BF16 ? 0x1p-8 : tolerance;
}

static bool suits(const struct shape *s)
{
    return backend_suits(2 * (double)(s->n_rows * s->n_tokens * s->n_tokens * s->width));
}

SUITE_FIXTURE(mirror_forget, NULL)

TEST_EACH(attention_is_the_formula, N_CASES)
{
    struct attention t;

    if (!suits(&shapes[_i / NUMBER_TYPES]))
        return;
    set_up(&t, &shapes[_i / NUMBER_TYPES], (enum number_type)(_i % NUMBER_TYPES));
    operation_check(
        &(struct operation){.type = t.type,
                            .run = run_forward,
                            .context = &t,
                            .parts = {{"out", t.n_out, t.want_out, near(&t), NULL, OPERATION_VALUES},
                                      {"log_sum_exp", t.n_sum, t.want_sum, tolerance, .type = OPERATION_FP32}}});
}

/* Half as much again: the output is not the device's own, whose error would cancel some of the probabilities'. */
TEST_EACH(attention_backward_is_the_formula, N_CASES)
{
    struct attention t;

    if (!suits(&shapes[_i / NUMBER_TYPES]))
        return;
    set_up(&t, &shapes[_i / NUMBER_TYPES], (enum number_type)(_i % NUMBER_TYPES));
    operation_check(&(struct operation){.type = t.type,
                                        .run = run_backward,
                                        .context = &t,
                                        .parts = {{"qkv_gradient", t.n_qkv, t.want_gradient, 1.5 * near(&t), NULL,
                                                   OPERATION_VALUES}}});
}

/* A row computed by itself, at its place in the minibatch, equals the same row among others: by our own kernels, as a
 * library may divide its work as it likes. */
TEST_EACH(attention_of_a_row_does_not_depend_on_the_others, N_CASES)
{
    struct attention t;
    void *all, *alone;
    struct operation run = {.run = run_both, .context = &t};

    if (!suits(&shapes[_i / NUMBER_TYPES]) || shapes[_i / NUMBER_TYPES].is_prepared)
        return;
    set_up(&t, &shapes[_i / NUMBER_TYPES], (enum number_type)(_i % NUMBER_TYPES));
    all = operation_room(t.type, t.n_qkv), alone = operation_room(t.type, t.n_qkv);
    run.type = t.type;
    run.parts[0].n = t.n_qkv;
    operation_run(&run, &all);

    const size_t last = t.op.n_rows - 1, row = t.n_out / t.op.n_rows;
    t.op.n_rows = 1, t.op.dropout.first_row += last;
    t.op.qkv = device_element(t.type, t.qkv, last * 3 * row);
    t.op.out_gradient = device_element(t.type, t.dy, last * row);
    run.parts[0].n = 3 * row;
    operation_run(&run, &alone);
    ck_assert_mem_eq(alone, device_element(t.type, all, last * 3 * row), 3 * row * number_bytes(t.type));
}

static void run_two(struct mirror *at, void *const out[], const void *context)
{
    const struct device_attention op = {.n_rows = 1,
                                        .n_tokens = 2,
                                        .n_heads = 1,
                                        .width = 1,
                                        .scale = 1,
                                        .qkv = mirror_of(at, context),
                                        .out = out[0],
                                        .log_sum_exp = out[1],
                                        .scratch = mirror_scratch(at, at->plan->scratch_bytes(1, 2, 1, 1, 1, 1))};

    at->ops->attention(at->dev, &op);
}

/* Scores of 1000 and -1000 would overflow an exponential that is not taken relative to the largest. */
TEST_EACH(attention_holds_large_scores, NUMBER_TYPES)
{
    static const float values[] = {1, 1000, 3, 1, -1000, 5};
    const enum number_type type = (enum number_type)_i;
    void *const qkv = operation_room(type, 6), *const out = operation_room(type, 2);
    float *const sum = operation_room(NUMBER_FP32, 2);

    for (size_t i = 0; i < 6; i++)
        operation_set(type, qkv, i, values[i]);
    operation_run(&(struct operation){.type = type,
                                      .run = run_two,
                                      .context = qkv,
                                      .parts = {{.n = 2}, {.n = 2, .type = OPERATION_FP32}}},
                  (void *[]){out, sum});
    ck_assert_float_eq(operation_get(type, out, 0), 3);
    ck_assert_float_eq(operation_get(type, out, 1), 3);
    ck_assert_float_eq(sum[1], 1000);
}

/* A NaN in one key reaches every later query's output, so that the loss shows it, and no earlier one's. */
TEST_EACH(attention_passes_nan_on, NUMBER_TYPES)
{
    struct attention t;
    void *out[2];
    struct operation run = {.type = (enum number_type)_i, .run = run_forward, .context = &t};

    set_up(&t, &shapes[6], run.type);
    out[0] = operation_room(t.type, t.n_out), out[1] = operation_room(NUMBER_FP32, t.n_sum);
    run.parts[0].n = t.n_out;
    run.parts[1].n = t.n_sum, run.parts[1].type = OPERATION_FP32;
    operation_set(t.type, t.qkv, 70 * 3 * t.op.width + t.op.width, NAN); /* key 70, head 0 */
    operation_run(&run, out);
    for (size_t query = 0; query < t.op.n_tokens; query++)
        ck_assert_int_eq(isnan(operation_get(t.type, out[0], query * t.op.width)), query >= 70);
}
