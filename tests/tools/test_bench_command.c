/* eps bench: what is measured, where it goes, who reads it. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "proto/plan/profile.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

SUITE_LABELS(release)

static void setup(void)
{
    processes_setup();
    setenv("XDG_CACHE_HOME", processes_path("cache"), 1);
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

    expect("eps plan --model byte-small", 0);
    ck_assert_ptr_nonnull(strstr(command_out(), "eps bench"));
    expect("eps bench", 0, "32768", "GFLOP/s: ", "attention, bf16 ", "AdamW on the host", "cache/eps/profile-cpu.json");
    ck_assert_msg(profile_read(&profile, processes_path("cache/eps/profile-cpu.json"), "cpu", &err) == 0, "%s",
                  err.text);
    check_sound(&profile);
    expect("eps plan --model byte-small", 0);
    ck_assert_ptr_null(strstr(command_out(), "eps bench"));
}

TEST(a_profile_that_cannot_be_used_is_said_and_not_planned_with)
{
    ck_assert_int_eq(system("mkdir -p \"$XDG_CACHE_HOME/eps\"; echo '{' > \"$XDG_CACHE_HOME/eps/profile-cpu.json\""),
                     0);
    expect("eps plan --model byte-small", 1, "profile-cpu.json: not JSON at line ", "eps bench");
}

static const struct refusal mistakes[] = {
    {"eps bench --device gpu", 2, "eps bench: ", "--device gpu"},
    {"eps bench --profile /proc/eps/p.json", 1, "eps bench: ", "/proc/eps/p.json"},
    {"eps bench --profile .", 1, "eps bench: ", "no profile was made: .: not a regular file"},
};

TEST_EACH(misuse_and_a_file_that_cannot_be_are_sentences, COUNT(mistakes))
{
    expect_refusal(&mistakes[_i]);
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
