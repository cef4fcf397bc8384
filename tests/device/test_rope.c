/* Rotary positions. */
#include "tests/kit/device/operation.h"
#include "tests/kit/test.h"

#include <math.h>

SUITE_LABELS(on_cuda)

/* Rows, tokens, heads and their width; rotated columns of no whole vector, of part of a head, and the most. Tokens are
 * longer than their heads by the gap. */
static const struct shape {
    size_t n_rows, n_tokens, n_heads, head_width, n_rotated, gap;
    uint64_t first;
} shapes[] = {
    {1, 1, 1, 2, 2, 0, 0},    {2, 3, 3, 10, 10, 5, 0},      {1, 5, 2, 64, 64, 64, 7}, {2, 4, 5, 24, 16, 8, 100},
    {1, 3, 2, 128, 96, 0, 0}, {1, 2, 3, 256, 256, 8, 5000}, {1, 1, 2, 16, 0, 0, 3},   {1, 4, 8, 128, 128, 0, 131070},
};

/* Two products and a sum of values up to 4, of which the cosine and the sine are each within 2^-24. */
static double near(const struct call_test *test, const char *output)
{
    (void)test, (void)output;
    return 3 * 0x1p-23;
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
                                               .stride = s->n_heads * s->head_width + s->gap,
                                               .inverse = _i % 2}},
                             .near = near};

    for (size_t j = 0; j < s->n_rotated / 2; j++)
        frequencies[j] = pow(10000, -2 * (double)j / (double)s->n_rotated);
    call_check(&test);
}
