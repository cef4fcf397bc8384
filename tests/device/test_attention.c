/* Attention in tiles against attention by the formula: causal and to all keys, heads that share keys and values. */
#include "tests/kit/device/operation.h"
#include "tests/kit/device/reference.h"
#include "tests/kit/test.h"

#include <math.h>

SUITE_LABELS(single, on_cuda_release, on_cudnn)

/* Sequences of 1, of less than a tile, of exactly one, and ending anywhere in the third; head widths of 1, of no multiple of
 * any vector, and over 64. A CUDA device's tensor cores take heads of 64 and 128, in tiles of 128 queries and 64 keys (32
 * with dropout) forward, of 64 and 64 backward. Heads in groups of 2, of all and of one. length: of the last row, those
 * before it are whole; 0: no lengths. */
static const struct shape {
    size_t n_rows, n_tokens, n_heads, n_kv_heads, head_width;
    bool full;
    size_t length;
    float p;
    bool is_prepared; /* a CUDA device computes it through cuDNN, where that is found and can */
} shapes[] = {
    {1, 1, 1, 1, 1, .p = 0},
    {2, 1, 3, 3, 8, .p = 0.5f},
    {1, 5, 2, 2, 3, .p = 0},
    {2, 17, 1, 1, 40, .p = 0.1f},
    {2, 65, 3, 3, 25, .p = 0},
    {1, 130, 2, 2, 80, .p = 0.2f},
    {1, 191, 1, 1, 100, .p = 0},
    {1, 67, 2, 2, 7, .p = 0.3f},
    {1, 256, 1, 1, 64, .p = 0},
    {1, 128, 2, 2, 8, .is_prepared = true},
    {2, 384, 1, 1, 64, .is_prepared = true},
    {2, 3, 2, 2, 64, .p = 0.5f},
    {1, 130, 1, 1, 64, .p = 0},
    {1, 65, 1, 1, 128, .p = 0},
    {1, 35, 1, 1, 128, .p = 0.2f},
    {1, 66, 1, 1, 64, .p = 0.1f},
    {1, 3, 1, 1, 257, .p = 0},
    {1, 5, 4, 2, 6, .p = 0},
    {2, 65, 3, 1, 24, .p = 0},
    {1, 130, 4, 2, 64, .p = 0.2f},
    {1, 96, 4, 1, 128, .p = 0},
    {1, 1, 1, 1, 1, .full = true},
    {2, 17, 2, 2, 40, .full = true, .p = 0.1f},
    {1, 64, 2, 2, 64, .full = true},
    {1, 150, 2, 2, 16, .full = true},
    {3, 20, 2, 2, 8, .full = true, .length = 7},
    {2, 140, 1, 1, 32, .full = true, .length = 60},
    {2, 130, 4, 2, 20, .full = true, .length = 64},
    {2, 70, 6, 3, 64, .full = true, .length = 1, .p = 0.3f},
};
enum { N_CASES = COUNT(shapes) * NUMBER_TYPES, FIRST_ROW = 5 };

static const struct random_key key = {{11, 22}};
static const float scale = 0.4f;

/* One shape's inputs and what the reference makes of them. */
struct attention {
    const struct shape *shape;
    enum number_type type;
    size_t width, stride, n_out, n_qkv, n_sum;
    size_t n_rows, first_row; /* of a call */
    void *qkv, *out, *dy;     /* out: the reference's, rounded */
    uint32_t *lengths;
    double *want_out, *want_sum, *want_gradient;
};

