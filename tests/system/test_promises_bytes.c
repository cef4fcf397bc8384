/* Every byte accounted for, in every mode, of real processes: the ledgers against the operating system's count, against
 * the daemon's and the worker's own plans, against eps plan, and against 12, 12, 8, +4 and 2 or 4 bytes a parameter. */
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "proto/base/ledger.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

SUITE_LABELS(release)

enum { N_LAYERS = 6, N_STEPS = 3, SIDES = 2 };
enum { HOST, WORKER };

struct mode {
    const char *name;
    enum eps_number precision, moments;
    double clip_norm;
    bool smallest; /* the least device memory that can work: layers' inputs are on the host */
    unsigned parameter_bytes;
};

/* What a parameter takes in each mode is test_host's, byte by byte. */
static const struct mode modes[] = {
    {"fp32", EPS_FP32, EPS_FP32, NAN, false, 12},
    {"fenced", EPS_FP32, EPS_FP32, 1, false, 16},
    {"narrowest", EPS_BF16, EPS_BF16, NAN, true, 8},
};

/* One mode's processes and what was seen of them; of each side. */
struct seen {
    const char *name;
    pid_t pids[SIDES];
    uint64_t before[SIDES]; /* bytes in memory before there was a job */
    uint64_t n_parameters;
    bool host_stash;
    const struct eps_plan *plan; /* NULL: nothing to compare with */
    unsigned n_looks;
    uint64_t weights; /* bytes a parameter, together with moments, and the sum of a fenced commit */
};

/* The worker maps segments of the daemon's too: those stand in the daemon's ledger. */
static uint64_t resident(const struct seen *seen, int side)
{
    const pid_t pid = seen->pids[side];

    return processes_status_bytes(pid, "RssAnon") + (side == HOST ? processes_status_bytes(pid, "RssShmem") : 0);
}

/* The most it has ever been, but for files and for others' segments, which only grow. */
static uint64_t most_resident(const struct seen *seen, int side)
{
    const pid_t pid = seen->pids[side];
    const uint64_t others = side == HOST ? 0 : processes_status_bytes(pid, "RssShmem");

    return processes_status_bytes(pid, "VmHWM") - processes_status_bytes(pid, "RssFile") - others;
}

/* 2 %, and 8 MiB for what is not of the job: code, stacks, the heap of libraries. */
static void agree(const struct seen *seen, const char *what, double system, double ledger)
{
    ck_assert_msg(fabs(system - ledger) <= 0.02 * ledger + (8 << 20),
                  "%s: %s: the system says %.2f MiB, the ledger %.2f MiB", seen->name, what, system / (1 << 20),
                  ledger / (1 << 20));
}

static void on_memory(void *user, const struct eps_memory *side)
{
    static const char *const names[SIDES] = {"daemon", "worker"}, *const most[SIDES] = {"daemon, at most",
                                                                                        "worker, at most"};
    static const char *const of_parameters[] = {"weights", "master", "first_moment", "second_moment", "gradient_sum"};
    struct seen *seen = user;
    const int at = side->worker ? WORKER : HOST;

    for (size_t i = 0; at == HOST && i < side->n_rows; i++)
        for (int k = 0; k < COUNT(of_parameters); k++)
            seen->weights += strcmp(side->rows[i].category, of_parameters[k]) == 0 ? side->rows[i].current : 0;
    ck_assert_uint_gt(side->current, 0);
    ck_assert_uint_eq(side->current, side->planned);
    ck_assert_uint_eq(side->peak, side->planned);
    if (seen->plan)
        ck_assert_uint_eq(side->peak, at == HOST ? seen->plan->host.bytes : seen->plan->worker.bytes);
    agree(seen, names[at], (double)resident(seen, at) - (double)seen->before[at], (double)side->current);
    agree(seen, most[at], (double)most_resident(seen, at) - (double)seen->before[at], (double)side->peak);
}

static void look(struct seen *seen)
{
    seen->weights = 0;
    ck_assert_int_eq(eps_mem(seen->name, on_memory, seen, NULL), 0);
    seen->n_looks++;
}

static void on_start(void *user, const struct eps_train_options *resolved, uint64_t n_parameters)
{
    (void)resolved;
    ((struct seen *)user)->n_parameters = n_parameters;
}

static void on_plan(void *user, const struct eps_choice *choice, const struct eps_memory *host,
                    const struct eps_memory *device)
{
    (void)host, (void)device;
    ((struct seen *)user)->host_stash = choice->host_stash;
}

static void on_step(void *user, const struct eps_step *step)
{
    if (step->step == N_STEPS)
        look(user);
}

static void begin(struct seen *seen, const char *name, uint64_t budget)
{
    char bytes[32];
    const char *const daemon[] = {"--listen", name, NULL};
    const char *const worker[] = {"--connect", name, "--device-mem", bytes, NULL};

    *seen = (struct seen){.name = name};
    snprintf(bytes, sizeof bytes, "%" PRIu64, budget);
    seen->pids[HOST] = processes_start("epsd", daemon, NULL);
    seen->pids[WORKER] = processes_start("eps-worker", worker, NULL);
    processes_await_workers(name, 1);
    for (int side = 0; side < SIDES; side++)
        seen->before[side] = resident(seen, side);
}

