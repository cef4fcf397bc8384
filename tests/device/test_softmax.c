/* Losses: cross entropy over a vocabulary that comes in chunks; squared error; preferences. */
#include "tests/kit/device/operation.h"
#include "tests/kit/reference/reference.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

SUITE_LABELS(on_cuda)

/* m rows of n logits, padded by `gap`, of labels from `first` on: less than a vector, more rows than a CUDA device has
 * blocks, and two and three of the tiles that these read at once, in packs and element by element. */
static const struct shape {
    size_t m, n, gap, first;
} shapes[] = {{1, 1, 0, 0},     {3, 7, 2, 0},    {5, 56, 44, 200}, {33, 519, 3, 512}, {4, 515, 5, 0},
              {20, 130, 0, 70}, {3, 8264, 0, 0}, {2, 4500, 1, 9},  {2, 9001, 0, 0},   {2, 8192, 0, 8192}};

/* Each exponential within 2 units in the last place, sums in blocks: the largest element, near `scale`, is one of few
 * roundings. A loss is a logarithm of such a sum; elsewhere than on the CPU the exponential is within 2 more and the
 * logarithm within 1. A capped logit is within 4 units in the last place of the cap (near_cap): so is the exponent, and
 * the slope, whose square has twice that, costs three roundings more. */
static double near(const struct call_test *test, const char *output)
{
    const bool is_loss = test->call.kind == CALL_loss, is_gradient = test->call.kind == CALL_cross_entropy_gradient;
    const double cap = is_loss ? 0 : (double)test->call.log_sum_exp.cap, slope = is_gradient && cap != 0 ? 3 + 16 : 0;

    (void)output;
    return ((backend_get()->cuda ? 2 : 1) * (is_loss ? 2 : 4) + 8 * cap + slope) * 0x1p-24;
}

/* Sums are positive. Some rows have no label, some have one of another chunk; what pads a row counts for nothing. */
static void prepare(struct call_test *test)
{
    const struct device_cross_entropy *op = &test->host.log_sum_exp;
    const bool is_loss = test->call.kind == CALL_loss;
    uint32_t *labels = (void *)(uintptr_t)(is_loss ? test->host.loss.labels : op->labels);
    float *running = call_get(call_find(test, "running"));

    /* The sum of a logit and its bias is then exact. */
    for (size_t i = 0; !is_loss && op->bias && i < op->m * op->logits_stride; i++)
        op->logits[i] = roundf(op->logits[i] * 64) / 64;
    for (size_t j = 0; !is_loss && op->bias && j < op->n; j++)
        ((float *)(uintptr_t)op->bias)[j] = roundf(op->bias[j] * 64) / 64;
    for (size_t i = 0; i < (is_loss ? test->call.loss.m : op->m); i++) {
        labels[i] = i % 3 == 2 ? UINT32_MAX : (uint32_t)(i * 7919 % (is_loss ? 99 : op->first + op->n));
        running[3 * i + 1] = 0.5f + fabsf(running[3 * i + 1]);
        for (size_t j = is_loss ? 0 : op->n; j < (is_loss ? 0 : op->logits_stride); j++)
            op->logits[i * op->logits_stride + j] = NAN;
    }
}

static const float given[1]; /* an array to be made */

static struct call_test test_of(enum call_kind kind, const struct shape *s, int type, bool start, bool biased)
{
    struct call_test test = {.type = (enum number_type)type, .call = {.kind = kind}, .near = near, .prepare = prepare};

    if (kind == CALL_loss)
        test.call.loss.m = s->m;
    else
        test.call.log_sum_exp = (struct device_cross_entropy){.m = s->m,
                                                              .n = s->n,
                                                              .logits_stride = s->n + s->gap,
                                                              .bias = biased ? given : NULL,
                                                              .first = (uint32_t)s->first,
                                                              .start = start,
                                                              .scale = 1 / 3.0f};
    return test;
}

static bool suits(const struct shape *s)
{
    return backend_suits(20 * (double)(s->m * s->n));
}

SUITE_FIXTURE(mirror_forget, NULL)

/* Of the rows' first chunk, and of one that is added to those before it; of logits as they are, with a bias, and
 * capped; of labels as they are, and smoothed. */