static void set_up(struct attention *t, const struct shape *s, enum number_type type)
{
    const size_t width = s->n_heads * s->head_width, stride = width + 2 * s->n_kv_heads * s->head_width;
    const size_t tokens = s->n_rows * s->n_tokens, n_sum = tokens * s->n_heads;

    *t = (struct attention){s,      type,           width,
                            stride, tokens * width, tokens * stride,
                            n_sum,  s->n_rows,      .first_row = FIRST_ROW};
    t->qkv = operation_values(type, t->n_qkv, 1), t->dy = operation_values(type, t->n_out, 2);
    t->out = operation_room(type, t->n_out);
    t->want_out = operation_zeros(t->n_out), t->want_sum = operation_zeros(n_sum);
    t->want_gradient = operation_zeros(t->n_qkv);
    t->lengths = s->length ? mirror_array(s->n_rows, sizeof *t->lengths) : NULL;
    for (size_t row = 0; row < s->n_rows && s->length; row++)
        t->lengths[row] = (uint32_t)(row + 1 < s->n_rows ? s->n_tokens : s->length);

    double *factors = operation_zeros(n_sum * s->n_tokens), *qkv = operation_widen(type, t->qkv, t->n_qkv);
    const size_t row = s->n_heads * s->n_tokens * s->n_tokens;
    for (size_t i = 0; i < n_sum * s->n_tokens; i++)
        factors[i] = reference_dropout(s->p, key, FIRST_ROW + i / row, i % row);
    struct reference_attention op = {.n_rows = s->n_rows,
                                     .n_tokens = s->n_tokens,
                                     .n_heads = s->n_heads,
                                     .width = width,
                                     .n_kv_heads = s->n_kv_heads,
                                     .full = s->full,
                                     .lengths = t->lengths,
                                     .scale = (double)scale,
                                     .factors = factors};
    reference_attention(t->want_out, t->want_sum, qkv, &op);
    for (size_t i = 0; i < t->n_out; i++)
        operation_set(type, t->out, i, (float)t->want_out[i]);
    op.out = operation_widen(type, t->out, t->n_out);
    reference_attention_backward(t->want_gradient, operation_widen(type, t->dy, t->n_out), qkv, &op);
}

static size_t scratch_bytes(const struct mirror *at, const struct attention *t)
{
    const struct shape *s = t->shape;
    struct plan_attention_scratch scratch;

    plan_attention_lay_out(&scratch, backend_get()->attention, s->n_rows, s->n_tokens, s->n_heads, t->width);
    return s->is_prepared && scratch.way != PLAN_ATTENTION_OWN
               ? scratch.bytes
               : at->plan->scratch_bytes(t->n_rows, s->n_tokens, s->n_heads, s->n_kv_heads, t->width, at->n_threads);
}

/* The inputs on the device; scratch that holds NaNs before, and not a byte more than asked for. */
static struct device_attention place(struct mirror *at, const struct attention *t)
{
    const struct shape *s = t->shape;

    return (struct device_attention){.n_rows = t->n_rows,
                                     .n_tokens = s->n_tokens,
                                     .n_heads = s->n_heads,
                                     .width = t->width,
                                     .n_kv_heads = s->n_kv_heads,
                                     .full = s->full,
                                     .lengths = mirror_of(at, t->lengths),
                                     .scale = scale,
                                     .qkv = mirror_of(at, t->qkv),
                                     .out_gradient = mirror_of(at, t->dy),
                                     .scratch = mirror_scratch(at, scratch_bytes(at, t)),
                                     .dropout = {s->p, key, t->first_row}};
}

static void prepare(struct mirror *at, const struct attention *t, const struct device_attention *op)
{
    char told[DEVICE_TOLD];

    if (t->shape->is_prepared)
        at->ops->prepare_attention(at->dev, op, backend_get()->attention, told);
}

static void run_forward(struct mirror *at, void *const out[], const void *context)
{
    struct device_attention op = place(at, context);

    op.out = out[0], op.log_sum_exp = out[1];
    prepare(at, context, &op);
    at->ops->attention(at->dev, &op);
}

static struct device_attention run_own_forward(struct mirror *at, void *gradient, const struct attention *t)
{
    struct device_attention op = place(at, t);

    op.out = mirror_scratch(at, t->n_out * number_bytes(t->type));
    op.log_sum_exp = mirror_scratch(at, t->n_sum * sizeof(float));
    op.qkv_gradient = gradient;
    prepare(at, t, &op);
    at->ops->attention(at->dev, &op);
    return op;
}

/* From the log-sum-exp of the device's own forward pass, of whose rounding backward makes up for its own, and the
 * output of the reference's, rounded: a device's might be on the other side of a tie. */
static void run_backward(struct mirror *at, void *const out[], const void *context)
{
    const struct attention *t = context;
    struct device_attention op = run_own_forward(at, out[0], t);

    op.out = mirror_of(at, t->out);
    at->ops->attention_backward(at->dev, &op);
}