static void end(struct seen *seen)
{
    ck_assert_int_eq(eps_stop(seen->name, NULL), 0);
    for (int side = 0; side < SIDES; side++)
        ck_assert_int_eq(processes_wait(seen->pids[side]), 0);
}

/* Units begin on cache lines, which takes less than 64 bytes of each array of each unit. */
static void expect_bytes_a_parameter(const struct seen *seen, uint64_t bytes)
{
    const uint64_t n_units = N_LAYERS + 20, n_arrays = 5;

    ck_assert_uint_ge(seen->weights, bytes * seen->n_parameters);
    ck_assert_uint_le(seen->weights, bytes * seen->n_parameters + n_units * n_arrays * 64);
}

static struct eps_train_options options_of(const struct mode *mode, const char *const *files)
{
    struct eps_train_options options =
        processes_options(processes_config("bytes.json", N_LAYERS, 4, 256, 64), files, processes_path(mode->name));

    options.steps = N_STEPS + 2; /* the checkpoint of the end takes memory, from when the last step is covered */
    options.save_every = 0;
    options.batch = 4;
    options.seq = 64;
    options.precision = mode->precision;
    options.moments = mode->moments;
    options.clip_norm = mode->clip_norm;
    return options;
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE_ONCE(processes_setup, processes_remove)

TEST_EACH(training_takes_what_is_planned_and_the_system_agrees, COUNT(modes))
{
    const struct mode *mode = &modes[_i];
    const char *files[] = {processes_text("bytes.txt", 1024)};
    const struct eps_train_events events = {.on_start = on_start, .on_plan = on_plan, .on_step = on_step};
    struct eps_train_options options = options_of(mode, files);
    struct eps_error error = {""};
    struct eps_plan plan;
    struct seen seen;

    options.device_mem = 256 << 20;
    if (mode->smallest)
        ck_assert_int_eq(eps_plan_minimum(&options.device_mem, &options, &error), 0);
    begin(&seen, mode->name, options.device_mem);
    ck_assert_msg(eps_plan(&plan, &options, &error) == 0, "%s", error.text);
    ck_assert_msg(plan.fits, "%s", plan.why);
    seen.plan = &plan;
    options.device_mem = 0;
    options.connect = mode->name;
    ck_assert_msg(eps_train(&options, &events, &seen, &error) == 0, "%s: %s", mode->name, error.text);
    ck_assert_uint_eq(seen.n_looks, 1);
    ck_assert(seen.host_stash == mode->smallest);
    expect_bytes_a_parameter(&seen, mode->parameter_bytes);
    end(&seen);
}

static void on_evaluating(void *user, uint64_t n_tokens, uint64_t n_all)
{
    struct seen *seen = user;

    if (n_tokens > 0 && n_tokens < n_all && seen->n_looks == 0)
        look(seen);
}

static void on_token(void *user, uint32_t id, const char *text, size_t n)
{
    struct seen *seen = user;

    (void)id, (void)text, (void)n;
    if (seen->n_looks == 0)
        look(seen);
}

/* Looks once, as `name` is at work. */
static void begin_asked(struct seen *seen, const char *name, uint64_t n_parameters)
{
    begin(seen, name, 256 << 20);
    seen->n_parameters = n_parameters;
}

static void end_asked(struct seen *seen, uint64_t parameter_bytes)
{
    ck_assert_uint_eq(seen->n_looks, 1);
    expect_bytes_a_parameter(seen, parameter_bytes);
    end(seen);
}

/* Frozen: weights alone, in the numbers in which they were trained. */
TEST_EACH(asked_and_not_trained_a_model_takes_its_weights, 2)
{
    const char *files[] = {processes_text("bytes.txt", 1024)};
    const struct eps_train_events started = {.on_start = on_start};
    const struct eps_eval_events evaluating = {.on_evaluating = on_evaluating};
    const struct eps_generate_events generating = {.on_token = on_token};
    struct eps_train_options options = options_of(&modes[0], files);
    struct seen seen, trained = {0};
    struct eps_error error = {""};
    struct eps_generated generated;
    uint64_t tokens;
    double loss;

    options.precision = _i ? EPS_BF16 : EPS_FP32;
    options.steps = options.save_every = 1;
    options.out = _i ? "frozen-bf16" : "frozen-fp32";
    options.device_mem = 256 << 20;
    ck_assert_msg(eps_train(&options, &started, &trained, &error) == 0, "%s", error.text);
    const struct eps_eval_options eval = {
        .model = options.out, .data = files, .n_data = 1, .connect = "eval", .batch = 4, .seq = 64};
    begin_asked(&seen, "eval", trained.n_parameters);
    ck_assert_msg(eps_eval(&loss, &tokens, &eval, &evaluating, &seen, &error) == 0, "%s", error.text);
    end_asked(&seen, _i ? 2 : 4);
    const struct eps_generate_options ask = {
        .model = options.out, .connect = "generate", .prompt = "To be", .prompt_bytes = 5, .n_tokens = 4, .top_p = NAN};
    begin_asked(&seen, "generate", trained.n_parameters);
    ck_assert_msg(eps_generate(&generated, &ask, &generating, &seen, &error) == 0, "%s", error.text);
    end_asked(&seen, _i ? 2 : 4);
}
