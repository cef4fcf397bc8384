/* Where a worker is, told from its messages alone. */
#include "eps/base/progress.h"
#include "tests/kit/test.h"

/* Visits bottom to top: wte, wpe, h.0, h.1, ln_f, and wte again in the head: units 0 1 2 3 4 0. */
static struct model model;
static struct progress progress;

static void setup(void)
{
    const struct model_config config = {.family = &family_gpt2,
                                        .n_layers = 2,
                                        .n_heads = 1,
                                        .width = 8,
                                        .inner_width = 32,
                                        .n_positions = 8,
                                        .vocabulary = 256,
                                        .tied = true,
                                        .gpt2.scale_attention = true,
                                        .norm_epsilon = 1e-5f,
                                        .initializer_range = 0.02f};

    ck_assert_int_eq(model_init(&model, &config, NULL), 0);
    ck_assert_uint_eq(model.n_visits, 6);
    ck_assert_uint_eq(model.visits[5], model.visits[0]);
    progress = (struct progress){.phase = PHASE_RESTING};
}

static void teardown(void)
{
    model_free(&model);
}

SUITE_FIXTURE(setup, teardown)

static void pull_visit(uint32_t visit)
{
    progress_pull(&progress, &model, model.visits[visit], 10);
}

static void check(enum message_phase phase, uint32_t visit)
{
    ck_assert_uint_eq(progress.phase, phase);
    ck_assert_uint_eq(progress.visit, visit);
}

TEST(a_step_goes_up_and_down_again)
{
    progress_begin(&progress, PHASE_FORWARD, 4, 2);
    ck_assert_uint_eq(progress.part, 4);
    for (uint32_t v = 0; v < 6; v++) {
        pull_visit(v);
        check(PHASE_FORWARD, v);
    }
    progress_loss(&progress, &model, 5);
    check(PHASE_BACKWARD, 5);
    ck_assert_uint_eq(progress.part, 5);
    for (uint32_t v = 5; v-- > 0;) {
        pull_visit(v);
        check(PHASE_BACKWARD, v);
        progress_contribution(&progress, v, 4, 3);
        check(PHASE_BACKWARD, v);
    }
    ck_assert_uint_eq(progress.down_bytes, 110);
    ck_assert_uint_eq(progress.up_bytes, 15);
    progress_begin(&progress, PHASE_FORWARD, 0, 1);
    check(PHASE_FORWARD, 0);
    ck_assert_uint_eq(progress.down_bytes, 110);
}

/* A head that does not fit at once visits its units twice, before the loss is known. */
TEST(what_lies_below_is_not_forward)
{
    progress_begin(&progress, PHASE_FORWARD, 0, 1);
    pull_visit(4);
    pull_visit(3);
    check(PHASE_BACKWARD, 3);
}

/* The next microbatch. */
TEST(evaluation_begins_again_at_the_bottom)
{
    progress_begin(&progress, PHASE_EVALUATING, 0, 0);
    pull_visit(3);
    check(PHASE_EVALUATING, 3);
    pull_visit(1);
    check(PHASE_EVALUATING, 1);
}
