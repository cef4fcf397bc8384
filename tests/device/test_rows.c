/* Sums over rows, the embedding's look-ups and their gradients, and positions. */
#include "tests/kit/device/operation.h"
#include "tests/kit/device/reference.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single, on_cuda_release)

/* Rows and columns: one of each, ends inside every vector, over the 128 columns that a thread of the CPU sums at once, and
 * more of each than a CUDA device has blocks for, in whole packs and in none. */
static const struct shape {
    size_t m, n;
} shapes[] = {{1, 1},   {1, 5},    {3, 16},    {64, 33},  {129, 128}, {7, 300},
              {12, 24}, {1000, 8}, {1000, 19}, {5, 2600}, {4, 1029}};
enum {
    N_SHAPES = sizeof shapes / sizeof *shapes,
    N_CASES = N_SHAPES * NUMBER_TYPES,
    N_ACTIVATIONS = MODEL_SILU + 1,
    VOCABULARY = 13
};

struct rows {
    struct shape shape;
    enum number_type type;
    void *x; /* (m, n) */
    void *one, *zero;
    uint32_t *ids; /* (m) */
    size_t n_rows; /* positions: m = n_rows * n_tokens */
    bool accumulate;
    enum model_activation activation;
    enum table { ON_DEVICE, ON_HOST, LENT } table; /* where embed and position find theirs */
};

static void set_up(struct rows *t, int which)
{
    *t = (struct rows){.shape = shapes[which / NUMBER_TYPES],
                       .type = (enum number_type)(which % NUMBER_TYPES),
                       .n_rows = 1};
    t->x = operation_values(t->type, t->shape.m * t->shape.n, 1);
    t->one = operation_room(t->type, 1), t->zero = operation_room(t->type, 1);
    operation_set(t->type, t->one, 0, 1);
    t->ids = mirror_array(t->shape.m, sizeof *t->ids);
    for (size_t i = 0; i < t->shape.m; i++)
        t->ids[i] = (uint32_t)(i * i + i / 3) % (VOCABULARY + 7); /* some below, some above the chunk 3 .. 15 */
}

static double x_at(const struct rows *t, size_t i)
{
    return (double)operation_get(t->type, t->x, i);
}

static void run_zero(struct mirror *at, void *const out[], const void *context)
{
    at->ops->zero(at->dev, out[0], *(const size_t *)context * sizeof(float));
}

SUITE_FIXTURE(mirror_forget, NULL)

TEST_EACH(zero_writes_its_elements_alone, 5)
{
    static const size_t sizes[] = {0, 1, 1023, 65536, 100001};
    const size_t n = sizes[_i];
    const float *held = operation_values(NUMBER_FP32, n + 3, 1);
    double *want = operation_widen(NUMBER_FP32, held, n + 3);

    memset(want, 0, n * sizeof *want);
    operation_check(
        &(struct operation){.run = run_zero, .context = &n, .parts = {{"x", n + 3, want, 0, held, OPERATION_FP32}}});
}

/* Where the sum lies, and as long as rounds may become: the CPU's first is of 1,024 numbers. A device that needs room
 * before the sum gets far less of it than plans give, so that it takes several rounds. */
TEST_EACH(round_bf16_writes_over_what_it_has_read, 5 * 3)
{
    static const size_t sizes[] = {1, 1024, 1025, 3000, 60000};
    const size_t n = sizes[_i / 3], room = backend_get()->plan->rounding_bytes ? 256 : 0;
    const float *from = operation_values(NUMBER_FP32, n, 1);
    uint16_t *got = malloc(n * sizeof *got);
    struct mirror at;

    mirror_open(&at, NUMBER_FP32, 1 + (unsigned)_i % 3, false);
    mirror_begin(&at);
    char *to = mirror_scratch(&at, room + n * sizeof *from);
    mirror_put(&at, to + room, from, n * sizeof *from);
    at.ops->round_bf16(at.dev, (uint16_t *)to, (const float *)(to + room), n);
    ck_assert_int_eq(at.ops->sync(at.dev), 0);
    mirror_take(&at, got, to, n * sizeof *got);
    mirror_end(&at, NULL, 0);
    mirror_close(&at);
    for (size_t i = 0; i < n; i++)
        ck_assert_uint_eq(got[i], number_to_bf16(from[i]));
    free(got);
}

