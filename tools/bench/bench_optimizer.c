/* bench_optimizer [MILLIONS] - how close the optimizer comes to the memory bandwidth, and its arithmetic without it.
 *
 * The first table is bound by memory, whose rate drifts by a factor of two on a shared machine. So each round measures
 * all rows in turn, and a row's ratio is relative to the triad of the same round (a = b + x * c, with non-temporal
 * stores). Medians over 15 rounds are printed. Bytes are those that must be moved: 12 for the triad, 28 per parameter
 * for a step, fewer in narrower formats.
 *
 * The second table is one thread's work on parameters that stay in its core's second-level cache, with AVX2 and with
 * AVX-512: what arithmetic takes. Its last rows have had a gradient of zero for 2,000 steps. */
#include "eps/store/memory.h"
#include "eps/store/optimizer.h"
#include "eps/store/store.h"
#include "eps/store/team.h"
#include "proto/base/process.h"
#include "proto/base/random.h"
#include "tests/kit/inprocess/plain.h"
#include "tools/bench/samples.h"

#include <stdio.h>
#include <stdlib.h>
#include <xmmintrin.h>

#ifdef _OPENMP
#include <omp.h>
#endif

enum { ROUNDS = 15, ROWS = 25 };

struct arrays {
    float *w, *m, *v, *g;
    float *new_w; /* with replay, new weights are written elsewhere */
    uint16_t *new_high;
    uint16_t *high, *low, *m16, *v16, *g16; /* narrower formats; low: the low half of the master, int16 */
    struct block_sum *sums[4];              /* of the blocks of w or high, low, m and v, if memory is checked */
    size_t n;
    uint64_t t;
};

static const struct hyper hyper = {.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.1};

static const struct hyper sgd = {.lr = 1e-4, .weight_decay = 1e-4, .sgd = true, .momentum = 0.9},
                          nesterov = {.lr = 1e-4, .weight_decay = 1e-4, .sgd = true, .momentum = 0.9, .nesterov = true},
                          plain = {.lr = 1e-4, .weight_decay = 1e-4, .sgd = true};

static void triad_range(void *data, size_t begin, size_t n)
{
    const struct arrays *a = data;
    const __m128 x = _mm_set1_ps(0.5f);

    for (size_t i = begin; i + 4 <= begin + n; i += 4)
        _mm_stream_ps(a->w + i, _mm_add_ps(_mm_load_ps(a->m + i), _mm_mul_ps(x, _mm_load_ps(a->g + i))));
    _mm_sfence();
}

static void triad(struct arrays *a)
{
    team_run(a->n, triad_range, a);
}

static void bench_optimizer_step(struct arrays *a)
{
    plain_step(a->w, a->m, a->v, a->g, a->n, &hyper, ++a->t, true);
}

static void bench_optimizer_fold(struct arrays *a)
{
    plain_fold(a->m, a->v, a->g, a->n, &hyper, true);
}

static void bench_optimizer_update(struct arrays *a)
{
    plain_update(a->w, a->m, a->v, a->n, &hyper, ++a->t, true);
}

static void bench_optimizer_look_through(struct arrays *a)
{
    if (!plain_is_finite(a->g, a->n))
        abort();
}

static void sum(struct arrays *a)
{
    plain_sum(a->m, a->g, a->n, false);
}

/* The daemon's work with one part: each slice is checked, then stepped. */
static void direct(struct arrays *a)
{
    a->t++;
    for (size_t i = 0; i < a->n; i += MODEL_SLICE) {
        size_t n = a->n - i < MODEL_SLICE ? a->n - i : MODEL_SLICE;
        if (!plain_is_finite(a->g + i, n))
            abort();
        plain_step(a->w + i, a->m + i, a->v + i, a->g + i, n, &hyper, a->t, true);
    }
}

/* The formats of weights, moments and gradient. */
static struct parameters bench_optimizer_parameters_of(const struct arrays *a, bool split, bool narrow)
{
    struct parameters p = {.kernel = plain_used(),
                           .n = a->n,
                           .type = NUMBER_BF16, /* of weights in 16 bits */
                           .key = random_site_key(1, a->t, 0, RANDOM_MOMENTS)};

    if (split)
        p.high = a->high, p.low = (int16_t *)a->low;
    else
        p.w = a->w;
    if (narrow)
        p.m16 = a->m16, p.v16 = a->v16;
    else
        p.m = a->m, p.v = a->v;
    return p;
}

static void step_split(struct arrays *a)
{
    const struct parameters p = bench_optimizer_parameters_of(a, true, false);

    optimizer_step(&p, &(struct gradient){a->g, NUMBER_FP32, 1}, &hyper, ++a->t, true);
}

