/* --sample-every: a run writes what eps generate writes from its checkpoint, and trains as without. The model's files
 * ask for the likeliest token always, which samples do not heed. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

#define RUN    "--model said/config.json --data ab.txt --steps 60 --lr 0.02 --seq 16 --batch 8 --seed 5 --deterministic "
#define SAMPLE "--sample-every 30 --sample-prompt 'ab c' --sample-prompt abc "

static void setup(void)
{
    processes_setup_tiny();
    expect("mkdir said && cp model.json said/config.json && echo '{\"do_sample\": false}' >said/generation_config.json",
           0);
    expect("yes 'ab c' | head -n 2000 >ab.txt", 0); /* soon learned, so that samples are printable */
}

SUITE_FIXTURE_ONCE(setup, processes_remove)

/* What follows a prompt of step-60; owned. */
static char *written(const char *prompt)
{
    expect(print("eps generate --model with/step-60 --prompt '%s' --tokens 64 --seed 65 --temperature 1 --device cpu",
                 prompt),
           0);
    ck_assert_str_eq(print("%.*s", (int)strlen(prompt), command_out()), prompt);
    return strdup(command_out() + strlen(prompt));
}

TEST(samples_are_what_the_checkpoint_writes_and_change_no_bit)
{
    static const char *const prompts[] = {"ab c", "abc"};

    expect("eps train " RUN SAMPLE "--device cpu --out with >train.log", 0);
    expect("eps train " RUN "--device cpu --out without", 0);
    outputs_check_same_latest("with", "without");
    outputs_check_same_metrics("with", "without", 60);
    expect("grep -c '^sample after 30 steps: ab' train.log", 0, "2\n");
    for (int i = 0; i < COUNT(prompts); i++) {
        char *text = written(prompts[i]);
        expect_file("train.log",
                    print("\nsample after 60 steps: %s | %.*s", prompts[i], (int)strcspn(text, "\n"), text));
        free(text);
    }
}

/* The model learns a sequence that would colour the terminal. */
TEST(a_sample_is_no_command_for_the_terminal)
{
    expect("yes \"$(printf 'ab\\033[7mc')\" | head -n 2000 >escapes.txt", 0);
    const char *shown = expect_on_terminal(
        "eps train --model model.json --data escapes.txt --steps 60 --lr 0.02 --seq 16 --batch 8 --seed 5 "
        "--sample-every 60 --sample-prompt \"$(printf 'a\\007b')\" --device cpu --out coloured",
        0, 80);
    const char *sample = strstr(shown, "sample after 60 steps: a\xEF\xBF\xBD"
                                       "b | ");
    ck_assert_msg(sample != NULL, "%s", shown);
    ck_assert_msg(strstr(sample, "\xEF\xBF\xBD[7m"), "%s", sample);
    ck_assert_ptr_null(strstr(shown, "\033[7m"));
}

TEST(a_run_that_thaws_goes_on_writing_samples)
{
    expect("eps train " RUN SAMPLE "--device cpu --out thaws --freeze '*wte*' --freeze-until 30 >thaws.log", 0);
    expect("grep -c '^sample after 30 steps: ab' thaws.log", 0, "2\n");
    expect("grep -c '^sample after 60 steps: ab' thaws.log", 0, "2\n");
}

/* They are not the run's own: named again, or there are none. */
TEST(a_resumed_run_and_a_shared_daemon_write_samples_when_asked)
{
    pid_t worker, lab = processes_daemon("lab", 1, &worker);

    expect("eps train " RUN SAMPLE "--connect lab --out shared", 0, "\nsample after 60 steps: abc | ");
    expect("eps train --resume shared --connect lab --steps 61 --out shared", 0);
    ck_assert_ptr_null(strstr(command_out(), "\nsample after"));
    expect("eps train --resume shared --connect lab --steps 62 --sample-every 1 --sample-prompt c", 0,
           "\nsample after 62 steps: c | ");
    expect_stop(lab);
}
