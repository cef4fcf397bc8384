#include "eps/optimizer.h"
#include "eps/optimizer_kernel.h"
#include "eps/team.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdatomic.h>

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

/* One call's arguments, for the threads. */
struct job {
    float *w, *m, *v;
    const float *read_m, *read_v, *g;
    struct eps_constants constants;
    bool first;
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

static void finite_range(void *data, size_t begin, size_t n)
{
    struct job *job = data;

    if (!kernel->is_finite(job->g + begin, n))
        atomic_store_explicit(&job->not_finite, true, memory_order_relaxed);
}

bool eps_optimizer_is_finite(const float *g, size_t n)
{
    struct job job = {.g = g};

    eps_team_run(n, finite_range, &job);
    return !job.not_finite;
}

static void fold_range(void *data, size_t begin, size_t n)
{
    struct job *job = data;

    kernel->fold(job->m + begin, job->v + begin, job->g + begin, n, &job->constants, job->first);
}

void eps_optimizer_fold(float *m, float *v, const float *g, size_t n, const struct eps_hyper *hp, bool first)
{
    struct job job = {.m = m, .v = v, .g = g, .first = first, .constants = constants_of(hp, 1, false)};

    eps_team_run(n, fold_range, &job);
}

static void update_range(void *data, size_t begin, size_t n)
{
    struct job *job = data;

    kernel->update(job->w + begin, job->read_m + begin, job->read_v + begin, n, &job->constants);
}

void eps_optimizer_update(float *w, const float *m, const float *v, size_t n, const struct eps_hyper *hp, uint64_t t,
                          bool decays)
{
    struct job job = {.w = w, .read_m = m, .read_v = v, .constants = constants_of(hp, t, decays)};

    eps_team_run(n, update_range, &job);
}

static void step_range(void *data, size_t begin, size_t n)
{
    struct job *job = data;

    kernel->step(job->w + begin, job->m + begin, job->v + begin, job->g + begin, n, &job->constants);
}

void eps_optimizer_step(float *w, float *m, float *v, const float *g, size_t n, const struct eps_hyper *hp, uint64_t t,
                        bool decays)
{
    struct job job = {.w = w, .m = m, .v = v, .g = g, .constants = constants_of(hp, t, decays)};

    eps_team_run(n, step_range, &job);
}

static void sum_range(void *data, size_t begin, size_t n)
{
    struct job *job = data;

    kernel->sum(job->w + begin, job->g + begin, n, job->first);
}

void eps_optimizer_sum(float *sum, const float *g, size_t n, bool first)
{
    struct job job = {.w = sum, .g = g, .first = first};

    eps_team_run(n, sum_range, &job);
}
