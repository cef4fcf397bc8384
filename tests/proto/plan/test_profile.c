#include "tests/kit/test.h"

#include "proto/plan/profile.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char directory[64], path[128];

static void set_up(void)
{
    snprintf(directory, sizeof directory, "/tmp/eps-profile-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    setenv("XDG_CACHE_HOME", directory, 1);
    snprintf(path, sizeof path, "%s/eps/profile-cpu.json", directory);
}

static void tear_down(void)
{
    char above[96];

    snprintf(above, sizeof above, "%s/eps", directory);
    unlink(path);
    rmdir(above);
    ck_assert_int_eq(rmdir(directory), 0); /* nothing else was left there */
}

SUITE_FIXTURE(set_up, tear_down)

static const char sound[] =
    "{\"device\": \"cpu\", \"matmul_flops\": {\"fp32\": {\"64\": 1e9, \"512\": 2e9, \"4096\": 4e9, \"32768\": 4e9},\n"
    " \"bf16\": {\"64\": 1, \"512\": 2, \"4096\": 3, \"32768\": 4.5}},\n"
    " \"link_bytes_per_s\": 10, \"memory_bytes_per_s\": 20, \"update_parameters_per_s\": 30}";

static void put(const char *text)
{
    char above[96];

    snprintf(above, sizeof above, "%s/eps", directory);
    mkdir(above, 0777);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

TEST(a_file_is_read_by_name)
{
    struct profile p;
    struct error err = {""};

    put(sound);
    ck_assert_msg(profile_read(&p, path, "cpu", &err) == 0, "%s", err.text);
    ck_assert_double_eq(p.matmul_flops[NUMBER_FP32][1], 2e9);
    ck_assert_double_eq(p.matmul_flops[NUMBER_BF16][3], 4.5);
    ck_assert_double_eq(p.link_bytes_per_s, 10);
    ck_assert_double_eq(p.memory_bytes_per_s, 20);
    ck_assert_double_eq(p.update_parameters_per_s, 30);
    ck_assert_double_eq(p.host_bytes_per_s, 0);
}

/* Files from before attention was measured say nothing of it: the default's share of products. */
TEST(attention_that_is_not_measured_is_a_share_of_products)
{
    const struct profile *otherwise = profile_default("cpu");
    struct profile p;

    put(sound);
    ck_assert_int_eq(profile_read(&p, path, "cpu", NULL), 0);
    ck_assert_double_eq_tol(p.attention_flops[PROFILE_FORWARD][NUMBER_FP32] / 4e9,
                            otherwise->attention_flops[PROFILE_FORWARD][NUMBER_FP32] /
                                otherwise->matmul_flops[NUMBER_FP32][PROFILE_ROWS - 1],
                            1e-12);
}

TEST(attention_and_the_host_s_memory_are_read_where_they_stand)
{
    char text[1024];
    struct profile p;
    struct error err = {""};

    snprintf(text, sizeof text,
             "%.*s, \"attention_flops\": {\"forward\": {\"fp32\": 4, \"bf16\": 5},"
             " \"backward\": {\"fp32\": 6, \"bf16\": 7}}, \"host_bytes_per_s\": 80e9}",
             (int)strlen(sound) - 1, sound);
    put(text);
    ck_assert_msg(profile_read(&p, path, "cpu", &err) == 0, "%s", err.text);
    ck_assert_double_eq(p.attention_flops[PROFILE_FORWARD][NUMBER_BF16], 5);
    ck_assert_double_eq(p.attention_flops[PROFILE_BACKWARD][NUMBER_FP32], 6);
    ck_assert_double_eq(p.host_bytes_per_s, 80e9);
}

TEST(what_is_written_is_read_again_to_the_bit)
{
    struct profile p = *profile_default("cpu"), again;
    struct error err = {""};

    p.link_bytes_per_s = 1e10 / 3;
    p.matmul_flops[NUMBER_BF16][2] = 0x1.fffffffffffffp+40;
    p.attention_flops[PROFILE_BACKWARD][NUMBER_BF16] = 1e12 / 7;
    p.host_bytes_per_s = 1e11 / 3;
    ck_assert_msg(profile_write(&p, path, "cpu", &err) == 0, "%s", err.text);
    ck_assert_msg(profile_read(&again, path, "cpu", &err) == 0, "%s", err.text);
    ck_assert_mem_eq(&p, &again, sizeof p);
}

/* What a person may do to the file, and what the sentence has to say of it. */
TEST(a_file_that_is_no_profile_is_refused_with_the_place_or_the_figure)
{
    static const struct {
        const char *from, *to, *says;
    } mistakes[] = {
        {"{\"device\"", "{,\"device\"", "line 1, column 2"},
        {"\"link_bytes_per_s\": 10", "\"link_bytes_per_s\": ten", "line 3, column 2"},
        {"\"link_bytes_per_s\": 10", "\"link_bytes_per_s\": \"10\"", "link_bytes_per_s is not a number"},
        {"\"link_bytes_per_s\": 10, ", "", "link_bytes_per_s is missing"},
        {"\"link_bytes_per_s\": 10", "\"link_bytes_per_s\": 0", "link_bytes_per_s is 0: it must be from 1 to 1e+21"},
        {"\"link_bytes_per_s\": 10", "\"link_bytes_per_s\": -1", "link_bytes_per_s is -1"},
        {"\"link_bytes_per_s\"", "\"link\": 1, \"link_bytes_per_s\"", "'link' is no figure of a profile"},
        {"\"link_bytes_per_s\"", "\"memory_bytes_per_s\": 1, \"link_bytes_per_s\"", "duplicate"},
        {"\"512\": 2e9", "\"512\": null", "matmul_flops: fp32: 512 is not a number"},
        {"\"512\": 2e9", "\"513\": 2e9", "matmul_flops: fp32: 512 is missing"},
        {"\"512\": 2e9", "\"512\": 2e9, \"513\": 2e9", "matmul_flops: fp32: '513' is no figure"},
        {"\"32768\": 4.5", "\"32768\": 0", "matmul_flops.bf16.32768 is 0"},
        {"\"bf16\"", "\"fp16\"", "matmul_flops: bf16: it must be an object"},
        {"\"link", "\"attention_flops\": {\"forward\": {\"fp32\": 1, \"bf16\": 1}}, \"link",
         "attention_flops: backward: it must be an object"},
        {"\"link", "\"attention_flops\": {\"forward\": {\"fp32\": 1}}, \"link",
         "attention_flops: forward: bf16 is missing"},
        {"\"link", "\"host_bytes_per_s\": 0.5, \"link", "host_bytes_per_s is 0.5: it must be from 1 to 1e+21"},
        {"\"cpu\"", "\"cuda\"", "it is a profile of device 'cuda', not of 'cpu'"},
        {"\"cpu\"", "7", "it is a profile of device '', not of 'cpu'"},
        {sound, "[]", "not a JSON object"},
        {sound, "", "line 1"},
    };

    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        const struct profile before = {.link_bytes_per_s = 7};
        struct profile p = before;
        struct error err = {""};
        char text[1024];
        const char *at = strstr(sound, mistakes[i].from);
        ck_assert_ptr_nonnull(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - sound), sound, mistakes[i].to,
                 at + strlen(mistakes[i].from));
        put(text);
        ck_assert_int_eq(profile_read(&p, path, "cpu", &err), -EINVAL);
        ck_assert_msg(strncmp(err.text, path, strlen(path)) == 0, "%s", err.text);
        ck_assert_msg(strstr(err.text, mistakes[i].says) != NULL, "%s, not %s", err.text, mistakes[i].says);
        ck_assert_mem_eq(&p, &before, sizeof p);
    }
}

