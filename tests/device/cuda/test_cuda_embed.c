/* What is particular to the CUDA kernels of embeddings: sorted ids, runs of equal ones, pieces of the table, chunks of
 * tokens, tables in the host's memory. */
#include "tests/kit/device/kernels.h"
#include "tests/kit/test.h"

#include <math.h>

SUITE_LABELS(kernels)

enum { TABLE, DY, IDS, RUN = 128, CHUNK = 32768 };

struct look_up {
    size_t m, n;
    uint32_t first, n_table, piece; /* piece: rows of the table at once */
    bool accumulate;
};

static cudaError_t run_backward(struct world *w, const void *context)
{
    const struct look_up *l = context;
    struct device_embed op = {.m = l->m, .n = l->n, .ids = at(w, IDS), .y_gradient = at(w, DY)};
    cudaError_t rc = cudaSuccess;

    for (uint32_t i = 0; i < l->n_table && rc == cudaSuccess; i += l->piece) {
        op.table_gradient = (float *)at(w, TABLE) + i * l->n;
        op.first = l->first + i, op.n_table = l->n_table - i < l->piece ? l->n_table - i : l->piece;
        rc = cuda_embed_backward(&w->q, &op);
    }
    return rc;
}

/* dy: whole numbers if whole, so that sums are the same in any order. */
static struct world backward_world(enum number_type type, const struct look_up *l, bool whole)
{
    struct world w = world_of(type);
    void *dy;

    add_values(&w, TABLE, NUMBER_FP32, l->n_table * l->n, true);
    dy = add_values(&w, DY, type, l->m * l->n, false);
    for (size_t i = 0; i < l->m * l->n && whole; i++)
        operation_set(type, dy, i, rintf(operation_get(type, dy, i) * 8));
    for (size_t i = 0; i < l->n_table * l->n && whole; i++)
        ((float *)w.arrays[TABLE].host)[i] = (float)(i % 100);
    add_array(&w, IDS, calloc(l->m, sizeof(uint32_t)), l->m * sizeof(uint32_t), false);
    return w;
}

/* Adds in order of i, in fp32, and checks all bits. */
static void check_backward(struct world *w, const struct look_up *l)
{
    const uint32_t *ids = w->arrays[IDS].host;
    const size_t bytes = w->arrays[TABLE].bytes;
    float *want = malloc(bytes);

    memcpy(want, w->arrays[TABLE].host, bytes);
    for (size_t i = 0; i < l->m; i++)
        for (size_t j = 0; j < l->n && ids[i] >= l->first && ids[i] - l->first < l->n_table; j++)
            want[(ids[i] - l->first) * l->n + j] += operation_get(w->q.type, w->arrays[DY].host, i * l->n + j);
    run_orders(w, run_backward, l);
    for (size_t i = 0; i < bytes / sizeof *want; i++)
        if (want[i] != ((float *)w->arrays[TABLE].host)[i])
            ck_abort_msg("row %zu, column %zu is %.9g, not %.9g", i / l->n, i % l->n,
                         (double)((float *)w->arrays[TABLE].host)[i], (double)want[i]);
    free(want);
}

/* Ids below, in and above the table, none more than RUN times: the bits of a plain loop. */
TEST_EACH(ids_are_added_in_order, 6 * NUMBER_TYPES)
{
    static const struct look_up shapes[] = {
        {1, 8, 3, 5, 5, false},          {40, 24, 3, 9, 9, false},     {40, 7, 3, 9, 4, false}, /* in three pieces */
        {500, 8, 2, 40, 40, false},      {70, 4104, 1, 13, 13, false}, /* longer than a block's threads */
        {300, 16, 1, 1100, 1100, false},                               /* more ids than one block sorts */
    };
    const struct look_up *l = &shapes[_i / NUMBER_TYPES];
    struct world w = backward_world((enum number_type)(_i % NUMBER_TYPES), l, false);
    uint32_t *ids = w.arrays[IDS].host;

    for (size_t i = 0; i < l->m; i++)
        ids[i] = (uint32_t)(i * i + i / 3) % (l->n_table + 6);
    ids[l->m / 2] = UINT32_MAX;
    check_backward(&w, l);
    free_world(&w);
}

