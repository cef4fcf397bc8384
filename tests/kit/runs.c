#include "tests/kit/runs.h"

#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"

#include <check.h>
#include <signal.h>

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
