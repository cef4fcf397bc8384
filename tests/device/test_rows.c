/* Activations, sums over rows, the embedding's look-ups and their gradients, positions, and pixels. */
#include "tests/kit/device/operation.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single, on_cuda_release)

/* Rows and columns: one of each, ends inside every vector, over the 128 columns that a thread of the CPU sums at once,
 * and more of each than a CUDA device has blocks for, in whole packs and in none. */
static const struct shape {
    size_t m, n;
} shapes[] = {{1, 1},   {1, 5},    {3, 16},    {64, 33},  {129, 128}, {7, 300},
              {12, 24}, {1000, 8}, {1000, 19}, {5, 2600}, {4, 1029}};
enum { N_CASES = COUNT(shapes) * NUMBER_TYPES, FIRST_ID = 3, N_TABLE = 13, N_ACTIVATIONS = MODEL_ACTIVATIONS };

static void run_zero(struct mirror *at, void *const out[], const void *context)
{
    at->ops->zero(at->dev, &(struct device_zero){out[0], *(const size_t *)context * sizeof(float)});
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
        &(struct operation){.run = run_zero, .context = &n, .parts = {{"x", n + 3, want, 0, held, CALL_FP32}}});
}

/* Where the sum lies, and as long as rounds may become: the CPU's first is of 1,024 numbers. A device that needs room
 * before the sum gets far less of it than plans give, so that it takes several rounds. Then right before the sum, and
 * right behind it. The first numbers are on both sides of where fp16 ends and begins, and halfway between two of it. */
TEST_EACH(rounding_writes_over_what_it_has_read, 2 * 3 * 5 * 3)
{
    static const size_t sizes[] = {1, 1024, 1025, 3000, 60000};
    enum { ONTO, BEFORE, BEHIND };
    const int place = _i / 15 % 3;
    const enum number_type type = _i / 45 ? NUMBER_FP16 : NUMBER_BF16;
    const size_t n = sizes[_i / 3 % 5], whole = (n + 1) / 2 * sizeof(float);
    const size_t near = backend_get()->plan->rounding_bytes ? 256 : 0;
    const size_t first = place == ONTO ? near : place == BEFORE ? whole : 0;
    const size_t result = place == BEHIND ? n * sizeof(float) : 0;
    static const float edges[] = {0x1p-25f,   0x1.002p-25f, -0x1.8p-24f, 0x1.ffep-15f,
                                  65519.996f, -65520,       1e30f,       0x1.006p0f};
    float *from = operation_values(NUMBER_FP32, n, 1);
    uint16_t *got = malloc(n * sizeof *got);
    struct mirror at;

    memcpy(from, edges, n < COUNT(edges) ? n * sizeof *from : sizeof edges);
    mirror_open(&at, NUMBER_FP32, 1 + (unsigned)_i % 3, false);
    mirror_begin(&at);
    char *room = mirror_scratch(&at, first + n * sizeof *from + (place == BEHIND ? whole : 0));
    mirror_put(&at, room + first, from, n * sizeof *from);
    at.ops->round_half(at.dev, &(struct device_round_half){(uint16_t *)(room + result), (const float *)(room + first),
                                                           n, type});
    ck_assert_int_eq(at.ops->sync(at.dev), 0);
    mirror_take(&at, got, room + result, n * sizeof *got);
    mirror_end(&at, NULL, 0);
    mirror_close(&at);
    for (size_t i = 0; i < n; i++)
        ck_assert_uint_eq(got[i], number_to_half(type, from[i]));
    free(got);
}

/* ---- rows ---- */

static const struct row_call {
    enum call_kind kind;
    bool accumulate; /* look-ups */
    size_t gap;      /* after each row of a sum */
    float scale;
    bool narrow; /* a table in bf16 */
} row_calls[] = {{CALL_reduce_rows, false, 0, 0, false}, {CALL_reduce_rows, false, 24, 0, false},
                 {CALL_embed, false, 0, 0, false},       {CALL_embed, true, 0, 0, false},
                 {CALL_embed, false, 0, 3.3f, false},    {CALL_embed, true, 0, -0.7f, false},
                 {CALL_position, false, 0, 0, false},    {CALL_position_backward, false, 0, 0, false},
                 {CALL_add, false, 0, 0, false},         {CALL_embed, false, 0, 0, true},
                 {CALL_embed, true, 0, 2.1f, true},      {CALL_position, false, 0, 0, true}};

/* On the CPU added in double and rounded once at the end: half a unit in the last place, however many rows. Elsewhere
 * in fp32, in a fixed order: of m additions each may be off by so much, of sums that grow with sqrt(m). */
static double near_of_sums(size_t m)
{
    return backend_get()->cuda ? 0x1p-24 + (double)m * 0x1p-24 : 0x1.01p-24;
}

