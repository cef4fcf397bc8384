/* Rotary positions, and fixed ones; and columns in another order, so that they can be rotated. */
#include "tests/kit/device/operation.h"
#include "tests/kit/test.h"

#include <math.h>

SUITE_LABELS(on_cuda)

/* Rows, tokens, heads and their width; rotated columns of no whole vector, of part of a head, and the most. Tokens are
 * longer than their heads by the gap. */
static const struct shape {
    size_t n_rows, n_tokens, n_heads, head_width, n_rotated, gap;
    uint64_t first;
    bool packed; /* tokens have positions of their own */
    bool interleaved;
    float factor, growth; /* growth: of all heads but the last, with a period of 3 */
} shapes[] = {
    {1, 1, 1, 2, 2, 0, 0, .packed = false},
    {2, 3, 3, 10, 10, 5, 0, .packed = false},
    {1, 5, 2, 64, 64, 64, 7, .packed = false},
    {2, 4, 5, 24, 16, 8, 100, .packed = false},
    {1, 3, 2, 128, 96, 0, 0, .packed = false},
    {1, 2, 3, 256, 256, 8, 5000, .packed = false},
    {1, 1, 2, 16, 0, 0, 3, .packed = false},
    {1, 4, 8, 128, 128, 0, 131070, .packed = false},
    {2, 7, 3, 16, 16, 5, 0, .packed = true},
    {1, 5, 2, 128, 128, 0, 0, .packed = true},
    /* Interleaved: one pair; of no whole vector; part of a head; whole packs; the most. */
    {1, 3, 1, 2, 2, 0, 9, .interleaved = true},
    {2, 3, 3, 10, 10, 5, 2, .interleaved = true},
    {2, 4, 5, 24, 16, 8, 100, .interleaved = true},
    {1, 5, 2, 64, 64, 64, 7, .interleaved = true},
    {1, 2, 3, 256, 256, 8, 5000, .interleaved = true},
    {2, 7, 3, 16, 6, 5, 0, .packed = true, .interleaved = true},
    /* Multiplied. */
    {2, 3, 3, 10, 10, 5, 4, .factor = 1.25f},
    {2, 7, 3, 16, 16, 0, 0, .packed = true, .interleaved = true, .factor = 0.5f},
    {2, 9, 3, 16, 16, 0, 0, .factor = 1.25f, .growth = 0.5f},
    {1, 9, 4, 64, 64, 0, 100, .interleaved = true, .growth = 0.1f},
};

/* Two products and a sum of values up to 4, of which the cosine and the sine are each within 2^-24. */
static double near(const struct call_test *test, const char *output)
{
    (void)test, (void)output;
    return 3 * 0x1p-23;
}

/* Factors are rounded twice more, and enlarge all of it: none here is beyond 2. */
static double near_multiplied(const struct call_test *test, const char *output)
{
    return 2 * 2 * near(test, output);
}

/* Documents of 1 token, of 2, of 3 and so on; the last one begins far from the first position, as no row would. */
static void draw_positions(struct call_test *test)
{
    const struct device_rope *op = &test->host.rope;
    uint32_t *positions = (void *)(uintptr_t)op->positions;
    uint32_t n = 1, next = 0;

    for (size_t i = 0; positions && i < op->n_rows * op->n_tokens; i++) {
        positions[i] = i + 1 == op->n_rows * op->n_tokens ? 70001 : next;
        next = next + 1 < n ? next + 1 : 0;
        n += next == 0;
    }
}

SUITE_FIXTURE(mirror_forget, NULL)

TEST_EACH(rope_turns_pairs_by_their_position, 2 * COUNT(shapes) * NUMBER_TYPES)
{
    const struct shape *s = &shapes[_i / 2 / NUMBER_TYPES];
    double frequencies[DEVICE_MAX_ROTATED / 2];
    struct call_test test = {.type = (enum number_type)(_i / 2 % NUMBER_TYPES),
                             .call = {.kind = CALL_rope,
                                      .rope = {.n_rows = s->n_rows,
                                               .n_tokens = s->n_tokens,
                                               .n_heads = s->n_heads,
                                               .head_width = s->head_width,
                                               .n_rotated = s->n_rotated,
                                               .frequencies = frequencies,
                                               .first = s->first,
                                               .positions = s->packed ? (void *)call_given : NULL,
                                               .stride = s->n_heads * s->head_width + s->gap,
                                               .inverse = _i % 2,
                                               .interleaved = s->interleaved,
                                               .factor = s->factor,
                                               .n_grown = s->growth > 0 ? s->n_heads - 1 : 0,
                                               .growth = s->growth,
                                               .period = 3}},
                             .near = s->factor > 0 || s->growth > 0 ? near_multiplied : near,
                             .prepare = draw_positions};

    for (size_t j = 0; j < s->n_rotated / 2; j++)
        frequencies[j] = pow(10000, -2 * (double)j / (double)s->n_rotated);
    call_check(&test);
}

/* One pair; halves of no whole vector; more pairs than the CPU turns at a time; far positions. */
static const struct device_sinusoid sums[] = {{1, 3, 2, NULL, 0},    {2, 3, 4, NULL, 0},   {2, 5, 30, NULL, 0},
                                              {1, 300, 64, NULL, 0}, {2, 4, 600, NULL, 0}, {3, 1, 512, NULL, 0},
                                              {1, 4, 30, NULL, 17}};

/* A sum with a sine or a cosine, which is within 2^-24. */
TEST_EACH(sines_and_cosines_of_the_position_are_added, COUNT(sums) * NUMBER_TYPES)
{
    struct call_test test = {.type = (enum number_type)(_i % NUMBER_TYPES),
                             .call = {.kind = CALL_sinusoid, .sinusoid = sums[_i / NUMBER_TYPES]},
                             .near = near,
                             .is_elementwise = true};

    call_check(&test);
}

/* One piece; no whole vector; whole packs; of a model's heads, and back. */
static const struct device_regroup orders[] = {{1, 1, 1, 1, NULL, NULL},   {3, 5, 3, 7, NULL, NULL},
                                               {2, 3, 5, 7, NULL, NULL},   {4, 4, 3, 16, NULL, NULL},
                                               {9, 12, 3, 64, NULL, NULL}, {9, 3, 12, 64, NULL, NULL}};

static double exact(const struct call_test *test, const char *output)
{
    (void)test, (void)output;
    return 0;
}

TEST_EACH(pieces_of_groups_become_parts, COUNT(orders) * NUMBER_TYPES)
{
    struct call_test test = {.type = (enum number_type)(_i % NUMBER_TYPES),
                             .call = {.kind = CALL_regroup, .regroup = orders[_i / NUMBER_TYPES]},
                             .near = exact};

    call_check(&test);
}

/* One pair, no rest; no whole vector; whole packs, with a rest that has none; of a model. */
static const struct device_split splits[] = {{1, 1, 1, 0, NULL, NULL, NULL},
                                             {3, 5, 7, 4, NULL, NULL, NULL},
                                             {4, 3, 16, 5, NULL, NULL, NULL},
                                             {9, 4, 64, 128, NULL, NULL, NULL}};

TEST_EACH(gates_stand_apart_from_queries, 2 * COUNT(splits) * NUMBER_TYPES)
{
    const int i = _i / 2 / NUMBER_TYPES;
    struct call_test test = {.type = (enum number_type)(_i / 2 % NUMBER_TYPES),
                             .call = {.kind = _i % 2 ? CALL_join : CALL_split, .split = splits[i]},
                             .near = exact};

    call_check(&test);
}