static void step_narrow(struct arrays *a)
{
    const struct parameters p = bench_optimizer_parameters_of(a, true, true);

    optimizer_step(&p, &(struct gradient){a->g, NUMBER_FP32, 1}, &hyper, ++a->t, true);
}

/* Coded moments: codes, then scales, in the memory of 16-bit ones. */
static struct coded_moments bench_optimizer_coded(const struct arrays *a)
{
    return (struct coded_moments){(int8_t *)a->m16, (uint8_t *)a->v16, (float *)(void *)(a->m16 + a->n / 2),
                                  (float *)(void *)(a->v16 + a->n / 2)};
}

static void step_coded(struct arrays *a)
{
    struct parameters p = bench_optimizer_parameters_of(a, true, true);

    p.m16 = p.v16 = NULL, p.coded = bench_optimizer_coded(a);
    optimizer_step(&p, &(struct gradient){a->g, NUMBER_FP32, 1}, &hyper, ++a->t, true);
}

/* With sums of memory (--check-memory). Rows before this one have changed the arrays, so the first round finds them
 * damaged. */
static void step_checked_as(struct arrays *a, bool split, bool narrow)
{
    uint64_t damage = OPTIMIZER_WHOLE;
    struct parameters p = bench_optimizer_parameters_of(a, split, narrow);

    p.blocks = (struct optimizer_blocks){
        .w = a->sums[0], .new_w = a->sums[0], .low = a->sums[1], .m = a->sums[2], .v = a->sums[3], .damage = &damage};
    optimizer_step(&p, &(struct gradient){a->g, NUMBER_FP32, 1}, &hyper, ++a->t, true);
}

static void step_checked(struct arrays *a)
{
    step_checked_as(a, false, false);
}

static void step_split_checked(struct arrays *a)
{
    step_checked_as(a, true, false);
}

static void step_narrow_checked(struct arrays *a)
{
    step_checked_as(a, true, true);
}

static void step_narrowest(struct arrays *a)
{
    const struct parameters p = bench_optimizer_parameters_of(a, true, true);

    optimizer_step(&p, &(struct gradient){a->g16, NUMBER_BF16, 1}, &hyper, ++a->t, true);
}

/* Without a master; and what a fenced commit in bf16 has besides. */
static void step_rounded(struct arrays *a)
{
    struct parameters p = bench_optimizer_parameters_of(a, true, true);

    p.low = NULL, p.update_key = random_site_key(1, a->t, 0, RANDOM_UPDATE);
    optimizer_step(&p, &(struct gradient){a->g16, NUMBER_BF16, 1}, &hyper, ++a->t, true);
}

static void sum_rounded(struct arrays *a)
{
    const struct sums sums = {.half = a->high, .key = random_site_key(1, a->t, 0, RANDOM_SUM)};

    optimizer_sum(optimizer_find(OPTIMIZER_ISA_BEST), &sums, &(struct gradient){a->g16, NUMBER_BF16, 1}, a->n, false);
}

static void step_sgd(struct arrays *a)
{
    plain_step(a->w, a->m, NULL, a->g, a->n, &sgd, ++a->t, true);
}

static void step_nesterov(struct arrays *a)
{
    plain_step(a->w, a->m, NULL, a->g, a->n, &nesterov, ++a->t, true);
}

static void step_without_momentum(struct arrays *a)
{
    plain_step(a->w, NULL, NULL, a->g, a->n, &plain, ++a->t, true);
}

/* The first of several parts, which reads the weights for their decay. */
static void fold_sgd(struct arrays *a)
{
    const struct parameters p = plain_parameters(a->w, a->m, NULL, a->n);

    optimizer_fold(&p, &(struct gradient){a->g, NUMBER_FP32, 1}, &sgd, true, true);
}

static void step_sgd_narrow(struct arrays *a)
{
    struct parameters p = bench_optimizer_parameters_of(a, true, true);

    p.v16 = NULL;
    optimizer_step(&p, &(struct gradient){a->g, NUMBER_FP32, 1}, &sgd, ++a->t, true);
}

static void step_sgd_undecayed(struct arrays *a)
{
    plain_step(a->w, a->m, NULL, a->g, a->n, &sgd, ++a->t, false);
}

/* With replay: new weights go to another buffer. */
static void step_replay(struct arrays *a)
{
    struct parameters p = bench_optimizer_parameters_of(a, false, false);

    p.new_w = a->new_w;
    optimizer_step(&p, &(struct gradient){a->g, NUMBER_FP32, 1}, &hyper, ++a->t, true);
}

static void step_split_replay(struct arrays *a)
{
    struct parameters p = bench_optimizer_parameters_of(a, true, false);

    p.new_high = a->new_high;
    optimizer_step(&p, &(struct gradient){a->g, NUMBER_FP32, 1}, &hyper, ++a->t, true);
}

