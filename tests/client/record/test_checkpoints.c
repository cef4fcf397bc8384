/* Which checkpoints stand in a run directory, which is the best, and what is removed when. */
#include "client/eps.h"
#include "client/record/checkpoints.h"
#include "client/record/metrics.h"

#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <math.h>
#include <unistd.h>

SUITE_LABELS(own)

static int out, flushed = -1;
static struct client_checkpoints c;

/* In this program. */
int fdatasync(int fd)
{
    flushed = fd;
    return 0;
}

static void setup(void)
{
    processes_setup();
    outputs_make("out");
    out = open("out", O_RDONLY | O_DIRECTORY);
    ck_assert_int_ge(out, 0);
}

static void teardown(void)
{
    client_checkpoints_free(&c);
    client_checkpoints_free(&c);
    close(out);
    processes_remove();
}

SUITE_FIXTURE(setup, teardown)

static void stand(const char *name)
{
    const char *path = outputs_make(print("out/%s", name));

    outputs_write(path, "training.json", "{}");
    outputs_write(path, "model.safetensors", "");
    outputs_write(path, "merges.txt", "");
}

/* step-1 .. step-n. */
static void stand_all(int n)
{
    for (int i = 1; i <= n; i++)
        stand(print("step-%d", i));
}

static void list(void)
{
    ck_assert_int_eq(client_checkpoints_list(&c, out, NULL), 0);
}

static void prune(uint32_t keep, const char *names)
{
    uint64_t old[10];
    const size_t n = client_checkpoints_take_old(old, 10, &c, keep);

    for (size_t i = 0; i < n; i++)
        client_checkpoints_remove(out, old[i]);
    ck_assert_str_eq(outputs_names("out"), names);
}

static void point_latest(const char *name)
{
    unlinkat(out, "latest", 0);
    ck_assert_int_eq(symlinkat(name, out, "latest"), 0);
}

TEST(a_name_is_a_checkpoints_if_the_daemon_would_write_it)
{
    static const char *const others[] = {"step-",   "step-01", "step--1", "step-1.partial",
                                         "step-1 ", "step",    "Step-1",  "step-0x1",
                                         "latest",  "",        "step-+1", "step-99999999999999999999"};
    uint64_t step;

    for (int i = 0; i < COUNT(others); i++)
        ck_assert_msg(!client_checkpoints_parse(&step, others[i]), "%s", others[i]);
    ck_assert(client_checkpoints_parse(&step, "step-0") && step == 0);
    ck_assert(client_checkpoints_parse(&step, "step-1099511627776") && step == (uint64_t)1 << 40);
}

TEST(those_that_are_whole_are_listed_in_order)
{
    static const uint64_t listed[] = {3, 20, 50, 100};

    stand("step-20"), stand("step-3"), stand("step-100"), stand("step-7.partial"), stand("best");
    outputs_make("out/step-9");
    list();
    ck_assert_uint_eq(c.n, 3);
    ck_assert_int_eq(client_checkpoints_add(&c, 50, false), 0);
    ck_assert_int_eq(client_checkpoints_add(&c, 20, false), 0);
    ck_assert_uint_eq(c.n, 4);
    ck_assert_mem_eq(c.steps, listed, sizeof listed);
}

TEST(the_oldest_go_and_neither_latest_nor_what_is_somebodys)
{
    stand_all(6);
    point_latest("step-2");
    outputs_write("out/step-3", "notes", "mine");
    stand("step-1.partial"); /* of a removal that a crash cut short */
    list();
    prune(0, "latest step-1 step-1.partial step-2 step-3 step-4 step-5 step-6 ");
    prune(3, "latest step-2 step-3 step-5 step-6 ");
    ck_assert_uint_eq(c.n, 3);
    ck_assert_str_eq(outputs_names("out/step-3"), "merges.txt model.safetensors notes training.json ");
    point_latest("step-6");
    prune(1, "latest step-3 step-6 ");
    prune(1, "latest step-3 step-6 ");
    ck_assert_uint_eq(c.n, 1);
}

TEST(the_best_stays_beside_those_that_are_kept)
{
    stand_all(5);
    point_latest("step-5");
    ck_assert_int_eq(client_best_mark(out, 2), 0);
    list();
    prune(2, "best latest step-2 step-4 step-5 ");
    ck_assert_int_eq(client_best_mark(out, 4), 0); /* among those that are kept: nothing beside them */
    prune(2, "best latest step-4 step-5 ");
    prune(1, "best latest step-4 step-5 ");
}

static void save(uint64_t step, bool interim)
{
    stand(print("step-%ju", (uintmax_t)step));
    point_latest(print("step-%ju", (uintmax_t)step));
    ck_assert_int_eq(client_checkpoints_add(&c, step, interim), 0);
}

/* While it is the newest, it stands beside those that are kept; with the best evaluation, it is an interim one no
 * more. */
