/* Every byte accounted for, of real processes at work: the ledgers against the operating system's count, against eps
 * plan, and against 16, 16 (fenced, without replay) and 10 bytes a parameter in training, 4 and 2 of a frozen model.
 * What a parameter takes in each mode is test_host's; categories one by one are test_plan_train's. */
#include "proto/plan/memory/files.h"
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

SUITE_LABELS(release)

enum { N_LAYERS = 6, SIDES = 2, HOST = 0, WORKER = 1 };

#define SIZES "--model bytes.json --batch 4 --seq 64 "
#define TRAIN "eps train " SIZES "--data bytes.txt --steps 100000 --save-every 0 "

static void setup(void)
{
    ck_assert_int_eq(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0); /* a huge page holds what nobody touched */
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
    bool widens;   /* what it saves: by a buffer that nothing else touches */
    bool smallest; /* the least device memory that can work: layers' inputs are on the host */
    double parameter_bytes;
} modes[] = {
    {TRAIN "--out run-fp32", "training", "", "run-fp32", false, false, 16},
    {TRAIN "--out run-fenced", "training", "--clip-norm 1", "run-fenced", false, false, 16},
    {TRAIN "--out run-narrow", "training", "--precision bf16 --moments bf16", "run-narrow", true, true, 10},
    {"eps eval --model asked-fp32 --data bytes.txt --batch 4 --seq 64", "evaluating", "", NULL, false, false, 4},
    {"eps eval --model asked-bf16 --data bytes.txt --batch 4 --seq 64", "evaluating", "", NULL, false, false, 2},
    {"eps generate --model asked-fp32 --tokens 100000", "generating", "", NULL, false, false, 4},
    {"eps generate --model asked-bf16 --tokens 100000", "generating", "", NULL, false, false, 2},
};

/* Resident memory of a process by what it is for. */
struct resident {
    double libraries; /* what the program and its libraries wrote into their own images */
    double stacks;
    double segments; /* shared: the worker maps the daemon's, too, in whose ledger they stand */
    double rest;     /* all else, in which every array of the ledger is */
};

/* A job's description, which no ledger has: its model's operations (384 KiB on each side), messages, and on the host
 * the state of its units and workers, with something of malloc's for the thread of each CPU. Seen were 770 and 450 KiB
 * with two. The daemon plans a job with another description beside it. */
static const double description[SIDES] = {[HOST] = 1 << 20, [WORKER] = 640 << 10};

enum { GUARD = 64 << 10 /* at a stack's end, and less */, THREAD = 32 << 10, PLANNING = 2 << 20 };

static double described(int side)
{
    return description[side] + (double)(THREAD * sysconf(_SC_NPROCESSORS_CONF));
}

static double *find_kind(struct resident *r, uint64_t begin, uint64_t end, const char *name)
{
    pthread_attr_t usual;
    size_t stack;

    pthread_attr_init(&usual), pthread_attr_getstacksize(&usual, &stack), pthread_attr_destroy(&usual);
    if (strstr(name, "memfd:"))
        return &r->segments;
    if (name[0] == '/')
        return &r->libraries;
    if (strcmp(name, "[stack]") == 0 || (end - begin >= stack - GUARD && end - begin <= stack + GUARD))
        return &r->stacks;
    return &r->rest;
}

/* By smaps, which counts pages; the numbers of /proc/PID/status lag behind on machines with many CPUs. */
static struct resident find_resident(pid_t pid)
{
    struct resident all = {0};
    double *kind = NULL;
    char line[4096], name[4096];
    uint64_t begin, end, kib;
    FILE *file = fopen(print("/proc/%d/smaps", (int)pid), "re");

    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file)) {
        name[0] = '\0';
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %*s %*s %*s %4095s", &begin, &end, name) >= 2)
            kind = find_kind(&all, begin, end, name);
        else if (kind && sscanf(line, kind == &all.segments ? "Rss: %" SCNu64 : "Anonymous: %" SCNu64, &kib) == 1)
            *kind += 1024 * (double)kib;
    }
    fclose(file);
    return all;
}

static struct resident less(struct resident a, struct resident b)
{
    return (struct resident){a.libraries - b.libraries, a.stacks - b.stacks, a.segments - b.segments, a.rest - b.rest};
}

static double of_process(struct resident r, int side)
{
    return r.rest + (side == HOST ? r.segments : 0);
}

/* How far the counters of /proc/PID/status may lag. */
static double lag(void)
{
    const double n = (double)sysconf(_SC_NPROCESSORS_CONF);

    return n * fmax(32, 2 * n) * (double)sysconf(_SC_PAGESIZE);
}

/* What the job added to a process that waited: every byte of the ledger, but for what only a save touches, and a
 * description. */
static void agree(const char *what, int side, struct resident added, double ledger, double untouched)
{
    const double system = of_process(added, side);

    ck_assert_msg(system >= ledger - untouched && system <= ledger + described(side),
                  "%s: the system says %.0f KiB, the ledger %.0f", what, system / 1024, ledger / 1024);
}

/* At no time more. VmHWM has files and others' segments, too, which only grow. */
static void agree_at_most(const char *what, int side, pid_t pid, struct resident before, struct resident added,
                          double peak)
{
    const double others = (double)processes_status_bytes(pid, "RssFile") +
                          (side == HOST ? 0 : (double)processes_status_bytes(pid, "RssShmem")),
                 known = before.libraries + before.stacks + of_process(before, side) + added.libraries + added.stacks,
                 most = (double)processes_status_bytes(pid, "VmHWM") - others - known;

    ck_assert_msg(most <= peak + described(side) + (side == HOST ? PLANNING : 0) + lag(),
                  "%s, at most: the system says %.0f KiB, the ledger %.0f", what, most / 1024, peak / 1024);
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
    struct resident before[SIDES];
    double bytes = 0;
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
        before[side] = find_resident(pids[side]);
    const pid_t client = processes_start("/bin/sh", shell, NULL);
    int mode = _i;
    ck_assert(processes_until(is_at_work, &mode));
    json_t *status = expect_json("eps status lab --json", 0), *memory = expect_json("eps mem lab --json", 0);
    for (int side = 0; side < SIDES; side++) {
        json_t *ledger = json_at(memory, names[side]);
        const double now = json_number_at(ledger, "current"), peak = json_number_at(ledger, "peak");
        ck_assert(now > 0 && now == peak && now == json_number_at(ledger, "planned"));
        ck_assert(!plan || peak == json_number_at(json_at(plan, names[side]), "peak"));
        const struct resident added = less(find_resident(pids[side]), before[side]);
        agree(names[side], side, added, now, side == HOST && modes[_i].widens ? PLAN_HOST_RUN_BYTES : 0);
        agree_at_most(names[side], side, pids[side], before[side], added, peak);
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
