#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "proto/plan/time/profile.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[128];
static struct error err;

static void set_up(void)
{
    processes_setup();
    setenv("XDG_CACHE_HOME", processes_directory(), 1);
    snprintf(path, sizeof path, "%s/eps/profile-cpu.json", processes_directory());
}

SUITE_FIXTURE(set_up, processes_remove)

static const char sound[] =
    "{\"device\": \"cpu\", \"matmul_flops\": {\"fp32\": {\"64\": 1e9, \"512\": 2e9, \"4096\": 4e9, \"32768\": 4e9},\n"
    " \"bf16\": {\"64\": 1, \"512\": 2, \"4096\": 3, \"32768\": 4.5}},\n"
    " \"link_bytes_per_s\": 10, \"memory_bytes_per_s\": 20, \"update_parameters_per_s\": 30}";

static void put(const char *text)
{
    mkdir("eps", 0777);
    processes_put_text("eps/profile-cpu.json", text);
}

static void read_sound(struct profile *p)
{
    ck_assert_msg(profile_read(p, path, "cpu", &err) == 0, "%s", err.text);
}

/* Files from before attention, the host's memory and calls were measured say nothing of them: attention takes the
 * default's share of products. */
TEST(a_file_is_read_by_name)
{
    const struct profile *otherwise = profile_default("cpu");
    char text[1024];
    struct profile p;

    put(sound);
    read_sound(&p);
    ck_assert_double_eq(p.matmul_flops[NUMBER_FP32][1], 2e9);
    ck_assert_double_eq(p.matmul_flops[NUMBER_BF16][3], 4.5);
    ck_assert_double_eq(p.link_bytes_per_s, 10);
    ck_assert_double_eq(p.memory_bytes_per_s, 20);
    ck_assert_double_eq(p.update_parameters_per_s, 30);
    ck_assert_double_eq(p.host_bytes_per_s, 0);
    ck_assert_double_eq(p.message_s, otherwise->message_s);
    ck_assert_double_eq_tol(p.attention_flops[PROFILE_FORWARD][ATTENTION_PLAIN][NUMBER_FP32] / 4e9,
                            otherwise->attention_flops[PROFILE_FORWARD][ATTENTION_PLAIN][NUMBER_FP32] /
                                otherwise->matmul_flops[NUMBER_FP32][PROFILE_ROWS - 1],
                            1e-12);
    snprintf(text, sizeof text,
             "%.*s, \"attention_flops\": {\"forward\": {\"fp32\": 4, \"bf16\": 5},"
             " \"backward\": {\"fp32\": 6, \"bf16\": 7}}, \"host_bytes_per_s\": 80e9, \"call_s\": 5e-6, \"message_s\": "
             "7e-5}",
             (int)strlen(sound) - 1, sound);
    put(text);
    read_sound(&p);
    ck_assert_double_eq(p.attention_flops[PROFILE_FORWARD][ATTENTION_PLAIN][NUMBER_BF16], 5);
    ck_assert_double_eq(p.attention_flops[PROFILE_BACKWARD][ATTENTION_PLAIN][NUMBER_FP32], 6);
    ck_assert_double_eq(p.host_bytes_per_s, 80e9);
    ck_assert_double_eq(p.call_s, 5e-6);
    ck_assert_double_eq(p.message_s, 7e-5);
    for (size_t i = 0; i < sizeof p.attention_by_shape / sizeof(double); i++)
        ck_assert_double_eq(((const double *)p.attention_by_shape)[i], 0);
}

TEST(what_is_written_is_read_again_to_the_bit)
{
    struct profile p = *profile_default("cpu"), again;

    p.link_bytes_per_s = 1e10 / 3;
    p.matmul_flops[NUMBER_BF16][2] = 0x1.fffffffffffffp+40;
    p.attention_flops[PROFILE_BACKWARD][ATTENTION_PLAIN][NUMBER_BF16] = 1e12 / 7;
    p.attention_by_shape[PROFILE_BACKWARD][ATTENTION_PLAIN][NUMBER_BF16][PROFILE_OWN_KEYS][2][1] = 1e12 / 9;
    p.host_bytes_per_s = 1e11 / 3;
    p.call_s = 1e-5 / 3;
    p.message_s = 1e-4 / 3;
    ck_assert_msg(profile_write(&p, path, "cpu", &err) == 0, "%s", err.text);
    read_sound(&again);
    ck_assert_mem_eq(&p, &again, sizeof p);
}