static double near(const struct call_test *test, const char *output)
{
    const struct call *c = &test->call;

    (void)output;
    return c->kind == CALL_reduce_rows         ? near_of_sums(c->reduce_rows.m)
           : c->kind == CALL_add               ? 0x1p-24
           : c->kind == CALL_position_backward ? near_of_sums(c->position.n_rows)
           : c->kind == CALL_position          ? 0x1p-24
           : c->embed.accumulate               ? (c->embed.scale != 0 ? 2 : 1) * 0x1p-24
           : c->embed.scale != 0               ? 0x1p-24
                                               : 0;
}

/* Every id from some below the table to some above it. */
static void draw_ids(struct call_test *test)
{
    uint32_t *ids = (void *)(uintptr_t)test->host.embed.ids;

    for (size_t i = 0; i < test->call.embed.m && test->call.kind == CALL_embed; i++)
        ids[i] = (uint32_t)(i * 7 + i / 20) % (N_TABLE + 7);
}

static struct call call_of(const struct row_call *r, const struct shape *s)
{
    const size_t n_rows = s->m % 4 ? 1 : 4;

    if (r->kind == CALL_reduce_rows)
        return (struct call){.kind = r->kind, .reduce_rows = {.m = s->m, .n = s->n, .stride = s->n + r->gap}};
    if (r->kind == CALL_add)
        return (struct call){.kind = r->kind, .add = {.n = s->m * s->n}};
    if (r->kind == CALL_embed)
        return (struct call){.kind = r->kind,
                             .embed = {.m = s->m,
                                       .n = s->n,
                                       .first = FIRST_ID,
                                       .n_table = N_TABLE,
                                       .accumulate = r->accumulate,
                                       .scale = r->scale,
                                       .narrow = r->narrow}};
    return (struct call){.kind = r->kind,
                         .position = {.n_rows = n_rows, .n_tokens = s->m / n_rows, .n = s->n, .narrow = r->narrow}};
}

/* Tables that may be the host's are there too, lent and not, except on the CPU, to which all is the same. */
TEST_EACH(rows_are_what_the_reference_says, COUNT(row_calls) * N_CASES)
{
    const struct row_call *r = &row_calls[_i / N_CASES];
    struct call_test test = {.type = (enum number_type)(_i % NUMBER_TYPES),
                             .call = call_of(r, &shapes[_i % N_CASES / NUMBER_TYPES]),
                             .near = near,
                             .prepare = draw_ids,
                             .is_elementwise = r->kind == CALL_embed || r->kind == CALL_position};
    const bool anywhere = test.is_elementwise && backend_get()->cuda;

    for (int table = CALL_ON_DEVICE; table <= (anywhere ? CALL_LENT : CALL_ON_DEVICE); table++) {
        test.table = (enum call_place)table;
        call_check(&test);
    }
}

/* ---- gradients of look-ups ---- */

/* Ids that come in order or at random, and tables that come in pieces. A CUDA device sorts ids, up to 1,024 of
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
    struct call_test test;
    const struct look_up *l;
    bool whole; /* numbers whose sums are the same in any order */
};

static double exactly(const struct call_test *test, const char *output)
{
    (void)test, (void)output;
    return 0;
}

static void draw_look_ups(struct call_test *test)
{
    const struct looked_up *t = (const struct looked_up *)test;
    const struct look_up *l = t->l;
    void *dy = (void *)(uintptr_t)test->host.embed.y_gradient;
    uint32_t *ids = (void *)(uintptr_t)test->host.embed.ids;

    for (size_t i = 0; i < l->m * l->n && t->whole; i++)
        operation_set(test->type, dy, i, rintf(operation_get(test->type, dy, i) * 8));
    for (size_t i = 0; i < l->n_table * l->n && t->whole; i++)
        test->host.embed.table_gradient[i] = (float)(i % 100);
    for (size_t i = 0; i < l->m; i++)
        ids[i] = l->every && i % l->every == 0 ? 9 : (uint32_t)((i * i + i / 3) % (l->n_table + 6));
    ids[l->m / 2] = l->m > 1 ? UINT32_MAX : ids[0];
}

/* All pieces before the last one, which is left to be the call. */
static void run_pieces(struct mirror *at, struct call *call, const struct call_test *test)
{
    const struct look_up *l = ((const struct looked_up *)test)->l;
    struct device_embed *op = &call->embed;
    uint32_t left = l->n_table;

    for (; left > l->piece; left -= l->piece) {
        op->n_table = l->piece;
        at->ops->embed_backward(at->dev, op);
        op->first += l->piece, op->table_gradient += l->piece * l->n;
    }
    op->n_table = left;
}

static struct looked_up look_up(const struct look_up *l, int type, bool whole)
{
    const struct device_embed op = {.m = l->m, .n = l->n, .first = l->first, .n_table = l->n_table};

    return (struct looked_up){.test = {.type = (enum number_type)type,
                                       .call = {.kind = CALL_embed_backward, .embed = op},
                                       .near = exactly,
                                       .prepare = draw_look_ups,
                                       .before = run_pieces},
                              .l = l,
                              .whole = whole};
}

/* Whole numbers, scaled or not, give the exact sums everywhere, and any others on the CPU the bits of a plain loop, in
 * fp32 and in order. */
