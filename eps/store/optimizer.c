/* Ranges are worked on in views: the arrays themselves where all are fp32 and in place, else at most BLOCK elements
 * decoded into scratch. No element depends on another, so the size of a view changes no bit. A view of checked memory
 * lies in one block, which is compared with its sum before its first element is used, and summed again after its last
 * one, while it is in the first-level cache. Weights that go past the caches are summed on their way (fresh): reading
 * them back would fetch them. Such stores are not ordered with others, so a range that may have some ends with a
 * fence. */
#include "eps/store/optimizer.h"
#include "eps/store/optimizer_kernel.h"
#include "eps/store/team.h"
#include "proto/base/size.h"
#include "proto/model/contribution.h"
#include "proto/model/groups.h"
#include "proto/model/model.h"

#include <assert.h>
#include <immintrin.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

const struct optimizer_kernel *optimizer_find(enum optimizer_isa isa)
{
    const bool has_v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool has_v4 = has_v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl");

    switch (isa) {
    case OPTIMIZER_ISA_BEST:
        return has_v4 ? &optimizer_kernel_v4 : has_v3 ? &optimizer_kernel_v3 : &optimizer_kernel_v2;
    case OPTIMIZER_ISA_V2:
        return &optimizer_kernel_v2;
    case OPTIMIZER_ISA_V3:
        return has_v3 ? &optimizer_kernel_v3 : NULL;
    case OPTIMIZER_ISA_V4:
        return has_v4 ? &optimizer_kernel_v4 : NULL;
    }
    return NULL;
}

/* One call's arguments, for the threads. */
struct call {
    const struct optimizer_kernel *kernel;
    const struct parameters *p;
    const struct gradient *gradient;
    struct optimizer_constants constants;
    bool sgd, first;
    const struct optimizer_blocks *blocks; /* NULL: memory is not checked */
    const struct sums *sums;
    struct block_sum *sum; /* of the gradient */
    double *partial;       /* a sum of squares for each block of the range */
    atomic_bool not_finite;
};

/* divisor: as in optimizer_update. */
static struct optimizer_constants constants_of(const struct hyper *hp, uint64_t t, bool decays, double divisor)
{
    assert(t > 0);
    if (hp->sgd)
        return (struct optimizer_constants){.c1 = (float)(1 - hp->momentum),
                                            .step_size = (float)(hp->lr / divisor),
                                            .decay = (float)(decays ? hp->weight_decay : 0),
                                            .momentum = (float)hp->momentum,
                                            .nesterov = hp->nesterov};
    return (struct optimizer_constants){
        .c1 = (float)(1 - hp->beta1),
        .c2 = (float)(1 - hp->beta2),
        .step_size = (float)(hp->lr / (1 - pow(hp->beta1, (double)t)) / divisor),
        .root_scale = (float)(1 / sqrt(1 - pow(hp->beta2, (double)t))),
        .epsilon = (float)hp->epsilon,
        .decay = (float)(decays ? hp->lr * hp->weight_decay : 0),
    };
}

/* ---- narrower forms --------------------------------------------------------------------------------------------- */

/* Elements decoded at a time: 2 KiB an array, so all arrays fit well inside the first-level cache. */
enum { BLOCK = 512 };

_Static_assert(BLOCK % MODEL_GROUP == 0 && TEAM_BLOCK % MODEL_GROUP == 0, "a view or range cuts no group");

struct scratch {
    float w[BLOCK], m[BLOCK], v[BLOCK], g[BLOCK];
    uint16_t high[BLOCK];
    uint16_t random[BLOCK + OPTIMIZER_GROUP]; /* of whole groups: the first may begin before the block */
    struct block_summing fresh;               /* a block of new weights that are written past the caches */
};

/* A run of elements as fp32: in place, or decoded into the scratch. */
struct view {
    size_t n;
    float *w, *new_w, *m, *v;
    const float *g;
};

/* The arrays that a pass works on; OLD_WEIGHTS: those that it reads alone. */
enum { WEIGHTS = 1, MOMENTS = 2, GRADIENT = 4, OLD_WEIGHTS = 8 };

static unsigned moments_of(const struct parameters *p)
{
    return p->m || p->m16 || p->coded.m ? MOMENTS : 0;
}

