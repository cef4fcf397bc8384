/* Attention of a few tokens to those before them, whose keys and values are in a cache; against attention of the whole
 * row. */
#include "tests/kit/device/operation.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

SUITE_LABELS(single, slow, on_cuda_release)

static const float scale = 0.4f;
static const double tolerance = 40 * 0x1p-24; /* as in test_attention.c */

SUITE_FIXTURE(mirror_forget, NULL)

/* Positions kept room for, tokens before, tokens at once: one query alone, at both sides of a tile's end; a few that
 * cross it; more than a tile; a CUDA device has chunks of 128 positions, and 1 query or 4 a block. Windows that end
 * within a tile and with one, within a chunk and behind one, that are shorter than a call, and longer than all.
 * buckets: of a bias; T5's of 8 for 128 positions, whose last begins at 128 / 32^(1/4); few, of which the far ones
 * begin in other tiles and chunks than the query's; and of two directions, of which only keys before the query
 * matter. alibi: of a power of two heads, and of others. sinks: with all of these but a bias. */
static const struct device_buckets t5_of_8 = {8, false, {0, 1, 2, 3, 4, 10, 23, 54}},
                                   far_ones = {4, false, {0, 2, 130, 200}}, both_ways = {8, true, {0, 1, 5, 40}};

static const struct cached_shape {
    size_t n_positions, first, n, n_heads, n_kv_heads, head_width, window;
    const struct device_buckets *buckets;
    float cap;
    bool alibi, sinks;
} cached_shapes[] = {
    {1, 0, 1, 1, 1, 1, 0, NULL, 0, false, false},
    {9, 0, 9, 3, 3, 4, 0, NULL, 0, false, false},
    {9, 8, 1, 3, 3, 4, 0, NULL, 0, false, false},
    {70, 63, 1, 2, 2, 3, 0, NULL, 0, false, false},
    {70, 64, 1, 2, 2, 3, 0, NULL, 0, false, false},
    {90, 60, 10, 1, 1, 40, 0, NULL, 0, false, false},
    {200, 130, 1, 2, 2, 64, 0, NULL, 0, false, false},
    {150, 3, 64, 5, 5, 16, 0, NULL, 0, false, false},
    {300, 129, 70, 2, 2, 5, 0, NULL, 0, false, false},
    {128, 64, 64, 1, 1, 64, 0, NULL, 0, false, false},
    {256, 255, 1, 2, 2, 100, 0, NULL, 0, false, false},
    {300, 257, 6, 2, 2, 24, 0, NULL, 0, false, false},
    {9, 4, 5, 1, 1, 600, 0, NULL, 0, false, false},
    {8, 0, 5, 4, 2, 6, 0, NULL, 0, false, false},
    {133, 125, 5, 4, 2, 64, 0, NULL, 0, false, false},
    {99, 91, 5, 4, 1, 128, 0, NULL, 0, false, false},
    {9, 0, 9, 3, 3, 4, 2, NULL, 0, false, false},
    {70, 64, 1, 2, 2, 3, 1, NULL, 0, false, false},
    {90, 60, 10, 1, 1, 40, 5, NULL, 0, false, false},
    {200, 130, 1, 2, 2, 64, 67, NULL, 0, false, false},
    {300, 129, 70, 2, 2, 5, 65, NULL, 0, false, false},
    {300, 257, 6, 2, 2, 24, 3, NULL, 0, false, false},
    {300, 254, 6, 4, 2, 24, 130, NULL, 0, false, false},
    {300, 250, 9, 2, 1, 8, 128, NULL, 0, false, false},
    {400, 300, 70, 1, 1, 8, 20, NULL, 0, false, false},
    {80, 3, 64, 2, 1, 16, 99, NULL, 0, false, false},
    {1, 0, 1, 1, 1, 1, 0, &t5_of_8, 0, false, false},
    {9, 0, 9, 3, 3, 4, 0, &t5_of_8, 0, false, false},
    {70, 63, 1, 2, 2, 3, 0, &far_ones, 0, false, false},
    {70, 64, 1, 2, 2, 3, 0, &t5_of_8, 0, false, false},
    {90, 60, 10, 3, 3, 40, 0, &both_ways, 0, false, false},
    {200, 130, 1, 2, 2, 64, 0, &t5_of_8, 0, false, false},
    {150, 3, 64, 5, 5, 16, 0, &t5_of_8, 0, false, false},
    {300, 129, 70, 2, 2, 5, 0, &t5_of_8, 0, false, false},
    {300, 257, 6, 2, 2, 24, 0, &far_ones, 0, false, false},
    {300, 257, 1, 3, 3, 20, 0, &far_ones, 0, false, false},
    {9, 4, 5, 1, 1, 600, 0, &both_ways, 0, false, false},
    {300, 254, 6, 2, 2, 24, 130, &far_ones, 0, false, false},
    {300, 129, 70, 2, 2, 5, 65, &t5_of_8, 0, false, false},
    {9, 8, 1, 3, 3, 4, 0, NULL, 0.5f, false, false},
    {200, 130, 1, 2, 2, 64, 0, NULL, 2, false, false},
    {300, 254, 6, 4, 2, 24, 130, NULL, 2, false, false},
    {9, 0, 9, 3, 3, 4, 0, NULL, 0, true, false},
    {70, 64, 1, 1, 1, 3, 0, NULL, 0, true, false},
    {300, 129, 70, 6, 2, 5, 65, NULL, 0, true, false},
    {300, 257, 6, 4, 4, 24, 0, NULL, 0, true, false},
    {200, 130, 1, 7, 7, 64, 0, NULL, 0, true, false},
    {1, 0, 1, 1, 1, 1, 0, NULL, 0, .sinks = true},
    {9, 0, 9, 3, 3, 4, 2, NULL, 0, .sinks = true},
    {90, 60, 10, 6, 2, 40, 5, NULL, 0, .sinks = true},
    {200, 130, 1, 4, 2, 64, 67, NULL, 0, .sinks = true},
    {300, 129, 70, 2, 2, 5, 0, NULL, 0, .sinks = true},
    {300, 257, 6, 2, 1, 24, 0, NULL, 2, .sinks = true},
    {300, 257, 1, 3, 3, 20, 0, NULL, 0, true, .sinks = true},
};
enum { N_CACHED = COUNT(cached_shapes) * NUMBER_TYPES };