TEST_EACH(a_chunk_is_added_to_what_runs, 12 * COUNT(shapes))
{
    const struct shape *s = &shapes[_i / 12];
    struct call_test test = test_of(CALL_log_sum_exp, s, NUMBER_FP32, _i % 2, _i / 2 % 3 == 1);

    test.call.log_sum_exp.cap = _i / 2 % 3 == 2 ? 1.5f : 0;
    test.call.log_sum_exp.smoothing = _i / 6 % 2 ? 0.3f : 0, test.call.log_sum_exp.n_all = s->first + s->n + 5;
    if (suits(s))
        call_check(&test);
}

TEST_EACH(a_loss_is_the_logarithm_of_the_sum, COUNT(shapes))
{
    struct call_test test = test_of(CALL_loss, &shapes[_i], NUMBER_FP32, false, false);

    call_check(&test);
}

/* A quotient, a hyperbolic tangent within 2 units in the last place, and a product. */
static double near_cap(const struct call_test *test, const char *output)
{
    (void)test, (void)output;
    return 4 * 0x1p-23;
}

/* Logits far below the cap, near it and far beyond; ends inside vectors, packs and pieces. */
TEST_EACH(a_cap_is_the_formula, 4 * 3)
{
    static const size_t sizes[] = {1, 7, 2051, 40000};
    static const float caps[] = {0.125f, 1.5f, 30};
    struct call_test test = {.type = NUMBER_FP32,
                             .call = {.kind = CALL_soft_cap, .soft_cap = {.n = sizes[_i / 3], .cap = caps[_i % 3]}},
                             .near = near_cap,
                             .is_elementwise = true};

    call_check(&test);
}

/* The host's logits (m, stride), where a gradient may take their place. */
static float *put_logits(struct mirror *at, const float *logits, size_t m, size_t stride)
{
    float *out = mirror_scratch(at, m * stride * sizeof *out);

    mirror_put(at, out, logits, m * stride * sizeof *out);
    return out;
}

/* out: the gradient (m, stride) of this type, which lies in the place of the logits: rows as far apart as theirs. */
static void take_gradient(struct mirror *at, char *out, const float *logits, size_t m, size_t stride,
                          enum number_type type)
{
    const size_t row = stride * sizeof *logits, bytes = stride * number_bytes(type);
    char *taken = mirror_host_array(m, row);

    mirror_take(at, taken, logits, m * row);
    for (size_t i = 0; i < m; i++)
        mirror_put(at, out + i * bytes, taken + i * row, bytes);
}

static void run_gradient(struct mirror *at, void *const out[], const void *context)
{
    const struct call_test *test = context;
    struct device_cross_entropy op = test->host.log_sum_exp;

    op.logits = put_logits(at, op.logits, op.m, op.logits_stride);
    op.labels = mirror_of(at, op.labels), op.running = mirror_of(at, op.running);
    op.bias = op.bias ? mirror_of(at, op.bias) : NULL;
    op.scales = op.scales ? mirror_of(at, op.scales) : NULL;
    at->ops->cross_entropy_gradient(at->dev, &op);
    take_gradient(at, out[0], op.logits, op.m, op.logits_stride, test->type);
}

/* Of logits as they are, of capped ones, of those with a bias, of those whose rows have scales of their own, and of
 * smoothed labels: most of those drawn are less than the cap, some of which is enough. */
TEST_EACH(the_gradient_takes_the_place_of_the_logits, 5 * NUMBER_TYPES * COUNT(shapes))
{
    const struct shape *s = &shapes[_i / 5 / NUMBER_TYPES];
    struct call_test test = test_of(CALL_cross_entropy_gradient, s, _i / 5 % NUMBER_TYPES, false, _i % 5 == 2);
    struct call exact;

    test.call.log_sum_exp.cap = _i % 5 == 1 ? 3.5f : 0;
    test.call.log_sum_exp.scales = _i % 5 == 3 ? given : NULL;
    test.call.log_sum_exp.smoothing = _i % 5 == 4 ? 0.3f : 0, test.call.log_sum_exp.n_all = s->first + s->n + 5;
    if (!suits(s))
        TEST_SKIP("too slow here, or of another device: other tests have it");
    test.onto[0].written = "gradient", test.onto[0].read = "logits";
    call_make(&test);
    const struct device_cross_entropy *op = &test.host.log_sum_exp;
    for (size_t i = 0; i < s->m; i++) /* of a softmax that sums up to 1 or so */
        op->running[3 * i] = 2, op->running[3 * i + 1] = (float)s->n / 4;
    exact = test.host;
    double *logits = operation_widen(NUMBER_FP32, op->logits, op->m * op->logits_stride);
    exact.log_sum_exp.logits = (void *)logits;
    exact.log_sum_exp.bias = op->bias ? (void *)operation_widen(NUMBER_FP32, op->bias, op->n) : NULL;
    exact.log_sum_exp.scales = op->scales ? (void *)operation_widen(NUMBER_FP32, op->scales, op->m) : NULL;
    exact.log_sum_exp.running = (void *)operation_widen(NUMBER_FP32, op->running, 3 * op->m);
    reference_run(&exact);
    operation_check(&(struct operation){.type = test.type,
                                        .run = run_gradient,
                                        .context = &test,
                                        .parts = {{"gradient", op->m * op->logits_stride, logits, near(&test, ""), NULL,
                                                   CALL_VALUES}}});
}