/* The two extra passes of a fenced commit: hold the gradient, compute its norm. */
static void hold(struct arrays *a)
{
    plain_sum(a->m, a->g, a->n, true);
}

static void bench_optimizer_norm(struct arrays *a)
{
    double sum = 0;

    for (size_t i = 0; i < a->n; i += MODEL_SLICE)
        sum += optimizer_squares(optimizer_find(OPTIMIZER_ISA_BEST), a->g + i, NUMBER_FP32,
                                 a->n - i < MODEL_SLICE ? a->n - i : MODEL_SLICE);
    if (!(sum > 0))
        abort();
}

static const struct {
    const char *name;
    void (*run)(struct arrays *a);
    unsigned bytes; /* per parameter */
} rows[ROWS] = {
    {"triad, past the cache", triad, 12},
    {"AdamW: fused step", bench_optimizer_step, 28},
    {"fold (first)", bench_optimizer_fold, 20},
    {"update", bench_optimizer_update, 16},
    {"check finite", bench_optimizer_look_through, 4},
    {"sum", sum, 12},
    {"slices: check and step", direct, 28},
    {"step: split master", step_split, 28},
    {"  and 16-bit moments", step_narrow, 20},
    {"  and bf16 gradient", step_narrowest, 18},
    {"  coded moments", step_coded, 16},
    {"  and no master", step_rounded, 14},
    {"checked: fused step", step_checked, 28},
    {"checked: split master", step_split_checked, 28},
    {"  and 16-bit moments", step_narrow_checked, 20},
    {"SGD: fused step", step_sgd, 20},
    {"  Nesterov's", step_nesterov, 20},
    {"  without momentum", step_without_momentum, 12},
    {"  fold (first), decays", fold_sgd, 16},
    {"  split, 16-bit momentum", step_sgd_narrow, 16},
    {"replay: fused step", step_replay, 28},
    {"replay: split master", step_split_replay, 28},
    {"fenced: hold (first)", hold, 8},
    {"fenced: sum of squares", bench_optimizer_norm, 4},
    {"fenced: sum in bf16", sum_rounded, 6},
};

static double bench_optimizer_median(const double *x)
{
    double sorted[ROUNDS];

    for (int i = 0; i < ROUNDS; i++)
        sorted[i] = x[i];
    qsort(sorted, ROUNDS, sizeof *sorted, samples_compare);
    return sorted[ROUNDS / 2];
}

static void fill_range(void *data, size_t begin, size_t n)
{
    struct arrays *a = data;
    const struct random_key key = random_site_key(1, 0, 0, RANDOM_WEIGHTS);

    random_normal(a->w + begin, key, 0, begin, n);
    random_normal(a->g + begin, key, 1, begin, n);
    for (size_t i = begin; i < begin + n; i++) {
        a->m[i] = a->v[i] = a->new_w[i] = 0;
        a->new_high[i] = 0;
        a->m16[i] = a->v16[i] = 0;
        number_split(a->w[i], &a->high[i], (int16_t *)&a->low[i]);
        a->g16[i] = number_to_bf16(a->g[i]);
    }
}

/* ---- cache-resident --------------------------------------------------------------------------------------------- */

enum { CACHED = 16 << 10, PASSES = 16, UNTOUCHED_STEPS = 2000, CACHED_ROWS = 14, ISAS = 2 };

static const struct {
    const char *name;
    void (*run)(struct arrays *a);
    bool untouched; /* a gradient of zero */
} cached_rows[CACHED_ROWS] = {
    {"AdamW: fused step", bench_optimizer_step, false},
    {"fold (first)", bench_optimizer_fold, false},
    {"update", bench_optimizer_update, false},
    {"step: split master", step_split, false},
    {"  and 16-bit moments", step_narrow, false},
    {"  and bf16 gradient", step_narrowest, false},
    {"  coded moments", step_coded, false},
    {"  and no master", step_rounded, false},
    {"SGD: fused step", step_sgd, false},
    {"  Nesterov's", step_nesterov, false},
    {"zero gradient: AdamW", bench_optimizer_step, true},
    {"  16-bit moments", step_narrow, true},
    {"  coded moments", step_coded, true},
    {"  SGD", step_sgd_undecayed, true},
};

/* Each row has parameters of its own, the first ones of all arrays. */
static struct arrays bench_optimizer_cached_arrays(const struct arrays *a, int row)
{
    static float none[CACHED];
    static uint16_t none16[CACHED];
    const size_t at = (size_t)row * CACHED;
    struct arrays part = {.n = CACHED,
                          .w = a->w + at,
                          .m = a->m + at,
                          .v = a->v + at,
                          .g = a->g + at,
                          .high = a->high + at,
                          .low = a->low + at,
                          .m16 = a->m16 + at,
                          .v16 = a->v16 + at,
                          .g16 = a->g16 + at};