struct cached {
    struct cached_shape shape;
    struct call_test row; /* of all tokens */
    size_t width, stride;
    size_t each; /* tokens of a call before those that are looked at */
};

static void run_cached(struct mirror *at, void *const out[], const void *context)
{
    const struct cached *t = context;
    const struct cached_shape *s = &t->shape;
    const enum number_type type = t->row.type;
    const size_t kv_width = s->n_kv_heads * s->head_width, width = t->width;
    const size_t before_n = s->first < t->each ? s->first : t->each, most = s->n > before_n ? s->n : before_n;
    const struct plan_attention_sizes sizes = {
        .n_rows = 1, .n_tokens = most, .n_heads = s->n_heads, .n_kv_heads = s->n_kv_heads, .width = width};
    char *before = mirror_scratch(at, (s->first + 1) * width * number_bytes(type));
    struct device_attention_cached op = {.n_heads = s->n_heads,
                                         .width = width,
                                         .n_kv_heads = s->n_kv_heads,
                                         .window = s->window,
                                         .n_positions = s->n_positions,
                                         .scale = scale,
                                         .cap = s->cap,
                                         .alibi = s->alibi,
                                         .bias = s->buckets ? mirror_of(at, t->row.host.attention.bias) : NULL,
                                         .buckets = t->row.host.attention.buckets,
                                         .sinks = s->sinks ? mirror_of(at, t->row.host.attention.sinks) : NULL,
                                         .cache = mirror_scratch(at, at->plan->cache_bytes(type, s->n_positions,
                                                                                           s->n_kv_heads, kv_width)),
                                         .scratch = mirror_scratch(at, at->plan->scratch_bytes(&sizes, at->n_threads))};

    for (; op.first < s->first + s->n; op.first += op.n_tokens) {
        const bool is_before = op.first < s->first;
        const size_t left = (is_before ? s->first : s->first + s->n) - op.first;
        op.n_tokens = is_before && left > t->each ? t->each : left;
        op.qkv = mirror_of(at, device_element(type, t->row.host.attention.qkv, op.first * t->stride));
        op.out = is_before ? before + op.first * width * number_bytes(type) : out[0];
        at->ops->attention_cached(at->dev, &op);
    }
}