TEST(an_interim_checkpoint_goes_when_there_is_a_newer_one)
{
    stand_all(2);
    list();
    save(3, true);
    prune(2, "latest step-1 step-2 step-3 ");
    save(4, true);
    prune(2, "latest step-1 step-2 step-4 ");
    prune(0, "latest step-1 step-2 step-4 ");
    save(5, false);
    prune(2, "latest step-2 step-5 ");
    save(6, true), save(7, true);
    ck_assert_int_eq(client_best_mark(out, 6), 0);
    prune(2, "best latest step-5 step-6 step-7 ");
    ck_assert_int_eq(client_checkpoints_add(&c, 6, false), 0);
    save(8, false);
    prune(2, "best latest step-6 step-8 ");
    ck_assert_int_eq(client_best_mark(out, 8), 0);
    save(9, false);
    prune(2, "best latest step-8 step-9 ");
}

/* Up to the step that the run resumes after, and the loss before the first step too. */
TEST(evaluations_of_a_run_that_goes_on_are_read_from_its_metrics)
{
    static const double losses[] = {3, 4, 2, 4, 1}; /* after steps 10, 20, .. 50 */
    const struct eps_train_options options = {.steps = 45, .eval_every = 10};
    struct eps_step step = {.loss = 1, .tokens_per_s = NAN, .grad_norm = NAN, .eval_before = 2.5};
    struct client_metrics metrics;
    struct client_past past;

    ck_assert_int_eq(client_metrics_open(&metrics, out, NULL), 0);
    for (int i = 0; i < COUNT(losses); i++) {
        step.step = 10 * (uint64_t)(i + 1), step.eval_loss = losses[i], step.skipped = i > 0;
        ck_assert_int_eq(client_metrics_write(&metrics, &step, NULL), 0);
        step.eval_before = NAN;
        step.step++, step.eval_loss = NAN;
        ck_assert_int_eq(client_metrics_write(&metrics, &step, NULL), 0);
    }
    client_metrics_close(&metrics);
    client_past_read(&past, "out", 29);
    ck_assert(past.best.loss == 2.5 && past.best.step == 0 && past.best.n_since == 2);
    client_past_read(&past, "out", 41);
    ck_assert(past.best.loss == 2 && past.best.step == 30 && past.best.n_since == 1);
    ck_assert(past.last == 41 && isnan(past.eval_loss) && past.n_skipped == 6);

    ck_assert(!client_past_lacks_evaluation(&past, &options, 41));
    ck_assert(client_past_lacks_evaluation(&past, &options, 45)); /* the last step; its line is lost */
    client_past_read(&past, "out", 40);
    ck_assert(!client_past_lacks_evaluation(&past, &options, 40));
    past.eval_loss = NAN;
    ck_assert(client_past_lacks_evaluation(&past, &options, 40));
    client_past_read(&past, "nowhere", 40);
    ck_assert(past.last == 0 && isinf(past.best.loss) && past.best.n_since == 0);
    ck_assert(!client_past_lacks_evaluation(&past, &options, 0));
}

TEST(what_is_half_is_swept_and_nothing_else)
{
    stand("step-1"), stand("step-2.partial"), stand("step-3.partial"), stand("other.partial");
    outputs_write("out/step-3.partial", "notes", "mine");
    ck_assert_int_eq(symlinkat("step-1", out, "latest.partial"), 0);
    ck_assert_int_eq(symlinkat("step-1", out, "best.partial"), 0);
    client_checkpoints_sweep(out);
    ck_assert_str_eq(outputs_names("out"), "other.partial step-1 step-3.partial ");
}

TEST(metrics_are_flushed_and_old_ones_go_one_cleanup_after_the_other)
{
    struct client_tidy tidy = {0};

    stand_all(CLIENT_TIDY_MOST + 3);
    list();
    client_tidy_end(&tidy);
    client_tidy_begin(&tidy, &c, 2, 77);
    ck_assert_uint_eq(tidy.n_steps, CLIENT_TIDY_MOST);
    ck_assert_uint_eq(c.n, 3);
    client_tidy_end(&tidy);
    ck_assert_int_eq(flushed, 77);
    ck_assert_str_eq(outputs_names("out"), "step-17 step-18 step-19 ");
    client_tidy_begin(&tidy, &c, 2, -1);
    client_tidy_end(&tidy);
    client_tidy_end(&tidy);
    ck_assert_str_eq(outputs_names("out"), "step-18 step-19 ");
    tidy.begun = true, tidy.done = false; /* as if it were not through: what comes is left to the next */
    client_tidy_begin(&tidy, &c, 1, -1);
    ck_assert_uint_eq(c.n, 2);
    tidy.begun = false;
    client_tidy_begin(&tidy, &c, 1, -1);
    client_tidy_end(&tidy);
    ck_assert_str_eq(outputs_names("out"), "step-19 ");
}
