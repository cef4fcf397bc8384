/* What is particular to the CUDA kernels of softmax: rows of several tiles, whole packs and odd strides, and the gradient
 * in bf16, which is written over logits that other threads read. */
#include "tests/kit/device/kernels.h"
#include "tests/kit/device/reference.h"
#include "tests/kit/test.h"

#include <math.h>

SUITE_LABELS(kernels)

enum { LOGITS, RUNNING, LABELS, LOSSES };

static const struct shape {
    size_t m, n, stride;
} shapes[] = {
    {1, 1, 1},       {3, 7, 9},       {5, 64, 64}, {20, 130, 130}, /* more rows than blocks */
    {2, 600, 604},   {3, 8264, 8264},                              /* two tiles of packs, the second not full */
    {2, 4500, 4501}, {2, 9001, 9001},                              /* of single elements: two and three */
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static const float scale = 1 / 3.0f;

/* Labels begin at 2. */
static struct device_cross_entropy cross_entropy_of(struct world *w, const struct shape *s)
{
    return (struct device_cross_entropy){.m = s->m,
                                         .n = s->n,
                                         .logits_stride = s->stride,
                                         .first = 2,
                                         .start = true,
                                         .logits = at(w, LOGITS),
                                         .labels = at(w, LABELS),
                                         .running = at(w, RUNNING),
                                         .scale = scale};
}

static cudaError_t run_softmax(struct world *w, const void *context)
{
    const struct device_cross_entropy op = cross_entropy_of(w, context);
    cudaError_t rc = cuda_log_sum_exp(&w->q, &op);

    if (rc == cudaSuccess)
        rc = cuda_loss(&w->q, at(w, LOSSES), op.running, op.labels, op.m);
    if (rc == cudaSuccess)
        rc = cuda_cross_entropy_gradient(&w->q, &op);
    return rc;
}

static struct world softmax_world(const struct shape *s, enum number_type type)
{
    struct world w = world_of(type);
    uint32_t *labels = calloc(s->m, sizeof *labels);

    add_values(&w, LOGITS, NUMBER_FP32, s->m * s->stride, true);
    add_values(&w, RUNNING, NUMBER_FP32, 3 * s->m, true);
    for (size_t i = 0; i < s->m; i++)
        labels[i] = i % 3 == 2 ? UINT32_MAX : (uint32_t)(2 + i * 7919 % s->n);
    add_array(&w, LABELS, labels, s->m * sizeof *labels, false);
    add_array(&w, LOSSES, calloc(s->m, sizeof(double)), s->m * sizeof(double), true);
    return w;
}

/* The gradient of row i at the address of its logits. */
static double gradient_at(const struct world *w, const struct shape *s, size_t i, size_t j)
{
    return get(w, LOGITS, i * s->stride * device_wide(w->q.type) + j);
}

TEST_EACH(the_gradient_takes_the_place_of_the_logits, NUMBER_TYPES *N_SHAPES)
{
    const struct shape *s = &shapes[_i / NUMBER_TYPES];
    struct world w = softmax_world(s, (enum number_type)(_i % NUMBER_TYPES));
    double *logits = operation_widen(NUMBER_FP32, w.arrays[LOGITS].host, s->m * s->stride);
    double *want = operation_zeros(s->n);
    const uint32_t *labels = w.arrays[LABELS].host;

    run_orders(&w, run_softmax, s);
    for (size_t i = 0; i < s->m; i++) {
        const bool counts = labels[i] != UINT32_MAX;
        const double *row = logits + i * s->stride;

        if (counts)
            reference_cross_entropy_backward(want, row, s->n, labels[i] - 2);
        ck_assert_double_eq_tol(((double *)w.arrays[LOSSES].host)[i],
                                counts ? reference_cross_entropy(row, s->n, labels[i] - 2) : 0, 1e-6 * 10);
        for (size_t j = 0; j < s->n; j++) {
            const double wanted = counts ? want[j] * (double)scale : 0, got = gradient_at(&w, s, i, j);
            if (!(fabs(got - wanted) <= 4 * 0x1p-24 + (w.q.type == NUMBER_BF16 ? 0x1.02p-8 * fabs(wanted) : 0)))
                ck_abort_msg("row %zu, column %zu is %.9g, not %.9g", i, j, got, wanted);
        }
    }
    free(logits), free(want), free_world(&w);
}

/* Two chunks of 700, one after the other; label in the second. */
static cudaError_t run_chunks(struct world *w, const void *context)
{
    struct device_cross_entropy op = {.m = 1,
                                      .n = 700,
                                      .logits_stride = 1400,
                                      .start = true,
                                      .logits = at(w, LOGITS),
                                      .labels = at(w, LABELS),
                                      .running = at(w, RUNNING)};
    cudaError_t rc = cuda_log_sum_exp(&w->q, &op);

    (void)context;
    op.start = false, op.first = 700, op.logits += 700;
    if (rc == cudaSuccess)
        rc = cuda_log_sum_exp(&w->q, &op);
    return rc == cudaSuccess ? cuda_loss(&w->q, at(w, LOSSES), op.running, op.labels, 1) : rc;
}

static double loss_with(float value, size_t place)
{
    const struct shape s = {1, 1400, 1400};
    struct world w = softmax_world(&s, NUMBER_FP32);
    float *logits = w.arrays[LOGITS].host;
    double loss;

    memset(logits, 0, 1400 * sizeof *logits);
    *(uint32_t *)w.arrays[LABELS].host = 705;
    for (size_t i = place; i < 1400; i += 700)
        logits[i] = value;
    run_once(&w, run_chunks, NULL);
    loss = *(double *)w.arrays[LOSSES].host;
    free_world(&w);
    return loss;
}

/* By hand: log(1398 + 2 e^value) less the label's 0. In every place, so that whole threads see nothing else. */
TEST(logits_that_are_not_finite_upwards_show)
{
    static const size_t places[] = {0, 4, 31, 32, 699};

    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        ck_assert(isnan(loss_with(NAN, places[i])));
        ck_assert(isnan(loss_with(INFINITY, places[i])));
        ck_assert_double_eq_tol(loss_with(-INFINITY, places[i]), log(1398), 1e-6);
        ck_assert_double_eq_tol(loss_with(1000, places[i]), 1000 + log(2), 1e-4);
    }
}

