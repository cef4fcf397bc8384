/* Which rows of a product's operands stand for all: those where the product of both norms is largest, whatever either
 * is. */
#include "proto/operation/operation.h"
#include "tests/kit/device/mirror.h"
#include "tests/kit/test.h"

#include <string.h>

enum { ROWS = 2, TOKENS = 20, CHOSEN = 6, X = 3, DY = 2 };

SUITE_LABELS(on_cuda)
SUITE_FIXTURE(mirror_forget, NULL)

/* Tokens whose products, 100, 50 and 30, leave 17 * 0.01 for all others: the largest ones win, in this order. The norms
 * of x alone, or those of dy, would order them otherwise. */
static const struct {
    size_t token;
    float x, dy;
} large[] = {{11, 10, 10}, {4, 1, 50}, {16, 60, 0.5f}};

static void fill(float *x, float *dy)
{
    for (size_t i = 0; i < ROWS * TOKENS; i++)
        x[i * X + i % X] = 0.1f, dy[i * DY + i % DY] = 0.1f;
    for (size_t row = 0; row < ROWS; row++)
        for (size_t k = 0; k < COUNT(large); k++) {
            const size_t i = row * TOKENS + large[k].token;
            x[i * X + i % X] = large[k].x, dy[i * DY + i % DY] = large[k].dy;
        }
}

TEST(rows_of_the_largest_products_are_kept_as_they_are)
{
    const struct sampling_shape shape = {.n_rows = ROWS, .n_tokens = TOKENS, .x_columns = X, .dy_columns = DY};
    const struct sampling sampling = {.share = (double)CHOSEN / TOKENS + 1e-9};
    float *const x = mirror_array(ROWS * TOKENS * X, sizeof *x), *const dy =
                                                                     mirror_array(ROWS * TOKENS * DY, sizeof *dy);
    float x_chosen[ROWS * CHOSEN * X], dy_chosen[ROWS * CHOSEN * DY];
    struct mirror at;

    memset(x, 0, ROWS * TOKENS * X * sizeof *x);
    memset(dy, 0, ROWS * TOKENS * DY * sizeof *dy);
    fill(x, dy);
    mirror_open(&at, NUMBER_FP32, 1, false);
    mirror_begin(&at);
    const struct operation_run run = {.ops = at.ops, .dev = at.dev, .type = NUMBER_FP32, .sampling = sampling};
    const struct sampling_operands all = {mirror_of(&at, x), mirror_of(&at, dy), ROWS * TOKENS};
    void *const scratch = mirror_scratch(&at, sampling_bytes(&sampling, &shape, NUMBER_FP32));
    const struct sampling_operands of = sampling_choose(&run, &shape, &all, 0, scratch);
    ck_assert_uint_eq(of.n_rows, ROWS * CHOSEN);
    mirror_take(&at, x_chosen, of.x, sizeof x_chosen);
    mirror_take(&at, dy_chosen, of.dy, sizeof dy_chosen);
    mirror_end(&at, NULL, 0);
    mirror_close(&at);
    for (size_t row = 0; row < ROWS; row++)
        for (size_t k = 0; k < COUNT(large); k++) {
            const size_t i = row * TOKENS + large[k].token, c = row * CHOSEN + k;
            ck_assert_mem_eq(x_chosen + c * X, x + i * X, X * sizeof *x);
            ck_assert_mem_eq(dy_chosen + c * DY, dy + i * DY, DY * sizeof *dy);
        }
}

/* All tokens are all rows, where they lie; nothing is drawn and no scratch is needed. */
TEST(all_tokens_are_not_copied)
{
    static const struct sampling none = {.share = 0}, some = {.share = 0.5};
    const struct sampling_shape many = {ROWS, TOKENS, X, DY}, one = {ROWS, 1, X, DY};
    const struct sampling_operands all = {"x", "dy", ROWS * TOKENS};
    const struct operation_run exact = {.sampling = none}, sampled = {.sampling = some};

    ck_assert_uint_eq(sampling_bytes(&none, &many, NUMBER_FP32), 0);
    ck_assert_uint_eq(sampling_bytes(&some, &one, NUMBER_FP32), 0);
    ck_assert_uint_gt(sampling_bytes(&some, &many, NUMBER_FP32), 0);
    ck_assert_ptr_eq(sampling_choose(&exact, &many, &all, 0, NULL).x, all.x);
    ck_assert_ptr_eq(sampling_choose(&sampled, &one, &all, 0, NULL).dy, all.dy);
}