static void run_both(struct mirror *at, void *const out[], const void *context)
{
    struct device_attention op = run_own_forward(at, out[0], context);

    op.scratch = mirror_scratch(at, scratch_bytes(at, context));
    at->ops->attention_backward(at->dev, &op);
}

/* Sums of a few hundred terms of size 1 in fp32, in blocks: a few times 2^-24; scores of up to 0.4 * 4 * sqrt(width),
 * whose own rounding the exponential passes on, make it a few more. */
static const double tolerance = 40 * 0x1p-24;

/* Where the values are bf16, a CUDA device's matrix units are given probabilities, and in backward gradients of scores,
 * rounded to bf16 too: each by up to 2^-8 of itself, either way, and a sum of them by less than that of the largest. */
static double near(const struct attention *t)
{
    return backend_get()->cuda && t->type == NUMBER_BF16 ? 0x1p-8 : tolerance;
}

/* Where cuDNN is found, what it has no part in is left to the run without it. */
static bool is_left_out(void)
{
    return backend_get()->attention != PLAN_ATTENTION_OWN;
}

/* Sets up case i of N_CASES, if it suits. */
static bool draw(struct attention *t, int i)
{
    const struct shape *s = &shapes[i / NUMBER_TYPES];

    if ((!s->is_prepared && is_left_out()) ||
        !backend_suits(0.7 * (double)(s->n_rows * s->n_tokens * s->n_tokens * s->n_heads * s->head_width)))
        return false;
    set_up(t, s, (enum number_type)(i % NUMBER_TYPES));
    return true;
}

SUITE_FIXTURE(mirror_forget, NULL)

TEST_EACH(attention_is_the_formula, N_CASES)
{
    struct attention t;

    if (draw(&t, _i))
        operation_check(
            &(struct operation){.type = t.type,
                                .run = run_forward,
                                .context = &t,
                                .parts = {{"out", t.n_out, t.want_out, near(&t), NULL, OPERATION_VALUES},
                                          {"log_sum_exp", t.n_sum, t.want_sum, tolerance, .type = OPERATION_FP32}}});
}

/* Half as much again: the output is not the device's own, whose error would cancel some of the probabilities'. */
TEST_EACH(attention_backward_is_the_formula, N_CASES)
{
    struct attention t;

    if (draw(&t, _i))
        operation_check(&(struct operation){.type = t.type,
                                            .run = run_backward,
                                            .context = &t,
                                            .parts = {{"qkv_gradient", t.n_qkv, t.want_gradient, 1.5 * near(&t), NULL,
                                                       OPERATION_VALUES}}});
}

/* A row computed by itself, at its place in the minibatch, equals the same row among others: by our own kernels, as a
 * library may divide its work as it likes. */
TEST_EACH(attention_of_a_row_does_not_depend_on_the_others, N_CASES)
{
    struct attention t;
    const struct shape *s = &shapes[_i / NUMBER_TYPES];

    if (s->n_rows == 1 || s->is_prepared || !draw(&t, _i))
        return;
    struct operation run = {.type = t.type, .run = run_both, .context = &t, .parts = {{.n = t.n_qkv}}};
    const size_t last = s->n_rows - 1, row = t.n_qkv / s->n_rows;
    void *all = operation_room(t.type, t.n_qkv), *alone = operation_room(t.type, row);
    operation_run(&run, &all);
    t.n_rows = 1, t.first_row += last;
    t.qkv = device_element(t.type, t.qkv, last * row);
    t.dy = device_element(t.type, t.dy, last * t.n_out / s->n_rows);
    t.lengths = t.lengths ? t.lengths + last : NULL;
    run.parts[0].n = row;
    operation_run(&run, &alone);
    ck_assert_mem_eq(alone, device_element(t.type, all, last * row), row * number_bytes(t.type));
}