static void run_reduce(struct mirror *at, void *const out[], const void *context)
{
    const struct rows *t = context;
    at->ops->reduce_rows(at->dev, out[0], mirror_of(at, t->x), t->shape.m, t->shape.n);
}

/* On the CPU added in double and rounded once at the end: half a unit in the last place, however many rows. Elsewhere in
 * fp32, in a fixed order: of m additions each may be off by so much, of sums that grow with sqrt(m). */
static double sums(size_t m)
{
    return backend_get()->cuda ? 0x1p-24 + (double)m * 0x1p-24 : 0x1.01p-24;
}

TEST_EACH(reduce_rows_adds_the_rows, N_CASES)
{
    struct rows t;
    float *held;
    double *want;

    set_up(&t, _i);
    held = operation_values(NUMBER_FP32, t.shape.n, 2);
    want = operation_widen(NUMBER_FP32, held, t.shape.n);
    for (size_t i = 0; i < t.shape.m * t.shape.n; i++)
        want[i % t.shape.n] += x_at(&t, i);
    operation_check(&(struct operation){.type = t.type,
                                        .run = run_reduce,
                                        .context = &t,
                                        .parts = {{"sum", t.shape.n, want, sums(t.shape.m), held, OPERATION_FP32}}});
}

/* The table, wherever it is; until give_back. */
static const void *take_table(struct mirror *at, const struct rows *t, size_t n)
{
    struct error err = {""};

    if (t->table == LENT)
        ck_assert_msg(at->ops->lend(at->dev, t->x, n * number_bytes(t->type), false, &err) == 0, "%s", err.text);
    return t->table == ON_DEVICE ? mirror_of(at, t->x) : t->x;
}

static void give_back(struct mirror *at, const struct rows *t)
{
    ck_assert_int_eq(at->ops->sync(at->dev), 0);
    if (t->table == LENT)
        at->ops->unlend(at->dev, t->x);
}

/* With the table everywhere: all the same to the CPU. */
static void check_tables(struct rows *t, const struct operation *operation)
{
    const enum table last = backend_get()->cuda ? LENT : ON_DEVICE;
    struct operation of_t = *operation;

    of_t.type = t->type, of_t.context = t;
    for (int table = ON_DEVICE; table <= (int)last; table++) {
        t->table = (enum table)table;
        operation_check(&of_t);
    }
}

static void run_embed(struct mirror *at, void *const out[], const void *context)
{
    const struct rows *t = context;
    const struct device_embed op = {.m = t->shape.m,
                                    .n = t->shape.n,
                                    .first = 3,
                                    .n_table = VOCABULARY,
                                    .ids = mirror_of(at, t->ids),
                                    .table = take_table(at, t, VOCABULARY * t->shape.n),
                                    .y = out[0],
                                    .accumulate = t->accumulate};

    at->ops->embed(at->dev, &op);
    give_back(at, t);
}

static bool in_chunk(uint32_t id)
{
    return id >= 3 && id < 3 + VOCABULARY;
}

