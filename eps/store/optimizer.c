#include "eps/store/optimizer.h"
#include "eps/store/optimizer_kernel.h"
#include "eps/store/team.h"
#include "proto/model/model.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* Chosen once, before any thread works. */
static const struct eps_kernel *kernel = &eps_kernel_v2;

int eps_optimizer_select(enum eps_isa isa)
{
    const bool has_v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool has_v4 = has_v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl");

    switch (isa) {
    case EPS_ISA_V2:
        kernel = &eps_kernel_v2;
        return 0;
    case EPS_ISA_V3:
        if (!has_v3)
            return -ENOTSUP;
        kernel = &eps_kernel_v3;
        return 0;
    case EPS_ISA_V4:
        if (!has_v4)
            return -ENOTSUP;
        kernel = &eps_kernel_v4;
        return 0;
    case EPS_ISA_BEST:
        kernel = has_v4 ? &eps_kernel_v4 : has_v3 ? &eps_kernel_v3 : &eps_kernel_v2;
        return 0;
    }
    assert(false); /* no such path */
    return -ENOTSUP;
}

/* What one call is about, for the threads. */
struct job {
    const struct eps_parameters *p;
    const struct eps_gradient *gradient;
    struct eps_constants constants;
    bool first;
    float *sum;
    const float *squared;
    double *partial; /* a sum of squares for each block of the range */
    atomic_bool not_finite;
};

static struct eps_constants constants_of(const struct eps_hyper *hp, uint64_t t, bool decays)
{
    assert(t > 0);
    return (struct eps_constants){
        .c1 = (float)(1 - hp->beta1),
        .c2 = (float)(1 - hp->beta2),
        .step_size = hp->lr / (1 - pow(hp->beta1, (double)t)),
        .root_scale = 1 / sqrt(1 - pow(hp->beta2, (double)t)),
        .epsilon = hp->epsilon,
        .shrink = decays ? 1 - hp->lr * hp->weight_decay : 1,
    };
}

/* ---- narrower forms ---------------------------------------------------------------------------------------------- */

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Elements that are decoded at a time: 2 KiB an array, all of them well inside the first-level cache. */
enum { BLOCK = 512 };

struct scratch {
    float w[BLOCK], m[BLOCK], v[BLOCK], g[BLOCK];
    uint32_t words[BLOCK + EPS_GROUP]; /* of whole groups: the first may begin before the block */
};

/* A run of elements as fp32: where they are kept, or in the scratch. */
struct view {
    size_t n;
    float *w, *m, *v;
    const float *g;
};

/* Which arrays a pass works on. */
enum { WEIGHTS = 1, MOMENTS = 2, GRADIENT = 4 };

static bool is_plain(const struct eps_gradient *g)
{
    return g->type == NUMBER_FP32 && g->scale == 1;
}

static bool needs_scratch(const struct job *job, unsigned what)
{
    return (what & WEIGHTS && !job->p->w) || (what & MOMENTS && !job->p->m) ||
           (what & GRADIENT && !is_plain(job->gradient));
}

static const float *open_gradient(struct scratch *scratch, const struct eps_gradient *gradient, size_t at, size_t n)
{
    const float *g = (const float *)gradient->g + at;

    if (gradient->type == NUMBER_BF16) {
        kernel->widen(scratch->g, (const uint16_t *)gradient->g + at, n);
        g = scratch->g;
    }
    if (gradient->scale != 1) {
        kernel->scale(scratch->g, g, gradient->scale, n);
        g = scratch->g;
    }
    return g;
}

/* At element `at` of the job, n at most. */
static struct view open_view(struct scratch *scratch, const struct job *job, unsigned what, size_t at, size_t n)
{
    const struct eps_parameters *p = job->p;
    struct view view = {.n = needs_scratch(job, what) ? smaller(BLOCK, n) : n};

    if (what & WEIGHTS && p->w) {
        view.w = p->w + at;
    } else if (what & WEIGHTS) {
        kernel->join(scratch->w, p->high + at, p->low + at, view.n);
        view.w = scratch->w;
    }
    if (what & MOMENTS && p->m) {
        view.m = p->m + at, view.v = p->v + at;
    } else if (what & MOMENTS) {
        kernel->widen(scratch->m, p->m16 + at, view.n);
        kernel->widen_v(scratch->v, p->v16 + at, view.n);
        view.m = scratch->m, view.v = scratch->v;
    }
    if (what & GRADIENT)
        view.g = open_gradient(scratch, job->gradient, at, view.n);
    return view;
}

