/* Backends by name, and what is said of a module that is missing, or will not do. */
#include "device/find.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

SUITE_LABELS(cuda)

TEST(the_cpu_is_part_of_the_program)
{
    struct error err = {""};

    ck_assert_ptr_eq(device_find("cpu", &err), &device_cpu);
    ck_assert_str_eq(err.text, "");
}

TEST(another_name_is_refused)
{
    struct error err = {""};

    ck_assert_ptr_null(device_find("tpu", &err));
    ck_assert_holds(err.text, "'tpu'", "cpu or cuda");
}

TEST(a_module_has_the_whole_table)
{
    struct error err = {""};
    const struct device_ops *ops = device_load(BIN_DIR "/cudasim/eps-cuda.so", &err);

    ck_assert_msg(ops != NULL, "%s", err.text);
    ck_assert_str_eq(ops->name, "cuda");
}

static const struct {
    const char *path, *sentence;
} wrong[] = {
    {BIN_DIR "/libother_build.so", "libother_build.so is of eps 0.0.1"},
    {BIN_DIR "/librecord.so", "librecord.so is no module of eps"},
    {TESTS_DIR "/device/test_find.c", "test_find.c does not load: "},
    {BIN_DIR "/none.so", "none.so does not load: "},
};
enum { N_WRONG = sizeof wrong / sizeof *wrong };

TEST_EACH(what_is_no_module_of_this_build_is_refused, N_WRONG)
{
    struct error err = {""};

    ck_assert_ptr_null(device_load(wrong[_i].path, &err));
    ck_assert_holds(err.text, wrong[_i].sentence);
}

/* What a worker in `directory`/bin says when it is told to use CUDA, and has no daemon. */
static void say(char out[512], const char *directory)
{
    char command[512];

    snprintf(command, sizeof command, "XDG_RUNTIME_DIR=%s %s/bin/eps-worker --connect none --device cuda:7 2>&1",
             directory, directory);
    FILE *said = popen(command, "r");
    ck_assert(said != NULL);
    out[fread(out, 1, 511, said)] = 0;
    pclose(said);
}

static void link_or_copy(const char *from, const char *directory, const char *to)
{
    char path[256], command[700];

    snprintf(path, sizeof path, "%s/%s", directory, to);
    if (link(from, path) == 0)
        return;
    snprintf(command, sizeof command, "cp %s %s", from, path);
    ck_assert_int_eq(system(command), 0);
}

/* First without a module, then with one where it is installed, then with another beside the program. */
TEST(a_module_is_looked_for_beside_the_program_and_where_it_is_installed)
{
    char directory[] = "/tmp/eps-find-XXXXXX", path[256], said[512];

    ck_assert(mkdtemp(directory) != NULL);
    static const char *const folders[] = {"bin", "lib", "lib/eps"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, folders[i]);
        ck_assert_int_eq(mkdir(path, 0700), 0);
    }
    link_or_copy(BIN_DIR "/eps-worker", directory, "bin/eps-worker");
    say(said, directory);
    snprintf(path, sizeof path, "eps-cuda.so is neither in %s/bin nor in %s/bin/../lib/eps", directory, directory);
    ck_assert_msg(strstr(said, path) && strstr(said, "-DEPS_CUDA=ON"), "%s", said);

    link_or_copy(BIN_DIR "/cudasim/eps-cuda.so", directory, "lib/eps/eps-cuda.so");
    say(said, directory);
    ck_assert_holds(said, "no device cuda:7");

    link_or_copy(BIN_DIR "/libother_build.so", directory, "bin/eps-cuda.so");
    say(said, directory);
    ck_assert_holds(said, "is of eps 0.0.1");

    snprintf(path, sizeof path, "rm -r %s", directory);
    ck_assert_int_eq(system(path), 0);
}
