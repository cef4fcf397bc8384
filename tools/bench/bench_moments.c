/* bench_moments [PARTS] - what folding each part by itself does to 16-bit moments, against fp32 ones.
 *
 * AdamA decays the moments once a step, and then adds each part's gradient to m and its square to v. 16-bit moments are
 * rounded at random at each fold: PARTS (50) times a step. An error of v stays for about 1 / (1 - beta2) steps, so as
 * many are run. Gradients are Gaussian, with a mean of a tenth of their deviation, which is drawn for each parameter
 * over four decades; both forms have the same. First one part a step, then PARTS. Over all parameters:
 *   v         bias: mean of its relative error, with two standard errors; deviation of that error
 *   m         the same, of the error relative to the root of v
 *   update    mean of 1 / sqrt(v) relative to fp32's: what v's error makes of a step's size */
#include "eps/store/optimizer.h"
#include "proto/base/number.h"
#include "proto/base/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 1 << 14, STEPS = 1000, PARTS = 50 };

static const struct hyper hyper = {.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8};

struct arrays {
    float g[N], scale[N], m[N], v[N];
    uint16_t m16[N], v16[N];
    uint64_t state; /* of uniform */
};

struct errors {
    double sum, squares;
};

/* Above 0, at most 1. */
static double bench_moments_uniform(struct arrays *a)
{
    a->state = a->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)((a->state >> 11) + 1) * 0x1p-53;
}

static void draw_gradient(struct arrays *a, unsigned n_parts)
{
    for (size_t i = 0; i < N; i += 2) {
        const double r = sqrt(-2 * log(bench_moments_uniform(a))), turn = 2 * M_PI * bench_moments_uniform(a);
        a->g[i] = a->scale[i] * (float)((0.1 + r * cos(turn)) / n_parts);
        a->g[i + 1] = a->scale[i + 1] * (float)((0.1 + r * sin(turn)) / n_parts);
    }
}

static void bench_moments_step(struct arrays *a, uint64_t t, unsigned n_parts)
{
    struct parameters wide = {
        .kernel = optimizer_find(OPTIMIZER_ISA_BEST), .n = N, .w = a->scale, .m = a->m, .v = a->v};
    struct parameters narrow = {.kernel = wide.kernel,
                                .n = N,
                                .w = a->scale,
                                .m16 = a->m16,
                                .v16 = a->v16,
                                .key = random_site_key(1, t, 0, RANDOM_MOMENTS)};

    for (unsigned part = 0; part < n_parts; part++) {
        const struct gradient g = {a->g, NUMBER_FP32, 1};
        draw_gradient(a, n_parts);
        wide.part = narrow.part = part;
        optimizer_fold(&wide, &g, &hyper, part == 0, false);
        optimizer_fold(&narrow, &g, &hyper, part == 0, false);
    }
}

static void bench_moments_add(struct errors *errors, double error)
{
    errors->sum += error, errors->squares += error * error;
}

static void print_errors(const char *name, const struct errors *errors)
{
    const double deviation = sqrt(errors->squares / N);

    printf("  %s %+.5f +- %.5f, deviation %.4f", name, errors->sum / N, 2 * deviation / sqrt(N), deviation);
}

static void bench_moments_run(struct arrays *a, unsigned n_parts)
{
    struct errors m = {0}, v = {0}, update = {0};

    *a = (struct arrays){.state = 1};
    for (size_t i = 0; i < N; i++)
        a->scale[i] = (float)pow(10, -4 * bench_moments_uniform(a));
    for (uint64_t t = 1; t <= STEPS; t++)
        bench_moments_step(a, t, n_parts);
    for (size_t i = 0; i < N; i++) {
        const double ratio = (double)number_from_v16(a->v16[i]) / (double)a->v[i];
        bench_moments_add(&v, ratio - 1);
        bench_moments_add(&m, ((double)number_from_bf16(a->m16[i]) - (double)a->m[i]) / sqrt((double)a->v[i]));
        bench_moments_add(&update, 1 / sqrt(ratio) - 1);
    }
    printf("%3u part%s", n_parts, n_parts > 1 ? "s:" : ": ");
    print_errors("v", &v), print_errors("m", &m), print_errors("update", &update);
    printf("\n");
}

int main(int argc, char **argv)
{
    const int n_parts = argc > 1 ? atoi(argv[1]) : PARTS;
    struct arrays *a = malloc(sizeof *a);

    if (!a || argc > 2 || n_parts < 1 || n_parts > 1 << 16) {
        fprintf(stderr, "usage: bench_moments [PARTS]\n");
        free(a);
        return 2;
    }
    bench_moments_run(a, 1);
    if (n_parts > 1)
        bench_moments_run(a, (unsigned)n_parts);
    free(a);
    return 0;
}
