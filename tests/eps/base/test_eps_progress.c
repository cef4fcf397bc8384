/* Where a worker is, told from its messages alone. */
#include "eps/base/progress.h"
#include "tests/kit/inprocess/store_fixture.h"
#include "tests/kit/test.h"

/* Visits bottom to top: wte, wpe, h.0, h.1, ln_f, and wte again in the head: units 0 1 2 3 4 0. */
static struct model model;
static struct progress progress;

static void setup(void)
{
    struct model_config config = store_fixture_small;

    config.tied = true;
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

/* Pulls the weights of a visit; where it stands then. */
static void pull(uint32_t visit, enum message_phase phase)
{
    progress_pull(&progress, &model, NULL, model.visits[visit], 10);
    ck_assert_uint_eq(progress.phase, phase);
    ck_assert_uint_eq(progress.visit, visit);
}

TEST(a_step_goes_up_and_down_again)
{
    progress_begin(&progress, PHASE_FORWARD, 4, 2);
    ck_assert_uint_eq(progress.part, 4);
    for (uint32_t v = 0; v < 6; v++)
        pull(v, PHASE_FORWARD);
    progress_loss(&progress, &model, 5);
    ck_assert(progress.phase == PHASE_BACKWARD && progress.visit == 5 && progress.part == 5);
    for (uint32_t v = 5; v-- > 0;) {
        pull(v, PHASE_BACKWARD);
        progress_contribution(&progress, v, 4, 3);
        ck_assert(progress.phase == PHASE_BACKWARD && progress.visit == v);
    }
    progress_begin(&progress, PHASE_FORWARD, 0, 1);
    ck_assert(progress.phase == PHASE_FORWARD && progress.visit == 0);
    ck_assert_uint_eq(progress.down_bytes, 110);
    ck_assert_uint_eq(progress.up_bytes, 15);
}

/* A head that does not fit at once visits its units twice, before the loss is known. An evaluation begins again at the
 * bottom: the next microbatch. */
TEST(what_lies_below_is_not_forward_but_in_an_evaluation)
{
    progress_begin(&progress, PHASE_FORWARD, 0, 1);
    pull(4, PHASE_FORWARD);
    pull(3, PHASE_BACKWARD);
    progress_begin(&progress, PHASE_EVALUATING, 0, 0);
    pull(3, PHASE_EVALUATING);
    pull(1, PHASE_EVALUATING);
}

/* The ticks that pass until it is said to hang; 0: more than 1,000. */
static unsigned ticks_left(struct silence w, bool owes, uint64_t count, double allowance)
{
    for (unsigned n = 1; n <= 1000; n++)
        if (silence_tick(&w, owes, count, 3, allowance))
            return n;
    return 0;
}

TEST(the_limit_is_a_multiple_of_the_longest_silence_that_ended_well)
{
    struct silence w = {0};

    ck_assert_uint_eq(ticks_left(w, true, 0, 0), 4);
    ck_assert_uint_eq(ticks_left(w, true, 0, 2.5), 6);
    ck_assert_uint_eq(ticks_left(w, false, 0, 0), 0); /* waiting is no silence */
    for (int i = 0; i < 3; i++)
        ck_assert(!silence_tick(&w, true, 0, 3, 0));
    ck_assert(!silence_tick(&w, true, 1, 3, 0)); /* it has come back after 3 */
    ck_assert_uint_eq(ticks_left(w, true, 1, 0), 25);
    for (int i = 0; i < 20; i++)
        ck_assert(!silence_tick(&w, true, 1, 3, 0));
    ck_assert(!silence_tick(&w, false, 1, 3, 0)); /* nothing is owed any more */
    ck_assert_uint_eq(ticks_left(w, true, 1, 0), 25);
}

/* The ticks of a deadline that others wait for, until it is missed. */
static unsigned ticks_to(struct deadline d, double allowance)
{
    for (unsigned n = 1; n <= 1000; n++)
        if (deadline_tick(&d, true, 10, allowance))
            return n;
    return 0;
}

static void pass(struct deadline *d, unsigned n_ticks, bool owes)
{
    for (unsigned i = 0; i < n_ticks; i++)
        ck_assert(!deadline_tick(d, owes, 10, 0));
}

/* By hand: 10 at least; 8 x 6 ticks for 2 parts, 8 x 6 x 3 for 6 of them; with longer rows, the allowance. */
TEST(a_share_has_eight_times_what_as_much_work_has_taken)
{
    struct deadline d = {.open = false};

    deadline_begin(&d, 0, 2, 100);
    ck_assert_uint_eq(ticks_to(d, 3), 11);
    ck_assert_uint_eq(ticks_to(d, 70.5), 71);
    pass(&d, 6, false); /* waiting for others is part of its time */
    deadline_meet(&d);
    deadline_begin(&d, 1, 2, 100);
    ck_assert_uint_eq(ticks_to(d, 70.5), 49);
    pass(&d, 100, false);
    ck_assert_uint_eq(ticks_to(d, 0), 49);
    deadline_begin(&d, 2, 1, 50);
    ck_assert_uint_eq(ticks_to(d, 70.5), 49);
    deadline_begin(&d, 2, 6, 100);
    ck_assert_uint_eq(ticks_to(d, 70.5), 145);
    deadline_begin(&d, 3, 2, 101);
    ck_assert_uint_eq(ticks_to(d, 70.5), 71);
}

/* It has done some of it before. */
TEST(the_time_of_a_share_that_was_given_again_is_nobody_s_measure)
{
    struct deadline d = {.open = false};

    deadline_begin(&d, 0, 2, 100);
    deadline_begin(&d, 0, 3, 100);
    pass(&d, 6, false);
    deadline_meet(&d);
    deadline_begin(&d, 1, 3, 100);
    ck_assert_uint_eq(ticks_to(d, 70.5), 71);
}

/* Of an answer, no share is a measure. */
TEST(an_answer_has_its_allowance)
{
    struct deadline d = {.open = false};

    deadline_begin(&d, 0, 2, 100);
    pass(&d, 6, false);
    deadline_meet(&d);
    deadline_begin(&d, 0, 0, 0);
    ck_assert_uint_eq(ticks_to(d, 3), 11);
    ck_assert_uint_eq(ticks_to(d, 70.5), 71);
}
