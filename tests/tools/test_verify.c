#include "client/eps.h"

#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/store_fixture.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char said[4096]; /* "path step why" and a semicolon for each checkpoint */

static void collect(void *user, const char *path, uint64_t step, const char *why)
{
    const size_t n = strlen(said);

    ck_assert_ptr_eq(user, said);
    snprintf(said + n, sizeof said - n, "%s %ju %s;", path, (uintmax_t)step, why ? why : "whole");
}

static int verify(const char *path, struct eps_error *error)
{
    said[0] = 0;
    return eps_verify(path, collect, said, error);
}

static void save(const char *path, uint64_t step)
{
    struct store_fixture f;

    store_fixture_open(&f, store_fixture_small, true, 0);
    store_draw(&f.store, step);
    store_fixture_save(&f, path, step);
    store_fixture_close(&f);
}

SUITE_TIMEOUT(60)
SUITE_FIXTURE(processes_setup, processes_remove)

/* Byte `at` of a file, from its end if negative. */
static void flip(const char *path, long at)
{
    FILE *file = fopen(path, "r+");

    ck_assert_ptr_nonnull(file);
    fseek(file, at, at < 0 ? SEEK_END : SEEK_SET);
    const int byte = fgetc(file);
    fseek(file, -1, SEEK_CUR);
    fputc(byte ^ 0x20, file);
    ck_assert_int_eq(fclose(file), 0);
}

TEST(a_run_s_checkpoints_are_read_in_order_of_steps)
{
    struct eps_error error = {""};

    mkdir("run", 0777);
    save("run/step-10", 10), save("run/step-9", 9), save("run/step-100", 100);
    save("run/step-110.partial", 110); /* being written, or left by a crash */
    mkdir("run/step-x", 0777), mkdir("run/step-007", 0777), mkdir("run/step-", 0777);
    ck_assert_int_eq(symlink("step-100", "run/latest"), 0);
    ck_assert_msg(verify("run/", &error) == 0, "%s", error.text);
    ck_assert_str_eq(said, "run/step-9 9 whole;run/step-10 10 whole;run/step-100 100 whole;");
    ck_assert_str_eq(error.text, "");
    ck_assert_int_eq(verify("run/step-10//", &error), 0);
    ck_assert_str_eq(said, "run/step-10 10 whole;");
    ck_assert_int_eq(verify("run/latest", &error), 0);
    ck_assert_str_eq(said, "run/latest 100 whole;");
    ck_assert_int_eq(eps_verify("run", NULL, NULL, NULL), 0);
}

TEST(one_that_is_not_whole_is_named_and_the_newest_that_is)
{
    struct eps_error error = {""};

    mkdir("run", 0777);
    save("run/step-1", 1), save("run/step-2", 2), save("run/step-3", 3);
    flip("run/step-3/optimizer.safetensors", -1);
    ck_assert_int_eq(verify("run", &error), -EINVAL);
    ck_assert_ptr_nonnull(strstr(said,
                                 "run/step-1 1 whole;run/step-2 2 whole;run/step-3 3 optimizer.safetensors is not "
                                 "what was written: checksum of its "));
    ck_assert_str_eq(error.text, "run: 1 of 3 checkpoints is not whole: the newest to --resume is run/step-2");
    flip("run/step-1/config.json", 0);
    ck_assert_int_eq(verify("run", &error), -EINVAL);
    ck_assert_str_eq(error.text, "run: 2 of 3 checkpoints are not whole: the newest to --resume is run/step-2");
    flip("run/step-2/merges.txt", 0);
    ck_assert_int_eq(verify("run", &error), -EINVAL);
    ck_assert_str_eq(error.text, "run: no checkpoint is whole: nothing can be resumed from here");
}

static void drop_weights(void)
{
    ck_assert_int_eq(unlink("step-5/model.safetensors"), 0);
}

static void cut_moments(void)
{
    ck_assert_int_eq(truncate("step-5/optimizer.safetensors", 4000), 0);
}

static void drop_training(void)
{
    ck_assert_int_eq(unlink("step-5/training.json"), 0);
}

static void flip_training(void)
{
    flip("step-5/training.json", 40);
}

static void make_future(void)
{
    FILE *file = fopen("step-5/training.json", "w");

    fputs("{\"format\": 2, \"parts\": []}", file);
    fclose(file);
}

static void rename_it(void)
{
    ck_assert_int_eq(rename("step-5", "step-4") || symlink("step-4", "step-5"), 0);
}

