/* The gated delta rule. Its gates are drawn; what makes it hard (tokens that repeat, states that are forgotten at once
 * and hardly at all) is made. */
#include "tests/kit/device/operation.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

SUITE_LABELS(on_cuda)

enum kind {
    DRAWN,
    REPEATED,  /* one token, which is written whole and never forgotten: beta 1, g 0 */
    FORGOTTEN, /* g is -50 */
    IN_TURN,   /* g is -50 and -0.05 in turn */
    SLOW,      /* g is -0.05: a twentieth of a state is left behind a chunk of tokens */
};

/* Rows of a token; of just less than a chunk, of one, of just more, of several; documents that end within chunks, at
 * their ends, and of one token. Heads that share their keys, of widths that are no whole vectors, unequal ones. */
static const struct shape {
    size_t n_rows, n_tokens, n_heads, n_key_heads, key_width, value_width;
    unsigned n_documents; /* 0: a row is one; else so many a row, of unequal length */
    bool doubled;
    enum kind kind;
} shapes[] = {
    {1, 1, 1, 1, 16, 16, 0, false, DRAWN},       {2, 63, 2, 2, 16, 16, 0, false, DRAWN},
    {1, 64, 2, 1, 32, 16, 0, true, DRAWN},       {2, 65, 4, 2, 8, 24, 0, false, DRAWN},
    {1, 330, 2, 1, 20, 12, 0, false, DRAWN},     {1, 130, 1, 1, 3, 5, 2, true, DRAWN},
    {2, 200, 3, 1, 16, 32, 3, false, DRAWN},     {1, 300, 2, 2, 24, 16, 5, true, DRAWN},
    {1, 65, 1, 1, 16, 16, 1, false, REPEATED},   {1, 140, 2, 2, 16, 16, 2, true, REPEATED},
    {1, 200, 2, 1, 16, 16, 2, false, FORGOTTEN}, {1, 200, 2, 2, 16, 20, 3, false, IN_TURN},
    {1, 70, 2, 1, 128, 128, 0, false, DRAWN},    {1, 129, 1, 1, 64, 33, 4, true, IN_TURN},
    {1, 280, 3, 1, 16, 12, 0, false, SLOW},      {2, 150, 2, 2, 20, 16, 2, false, SLOW},
};
enum { N_CASES = COUNT(shapes) * NUMBER_TYPES };

/* Of the largest element. Rows of a chunk are sums over it, and states over all tokens before; backward has sums of
 * such sums. With a beta of 2 a state changes its sign with each token that repeats, and keeps the errors of all. On
 * CUDA's tensor cores a number is two of bf16, 16 bits, where values have 16 bits: twice the error there, too. */
static double near(const struct call_test *test, const char *output)
{
    const struct device_gated_delta *op = &test->call.gated_delta;
    const double least = backend_get()->cuda && test->type != NUMBER_FP32 ? op->doubled ? 0x1p-14 : 0x1p-15 : 0;
    const size_t met = op->doubled || op->n_tokens < 64 ? op->n_tokens : 64;
    const double n = (double)(met + op->key_width);

    return fmax(least, (strstr(output, "gradient") ? 16 : 8) * (op->doubled ? 2 : 1) * (4 + sqrt(n)) * 0x1p-24);
}

/* The token of a row where its document i of n begins: the lengths grow. */
static size_t begin_of(size_t n_tokens, unsigned i, unsigned n)
{
    return n_tokens * i * (i + 1) / (n * (n + 1));
}

static const struct shape *shape_of(const struct call_test *test)
{
    const struct device_gated_delta *op = &test->call.gated_delta;
    const struct shape *s = shapes;

    while (s->n_rows != op->n_rows || s->n_tokens != op->n_tokens || s->key_width != op->key_width ||
           s->value_width != op->value_width || s->n_heads != op->n_heads || s->n_key_heads != op->n_key_heads)
        s++;
    return s;
}

static void set(const struct call_test *test, const char *name, size_t i, float x)
{
    operation_set(test->type, call_get(call_find(test, name)), i, x);
}

/* a_log 0 and dt_bias 0: g is -softplus(a). */
static void make_gates(const struct call_test *test, enum kind kind)
{
    const struct device_gated_delta *op = &test->call.gated_delta;
    const size_t columns = device_gated_delta_columns(op);

    for (size_t h = 0; h < op->n_heads; h++)
        set(test, "a_log", h, 0), set(test, "dt_bias", h, 0);
    for (size_t i = 0; i < op->n_rows * op->n_tokens * op->n_heads; i++) {
        const size_t token = i / op->n_heads, at = i + token * op->n_heads;
        const bool forgets = kind == FORGOTTEN || (kind == IN_TURN && token % 2);
        set(test, "gates", at, forgets ? 50 : kind == REPEATED ? -60 : -2.97f);
        if (kind == REPEATED)
            set(test, "gates", at + op->n_heads, 20);
    }
    for (size_t i = columns; kind == REPEATED && i < op->n_rows * op->n_tokens * columns; i++)
        set(test, "qkv", i, operation_get(test->type, call_get(call_find(test, "qkv")), i % columns));
}

