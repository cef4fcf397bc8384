/* Windows over a stream of tokens: which there are, what they hold, and in which order they come. */
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/order/windows.h"
#include "proto/base/random.h"

static struct client_data data;

/* A stream of ten bytes. */
static void setup(void)
{
    processes_setup();
    const char *path = processes_put_text("w.txt", "0123456789");
    ck_assert_int_eq(client_data_open(&data, &path, 1, NULL), 0);
    ck_assert_int_eq(client_data_check(&data, &(struct client_data_rules){.vocabulary = 256}, NULL), 0);
}

static void teardown(void)
{
    client_data_free(&data);
    processes_remove();
}

SUITE_FIXTURE_ONCE(setup, teardown)

/* By hand: 10 tokens and windows of 3: (10-1)/3 = 3 of them; 9 tokens give 2, as the last has no successor. */
TEST(windows_predict_each_successor)
{
    uint32_t ids[3], labels[3];

    ck_assert_uint_eq(client_windows_of(&data, 0, 9, 3, 1).n, 2);
    ck_assert_uint_eq(client_windows_of(&data, 0, 3, 3, 1).n, 0);
    ck_assert_uint_eq(client_windows_of(&data, 0, 0, 3, 1).n, 0);
    struct client_windows windows = client_windows_of(&data, 0, 10, 3, 1);
    ck_assert_uint_eq(windows.n, 3);
    ck_assert_int_eq(client_windows_read(&windows, ids, labels, 2, NULL), 0);
    ck_assert_mem_eq(ids, ((uint32_t[]){'6', '7', '8'}), sizeof ids);
    ck_assert_mem_eq(labels, ((uint32_t[]){'7', '8', '9'}), sizeof labels);
    windows = client_windows_of(&data, 6, 4, 3, 1); /* the held-out end */
    ck_assert_uint_eq(windows.n, 1);
    ck_assert_int_eq(client_windows_read(&windows, ids, labels, 0, NULL), 0);
    ck_assert_mem_eq(ids, ((uint32_t[]){'6', '7', '8'}), sizeof ids);
}

/* By hand: of ten tokens, nine successors are predicted, in windows of four, four and one. */
TEST(held_out_windows_take_the_rest_and_are_spread)
{
    uint32_t ids[4], labels[4];

    ck_assert_uint_eq(client_windows_held_out(&data, 0, 4, 4, 4, 0, 1).n, 0);
    struct client_windows windows = client_windows_held_out(&data, 0, 10, 4, 4, 0, 1);
    ck_assert_uint_eq(windows.n, 3);
    ck_assert_uint_eq(client_windows_tokens(&windows, 0, 3), 9);
    ck_assert_uint_eq(client_windows_tokens(&windows, 0, 2), 8);
    ck_assert_uint_eq(client_windows_tokens(&windows, 2, 1), 1);
    ck_assert_int_eq(client_windows_read(&windows, ids, labels, 2, NULL), 0);
    ck_assert_mem_eq(ids, ((uint32_t[]){'8', 0, 0, 0}), sizeof ids);
    ck_assert_mem_eq(labels, ((uint32_t[]){'9', UINT32_MAX, UINT32_MAX, UINT32_MAX}), sizeof labels);
    windows = client_windows_held_out(&data, 0, 10, 2, 2, 7, 1); /* three of five, 0, 1 and 3 */
    ck_assert_uint_eq(windows.n, 3);
    ck_assert_uint_eq(client_windows_tokens(&windows, 0, 3), 6);
    ck_assert_int_eq(client_windows_read(&windows, ids, labels, 2, NULL), 0);
    ck_assert_mem_eq(ids, ((uint32_t[]){'6', '7'}), 2 * sizeof *ids);
    windows = client_windows_held_out(&data, 0, 10, 4, 4, 1, 1); /* one at least */
    ck_assert_uint_eq(client_windows_tokens(&windows, 0, windows.n), 4);
    windows = client_windows_held_out(&data, 0, 9, 4, 4, 0, 1); /* no rest */
    ck_assert_uint_eq(client_windows_tokens(&windows, 0, windows.n), 8);
}

/* By hand: nine successors again, in windows of four that begin three tokens apart: four, three and two are new. */
TEST(windows_that_overlap_predict_each_token_once)
{
    const struct client_windows windows = client_windows_held_out(&data, 0, 10, 4, 3, 0, 1);
    uint32_t ids[4], labels[4];

    ck_assert_uint_eq(windows.n, 3);
    ck_assert_uint_eq(client_windows_tokens(&windows, 0, 1), 4);
    ck_assert_uint_eq(client_windows_tokens(&windows, 1, 1), 3);
    ck_assert_uint_eq(client_windows_tokens(&windows, 2, 1), 2);
    ck_assert_uint_eq(client_windows_tokens(&windows, 0, 3), 9);
    ck_assert_int_eq(client_windows_read(&windows, ids, labels, 1, NULL), 0);
    ck_assert_mem_eq(ids, ((uint32_t[]){'3', '4', '5', '6'}), sizeof ids);
    ck_assert_mem_eq(labels, ((uint32_t[]){UINT32_MAX, '5', '6', '7'}), sizeof labels);
    ck_assert_int_eq(client_windows_read(&windows, ids, labels, 2, NULL), 0);
    ck_assert_mem_eq(ids, ((uint32_t[]){'6', '7', '8', 0}), sizeof ids);
    ck_assert_mem_eq(labels, ((uint32_t[]){UINT32_MAX, '8', '9', UINT32_MAX}), sizeof labels);
}