TEST_EACH(embed_takes_the_rows_of_its_chunk_alone, 2 * N_CASES)
{
    struct rows t;
    const size_t accumulate = (size_t)_i % 2;
    void *held;
    double *want;

    set_up(&t, _i / 2);
    held = operation_values(t.type, t.shape.m * t.shape.n, 2);
    want = operation_widen(t.type, held, t.shape.m * t.shape.n);
    t.x = operation_values(t.type, VOCABULARY * t.shape.n, 3), t.accumulate = accumulate;
    for (size_t i = 0; i < t.shape.m * t.shape.n; i++) {
        const uint32_t id = t.ids[i / t.shape.n];
        if (in_chunk(id))
            want[i] = (accumulate ? want[i] : 0) + x_at(&t, (id - 3) * t.shape.n + i % t.shape.n);
    }
    check_tables(&t, &(struct operation){.run = run_embed,
                                         .is_elementwise = true,
                                         .parts = {{"y", t.shape.m * t.shape.n, want, accumulate ? 0x1p-24 : 0, held,
                                                    OPERATION_VALUES}}});
}

/* Look-ups: ids that come in order or at random, and tables that come in pieces. A CUDA device sorts ids, up to 1,024 of
 * them in one block and 32,768 at a time, and adds up runs of 128 equal ones apart. */
static const struct look_up {
    size_t m, n;
    uint32_t first, n_table, piece; /* piece: rows of the table of one call */
    uint32_t every;                 /* n: each n-th id is 9; 0: none more often than the others */
} look_ups[] = {
    {1, 8, 3, 5, 5, 0},       {64, 33, 3, 13, 13, 0},      {40, 24, 3, 9, 9, 0},  {40, 7, 3, 9, 4, 0},
    {70, 2056, 1, 13, 13, 0}, {300, 16, 1, 1100, 1100, 0}, {127, 12, 7, 6, 6, 1}, {128, 12, 7, 6, 6, 1},
    {129, 12, 7, 6, 6, 1},    {643, 12, 7, 6, 6, 1},       {256, 12, 7, 6, 6, 2}, {1286, 12, 7, 6, 6, 2},
    {700, 9, 0, 5, 2, 0},     {33029, 1, 0, 300, 300, 2},
};

struct looked_up {
    const struct look_up *l;
    enum number_type type;
    void *dy;
    uint32_t *ids, piece;
};

/* whole: numbers whose sums are the same in any order. */
static void look_up(struct looked_up *t, const struct look_up *l, enum number_type type, bool whole)
{
    *t = (struct looked_up){l, type, operation_values(type, l->m * l->n, 1), mirror_array(l->m, sizeof *t->ids),
                            l->piece};
    for (size_t i = 0; i < l->m * l->n && whole; i++)
        operation_set(type, t->dy, i, rintf(operation_get(type, t->dy, i) * 8));
    for (size_t i = 0; i < l->m; i++)
        t->ids[i] = l->every && i % l->every == 0 ? 9 : (uint32_t)((i * i + i / 3) % (l->n_table + 6));
    t->ids[l->m / 2] = l->m > 1 ? UINT32_MAX : t->ids[0];
}

static void run_embed_backward(struct mirror *at, void *const out[], const void *context)
{
    const struct looked_up *t = context;
    const struct look_up *l = t->l;
    struct device_embed op = {.m = l->m, .n = l->n, .ids = mirror_of(at, t->ids), .y_gradient = mirror_of(at, t->dy)};

    for (uint32_t i = 0; i < l->n_table; i += t->piece) {
        op.first = l->first + i, op.n_table = l->n_table - i < t->piece ? l->n_table - i : t->piece;
        op.table_gradient = (float *)out[0] + i * l->n;
        at->ops->embed_backward(at->dev, &op);
    }
}