/* Puts back what was changed. */
static void close_view(struct scratch *scratch, const struct job *job, unsigned what, size_t at, size_t n)
{
    const struct eps_parameters *p = job->p;

    if (what & WEIGHTS && !p->w)
        kernel->split(p->high + at, p->low + at, scratch->w, n);
    if (what & MOMENTS && !p->m) {
        const uint64_t first = p->first + at, group = first / EPS_GROUP, end = first + n;
        const uint32_t *words = scratch->words + first % EPS_GROUP;
        kernel->draw(scratch->words, p->key, p->part, group, (end - group * EPS_GROUP + EPS_GROUP - 1) / EPS_GROUP);
        kernel->round(p->m16 + at, p->v16 + at, scratch->m, scratch->v, words, n);
    }
}

/* ---- passes ------------------------------------------------------------------------------------------------------ */

static void note_not_finite(struct job *job)
{
    atomic_store_explicit(&job->not_finite, true, memory_order_relaxed);
}

static void finite_range(void *data, size_t begin, size_t n)
{
    struct job *job = data;
    const void *g = job->gradient->g;

    if (job->gradient->type == NUMBER_BF16 ? !kernel->is_finite_bf16((const uint16_t *)g + begin, n)
                                           : !kernel->is_finite((const float *)g + begin, n))
        note_not_finite(job);
}

bool eps_optimizer_is_finite(const void *g, enum number_type type, size_t n)
{
    struct job job = {.gradient = &(struct eps_gradient){g, type, 1}};

    eps_team_run(n, finite_range, &job);
    return !job.not_finite;
}

static void fold_range(void *data, size_t begin, size_t n)
{
    const struct job *job = data;
    struct scratch scratch;
    struct view view;

    for (size_t at = begin; at < begin + n; at += view.n) {
        view = open_view(&scratch, job, MOMENTS | GRADIENT, at, begin + n - at);
        kernel->fold(view.m, view.v, view.g, view.n, &job->constants, job->first);
        close_view(&scratch, job, MOMENTS, at, view.n);
    }
}

void eps_optimizer_fold(const struct eps_parameters *p, const struct eps_gradient *g, const struct eps_hyper *hp,
                        bool first)
{
    struct job job = {.p = p, .gradient = g, .first = first, .constants = constants_of(hp, 1, false)};

    eps_team_run(p->n, fold_range, &job);
}

static void update_range(void *data, size_t begin, size_t n)
{
    struct job *job = data;
    struct scratch scratch;
    struct view view;

    for (size_t at = begin; at < begin + n; at += view.n) {
        view = open_view(&scratch, job, WEIGHTS | MOMENTS, at, begin + n - at);
        if (!kernel->update(view.w, view.m, view.v, view.n, &job->constants))
            note_not_finite(job);
        close_view(&scratch, job, WEIGHTS, at, view.n);
    }
}

bool eps_optimizer_update(const struct eps_parameters *p, const struct eps_hyper *hp, uint64_t t, bool decays,
                          double divisor)
{
    struct job job = {.p = p, .constants = constants_of(hp, t, decays)};

    job.constants.step_size /= divisor;
    eps_team_run(p->n, update_range, &job);
    return !job.not_finite;
}

static void step_range(void *data, size_t begin, size_t n)
{
    struct job *job = data;
    struct scratch scratch;
    struct view view;

    for (size_t at = begin; at < begin + n; at += view.n) {
        view = open_view(&scratch, job, WEIGHTS | MOMENTS | GRADIENT, at, begin + n - at);
        if (!kernel->step(view.w, view.m, view.v, view.g, view.n, &job->constants))
            note_not_finite(job);
        close_view(&scratch, job, WEIGHTS | MOMENTS, at, view.n);
    }
}

bool eps_optimizer_step(const struct eps_parameters *p, const struct eps_gradient *g, const struct eps_hyper *hp,
                        uint64_t t, bool decays)
{
    struct job job = {.p = p, .gradient = g, .constants = constants_of(hp, t, decays)};

    eps_team_run(p->n, step_range, &job);
    return !job.not_finite;
}

