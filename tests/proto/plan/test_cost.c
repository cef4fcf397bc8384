#include "tests/kit/device/backend.h"
#include "tests/kit/inprocess/model.h"
#include "tests/kit/test.h"

#include "proto/model/norms.h"
#include "proto/plan/memory/data.h"
#include "proto/plan/time/cost.h"

#include <string.h>

/* Two blocks of 64 (256 inside), 256 tokens, 32 positions, a tied head of one unit. Parameters by hand: a block
 * 12 * 64^2 + 13 * 64 = 49984, the norm 128, the tables 16384 and 2048. */
static const struct model_config config = GPT2_CONFIG(2, 1, 64, 256, 32, 256, .tied = true, GPT2_ON(scale_attention));
enum { BLOCK = 49984, NORM = 128, TABLE = 16384, POSITIONS = 2048, ROWS = 4, SEQ = 32, TOKENS = ROWS * SEQ };

static struct model model;
static struct plan_setting setting;
static struct plan_choice choice;
static struct plan_host_setting host;
static struct profile profile;

/* A device whose products are all that takes time, one second for 1e9 of them. */
static void set_up(void)
{
    ck_assert_int_eq(model_init(&model, &config, NULL), 0);
    setting = (struct plan_setting){.backend = &plan_cpu,
                                    .goal = {.purpose = PLAN_TRAIN, .seq = SEQ},
                                    .share_rows = ROWS,
                                    .part_rows = ROWS,
                                    .n_threads = 1};
    choice = (struct plan_choice){.microbatch = ROWS, .n_weight_buffers = 1};
    host = (struct plan_host_setting){.goal = {.n_parts = 1, .batch = ROWS, .seq = SEQ}, .n_workers = 1};
    profile = (struct profile){.link_bytes_per_s = 1e6, .memory_bytes_per_s = 1e30, .update_parameters_per_s = 1e6};
    for (int i = 0; i < PROFILE_ROWS; i++)
        profile.matmul_flops[NUMBER_FP32][i] = 1e9, profile.matmul_flops[NUMBER_BF16][i] = 2e9;
    for (int i = 0; i < PROFILE_TYPES; i++)
        profile.attention_flops[PROFILE_FORWARD][ATTENTION_PLAIN][i] = 5e8,
        profile.attention_flops[PROFILE_BACKWARD][ATTENTION_PLAIN][i] = 4e8;
}

static void tear_down(void)
{
    model_free(&model);
}

SUITE_FIXTURE(set_up, tear_down)

static struct plan_cost cost(void)
{
    struct plan_cost out;
    struct plan plan;

    plan_lay_out(&plan, &model, &setting, &choice);
    plan_cost(&out, &plan, &model, &host, &profile, NULL);
    return out;
}

/* Multiply-adds of a token: a block's four maps 12 * 64^2, the head 64 * 256. Forward once, backward twice, and a block
 * once more but for its last map (8 * 64^2 left); the head is one unit of one part, so its logits are not. Attention:
 * 2 * 32 * 64 operations a token at half the rate, twice, and 5 * 32 * 64 backward at 0.4 of it. */
TEST(products_and_attention_are_counted_by_hand)
{
    const double map = 64 * 64, maps = 2 * 2 * (3 * 12 * map + 8 * map), head = 2 * 3 * 64 * 256;
    const double forward = 2 * SEQ * 64 / 0.5, attention = 2 * (2 * forward + 5 * SEQ * 64 / 0.4);

    ck_assert_double_eq_tol(cost().compute_ms, TOKENS * (maps + head + attention) / 1e9 * 1e3, 1e-9);
    choice.keeping[0] = (struct plan_keeping){2, MODEL_KEEPS_ALL, 0};
    ck_assert_double_eq_tol(cost().compute_ms,
                            TOKENS * (maps - 2 * 2 * 8 * map + head + attention - 2 * forward) / 1e9 * 1e3, 1e-9);
}

/* As above, of some rows of n tokens; 1,000 operations take a microsecond. */
static double ms_of_rows(uint32_t rows, uint32_t n)
{
    const double map = 64 * 64, maps = 2 * 2 * (3 * 12 * map + 8 * map), head = 2 * 3 * 64 * 256;
    const double attention = 2 * (2 * (2 * n * 64 / 0.5) + 5 * n * 64 / 0.4);

    return rows * n * (maps + head + attention) / 1e6;
}

