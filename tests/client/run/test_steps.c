/* The course of a run, against a daemon that is played: when it opens steps, evaluates and requests checkpoints; what
 * ends it early; and how it goes on. Each test is one promise of client/run/steps/steps.h. */
#include "tests/client/run/played_daemon.h"
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/inprocess/stage.h"
#include "tests/kit/test.h"

#include "client/run/steps/steps.h"
#include "proto/model/gpt2.h"
#include "proto/plan/memory/data.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BATCH = 2, SEQ = PLAYED_SEQ, N_TOKENS = 100, N_TRAIN = 80, NEVER = PLAYED_NEVER };

static struct stage st; /* its loop is there to the end of this process */
static pid_t daemon_pid;
static struct client_data data;
static const struct model_config config = {.family = &family_gpt2, .vocabulary = 256};
static struct client_run run;
static struct client_link link_;
static struct client_job job;
static struct client_steps steps;

/* What the user hears, and wants. */
static struct {
    char notes[4000];
    uint64_t evaluated[10], saved[30];
    double losses[10];
    unsigned n_evaluated, n_saved, n_failed, n_steps;
    uint64_t stop_after;  /* steps after which a stop is requested */
    int stop;             /* 1 or 2 */
    const char *stops_on; /* the beginning of a note with which the stop is requested; or NULL */
    bool removes;         /* metrics.jsonl goes with each step */
    /* When the evaluation began that the first SAVED comes with; what is then due, and at the least and most. */
    uint64_t late_ns, seen_due_ns, due_ns[2];
} user = {.stop_after = NEVER};

static void on_note(void *u, const char *sentence)
{
    (void)u;
    strncat(user.notes, sentence, sizeof user.notes - strlen(user.notes) - 1);
    strncat(user.notes, "\n", sizeof user.notes - strlen(user.notes) - 1);
}

static void on_step(void *u, const struct eps_step *step)
{
    (void)u, (void)step;
    user.n_steps++;
    if (user.removes)
        unlink("out/metrics.jsonl");
}

static void on_evaluated(void *u, uint64_t step, double loss, uint64_t tokens)
{
    (void)u;
    ck_assert_uint_eq(tokens, SEQ);
    user.evaluated[user.n_evaluated] = step, user.losses[user.n_evaluated++] = loss;
}

/* A save that took a millisecond at least. */
static void on_evaluating(void *u, uint64_t n, uint64_t all)
{
    (void)u, (void)all;
    while (played.saves_late && n == 0 && steps.saving && uv_hrtime() - steps.asked_ns < 1000000)
        ;
    if (n == 0)
        user.late_ns = uv_hrtime();
}

static void on_saved(void *u, uint64_t step, const char *path)
{
    const uint64_t now = uv_hrtime();

    (void)u;
    ck_assert_str_eq(path, print("out/step-%ju", (uintmax_t)step));
    user.saved[user.n_saved++] = step;
    if (user.n_saved > 1)
        return;
    user.seen_due_ns = steps.due_ns;
    user.due_ns[0] = user.late_ns + (uint64_t)(97 / 3.0 * (double)(user.late_ns - steps.asked_ns));
    user.due_ns[1] = now + 1 + (uint64_t)(97 / 3.0 * (double)(now - steps.asked_ns));
}

static void on_save_failed(void *u, uint64_t step, const char *why)
{
    (void)u, (void)step, (void)why;
    user.n_failed++;
}

static int should_stop(void *u)
{
    (void)u;
    if (user.stops_on)
        return strstr(user.notes, user.stops_on) ? user.stop : 0;
    return user.n_steps >= user.stop_after ? user.stop : 0;
}

static const struct eps_train_events events = {.on_step = on_step,
                                               .on_evaluating = on_evaluating,
                                               .on_evaluated = on_evaluated,
                                               .on_saved = on_saved,
                                               .on_save_failed = on_save_failed,
                                               .on_note = on_note,
                                               .should_stop = should_stop};