static void prepare(struct call_test *test)
{
    const struct shape *s = shape_of(test);
    uint32_t *positions = (void *)(uintptr_t)test->host.gated_delta.positions;

    for (size_t row = 0; row < s->n_rows; row++)
        for (unsigned i = 0; i < s->n_documents; i++)
            for (size_t t = begin_of(s->n_tokens, i, s->n_documents), first = t;
                 t < begin_of(s->n_tokens, i + 1, s->n_documents); t++)
                positions[row * s->n_tokens + t] = (uint32_t)(t - first);
    if (s->kind != DRAWN)
        make_gates(test, s->kind);
}

/* The simulated device, which is slow, takes each shape in one type, and tokens that repeat in all. */
static bool case_suits(int i)
{
    return !backend_get()->simulated || shapes[i / NUMBER_TYPES].kind == REPEATED ||
           i % NUMBER_TYPES == i / NUMBER_TYPES % NUMBER_TYPES;
}

/* The states that backward reads, as the device's own forward pass leaves them. */
static void run_forward(struct mirror *at, struct call *call, const struct call_test *test)
{
    struct device_gated_delta op = call->gated_delta;

    op.y = mirror_scratch(at, op.n_rows * op.n_tokens * op.n_heads * op.value_width * number_bytes(test->type));
    at->ops->gated_delta(at->dev, &op);
}

/* Case i of N_CASES: a type, a shape. */
static struct call_test make(enum call_kind kind, int i)
{
    const struct shape *s = &shapes[i / NUMBER_TYPES];
    const bool backward = kind == CALL_gated_delta_backward;

    return (struct call_test){.type = (enum number_type)(i % NUMBER_TYPES),
                              .call = {.kind = kind,
                                       .gated_delta = {.n_rows = s->n_rows,
                                                       .n_tokens = s->n_tokens,
                                                       .n_heads = s->n_heads,
                                                       .n_key_heads = s->n_key_heads,
                                                       .key_width = s->key_width,
                                                       .value_width = s->value_width,
                                                       .doubled = s->doubled,
                                                       .positions = s->n_documents ? (void *)call_given : NULL}},
                              .near = near,
                              .prepare = prepare,
                              .before = backward ? run_forward : NULL};
}

SUITE_FIXTURE(mirror_forget, NULL)

TEST_EACH_IF(the_gated_delta_rule_is_the_recurrence, N_CASES, case_suits(_i))
{
    struct call_test test = make(CALL_gated_delta, _i);

    call_check(&test);
}

/* With the gradients of a_log and dt_bias, with one of them, with none. */
TEST_EACH_IF(the_gradient_of_the_gated_delta_rule_is_the_recurrences, N_CASES, case_suits(_i))
{
    struct call_test test = make(CALL_gated_delta_backward, _i);

    if (_i / NUMBER_TYPES % 4 != 1)
        test.call.gated_delta.a_log_gradient = (void *)call_given;
    if (_i / NUMBER_TYPES % 4 < 2)
        test.call.gated_delta.dt_bias_gradient = (void *)call_given;
    call_check(&test);
}

/* As a text goes on: from nothing, within a chunk, at its end. */
TEST_EACH(a_cached_gated_delta_rule_is_the_recurrence, 3 * N_CASES)
{
    static const uint32_t firsts[] = {0, 37, 128};
    struct call_test test = make(CALL_gated_delta_cached, _i / 3);
    struct device_gated_delta *op = &test.call.gated_delta;

    op->n_rows = 1, op->positions = NULL, op->first = firsts[_i % 3];
    test.prepare = NULL;
    call_check(&test);
}

static const void *at(const struct call_test *test, const void *values, size_t i)
{
    return (const char *)values + i * number_bytes(test->type);
}

static struct call_test text_of(enum number_type type, enum call_kind kind, size_t n_tokens)
{
    return (struct call_test){.type = type,
                              .call = {.kind = kind,
                                       .gated_delta = {.n_rows = 1,
                                                       .n_tokens = n_tokens,
                                                       .n_heads = 2,
                                                       .n_key_heads = 1,
                                                       .key_width = 20,
                                                       .value_width = 12}},
                              .near = near};
}

/* At most, of a number, a unit of its last place as it is stored: roundings of nearly the same number may lie so far
 * apart. */
