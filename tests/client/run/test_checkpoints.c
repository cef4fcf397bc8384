/* Which checkpoints stand in a run directory, and what is removed when. */
#include "client/run/checkpoints.h"

#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int out;

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

static void stand(const char *name)
{
    char path[100];

    snprintf(path, sizeof path, "out/%s", name);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    outputs_write(path, "training.json", "{}");
    outputs_write(path, "model.safetensors", "");
    outputs_write(path, "merges.txt", "");
}

static void prune(struct client_checkpoints *c, uint32_t keep)
{
    uint64_t old[10];
    const size_t n = client_checkpoints_take_old(old, 10, c, keep);

    for (size_t i = 0; i < n; i++)
        client_checkpoints_remove(out, old[i]);
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

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        ck_assert_msg(!client_checkpoints_parse(&step, others[i]), "%s", others[i]);
    ck_assert(client_checkpoints_parse(&step, "step-0"));
    ck_assert_uint_eq(step, 0);
    ck_assert(client_checkpoints_parse(&step, "step-1099511627776"));
    ck_assert_uint_eq(step, (uint64_t)1 << 40);
}

TEST(those_that_are_whole_are_listed_in_order)
{
    struct client_checkpoints c;

    stand("step-20");
    stand("step-3");
    stand("step-100");
    stand("step-7.partial");
    stand("best");
    outputs_make("out/step-9");
    ck_assert_int_eq(client_checkpoints_list(&c, out, NULL), 0);
    ck_assert_uint_eq(c.n, 3);
    ck_assert_uint_eq(c.steps[0], 3);
    ck_assert_uint_eq(c.steps[1], 20);
    ck_assert_uint_eq(c.steps[2], 100);
    ck_assert_int_eq(client_checkpoints_add(&c, 50), 0);
    ck_assert_int_eq(client_checkpoints_add(&c, 20), 0);
    ck_assert_uint_eq(c.n, 4);
    ck_assert_uint_eq(c.steps[2], 50);
    client_checkpoints_free(&c);
    client_checkpoints_free(&c);
}

TEST(the_oldest_go_and_neither_latest_nor_what_is_somebodys)
{
    struct client_checkpoints c;

    for (int i = 1; i <= 6; i++) {
        char name[20];
        snprintf(name, sizeof name, "step-%d", i);
        stand(name);
    }
    point_latest("step-2");
    outputs_write("out/step-3", "notes", "mine");
    stand("step-1.partial"); /* of a removal that a crash cut short */
    ck_assert_int_eq(client_checkpoints_list(&c, out, NULL), 0);
    prune(&c, 0);
    ck_assert_uint_eq(c.n, 6);
    prune(&c, 3);
    ck_assert_uint_eq(c.n, 3);
    ck_assert_str_eq(outputs_names("out"), "latest step-2 step-3 step-5 step-6 ");
    ck_assert_str_eq(outputs_names("out/step-3"), "merges.txt model.safetensors notes training.json ");
    point_latest("step-6");
    prune(&c, 1);
    ck_assert_str_eq(outputs_names("out"), "latest step-3 step-6 ");
    prune(&c, 1);
    ck_assert_uint_eq(c.n, 1);
    client_checkpoints_free(&c);
}

TEST(the_best_stays_beside_those_that_are_kept)
{
    struct client_checkpoints c;

    for (int i = 1; i <= 5; i++) {
        char name[20];
        snprintf(name, sizeof name, "step-%d", i);
        stand(name);
    }
    point_latest("step-5");
    ck_assert_int_eq(client_best_mark(out, 2), 0);
    ck_assert_int_eq(client_checkpoints_list(&c, out, NULL), 0);
    prune(&c, 2);
    ck_assert_str_eq(outputs_names("out"), "best latest step-2 step-4 step-5 ");
    ck_assert_int_eq(client_best_mark(out, 4), 0); /* among those that are kept: nothing beside them */
    prune(&c, 2);
    ck_assert_str_eq(outputs_names("out"), "best latest step-4 step-5 ");
    prune(&c, 1);
    ck_assert_str_eq(outputs_names("out"), "best latest step-4 step-5 ");
    client_checkpoints_free(&c);
}

TEST(what_is_half_is_swept_and_nothing_else)
{
    stand("step-1");
    stand("step-2.partial");
    stand("step-3.partial");
    outputs_write("out/step-3.partial", "notes", "mine");
    stand("other.partial");
    ck_assert_int_eq(symlinkat("step-1", out, "latest.partial"), 0);
    ck_assert_int_eq(symlinkat("step-1", out, "best.partial"), 0);
    client_checkpoints_sweep(out);
    ck_assert_str_eq(outputs_names("out"), "other.partial step-1 step-3.partial ");
}