TEST(rows_are_priced_at_the_tokens_that_their_microbatch_computes)
{
    setting.goal.row_tokens[0] = 3, setting.goal.row_tokens[1] = 8, setting.goal.row_tokens[2] = 16,
    setting.goal.row_tokens[7] = 24;
    ck_assert_double_eq_tol(cost().compute_ms, ms_of_rows(ROWS, 16), 1e-9);
    choice.microbatch = 2;
    ck_assert_double_eq_tol(cost().compute_ms, ms_of_rows(ROWS, 8), 1e-9);
    choice.microbatch = 3; /* and one row is left */
    ck_assert_double_eq_tol(cost().compute_ms, ms_of_rows(3, 8) + ms_of_rows(1, 3), 1e-9);
    setting.goal.row_tokens[1] = 0; /* unknown */
    choice.microbatch = 2;
    ck_assert_double_eq_tol(cost().compute_ms, ms_of_rows(ROWS, SEQ), 1e-9);
    ck_assert_uint_eq(plan_row_tokens(&setting, &model, 128), 24);
    ck_assert_uint_eq(plan_row_tokens(&setting, &model, 1000), 24);
    setting.goal.sampling.share = 0.3;
    ck_assert_uint_eq(plan_row_tokens(&setting, &model, 128), SEQ);
}

/* Rows of 1,024 tokens: a third of the way from 512 to 4,096 by their logarithm, so at 0.4 forward, and 0.3 backward,
 * of the rate of products. */
TEST(attention_is_priced_at_the_rate_of_rows_as_long)
{
    enum { LONG = 1024 };
    const struct model_config longer = GPT2_CONFIG(2, 1, 64, 256, LONG, 256, .tied = true, GPT2_ON(scale_attention));
    const double map = 64 * 64, maps = 2 * 2 * (3 * 12 * map + 8 * map), head = 2 * 3 * 64 * 256;
    const double attention = 2 * (2 * (2 * LONG * 64 / 0.4) + 5 * LONG * 64 / 0.3);

    model_free(&model);
    ck_assert_int_eq(model_init(&model, &longer, NULL), 0);
    setting.goal.seq = host.goal.seq = LONG;
    for (int direction = 0; direction < PROFILE_DIRECTIONS; direction++) {
        double *flops = profile.attention_by_shape[direction][ATTENTION_PLAIN][NUMBER_FP32][PROFILE_OWN_KEYS][0];
        flops[0] = direction == PROFILE_FORWARD ? 3e8 : 1e8, flops[1] = direction == PROFILE_FORWARD ? 6e8 : 7e8;
    }
    ck_assert_double_eq_tol(cost().compute_ms / (ROWS * LONG * (maps + head + attention) / 1e9 * 1e3), 1, 1e-9);
}

/* Of 32 keys queries see 16 on average. With a window of 8 they see 8, less half a window for the first 8 of 32: 7. */
TEST(with_a_window_only_the_keys_seen_are_counted)
{
    struct program_attention_options *attention = NULL;
    struct program *block = &model.programs[model.block].program;
    const uint32_t windows[] = {0, SEQ, SEQ + 1, 8};
    double ms[4];

    for (int i = 0; i < block->n_operations; i++)
        if (block->operations[i].kind == &operation_attention)
            attention = &block->operations[i].attention;
    for (int i = 0; i < 4; i++)
        attention->window = windows[i], ms[i] = cost().compute_ms;
    ck_assert_double_eq(ms[1], ms[0]);
    ck_assert_double_eq(ms[2], ms[0]);
    const double each = 2 * 4 * (7 - 16) * 64; /* in both blocks; forward twice, and backward 2.5 times as much */
    ck_assert_double_eq_tol(ms[3] - ms[0], TOKENS * each * (2 / 0.5 + 2.5 / 0.4) / 1e9 * 1e3, 1e-9);
}

TEST(a_head_of_several_parts_computes_its_logits_again_unless_it_is_whole)
{
    setting.part_rows = choice.microbatch = ROWS / 2;
    host.goal.n_parts = 2;
    const double twice = cost().compute_ms;
    choice.whole_head = true;
    ck_assert_double_eq_tol(twice - cost().compute_ms, TOKENS * 2.0 * 64 * 256 / 1e9 * 1e3, 1e-9);
}

/* What is known of each token comes in bf16 with each visit of the two blocks; its norms go up in the gradient's
 * type. */