static const double units[NUMBER_TYPES] = {[NUMBER_FP32] = 0, [NUMBER_BF16] = 0x1p-7, [NUMBER_FP16] = 0x1p-10};

enum { TEXT = 203, COLUMNS = 2 * 20 + 2 * 12, VALUES = 2 * 12, GATES = 4, STATE = 2 * 20 * 12 };

/* Runs the text's tokens first .. first+n-1 after those that left `state`, which then is theirs. */
static struct call_test go_on(const struct call_test *all, size_t first, size_t n, float state[STATE])
{
    struct call_test some = text_of(all->type, CALL_gated_delta_cached, n);
    const size_t bytes = number_bytes(all->type);

    some.call.gated_delta.first = (uint32_t)first;
    call_make(&some);
    memcpy(call_get(call_find(&some, "qkv")), at(all, all->host.gated_delta.qkv, first * COLUMNS), n * COLUMNS * bytes);
    memcpy(call_get(call_find(&some, "gates")), at(all, all->host.gated_delta.gates, first * GATES), n * GATES * bytes);
    memcpy(call_get(call_find(&some, "a_log")), all->host.gated_delta.a_log, 2 * bytes);
    memcpy(call_get(call_find(&some, "dt_bias")), all->host.gated_delta.dt_bias, 2 * bytes);
    if (first > 0)
        memcpy(call_get(call_find(&some, "state")), state, STATE * sizeof *state);
    call_once(&some);
    memcpy(state, some.host.gated_delta.state, STATE * sizeof *state);
    return some;
}

/* On a CUDA device, which has no chunks in generation, near. */
static void check_row(const struct call_test *text, const struct call_test *row)
{
    const size_t n = TEXT * VALUES;
    double largest = 0;

    if (!backend_get()->cuda)
        ck_assert_mem_eq(text->host.gated_delta.y, row->host.gated_delta.y, n * number_bytes(row->type));
    for (size_t i = 0; i < n; i++)
        largest = fmax(largest, fabs((double)operation_get(row->type, row->host.gated_delta.y, i)));
    for (size_t i = 0; i < n; i++) {
        const double whole = (double)operation_get(row->type, row->host.gated_delta.y, i);
        ck_assert_double_eq_tol((double)operation_get(row->type, text->host.gated_delta.y, i), whole,
                                2 * near(row, "y") * largest + units[row->type] * fabs(whole));
    }
}

/* A text in calls that end at multiples of 64, and where it ends: as in one, which is as in a row. It goes on behind no
 * token, or behind some. */
TEST_EACH(calls_that_end_with_chunks_have_the_bits_of_one, 2 * 4 * NUMBER_TYPES)
{
    static const size_t at_once[] = {64, 128, 192, TEXT};
    const size_t n = at_once[_i / 2 / NUMBER_TYPES], begin = _i % 2 ? 37 : 0;
    struct call_test all = text_of((enum number_type)(_i / 2 % NUMBER_TYPES), CALL_gated_delta, TEXT);
    float earlier[STATE] = {0}, whole[STATE], state[STATE];

    call_make(&all);
    call_once(&all);
    if (begin > 0)
        go_on(&all, 0, begin, earlier);
    memcpy(whole, earlier, sizeof whole), memcpy(state, earlier, sizeof state);
    const struct call_test one = go_on(&all, begin, TEXT - begin, whole);
    if (begin == 0)
        check_row(&one, &all);
    for (size_t first = begin, end; first < TEXT; first = end) {
        end = (first + n) / 64 * 64 < TEXT && n < TEXT ? (first + n) / 64 * 64 : TEXT;
        const struct call_test some = go_on(&all, first, end - first, state);
        ck_assert_mem_eq(some.host.gated_delta.y, at(&one, one.host.gated_delta.y, (first - begin) * VALUES),
                         (end - first) * VALUES * number_bytes(all.type));
    }
    ck_assert_mem_eq(state, whole, sizeof state);
}

/* One by one, tokens 50 to 74 differ from the whole row's by rounding: of fp32, and of values as they are stored. */
TEST_EACH(a_text_token_by_token_is_as_in_the_whole_row, NUMBER_TYPES)
{
    struct call_test all = text_of((enum number_type)_i, CALL_gated_delta, TEXT);
    float state[STATE];
    double largest = 0;

    call_make(&all);
    call_once(&all);
    for (size_t i = 0; i < TEXT * VALUES; i++)
        largest = fmax(largest, fabs((double)operation_get(all.type, all.host.gated_delta.y, i)));
    for (size_t first = 0, n = 50; first < 75; first += n, n = 1) {
        const struct call_test some = go_on(&all, first, n, state);
        for (size_t j = 0; j < n * VALUES; j++) {
            const double whole = (double)operation_get(all.type, all.host.gated_delta.y, first * VALUES + j);
            ck_assert_double_eq_tol((double)operation_get(all.type, some.host.gated_delta.y, j), whole,
                                    2 * near(&all, "y") * largest + units[_i] * fabs(whole));
        }
    }
}