TEST_EACH(embed_backward_adds_in_order, 3 * NUMBER_TYPES * COUNT(look_ups))
{
    struct looked_up t = look_up(&look_ups[_i / 3 / NUMBER_TYPES], _i / 3 % NUMBER_TYPES, _i % 3);

    t.test.call.embed.scale = _i % 3 == 2 ? 5 : 0;
    if (t.whole || !backend_get()->cuda)
        call_check(&t.test);
}

/* What an id gets does not depend on how the table is cut, to the last bit, however often it comes. */
TEST_EACH(pieces_of_a_table_give_the_same_bits, NUMBER_TYPES)
{
    struct look_up uncut = look_ups[12];
    struct looked_up cut = look_up(&look_ups[12], _i, false), whole = look_up(&uncut, _i, false);

    uncut.piece = uncut.n_table;
    call_make(&cut.test), call_make(&whole.test);
    call_once(&cut.test), call_once(&whole.test);
    ck_assert_mem_eq(cut.test.host.embed.table_gradient, whole.test.host.embed.table_gradient,
                     uncut.n_table * uncut.n * sizeof(float));
}

/* ---- pixels ---- */

static const struct {
    size_t m, n;
} images[] = {{1, 1}, {5, 3}, {33, 2}, {64, 4}, {1000, 3}, {3000, 1}};

/* One rounding, of fp32. */
static double once(const struct call_test *test, const char *output)
{
    (void)test, (void)output;
    return 0x1p-24;
}

/* Bytes beyond the channels have values, too. */
static void draw_pixels(struct call_test *test)
{
    uint32_t *ids = (void *)(uintptr_t)test->host.pixels.ids;

    for (size_t i = 0; i < test->host.pixels.m; i++)
        ids[i] = (uint32_t)i * 0x9E3779B1u + 0xFF00FF00u;
}

TEST_EACH(pixels_are_their_bytes_scaled_and_shifted, NUMBER_TYPES *COUNT(images))
{
    struct call_test test = {.type = (enum number_type)(_i % NUMBER_TYPES),
                             .call = {.kind = CALL_pixels,
                                      .pixels = {.m = images[_i / NUMBER_TYPES].m,
                                                 .n = images[_i / NUMBER_TYPES].n,
                                                 .scale = {0.015, 0.016, -0.017, 0.25},
                                                 .shift = {-2.1, -2, 1.8, 0}}},
                             .near = once,
                             .prepare = draw_pixels,
                             .is_elementwise = true};

    call_check(&test);
}

/* ---- activations ---- */

static const size_t lengths[] = {1, 5, 48, 2112, 4116, 19000};
enum { N_ACTIVATED = COUNT(lengths) * NUMBER_TYPES * N_ACTIVATIONS };

/* Within 3 units in the last place, as after a product (test_matmul.c), of numbers of which the largest is near 1 or
 * beyond; backward one product more. */
static double near_activation(const struct call_test *test, const char *output)
{
    (void)output;
    return (test->call.kind == CALL_activate ? 3 : 4) * 0x1p-23;
}

static struct call_test activation(enum call_kind kind, int i)
{
    return (struct call_test){.type = (enum number_type)(i / N_ACTIVATIONS % NUMBER_TYPES),
                              .call = {.kind = kind,
                                       .activate = {.n = lengths[i / N_ACTIVATIONS / NUMBER_TYPES],
                                                    .activation = (enum model_activation)(i % N_ACTIVATIONS)}},
                              .near = near_activation,
                              .is_elementwise = true};
}

TEST_EACH(activations_and_their_slopes_are_the_formula, 2 * N_ACTIVATED)
{
    struct call_test test = activation(_i % 2 ? CALL_activate_backward : CALL_activate, _i / 2);

    call_check(&test);
}

/* So that an activation may be kept or computed again from what was stored before it: x, times 1, plus 0. */
TEST_EACH(activate_gives_the_bits_of_a_product_s_epilogue, N_ACTIVATED)
{
    struct call_test plain = activation(CALL_activate, _i), product = plain;
    const size_t n = plain.call.activate.n;

    product.call = (struct call){.kind = CALL_matmul,
                                 .matmul = {.m = n,
                                            .n = 1,
                                            .k = 1,
                                            .a_stride = 1,
                                            .b_stride = 1,
                                            .c_stride = 1,
                                            .epilogue = DEVICE_BIAS_ACTIVATION,
                                            .activation = plain.call.activate.activation}};
    call_make(&plain), call_make(&product);
    operation_set(plain.type, call_get(call_find(&product, "b")), 0, 1);
    operation_set(plain.type, call_get(call_find(&product, "bias")), 0, 0);
    memcpy(call_get(call_find(&product, "a")), plain.host.activate.x, n * number_bytes(plain.type));
    call_once(&plain), call_once(&product);
    ck_assert_mem_eq(product.host.matmul.pre, plain.host.activate.x, n * number_bytes(plain.type));
    ck_assert_mem_eq(product.host.matmul.c, plain.host.activate.y, n * number_bytes(plain.type));
}