/* A GPU has a rate for each path; of one that the file leaves out the default's share of products is taken, of norms
 * that of memory; narrow products are not known. */
TEST(rates_of_a_gpu_are_read_and_written_by_path)
{
    const struct profile *otherwise = profile_default("cuda");
    struct profile p = *otherwise, again;
    char text[1024];

    p.attention_flops[PROFILE_FORWARD][ATTENTION_LIBRARY][NUMBER_BF16] = 1e15 / 7;
    p.attention_by_shape[PROFILE_BACKWARD][ATTENTION_LIBRARY][NUMBER_BF16][PROFILE_SHARED_KEYS][2][2] = 1e15 / 9;
    p.attention_by_shape[PROFILE_FORWARD][ATTENTION_PLAIN][NUMBER_FP32][PROFILE_OWN_KEYS][0][0] = 1e13 / 9;
    p.attention = PLAN_ATTENTION_ORDERED;
    for (int i = 0; i < PROFILE_ROWS; i++)
        p.narrow_flops[1][NUMBER_BF16][i] = 1e14 / (3 + i);
    p.conv2d_flops[CONV2D_WEIGHTS][CONV2D_LIBRARY][NUMBER_BF16] = 1e14 / 7;
    p.norm_bytes_per_s[PROFILE_BACKWARD] = 1e12 / 7;
    ck_assert_msg(profile_write(&p, path, "cuda", &err) == 0, "%s", err.text);
    ck_assert_msg(profile_read(&again, path, "cuda", &err) == 0, "%s", err.text);
    ck_assert_mem_eq(&p, &again, sizeof p);
    snprintf(text, sizeof text,
             "{\"device\": \"cuda\", \"attention_flops\": {\"tensor\": {\"forward\": {\"fp32\": 4, \"bf16\": 5},"
             " \"backward\": {\"fp32\": 6, \"bf16\": 7}}}, \"attention_by_shape\": {\"dropout\": {\"backward\":"
             " {\"bf16\": {\"shared\": {\"128\": {\"32768\": 10}}}}}}, \"conv2d_flops\": {\"forward\": {},"
             " \"input\": {\"own\": {\"fp32\": 8, \"bf16\": 9}}, \"weights\": {}},%s",
             strchr(sound, ',') + 1);
    put(text);
    ck_assert_msg(profile_read(&p, path, "cuda", &err) == 0, "%s", err.text);
    ck_assert_int_eq(p.attention, PLAN_ATTENTION_OWN);
    ck_assert_double_eq(p.attention_flops[PROFILE_BACKWARD][ATTENTION_TENSOR][NUMBER_BF16], 7);
    ck_assert_double_eq(
        p.attention_by_shape[PROFILE_BACKWARD][ATTENTION_DRAWING][NUMBER_BF16][PROFILE_SHARED_KEYS][1][2], 10);
    ck_assert_double_eq(p.conv2d_flops[CONV2D_INPUT][CONV2D_OWN][NUMBER_BF16], 9);
    ck_assert_double_eq_tol(p.conv2d_flops[CONV2D_INPUT][CONV2D_LIBRARY][NUMBER_BF16] / 4.5,
                            otherwise->conv2d_flops[CONV2D_INPUT][CONV2D_LIBRARY][NUMBER_BF16] /
                                otherwise->matmul_flops[NUMBER_BF16][PROFILE_ROWS - 1],
                            1e-12);
    ck_assert_double_eq_tol(p.norm_bytes_per_s[PROFILE_BACKWARD] / 20,
                            otherwise->norm_bytes_per_s[PROFILE_BACKWARD] / otherwise->memory_bytes_per_s, 1e-12);
    ck_assert_double_eq(p.narrow_flops[0][NUMBER_BF16][0], 0);
    ck_assert_double_eq_tol(p.attention_flops[PROFILE_FORWARD][ATTENTION_DRAWING][NUMBER_FP32] / 4e9,
                            otherwise->attention_flops[PROFILE_FORWARD][ATTENTION_DRAWING][NUMBER_FP32] /
                                otherwise->matmul_flops[NUMBER_FP32][PROFILE_ROWS - 1],
                            1e-12);
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
        {"\"link", "\"attention_by_shape\": {\"forward\": {\"fp32\": {\"own\": {\"128\": {\"1024\": 1}}}}}, \"link",
         "attention_by_shape: forward: fp32: own: 128: '1024' is no figure of a profile"},
        {"\"link", "\"attention_by_shape\": {\"forward\": {\"fp32\": {\"own\": {\"128\": {\"512\": []}}}}}, \"link",
         "attention_by_shape: forward: fp32: own: 128: 512 is not a number"},
        {"\"link", "\"attention_by_shape\": {\"backward\": {\"fp32\": {\"shared\": 7}}}, \"link",
         "attention_by_shape: backward: fp32: shared: it must be an object, by head"},
        {"\"link", "\"attention_by_shape\": {\"forward\": {\"fp32\": {\"own\": {\"64\": {\"512\": 0.5}}}}}, \"link",
         "attention_by_shape.plain.forward.fp32.own.64.512 is 0.5: it must be from 1 to 1e+21"},
        {"\"link", "\"attention_by_shape\": {\"cudnn\": {}}, \"link",
         "attention_by_shape: 'cudnn' is no figure of a profile"},
        {"\"link", "\"norm_bytes_per_s\": {\"forward\": 1}, \"link", "norm_bytes_per_s: backward is missing"},
        {"\"link", "\"norm_bytes_per_s\": {\"forward\": 1, \"backward\": -1}, \"link",
         "norm_bytes_per_s.backward is -1: it must be from 1"},
        {"\"link", "\"conv2d_flops\": {\"forward\": {\"cudnn\": {}}}, \"link",
         "conv2d_flops: forward: 'cudnn' is no figure of a profile"},
        {"\"link", "\"conv2d_flops\": {\"forward\": {\"own\": 1}}, \"link",
         "conv2d_flops: forward: own: it must be an object, by type"},
        {"\"link", "\"narrow_flops\": {}, \"link", "'narrow_flops' is no figure of a profile"},
        {"\"link", "\"attention\": \"cudnn\", \"link", "attention must be \"own\", \"forward\""},
        {"\"link", "\"host_bytes_per_s\": 0.5, \"link", "host_bytes_per_s is 0.5: it must be from 1 to 1e+21"},
        {"\"cpu\"", "\"cuda\"", "it is a profile of device 'cuda', not of 'cpu'"},
        {"\"cpu\"", "7", "it is a profile of device '', not of 'cpu'"},
        {sound, "[]", "not a JSON object"},
        {sound, "", "line 1"},
    };

    for (int i = 0; i < COUNT(mistakes); i++) {
        const struct profile before = {.link_bytes_per_s = 7};
        struct profile p = before;
        char text[1024];
        const char *at = strstr(sound, mistakes[i].from);
        ck_assert_ptr_nonnull(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - sound), sound, mistakes[i].to,
                 at + strlen(mistakes[i].from));
        put(text);
        ck_assert_int_eq(profile_read(&p, path, "cpu", &err), -EINVAL);
        ck_assert_msg(strncmp(err.text, path, strlen(path)) == 0, "%s", err.text);
        ck_assert_holds(err.text, mistakes[i].says);
        ck_assert_mem_eq(&p, &before, sizeof p);
    }
    for (size_t n = 0; n < sizeof sound - 1; n++) { /* cut off anywhere */
        struct profile p;
        processes_write("eps/profile-cpu.json", sound, n);
        ck_assert_int_eq(profile_read(&p, path, "cpu", NULL), -EINVAL);
    }
}