/* Before a document, and behind it: tokens of others, which hold infinities and NaNs. */
static const struct neighbours {
    uint32_t before, behind;
} neighbours[] = {{0, 5}, {0, 70}, {37, 0}, {70, 9}, {64, 64}};
enum { LENGTH = 150, N_BESIDE = COUNT(neighbours) * 2 * NUMBER_TYPES };

static void put_between(struct call_test *beside, const struct call_test *alone, const char *name, size_t columns,
                        const struct neighbours *n)
{
    const size_t bytes = number_bytes(alone->type);
    char *to = call_get(call_find(beside, name));

    for (size_t i = 0; i < (n->before + LENGTH + n->behind) * columns; i++)
        operation_set(alone->type, to, i, i % 2 ? INFINITY : NAN);
    memcpy(to + n->before * columns * bytes, call_get(call_find(alone, name)), LENGTH * columns * bytes);
}

static void check_between(const struct call_test *beside, const struct call_test *alone, const char *name,
                          size_t columns, const struct neighbours *n)
{
    const size_t bytes = number_bytes(alone->type);
    const char *is = call_get(call_find(beside, name));

    ck_assert_msg(memcmp(is + n->before * columns * bytes, call_get(call_find(alone, name)),
                         LENGTH * columns * bytes) == 0,
                  "%s", name);
}

TEST_EACH(a_documents_neighbours_change_none_of_its_bits, N_BESIDE)
{
    const struct neighbours *n = &neighbours[_i / 2 / NUMBER_TYPES];
    const bool backward = _i / NUMBER_TYPES % 2;
    struct call_test alone = text_of((enum number_type)(_i % NUMBER_TYPES),
                                     backward ? CALL_gated_delta_backward : CALL_gated_delta, LENGTH),
                     beside;

    alone.before = backward ? run_forward : NULL;
    beside = alone;
    beside.call.gated_delta.n_tokens = n->before + LENGTH + n->behind;
    beside.call.gated_delta.positions = (void *)call_given;
    call_make(&alone), call_make(&beside);
    uint32_t *positions = (void *)(uintptr_t)beside.host.gated_delta.positions;
    for (uint32_t t = 0; t < beside.call.gated_delta.n_tokens; t++)
        positions[t] = t < n->before ? t : (t - n->before) % LENGTH; /* those behind are fewer */
    put_between(&beside, &alone, "qkv", COLUMNS, n);
    put_between(&beside, &alone, "gates", GATES, n);
    if (backward)
        put_between(&beside, &alone, "y_gradient", VALUES, n);
    memcpy(call_get(call_find(&beside, "a_log")), alone.host.gated_delta.a_log, 2 * number_bytes(alone.type));
    memcpy(call_get(call_find(&beside, "dt_bias")), alone.host.gated_delta.dt_bias, 2 * number_bytes(alone.type));
    call_once(&alone), call_once(&beside);
    if (!backward) {
        check_between(&beside, &alone, "y", VALUES, n);
        return;
    }
    check_between(&beside, &alone, "qkv_gradient", COLUMNS, n);
    check_between(&beside, &alone, "gates_gradient", GATES, n);
}

/* By hand: beta 1/2, no forgetting (a far below 0), key and query (1, 0) of length 1, so that each token halves the
 * distance to its value: 0 to 8, 4 to 8, 6 to 0. */
TEST(the_state_moves_towards_the_values)
{
    static const float qkv[] = {1, 0, 1, 0, 8, 1, 0, 1, 0, 8, 1, 0, 1, 0, 0}, gates[] = {-90, 0, -90, 0, -90, 0};
    static const float expected[] = {4, 6, 3};
    struct call_test test = {
        .call = {.kind = CALL_gated_delta,
                 .gated_delta =
                     {.n_rows = 1, .n_tokens = 3, .n_heads = 1, .n_key_heads = 1, .key_width = 2, .value_width = 1}},
        .near = near};

    call_make(&test);
    memcpy(call_get(call_find(&test, "qkv")), qkv, sizeof qkv);
    memcpy(call_get(call_find(&test, "gates")), gates, sizeof gates);
    set(&test, "a_log", 0, 0), set(&test, "dt_bias", 0, 0);
    call_once(&test);
    for (size_t i = 0; i < COUNT(expected); i++) /* times 2^-1/2; 1e-6 is added to squares */
        ck_assert_float_eq_tol(((float *)test.host.gated_delta.y)[i], expected[i] * 0.70710678f, 1e-5f);
}