static bool is_plain(const struct gradient *g)
{
    return g->type == NUMBER_FP32 && g->scale == 1;
}

static bool needs_scratch(const struct call *call, unsigned what)
{
    return (what & WEIGHTS && (!call->p->w || call->p->new_w)) || (what & OLD_WEIGHTS && !call->p->w) ||
           (what & MOMENTS && !call->p->m) || (what & GRADIENT && !is_plain(call->gradient)) ||
           (call->sums && call->sums->half);
}

static const float *open_gradient(struct scratch *scratch, const struct call *call, size_t at, size_t n)
{
    const struct gradient *gradient = call->gradient;
    const float *g = (const float *)gradient->g + at;

    if (gradient->type != NUMBER_FP32) {
        call->kernel->halves[gradient->type].widen(scratch->g, (const uint16_t *)gradient->g + at, n);
        g = scratch->g;
    }
    if (gradient->scale != 1) {
        call->kernel->scale(scratch->g, g, gradient->scale, n);
        g = scratch->g;
    }
    return g;
}

/* Coded moments from element `at` on, which is a group's first: views are of whole groups. */
static struct coded_moments coded_from(const struct parameters *p, size_t at)
{
    const size_t group = at / MODEL_GROUP;

    assert(at % MODEL_GROUP == 0);
    return (struct coded_moments){p->coded.m + at, p->coded.v + at, p->coded.m_scales + group,
                                  p->coded.v_scales + group};
}

/* From element `at` of the call, at most n elements. */
static struct view open_view(struct scratch *scratch, const struct call *call, unsigned what, size_t at, size_t n)
{
    const struct parameters *p = call->p;
    struct view view = {.n = needs_scratch(call, what) ? size_smaller(BLOCK, n) : n};

    if (call->blocks)
        view.n = size_smaller(view.n, TEAM_BLOCK - at % TEAM_BLOCK);
    if (what & (WEIGHTS | OLD_WEIGHTS) && p->w) {
        view.w = p->w + at, view.new_w = p->new_w ? scratch->w : view.w;
    } else if (what & (WEIGHTS | OLD_WEIGHTS)) {
        optimizer_read_halves(scratch->w, p, at, view.n);
        view.w = view.new_w = scratch->w;
    }
    if (what & MOMENTS && p->m) {
        view.m = p->m + at, view.v = p->v ? p->v + at : NULL;
    } else if (what & MOMENTS && p->coded.m) {
        const struct coded_moments from = coded_from(p, at);
        call->kernel->coded->decode(scratch->m, scratch->v, &from, view.n);
        view.m = scratch->m, view.v = scratch->v;
    } else if (what & MOMENTS) {
        call->kernel->halves[NUMBER_BF16].widen(scratch->m, p->m16 + at, view.n);
        if (p->v16)
            call->kernel->widen_v(scratch->v, p->v16 + at, view.n);
        view.m = scratch->m, view.v = scratch->v;
    }
    if (what & GRADIENT)
        view.g = open_gradient(scratch, call, at, view.n);
    return view;
}

static void note_not_finite(struct call *call)
{
    atomic_store_explicit(&call->not_finite, true, memory_order_relaxed);
}

/* The random bits of n elements, of which the first is this one of its unit. */
static const uint16_t *draw(struct scratch *scratch, const struct optimizer_kernel *kernel, struct random_key key,
                            uint64_t part, uint64_t first, size_t n)
{
    const uint64_t group = first / OPTIMIZER_GROUP, end = first + n;

    kernel->draw(scratch->random, key, part, group,
                 (end - group * OPTIMIZER_GROUP + OPTIMIZER_GROUP - 1) / OPTIMIZER_GROUP);
    return scratch->random + first % OPTIMIZER_GROUP;
}