static void sum_range(void *data, size_t begin, size_t n)
{
    const struct job *job = data;
    struct scratch scratch;
    struct view view;

    for (size_t at = begin; at < begin + n; at += view.n) {
        view = open_view(&scratch, job, GRADIENT, at, begin + n - at);
        kernel->sum(job->sum + at, view.g, view.n, job->first);
    }
}

void eps_optimizer_sum(float *sum, const struct eps_gradient *g, size_t n, bool first)
{
    struct job job = {.sum = sum, .gradient = g, .first = first};

    eps_team_run(n, sum_range, &job);
}

/* ---- sums of squares --------------------------------------------------------------------------------------------- */

/* Ranges begin at whole blocks, so a block has one thread; its sum is made in the same order whatever the form. */
enum { PARTIALS = MODEL_SLICE / EPS_TEAM_BLOCK };

static double sum_of_blocks(size_t n, void (*range)(void *data, size_t begin, size_t n), struct job *job)
{
    double partial[PARTIALS], sum = 0;

    assert(n <= MODEL_SLICE);
    job->partial = partial;
    eps_team_run(n, range, job);
    for (size_t i = 0; i * EPS_TEAM_BLOCK < n; i++)
        sum += partial[i];
    return sum;
}

static void squares_range(void *data, size_t begin, size_t n)
{
    const struct job *job = data;

    for (size_t at = begin; at < begin + n; at += EPS_TEAM_BLOCK)
        job->partial[at / EPS_TEAM_BLOCK] = kernel->squares(job->squared + at, smaller(EPS_TEAM_BLOCK, begin + n - at));
}

double eps_optimizer_squares(const float *g, size_t n)
{
    struct job job = {.squared = g};

    return sum_of_blocks(n, squares_range, &job);
}

static void update_squares_range(void *data, size_t begin, size_t n)
{
    const struct job *job = data;
    struct scratch scratch;
    struct view view;

    for (size_t at = begin; at < begin + n; at += view.n) {
        double *sum = &job->partial[at / EPS_TEAM_BLOCK];
        view = open_view(&scratch, job, MOMENTS, at, smaller(BLOCK, begin + n - at));
        *sum = (at % EPS_TEAM_BLOCK ? *sum : 0) + kernel->update_squares(view.m, view.v, view.n, &job->constants);
    }
}

double eps_optimizer_update_squares(const struct eps_parameters *p, const struct eps_hyper *hp, uint64_t t)
{
    struct job job = {.p = p, .constants = constants_of(hp, t, false)};
    const double correction = 1 - pow(hp->beta1, (double)t);

    return sum_of_blocks(p->n, update_squares_range, &job) / (correction * correction);
}

/* ---- reading and writing ----------------------------------------------------------------------------------------- */

void eps_optimizer_read(const struct eps_parameters *p, float *w, float *m, float *v)
{
    const size_t bytes = p->n * sizeof(float);

    if (w && p->w)
        memcpy(w, p->w, bytes);
    else if (w && p->low)
        kernel->join(w, p->high, p->low, p->n);
    else if (w)
        kernel->widen(w, p->high, p->n);
    if (m && p->m)
        memcpy(m, p->m, bytes);
    else if (m)
        kernel->widen(m, p->m16, p->n);
    if (v && p->v)
        memcpy(v, p->v, bytes);
    else if (v)
        kernel->widen_v(v, p->v16, p->n);
}

void eps_optimizer_write(const struct eps_parameters *p, const float *w, const float *m, const float *v)
{
    const size_t bytes = p->n * sizeof(float);

    if (w && p->w)
        memcpy(p->w, w, bytes);
    else if (w && p->low)
        kernel->split(p->high, p->low, w, p->n);
    else if (w)
        kernel->narrow(p->high, w, p->n);
    if (m && p->m)
        memcpy(p->m, m, bytes);
    else if (m)
        kernel->narrow(p->m16, m, p->n);
    if (v && p->v)
        memcpy(p->v, v, bytes);
    else if (v)
        kernel->narrow_v(p->v16, v, p->n);
}
