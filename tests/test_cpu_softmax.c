/* Cross entropy over a vocabulary in chunks against the plain one in double. */
#include "tests/operation.h"
#include "tests/reference.h"
#include "tests/run.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* m rows of n logits in chunks of `chunk`, rows `gap` further apart than they are long. */
static const struct shape {
    size_t m, n, chunk, gap;
} shapes[] = {{1, 1, 1, 0}, {3, 7, 7, 2}, {5, 256, 100, 0}, {33, 1031, 512, 3}, {2, 50257, 8192, 0}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

struct softmax {
    struct shape shape;
    enum number_type type; /* of the gradient; logits are fp32 */
    float *logits;         /* (m, n) */
    uint32_t *labels;
    float scale;
    size_t stride;
    double *losses; /* (m) of the last run */
};

static void set_up(struct softmax *t, const struct shape *s, enum number_type type)
{
    *t = (struct softmax){.shape = *s, .type = type, .scale = 1 / 3.0f, .stride = s->chunk + s->gap};
    t->logits = operation_values(NUMBER_FP32, s->m * s->n, 1);
    t->labels = calloc(s->m, sizeof *t->labels);
    t->losses = operation_zeros(s->m);
    for (size_t i = 0; i < s->m; i++)
        t->labels[i] = i % 3 == 2 ? UINT32_MAX : (uint32_t)(i * 7919 % s->n);
}

static void tear_down(struct softmax *t)
{
    free(t->logits), free(t->labels), free(t->losses);
}

static size_t take_chunk(float *chunk, const struct softmax *t, size_t first)
{
    const size_t n = t->shape.n - first < t->shape.chunk ? t->shape.n - first : t->shape.chunk;

    for (size_t i = 0; i < t->shape.m; i++)
        memcpy(chunk + i * t->stride, t->logits + i * t->shape.n + first, n * sizeof *chunk);
    return n;
}

/* out: the gradient (m, n); the losses (m) as floats. */
static void run_softmax(struct device *dev, void *const out[], const void *context)
{
    const struct softmax *t = context;
    const struct shape *s = &t->shape;
    float *chunk = calloc(s->m * t->stride, sizeof *chunk), *running = calloc(3 * s->m, sizeof *running);
    size_t first;

    for (first = 0; first < s->n; first += s->chunk) {
        size_t n = take_chunk(chunk, t, first);
        device_cpu.log_sum_exp(dev, running, first == 0, chunk, t->stride, t->labels, s->m, (uint32_t)first, n);
    }
    device_cpu.loss(dev, t->losses, running, t->labels, s->m);
    for (first = 0; first < s->n; first += s->chunk) {
        size_t n = take_chunk(chunk, t, first);
        device_cpu.cross_entropy_gradient(dev, chunk, t->stride, running, t->labels, s->m, (uint32_t)first, n,
                                          t->scale);
        for (size_t i = 0; i < s->m; i++)
            memcpy(device_element(t->type, out[0], i * s->n + first), chunk + i * t->stride, n * number_bytes(t->type));
    }
    for (size_t i = 0; i < s->m; i++)
        ((float *)out[1])[i] = (float)t->losses[i];
    free(chunk), free(running);
}

/* Each exponential within 2 units in the last place, sums in blocks: the largest element, near `scale`, is one of few
 * roundings; a loss is rounded to fp32 here alone. */
START_TEST(chunks_give_the_whole_softmax)
{
    const struct shape *s = &shapes[_i / NUMBER_TYPES];
    struct softmax t;
    double *gradient, *losses, *wide;

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
                                        .parts = {{"gradient", s->m * s->n, gradient, 4 * 0x1p-24, NULL, false},
                                                  {"loss", s->m, losses, 2 * 0x1p-24, .wide = true}}});
    free(wide), free(gradient), free(losses);
    tear_down(&t);
}
END_TEST

/* With maximum 0 and sum 1 the gradient is the exponential itself: every 1/64 from -87 to 88. */
enum { GRID = 175 * 64 };

static void run_exponential(struct device *dev, float *out, const void *context)
{
    const float running[3] = {0, 1, 0};
    const uint32_t label = GRID + 1;

    (void)context;
    for (int i = 0; i < GRID; i++)
        out[i] = (float)i / 64 - 87;
    device_cpu.cross_entropy_gradient(dev, out, GRID, running, &label, 1, 0, GRID, 1);
    for (int i = 0; i < GRID; i++) /* in units of the last place of 1, so that each counts the same */
        out[i] = (float)(((double)out[i] / exp((double)i / 64 - 87) - 1) / 0x1p-23);
}

START_TEST(the_exponential_is_within_one_ulp)
{
    static float out[GRID];

    for (int isa = CPU_V2; isa < CPU_ISAS; isa++) {
        struct device *dev = operation_open(NUMBER_FP32, 1);
        if (cpu_isa_runs((enum cpu_isa)isa)) {
            cpu_isa_use(dev, (enum cpu_isa)isa);
            run_exponential(dev, out, NULL);
            for (int i = 0; i < GRID; i++)
                if (!(fabsf(out[i]) <= 1))
                    ck_abort_msg("v%d: exp(%g) is off by %g ulp", isa + 2, i / 64.0 - 87, (double)out[i]);
        }
        device_cpu.close(dev);
    }
}
END_TEST

/* The loss of a row of two chunks of 20 that holds this value in this place, else zeros, under label 5. */
static double loss_with(float value, int place, enum cpu_isa isa)
{
    const uint32_t label = 5;
    float logits[40] = {0}, running[3];
    double loss;
    struct device *dev = operation_open(NUMBER_FP32, 1);

    cpu_isa_use(dev, isa);
    logits[place] = value;
    device_cpu.log_sum_exp(dev, running, true, logits, 40, &label, 1, 0, 20);
    device_cpu.log_sum_exp(dev, running, false, logits + 20, 40, &label, 1, 20, 20);
    device_cpu.loss(dev, &loss, running, &label, 1);
    device_cpu.close(dev);
    return loss;
}

/* By hand: log(39 e^0 + e^value) less the label's 0. */
START_TEST(a_loss_holds_large_logits_and_shows_what_is_not_finite)
{
    for (int isa = CPU_V2; isa < CPU_ISAS; isa++)
        for (int place = 7; place < 40 && cpu_isa_runs((enum cpu_isa)isa); place += 26) { /* either chunk */
            ck_assert(!isfinite(loss_with(NAN, place, (enum cpu_isa)isa)));
            ck_assert(!isfinite(loss_with(INFINITY, place, (enum cpu_isa)isa)));
            ck_assert_double_eq_tol(loss_with(-INFINITY, place, (enum cpu_isa)isa), log(39), 1e-6);
            ck_assert_double_eq_tol(loss_with(1000, place, (enum cpu_isa)isa), 1000, 1e-4);
        }
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("softmax");

    tcase_add_loop_test(tcase, chunks_give_the_whole_softmax, 0, NUMBER_TYPES * N_SHAPES);
    tcase_add_test(tcase, the_exponential_is_within_one_ulp);
    tcase_add_test(tcase, a_loss_holds_large_logits_and_shows_what_is_not_finite);
    return run_tests(tcase);
}