TEST(remembered_norms_come_twice_and_go_once)
{
    struct model_config relu = config;

    model_free(&model);
    relu.activation = MODEL_RELU;
    ck_assert_int_eq(model_init(&model, &relu, NULL), 0);
    model_approximate(&model, &(struct model_approximation){.samples = true});
    const struct plan_cost without = cost();
    model_remember_norms(&model, TOKENS, 1000);
    ck_assert_uint_eq(cost().down_bytes - without.down_bytes, 2 * 2 * TOKENS * 2);
    ck_assert_uint_eq(cost().up_bytes - without.up_bytes, 2 * TOKENS * 4);
}

/* Up: block, block, norm, head; down again, where the head is still there: norm, block, block. Of the tables, a row of
 * each for every token. */
TEST(a_step_pulls_all_but_the_turning_unit_twice)
{
    const uint64_t gathered = 2 * TOKENS * 64;

    ck_assert_uint_eq(cost().down_bytes, 4 * (2 * (2 * BLOCK + NORM) + TABLE + gathered));
    ck_assert_uint_eq(cost().up_bytes, 4 * (2 * BLOCK + NORM + 2 * TABLE + POSITIONS));
    ck_assert_double_eq_tol(cost().pull_ms, (double)cost().down_bytes / 1e6 * 1e3, 1e-9);
    ck_assert_double_eq_tol(cost().hiding_tokens, 2000, 1e-9); /* w F / 2 H: 4 bytes * 1e9 / (2 * 1e6) */
    ck_assert_double_eq_tol(cost().push_ms, (double)cost().up_bytes / 1e6 * 1e3, 1e-9);
    choice.n_weight_buffers = 2;
    ck_assert_uint_eq(cost().down_bytes, 4 * (2 * 2 * BLOCK + NORM + TABLE + gathered));
    choice.n_weight_buffers = 1, choice.n_resident = 3; /* head, norm, upper block; the lower one is what turns */
    ck_assert_uint_eq(cost().down_bytes, 4 * (2 * BLOCK + NORM + TABLE + gathered));
    setting.goal.precision = NUMBER_BF16;
    host.goal.grad = NUMBER_BF16;
    ck_assert_uint_eq(cost().down_bytes, 2 * (2 * BLOCK + NORM + TABLE + gathered));
    ck_assert_double_eq_tol(cost().hiding_tokens, 2000, 1e-9); /* half the bytes at twice the rate */
    ck_assert_uint_eq(cost().up_bytes, 2 * (2 * BLOCK + NORM + 2 * TABLE + POSITIONS));
    setting.part_rows = choice.microbatch = 1; /* each part contributes */
    host.goal.n_parts = ROWS;
    ck_assert_uint_eq(cost().up_bytes, ROWS * 2 * (2 * BLOCK + NORM + 2 * TABLE + POSITIONS));
}

/* The upper block's frozen matrices, (64, 256) and (256, 64), stay where it is resident; the lower one's come twice. */
TEST(what_is_frozen_of_a_resident_unit_is_not_pulled)
{
    struct error err = {""};

    choice.n_resident = 3;
    const uint64_t all = cost().down_bytes;
    ck_assert_msg(model_freeze(&model, "h.*.mlp.*.weight", model_base_of(FORM_VALUES, NUMBER_FP32), &err) == 0, "%s",
                  err.text);
    ck_assert_uint_eq(all - cost().down_bytes, 4 * 2 * 64 * 256);
    choice.n_resident = 2;
    ck_assert_uint_eq(cost().down_bytes, all + 4 * BLOCK);
}

/* Layers: embedding, two blocks, norm, head. Cut at the lower block and at the head, the upper block's input and the
 * norm's are filled in again, by both blocks; the upper one is still in the buffer when the norm's backward has come
 * and gone, if there are two of them. The lower block is pulled a third time, and its products are computed once
 * more. */
TEST(what_is_computed_again_is_pulled_and_counted_again)
{
    const double map = 64 * 64, block = 2 * 12 * map + 2 * SEQ * 64 / 0.5;
    const struct plan_cost whole = cost();

    choice.n_cuts = 2, choice.cuts[0] = 1, choice.cuts[1] = 4;
    ck_assert_double_eq_tol(cost().compute_ms - whole.compute_ms, 2 * TOKENS * block / 1e9 * 1e3, 1e-9);
    ck_assert_uint_eq(cost().down_bytes - whole.down_bytes, 4 * 2 * BLOCK);
    ck_assert_uint_eq(cost().up_bytes, whole.up_bytes);
    choice.cuts[1] = 3; /* the norm is in the topmost segment: the upper block's input alone */
    ck_assert_double_eq_tol(cost().compute_ms - whole.compute_ms, TOKENS * block / 1e9 * 1e3, 1e-9);
    ck_assert_uint_eq(cost().down_bytes - whole.down_bytes, 4 * BLOCK);
}

