/* The output directory's steps by themselves: a name comes into its place whole, in one system call; what is not a
 * checkpoint's is never removed. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "proto/model/output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int output;

static void setup(void)
{
    processes_setup();
    output = open(outputs_make("out"), O_RDONLY | O_DIRECTORY);
    ck_assert_int_ge(output, 0);
}

static void remove_all(void)
{
    close(output);
    processes_remove();
}

SUITE_FIXTURE(setup, remove_all)

static int put(uint64_t step, const char *content, struct error *err)
{
    int directory, rc = output_begin(&directory, output, step, err);

    if (!rc)
        rc = output_write(directory, "training.json", content, strlen(content), err);
    if (!rc)
        rc = output_place(output, directory, step, err);
    if (directory >= 0)
        close(directory);
    return rc;
}

static void run(const char *command)
{
    ck_assert_msg(system(command) == 0, "%s", command);
}

TEST(names_that_a_checkpoint_may_have)
{
    static const char *const fit[] = {"config.json", "merges.txt",          "model-00001-of-2.safetensors",
                                      "a.json",      "chat_template.jinja", "tokenizer.model"};
    static const char *const unfit[] = {"",        ".json", "precious", "a.json.bak", "a/b.json", "..json",
                                        "a b.txt", "json",  "a.JSON",   "model.bin",  "a.model"};

    for (int i = 0; i < COUNT(fit); i++)
        ck_assert_msg(output_is_name(fit[i]), "%s", fit[i]);
    for (int i = 0; i < COUNT(unfit); i++)
        ck_assert_msg(!output_is_name(unfit[i]), "%s", unfit[i]);
}

TEST(a_step_comes_into_its_place_or_that_of_an_older_one_and_latest_follows)
{
    struct error err = {""};
    char target[64] = "";

    ck_assert_msg(put(1, "old", &err) == 0, "%s", err.text);
    outputs_write("out/step-1", "merges.txt", "of the old one alone");
    ck_assert_msg(put(1, "new", &err) == 0, "%s", err.text);
    ck_assert_msg(put(UINT64_MAX - 1, "last", &err) == 0, "%s", err.text);
    ck_assert_str_eq(outputs_names("out"), "latest step-1 step-18446744073709551614 ");
    ck_assert_str_eq(outputs_names("out/step-1"), "training.json ");
    outputs_check_file("out/step-1/training.json", "new");
    outputs_check_file("out/latest/training.json", "last");
    ck_assert_int_gt(readlink("out/latest", target, sizeof target - 1), 0);
    ck_assert_str_eq(target, "step-18446744073709551614"); /* relative: the directory may be moved */
}

/* Something else has the name: a file, a link, a directory with something foreign or something deep in it. */
static const char *const foreign[] = {
    "echo mine >out/step-3",
    "mkdir elsewhere; echo mine >elsewhere/training.json; ln -s ../elsewhere out/step-3",
    "mkdir out/step-3; echo mine >out/step-3/training.json; echo mine >out/step-3/notes.md",
    "mkdir -p out/step-3/config.json",
};

TEST_EACH(what_is_no_checkpoint_is_not_replaced, COUNT(foreign))
{
    struct error err = {""};
    char before[600];

    run(foreign[_i]);
    run("ls -lR --time-style=full-iso out/step-3 elsewhere >before 2>&1; true");
    ck_assert_int_eq(put(3, "new", &err), -EEXIST);
    snprintf(before, sizeof before, "%s/out/step-3 could not be replaced", processes_directory());
    ck_assert_msg(strncmp(err.text, before, strlen(before)) == 0, "%s", err.text);
    ck_assert_holds(err.text, "; it holds what is no checkpoint");
    run("ls -lR --time-style=full-iso out/step-3 elsewhere >after 2>&1; cmp before after");
    output_remove_partial(output, 3);
    ck_assert_str_eq(outputs_names("out"), "step-3 ");
}

TEST(partials_alone_are_cleaned_away)
{
    run("cd out; mkdir step-1 step-2.partial.old step-.partial step-3.partial~ my-step-4.partial step-x5.partial;"
        "mkdir step-6.partial ../elsewhere; echo half >step-6.partial/model.safetensors; echo a >step-7.partial;"
        "echo mine >../elsewhere/config.json; ln -s ../elsewhere step-8.partial");
    output_clean(output);
    ck_assert_str_eq(outputs_names("out"), "my-step-4.partial step-.partial step-1 step-2.partial.old step-3.partial~ "
                                           "step-7.partial step-8.partial step-x5.partial ");
    outputs_check_file("elsewhere/config.json", "mine\n");
}

TEST(a_partial_in_the_way_is_named_and_so_is_a_directory_that_was_removed)
{
    struct error err = {""};
    int directory;

    run("mkdir out/step-3.partial; echo mine >out/step-3.partial/precious");
    ck_assert_int_eq(output_begin(&directory, output, 3, &err), -EEXIST);
    ck_assert_int_eq(directory, -1);
    ck_assert_holds(err.text, "out/step-3.partial could not be made");
    outputs_check_file("out/step-3.partial/precious", "mine\n");
    run("rm -r out");
    ck_assert_int_eq(put(1, "one", &err), -ENOENT);
    ck_assert_holds(err.text, "the directory was removed");
}

TEST(what_a_disk_refuses_is_said_with_its_remedy)
{
    static const struct {
        int code;
        const char *says;
    } refusals[] = {
        {-ENOSPC, "No space left on device; make room there"},
        {-EDQUOT, "Disk quota exceeded; remove files of yours there, or have the quota raised"},
        {-EFBIG, "File too large; raise the limit of file sizes (ulimit -f), or write to another file system"},
        {-EROFS, "Read-only file system; make the directory writable"},
        {-EIO, "Input/output error; look after the disk"},
    };
    struct error err;

    for (int i = 0; i < COUNT(refusals); i++) {
        error_set(&err, 0, "a could not be written: %s", strerror(-refusals[i].code));
        ck_assert_int_eq(output_explain(&err, refusals[i].code, -1), refusals[i].code);
        ck_assert_str_eq(err.text, print("a could not be written: %s", refusals[i].says));
    }
}

/* The end of a long path is what tells directories apart; the sentence fits. */
TEST(a_long_path_is_cut_in_front)
{
    struct error err = {""};
    char name[201] = "";

    memset(name, 'd', 200);
    outputs_make(name);
    ck_assert_int_eq(chdir(name), 0);
    outputs_make(name);
    int deep = open(name, O_RDONLY | O_DIRECTORY);
    ck_assert_int_eq(output_fail(&err, -ENOSPC, deep, "model.safetensors", "written"), -ENOSPC);
    ck_assert_msg(strncmp(err.text, "...ddd", 6) == 0, "%s", err.text);
    ck_assert_holds(err.text, "ddd/model.safetensors could not be written: No space left on device; make");
    close(deep);
}