TEST(without_a_file_the_default_is_taken_and_a_bad_one_is_said)
{
    struct profile p;
    bool measured = true;

    ck_assert_int_eq(profile_find(&p, &measured, "cpu", &err), 0);
    ck_assert(!measured);
    ck_assert_mem_eq(&p, profile_default("cpu"), sizeof p);
    put("{");
    ck_assert_int_eq(profile_find(&p, &measured, "cpu", &err), -EINVAL);
    ck_assert(!measured);
    ck_assert_mem_eq(&p, profile_default("cpu"), sizeof p);
    ck_assert_holds(err.text, "eps bench");
    put(sound);
    ck_assert_int_eq(profile_find(&p, &measured, "cpu", &err), 0);
    ck_assert(measured);
    ck_assert_double_eq(p.link_bytes_per_s, 10);
}

TEST(its_place_is_the_users_cache)
{
    char out[128];

    ck_assert_int_eq(profile_path(out, sizeof out, "cpu", &err), 0);
    ck_assert_str_eq(out, path);
    setenv("XDG_CACHE_HOME", "relative", 1); /* which the specification says to ignore */
    setenv("HOME", processes_path("home"), 1);
    ck_assert_int_eq(profile_path(out, sizeof out, "cpu", &err), -ENOENT);
    ck_assert_holds(err.text, "XDG_CACHE_HOME", "the one in HOME does not exist");
    ck_assert_int_eq(mkdir("home", 0700), 0);
    ck_assert_int_eq(profile_path(out, sizeof out, "cpu", &err), 0);
    ck_assert_str_eq(out, print("%s/home/.cache/eps/profile-cpu.json", processes_directory()));
    ck_assert_int_eq(profile_path(out, 20, "cpu", &err), -ENAMETOOLONG);
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    ck_assert_int_eq(profile_path(out, sizeof out, "cpu", &err), -ENOENT);
    ck_assert_holds(err.text, "XDG_CACHE_HOME");
}