/* Rows of one logit, padded by `gap`: fewer and more than a CUDA device has blocks, and than a block has threads. */
static const struct shape numbers[] = {{1, 1, 0, 0}, {6, 1, 2, 0}, {700, 1, 63, 0}, {3, 1, 900, 0}};

/* Sixty-fourths, so that an error is exact. Every third row has no label; what pads a row counts for nothing. */
static void prepare_numbers(struct call_test *test)
{
    const struct device_squared_error *op = &test->host.squared_error;
    uint32_t *labels = (void *)(uintptr_t)op->labels;

    for (size_t i = 0; i < op->m; i++) {
        const float label = (float)(i * 37 % 129) / 64 - 1;
        float *row = op->logits + i * op->logits_stride;
        row[0] = roundf(row[0] * 64) / 64;
        for (size_t j = 1; j < op->logits_stride; j++)
            row[j] = NAN;
        memcpy(&labels[i], &label, sizeof label);
        labels[i] = i % 3 == 2 ? UINT32_MAX : labels[i];
    }
    if (op->bias)
        *(float *)(uintptr_t)op->bias = roundf(*op->bias * 64) / 64;
}

/* A square in double; two products in fp32. */
static double near_square(const struct call_test *test, const char *output)
{
    (void)output;
    return test->call.kind == CALL_squared_error ? 0x1p-52 : 2 * 0x1p-24;
}

static struct call_test square_of(enum call_kind kind, const struct shape *s, int type, bool biased)
{
    return (struct call_test){.type = (enum number_type)type,
                              .call = {.kind = kind,
                                       .squared_error = {.m = s->m,
                                                         .logits_stride = 1 + s->gap,
                                                         .bias = biased ? given : NULL,
                                                         .scale = 1 / 3.0f}},
                              .near = near_square,
                              .prepare = prepare_numbers};
}

TEST_EACH(an_error_is_squared, 2 * COUNT(numbers))
{
    struct call_test test = square_of(CALL_squared_error, &numbers[_i / 2], NUMBER_FP32, _i % 2);

    call_check(&test);
}

static void run_square_gradient(struct mirror *at, void *const out[], const void *context)
{
    const struct call_test *test = context;
    struct device_squared_error op = test->host.squared_error;

    op.logits = put_logits(at, op.logits, op.m, op.logits_stride);
    op.labels = mirror_of(at, op.labels), op.bias = op.bias ? mirror_of(at, op.bias) : NULL;
    at->ops->squared_error_gradient(at->dev, &op);
    take_gradient(at, out[0], op.logits, op.m, op.logits_stride, test->type);
}

TEST_EACH(an_errors_gradient_takes_the_place_of_the_logits, 2 * NUMBER_TYPES * COUNT(numbers))
{
    const struct shape *s = &numbers[_i / 2 / NUMBER_TYPES];
    struct call_test test = square_of(CALL_squared_error_gradient, s, _i / 2 % NUMBER_TYPES, _i % 2);
    struct call exact;

    test.onto[0].written = "gradient", test.onto[0].read = "logits";
    call_make(&test);
    const struct device_squared_error *op = &test.host.squared_error;
    exact = test.host;
    double *logits = operation_widen(NUMBER_FP32, op->logits, op->m * op->logits_stride);
    exact.squared_error.logits = (void *)logits;
    exact.squared_error.bias = op->bias ? (void *)operation_widen(NUMBER_FP32, op->bias, 1) : NULL;
    reference_run(&exact);
    operation_check(&(struct operation){.type = test.type,
                                        .run = run_square_gradient,
                                        .context = &test,
                                        .parts = {{"gradient", op->m * op->logits_stride, logits,
                                                   near_square(&test, ""), NULL, CALL_VALUES}}});
}