static const struct {
    void (*damage)(void);
    const char *why;
} damages[] = {
    {drop_weights, "step-5 5 model.safetensors is missing;"},
    {cut_moments, "step-5 5 optimizer.safetensors has 4000 bytes, "},
    {drop_training, "step-5 0 training.json is missing: this is no checkpoint, or not all of one;"},
    {flip_training, "step-5 0 training.json"},
    {make_future, "step-5 0 training.json: format 2; this eps reads 1: take the eps that wrote it;"},
    {rename_it, "step-5 5 whole;"},
};

TEST_EACH(what_is_wrong_with_a_checkpoint_is_said, COUNT(damages))
{
    struct eps_error error = {""};

    save("step-5", 5);
    damages[_i].damage();
    const int rc = verify("step-5", &error);
    ck_assert_msg(strncmp(said, damages[_i].why, strlen(damages[_i].why)) == 0, "%s", said);
    ck_assert_int_eq(rc, strstr(damages[_i].why, "whole;") ? 0 : -EINVAL);
    ck_assert_str_eq(error.text, rc ? "step-5: no checkpoint is whole: nothing can be resumed from here" : "");
}

TEST(a_checkpoint_under_another_s_name_is_not_it)
{
    struct eps_error error;

    save("step-5", 5);
    rename("step-5", "step-4");
    ck_assert_int_eq(verify("step-4", &error), -EINVAL);
    ck_assert_str_eq(said, "step-4 5 holds step 5: was the directory renamed?;");
    rename("step-4", "best"); /* a name that says nothing */
    ck_assert_int_eq(verify("best", &error), 0);
    ck_assert_str_eq(said, "best 5 whole;");
}

TEST(where_no_checkpoint_is_that_is_said)
{
    struct eps_error error;

    ck_assert_int_eq(verify("none", &error), -ENOENT);
    ck_assert_str_eq(error.text, "none: No such file or directory");
    mkdir("empty", 0777);
    ck_assert_int_eq(verify("empty", &error), -ENOENT);
    ck_assert_str_eq(error.text, "empty holds no checkpoint: name a step-N, or the directory that eps train --out had");
    fclose(fopen("file", "w"));
    ck_assert_int_eq(verify("file", &error), -ENOTDIR);
    ck_assert_str_eq(error.text, "file: not a directory; name a step-N, or the directory of a run");
    ck_assert_str_eq(said, "");
}

static void remove_the_next(void *user, const char *path, uint64_t step, const char *why)
{
    collect(user, path, step, why);
    if (step == 1)
        ck_assert_int_eq(system("rm -r run/step-2"), 0);
}

TEST(one_that_the_run_removes_meanwhile_is_passed_over)
{
    struct eps_error error;

    mkdir("run", 0777);
    save("run/step-1", 1), save("run/step-2", 2), save("run/step-3", 3);
    said[0] = 0;
    ck_assert_int_eq(eps_verify("run", remove_the_next, said, &error), 0);
    ck_assert_str_eq(said, "run/step-1 1 whole;run/step-3 3 whole;");
}

TEST(the_command_says_the_same)
{
    mkdir("run", 0777);
    save("run/step-1", 1), save("run/step-2", 2);
    expect("eps verify run", 0);
    ck_assert_str_eq(command_out(), "run/step-1  whole, 1 step\nrun/step-2  whole, 2 steps\n");
    ck_assert_str_eq(command_err(), "");
    ck_assert_int_eq(unlink("run/step-2/config.json"), 0);
    expect("eps verify run", 1);
    ck_assert_str_eq(command_out(), "run/step-1  whole, 1 step\nrun/step-2  NOT WHOLE: config.json is missing\n");
    ck_assert_str_eq(command_err(),
                     "eps verify: run: 1 of 2 checkpoints is not whole: the newest to --resume is run/step-1\n");
    expect("eps verify run --json", 1);
    ck_assert_str_eq(
        command_out(),
        "[\n  {\n    \"path\": \"run/step-1\",\n    \"step\": 1,\n    \"whole\": true,\n    \"why\": null\n"
        "  },\n  {\n    \"path\": \"run/step-2\",\n    \"step\": 2,\n    \"whole\": false,\n"
        "    \"why\": \"config.json is missing\"\n  }\n]\n");
    expect("eps verify none", 1);
    ck_assert_str_eq(command_out(), "");
    expect("eps verify none --json", 1);
    ck_assert_str_eq(command_out(), "");
    expect("eps verify", 2);
    ck_assert_str_eq(command_err(), "eps verify: DIR is needed: a step-N, or the directory of a run\n");
}