/* Before a measurement, and after it. */
static void cannot_write(const char *where, int code, const char *says)
{
    ck_assert_int_eq(profile_may_write(where, &err), code);
    ck_assert_holds(err.text, says);
    ck_assert_int_eq(profile_write(profile_default("cpu"), where, "cpu", &err), code);
    ck_assert_holds(err.text, says);
}

TEST(what_cannot_be_written_or_is_no_file_is_said_and_left_alone)
{
    static const char *const there[] = {"mkfifo", "ln -s /proc/self/fd/1", "mkdir"};
    char inside[160], command[300];
    struct stat st;

    put(sound);
    ck_assert_int_eq(profile_may_write(path, &err), 0);
    cannot_write("/proc/eps/profile-cpu.json", -ENOENT, "/proc/eps/profile-cpu.json");
    snprintf(inside, sizeof inside, "%s/inside", path); /* a file stands where a directory should */
    cannot_write(inside, -ENOTDIR, "inside");
    for (int kind = 0; kind < COUNT(there); kind++) {
        snprintf(command, sizeof command, "rm -r %s; %s %s", path, there[kind], path);
        ck_assert_int_eq(system(command), 0);
        cannot_write(path, -EINVAL, "profile-cpu.json: not a regular file");
        ck_assert(lstat(path, &st) == 0 && !S_ISREG(st.st_mode));
    }
    ck_assert_int_eq(system("test $(ls eps | wc -l) = 1"), 0); /* nothing else was left there */
}

enum { WRITERS = 4, WRITTEN = 20 };

/* Several processes write at a time; what stands there is always one of their files, and nothing else is left. */
TEST(writers_at_the_same_time_do_not_mix_their_files)
{
    struct profile p = *profile_default("cpu");
    pid_t writers[WRITERS];
    int status;

    ck_assert_int_eq(profile_write(&p, path, "cpu", &err), 0);
    for (int i = 0; i < WRITERS; i++)
        if ((writers[i] = fork()) == 0) {
            for (int n = 0; n < WRITTEN; n++) {
                if (profile_may_write(path, &err) || profile_write(&p, path, "cpu", &err))
                    _exit(1);
                if (profile_read(&p, path, "cpu", &err))
                    _exit(2);
            }
            _exit(0);
        }
    for (int i = 0; i < WRITERS; i++) {
        ck_assert_int_eq(waitpid(writers[i], &status, 0), writers[i]);
        ck_assert_int_eq(status, 0);
    }
    ck_assert_int_eq(system("test $(ls eps | wc -l) = 1"), 0);
}

