/* eps bench: what is measured, where it goes, who reads it. What it refuses: test_cli. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "proto/plan/time/profile.h"

#include <signal.h>
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
    for (int i = 0; i < PROFILE_ROWS; i++)
        ck_assert(p->matmul_flops[NUMBER_FP32][i] > 1e7 && p->matmul_flops[NUMBER_FP32][i] < 1e15);
    for (int i = 0; i < PROFILE_DIRECTIONS * PROFILE_TYPES; i++) {
        const double flops = p->attention_flops[i / PROFILE_TYPES][ATTENTION_PLAIN][i % PROFILE_TYPES];
        ck_assert(flops > 1e7 && flops < 1e15);
    }
    for (int i = 0; i < PROFILE_DIRECTIONS * PROFILE_TYPES * PROFILE_HEADS; i++) { /* short rows, on any machine */
        const double *flops = p->attention_by_shape[i % 2][ATTENTION_PLAIN][i / 2 % 2][PROFILE_OWN_KEYS][i / 4];
        ck_assert(flops[0] > 1e7 && flops[0] < 1e15);
    }
    ck_assert_double_gt(p->link_bytes_per_s, 1e7);
    ck_assert_double_gt(p->memory_bytes_per_s, 1e7);
    ck_assert_double_gt(p->update_parameters_per_s, 1e6);
}

TEST(what_is_measured_is_written_to_the_cache_and_read_by_eps_plan)
{
    struct profile profile;
    struct error err = {""};

    expect("eps plan --model byte-small", 0, "eps bench");
    expect("eps bench", 0, "32768", "GFLOP/s: ", "attention, bf16 ", "  bf16, heads of 128 ", "AdamW on the host",
           "cache/eps/profile-cpu.json");
    ck_assert_msg(profile_read(&profile, processes_path("cache/eps/profile-cpu.json"), "cpu", &err) == 0, "%s",
                  err.text);
    check_sound(&profile);
    expect("eps plan --model byte-small", 0);
    ck_assert_ptr_null(strstr(command_out(), "eps bench"));
    processes_put_text("cache/eps/profile-cpu.json", "{\n");
    expect("eps plan --model byte-small", 1, "profile-cpu.json: not JSON at line ", "eps bench");
}

/* A profile in the cache counts as measured, here one that no machine comes near. */
TEST(a_run_says_that_it_is_slower_than_what_was_measured_lets_expect)
{
    struct profile p = *profile_default("cpu");
    struct error err = {""};

    processes_put_text("text.txt",
                       "a text of some length that a small model reads again and again, and then once more\n");
    expect("eps train --data text.txt --model byte-small --seq 8 --batch 2 --steps 6 --out plain", 0, "speed ");
    ck_assert_ptr_null(strstr(command_out(), "predicted"));
    for (int i = 0; i < PROFILE_TYPES * PROFILE_ROWS; i++)
        p.matmul_flops[i / PROFILE_ROWS][i % PROFILE_ROWS] = 1e18;
    for (int i = 0; i < PROFILE_DIRECTIONS * PROFILE_TYPES; i++)
        p.attention_flops[i / PROFILE_TYPES][ATTENTION_PLAIN][i % PROFILE_TYPES] = 1e18;
    p.link_bytes_per_s = p.memory_bytes_per_s = p.update_parameters_per_s = 1e18;
    ck_assert_msg(profile_write(&p, processes_path("cache/eps/profile-cpu.json"), "cpu", &err) == 0, "%s", err.text);
    expect("eps train --data text.txt --model byte-small --seq 8 --batch 2 --steps 6 --out measured", 0,
           " were predicted from what eps bench measured here");
}

static bool has_worker(void *pid)
{
    return (*(pid_t *)pid = processes_find("eps-worker")) > 0;
}

static bool has_ended(void *pid)
{
    return processes_status_bytes(*(pid_t *)pid, "VmRSS") == 0;
}

TEST(the_worker_that_measures_ends_with_who_asked)
{
    const pid_t bench = processes_start("eps", (const char *const[]){"bench", "--profile", NULL}, NULL);
    pid_t worker;

    ck_assert(processes_until(has_worker, &worker));
    ck_assert_int_eq(kill(bench, SIGKILL), 0);
    ck_assert(processes_until(has_ended, &worker));
    ck_assert_int_ne(access("cache/eps/profile-cpu.json", F_OK), 0); /* nor has it measured all */
}