/* Whole numbers give the exact sums everywhere, and any others on the CPU the bits of a plain loop, in fp32 and in order. */
TEST_EACH(embed_backward_adds_in_order, 2 * NUMBER_TYPES * COUNT(look_ups))
{
    const struct look_up *l = &look_ups[_i / 2 / NUMBER_TYPES];
    const bool whole = _i % 2;
    const size_t n = l->n_table * l->n;
    struct looked_up t;

    if (backend_get()->cuda && !whole)
        return;
    look_up(&t, l, (enum number_type)(_i / 2 % NUMBER_TYPES), whole);
    float *held = operation_values(NUMBER_FP32, n, 2), *sum = operation_room(NUMBER_FP32, n);
    for (size_t i = 0; i < n; i++)
        sum[i] = held[i] = whole ? (float)(i % 100) : held[i];
    for (size_t i = 0; i < l->m * l->n; i++) {
        const uint32_t id = t.ids[i / l->n] - l->first;
        if (id < l->n_table)
            sum[id * l->n + i % l->n] += operation_get(t.type, t.dy, i);
    }
    operation_check(&(struct operation){.type = t.type,
                                        .run = run_embed_backward,
                                        .context = &t,
                                        .parts = {{"table_gradient", n, operation_widen(NUMBER_FP32, sum, n), 0, held,
                                                   OPERATION_FP32}}});
}

/* What an id gets does not depend on how the table is cut, to the last bit, however often it comes. */
TEST_EACH(pieces_of_a_table_give_the_same_bits, NUMBER_TYPES)
{
    const struct look_up *l = &look_ups[12];
    const size_t n = l->n_table * l->n;
    float *cut = operation_room(NUMBER_FP32, n), *whole = operation_room(NUMBER_FP32, n);
    struct looked_up t;

    look_up(&t, l, (enum number_type)_i, false);
    struct operation operation = {.type = t.type,
                                  .run = run_embed_backward,
                                  .context = &t,
                                  .parts = {{.n = n, .type = OPERATION_FP32}}};
    operation_run(&operation, (void *[]){cut});
    t.piece = l->n_table;
    operation_run(&operation, (void *[]){whole});
    ck_assert_mem_eq(cut, whole, n * sizeof *cut);
}

static void run_position(struct mirror *at, void *const out[], const void *context)
{
    const struct rows *t = context;
    const size_t n_tokens = t->shape.m / t->n_rows;
    const struct device_position op = {.n_rows = t->n_rows,
                                       .n_tokens = n_tokens,
                                       .n = t->shape.n,
                                       .table = take_table(at, t, n_tokens * t->shape.n),
                                       .y = out[0]};

    at->ops->position(at->dev, &op);
    give_back(at, t);
}

static void run_position_backward(struct mirror *at, void *const out[], const void *context)
{
    const struct rows *t = context;
    const struct device_position op = {.n_rows = t->n_rows,
                                       .n_tokens = t->shape.m / t->n_rows,
                                       .n = t->shape.n,
                                       .y_gradient = mirror_of(at, t->x),
                                       .table_gradient = out[0]};

    at->ops->position_backward(at->dev, &op);
}

TEST_EACH(positions_are_added_to_every_row_and_summed_over_rows, N_CASES)
{
    struct rows t;
    void *held;
    float *held_sums;
    double *want, *gradient;
    size_t n, table;

    set_up(&t, _i);
    n = t.shape.m * t.shape.n;
    t.n_rows = t.shape.m % 4 ? 1 : 4;
    table = n / t.n_rows;
    held = operation_values(t.type, n, 2), held_sums = operation_values(NUMBER_FP32, table, 3);
    want = operation_widen(t.type, held, n), gradient = operation_widen(NUMBER_FP32, held_sums, table);
    for (size_t i = 0; i < n; i++) {
        want[i] += x_at(&t, i % table);
        gradient[i % table] += x_at(&t, i);
    }
    check_tables(&t, &(struct operation){.run = run_position,
                                         .is_elementwise = true,
                                         .parts = {{"y", n, want, 0x1p-24, held, OPERATION_VALUES}}});
    operation_check(
        &(struct operation){.type = t.type,
                            .run = run_position_backward,
                            .context = &t,
                            .parts = {{"table_gradient", table, gradient, sums(t.n_rows), held_sums, OPERATION_FP32}}});
}

