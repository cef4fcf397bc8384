#include "tests/kit/runs.h"

#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"

#include <check.h>
#include <signal.h>
#include <stdlib.h>

void runs_check_budgets(const char *job, const char *data, const char *plan)
{
    expect(print("eps plan %s %s --minimum", job, plan), 0);
    const unsigned long long least = strtoull(command_out(), NULL, 10);
    expect(print("eps train %s %s --steps 4 --out roomy --device-mem 1GiB", job, data), 0,
           "activation checkpoints on the device", "at most (as planned)");
    expect(print("eps train %s %s --steps 4 --out least --device-mem %llu", job, data, least), 0,
           "at most (as planned)");
    expect(print("eps train --resume roomy/step-2 --out on --device-mem %llu", least), 0,
           "activation checkpoints on the host");
    expect("eps train --resume least/step-2 --out back --device-mem 1GiB", 0, "activation checkpoints on the device");
    for (int i = 0; i < 3; i++)
        outputs_check_same_latest("roomy", (const char *[]){"least", "on", "back"}[i]);
}

/* Between two steps. */
static void kill_one(void *user, const struct eps_step *step)
{
    if (step->step == 2)
        kill(*(const pid_t *)user, SIGKILL);
}

void runs_check_killed(struct eps_train_options *options)
{
    const struct eps_train_events events = {.on_step = kill_one};
    struct eps_error error = {""};
    pid_t workers[3];

    options->out = "alone";
    ck_assert_msg(eps_train(options, NULL, NULL, &error) == 0, "%s", error.text);
    const pid_t daemon = processes_daemon("lab", 3, workers);
    options->connect = "lab", options->device_mem = 0, options->out = "three";
    ck_assert_msg(eps_train(options, &events, &workers[1], &error) == 0, "%s", error.text);
    ck_assert_uint_eq(processes_workers("lab"), 2);
    expect_stop(daemon);
    outputs_check_same_latest("alone", "three");
}

void runs_check_killed_command(const char *train)
{
    expect(print("%s --out left", train), 0);
    expect(
        print(
            "%s --out killed 2>killed.err & train=$!; for i in $(seq 600); do sleep 0.05; [ -s killed/metrics.jsonl ] "
            "&& break; done; kill -9 $(pgrep -P $(pgrep -P $train) eps-worker || pgrep -P $train eps-worker); "
            "wait $train && cat killed.err",
            train),
        0, "was lost after");
    outputs_check_same_latest("left", "killed");
}

uint64_t runs_kill_client(pid_t client, const char *out)
{
    ck_assert_int_eq(kill(client, SIGKILL), 0);
    ck_assert_int_eq(processes_wait(client), 128 + SIGKILL);
    processes_await_nobody();
    return outputs_latest(out);
}