    for (size_t i = 0; i < CACHED; i++) {
        part.m[i] = part.v[i] = 1e-3f;
        part.m16[i] = number_to_bf16(1e-3f), part.v16[i] = number_to_v16(1e-3f);
    }
    if (cached_rows[row].untouched)
        part.g = none, part.g16 = none16;
    return part;
}

static void bench_optimizer_measure_cached(const struct arrays *a)
{
    static double ns[CACHED_ROWS][ISAS][ROUNDS];
    struct arrays parts[CACHED_ROWS];

    for (int row = 0; row < CACHED_ROWS; row++) {
        parts[row] = bench_optimizer_cached_arrays(a, row);
        for (int i = 0; cached_rows[row].untouched && i < UNTOUCHED_STEPS; i++)
            cached_rows[row].run(&parts[row]);
    }
    for (int isa = 0; isa < ISAS && plain_use((enum optimizer_isa)(OPTIMIZER_ISA_V3 + isa)); isa++)
        for (int round = 0; round < ROUNDS; round++)
            for (int row = 0; row < CACHED_ROWS; row++) {
                cached_rows[row].run(&parts[row]);
                const double begin = samples_now_ms();
                for (int pass = 0; pass < PASSES; pass++)
                    cached_rows[row].run(&parts[row]);
                ns[row][isa][round] = (samples_now_ms() - begin) * 1e6 / ((double)PASSES * CACHED);
            }
    printf("\n%-24s %8s %8s\n", "ns a parameter and core", "v3", "v4");
    for (int row = 0; row < CACHED_ROWS; row++)
        printf("%-24s %8.2f %8.2f\n", cached_rows[row].name, bench_optimizer_median(ns[row][0]),
               bench_optimizer_median(ns[row][1]));
}

static void bench_optimizer_measure(struct arrays *a)
{
    static double seconds[ROWS][ROUNDS], ratios[ROWS][ROUNDS];

    for (int round = -1; round < ROUNDS; round++) /* round -1 warms up caches and clock */
        for (int row = 0; row < ROWS; row++) {
            const double begin = 1e-3 * samples_now_ms();
            rows[row].run(a);
            const double took = 1e-3 * samples_now_ms() - begin;
            if (round < 0)
                continue;
            seconds[row][round] = took;
            ratios[row][round] = rows[row].bytes / took / (rows[0].bytes / seconds[0][round]);
        }
    printf("%-24s %8s %8s %10s %8s\n", "", "bytes", "GB/s", "Mparam/s", "ratio");
    for (int row = 0; row < ROWS; row++) {
        const double rate = (double)a->n / bench_optimizer_median(seconds[row]);
        printf("%-24s %8u %8.1f %10.0f %8.2f\n", rows[row].name, rows[row].bytes, rate * rows[row].bytes * 1e-9,
               rate * 1e-6, bench_optimizer_median(ratios[row]));
    }
}

int main(int argc, char **argv)
{
    const size_t millions = argc > 1 ? strtoul(argv[1], NULL, 10) : 64;
    struct arrays a = {.n = millions << 20};
    struct memory memory;
    float **const arrays[] = {&a.w, &a.m, &a.v, &a.g, &a.new_w};
    uint16_t **const halves[] = {&a.high, &a.low, &a.m16, &a.v16, &a.g16, &a.new_high};
    int threads = 1;

    process_bound_spinning(argv);
    if (millions < 1 || millions > 4096) {
        fprintf(stderr, "usage: bench_optimizer [MILLIONS], 1 to 4096 of parameters, 32 bytes each\n");
        return 2;
    }
    if (memory_init(&memory) != 0)
        return 1;
    bool enough = true;
    for (int i = 0; i < 5; i++)
        enough = enough && (*arrays[i] = memory_map(&memory, a.n * sizeof(float)));
    for (int i = 0; i < 6; i++)
        enough = enough && (*halves[i] = memory_map(&memory, a.n * sizeof(uint16_t)));
    for (int i = 0; i < 4; i++)
        enough = enough && (a.sums[i] = memory_map(&memory, a.n / TEAM_BLOCK * sizeof(struct block_sum)));
    if (!enough) {
        fprintf(stderr, "bench_optimizer: no memory for %zu parameters\n", a.n);
        return 1;
    }
    memory_report(&memory, 0);
    memory_free(&memory);
#ifdef _OPENMP
    threads = omp_get_max_threads();
#endif
    const double begin = 1e-3 * samples_now_ms();
    team_run(a.n, fill_range, &a);
    printf("%zu Mi parameters, %d threads, medians of %d rounds; drawn at %.0f M/s\n", millions, threads, ROUNDS,
           2e-6 * (double)a.n / (1e-3 * samples_now_ms() - begin));
    bench_optimizer_measure(&a);
    bench_optimizer_measure_cached(&a);
    return 0;
}
