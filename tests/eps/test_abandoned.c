/* A detached job that only its user's client could save, in the daemon's ticks: who waits decides when it ends. */
#include "eps/takeover.h"
#include "tests/kit/test.h"
#include "tests/proto/wire/session_of.h"

#include <string.h>
#include <unistd.h>

enum { OWNER_OF_JOB = 1234, TICKS = 60 };

static struct daemon d;
static struct job job;
static struct peer client;
static struct queue_entry waiting;

/* A job of a user, and another one that waits. */
static void begin(void)
{
    memset(&d, 0, sizeof d);
    job = (struct job){.peers = &d.peers,
                       .state = JOB_RESTING,
                       .id = 7,
                       .uid = OWNER_OF_JOB,
                       .detached = true,
                       .output = -1,
                       .request.job.goal.purpose = PLAN_TRAIN};
    d.job = d.saves.job = d.steps.job = &job;
    client = (struct peer){.session = session_of(OWNER_OF_JOB + 1)};
    waiting = (struct queue_entry){.client = &client};
    d.queue = (struct queue){.first = &waiting, .n = 1, .most = 16};
}

static void end(void)
{
}

SUITE_FIXTURE(begin, end)

static void tick(unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        takeover_tick(&d);
}

TEST(it_ends_once_another_user_has_waited)
{
    tick(TICKS);
    ck_assert_int_eq(job.state, JOB_RESTING);
    tick(1);
    ck_assert_int_eq(job.state, JOB_ENDING);
    ck_assert_holds(job.end.text, "60 s");
}

TEST(it_stays_while_nobody_else_waits)
{
    d.queue.first = NULL;
    tick(10 * TICKS);
    d.queue.first = &waiting;
    client.session = session_of(OWNER_OF_JOB);
    tick(10 * TICKS);
    ck_assert_int_eq(job.state, JOB_RESTING);
    client.session = session_of(OWNER_OF_JOB + 1); /* only the time in which others wait counts */
    tick(TICKS);
    ck_assert_int_eq(job.state, JOB_RESTING);
}

/* Whoever takes it over has the whole time again, should they be lost, too. */
TEST(what_others_waited_before_it_was_taken_over_does_not_count)
{
    struct peer heir = {.session = session_of(OWNER_OF_JOB)};

    job.side_file = file_own(STDIN_FILENO);
    tick(TICKS);
    takeover_take(&d, &heir, 7);
    ck_assert(!job.detached);
    takeover_on_client_gone(&d, &heir, END_LOST);
    ck_assert(job.detached);
    tick(TICKS);
    ck_assert_int_eq(job.state, JOB_RESTING);
    tick(1);
    ck_assert_int_eq(job.state, JOB_ENDING);
}

/* What others it may have ended by, it did not choose. */
TEST_RANGE(the_job_of_a_client_that_left_on_purpose_ends_and_no_other, END_FAULT, END_DISMISSED + 1)
{
    struct peer heir = {.session = session_of(OWNER_OF_JOB)};

    job.side_file = file_own(STDIN_FILENO);
    takeover_take(&d, &heir, 7);
    takeover_on_client_gone(&d, &heir, (enum message_end)_i);
    ck_assert_int_eq(job.detached, _i != END_CLOSED);
    ck_assert_int_eq(job.state, _i == END_CLOSED ? JOB_ENDING : JOB_RESTING);
}

TEST(it_stays_while_it_has_a_client)
{
    job.detached = false;
    tick(10 * TICKS);
    ck_assert_int_eq(job.state, JOB_RESTING);
}

/* The daemon saves it before it ends: takeover_go_on. */
TEST(one_that_the_daemon_can_save_does_not_end_unsaved)
{
    job.output = STDIN_FILENO;
    tick(10 * TICKS);
    ck_assert_int_eq(job.state, JOB_RESTING);
}