static void run_activate(struct mirror *at, void *const out[], const void *context)
{
    const struct rows *t = context;
    at->ops->activate(at->dev, out[0], mirror_of(at, t->x), t->shape.m * t->shape.n, t->activation);
}

/* Within 3 units in the last place, as after a product (test_matmul.c), of numbers of which the largest is near 1 or
 * beyond. */
TEST_EACH(activate_is_the_formula, N_CASES *N_ACTIVATIONS)
{
    struct rows t;

    set_up(&t, _i / N_ACTIVATIONS);
    t.activation = (enum model_activation)(_i % N_ACTIVATIONS);
    const size_t n = t.shape.m * t.shape.n;
    double *want = operation_zeros(n);
    for (size_t i = 0; i < n; i++)
        want[i] = reference_activation(t.activation, x_at(&t, i));
    operation_check(&(struct operation){.type = t.type,
                                        .run = run_activate,
                                        .context = &t,
                                        .is_elementwise = true,
                                        .parts = {{"y", n, want, 3 * 0x1p-23, NULL, OPERATION_VALUES}}});
}

static void run_activate_backward(struct mirror *at, void *const out[], const void *context)
{
    const struct rows *t = context;
    at->ops->activate_backward(at->dev, out[0], mirror_of(at, t->x), t->shape.m * t->shape.n, t->activation);
}

/* A slope good to 3 units in the last place of 1, and one product. */
TEST_EACH(activate_backward_multiplies_by_the_slope, N_CASES *N_ACTIVATIONS)
{
    struct rows t;

    set_up(&t, _i / N_ACTIVATIONS);
    t.activation = (enum model_activation)(_i % N_ACTIVATIONS);
    const size_t n = t.shape.m * t.shape.n;
    const void *held = operation_values(t.type, n, 2);
    double *want = operation_widen(t.type, held, n);
    for (size_t i = 0; i < n; i++)
        want[i] *= reference_activation_gradient(t.activation, x_at(&t, i));
    operation_check(&(struct operation){.type = t.type,
                                        .run = run_activate_backward,
                                        .context = &t,
                                        .parts = {{"x_gradient", n, want, 4 * 0x1p-23, held, OPERATION_VALUES}}});
}

/* x, times 1, plus 0: what stands before the activation, and after it. */
static void run_product(struct mirror *at, void *const out[], const void *context)
{
    const struct rows *t = context;
    const size_t m = t->shape.m * t->shape.n;
    const struct device_matmul op = {.m = m,
                                     .n = 1,
                                     .k = 1,
                                     .a = mirror_of(at, t->x),
                                     .a_stride = 1,
                                     .b = mirror_of(at, t->one),
                                     .b_stride = 1,
                                     .c = out[0],
                                     .c_stride = 1,
                                     .epilogue = DEVICE_BIAS_ACTIVATION,
                                     .activation = t->activation,
                                     .bias = mirror_of(at, t->zero),
                                     .pre = out[1]};

    at->ops->matmul(at->dev, &op);
}

/* So that an activation may be kept or computed again from what was stored before it. */
TEST_EACH(activate_gives_the_bits_of_a_product_s_epilogue, N_CASES *N_ACTIVATIONS)
{
    struct rows t;

    set_up(&t, _i / N_ACTIVATIONS);
    t.activation = (enum model_activation)(_i % N_ACTIVATIONS);
    const size_t n = t.shape.m * t.shape.n;
    void *after = operation_room(t.type, n), *again = operation_room(t.type, n), *pre = operation_room(t.type, n);
    operation_run(&(struct operation){.type = t.type, .run = run_product, .context = &t, .parts = {{.n = n}, {.n = n}}},
                  (void *[]){after, pre});
    ck_assert_mem_eq(pre, t.x, n * number_bytes(t.type));
    operation_run(&(struct operation){.type = t.type, .run = run_activate, .context = &t, .parts = {{.n = n}}}, &again);
    ck_assert_mem_eq(after, again, n * number_bytes(t.type));
}