/* Rows of 701 logits, a stride apart. */
static cudaError_t run_losses(struct world *w, const void *context)
{
    const struct shape *s = context;
    const struct device_cross_entropy op = cross_entropy_of(w, s);
    const cudaError_t rc = cuda_log_sum_exp(&w->q, &op);

    return rc == cudaSuccess ? cuda_loss(&w->q, at(w, LOSSES), at(w, RUNNING), at(w, LABELS), s->m) : rc;
}

/* So an evaluation in one plan gives the bits of another. */
TEST(what_pads_a_row_changes_no_bit_of_its_loss)
{
    static const struct shape tight = {3, 701, 701}, padded = {3, 701, 704};
    struct world worlds[] = {softmax_world(&tight, NUMBER_FP32), softmax_world(&padded, NUMBER_FP32)};
    const float *from = worlds[0].arrays[LOGITS].host;
    float *to = worlds[1].arrays[LOGITS].host;

    for (size_t i = 0; i < 3 * 704; i++)
        to[i] = i % 704 < 701 ? from[i / 704 * 701 + i % 704] : NAN;
    run_once(&worlds[0], run_losses, &tight);
    run_once(&worlds[1], run_losses, &padded);
    ck_assert_mem_eq(worlds[0].arrays[LOSSES].host, worlds[1].arrays[LOSSES].host, 3 * sizeof(double));
    free_world(&worlds[0]);
    free_world(&worlds[1]);
}

/* A chunk that is ruled out altogether counts for nothing. */
TEST(a_chunk_of_minus_infinities_adds_nothing)
{
    const struct shape s = {1, 1400, 1400};
    struct world w = softmax_world(&s, NUMBER_FP32);
    float *logits = w.arrays[LOGITS].host;

    for (int i = 0; i < 1400; i++)
        logits[i] = i < 700 ? -INFINITY : 0;
    *(uint32_t *)w.arrays[LABELS].host = 705;
    run_once(&w, run_chunks, NULL);
    ck_assert_double_eq_tol(*(double *)w.arrays[LOSSES].host, log(700), 1e-6);
    free_world(&w);
}
