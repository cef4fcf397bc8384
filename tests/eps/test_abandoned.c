/* A job whose client is gone or away, in the daemon's ticks: who waits decides when it ends. */
#include "eps/takeover.h"
#include "tests/kit/test.h"
#include "tests/proto/wire/session_of.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { OWNER_OF_JOB = 1234, TICKS = 60, AWAY = 300, ASKED = 30 };

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
    d.most_away = AWAY;
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

/* ---- a client that lives, and asks for nothing ------------------------------------------------------------------- */

/* Of a job that trains, with a directory. */
static void have_client(void)
{
    static struct peer own;

    own = (struct peer){.session = session_of(OWNER_OF_JOB)};
    job.detached = false;
    job.client = &own;
    job.output = STDIN_FILENO;
}

TEST(a_client_may_be_away_as_long_as_nobody_waits)
{
    have_client();
    d.queue.first = NULL;
    tick(100 * AWAY);
    ck_assert(job.state == JOB_RESTING && !job.yields);
}

/* Users do not count here: an owner's next job waits for the owner's notebook, too. */
TEST_EACH(a_client_that_is_away_gives_way_once_others_have_waited, 2)
{
    have_client();
    client.session = session_of(OWNER_OF_JOB + (uid_t)_i);
    tick(AWAY);
    ck_assert(!job.yields);
    tick(1);
    ck_assert(job.state == JOB_RESTING && job.yields);
    d.queue.first = NULL; /* whoever waited has gone: there is no hurry */
    tick(1);
    ck_assert(!job.yields);
}

/* Before the job gives way, and while it is being saved. */
TEST_EACH(whatever_it_asks_for_begins_its_time_anew, 2)
{
    have_client();
    tick(AWAY + (unsigned)_i);
    takeover_on_client_heard(&d);
    tick(AWAY);
    ck_assert(!job.yields);
}

/* So does what it waits for itself. */
TEST_EACH(a_client_that_waits_for_the_daemon_is_not_away, JOB_STATES)
{
    have_client();
    if (_i == JOB_NONE || _i == JOB_RESTING || _i == JOB_ENDING)
        TEST_SKIP("no such job is abandoned");
    job.state = (enum job_state)_i;
    tick(10 * AWAY);
    job.state = JOB_RESTING;
    tick(AWAY);
    ck_assert(!job.yields);
}

TEST_EACH(a_job_that_does_not_train_ends_at_once_as_nothing_is_lost, 2)
{
    have_client();
    job.request.job.goal.purpose = _i ? PLAN_GENERATE : PLAN_EVALUATE;
    job.output = -1;
    tick(AWAY);
    ck_assert_int_eq(job.state, JOB_RESTING);
    tick(1);
    ck_assert_int_eq(job.state, JOB_ENDING);
    ck_assert_holds(job.end.text, "its client asked for nothing for 300 s while others waited");
    ck_assert_int_eq(job.end_code, -EAGAIN);
}

TEST(a_job_that_only_its_client_can_save_has_another_minute)
{
    have_client();
    job.output = -1, job.request.job.files = true;
    tick(AWAY + TICKS);
    ck_assert_int_eq(job.state, JOB_RESTING);
    tick(1);
    ck_assert_int_eq(job.state, JOB_ENDING);
    ck_assert_holds(job.end.text, "unsaved: its client asked for nothing", "only it could save");
    ck_assert_int_eq(job.end_code, -EAGAIN); /* it may come again */
}

/* It has 60 s for that, so the daemon saves in the second half. By the end of the job, or of the daemon. */
TEST_EACH(a_client_that_was_asked_to_save_and_is_away_is_saved_by_the_daemon, 2)
{
    have_client();
    d.queue.first = NULL;
    d.patience = 2 * ASKED;
    if (_i)
        d.asked = "by a test";
    else
        job.asked = true;
    tick(ASKED);
    ck_assert(!job.yields);
    tick(1);
    ck_assert(job.yields);
}