/* Writes changed values back. Beyond fp16's range a finite weight is relayed as an infinity. */
static void close_view(struct scratch *scratch, struct call *call, unsigned what, size_t at, size_t n)
{
    const struct parameters *p = call->p;

    if (what & WEIGHTS && p->new_w) {
        if (call->blocks)
            call->kernel->blocks->add(&scratch->fresh, scratch->w, n * sizeof *p->new_w);
        call->kernel->stream(p->new_w + at, scratch->w, n * sizeof *p->new_w);
    } else if (what & WEIGHTS && !p->w) {
        uint16_t *const high = p->new_high ? scratch->high : p->high + at;
        const struct optimizer_halves *const halves = &call->kernel->halves[p->type];
        if (p->low)
            halves->split(high, p->low + at, scratch->w, n);
        else
            halves->round(high, scratch->w, draw(scratch, call->kernel, p->update_key, 0, p->first + at, n), n);
        if (p->type == NUMBER_FP16 && !halves->is_finite(high, n))
            note_not_finite(call);
        if (p->new_high && call->blocks)
            call->kernel->blocks->add(&scratch->fresh, scratch->high, n * sizeof *p->new_high);
        if (p->new_high)
            call->kernel->stream(p->new_high + at, scratch->high, n * sizeof *p->new_high);
    }
    if (what & MOMENTS && !p->m) {
        const uint16_t *const random = draw(scratch, call->kernel, p->key, p->part, p->first + at, n);
        if (p->coded.m) {
            const struct coded_moments to = coded_from(p, at);
            call->kernel->coded->encode(&to, scratch->m, scratch->v, random, n);
        } else if (p->v16) {
            call->kernel->round_moments(p->m16 + at, p->v16 + at, scratch->m, scratch->v, random, n);
        } else {
            call->kernel->halves[NUMBER_BF16].round(p->m16 + at, scratch->m, random, n);
        }
    }
}

/* ---- sums of blocks --------------------------------------------------------------------------------------------- */

/* One of a block's arrays; data NULL: there is none. */
struct checked {
    struct block_sum *sums;
    const void *data; /* the whole range's */
    size_t each;      /* bytes of an element */
    enum optimizer_array array;
    size_t per; /* elements that have one number together */
};

enum { CHECKED = 8 };

/* The arrays that a pass reads, or writes in place. Of `what`, OLD_WEIGHTS are read alone. */
static void list_checked(struct checked out[CHECKED], const struct call *call, unsigned what)
{
    static const struct parameters none = {0};
    const struct optimizer_blocks *const b = call->blocks;
    const struct parameters *const p = call->p ? call->p : &none;
    const struct sums *const sums = call->sums;
    const unsigned weights = what & (WEIGHTS | OLD_WEIGHTS), moments = what & MOMENTS;
    const size_t half = sizeof(uint16_t), whole = sizeof(float), moment = p->m ? whole : p->m16 ? half : 1;
    const void *const m = p->m ? (void *)p->m : p->m16 ? (void *)p->m16 : p->coded.m;
    const void *const v = p->m ? (void *)p->v : p->m16 ? (void *)p->v16 : p->coded.v;

    out[0] = (struct checked){b->w,
                              !weights ? NULL
                              : p->w   ? (void *)p->w
                                       : p->high,
                              p->w ? whole : half, OPTIMIZER_W, 1};
    out[1] = (struct checked){b->low, weights ? p->low : NULL, half, OPTIMIZER_LOW, 1};
    out[2] = (struct checked){b->m, moments ? m : NULL, moment, OPTIMIZER_M, 1};
    out[3] = (struct checked){b->v, moments ? v : NULL, moment, OPTIMIZER_V, 1};
    out[4] = (struct checked){b->m_scales, moments ? p->coded.m_scales : NULL, whole, OPTIMIZER_M, MODEL_GROUP};
    out[5] = (struct checked){b->v_scales, moments ? p->coded.v_scales : NULL, whole, OPTIMIZER_V, MODEL_GROUP};
    out[6] = (struct checked){b->sum,
                              !sums        ? NULL
                              : sums->half ? (void *)sums->half
                                           : sums->wide,
                              sums && sums->half ? half : whole, OPTIMIZER_SUM, 1};
    out[7] = (struct checked){b->gradient, what & GRADIENT ? call->gradient->g : NULL,
                              what & GRADIENT ? number_bytes(call->gradient->type) : 0, OPTIMIZER_GRADIENT, 1};
}