/* Scores of 1000 and -1000 would overflow an exponential that is not taken relative to the largest. */
TEST_EACH(attention_holds_large_scores, NUMBER_TYPES)
{
    static const float values[] = {1, 2500, 3, 1, -2500, 5};
    static const struct shape s = {1, 2, 1, 1, 1, .p = 0};
    struct attention t;

    set_up(&t, &s, (enum number_type)_i);
    for (size_t i = 0; i < 6; i++)
        operation_set(t.type, t.qkv, i, values[i]);
    const double out[] = {3, 3}, first = (double)number_from_bf16(number_to_bf16(2500)) * (double)scale;
    const double sums[] = {_i == NUMBER_BF16 ? first : 1000, _i == NUMBER_BF16 ? first : 1000};
    operation_check(&(struct operation){.type = t.type,
                                        .run = run_forward,
                                        .context = &t,
                                        .parts = {{"out", 2, out, 0, NULL, OPERATION_VALUES},
                                                  {"log_sum_exp", 2, sums, 0x1p-23, .type = OPERATION_FP32}}});
}

/* ---- from a cache of keys and values ---- */

/* Positions kept room for, tokens before, tokens at once: one query alone, at both sides of a tile's end; a few that cross
 * it; more than a tile; a CUDA device has chunks of 128 positions, and 1 query or 4 a block. */
static const struct cached_shape {
    size_t n_positions, first, n, n_heads, n_kv_heads, head_width;
} cached_shapes[] = {
    {1, 0, 1, 1, 1, 1},        {9, 0, 9, 3, 3, 4},      {9, 8, 1, 3, 3, 4},      {70, 63, 1, 2, 2, 3},
    {70, 64, 1, 2, 2, 3},      {70, 65, 1, 5, 5, 7},    {90, 60, 10, 1, 1, 40},  {200, 130, 1, 2, 2, 64},
    {150, 3, 64, 5, 5, 16},    {300, 129, 70, 2, 2, 5}, {128, 64, 64, 1, 1, 64}, {256, 255, 1, 2, 2, 100},
    {256, 17, 200, 1, 1, 100}, {300, 257, 6, 2, 2, 24}, {140, 125, 7, 3, 3, 3},  {9, 4, 5, 1, 1, 600},
    {8, 0, 5, 4, 2, 6},        {133, 125, 5, 4, 2, 64}, {99, 91, 5, 4, 1, 128},
};
enum { N_CACHED = COUNT(cached_shapes) * NUMBER_TYPES };

struct cached {
    struct cached_shape shape;
    struct shape whole;
    struct attention row; /* of all tokens */
    size_t each;          /* tokens of a call before those that are looked at */
};

static void run_cached(struct mirror *at, void *const out[], const void *context)
{
    const struct cached *t = context;
    const struct cached_shape *s = &t->shape;
    const size_t kv_width = s->n_kv_heads * s->head_width, width = t->row.width;
    const size_t before_n = s->first < t->each ? s->first : t->each, most = s->n > before_n ? s->n : before_n;
    char *before = mirror_scratch(at, (s->first + 1) * width * number_bytes(t->row.type));
    struct device_attention_cached op = {
        .n_heads = s->n_heads,
        .width = width,
        .n_kv_heads = s->n_kv_heads,
        .n_positions = s->n_positions,
        .scale = scale,
        .cache = mirror_scratch(at, at->plan->cache_bytes(t->row.type, s->n_positions, s->n_kv_heads, kv_width)),
        .scratch =
            mirror_scratch(at, at->plan->scratch_bytes(1, most, s->n_heads, s->n_kv_heads, width, at->n_threads))};

    for (; op.first < s->first + s->n; op.first += op.n_tokens) {
        const bool is_before = op.first < s->first;
        const size_t left = (is_before ? s->first : s->first + s->n) - op.first;
        op.n_tokens = is_before && left > t->each ? t->each : left;
        op.qkv = mirror_of(at, device_element(t->row.type, t->row.qkv, op.first * t->row.stride));
        op.out = is_before ? before + op.first * width * number_bytes(t->row.type) : out[0];
        at->ops->attention_cached(at->dev, &op);
    }
}