TEST(a_file_cut_off_anywhere_is_refused)
{
    char text[sizeof sound];
    struct profile p;

    for (size_t n = 0; n < sizeof sound - 1; n++) {
        memcpy(text, sound, n);
        text[n] = 0;
        put(text);
        ck_assert_int_eq(profile_read(&p, path, "cpu", NULL), -EINVAL);
    }
}

TEST(without_a_file_the_default_is_taken_and_a_bad_one_is_said)
{
    struct profile p;
    struct error err = {""};
    bool measured = true;

    ck_assert_int_eq(profile_find(&p, &measured, "cpu", &err), 0);
    ck_assert(!measured);
    ck_assert_mem_eq(&p, profile_default("cpu"), sizeof p);
    put("{");
    ck_assert_int_eq(profile_find(&p, &measured, "cpu", &err), -EINVAL);
    ck_assert(!measured);
    ck_assert_mem_eq(&p, profile_default("cpu"), sizeof p);
    ck_assert_ptr_nonnull(strstr(err.text, "eps bench"));
    put(sound);
    ck_assert_int_eq(profile_find(&p, &measured, "cpu", &err), 0);
    ck_assert(measured);
    ck_assert_double_eq(p.link_bytes_per_s, 10);
}

TEST(its_place_is_the_users_cache)
{
    char out[128];
    struct error err = {""};

    ck_assert_int_eq(profile_path(out, sizeof out, "cpu", &err), 0);
    ck_assert_str_eq(out, path);
    setenv("XDG_CACHE_HOME", "relative", 1); /* which the specification says to ignore */
    setenv("HOME", "/home/somebody", 1);
    ck_assert_int_eq(profile_path(out, sizeof out, "cpu", &err), 0);
    ck_assert_str_eq(out, "/home/somebody/.cache/eps/profile-cpu.json");
    ck_assert_int_eq(profile_path(out, 20, "cpu", &err), -ENAMETOOLONG);
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    ck_assert_int_eq(profile_path(out, sizeof out, "cpu", &err), -ENOENT);
    ck_assert_ptr_nonnull(strstr(err.text, "XDG_CACHE_HOME"));
}