static struct block_sum sum_of(const struct call *call, const struct checked *c, size_t at, size_t n)
{
    return block_sum(call->kernel->blocks, (const char *)c->data + at / c->per * c->each,
                     (n + c->per - 1) / c->per * c->each);
}

void optimizer_note_damage(uint64_t *damage, uint64_t block, enum optimizer_array array)
{
    const uint64_t mine = optimizer_damage(block, array);
    uint64_t least = __atomic_load_n(damage, __ATOMIC_RELAXED);

    while (mine < least &&
           !__atomic_compare_exchange_n(damage, &least, mine, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

/* Before the first element of a block is used; `end` is the range's. */
static void check_block(struct scratch *scratch, const struct call *call, unsigned what, size_t at, size_t end)
{
    struct checked list[CHECKED];

    if (!call->blocks || at % TEAM_BLOCK != 0)
        return;
    scratch->fresh = (struct block_summing){0};
    list_checked(list, call, what);
    for (const struct checked *c = list; c < list + CHECKED; c++)
        if (c->sums && c->data && (c->array != OPTIMIZER_SUM || !call->first) &&
            !block_sum_equal(c->sums[at / TEAM_BLOCK], sum_of(call, c, at, size_smaller(TEAM_BLOCK, end - at))))
            optimizer_note_damage(call->blocks->damage, call->blocks->first + at / TEAM_BLOCK, c->array);
}

/* After the elements before `at`, if they end a block or the range. */
static void renew_block(const struct scratch *scratch, const struct call *call, unsigned what, size_t at, size_t end)
{
    struct checked list[CHECKED];
    const size_t begin = (at - 1) / TEAM_BLOCK * TEAM_BLOCK;

    if (!call->blocks || (at % TEAM_BLOCK != 0 && at != end))
        return;
    list_checked(list, call, what);
    for (const struct checked *c = list; c < list + CHECKED; c++)
        if (c->sums && c->data && c->array == OPTIMIZER_W && (call->p->new_w || call->p->new_high))
            call->blocks->new_w[begin / TEAM_BLOCK] = call->kernel->blocks->end(&scratch->fresh);
        else if (c->sums && c->data)
            c->sums[begin / TEAM_BLOCK] = sum_of(call, c, begin, at - begin);
}

static const struct optimizer_blocks *blocks_of(const struct optimizer_blocks *blocks)
{
    return blocks->damage ? blocks : NULL;
}

/* ---- passes ----------------------------------------------------------------------------------------------------- */

_Static_assert((int)TEAM_BLOCK == (int)CONTRIBUTION_BLOCK, "a block of a contribution belongs to one thread");

/* A block at a time, so that it comes from memory once. */
static void finite_range(void *data, size_t begin, size_t n)
{
    struct call *call = data;
    const enum number_type type = call->gradient->type;
    const size_t each = number_bytes(type), step = call->sum ? TEAM_BLOCK : n;
    struct block_sum sum = {0};
    bool finite = true;

    for (size_t at = begin; at < begin + n; at += step) {
        const size_t now = size_smaller(step, begin + n - at);
        const char *const g = (const char *)call->gradient->g + at * each;
        if (call->sum)
            block_sum_gather(&sum, block_sum(call->kernel->blocks, g, now * each), at / TEAM_BLOCK);
        finite &= type == NUMBER_FP32 ? call->kernel->is_finite((const float *)(const void *)g, now)
                                      : call->kernel->halves[type].is_finite((const uint16_t *)(const void *)g, now);
    }
    if (!finite)
        note_not_finite(call);
    if (call->sum) {
        __atomic_fetch_xor(&call->sum->a, sum.a, __ATOMIC_RELAXED);
        __atomic_fetch_xor(&call->sum->b, sum.b, __ATOMIC_RELAXED);
    }
}

bool optimizer_is_finite(const struct optimizer_kernel *kernel, const void *g, enum number_type type, size_t n,
                         struct block_sum *sum)
{
    struct call call = {.kernel = kernel, .gradient = &(struct gradient){g, type, 1}, .sum = sum};

    if (sum)
        *sum = (struct block_sum){0};
    team_run(n, finite_range, &call);
    return !call.not_finite;
}

static void fold_range(void *data, size_t begin, size_t n)
{
    struct call *call = data;
    const unsigned old = call->sgd && call->first && call->constants.decay != 0 ? OLD_WEIGHTS : 0;
    struct scratch scratch;
    struct view view;

    for (size_t at = begin; at < begin + n; at += view.n) {
        check_block(&scratch, call, MOMENTS | GRADIENT | old, at, begin + n);
        view = open_view(&scratch, call, MOMENTS | GRADIENT | old, at, begin + n - at);
        if (call->sgd)
            call->kernel->sgd_fold(view.m, view.w, view.g, view.n, &call->constants, call->first);
        else
            call->kernel->fold(view.m, view.v, view.g, view.n, &call->constants, call->first);
        close_view(&scratch, call, MOMENTS, at, view.n);
        renew_block(&scratch, call, MOMENTS, at + view.n, begin + n);
    }
}

void optimizer_fold(const struct parameters *p, const struct gradient *g, const struct hyper *hp, bool first,
                    bool decays)
{
    struct call call = {.kernel = p->kernel,
                        .p = p,
                        .blocks = blocks_of(&p->blocks),
                        .gradient = g,
                        .sgd = hp->sgd,
                        .first = first,
                        .constants = constants_of(hp, 1, decays, 1)};

    assert(!hp->nesterov && moments_of(p));
    team_run(p->n, fold_range, &call);
}

static void update_range(void *data, size_t begin, size_t n)
{
    struct call *call = data;
    struct scratch scratch;
    struct view view;

    for (size_t at = begin; at < begin + n; at += view.n) {
        check_block(&scratch, call, WEIGHTS | MOMENTS, at, begin + n);
        view = open_view(&scratch, call, WEIGHTS | MOMENTS, at, begin + n - at);
        if (!(call->sgd ? call->kernel->sgd_update(view.new_w, view.w, view.m, view.n, &call->constants)
                        : call->kernel->update(view.new_w, view.w, view.m, view.v, view.n, &call->constants)))
            note_not_finite(call);
        close_view(&scratch, call, WEIGHTS, at, view.n);
        renew_block(&scratch, call, WEIGHTS, at + view.n, begin + n);
    }
    _mm_sfence();
}

bool optimizer_update(const struct parameters *p, const struct hyper *hp, uint64_t t, bool decays, double divisor)
{
    struct call call = {.kernel = p->kernel,
                        .p = p,
                        .blocks = blocks_of(&p->blocks),
                        .sgd = hp->sgd,
                        .constants = constants_of(hp, t, decays, divisor)};

    assert(!hp->nesterov && moments_of(p));
    team_run(p->n, update_range, &call);
    return !call.not_finite;
}

static void step_range(void *data, size_t begin, size_t n)
{
    struct call *call = data;
    const unsigned changed = WEIGHTS | moments_of(call->p);
    struct scratch scratch;
    struct view view;

    for (size_t at = begin; at < begin + n; at += view.n) {
        check_block(&scratch, call, changed | GRADIENT, at, begin + n);
        view = open_view(&scratch, call, changed | GRADIENT, at, begin + n - at);
        if (!(call->sgd ? call->kernel->sgd_step(view.new_w, view.w, view.m, view.g, view.n, &call->constants)
                        : call->kernel->step(view.new_w, view.w, view.m, view.v, view.g, view.n, &call->constants)))
            note_not_finite(call);
        close_view(&scratch, call, changed, at, view.n);
        renew_block(&scratch, call, changed, at + view.n, begin + n);
    }
    _mm_sfence();
}

bool optimizer_step(const struct parameters *p, const struct gradient *g, const struct hyper *hp, uint64_t t,
                    bool decays)
{
    struct call call = {.kernel = p->kernel,
                        .p = p,
                        .blocks = blocks_of(&p->blocks),
                        .gradient = g,
                        .sgd = hp->sgd,
                        .constants = constants_of(hp, t, decays, 1)};

    assert(moments_of(p) || (hp->sgd && hp->momentum == 0));
    team_run(p->n, step_range, &call);
    return !call.not_finite;
}

/* What is not finite stays so, where rounding would stop at the largest number. */
static void keep_infinite(uint16_t *half, const float *sum, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(sum[i]))
            half[i] = number_to_bf16(sum[i]);
}

static void sum_view(struct scratch *scratch, const struct call *call, const struct view *view, size_t at)
{
    const struct sums *const sums = call->sums;
    const struct optimizer_halves *const halves = &call->kernel->halves[NUMBER_BF16];
    float *const sum = sums->half ? scratch->w : sums->wide + at;

    if (sums->half && !call->first)
        halves->widen(sum, sums->half + at, view->n);
    call->kernel->sum(sum, view->g, view->n, call->first);
    if (!sums->half)
        return;
    halves->round(sums->half + at, sum, draw(scratch, call->kernel, sums->key, sums->part, sums->first + at, view->n),
                  view->n);
    if (!call->kernel->is_finite(sum, view->n))
        keep_infinite(sums->half + at, sum, view->n);
}

static void sum_range(void *data, size_t begin, size_t n)
{
    const struct call *call = data;
    struct scratch scratch;
    struct view view;

    for (size_t at = begin; at < begin + n; at += view.n) {
        check_block(&scratch, call, GRADIENT, at, begin + n);
        view = open_view(&scratch, call, GRADIENT, at, begin + n - at);
        sum_view(&scratch, call, &view, at);
        renew_block(&scratch, call, 0, at + view.n, begin + n);
    }
}

void optimizer_sum(const struct optimizer_kernel *kernel, const struct sums *sums, const struct gradient *g, size_t n,
                   bool first)
{
    struct call call = {
        .kernel = kernel, .sums = sums, .blocks = blocks_of(&sums->blocks), .gradient = g, .first = first};

    team_run(n, sum_range, &call);
}

/* ---- sums of squares -------------------------------------------------------------------------------------------- */

/* Ranges begin at whole blocks, so each block belongs to one thread. Its sum has the same order in every form. */
enum { PARTIALS = (MODEL_SLICE + TEAM_BLOCK - 1) / TEAM_BLOCK };

static double sum_of_blocks(size_t n, void (*range)(void *data, size_t begin, size_t n), struct call *call)
{
    double partial[PARTIALS], sum = 0;

    assert(n <= MODEL_SLICE);
    call->partial = partial;
    team_run(n, range, call);
    for (size_t i = 0; i * TEAM_BLOCK < n; i++)
        sum += partial[i];
    return sum;
}

static void squares_range(void *data, size_t begin, size_t n)
{
    const struct call *call = data;
    const enum number_type type = call->gradient->type;
    float wide[TEAM_BLOCK];

    for (size_t at = begin; at < begin + n; at += TEAM_BLOCK) {
        const size_t now = size_smaller(TEAM_BLOCK, begin + n - at);
        const float *g = (const float *)call->gradient->g + at;
        if (type != NUMBER_FP32) {
            call->kernel->halves[type].widen(wide, (const uint16_t *)call->gradient->g + at, now);
            g = wide;
        }
        call->partial[at / TEAM_BLOCK] = call->kernel->squares(g, now);
    }
}

double optimizer_squares(const struct optimizer_kernel *kernel, const void *g, enum number_type type, size_t n)
{
    struct call call = {.kernel = kernel, .gradient = &(struct gradient){g, type, 1}};

    return sum_of_blocks(n, squares_range, &call);
}

static void update_squares_range(void *data, size_t begin, size_t n)
{
    const struct call *call = data;
    struct scratch scratch;
    struct view view;

    for (size_t at = begin; at < begin + n; at += view.n) {
        double *sum = &call->partial[at / TEAM_BLOCK];
        view = open_view(&scratch, call, MOMENTS, at, size_smaller(BLOCK, begin + n - at));
        *sum = (at % TEAM_BLOCK ? *sum : 0) + call->kernel->update_squares(view.m, view.v, view.n, &call->constants);
    }
}

double optimizer_update_squares(const struct parameters *p, const struct hyper *hp, uint64_t t)
{
    struct call call = {.kernel = p->kernel, .p = p, .constants = constants_of(hp, t, false, 1)};
    const double correction = 1 - pow(hp->beta1, (double)t);

    assert(!hp->sgd);
    return sum_of_blocks(p->n, update_squares_range, &call) / (correction * correction);
}
