/* eps_train: what it says of a run's memory, and how options reach the daemon. Plans to the byte: test_plan_train. */
#include "client/eps.h"
#include "client/run/derive.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { BATCH = 4, STEPS = 3, BLOCKS = 3 };

static void setup(void)
{
    processes_setup();
    processes_config("model.json", BLOCKS, 3, 24, 16);
    processes_text("data.txt", 4000);
}

SUITE_FIXTURE_ONCE(setup, processes_remove)

/* What a run said: planned and at the end; order of events. */
struct told {
    unsigned n_plans, n_steps, n_sides, n_notes;
    struct eps_choice choice;
    uint64_t device_planned, sum, step_peak, device_peak;
    double norms[STEPS];
    bool memory;
    char note[512];
};

static void on_plan(void *user, const struct eps_choice *choice, const struct eps_memory *host,
                    const struct eps_memory *device)
{
    struct told *t = user;

    ck_assert_uint_eq(t->n_steps, 0);
    t->n_plans++;
    t->choice = *choice;
    t->device_planned = device->planned;
    for (size_t i = 0; i < device->n_rows; i++)
        t->sum += device->rows[i].planned;
    ck_assert(device->planned <= device->budget && host->planned > 0);
}

static void on_step(void *user, const struct eps_step *step)
{
    struct told *t = user;

    if (t->n_steps < STEPS)
        t->norms[t->n_steps] = step->grad_norm;
    t->n_steps++;
    t->step_peak = step->device_peak_bytes;
    t->memory = t->memory || step->n_memory == 2;
}

static void on_memory(void *user, const struct eps_memory *side)
{
    struct told *t = user;

    t->n_sides++;
    if (side->worker)
        t->device_peak = side->peak;
}

static void on_note(void *user, const char *sentence)
{
    struct told *t = user;

    t->n_notes++;
    snprintf(t->note, sizeof t->note, "%s", sentence);
}

/* A run with these workers and parts, and this clip. */
static struct told train(const char *out, uint32_t workers, uint32_t parts, double clip_norm)
{
    static const struct eps_train_events events = {.on_plan = on_plan,
                                                   .on_step = on_step,
                                                   .on_memory = on_memory,
                                                   .on_note = on_note};
    struct eps_train_options options = processes_options("model.json", (const char *const[]){"data.txt"}, out);
    struct eps_error error;
    struct told t = {0};

    options.steps = STEPS, options.batch = BATCH, options.seq = 16, options.workers = workers, options.parts = parts;
    options.clip_norm = clip_norm, options.optimizer = EPS_ADAMW;
    options.eval_data = NULL; /* of data that are trained on, too, there is a note */
    ck_assert_msg(eps_train(&options, &events, &t, &error) == 0, "%s", error.text);
    return t;
}

TEST(what_is_planned_is_said_before_the_first_step_and_is_what_is_used)
{
    const struct told t = train("planned", 1, 1, 0.125);

    ck_assert_uint_eq(t.n_plans, 1);
    ck_assert_uint_eq(t.choice.n_blocks, 1);
    ck_assert_uint_eq(t.choice.blocks[0].n, BLOCKS);
    ck_assert(t.choice.microbatch >= 1 && t.choice.microbatch <= BATCH && t.choice.n_weight_buffers >= 1);
    ck_assert_uint_gt(t.device_planned, 0);
    ck_assert_uint_eq(t.sum, t.device_planned);
    ck_assert_uint_eq(t.n_steps, STEPS);
    ck_assert_uint_eq(t.step_peak, t.device_planned);
    ck_assert_uint_eq(t.n_sides, 2);
    ck_assert_uint_eq(t.device_peak, t.device_planned);
    /* A clip says its price, and the norms are known. */
    ck_assert_uint_eq(t.n_notes, 1);
    ck_assert_holds(t.note, "`clip_norm` turns `commit` fenced on");
    for (unsigned i = 0; i < STEPS; i++)
        ck_assert_msg(isfinite(t.norms[i]) && t.norms[i] > 0, "step %u: %g", i + 1, t.norms[i]);
}

static int stop_once_sampled(void *user)
{
    const struct told *t = user;
    return t->memory;
}

/* The answer to the first question comes when it comes: the run lasts until then. */
TEST(steps_tell_memory)
{
    static const struct eps_train_events sampled = {.on_step = on_step, .should_stop = stop_once_sampled};
    struct eps_train_options options = processes_options("model.json", (const char *const[]){"data.txt"}, "sampled");
    struct told t = {0};

    options.steps = 1000000, options.batch = BATCH, options.seq = 16, options.save_every = 0;
    ck_assert_int_eq(eps_train(&options, &sampled, &t, NULL), -EINTR);
    ck_assert(t.memory);
}

TEST_EACH(a_worker_without_a_share_is_told, 2)
{
    const struct told t = train(_i ? "two" : "one", 3, (uint32_t)_i + 1, NAN);

    ck_assert(isnan(t.norms[0])); /* eager commit knows none */
    ck_assert_uint_eq(t.n_notes, 1);
    ck_assert_str_eq(t.note, _i ? "1 of 3 workers has no share: the minibatch has 2 parts (`parts`)"
                                : "2 of 3 workers have no share: the minibatch has 1 part (`parts`)");
}

/* The command refuses an empty name by itself. */
TEST_EACH(a_model_that_is_changed_needs_a_directory_with_a_name, 2)
{
    const struct eps_train_options options = {.resume = "run", .out = _i == 0 ? NULL : ""};
    struct client_derive derive = {.option = "--grow", .folder = "grown"};
    struct error err = {""};

    ck_assert_int_eq(client_derive_open(&derive, &options, &err), -EDOM);
    ck_assert_str_eq(err.text, "--grow begins another run, of the changed model: name its directory by --out");
    client_derive_close(&derive);
}
