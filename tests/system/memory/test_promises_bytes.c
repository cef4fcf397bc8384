/* Every byte accounted for, of real processes at work: the ledgers against the operating system's count, against eps plan,
 * and against 16, 16 (fenced, without replay) and 10 bytes a parameter in training, 4 and 2 of a frozen model. What a
 * parameter takes in each mode is test_host's; categories one by one are test_plan_train's. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

SUITE_LABELS(release)

enum { N_LAYERS = 6, SIDES = 2, HOST = 0, WORKER = 1 };

#define SIZES "--model bytes.json --batch 4 --seq 64 "
#define TRAIN "eps train " SIZES "--data bytes.txt --steps 100000 --save-every 0 "

static void setup(void)
{
    processes_setup();
    processes_config("bytes.json", N_LAYERS, 4, 256, 64);
    processes_text("bytes.txt", 1 << 20);
    expect("for numbers in fp32 bf16; do eps train " SIZES "--data bytes.txt --steps 1 "
           "--precision $numbers --out asked-$numbers || exit; done",
           0);
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE_ONCE(setup, processes_remove)

static const struct {
    const char *command, *state, *options, *out;
    bool smallest; /* the least device memory that can work: layers' inputs are on the host */
    double parameter_bytes;
} modes[] = {
    {TRAIN "--out run-fp32", "training", "", "run-fp32", false, 16},
    {TRAIN "--out run-fenced", "training", "--clip-norm 1", "run-fenced", false, 16},
    {TRAIN "--out run-narrow", "training", "--precision bf16 --moments bf16", "run-narrow", true, 10},
    {"eps eval --model asked-fp32 --data bytes.txt --batch 4 --seq 64", "evaluating", "", NULL, false, 4},
    {"eps eval --model asked-bf16 --data bytes.txt --batch 4 --seq 64", "evaluating", "", NULL, false, 2},
    {"eps generate --model asked-fp32 --tokens 100000", "generating", "", NULL, false, 4},
    {"eps generate --model asked-bf16 --tokens 100000", "generating", "", NULL, false, 2},
};

/* The worker maps segments of the daemon's too: those stand in the daemon's ledger. At most: but for files and for others'
 * segments, which only grow. */
static double resident(pid_t pid, int side, bool at_most)
{
    const uint64_t shared = processes_status_bytes(pid, "RssShmem");

    if (at_most)
        return (double)(processes_status_bytes(pid, "VmHWM") - processes_status_bytes(pid, "RssFile") -
                        (side == HOST ? 0 : shared));
    return (double)(processes_status_bytes(pid, "RssAnon") + (side == HOST ? shared : 0));
}

/* 2 %, and 8 MiB for what is not of the job: code, stacks, the heap of libraries. */
static void agree(const char *what, double system, double ledger)
{
    ck_assert_msg(fabs(system - ledger) <= 0.02 * ledger + (8 << 20),
                  "%s: the system says %.2f MiB, the ledger %.2f MiB", what, system / (1 << 20), ledger / (1 << 20));
}

/* A run has gone some steps, in which everything was touched. */
static bool is_at_work(void *mode)
{
    const int i = *(int *)mode;

    if (modes[i].out)
        return processes_count(print("%s/metrics.jsonl", modes[i].out), "\n") >= 3;
    return processes_eps("status lab --json") == 0 && processes_count("out", modes[i].state) == 1;
}

TEST_EACH(a_job_takes_what_is_planned_and_the_system_agrees, COUNT(modes))
{
    static const char *const of_parameters[] = {"weights",      "replay",        "master",
                                                "first_moment", "second_moment", "gradient_sum"};
    static const char *const names[SIDES] = {"host", "workers.0"};
    static const char *const listen[] = {"--listen", "lab", NULL};
    const char *budget = "256MiB";
    json_t *plan = NULL;
    double before[SIDES], bytes = 0;
    pid_t pids[SIDES];

    if (modes[_i].smallest) {
        expect(print("eps plan " SIZES "%s --minimum", modes[_i].options), 0);
        budget = print("%.*s", (int)strcspn(command_out(), "\n"), command_out());
    }
    if (modes[_i].out)
        plan = expect_json(print("eps plan " SIZES "%s --device-mem %s --json", modes[_i].options, budget), 0);
    const char *const shell[] = {
        "-c", print("PATH=" BIN_DIR ":$PATH; exec %s %s --connect lab", modes[_i].command, modes[_i].options), NULL};
    pids[HOST] = processes_start("epsd", listen, NULL);
    pids[WORKER] = processes_worker("lab", budget, NULL);
    processes_await_workers("lab", 1);
    for (int side = 0; side < SIDES; side++)
        before[side] = resident(pids[side], side, false);
    const pid_t client = processes_start("/bin/sh", shell, NULL);
    int mode = _i;
    ck_assert(processes_until(is_at_work, &mode));
    json_t *status = expect_json("eps status lab --json", 0), *memory = expect_json("eps mem lab --json", 0);
    for (int side = 0; side < SIDES; side++) {
        json_t *ledger = json_at(memory, names[side]);
        const double now = json_number_at(ledger, "current"), peak = json_number_at(ledger, "peak");
        ck_assert(now > 0 && now == peak && now == json_number_at(ledger, "planned"));
        ck_assert(!plan || peak == json_number_at(json_at(plan, names[side]), "peak"));
        agree(names[side], resident(pids[side], side, false) - before[side], now);
        agree(print("%s, at most", names[side]), resident(pids[side], side, true) - before[side], peak);
    }
    ck_assert(!plan || modes[_i].smallest == (strcmp(json_string_value(json_at(plan, "choice.stash")), "host") == 0));
    for (int k = 0; k < COUNT(of_parameters); k++) {
        const json_t *row = json_object_get(json_at(memory, "host.categories"), of_parameters[k]);
        bytes += row ? json_number_value(json_object_get(row, "current")) : 0;
    }
    /* Units begin on cache lines, which takes less than 64 bytes of each array of each unit. */
    const double least = modes[_i].parameter_bytes * json_number_at(status, "parameters");
    ck_assert_double_ge(bytes, least);
    ck_assert_double_le(bytes, least + (N_LAYERS + 20) * 5 * 64);
    json_decref(status), json_decref(memory), json_decref(plan);
    expect("eps stop lab", 0);
    processes_wait(client);
    for (int side = 0; side < SIDES; side++)
        ck_assert_int_eq(processes_wait(pids[side]), 0);
}