/* Pairs of rows of so many tokens. */
static const struct {
    size_t n_pairs, n_tokens;
} pairs[] = {{1, 1}, {3, 2}, {2, 31}, {5, 33}, {700, 4}, {2, 4099}};

/* Losses are positive; references lie near the sums that they are compared with, so that no sigmoid is flat. */
static void prepare_pairs(struct call_test *test)
{
    const struct device_preference *op = &test->host.preference;
    double *losses = (void *)(uintptr_t)op->losses;
    float *references = (void *)(uintptr_t)op->references;

    for (size_t row = 0; row < 2 * op->n_pairs; row++) {
        double sum = 0;
        for (size_t t = 0; t < op->n_tokens; t++) {
            losses[row * op->n_tokens + t] = t % 3 == 2 ? 0 : fabs(losses[row * op->n_tokens + t]);
            sum -= losses[row * op->n_tokens + t];
        }
        references[row] += (float)sum;
    }
}

/* Sums in double, of thousands; scales are rounded once to fp32, beside the reference's difference quotient. */
static double near_pair(const struct call_test *test, const char *output)
{
    (void)test;
    return strcmp(output, "log_p") == 0 ? 0x1p-40 : 0x1p-23 + 1e-9;
}

TEST_EACH(a_preference_weighs_both_texts_of_a_pair, 2 * COUNT(pairs))
{
    struct call_test test = {.type = NUMBER_FP32,
                             .call = {.kind = CALL_preference,
                                      .preference = {.n_pairs = pairs[_i / 2].n_pairs,
                                                     .n_tokens = pairs[_i / 2].n_tokens,
                                                     .preference = {_i % 2 ? 0.1 : 0.7, _i % 2 ? 0.2 : 0},
                                                     .scale = 1 / 3.0f}},
                             .near = near_pair,
                             .prepare = prepare_pairs};

    call_check(&test);
}

/* So an evaluation in one plan gives the bits of another. */
TEST(what_pads_a_row_changes_no_bit_of_its_sum)
{
    static const struct shape tight = {3, 701, 0, 0}, padded = {3, 701, 3, 0};
    struct call_test one = test_of(CALL_log_sum_exp, &tight, NUMBER_FP32, true, false),
                     other = test_of(CALL_log_sum_exp, &padded, NUMBER_FP32, true, false);

    call_make(&one), call_make(&other);
    for (size_t i = 0; i < 3; i++)
        memcpy(other.host.log_sum_exp.logits + i * 704, one.host.log_sum_exp.logits + i * 701, 701 * sizeof(float));
    call_once(&one), call_once(&other);
    ck_assert_mem_eq(one.host.log_sum_exp.running, other.host.log_sum_exp.running, 9 * sizeof(float));
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
    at->ops->loss(at->dev, &(struct device_loss){1, out[0], op.running, op.labels});
}

static void check_row(float *logits, double want)
{
    const uint32_t label = CHUNK + 5;

    memcpy(logits + 2 * CHUNK, &label, sizeof label);
    operation_check(
        &(struct operation){.run = run_row, .context = logits, .parts = {{"loss", 1, &want, 1e-6, NULL, CALL_FP64}}});
}

/* Zeros but for one value in one or more places, under a label in the second chunk. By hand: log(1399 e^0 + e^value)
 * less the label's 0. What is not finite upwards must not come out finite; in every place, so that some vectors and
 * threads see nothing else. */
TEST_EACH(a_loss_holds_large_logits_and_shows_what_is_not_finite, 5 * 4)
{
    static const float values[] = {NAN, INFINITY, -INFINITY, 1000};
    static const size_t places[] = {0, 7, 31, 32, CHUNK + 33};
    const float value = values[_i % 4];
    float *logits = operation_room(NUMBER_FP32, 2 * CHUNK + 1); /* and the label */

    logits[places[_i / 4]] = value;
    check_row(logits, value <= 0 ? log(2 * CHUNK - 1) : value == 1000 ? 1000 : NAN);
}

/* A chunk that is ruled out altogether counts for nothing. */
TEST(a_chunk_of_minus_infinities_adds_nothing)
{
    float *logits = operation_room(NUMBER_FP32, 2 * CHUNK + 1);

    for (int i = 0; i < CHUNK; i++)
        logits[i] = -INFINITY;
    check_row(logits, log(CHUNK));
}
