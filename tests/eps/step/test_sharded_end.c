/* What another host tells of a step's end is used only if it can be; else the job ends. Host 0 hears of host 1, with
 * step 5 open and steps up to 4 done. */
#include "eps/step/sharded_state.h"
#include "tests/kit/test.h"

#include <errno.h>

enum { OPEN = 5 };

static struct peers peers;
static struct job job;
static struct steps steps;
static struct sharded_host others[2];
static struct sharded sharded;

static void setup(void)
{
    job = (struct job){.peers = &peers, .state = JOB_STEPPING};
    steps = (struct steps){.job = &job};
    for (int h = 0; h < 2; h++)
        others[h] = (struct sharded_host){.covered = OPEN, .done = OPEN};
    sharded =
        (struct sharded){.steps = &steps, .job = &job, .n = 2, .others = others, .n_opened = OPEN + 1, .n_done = OPEN};
}

SUITE_FIXTURE(setup, NULL)

static void hear(enum host_message_kind kind, uint64_t step)
{
    sharded_on_message_of_end(&sharded, 1, &(struct host_message){.kind = kind, .step = step});
}

static void expect_ended(void)
{
    ck_assert_int_eq(job.state, JOB_ENDING);
    ck_assert_int_eq(job.end_code, -EPROTO);
    ck_assert_holds(job.end.text, "host 1 tells of ", " of a step that cannot be");
}

static const struct {
    enum host_message_kind kind;
    uint64_t step;
} wrongs[] = {
    {HOST_COVERED, OPEN + 1}, {HOST_COVERED, OPEN - 1}, {HOST_COVERED, UINT64_MAX},
    {HOST_DONE, OPEN - 1},    {HOST_DONE, UINT64_MAX},  {HOST_DONE, OPEN}, /* it is not covered yet */
};

TEST_EACH(a_step_that_cannot_end_ends_the_job, COUNT(wrongs))
{
    hear(wrongs[_i].kind, wrongs[_i].step);
    expect_ended();
}

TEST(a_step_is_covered_and_then_done)
{
    hear(HOST_COVERED, OPEN);
    hear(HOST_DONE, OPEN);
    ck_assert_int_eq(job.state, JOB_STEPPING);
    ck_assert_uint_eq(others[1].covered, OPEN + 1);
    ck_assert_uint_eq(others[1].done, OPEN + 1);
}

TEST_EACH(and_each_of_them_once, 2)
{
    hear(HOST_COVERED, OPEN);
    hear(HOST_DONE, OPEN);
    hear(_i ? HOST_DONE : HOST_COVERED, OPEN);
    expect_ended();
}

TEST_EACH(host_0_alone_hears_of_them, 2)
{
    sharded.host = 1;
    others[1].covered = OPEN + (uint64_t)_i;
    hear(_i ? HOST_DONE : HOST_COVERED, OPEN);
    expect_ended();
}