static void make_cached(struct cached *t, const struct cached_shape *s, int type)
{
    static const struct device_buckets none = {0};

    *t = (struct cached){.shape = *s,
                         .row = {.type = (enum number_type)type,
                                 .call = {.kind = CALL_attention,
                                          .attention = {.n_rows = 1,
                                                        .n_tokens = s->first + s->n,
                                                        .n_heads = s->n_heads,
                                                        .width = s->n_heads * s->head_width,
                                                        .n_kv_heads = s->n_kv_heads,
                                                        .window = s->window,
                                                        .bias = s->buckets ? (void *)call_given : NULL,
                                                        .buckets = s->buckets ? *s->buckets : none,
                                                        .scale = scale,
                                                        .cap = s->cap,
                                                        .alibi = s->alibi,
                                                        .sinks = s->sinks ? call_given : NULL}}},
                         .width = s->n_heads * s->head_width,
                         .stride = (s->n_heads + 2 * s->n_kv_heads) * s->head_width,
                         .each = 5};
    call_make(&t->row);
}

/* Makes case i of N_CACHED, if n_calls more of one token each suit. */
static bool draw_cached(struct cached *t, int i, size_t n_calls)
{
    const struct cached_shape *s = &cached_shapes[i / NUMBER_TYPES];
    const size_t n = s->first + s->n;

    if (!backend_suits(2 * (double)((n_calls + 1) * n * n * s->n_heads * s->head_width)))
        return false;
    make_cached(t, s, i % NUMBER_TYPES);
    return true;
}

/* Values of 16 bits are not rounded again in the cache; heads of width 100 make scores a little larger. */
TEST_EACH(cached_attention_is_the_formula, N_CACHED)
{
    const double *expected[CALL_ARRAYS];
    struct cached t;

    if (!draw_cached(&t, _i, 0))
        TEST_SKIP("too slow here, or of another device: other tests have it");
    call_expect(&t.row, expected);
    const double *want = expected[call_find(&t.row, "out") - t.row.work.arrays];
    operation_check(&(struct operation){.type = t.row.type,
                                        .run = run_cached,
                                        .context = &t,
                                        .parts = {{"out", t.shape.n * t.width, want + t.shape.first * t.width,
                                                   1.5 * tolerance, NULL, CALL_VALUES}}});
}

/* However tokens came to the cache, and each query of a call by itself (some, under a sanitizer). */
TEST_EACH(how_tokens_and_queries_come_changes_no_bit, N_CACHED)
{
    static const size_t each[] = {1, 63, 64, 65, 1000};
    const struct cached_shape *s = &cached_shapes[_i / NUMBER_TYPES];
    struct cached t;

    if (!draw_cached(&t, _i, (s->first > s->n ? s->first : s->n) / 8))
        TEST_SKIP("too slow here, or of another device: other tests have it");
    const enum number_type type = t.row.type;
    const size_t n = s->n * t.width;
    struct operation operation = {.type = type, .run = run_cached, .context = &t, .parts = {{.n = n}}};
    void *first = operation_room(type, n), *again = operation_room(type, n), *one = operation_room(type, t.width);
    operation_run(&operation, &first);
    for (int i = 0; i < COUNT(each); i++) {
        t.each = each[i];
        operation_run(&operation, &again);
        ck_assert_mem_eq(first, again, n * number_bytes(type));
    }
    operation.parts[0].n = t.width, t.shape.n = 1, t.each = 5;
    for (size_t i = 0; i < s->n; i += SANITIZED ? 9 : 1, t.shape.first += SANITIZED ? 9 : 1) {
        operation_run(&operation, &one);
        ck_assert_mem_eq(one, device_element(type, first, i * t.width), t.width * number_bytes(type));
    }
}

/* A NaN in one key reaches the output of every query that sees it, so that the loss shows it, and no other; from a
 * cache too. */
TEST_EACH(attention_passes_nan_on, 4 * COMMON_TYPES)
{
    enum { TOKENS = 130, AT = 70, WINDOW = 40 };
    const size_t window = _i / COMMON_TYPES / 2 ? WINDOW : 0;
    const struct cached_shape shape = {TOKENS, 0, TOKENS, 2, 2, 10, window, NULL, 0, false, false};
    struct cached t;

    make_cached(&t, &shape, _i % COMMON_TYPES);
    struct call_test *row = &t.row;
    void *out = operation_room(row->type, TOKENS * t.width);
    operation_set(row->type, (void *)(uintptr_t)row->host.attention.qkv, AT * t.stride + t.width,
                  NAN); /* a key's first */
    if (_i / COMMON_TYPES % 2)
        operation_run(&(struct operation){.type = row->type,
                                          .run = run_cached,
                                          .context = &t,
                                          .parts = {{.n = TOKENS * t.width}}},
                      &out);
    else
        call_once(row), out = row->host.attention.out;
    for (size_t query = 0; query < TOKENS; query++)
        ck_assert_int_eq(isnan(operation_get(row->type, out, query * t.width)),
                         query >= AT && (window == 0 || query < AT + window));
}