/* By hand: 181.02 = sqrt(64 * 512) lies halfway by its logarithm. */
TEST(between_the_measured_rows_the_rate_follows_their_logarithm)
{
    struct profile p;

    put(sound);
    ck_assert_int_eq(profile_read(&p, path, "cpu", NULL), 0);
    ck_assert_double_eq(profile_flops(&p, NUMBER_FP32, 1, 1), 1e9);
    ck_assert_double_eq(profile_flops(&p, NUMBER_FP32, 64, 1), 1e9);
    ck_assert_double_eq_tol(profile_flops(&p, NUMBER_FP32, sqrt(64 * 512), 1), 1.5e9, 1);
    ck_assert_double_eq(profile_flops(&p, NUMBER_FP32, 512, 1), 2e9);
    ck_assert_double_eq(profile_flops(&p, NUMBER_BF16, 1e9, 1), 4.5);
}

/* By hand: of 64 rows 1e9 at 4,096, a half and a quarter of it at the narrow widths; 1,536 to 4,096 is halfway at their
 * mean. */
TEST(between_the_measured_widths_the_rate_follows_their_logarithm)
{
    struct profile p;

    put(sound);
    ck_assert_int_eq(profile_read(&p, path, "cpu", NULL), 0);
    for (int i = 0; i < PROFILE_ROWS; i++) {
        p.narrow_flops[0][NUMBER_FP32][i] = p.matmul_flops[NUMBER_FP32][i] / 4;
        p.narrow_flops[1][NUMBER_FP32][i] = p.matmul_flops[NUMBER_FP32][i] / 2;
    }
    ck_assert_double_eq(profile_flops(&p, NUMBER_FP32, 64, 16), 0.25e9);
    ck_assert_double_eq(profile_flops(&p, NUMBER_FP32, 64, 512), 0.25e9);
    ck_assert_double_eq_tol(profile_flops(&p, NUMBER_FP32, 64, sqrt(512 * 1536)), 0.375e9, 1);
    ck_assert_double_eq(profile_flops(&p, NUMBER_FP32, 64, 1536), 0.5e9);
    ck_assert_double_eq_tol(profile_flops(&p, NUMBER_FP32, 512, sqrt(1536 * 4096)), 1.5e9, 1);
    ck_assert_double_eq(profile_flops(&p, NUMBER_FP32, 64, 4096), 1e9);
    ck_assert_double_eq(profile_flops(&p, NUMBER_FP32, 64, 1e6), 1e9);
    ck_assert_double_eq(profile_flops(&p, NUMBER_BF16, 64, 512), 1); /* not known */
    for (int i = 0; i < PROFILE_ROWS; i++)
        p.narrow_flops[2][NUMBER_FP32][i] = p.matmul_flops[NUMBER_FP32][i] * 3 / 4;
    ck_assert_double_eq(profile_flops(&p, NUMBER_FP32, 64, 3584), 0.75e9); /* Qwen2.5-7B's */
    ck_assert_double_eq_tol(profile_flops(&p, NUMBER_FP32, 64, sqrt(3584 * 4096)), 0.875e9, 1);
}

/* One that was made before a width was measured. */
TEST(a_width_that_a_file_leaves_out_is_not_known)
{
    char text[1024];
    struct profile p;

    snprintf(text, sizeof text,
             "{\"device\": \"cuda\", \"narrow_flops\": {\"512\": {\"fp32\": {\"64\": 1, \"512\": 2, \"4096\": 3, "
             "\"32768\": 4}, \"bf16\": {\"64\": 5, \"512\": 6, \"4096\": 7, \"32768\": 8}}},%s",
             strchr(sound, ',') + 1);
    put(text);
    ck_assert_msg(profile_read(&p, path, "cuda", &err) == 0, "%s", err.text);
    ck_assert_double_eq(p.narrow_flops[0][NUMBER_BF16][3], 8);
    ck_assert_double_eq(p.narrow_flops[2][NUMBER_BF16][3], 0);
}

