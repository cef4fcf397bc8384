/* Attention over kept keys and values against attention by the formula over the whole row. */
#include "tests/kit/device/operation.h"
#include "tests/kit/device/reference.h"
#include "tests/kit/test.h"

#include <math.h>

SUITE_LABELS(single, on_cuda)

/* Positions kept room for, tokens before, tokens at once; heads and width: one query alone, at both sides of a tile's
 * end; a few that cross it; more than a tile; head widths of 1, of no multiple of any vector, and over 64. */
static const struct shape {
    size_t n_positions, first, n, n_heads, width;
} shapes[] = {
    {1, 0, 1, 1, 1},       {9, 0, 9, 3, 12},    {9, 8, 1, 3, 12},      {70, 63, 1, 2, 6},     {70, 64, 1, 2, 6},
    {70, 65, 1, 5, 35},    {90, 60, 10, 1, 40}, {200, 130, 1, 2, 128}, {200, 0, 200, 3, 75},  {150, 3, 64, 5, 80},
    {300, 129, 70, 2, 10}, {64, 0, 64, 1, 64},  {128, 64, 64, 1, 64},  {256, 255, 1, 2, 200}, {256, 17, 200, 1, 100},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_CASES = N_SHAPES * NUMBER_TYPES };

/* A row of shape->first + shape->n tokens, and what the reference makes of the last shape->n. */
struct row {
    const struct shape *shape;
    enum number_type type;
    size_t n_out, n_before; /* elements of the tokens' outputs, and of those before them */
    void *qkv;
    double *want;
    size_t each; /* tokens of a call before the one that is looked at */
};

static void set_up(struct row *t, const struct shape *s, enum number_type type)
{
    const size_t tokens = s->first + s->n, n = tokens * s->width;
    const struct reference_attention op = {1, tokens, s->n_heads, s->width, (double)0.4f, NULL, NULL};
    double *sum = operation_zeros(s->n_heads * tokens);

    *t = (struct row){.shape = s, .type = type, .n_out = s->n * s->width, .n_before = s->first * s->width, .each = 5};
    t->qkv = operation_values(type, 3 * n, 1);
    t->want = operation_zeros(n);
    double *qkv = operation_widen(type, t->qkv, 3 * n);
    reference_attention(t->want, sum, qkv, &op);
}

/* What lies on the device while a row is run: before what is looked at, tokens go through `out`. */
struct there {
    void *cache, *scratch, *out;
};

/* Tokens first .. first+n-1. */
static void attend(struct mirror *at, const struct row *t, const struct there *there, size_t first, size_t n)
{
    const struct shape *s = t->shape;
    const struct device_attention_cached op = {
        .first = first,
        .n_tokens = n,
        .n_heads = s->n_heads,
        .width = s->width,
        .n_positions = s->n_positions,
        .scale = 0.4f,
        .qkv = mirror_of(at, device_element(t->type, t->qkv, first * 3 * s->width)),
        .out = there->out,
        .cache = there->cache,
        .scratch = there->scratch,
    };

    at->ops->attention_cached(at->dev, &op);
}

static void run(struct mirror *at, void *const out[], const void *context)
{
    const struct row *t = context;
    const struct shape *s = t->shape;
    const size_t before_n = s->first < t->each ? s->first : t->each; /* tokens of a call */
    const size_t most = s->n > before_n ? s->n : before_n;
    const struct there end = {mirror_scratch(at, at->plan->cache_bytes(t->type, s->n_positions, s->n_heads, s->width)),
                              mirror_scratch(at, at->plan->scratch_bytes(1, most, s->n_heads, s->n_heads, s->width,
                                                                         at->n_threads)),
                              out[0]};
    struct there before = end;

    before.out = mirror_scratch(at, t->n_before * number_bytes(t->type));
    for (size_t first = 0; first < s->first; first += t->each)
        attend(at, t, &before, first, s->first - first < t->each ? s->first - first : t->each);
    attend(at, t, &end, s->first, s->n);
}

/* As for attention at once, tests/device/test_attention.c; heads of width 100 make scores a little larger. */
static const double tolerance = 60 * 0x1p-24;

/* n_calls: of one token each. */
static bool suits(const struct shape *s, size_t n_calls)
{
    const size_t n = s->first + s->n;

    return backend_suits(4 * (double)((n_calls + 1) * n * n * s->width));
}

SUITE_FIXTURE(mirror_forget, NULL)

TEST_EACH(cached_attention_is_the_formula, N_CASES)
{
    struct row t;

    if (!suits(&shapes[_i / NUMBER_TYPES], 1))
        return;
    set_up(&t, &shapes[_i / NUMBER_TYPES], (enum number_type)(_i % NUMBER_TYPES));
    operation_check(
        &(struct operation){.type = t.type,
                            .run = run,
                            .context = &t,
                            .parts = {{"out", t.n_out, t.want + t.n_before, tolerance, NULL, OPERATION_VALUES}}});
}

TEST_EACH(how_tokens_came_to_the_cache_changes_no_bit, N_CASES)
{
    static const size_t each[] = {1, 63, 64, 65, 1000};
    struct row t;
    struct operation operation = {.run = run, .context = &t};

    if (!suits(&shapes[_i / NUMBER_TYPES], shapes[_i / NUMBER_TYPES].first / 8))
        return;
    set_up(&t, &shapes[_i / NUMBER_TYPES], (enum number_type)(_i % NUMBER_TYPES));
    void *first = operation_room(t.type, t.n_out), *again = operation_room(t.type, t.n_out);
    operation.type = t.type;
    operation.parts[0].n = t.n_out;
    operation_run(&operation, &first);
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        t.each = each[i];
        operation_run(&operation, &again);
        ck_assert_mem_eq(first, again, t.n_out * number_bytes(t.type));
    }
}

/* Each query of a call by itself; some, under a sanitizer. */
TEST_EACH(queries_of_a_call_are_as_one_by_one, N_CASES)
{
    const struct shape *s = &shapes[_i / NUMBER_TYPES];
    struct row t;
    struct operation operation = {.run = run, .context = &t};

    if (!suits(s, s->n / 8))
        return;
    set_up(&t, s, (enum number_type)(_i % NUMBER_TYPES));
    void *all = operation_room(t.type, t.n_out), *one = operation_room(t.type, s->width);
    operation.type = t.type;
    operation.parts[0].n = t.n_out;
    operation_run(&operation, &all);
    for (size_t i = 0; i < s->n; i += SANITIZED ? 9 : 1) {
        const struct shape alone = {s->n_positions, s->first + i, 1, s->n_heads, s->width};
        t.shape = &alone;
        t.n_before = alone.first * s->width;
        operation.parts[0].n = s->width;
        operation_run(&operation, &one);
        ck_assert_mem_eq(one, device_element(t.type, all, i * s->width), s->width * number_bytes(t.type));
    }
}

/* A NaN in one key reaches every later query's output, and no earlier one's. */
TEST_EACH(cached_attention_passes_nan_on, NUMBER_TYPES)
{
    const struct shape s = {130, 0, 130, 2, 20};
    struct row t;
    struct operation operation = {.type = (enum number_type)_i, .run = run, .context = &t};

    set_up(&t, &s, operation.type);
    void *out = operation_room(t.type, t.n_out);
    operation.parts[0].n = t.n_out;
    operation_set(t.type, t.qkv, 70 * 3 * s.width + s.width, NAN); /* key 70, head 0 */
    operation_run(&operation, &out);
    for (size_t query = 0; query < s.n; query++)
        ck_assert_int_eq(isnan(operation_get(t.type, out, query * s.width)), query >= 70);
}
