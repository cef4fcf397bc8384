#include "tests/kit/inprocess/model.h"
#include "tests/kit/test.h"

#include "proto/operation/operation.h"
#include "proto/plan/memory/plan.h"

#include <errno.h>
#include <string.h>

static struct model model;
static struct plan_setting setting;
static struct plan_choice choice;

/* To train so many parts, each in one microbatch. */
static void ask(uint32_t parts, uint32_t part_rows, uint32_t seq)
{
    setting = (struct plan_setting){.backend = &plan_cpu,
                                    .goal = {.purpose = PLAN_TRAIN, .seq = seq},
                                    .share_rows = parts * part_rows,
                                    .part_rows = part_rows,
                                    .n_threads = 2};
    choice = (struct plan_choice){.microbatch = part_rows, .n_weight_buffers = 2};
}

static int check(struct error *err)
{
    const int rc = plan_check(&model, &setting, err);

    return rc ? rc : plan_check_choice(&model, &setting, &choice, err);
}

/* Two blocks of width 8; two parts of three rows of 5 tokens. */
static void set_up(void)
{
    const struct model_config config = GPT2_CONFIG(2, 2, 8, 32, 64, 11, .tied = true);

    ck_assert_int_eq(model_init(&model, &config, NULL), 0);
    ask(2, 3, 5);
}

static void tear_down(void)
{
    model_free(&model);
}

SUITE_FIXTURE(set_up, tear_down)

TEST(blocks_of_pixels_have_a_side_of_2_4_or_8)
{
    struct error err = {""};

    for (uint32_t side = 0; side <= 16; side++) {
        setting.goal.pooled = side;
        ck_assert_int_eq(check(&err), side == 0 || side == 2 || side == 4 || side == 8 ? 0 : -EINVAL);
    }
    ck_assert_str_eq(err.text, "means of 16 by 16 pixels: of 2, 4 and 8 are possible");
}

/* A program of a family that mixes tokens, a row's single label, and a text that is generated. */
TEST(rows_that_cannot_be_packed_are_refused)
{
    struct program_operation *const op = model.programs[model.block].program.operations;
    const struct operation *const kind = op->kind;
    struct error err = {""};

    setting.goal.packs = true;
    ck_assert_int_eq(check(&err), 0);
    op->kind = &operation_batch_norm;
    ck_assert_int_eq(check(&err), -EINVAL);
    ck_assert_str_eq(err.text, "a gpt2 model cannot keep documents of one row apart (batch norm mixes them): leave out "
                               "--pack");
    op->kind = kind;
    model.config.n_labels = 2;
    ck_assert_int_eq(check(&err), -EINVAL);
    ck_assert_str_eq(err.text, "a gpt2 model with labels has one for each row: leave out --pack");
    model.config.n_labels = 0;
    ask(1, 1, 5);
    setting.goal.packs = true, setting.goal.purpose = PLAN_GENERATE;
    ck_assert_int_eq(check(&err), -EINVAL);
    ck_assert_str_eq(err.text, "a job that generates has neither packed rows nor preferences nor weights");
}

/* Of a case: 0 is not said, and the largest number is 0. */
static uint32_t given(uint32_t value, uint32_t otherwise)
{
    return value == UINT32_MAX ? 0 : value ? value : otherwise;
}

/* Of the model of set_up; what is not said is one row of 8 tokens in one part, in microbatches of one. */
TEST(impossible_options_and_choices_are_refused_by_name)
{
    static const struct {
        struct plan_setting setting;
        struct plan_choice choice;
        const char *name;
    } cases[] = {
        {{.part_rows = 4}, {.microbatch = 5}, "--microbatch 5"},
        {{.goal.seq = 65}, {0}, "--seq 65"},
        {{.share_rows = UINT32_MAX}, {0}, "0 rows"},
        {{.part_rows = UINT32_MAX}, {0}, "0 rows"},
        {{.goal.seq = UINT32_MAX}, {0}, "0 tokens"},
        {{0}, {.n_weight_buffers = UINT32_MAX}, "0 weight buffers"},
        {{0}, {.n_weight_buffers = 4}, "4 weight"},
        {{.part_rows = 1u << 30}, {0}, "too many"},
        {{0}, {.microbatch = UINT32_MAX}, "--microbatch 0"},
        {{.part_rows = (1 << 25) + 1}, {0}, "at most 268435456 tokens"},
        {{.share_rows = PLAN_MAX_PARTS + 1}, {0}, "65537 rows in parts of 1"},
        {{0}, {.n_sums = PLAN_MAX_SUMS + 1}, "17 sums"},
        {{.goal.purpose = PLAN_GENERATE, .share_rows = 2}, {0}, "up to 64 texts in one part, not 2 in 2"},
        {{.goal.purpose = PLAN_GENERATE, .share_rows = 65, .part_rows = 65}, {0}, "not 65 in 1"},
        {{0}, {.host_stash = true, .keeping = {{1, 1}}}, "1 blocks keep activations"},
        {{0}, {.keeping = {{3, 1}}}, "3 blocks keep activations"},
        {{.goal.purpose = PLAN_EVALUATE}, {.keeping = {{1, 1}}}, "1 blocks keep activations"},
        {{0}, {.keeping = {{1}}}, "1 blocks keep set 0"},
        {{0}, {.keeping = {{.kept = 1}}}, "0 blocks keep set 1"},
        {{0}, {.keeping = {{.kept_below = 1}}}, "the others set 1:"},
        {{0}, {.keeping = {{1, 16}}}, "keep set 16"},
        {{0}, {.keeping = {{1, 1, 16}}}, "the others set 16"},
        {{.goal.purpose = PLAN_EVALUATE}, {.whole_head = true}, "whole only in training"},
        {{0}, {.sparse_singly = true}, "decoded singly only in training, if there are any"},
        {{.goal.purpose = PLAN_GENERATE}, {.host_stash = true}, "no stash"},
        {{0}, {.n_resident = 5}, "5 resident units: this model has 4"},
        {{.goal.purpose = PLAN_EVALUATE}, {.n_cuts = 1, .cuts = {1}}, "1 cuts between segments of layers"},
        {{0}, {.n_cuts = PLAN_MAX_CUTS + 1}, "65 cuts"},
        {{0}, {.derives = true}, "derived again of residual nets alone"},
        {{0}, {.n_cuts = 1}, "begin at layer 0, as cut 1 of 1"},
        {{0}, {.n_cuts = 2, .cuts = {2, 2}}, "begin at layer 2, as cut 2 of 2"},
        {{0}, {.n_cuts = 1, .cuts = {100}}, "begin at layer 100"},
        {{0}, {.n_cuts = 1, .cuts = {1}, .keeping = {{1, 1}}}, "1 blocks keep activations"},
        {{.goal.purpose = PLAN_GENERATE}, {.n_resident = 5}, "5 resident units: this model has 4"},
    };
    struct error err;

    for (int i = 0; i < COUNT(cases); i++) {
        const struct plan_setting *s = &cases[i].setting;
        choice = cases[i].choice;
        ask(1, given(s->part_rows, 1), given(s->goal.seq, 8));
        if (s->share_rows)
            setting.share_rows = given(s->share_rows, 1);
        setting.goal.purpose = s->goal.purpose;
        choice = cases[i].choice;
        choice.microbatch = given(choice.microbatch, 1);
        choice.n_weight_buffers = given(choice.n_weight_buffers, 1);
        ck_assert_msg(check(&err) == -EINVAL && strstr(err.text, cases[i].name), "%s: %s", cases[i].name, err.text);
    }
}