/* Of whatever lengths: each successor is a label once, and the windows' tokens add up. */
TEST(windows_of_every_stride_predict_all)
{
    for (uint32_t n = 2; n <= 10; n++)
        for (uint32_t seq = 1; seq < n; seq++)
            for (uint32_t stride = 1; stride <= seq; stride++) {
                const struct client_windows windows = client_windows_held_out(&data, 0, n, seq, stride, 0, 1);
                unsigned labelled[10] = {0};
                uint32_t ids[10], labels[10];
                for (uint64_t k = 0; k < windows.n; k++) {
                    uint64_t counted = 0;
                    ck_assert_int_eq(client_windows_read(&windows, ids, labels, k, NULL), 0);
                    for (uint32_t i = 0; i < seq; i++)
                        if (labels[i] != UINT32_MAX) {
                            ck_assert_uint_eq(labels[i], ids[i] + 1); /* the digits in order */
                            labelled[labels[i] - '0']++, counted++;
                        }
                    ck_assert_uint_eq(client_windows_tokens(&windows, k, 1), counted);
                }
                for (uint32_t i = 1; i < n; i++)
                    ck_assert_uint_eq(labelled[i], 1);
                ck_assert_uint_eq(client_windows_tokens(&windows, 0, windows.n), n - 1);
            }
}

TEST(a_limit_holds_whatever_the_stride)
{
    for (uint32_t stride = 1; stride <= 4; stride++)
        for (uint64_t most = 4; most <= 9; most++) {
            const struct client_windows windows = client_windows_held_out(&data, 0, 10, 4, stride, most, 1);
            const uint64_t n_tokens = client_windows_tokens(&windows, 0, windows.n);
            ck_assert_uint_le(n_tokens, most);
            ck_assert_uint_gt(n_tokens + stride, most); /* another window would be too many */
        }
}

/* By hand: ten tokens without a successor to predict, in windows of four, four and two; the last begins two earlier,
 * and ends with the stream. Those to train on are the two whole ones. */
TEST(windows_of_masked_tokens_end_with_the_last_token_and_are_whole)
{
    const struct client_windows windows = client_windows_held_out(&data, 0, 10, 4, 4, 0, 0);
    uint32_t ids[4], known;

    ck_assert_uint_eq(windows.n, 3);
    ck_assert_uint_eq(client_windows_tokens(&windows, 0, 3), 10);
    ck_assert_uint_eq(client_windows_tokens(&windows, 2, 1), 2);
    ck_assert_int_eq(client_windows_read_whole(&windows, ids, &known, 1, NULL), 0);
    ck_assert_mem_eq(ids, ((uint32_t[]){'4', '5', '6', '7'}), sizeof ids);
    ck_assert_uint_eq(known, 0);
    ck_assert_int_eq(client_windows_read_whole(&windows, ids, &known, 2, NULL), 0);
    ck_assert_mem_eq(ids, ((uint32_t[]){'6', '7', '8', '9'}), sizeof ids);
    ck_assert_uint_eq(known, 2);
    ck_assert_uint_eq(client_windows_held_out(&data, 0, 10, 2, 2, 7, 0).n, 3);
    ck_assert_uint_eq(client_windows_held_out(&data, 0, 8, 4, 4, 0, 0).n, 2);
    ck_assert_uint_eq(client_windows_held_out(&data, 0, 3, 4, 4, 0, 0).n, 0);
    ck_assert_uint_eq(client_windows_of(&data, 0, 10, 4, 0).n, 2);
    ck_assert_uint_eq(client_windows_of(&data, 0, 8, 4, 0).n, 2);
}

/* By hand: two of five windows, the first and the one at 5/2. */
TEST(a_window_has_one_number_however_many_are_left_out)
{
    const struct client_windows all = client_windows_held_out(&data, 0, 10, 2, 2, 0, 0);
    const struct client_windows some = client_windows_held_out(&data, 0, 10, 2, 2, 4, 0);

    ck_assert_uint_eq(all.n, 5);
    ck_assert_uint_eq(some.n, 2);
    ck_assert_uint_eq(client_windows_number(&all, 2), 2);
    ck_assert_uint_eq(client_windows_number(&some, 0), 0);
    ck_assert_uint_eq(client_windows_number(&some, 1), 2);
}

TEST(sequential_order_wraps_around)
{
    const struct client_windows windows = {.n = 5};

    for (uint64_t row = 0; row < 23; row++)
        ck_assert_uint_eq(client_windows_pick(&windows, EPS_SEQUENTIAL, 9, row), row % 5);
}

TEST(each_shuffled_epoch_is_a_permutation_of_its_own)
{
    enum { N = 1000, EPOCHS = 3 };
    const struct client_windows windows = {.n = N};
    static uint8_t seen[EPOCHS][N];
    unsigned same_as_before = 0, same_for_other_seed = 0;

    for (uint64_t row = 0; row < N * EPOCHS; row++) {
        const uint64_t k = client_windows_pick(&windows, EPS_SHUFFLED, 1, row);
        ck_assert_uint_lt(k, N);
        ck_assert_uint_eq(seen[row / N][k]++, 0);
        same_as_before += row >= N && k == client_windows_pick(&windows, EPS_SHUFFLED, 1, row - N);
        same_for_other_seed += k == client_windows_pick(&windows, EPS_SHUFFLED, 2, row);
        ck_assert_uint_eq(k, random_permute(random_site_key(1, row / N, 0, RANDOM_ORDER), row % N, N));
    }
    /* Two independent permutations agree in 1 place on average (Poisson): 20 has a chance below 1e-18. */
    ck_assert_uint_lt(same_as_before, 20 * (EPOCHS - 1));
    ck_assert_uint_lt(same_for_other_seed, 20 * EPOCHS);
}