static void open_rows(void)
{
    const struct client_source_setup with = {.config = &config, .data = &run.data, .eval_data = &run.eval_data};
    const struct client_division division = {
        .batch = BATCH, .seq = SEQ, .stride = SEQ, .n_train = N_TRAIN, .eval_tokens = SEQ};
    const struct client_source_rules rules = {.columns = NULL};
    const char *file = processes_text("data.txt", N_TOKENS);

    ck_assert_int_eq(client_source_open(&run.source, &client_source_text, &with, NULL), 0);
    ck_assert_int_eq(client_source_text.open_files(&run.data, &file, 1, NULL), 0);
    ck_assert_int_eq(client_source_text.read(run.source, CLIENT_TRAIN, &rules, NULL), 0);
    ck_assert_int_eq(client_source_divide(run.source, &division, NULL), 0);
    ck_assert_int_eq(client_source_make_room(run.source, BATCH, NULL), 0);
}

static uint64_t checkpoint_bytes; /* by which the first save is expected to take as many nanoseconds */

/* A run of five steps in the directory out, which saves and evaluates after the last one alone. */
static void setup(void)
{
    processes_setup();
    client_run_init(&run);
    open_rows();
    run.options = (struct eps_train_options){.steps = 5,
                                             .batch = BATCH,
                                             .seq = SEQ,
                                             .lr = 1,
                                             .save_every = NEVER,
                                             .order = EPS_SEQUENTIAL,
                                             .schedule = EPS_SCHEDULE_CONSTANT};
    snprintf(run.directory, sizeof run.directory, "%s", "out");
    outputs_make("out");
    run.directory_fd = open("out", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_ge(run.directory_fd, 0);
}

static void teardown(void)
{
    client_steps_free(&steps);
    client_job_free(&job);
    client_link_free(&link_);
    client_run_close(&run);
    client_data_free(&data);
    if (daemon_pid)
        stage_end_daemon(&st, daemon_pid);
    processes_remove();
}

SUITE_FIXTURE(setup, teardown)

/* Starts the daemon with its script, and the client's side of the job. */
static void attach(void)
{
    struct error err = {""};

    daemon_pid = stage_begin_daemon(&st, played_on_message);
    ck_assert_msg(client_link_init(&link_, &err) == 0 && client_link_open(&link_, st.directory, ROLE_CLIENT, &err) == 0,
                  "%s", err.text);
    job = (struct client_job){.link = &link_, .goal = {.batch = BATCH, .seq = SEQ}};
    ck_assert_int_eq(segment_create(&job.data, "data", plan_data_of(&job.goal, 0).bytes, SEGMENT_READ_WRITE, &err), 0);
    steps = (struct client_steps){
        .run = &run, .link = &link_, .job = &job, .events = &events, .checkpoint_bytes = checkpoint_bytes};
    client_steps_init(&steps);
    link_.watches[1] = (struct client_watch){.ask = client_steps_ask, .data = &steps};
}

/* The steps of a run, which ends with this code. */
static struct error expect_run(int code)
{
    struct error err = {""};

    attach();
    const int rc = client_steps_run(&steps, &err);
    ck_assert_msg(rc == code, "%d, not %d: %s", rc, code, err.text);
    return err;
}

static void expect_asked(const char *log)
{
    char *text = processes_read("log");

    ck_assert_str_eq(text, log);
    free(text);
}

/* What is in the run directory once its cleanup is over. */
static void expect_left(const char *names)
{
    client_steps_free(&steps);
    ck_assert_str_eq(outputs_names("out"), names);
}

static double metric(unsigned line, const char *key)
{
    char *text = processes_read("out/metrics.jsonl"), *at = text;

    for (unsigned i = 1; i < line; i++)
        at = strchr(at, '\n') + 1;
    json_t *values = json_loads(at, JSON_DISABLE_EOF_CHECK, NULL);
    json_t *value = json_object_get(values, key);
    const double number = json_is_number(value) ? json_number_value(value) : NAN;
    json_decref(values);
    free(text);
    return number;
}

/* ---- Steps and checkpoints ---- */

TEST(a_checkpoint_is_requested_once_its_steps_are_covered_and_before_the_next_opens)
{
    run.options.save_every = 2;
    expect_run(0);
    expect_asked("open 0|open 1|save 2|open 2|open 3|save 4|open 4|save 5|evaluate|");
    ck_assert_uint_eq(client_steps_saved(&steps), 5);
    ck_assert(client_steps_saved_here(&steps) && steps.save_rc == 0 && steps.metrics_rc == 0);
    expect_left("latest metrics.jsonl step-2 step-4 step-5 ");
}

/* That of step 1 is late: step 2 goes on meanwhile; its own checkpoint waits, and so does step 3. */
TEST(one_checkpoint_is_written_at_a_time)
{
    played.saves_late = true;
    run.options.save_every = 1, run.options.eval_every = 1, run.options.steps = 3;
    expect_run(0);
    expect_asked("evaluate|open 0|save 1|evaluate|open 1|evaluate|(saved 1)|save 2|open 2|save 3|evaluate|");
}

/* Each is done in turn, and has a line. */
TEST(every_step_has_a_line_of_its_own)
{
    expect_run(0);
    expect_asked("open 0|open 1|open 2|open 3|open 4|save 5|evaluate|");
    ck_assert_uint_eq(user.n_steps, 5);
    for (unsigned i = 1; i <= 5; i++) {
        ck_assert_double_eq(metric(i, "step"), i);
        ck_assert_double_eq(metric(i, "loss"), 11.0 - i);
        ck_assert_double_eq(metric(i, "tokens"), i * BATCH * SEQ);
        ck_assert_double_gt(metric(i, "step_ms"), 0);
    }
}

TEST(without_save_every_the_last_step_alone_is_saved)
{
    run.options.save_every = 0, run.options.save_minutes = 1e-9, run.options.steps = 2;
    run.options.eval_every = 1; /* each step is done before the next opens, so that one could be requested */
    expect_run(0);
    expect_asked("evaluate|open 0|evaluate|open 1|save 2|evaluate|");
}

/* So often that one is always due; each goes when there is a newer one, and what is left is what is due by step. */
TEST(a_checkpoint_that_is_due_by_time_alone_is_interim)
{
    run.options.save_minutes = 1e-9;
    expect_run(0);
    ck_assert_uint_gt(user.n_saved, 1);
    ck_assert_uint_eq(user.saved[0], 1);
    expect_left("latest metrics.jsonl step-5 ");
}

/* By hand: a save of a millisecond or more is 3 % of the time if 97 thirds as long follow without one; else it is the
 * minutes. */
TEST_EACH(the_next_one_by_time_is_due_after_the_minutes_or_what_makes_the_save_3_percent, 2)
{
    const uint64_t before = uv_hrtime(), minutes_ns = UINT64_C(120000000000);

    played.saves_late = true;
    run.options.save_every = 1, run.options.eval_every = 1, run.options.steps = 2;
    run.options.save_minutes = _i ? 2 : 1e-9;
    user.stop_after = 2, user.stop = 1; /* no further save */
    expect_run(0);
    ck_assert_uint_gt(user.n_saved, 0);
    if (_i)
        ck_assert(user.seen_due_ns >= before + minutes_ns && user.seen_due_ns <= uv_hrtime() + minutes_ns);
    else
        ck_assert_msg(user.seen_due_ns >= user.due_ns[0] && user.seen_due_ns <= user.due_ns[1], "%ju: %ju to %ju",
                      (uintmax_t)user.seen_due_ns, (uintmax_t)user.due_ns[0], (uintmax_t)user.due_ns[1]);
}

/* Step 1 proves best while its interim checkpoint is being written: it then counts among the two that are kept, also
 * when step 5 proves better. */
TEST(an_interim_checkpoint_whose_step_proves_best_meanwhile_is_kept)
{
    played.saves_late = true;
    played.n_losses = 6;
    memcpy(played.losses, (const double[]){9, 5, 6, 6, 6, 3}, 6 * sizeof(double));
    run.options.save_minutes = 1e-9, run.options.eval_every = 1, run.options.keep = 2;
    expect_run(0);
    ck_assert(user.saved[0] == 1 && steps.best.step == 5);
    expect_left("best latest metrics.jsonl step-1 step-5 ");
}

/* Where all is left to choose. A checkpoint of no bytes costs nothing: step 1 is saved when it proves best. It does not
 * count among those that are kept. */
TEST(by_default_the_best_and_the_last_are_saved)
{
    played.n_losses = 6;
    memcpy(played.losses, (const double[]){9, 5, 6, 6, 6, 6}, 6 * sizeof(double));
    run.options.save_every = UINT64_MAX, run.options.save_minutes = 10, run.options.eval_every = 1;
    run.options.eval_chosen = true, run.options.keep = 1;
    expect_run(0);
    ck_assert(user.n_saved == 2 && user.saved[0] == 1 && user.saved[1] == 5 && !*user.notes);
    ck_assert(steps.best.step == 1 && steps.kept.step == 1);
    expect_left("best latest metrics.jsonl step-1 step-5 ");
}

/* One that takes a year to write is not: no step has a checkpoint but the last, which is the best of those that have
 * one. With --eval-every or --patience the best has one in any case. */
TEST_EACH(a_best_that_takes_long_to_save_is_not_by_default, 3)
{
    checkpoint_bytes = UINT64_C(31536000000000000);
    played.n_losses = 6;
    memcpy(played.losses, (const double[]){9, 5, 6, 6, 6, 6}, 6 * sizeof(double));
    run.options.save_every = UINT64_MAX, run.options.save_minutes = 10, run.options.eval_every = 1;
    run.options.eval_chosen = _i < 2, run.options.patience = _i == 1 ? 9 : 0;
    expect_run(0);
    ck_assert_uint_eq(user.saved[0], _i ? 1 : 5);
    ck_assert_uint_eq(steps.kept.step, _i ? 1 : 5);
    if (_i)
        ck_assert_str_eq(user.notes, "");
    else
        ck_assert_holds(user.notes, "the lowest held-out loss, 5.0000 after step 1, has no checkpoint",
                        "with `eval_every` N each new lowest has one");
    expect_left(_i ? "best latest metrics.jsonl step-1 step-5 " : "best latest metrics.jsonl step-5 ");
}

TEST(the_oldest_go_but_those_that_are_kept)
{
    run.options.save_every = 1, run.options.keep = 2;
    expect_run(0);
    expect_left("latest metrics.jsonl step-4 step-5 ");
}

/* Which takes 2 s. */
TEST(a_full_disk_is_waited_for_with_the_last_checkpoint)
{
    played.n_full = 1;
    expect_run(0);
    expect_asked("open 0|open 1|open 2|open 3|open 4|save 5|evaluate|save 5|");
    ck_assert_uint_eq(user.n_failed, 1);
    ck_assert_holds(user.notes, "no room on disk for step-5");
    ck_assert(steps.save_rc == 0 && client_steps_saved(&steps) == 5);
}

TEST(a_stop_ends_the_wait_for_a_full_disk)
{
    played.n_full = 9;
    user.stop = 2, user.stops_on = "no room on disk";
    expect_run(0);
    expect_asked("open 0|open 1|open 2|open 3|open 4|save 5|evaluate|");
    ck_assert_int_eq(steps.save_rc, -ENOSPC);
    ck_assert_str_eq(steps.save_error.text, "no room");
    ck_assert_uint_eq(client_steps_saved(&steps), MESSAGE_NO_STEP);
}

/* One in the middle of the run is not waited for. */
TEST(a_checkpoint_that_could_not_be_written_does_not_end_the_run)
{
    played.n_full = 1;
    run.options.save_every = 3;
    expect_run(0);
    expect_asked("open 0|open 1|open 2|save 3|open 3|open 4|save 5|evaluate|");
    ck_assert(user.n_failed == 1 && steps.save_rc == 0);
    expect_left("latest metrics.jsonl step-5 ");
}

TEST(lines_that_could_not_be_written_do_not_end_the_run_and_are_told)
{
    user.removes = true;
    expect_run(0);
    ck_assert_uint_eq(user.n_steps, 5);
    ck_assert_uint_eq(user.n_failed, 1); /* once, not with each step */
    ck_assert_int_ne(steps.metrics_rc, 0);
    ck_assert(*steps.metrics_error.text);
}

/* ---- Evaluations ---- */

/* Before the first step, after every second one, and at the end. */
TEST(the_held_out_loss_is_measured_before_the_first_step_and_as_often_as_asked)
{
    static const uint64_t after[] = {0, 2, 4, 5};

    played.n_losses = 4;
    memcpy(played.losses, (const double[]){4, 3, 2, 1.5}, 4 * sizeof(double));
    run.options.eval_every = 2;
    expect_run(0);
    ck_assert_uint_eq(user.n_evaluated, 4);
    for (int i = 0; i < 4; i++) {
        ck_assert_uint_eq(user.evaluated[i], after[i]);
        ck_assert_double_eq(user.losses[i], played.losses[i]);
    }
    ck_assert_double_eq(metric(1, "eval_loss_before"), 4);
    ck_assert(isnan(metric(1, "eval_loss")) && isnan(metric(2, "eval_loss_before")));
    ck_assert_double_eq(metric(2, "eval_loss"), 3);
    ck_assert_double_eq(metric(5, "eval_loss"), 1.5);
}

/* Step 2 is the best of 9, 5, 3, 4, 4, 4: it is saved though no checkpoint is due, and stays beside the one that is
 * kept. */
TEST(the_best_evaluation_s_step_is_saved_and_best_names_it)
{
    char name[20] = "";

    played.n_losses = 6;
    memcpy(played.losses, (const double[]){9, 5, 3, 4, 4, 4}, 6 * sizeof(double));
    run.options.eval_every = 1, run.options.keep = 1;
    expect_run(0);
    expect_asked("evaluate|open 0|evaluate|save 1|open 1|evaluate|save 2|open 2|evaluate|open 3|evaluate|open 4|save 5|"
                 "evaluate|");
    ck_assert_int_gt(readlink("out/best", name, sizeof name - 1), 0);
    ck_assert_str_eq(name, "step-2");
    expect_left("best latest metrics.jsonl step-2 step-5 ");
    ck_assert(steps.best.step == 2 && steps.best.loss == 3 && steps.best.n_since == 3);
}

/* 5 is not reached again: two evaluations later the run ends as if it had been its last step. */
TEST(patience_ends_the_run_and_that_step_is_saved)
{
    played.n_losses = 4;
    memcpy(played.losses, (const double[]){9, 5, 6, 7}, 4 * sizeof(double));
    run.options.eval_every = 1, run.options.patience = 2;
    expect_run(0);
    expect_asked("evaluate|open 0|evaluate|save 1|open 1|evaluate|open 2|evaluate|save 3|");
    ck_assert_holds(user.notes, "stopped early after step 3 of 5", "held-out loss of 5.0000 after step 1");
    ck_assert_uint_eq(steps.end, 3);
}

/* ---- What ends it early ---- */

TEST(a_stop_finishes_the_open_step_and_saves_it)
{
    user.stop_after = 2, user.stop = 1;
    expect_run(0);
    ck_assert_uint_lt(steps.done, 5);
    ck_assert(steps.stop == 1 && steps.opened == steps.done && client_steps_saved(&steps) == steps.done);
    ck_assert_str_eq(client_steps_stopped_by(&steps), "interrupted");
}

TEST(a_second_stop_and_one_with_nothing_to_save_end_it_at_once)
{
    struct error err;

    user.stop_after = 2, user.stop = 2;
    err = expect_run(-EINTR);
    ck_assert_str_eq(err.text, "interrupted");
    ck_assert_uint_eq(user.n_saved, 0);
}

TEST(a_stop_without_save_every_ends_it_at_once)
{
    run.options.save_every = 0;
    user.stop_after = 2, user.stop = 1;
    expect_run(-EINTR);
    ck_assert_uint_eq(user.n_saved, 0);
}

/* Whatever would be due: a step's number, its time, the best evaluation, the last step. */
TEST(a_run_without_checkpoints_asks_for_none)
{
    run.options.no_save = true, run.options.save_every = 0, run.options.save_minutes = 1e-9, run.options.steps = 2;
    run.options.eval_every = 1;
    expect_run(0);
    expect_asked("evaluate|open 0|evaluate|open 1|evaluate|");
    expect_left("metrics.jsonl ");
}

TEST(a_stop_before_the_first_step_ends_it)
{
    user.stop_after = 0, user.stop = 1;
    expect_run(-EINTR);
    ck_assert(!steps.begun && user.n_steps == 0);
}

TEST(a_daemon_that_is_stopped_ends_the_run_with_a_save)
{
    played.stops_at = 1;
    expect_run(0);
    ck_assert(steps.done < 5 && client_steps_saved(&steps) == steps.done);
    ck_assert_str_eq(client_steps_stopped_by(&steps), "the daemon was stopped: the run ended");
}

/* Step 3 waits for a worker that never comes: what is done before it is saved, by a request that names no step. */
TEST(a_stop_gives_up_a_step_that_waits_for_a_worker)
{
    played.holds = 2;
    run.options.connect = "lab";
    user.stop_after = 2, user.stop = 1;
    expect_run(0);
    expect_asked("open 0|open 1|open 2|save any|");
    ck_assert(steps.cut_short && steps.done == 2 && client_steps_saved(&steps) == 2);
}

TEST(twenty_skipped_steps_in_a_row_end_the_run)
{
    struct error err;

    run.options.steps = 100;
    played.skips_from = 3;
    err = expect_run(-EIO);
    ck_assert_holds(err.text, "the last 20 steps, 4 to 23, were skipped", "diverged");
    ck_assert_holds(user.notes, "step 4 was skipped");
    ck_assert_ptr_null(strstr(user.notes, "step 5 was skipped"));
    ck_assert(steps.diverged && user.n_steps == 23);
}

TEST(a_daemon_that_ends_a_step_twice_is_refused)
{
    struct error err;

    played.answers_twice = 1;
    err = expect_run(-EPROTO);
    ck_assert_holds(err.text, "out of turn");
}

TEST(a_daemon_that_is_gone_ends_the_run)
{
    struct error err = {""};

    attach();
    kill(daemon_pid, SIGKILL);
    ck_assert_int_eq(client_steps_run(&steps, &err), -EIO);
}

/* ---- Runs that go on ---- */

/* Lines of steps 1 to n; each has the loss that its step will have again. */
static void put_lines(unsigned n, bool evaluated)
{
    char text[2000] = "";

    for (unsigned i = 1; i <= n; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "{\"step\": %u, \"loss\": %u%s}\n", i, 11 - i,
                 evaluated ? ", \"eval_loss\": 2.5" : "");
    processes_put_text("out/metrics.jsonl", text);
}

static void resume_after(uint64_t step)
{
    outputs_write(outputs_make(print("out/step-%ju", (uintmax_t)step)), "training.json", "{}");
    run.first_step = run.saved_step = step;
    run.resume.in_place = true;
}

/* Its checkpoint is not written again, and the loss before the first step is that run's. */
TEST(a_resumed_run_goes_on_from_its_first_step)
{
    resume_after(3);
    put_lines(3, false);
    run.options.save_every = 3, run.options.eval_every = NEVER;
    expect_run(0);
    expect_asked("open 3|open 4|save 5|evaluate|");
    ck_assert_double_eq(metric(4, "step"), 4);
    ck_assert_double_eq(metric(4, "tokens"), 4 * BATCH * SEQ);
    ck_assert(client_steps_saved(&steps) == 5 && client_steps_saved_here(&steps));
}

TEST(a_checkpoint_from_before_is_none_of_this_run)
{
    resume_after(3);
    put_lines(3, false);
    user.stop_after = 0, user.stop = 1;
    expect_run(-EINTR);
    ck_assert(client_steps_saved(&steps) == 3 && !client_steps_saved_here(&steps));
}

TEST(an_evaluation_that_a_stop_interrupted_is_made_up)
{
    resume_after(4);
    put_lines(4, false);
    run.resume.lacks_evaluation = true;
    run.options.eval_every = 2;
    played.n_losses = 1, played.losses[0] = 3.5;
    expect_run(0);
    expect_asked("evaluate|open 4|save 5|evaluate|");
    ck_assert_double_eq(metric(4, "eval_loss"), 3.5);
}

/* The best evaluation and the patience that is left are those that the run had. */
TEST(a_resumed_run_decides_by_its_past)
{
    resume_after(3);
    put_lines(3, true);
    client_best_add(&run.resume.past.best, 1, 2.5);
    run.resume.past.kept = run.resume.past.best;
    run.resume.past.best.n_since = 1;
    run.options.eval_every = 1, run.options.patience = 2;
    played.n_losses = 1, played.losses[0] = 3;
    expect_run(0);
    expect_asked("open 3|evaluate|save 4|");
    ck_assert_holds(user.notes, "stopped early after step 4", "2.5000 after step 1");
}

/* A job that is at step 5, of which it has done the last n. */
static void take_over(uint32_t n)
{
    struct client_attach job_ = {.job = {.kind = MESSAGE_DESCRIPTION, .description.job = 7}};
    struct error err = {""};

    played.taken = (struct message){.kind = MESSAGE_TAKEN,
                                    .taken = {.opened = 5,
                                              .arrived = 5,
                                              .covered = 5,
                                              .done = 5,
                                              .n = n,
                                              .steps = {{.step = 3, .loss = 7, .grad_norm = 1},
                                                        {.step = 4, .loss = 6, .grad_norm = 1}}}};
    run.saved_step = MESSAGE_NO_STEP;
    run.resume.in_place = true;
    attach();
    ck_assert_msg(client_steps_run_taken(&steps, &job_, &err) == 0, "%s", err.text);
}

/* Steps 4 and 5 ended without a client: they get lines, whose times nobody knows, and what is due after them. */
TEST(a_job_that_is_taken_over_takes_in_what_ended_without_a_client)
{
    run.resume.record.options.steps = 6;
    run.options.steps = 6, run.options.save_every = 5;
    put_lines(3, false);
    take_over(2);
    expect_asked("save 5|open 5|save 6|evaluate|");
    ck_assert_holds(user.notes, "took over job 7");
    ck_assert_double_eq(metric(5, "loss"), 6);
    ck_assert(isnan(metric(5, "step_ms")) && !isnan(metric(6, "step_ms")));
}

/* The directory may be there before it is on the disk. */
TEST_EACH(a_checkpoint_of_a_job_is_saved_once_the_daemon_says_so_unless_the_job_began_from_it, 2)
{
    resume_after(5);
    put_lines(5, true);
    take_over(_i == 0 ? 0 : 2);
    ck_assert_int_eq(user.n_saved, _i);
}
