/* eps bench: what is measured, where it goes, who reads it. */
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "proto/plan/profile.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

SUITE_LABELS(release)

static char out_file[300], err_file[300];

static void setup(void)
{
    processes_setup();
    setenv("XDG_CACHE_HOME", processes_path("cache"), 1);
    snprintf(out_file, sizeof out_file, "%s", processes_path("out"));
    snprintf(err_file, sizeof err_file, "%s", processes_path("err"));
}

SUITE_FIXTURE(setup, processes_remove)

/* No machine that runs this is a thousand times slower or faster than a core of today. */
static void check_sound(const struct profile *p)
{
    ck_assert_int_eq(profile_check(p, NULL), 0);
    for (int i = 0; i < PROFILE_ROWS; i++) {
        ck_assert_double_gt(p->matmul_flops[NUMBER_FP32][i], 1e7);
        ck_assert_double_lt(p->matmul_flops[NUMBER_FP32][i], 1e15);
    }
    for (int i = 0; i < PROFILE_DIRECTIONS * NUMBER_TYPES; i++) {
        ck_assert_double_gt(p->attention_flops[i / NUMBER_TYPES][i % NUMBER_TYPES], 1e7);
        ck_assert_double_lt(p->attention_flops[i / NUMBER_TYPES][i % NUMBER_TYPES], 1e15);
    }
    ck_assert_double_gt(p->link_bytes_per_s, 1e7);
    ck_assert_double_gt(p->memory_bytes_per_s, 1e7);
    ck_assert_double_gt(p->update_parameters_per_s, 1e6);
}

TEST(what_is_measured_is_written_to_the_cache_and_read_by_eps_plan)
{
    struct profile profile;
    struct error err = {""};

    ck_assert_int_eq(processes_eps("plan --model byte-small"), 0);
    char *before = processes_read(out_file);
    ck_assert_ptr_nonnull(strstr(before, "eps bench"));
    free(before);
    ck_assert_int_eq(processes_eps("bench"), 0);
    char *said = processes_read(out_file);
    ck_assert_msg(strstr(said, "32768") && strstr(said, "GFLOP/s: ") && strstr(said, "attention, bf16 ") &&
                      strstr(said, "AdamW on the host") && strstr(said, "cache/eps/profile-cpu.json"),
                  "%s", said);
    free(said);
    ck_assert_msg(profile_read(&profile, processes_path("cache/eps/profile-cpu.json"), "cpu", &err) == 0, "%s",
                  err.text);
    check_sound(&profile);
    ck_assert_int_eq(processes_eps("plan --model byte-small"), 0);
    char *after = processes_read(out_file);
    ck_assert_ptr_null(strstr(after, "eps bench"));
    free(after);
}

TEST(a_profile_that_cannot_be_used_is_said_and_not_planned_with)
{
    ck_assert_int_eq(system("mkdir -p \"$XDG_CACHE_HOME/eps\"; echo '{' > \"$XDG_CACHE_HOME/eps/profile-cpu.json\""),
                     0);
    ck_assert_int_eq(processes_eps("plan --model byte-small"), 1);
    char *said = processes_read(err_file);
    ck_assert_msg(strstr(said, "profile-cpu.json: not JSON at line ") && strstr(said, "eps bench"), "%s", said);
    free(said);
}

TEST(misuse_and_a_file_that_cannot_be_are_sentences)
{
    static const struct {
        const char *options, *says;
        int status;
    } mistakes[] = {
        {"--device gpu", "--device gpu", 2},
        {"--profile /proc/eps/p.json", "/proc/eps/p.json", 1},
        {"--profile .", "no profile was made: .: not a regular file", 1},
    };

    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        ck_assert_int_eq(processes_eps("bench %s", mistakes[i].options), mistakes[i].status);
        char *said = processes_read(err_file);
        ck_assert_msg(strncmp(said, "eps bench: ", 11) == 0 && strstr(said, mistakes[i].says), "%s", said);
        free(said);
    }
}

struct child {
    pid_t parent, pid;
};

static bool has_child(void *context)
{
    struct child *c = context;
    char command[64];

    snprintf(command, sizeof command, "pgrep -P %d", (int)c->parent);
    FILE *said = popen(command, "r");
    ck_assert_ptr_nonnull(said);
    const bool found = fscanf(said, "%d", &c->pid) == 1;
    pclose(said);
    return found;
}

/* What has ended has no command line, also while nobody has asked how it ended. */
static bool has_ended(void *context)
{
    const struct child *c = context;
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)c->pid);
    FILE *file = fopen(path, "r");
    const bool ended = !file || fgetc(file) == EOF;
    if (file)
        fclose(file);
    return ended;
}

TEST(the_worker_that_measures_ends_with_who_asked)
{
    const char *const argv[] = {"bench", "--profile", NULL};
    struct child child = {.parent = processes_start("eps", argv, NULL)};

    ck_assert(processes_until(has_child, &child));
    ck_assert_int_eq(kill(child.parent, SIGKILL), 0);
    ck_assert(processes_until(has_ended, &child));
    ck_assert_int_ne(access(processes_path("cache/eps/profile-cpu.json"), F_OK), 0); /* nor has it measured all */
}
