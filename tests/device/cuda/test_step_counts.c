/* What one step asks of the CUDA backend besides its arithmetic, counted on the device of tests/sim: launches, copies
 * and zeroings that nothing needs would make no result wrong. */
#include "proto/model/gpt2.h"
#include "tests/kit/device/setting.h"
#include "tests/kit/device/simulated.h"
#include "tests/kit/test.h"

SUITE_LABELS(cuda)

enum {
    ROWS = 4,
    TOKENS = 5,
    MICROBATCHES = 2,
    BLOCKS = 2,
    CONTRIBUTIONS = BLOCKS + 4 /* two tables of the embedding, the norm, the head */
};

static const struct model_config plain = {&family_gpt2, BLOCKS,         2,    16,    24, 9,
                                          16,           MODEL_GELU_NEW, true, 1e-5f, 0,  GPT2_ON(scale_attention)};

/* A step of one part in two microbatches. */
static struct device_worker_options options_of(const struct setting *s)
{
    struct device_worker_options options = setting_options(s, ROWS, ROWS / MICROBATCHES);

    options.ops = simulated.ops;
    options.setting.backend = plan_backend_find("cuda");
    return options;
}

static struct cudasim_counts counts_since(const struct cudasim_counts *before)
{
    struct cudasim_counts now = simulated.count();

    now.launches -= before->launches, now.copies -= before->copies;
    now.products_in_parts -= before->products_in_parts;
    now.zeroings -= before->zeroings, now.zeroed_bytes -= before->zeroed_bytes, now.host_stores -= before->host_stores;
    return now;
}

/* Of a whole step, the device opened and closed with it; but for its arena, which is zeroed. */
static struct cudasim_counts count_step(const struct model_config *config, enum number_type grad)
{
    struct setting s;
    struct array_link link;
    struct plan plan;
    const struct cudasim_counts before = simulated.count();

    setting_open(&s, config, ROWS, TOKENS);
    struct device_worker_options options = options_of(&s);
    options.setting.goal.grad = grad;
    plan_lay_out(&plan, &s.model, &options.setting, &options.choice);
    setting_step_whole(&link, &s, &options);
    array_link_free(&link);
    setting_close(&s);
    struct cudasim_counts counts = counts_since(&before);
    counts.zeroings--, counts.zeroed_bytes -= plan.arena_bytes;
    return counts;
}

SUITE_FIXTURE(simulated_load, NULL)

/* What it scales is two gradients a block, of which the second norm's pass makes one; where it does nothing these are
 * used where they are. */
TEST(without_dropout_no_gradient_is_copied)
{
    struct model_config drops = plain;

    gpt2_edit(&drops)->dropout_residual = 0.1f;
    const unsigned long without = count_step(&plain, NUMBER_FP32).launches;
    ck_assert_uint_eq(count_step(&drops, NUMBER_FP32).launches - without, BLOCKS * MICROBATCHES);
}

/* By hand: each contribution is shorter than the first round, and than a slice. */
TEST(contributions_in_bf16_are_rounded_on_the_device_and_copied)
{
    const struct cudasim_counts wide = count_step(&plain, NUMBER_FP32), narrow = count_step(&plain, NUMBER_BF16);

    ck_assert_uint_eq(narrow.host_stores, 0);
    ck_assert_uint_eq(narrow.copies, wide.copies);
    ck_assert_uint_eq(narrow.launches - wide.launches, CONTRIBUTIONS);
}

/* By hand: zeroed are a block's vectors, which lie side by side in five places, the norm's, and both tables of the
 * embedding, of which a minibatch touches some rows. Matrices are written by their first products, which are cut like
 * those that add to them: a block's four and the head's. */
TEST(what_products_write_is_not_zeroed_before)
{
    enum {
        WIDTH = 16,
        INNER = 24,
        POSITIONS = 9,
        VOCABULARY = 16,
        BLOCK = 4 * WIDTH + 3 * WIDTH + WIDTH + INNER + WIDTH
    };
    const struct cudasim_counts counts = count_step(&plain, NUMBER_FP32);

    ck_assert_uint_eq(counts.zeroings, 5 * BLOCKS + 1 + 2);
    ck_assert_uint_eq(counts.zeroed_bytes,
                      sizeof(float) * (BLOCKS * BLOCK + 2 * WIDTH + (VOCABULARY + POSITIONS) * WIDTH));
    ck_assert_uint_eq(counts.products_in_parts, (4 * BLOCKS + 1) * MICROBATCHES);
}