/* One id has all tokens, or every other one: RUN - 1, RUN, RUN + 1 and many of it. */
TEST_EACH(an_id_may_have_all_tokens, 10)
{
    static const size_t counts[] = {RUN - 1, RUN, RUN + 1, 2 * RUN, 5 * RUN + 3};
    const struct look_up l = {
        .m = counts[_i / 2] * (1 + (size_t)_i % 2), .n = 12, .first = 7, .n_table = 6, .piece = 6};
    struct world w = backward_world(NUMBER_BF16, &l, true);
    uint32_t *ids = w.arrays[IDS].host;

    for (size_t i = 0; i < l.m; i++)
        ids[i] = _i % 2 == 0 || i % 2 == 0 ? 9 : (uint32_t)(7 + i % 11);
    check_backward(&w, &l);
    free_world(&w);
}

/* What an id gets does not depend on how the table is cut, to the last bit, however often it comes. */
TEST(pieces_of_a_table_give_the_same_bits)
{
    const struct look_up whole = {.m = 700, .n = 9, .first = 0, .n_table = 5, .piece = 5};
    struct look_up cut = whole;
    struct world a = backward_world(NUMBER_FP32, &whole, false), b = backward_world(NUMBER_FP32, &whole, false);

    for (size_t i = 0; i < whole.m; i++)
        ((uint32_t *)a.arrays[IDS].host)[i] = ((uint32_t *)b.arrays[IDS].host)[i] = (uint32_t)(i * i % 7);
    cut.piece = 2;
    run_once(&a, run_backward, &whole);
    run_once(&b, run_backward, &cut);
    ck_assert_mem_eq(a.arrays[TABLE].host, b.arrays[TABLE].host, a.arrays[TABLE].bytes);
    free_world(&a), free_world(&b);
}

/* More tokens than are sorted at once; ids whose tokens lie on both sides of the border, and one with half of all. */
TEST(tokens_are_sorted_in_chunks)
{
    const struct look_up l = {.m = CHUNK + 2 * RUN + 5, .n = 1, .first = 0, .n_table = 300, .piece = 300};
    struct world w = backward_world(NUMBER_FP32, &l, true);
    uint32_t *ids = w.arrays[IDS].host;

    for (size_t i = 0; i < l.m; i++)
        ids[i] = i % 64 == 0 ? (uint32_t)(i / 64 % 301) : i % 2 ? 77 : 5;
    check_backward(&w, &l);
    free_world(&w);
}

/* ---- forward ---- */

static cudaError_t run_embed(struct world *w, const void *context)
{
    const struct look_up *l = context;
    const struct device_embed op = {.m = l->m,
                                    .n = l->n,
                                    .first = l->first,
                                    .n_table = l->n_table,
                                    .ids = at(w, IDS),
                                    .table = at(w, TABLE),
                                    .y = at(w, DY),
                                    .accumulate = l->accumulate};

    return cuda_embed(&w->q, &op);
}

/* y in DY's place. Rows without an id stay; whole packs, single elements, rows longer than a warp has under way. */
TEST_EACH(rows_are_looked_up, 20)
{
    static const size_t widths[] = {8, 7, 48, 2600, 1029};
    const struct look_up l = {
        .m = 40, .n = widths[_i / 4], .first = 3, .n_table = 9, .piece = 9, .accumulate = _i / 2 % 2};
    struct world w = world_of((enum number_type)(_i % 2));
    uint32_t *ids = calloc(l.m, sizeof *ids);
    double *want;

    add_values(&w, TABLE, w.q.type, l.n_table * l.n, false);
    want = operation_widen(w.q.type, add_values(&w, DY, w.q.type, l.m * l.n, true), l.m * l.n);
    add_array(&w, IDS, ids, l.m * sizeof *ids, false);
    for (size_t i = 0; i < l.m; i++) {
        ids[i] = i == 5 ? UINT32_MAX : (uint32_t)(i * 5 % 16);
        for (size_t j = 0; j < l.n && ids[i] >= 3 && ids[i] < 12; j++) {
            const double x = get(&w, TABLE, (ids[i] - 3) * l.n + j);
            const float sum = (float)(l.accumulate ? want[i * l.n + j] + x : x);
            want[i * l.n + j] = (double)(w.q.type == NUMBER_BF16 ? number_from_bf16(number_to_bf16(sum)) : sum);
        }
    }
    run_orders(&w, run_embed, &l);
    for (size_t i = 0; i < l.m * l.n; i++)
        ck_assert_double_eq(get(&w, DY, i), want[i]);
    free(want), free_world(&w);
}