static double attention_flops_of(const struct profile *p, enum attention_path of, size_t head, bool is_shared,
                                 double tokens)
{
    return profile_attention_flops(p, PROFILE_BACKWARD, of, NUMBER_BF16,
                                   &(struct attention_shape){tokens, head, is_shared});
}

/* By hand: of 1,024 tokens a third of the way from 512 to 4,096 by their logarithm. */
TEST(attention_has_the_rate_of_the_nearest_shape_that_was_measured)
{
    struct profile p = *profile_default("cuda");
    double(*const of)[PROFILE_HEADS][PROFILE_LENGTHS] =
        p.attention_by_shape[PROFILE_BACKWARD][ATTENTION_TENSOR][NUMBER_BF16];
    const double otherwise = p.attention_flops[PROFILE_BACKWARD][ATTENTION_TENSOR][NUMBER_BF16];
    static const struct {
        size_t head;
        bool is_shared;
        double tokens, flops;
    } shapes[] = {
        {128, false, 1, 300},    {128, false, 512, 300}, {128, false, 1024, 400}, {128, false, 4096, 600},
        {128, false, 8192, 500}, {128, false, 1e6, 300}, {65, false, 512, 300},   {128, true, 1, 900},
        {128, true, 1e6, 900},   {64, false, 512, 300},  {64, true, 512, 900},    {32, false, 4096, 600},
        {256, false, 512, 300},  {512, true, 512, 900},
    };

    ck_assert_double_eq(attention_flops_of(&p, ATTENTION_TENSOR, 128, false, 512), otherwise);
    memcpy(of[PROFILE_OWN_KEYS][1], (const double[]){300, 600, 300}, sizeof of[0][1]);
    of[PROFILE_SHARED_KEYS][1][1] = 900;
    for (int i = 0; i < COUNT(shapes); i++)
        ck_assert_msg(fabs(attention_flops_of(&p, ATTENTION_TENSOR, shapes[i].head, shapes[i].is_shared,
                                              shapes[i].tokens) -
                           shapes[i].flops) < 1e-9,
                      "shape %d", i);
    of[PROFILE_SHARED_KEYS][0][1] =
        700; /* of its heads, if not of its keys; else those below come before those above */
    ck_assert_double_eq(attention_flops_of(&p, ATTENTION_TENSOR, 64, false, 1), 700);
    memset(of[PROFILE_OWN_KEYS][1], 0, sizeof of[0][1]), of[PROFILE_SHARED_KEYS][1][1] = 0;
    of[PROFILE_OWN_KEYS][2][0] = 200;
    ck_assert_double_eq(attention_flops_of(&p, ATTENTION_TENSOR, 128, false, 512), 700);
    p.attention_by_shape[PROFILE_BACKWARD][ATTENTION_PLAIN][NUMBER_BF16][PROFILE_OWN_KEYS][1][0] = 5;
    ck_assert_double_eq(attention_flops_of(&p, ATTENTION_DRAWING, 128, false, 512),
                        p.attention_flops[PROFILE_BACKWARD][ATTENTION_DRAWING][NUMBER_BF16]);
    p.attention_flops[PROFILE_BACKWARD][ATTENTION_DRAWING][NUMBER_BF16] = 0; /* not known: as the plain one */
    ck_assert_double_eq(attention_flops_of(&p, ATTENTION_DRAWING, 128, false, 512), 5);
}

