#include "client/eps.h"

#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/inprocess/store_fixture.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char said[4096]; /* "path step why" and a semicolon for each checkpoint */
static struct eps_error error;

static void collect(void *user, const struct eps_verified *c)
{
    const size_t n = strlen(said);

    ck_assert_ptr_eq(user, said);
    ck_assert(!c->why || !c->edited);
    snprintf(said + n, sizeof said - n, "%s %ju %s%s%s;", c->path, (uintmax_t)c->step, c->why ? c->why : "whole",
             c->edited ? ", " : "", c->edited ? c->edited : "");
}

/* What is collected begins with `collected`; the sentence is this. */
static void check(const char *path, int code, const char *collected, const char *sentence)
{
    said[0] = 0;
    ck_assert_int_eq(eps_verify(path, collect, said, &error), code);
    ck_assert_msg(strncmp(said, collected, strlen(collected)) == 0 && (*collected || !*said), "%s", said);
    ck_assert_str_eq(error.text, sentence);
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

TEST(a_run_s_checkpoints_are_read_in_order_of_steps)
{
    mkdir("run", 0777);
    save("run/step-10", 10), save("run/step-9", 9), save("run/step-100", 100);
    save("run/step-110.partial", 110); /* being written, or left by a crash */
    mkdir("run/step-x", 0777), mkdir("run/step-007", 0777), mkdir("run/step-", 0777);
    ck_assert_int_eq(symlink("step-100", "run/latest"), 0);
    check("run/", 0, "run/step-9 9 whole;run/step-10 10 whole;run/step-100 100 whole;", "");
    check("run/step-10//", 0, "run/step-10 10 whole;", "");
    check("run/latest", 0, "run/latest 100 whole;", "");
    ck_assert_int_eq(eps_verify("run", NULL, NULL, NULL), 0);
}

TEST(one_that_is_not_whole_is_named_and_the_newest_that_is)
{
    mkdir("run", 0777);
    save("run/step-1", 1), save("run/step-2", 2), save("run/step-3", 3);
    processes_flip("run/step-3/optimizer.safetensors", -1);
    check("run", -EINVAL,
          "run/step-1 1 whole;run/step-2 2 whole;run/step-3 3 optimizer.safetensors is not what was written: checksum "
          "of its ",
          "run: 1 of 3 checkpoints is not whole: eps train --resume run goes on from step-2");
    processes_flip("run/step-1/config.json", 0);
    check("run", -EINVAL, "run/step-1 1 config.json",
          "run: 2 of 3 checkpoints are not whole: eps train --resume run goes on from step-2");
    processes_flip("run/step-2/model.safetensors", -1);
    check("run", -EINVAL, "run/step-1 1 config.json", "run: no checkpoint is whole: nothing can be resumed from here");
}

#define NO_WHOLE  ": no checkpoint is whole: nothing can be resumed from here"
#define NOT_KNOWN ": whether it is whole is not known"

/* After a command of the shell beside a checkpoint named step-5, what is said of a path. */
static const struct {
    const char *command, *path;
    int code;
    const char *collected, *sentence;
} cases[] = {
    {"rm step-5/model.safetensors", "step-5", -EINVAL, "step-5 5 model.safetensors is missing;", "step-5" NO_WHOLE},
    {"truncate -s 4000 step-5/optimizer.safetensors", "step-5", -EINVAL,
     "step-5 5 optimizer.safetensors has 4000 bytes, ", "step-5" NO_WHOLE},
    {"rm step-5/training.json", "step-5", -EINVAL,
     "step-5 0 training.json is missing: this is not a complete checkpoint;", "step-5" NO_WHOLE},
    {"printf '{' >step-5/training.json", "step-5", -EINVAL, "step-5 0 training.json", "step-5" NO_WHOLE},
    {"echo '{\"format\": 2, \"parts\": []}' >step-5/training.json", "step-5", -EPROTONOSUPPORT, "",
     "step-5: training.json: format 2; this eps reads 1: take the eps that wrote it" NOT_KNOWN},
    {"ln -sf model.safetensors step-5/model.safetensors", "step-5", -ELOOP, "",
     "step-5: model.safetensors: Too many levels of symbolic links" NOT_KNOWN}, /* as of any disk that does not give
                                                                                 * it */
    {"mv step-5 step-4", "step-4", -EINVAL, "step-4 5 holds step 5: was the directory renamed?;", "step-4" NO_WHOLE},
    {"mv step-5 step-4; ln -s step-4 step-5", "step-5", 0, "step-5 5 whole;", ""},
    {"mv step-5 best", "best", 0, "best 5 whole;", ""}, /* a name that says nothing */
    {"true", "none", -ENOENT, "", "none: No such file or directory"},
    {"mkdir empty", "empty", -ENOENT, "", "empty holds no checkpoint: name a step-N, or the directory of a run"},
    {"touch file", "file", -ENOTDIR, "", "file: not a directory; name a step-N, or the directory of a run"},
};

TEST_EACH(what_is_wrong_with_a_checkpoint_is_said, COUNT(cases))
{
    save("step-5", 5);
    expect(cases[_i].command, 0);
    check(cases[_i].path, cases[_i].code, cases[_i].collected, cases[_i].sentence);
}

static void remove_the_next(void *user, const struct eps_verified *c)
{
    collect(user, c);
    if (c->step == 1)
        expect("rm -r run/step-2", 0);
}

TEST(one_that_the_run_removes_meanwhile_is_passed_over)
{
    mkdir("run", 0777);
    save("run/step-1", 1), save("run/step-2", 2), save("run/step-3", 3);
    ck_assert_int_eq(eps_verify("run", remove_the_next, said, &error), 0);
    ck_assert_str_eq(said, "run/step-1 1 whole;run/step-3 3 whole;");
}

/* Texts beside a model are the user's to edit; one that is missing is damage. */
TEST(texts_may_be_edited_and_are_named)
{
    save("step-5", 5);
    expect("echo >>step-5/vocab.json", 0);
    check("step-5", 0, "step-5 5 whole, vocab.json is not as it was saved;", "");
    processes_flip("step-5/merges.txt", 0); /* of the same length */
    expect("eps verify step-5", 0);
    ck_assert_holds(command_out(), "step-5  whole, 5 steps; ", "merges.txt", " and ", "vocab.json",
                    " are not as they were");
    json_t *all = expect_json("eps verify step-5 --json", 0);
    ck_assert(json_is_string(json_at(all, "0.edited")) && json_is_true(json_at(all, "0.whole")));
    json_decref(all);
    expect("rm step-5/vocab.json", 0);
    check("step-5", -EINVAL, "step-5 5 vocab.json is missing;", "step-5" NO_WHOLE);
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
                     "eps verify: run: 1 of 2 checkpoints is not whole: eps train --resume run goes on from step-1\n");
    json_t *all = expect_json("eps verify run --json", 1),
           *wanted = json_pack("[{s:s, s:i, s:b, s:n, s:n}, {s:s, s:i, s:b, s:s, s:n}]", "path", "run/step-1", "step",
                               1, "whole", 1, "why", "edited", "path", "run/step-2", "step", 2, "whole", 0, "why",
                               "config.json is missing", "edited");
    ck_assert(json_equal(all, wanted));
    json_decref(all), json_decref(wanted);
    for (int json = 0; json < 2; json++) {
        expect(print("eps verify none%s", json ? " --json" : ""), 1);
        ck_assert_str_eq(command_out(), "");
    }
}