/* Bytes a parameter, by hand. One part: gradient 4, weights and moments 12 read and 12 written: 28 at the measured
 * rate. Tied: two visits are each added to a sum (4 + 8), which is then read. */
TEST(the_optimizer_takes_what_it_touches)
{
    const double plain = 2 * BLOCK + NORM + POSITIONS;

    ck_assert_double_eq_tol(cost().optimizer_ms, (plain * 28 + TABLE * (24 + 28)) / 28 / 1e6 * 1e3, 1e-9);
    host.goal.fenced = true; /* each contribution into a sum, then that as a gradient */
    ck_assert_double_eq_tol(cost().optimizer_ms, (plain * (12 + 28) + TABLE * (24 + 28)) / 28 / 1e6 * 1e3, 1e-9);
    host.goal.fenced = false, host.goal.moments = NUMBER_BF16; /* 4 + 8 + 8 */
    ck_assert_double_eq_tol(cost().optimizer_ms, (plain * 20 + TABLE * (24 + 20)) / 28 / 1e6 * 1e3, 1e-9);
}

/* Boundaries: embedding, two blocks, norm. Forward writes each and reads each; backward reads four inputs and reads and
 * writes the gradient at all but the ends: head 1 + 1 + 0 (its gradient begins there, and is written). */
TEST(a_stash_on_the_host_moves_every_boundary)
{
    ck_assert_uint_eq(cost().stash_bytes, 0);
    choice.host_stash = true;
    const uint64_t boundary = TOKENS * 64 * 4;
    ck_assert_uint_ge(cost().stash_bytes, 4 * 5 * boundary);
    ck_assert_uint_le(cost().stash_bytes, 9 * 5 * boundary);
    ck_assert_double_eq_tol(cost().stash_ms, (double)cost().stash_bytes / 1e6 * 1e3, 1e-9);
}

TEST(a_device_that_takes_turns_overlaps_nothing_and_its_workers_share_it)
{
    const struct plan_cost c = cost();

    ck_assert_double_eq_tol(c.step_ms, c.compute_ms + c.pull_ms + c.push_ms + c.stash_ms + c.optimizer_ms, 1e-9);
    host.n_workers = 2; /* one part: the other worker has nothing to do */
    ck_assert_double_eq(cost().step_ms, c.step_ms);
    host.goal.n_parts = 2;
    ck_assert_double_eq_tol(cost().compute_ms, 2 * c.compute_ms, 1e-9);
}

/* With a link as fast as could be the step is what it computes; with a slow one, what it pulls and pushes. With one
 * buffer, and so one sum, each waits for what was before it; with two, only the first does nothing else meanwhile. */
TEST(a_device_beside_the_host_hides_what_is_shorter)
{
    const struct plan_backend beside = backend_beside(&plan_cpu);

    setting.backend = &beside;
    profile.update_parameters_per_s = profile.link_bytes_per_s = 1e18;
    ck_assert_double_eq_tol(cost().step_ms, cost().compute_ms, 1e-6);
    profile.link_bytes_per_s = 1e7;
    const struct plan_cost one = cost();
    choice.n_weight_buffers = 2;
    const struct plan_cost two = cost();
    choice.n_weight_buffers = 3;
    ck_assert_double_eq_tol(one.step_ms, one.pull_ms + one.compute_ms + one.push_ms, 1e-6);
    ck_assert_double_gt(one.step_ms, two.step_ms);
    ck_assert_double_ge(two.step_ms, cost().step_ms);
    ck_assert_double_ge(cost().step_ms, cost().pull_ms);
    ck_assert_double_lt(two.step_ms, two.pull_ms + two.push_ms + two.compute_ms);
}

/* All that is pulled stays, so backward moves contributions alone, each shorter than a block's computing. With one sum
 * each is waited for before the next visit. With two, the upper block waits for the head's, whose sum it uses (the norm
 * between them computes nothing to speak of); the norm's and its own hide behind a block; below the lower one nothing
 * is computed. */
TEST(contributions_hide_behind_computing_where_there_are_two_sums)
{
    const struct plan_backend beside = backend_beside(&plan_cpu);
    struct plan_cost one, two;
    struct plan plan;

    setting.backend = &beside;
    profile.update_parameters_per_s = 1e18;
    profile.link_bytes_per_s = 1e7;
    choice.n_weight_buffers = 2;
    choice.n_resident = 4;
    plan_lay_out(&plan, &model, &setting, &choice);
    plan_cost(&two, &plan, &model, &host, &profile, NULL);
    ck_assert_uint_eq(plan.n_sums, 2);
    plan.n_sums = 1;
    plan_cost(&one, &plan, &model, &host, &profile, NULL);
    ck_assert_double_eq_tol(one.step_ms - two.step_ms, (NORM + BLOCK) * 4 / 1e7 * 1e3, 1e-6);
}