/* Sets up case i of N_CACHED, if n_calls more of one token each suit. */
static bool draw_cached(struct cached *t, int i, size_t n_calls)
{
    const struct cached_shape *s = &cached_shapes[i / NUMBER_TYPES];
    const size_t n = s->first + s->n;

    if (is_left_out() || !backend_suits(2 * (double)((n_calls + 1) * n * n * s->n_heads * s->head_width)))
        return false;
    *t = (struct cached){.shape = *s, .whole = {1, n, s->n_heads, s->n_kv_heads, s->head_width, .p = 0}, .each = 5};
    set_up(&t->row, &t->whole, (enum number_type)(i % NUMBER_TYPES));
    return true;
}

/* Values that are bf16 are not rounded again in the cache; heads of width 100 make scores a little larger. */
TEST_EACH(cached_attention_is_the_formula, N_CACHED)
{
    struct cached t;

    if (!draw_cached(&t, _i, 0))
        return;
    const size_t width = t.row.width;
    operation_check(&(struct operation){.type = t.row.type,
                                        .run = run_cached,
                                        .context = &t,
                                        .parts = {{"out", t.shape.n * width, t.row.want_out + t.shape.first * width,
                                                   1.5 * tolerance, NULL, OPERATION_VALUES}}});
}

TEST_EACH(how_tokens_came_to_the_cache_changes_no_bit, N_CACHED)
{
    static const size_t each[] = {1, 63, 64, 65, 1000};
    struct cached t;

    if (!draw_cached(&t, _i, cached_shapes[_i / NUMBER_TYPES].first / 8))
        return;
    const size_t n = t.shape.n * t.row.width;
    struct operation operation = {.type = t.row.type, .run = run_cached, .context = &t, .parts = {{.n = n}}};
    void *first = operation_room(t.row.type, n), *again = operation_room(t.row.type, n);
    operation_run(&operation, &first);
    for (int i = 0; i < COUNT(each); i++) {
        t.each = each[i];
        operation_run(&operation, &again);
        ck_assert_mem_eq(first, again, n * number_bytes(t.row.type));
    }
}

/* Each query of a call by itself; some, under a sanitizer. */
TEST_EACH(queries_of_a_call_are_as_one_by_one, N_CACHED)
{
    struct cached t;

    if (!draw_cached(&t, _i, cached_shapes[_i / NUMBER_TYPES].n / 8))
        return;
    const size_t width = t.row.width, n = t.shape.n;
    struct operation operation = {.type = t.row.type, .run = run_cached, .context = &t, .parts = {{.n = n * width}}};
    void *all = operation_room(t.row.type, n * width), *one = operation_room(t.row.type, width);
    operation_run(&operation, &all);
    operation.parts[0].n = width, t.shape.n = 1;
    for (size_t i = 0; i < n; i += SANITIZED ? 9 : 1) {
        operation_run(&operation, &one);
        ck_assert_mem_eq(one, device_element(t.row.type, all, i * width), width * number_bytes(t.row.type));
        t.shape.first += SANITIZED ? 9 : 1;
    }
}

/* A NaN in one key reaches every later query's output, so that the loss shows it, and no earlier one's; from a cache too. */
TEST_EACH(attention_passes_nan_on, 2 * NUMBER_TYPES)
{
    enum { TOKENS = 130, AT = 70 };
    struct cached t = {.shape = {TOKENS, 0, TOKENS, 2, 2, 10}, .whole = {1, TOKENS, 2, 2, 10, .p = 0}, .each = 5};
    struct attention *row = &t.row;
    const bool is_cached = _i / NUMBER_TYPES;

    set_up(row, &t.whole, (enum number_type)(_i % NUMBER_TYPES));
    void *out = operation_room(row->type, row->n_out), *sums = operation_room(NUMBER_FP32, row->n_sum);
    operation_set(row->type, row->qkv, AT * row->stride + row->width, NAN); /* the key's first number, head 0 */
    operation_run(&(struct operation){.type = row->type,
                                      .run = is_cached ? run_cached : run_forward,
                                      .context = is_cached ? (const void *)&t : row,
                                      .parts = {{.n = row->n_out},
                                                {.n = is_cached ? 0 : row->n_sum, .type = OPERATION_FP32}}},
                  (void *[]){out, sums});
    for (size_t query = 0; query < TOKENS; query++)
        ck_assert_int_eq(isnan(operation_get(row->type, out, query * row->width)), query >= AT);
}