TEST(a_file_that_cannot_be_written_is_said_and_none_is_left)
{
    struct error err = {""};
    const struct profile *p = profile_default("cpu");

    put(sound);
    ck_assert_int_eq(profile_write(p, "/proc/eps/profile-cpu.json", "cpu", &err), -ENOENT);
    ck_assert_ptr_nonnull(strstr(err.text, "/proc/eps/profile-cpu.json"));
    char above[160];
    snprintf(above, sizeof above, "%s/inside", path); /* a file stands where a directory should */
    ck_assert_int_eq(profile_write(p, above, "cpu", &err), -ENOTDIR);
}

TEST(a_pipe_a_link_or_a_directory_is_not_replaced_by_a_file)
{
    const struct profile *p = profile_default("cpu");
    char above[96];
    struct stat st;

    snprintf(above, sizeof above, "%s/eps", directory);
    ck_assert_int_eq(mkdir(above, 0777), 0);
    for (int kind = 0; kind < 3; kind++) {
        struct error err = {""};
        ck_assert_int_eq(kind == 0   ? mkfifo(path, 0666)
                         : kind == 1 ? symlink("/proc/self/fd/1", path)
                                     : mkdir(path, 0777),
                         0);
        ck_assert_int_eq(profile_write(p, path, "cpu", &err), -EINVAL);
        ck_assert_ptr_nonnull(strstr(err.text, "profile-cpu.json: not a regular file"));
        ck_assert(lstat(path, &st) == 0 && !S_ISREG(st.st_mode));
        ck_assert_int_eq(remove(path), 0);
    }
}

/* By hand: 181.02 = sqrt(64 * 512) lies halfway by its logarithm. */
TEST(between_the_measured_rows_the_rate_follows_their_logarithm)
{
    struct profile p;

    put(sound);
    ck_assert_int_eq(profile_read(&p, path, "cpu", NULL), 0);
    ck_assert_double_eq(profile_flops(&p, NUMBER_FP32, 1), 1e9);
    ck_assert_double_eq(profile_flops(&p, NUMBER_FP32, 64), 1e9);
    ck_assert_double_eq_tol(profile_flops(&p, NUMBER_FP32, sqrt(64 * 512)), 1.5e9, 1);
    ck_assert_double_eq(profile_flops(&p, NUMBER_FP32, 512), 2e9);
    ck_assert_double_eq(profile_flops(&p, NUMBER_BF16, 1e9), 4.5);
}

TEST(a_figure_that_is_none_is_found_wherever_it_stands)
{
    const struct profile sane = *profile_default("cpu");
    const double bad[] = {0, -1, 1e-308, 1e308, NAN, INFINITY};

    ck_assert_int_eq(profile_check(&sane, NULL), 0);
    for (size_t at = 0; at < offsetof(struct profile, products); at += sizeof(double)) {
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            struct profile p = sane;
            memcpy((char *)&p + at, &bad[i], sizeof bad[i]);
            const bool is_absent = at == offsetof(struct profile, host_bytes_per_s) && bad[i] == 0;
            ck_assert_int_eq(profile_check(&p, NULL), is_absent ? 0 : -EINVAL);
        }
    }
}

TEST(only_devices_that_there_are_have_a_default)
{
    ck_assert_int_eq(profile_check(profile_default("cpu"), NULL), 0);
    ck_assert_ptr_null(profile_default("abacus"));
}
