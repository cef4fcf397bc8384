/* What goes on aside while a run goes on. */
#include "client/run/checkpoints.h"

#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static int out, flushed = -1;

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
    close(out);
    processes_remove();
}

SUITE_FIXTURE(setup, teardown)

static void stand(unsigned step)
{
    char path[100];

    snprintf(path, sizeof path, "out/step-%u", step);
    outputs_make(path);
    outputs_write(path, "training.json", "{}");
}

TEST(metrics_are_flushed_and_old_ones_go_one_tidying_after_the_other)
{
    struct client_checkpoints c;
    struct client_tidy tidy = {0};

    for (unsigned step = 1; step <= CLIENT_TIDY_MOST + 3; step++)
        stand(step);
    ck_assert_int_eq(client_checkpoints_list(&c, out, NULL), 0);
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
    client_checkpoints_free(&c);
}

TEST(what_comes_while_it_is_at_work_is_left_to_the_next)
{
    struct client_checkpoints c;
    struct client_tidy tidy = {.begun = false};

    stand(1);
    stand(2);
    ck_assert_int_eq(client_checkpoints_list(&c, out, NULL), 0);
    client_tidy_begin(&tidy, &c, 2, -1);
    client_tidy_end(&tidy);
    tidy.begun = true, tidy.done = false; /* as if it were not through */
    client_tidy_begin(&tidy, &c, 1, -1);
    ck_assert_uint_eq(c.n, 2);
    tidy.begun = false;
    client_tidy_begin(&tidy, &c, 1, -1);
    client_tidy_end(&tidy);
    ck_assert_str_eq(outputs_names("out"), "step-2 ");
    client_checkpoints_free(&c);
}