/* A tile goes to the host, and from there to the next visit. Where a visit has no other, both ways are waited for; two
 * microbatches of half the rows hide what is shorter than they are. */
TEST(a_lone_microbatch_waits_for_its_tile)
{
    const struct plan_backend beside = backend_beside(&plan_cpu);

    setting.backend = &beside;
    profile.update_parameters_per_s = 1e18;
    profile.link_bytes_per_s = 1e8;
    choice.n_weight_buffers = 2, choice.n_resident = 4, choice.host_stash = true;
    const struct plan_cost one = cost();
    choice.microbatch = ROWS / 2;
    const struct plan_cost two = cost();
    ck_assert_double_ge(one.step_ms, one.compute_ms + one.stash_ms + one.push_ms);
    ck_assert_double_lt(two.step_ms, two.compute_ms + two.stash_ms + two.push_ms);
}

/* It binds when it takes longer than all else; and so does its memory, which the link's bytes pass too. */
TEST(the_optimizer_works_on_while_the_next_step_begins)
{
    const struct plan_backend beside = backend_beside(&plan_cpu);

    setting.backend = &beside;
    choice.n_weight_buffers = 2;
    profile.link_bytes_per_s = 1e9, profile.update_parameters_per_s = 1e5;
    const struct plan_cost c = cost();
    ck_assert_double_gt(c.optimizer_ms, c.compute_ms + c.push_ms);
    ck_assert_double_eq_tol(c.step_ms, c.optimizer_ms, 1e-9 * c.step_ms);
    profile.host_bytes_per_s = 28 * 1e5;
    ck_assert_double_eq_tol(cost().step_ms, c.optimizer_ms + (double)(c.down_bytes + c.up_bytes) / 28e5 * 1e3,
                            1e-9 * c.step_ms);
}

/* A row more or less in the last microbatch, and rates that rise with rows. */
TEST(what_is_left_of_a_part_is_a_microbatch_of_its_own)
{
    choice.microbatch = 3;
    const double uneven = cost().compute_ms;
    choice.microbatch = 4;
    ck_assert_double_eq_tol(uneven, cost().compute_ms, 1e-9); /* one rate for all rows */
    profile.matmul_flops[NUMBER_FP32][1] = 8e9;
    const double whole = cost().compute_ms;
    choice.microbatch = 2;
    ck_assert_double_gt(cost().compute_ms, whole);
}

TEST(evaluating_goes_up_once_and_generating_reads_each_weight_for_a_token)
{
    setting.goal.purpose = PLAN_EVALUATE;
    ck_assert_uint_eq(cost().down_bytes, 4 * (2 * BLOCK + NORM + TABLE + 2 * TOKENS * 64));
    ck_assert_uint_eq(cost().up_bytes, 0);
    ck_assert_double_eq(cost().push_ms + cost().optimizer_ms, 0);
    setting.goal.purpose = PLAN_GENERATE;
    setting.share_rows = setting.part_rows = choice.microbatch = 1;
    ck_assert_uint_eq(cost().down_bytes, 4 * (2 * BLOCK + NORM + TABLE + 2 * 64));
    choice.n_resident = 4;
    ck_assert_uint_eq(cost().down_bytes, 4 * 2 * 64);
    profile.memory_bytes_per_s = 1e9; /* and keys and values of 32 positions in both blocks */
    const double weights = 2 * BLOCK + NORM + TABLE, cached = 2 * 2 * 32 * 64;
    ck_assert_double_eq_tol(cost().compute_ms, 4.0 * (weights + cached) / 1e9 * 1e3, 1e-9);

    /* Of three texts: in one product where the backend joins their rows, else in three. */
    setting.share_rows = setting.part_rows = choice.microbatch = 3;
    ck_assert_uint_eq(cost().down_bytes, 4 * 3 * 2 * 64);
    ck_assert_double_eq_tol(cost().compute_ms, 4.0 * (weights + 3 * cached) / 1e9 * 1e3, 1e-9);
    setting.backend = &plan_cuda;
    ck_assert_double_eq_tol(cost().compute_ms, 4.0 * 3 * (weights + cached) / 1e9 * 1e3, 1e-9);
}
