/* Cross entropy over a vocabulary in chunks against the plain one in double. */
#include "tests/kit/device/operation.h"
#include "tests/kit/device/reference.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

SUITE_LABELS(on_cuda)

/* m rows of n logits in chunks of `chunk`, padded by `gap`: less than a vector, more rows than a CUDA device has blocks, and
 * two and three of the tiles that these read at once, in packs and element by element. */
static const struct shape {
    size_t m, n, chunk, gap;
} shapes[] = {{1, 1, 1, 0},      {3, 7, 7, 2},       {5, 256, 100, 0},   {33, 1031, 512, 3}, {4, 1030, 515, 5},
              {20, 130, 130, 0}, {3, 8264, 8264, 0}, {2, 4500, 4500, 1}, {2, 9001, 9001, 0}, {2, 50257, 8192, 0}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

struct softmax {
    struct shape shape;
    enum number_type type; /* of the gradient; logits are fp32 */
    float *logits, *chunk; /* (m, n); (m, stride) host */
    uint32_t *labels;
    float scale;
    size_t stride;
};

static void set_up(struct softmax *t, const struct shape *s, enum number_type type)
{
    *t = (struct softmax){.shape = *s, .type = type, .scale = 1 / 3.0f, .stride = s->chunk + s->gap};
    t->logits = operation_values(NUMBER_FP32, s->m * s->n, 1);
    t->chunk = mirror_host_array(s->m * t->stride, sizeof *t->chunk);
    t->labels = mirror_array(s->m, sizeof *t->labels);
    for (size_t i = 0; i < s->m; i++)
        t->labels[i] = i % 3 == 2 ? UINT32_MAX : (uint32_t)(i * 7919 % s->n);
}

/* The logits first .. of every row in t->chunk, and on the device; how many a row. What pads them counts for nothing. */
static size_t put_chunk(struct mirror *at, float *chunk, const struct softmax *t, size_t first)
{
    const size_t n = t->shape.n - first < t->shape.chunk ? t->shape.n - first : t->shape.chunk;

    for (size_t i = 0; i < t->shape.m * t->stride; i++)
        t->chunk[i] = NAN;
    for (size_t i = 0; i < t->shape.m; i++)
        memcpy(t->chunk + i * t->stride, t->logits + i * t->shape.n + first, n * sizeof *chunk);
    mirror_put(at, chunk, t->chunk, t->shape.m * t->stride * sizeof *chunk);
    return n;
}

/* Of a row whose first n elements are a gradient. */
static void check_padding(const struct softmax *t, const char *row, size_t n)
{
    for (size_t i = n * number_bytes(t->type); i < t->stride * number_bytes(t->type); i++)
        ck_assert_int_eq(row[i], 0);
}

/* out: the gradient (m, n); the losses (m). */
static void run_softmax(struct mirror *at, void *const out[], const void *context)
{
    const struct softmax *t = context;
    const struct shape *s = &t->shape;
    const size_t bytes = s->m * t->stride * sizeof(float);
    struct device_cross_entropy op = {.m = s->m,
                                      .logits_stride = t->stride,
                                      .logits = mirror_scratch(at, bytes),
                                      .labels = mirror_of(at, t->labels),
                                      .running = mirror_scratch(at, 3 * s->m * sizeof(float)),
                                      .scale = t->scale};
    size_t first;

    for (first = 0; first < s->n; first += s->chunk) {
        op.n = put_chunk(at, op.logits, t, first);
        op.first = (uint32_t)first, op.start = first == 0;
        at->ops->log_sum_exp(at->dev, &op);
    }
    at->ops->loss(at->dev, out[1], op.running, op.labels, s->m);
    for (first = 0; first < s->n; first += s->chunk) {
        op.n = put_chunk(at, op.logits, t, first);
        op.first = (uint32_t)first;
        at->ops->cross_entropy_gradient(at->dev, &op);
        mirror_take(at, t->chunk, op.logits, bytes);
        for (size_t i = 0; i < s->m; i++) {
            check_padding(t, (const char *)(t->chunk + i * t->stride), op.n);
            mirror_put(at, device_element(t->type, out[0], i * s->n + first), t->chunk + i * t->stride,
                       op.n * number_bytes(t->type));
        }
    }
}

SUITE_FIXTURE(mirror_forget, NULL)

/* Each exponential within 2 units in the last place, sums in blocks: the largest element, near `scale`, is one of few
 * roundings. A loss is a logarithm of such a sum; elsewhere than on the CPU the exponential is within 2 more and the
 * logarithm within 1. */
TEST_EACH(chunks_give_the_whole_softmax, NUMBER_TYPES *N_SHAPES)
{
    const struct shape *s = &shapes[_i / NUMBER_TYPES];
    const bool cuda = backend_get()->cuda;
    const double near = (cuda ? 8 : 4) * 0x1p-24, near_loss = (cuda ? 4 : 2) * 0x1p-24;
    struct softmax t;
    double *gradient, *losses, *wide;

    if (!backend_suits(20 * (double)(s->m * s->n)))
        return;
    set_up(&t, s, (enum number_type)(_i % NUMBER_TYPES));
    wide = operation_widen(NUMBER_FP32, t.logits, s->m * s->n);
    gradient = operation_zeros(s->m * s->n), losses = operation_zeros(s->m);
    for (size_t i = 0; i < s->m; i++)
        if (t.labels[i] != UINT32_MAX) {
            losses[i] = reference_cross_entropy(wide + i * s->n, s->n, t.labels[i]);
            reference_cross_entropy_backward(gradient + i * s->n, wide + i * s->n, s->n, t.labels[i]);
            for (size_t j = 0; j < s->n; j++)
                gradient[i * s->n + j] *= (double)t.scale;
        }
    operation_check(&(struct operation){.type = t.type,
                                        .run = run_softmax,
                                        .context = &t,
                                        .parts = {{"gradient", s->m * s->n, gradient, near, NULL, OPERATION_VALUES},
                                                  {"loss", s->m, losses, near_loss, .type = OPERATION_FP64}}});
}

/* So an evaluation in one plan gives the bits of another. */
TEST(what_pads_a_row_changes_no_bit_of_its_loss)
{
    const struct shape tight = {3, 701, 701, 0}, padded = {3, 701, 701, 3};
    double *losses[2];

    for (int i = 0; i < 2; i++) {
        struct softmax t;
        set_up(&t, i ? &padded : &tight, NUMBER_FP32);
        losses[i] = mirror_array(3, sizeof(double));
        operation_run(&(struct operation){.run = run_softmax,
                                          .context = &t,
                                          .parts = {{.n = 3 * 701}, {.n = 3, .type = OPERATION_FP64}}},
                      (void *[]){operation_room(NUMBER_FP32, 3 * 701), losses[i]});
    }
    ck_assert_mem_eq(losses[0], losses[1], 3 * sizeof(double));
}

/* The loss of one row of two chunks. */
enum { CHUNK = 700 };

static void run_row(struct mirror *at, void *const out[], const void *context)
{
    struct device_cross_entropy op = {.m = 1,
                                      .n = CHUNK,
                                      .logits_stride = 2 * CHUNK,
                                      .start = true,
                                      .logits = mirror_of(at, context),
                                      .labels = mirror_of(at, (const float *)context + 2 * CHUNK),
                                      .running = mirror_scratch(at, 3 * sizeof(float))};

    at->ops->log_sum_exp(at->dev, &op);
    op.start = false, op.first = CHUNK, op.logits += CHUNK;
    at->ops->log_sum_exp(at->dev, &op);
    at->ops->loss(at->dev, out[0], op.running, op.labels, 1);
}

/* Zeros but for one value in one or more places, under a label in the second chunk. By hand: log(1399 e^0 + e^value) less
 * the label's 0. What is not finite upwards must not come out finite; in every place, so that some vectors and threads see
 * nothing else. */
TEST_EACH(a_loss_holds_large_logits_and_shows_what_is_not_finite, 5 * 4)
{
    static const float values[] = {NAN, INFINITY, -INFINITY, 1000};
    static const size_t places[] = {0, 7, 31, 32, CHUNK + 33};
    const uint32_t label = CHUNK + 5;
    const float value = values[_i % 4];
    float *logits = operation_room(NUMBER_FP32, 2 * CHUNK + 1); /* and the label */

    logits[places[_i / 4]] = value;
    memcpy(logits + 2 * CHUNK, &label, sizeof label);
    const double want = value <= 0 ? log(2 * CHUNK - 1) : value == 1000 ? 1000 : NAN;
    operation_check(&(struct operation){.run = run_row,
                                        .context = logits,
                                        .parts = {{"loss", 1, &want, 1e-6, NULL, OPERATION_FP64}}});
}

/* A chunk that is ruled out altogether counts for nothing. */
TEST(a_chunk_of_minus_infinities_adds_nothing)
{
    const uint32_t label = CHUNK + 5;
    float *logits = operation_room(NUMBER_FP32, 2 * CHUNK + 1);
    const double want = log(CHUNK);

    for (int i = 0; i < CHUNK; i++)
        logits[i] = -INFINITY;
    memcpy(logits + 2 * CHUNK, &label, sizeof label);
    operation_check(&(struct operation){.run = run_row,
                                        .context = logits,
                                        .parts = {{"loss", 1, &want, 1e-6, NULL, OPERATION_FP64}}});
}