/* Convolutions as products, norms as all else. */
TEST(what_was_not_measured_has_the_rate_of_what_is_like_it)
{
    struct profile p;

    put(sound);
    ck_assert_int_eq(profile_read(&p, path, "cpu", NULL), 0);
    ck_assert_double_eq(profile_conv2d_flops(&p, CONV2D_INPUT, CONV2D_OWN, NUMBER_FP32, 512), 2e9);
    p.conv2d_flops[CONV2D_INPUT][CONV2D_OWN][NUMBER_FP32] = 7;
    ck_assert_double_eq(profile_conv2d_flops(&p, CONV2D_INPUT, CONV2D_OWN, NUMBER_FP32, 512), 7);
    ck_assert_double_eq(profile_norm_bytes_per_s(&p, PROFILE_FORWARD), 20);
    p.norm_bytes_per_s[PROFILE_FORWARD] = 8, p.norm_bytes_per_s[PROFILE_BACKWARD] = 9;
    ck_assert_double_eq(profile_norm_bytes_per_s(&p, PROFILE_FORWARD), 8);
    ck_assert_double_eq(profile_norm_bytes_per_s(&p, PROFILE_BACKWARD), 9);
}

TEST(fp16_has_the_rates_of_what_computes_it)
{
    ck_assert_int_eq(profile_type(&plan_cpu, NUMBER_FP16), NUMBER_FP32);
    ck_assert_int_eq(profile_type(&plan_cuda, NUMBER_FP16), NUMBER_BF16);
    for (int type = NUMBER_FP32; type <= NUMBER_BF16; type++)
        ck_assert_int_eq(profile_type(&plan_cuda, (enum number_type)type), type);
}

/* The planner divides by rates interpolated between them: a single 0 would make a price infinite. */
TEST_EACH(a_narrow_width_has_the_rates_of_all_rows_or_none, PROFILE_ROWS)
{
    struct profile p = *profile_default("cuda");

    for (int i = 0; i < PROFILE_ROWS; i++)
        p.narrow_flops[1][NUMBER_BF16][i] = 1e12;
    ck_assert_msg(profile_check(&p, &err) == 0, "%s", err.text);
    p.narrow_flops[1][NUMBER_BF16][_i] = 0;
    ck_assert_int_eq(profile_check(&p, &err), -EINVAL);
    ck_assert_holds(err.text, print("narrow_flops.1536.bf16.%u is 0: it must be from 1", profile_rows[_i]));
    memset(p.narrow_flops[1][NUMBER_BF16], 0, sizeof p.narrow_flops[1][NUMBER_BF16]);
    p.narrow_flops[1][NUMBER_BF16][_i] = 1e12;
    ck_assert_int_eq(profile_check(&p, &err), -EINVAL);
}

/* What is not known is 0: of attention any path but the plain one, which the others are then as. */
static bool may_be_unknown(size_t at)
{
#define IS_OF(member)                                                                                                  \
    (at >= offsetof(struct profile, member) &&                                                                         \
     at < offsetof(struct profile, member) + sizeof((struct profile *)NULL)->member)
    const size_t of_attention = (at - offsetof(struct profile, attention_flops)) / (PROFILE_TYPES * sizeof(double));

    return IS_OF(host_bytes_per_s) || IS_OF(n_multiprocessors) || IS_OF(norm_bytes_per_s) || IS_OF(narrow_flops) ||
           IS_OF(conv2d_flops) || IS_OF(attention_by_shape) ||
           (IS_OF(attention_flops) && of_attention % ATTENTION_PATHS != ATTENTION_PLAIN);
}

TEST(a_figure_that_is_none_is_found_wherever_it_stands)
{
    const struct profile sane = *profile_default("cpu");
    const double bad[] = {0, -1, 1e-308, 1e308, NAN, INFINITY};

    ck_assert_int_eq(profile_check(&sane, NULL), 0);
    ck_assert_ptr_null(profile_default("abacus"));
    for (size_t at = 0; at < offsetof(struct profile, attention); at += sizeof(double)) {
        for (int i = 0; i < COUNT(bad); i++) {
            struct profile p = sane;
            memcpy((char *)&p + at, &bad[i], sizeof bad[i]);
            const bool may_be_0 = bad[i] == 0 && may_be_unknown(at);
            const bool is_time = at == offsetof(struct profile, call_s) || at == offsetof(struct profile, message_s);
            const bool may_be_less = is_time && bad[i] >= 0 && bad[i] < 1;
            ck_assert_int_eq(profile_check(&p, NULL), may_be_0 || may_be_less ? 0 : -EINVAL);
        }
    }
}
