/* eps_train: what it says of a run's memory, and how options reach the daemon. */
#include "client/eps.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 4, SEQ = 16, STEPS = 3, BLOCKS = 3 };

static void setup(void)
{
    processes_setup();
    processes_config("model.json", BLOCKS, 3, 24, SEQ);
    processes_text("data.txt", 4000);
}

SUITE_FIXTURE_ONCE(setup, processes_remove)

static struct eps_train_options options_of(const char *out)
{
    static const char *files[1];

    files[0] = processes_path("data.txt");
    struct eps_train_options options = processes_options(processes_path("model.json"), files, processes_path(out));
    options.steps = STEPS, options.batch = BATCH, options.seq = SEQ;
    return options;
}

/* What a run said, in numbers: planned and at the end; order of events. */
struct told {
    unsigned n_plans, n_steps, n_sides, n_notes;
    struct eps_choice choice;
    uint64_t host_planned, device_planned, sum, step_peak;
    uint64_t host_peak, device_peak;
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
    t->host_planned = host->planned;
    t->device_planned = device->planned;
    for (size_t i = 0; i < device->n_rows; i++)
        t->sum += device->rows[i].planned;
    ck_assert_uint_le(device->planned, device->budget);
}

static void on_step(void *user, const struct eps_step *step)
{
    struct told *t = user;

    t->norms[t->n_steps++] = step->grad_norm;
    t->step_peak = step->device_peak_bytes;
    t->memory = t->memory || step->n_memory == 2;
}

static void on_memory(void *user, const struct eps_memory *side)
{
    struct told *t = user;

    t->n_sides++;
    *(side->worker ? &t->device_peak : &t->host_peak) = side->peak;
}

static void on_note(void *user, const char *sentence)
{
    struct told *t = user;

    t->n_notes++;
    snprintf(t->note, sizeof t->note, "%s", sentence);
}

static int train(struct told *t, const struct eps_train_options *options, struct eps_error *error)
{
    static const struct eps_train_events events = {.on_plan = on_plan,
                                                   .on_step = on_step,
                                                   .on_memory = on_memory,
                                                   .on_note = on_note};

    *t = (struct told){0};
    return eps_train(options, &events, t, error);
}

TEST(what_is_planned_is_said_before_the_first_step_and_is_what_is_used)
{
    const struct eps_train_options options = options_of("planned");
    struct eps_error error;
    struct told t;

    ck_assert_msg(train(&t, &options, &error) == 0, "%s", error.text);
    ck_assert_uint_eq(t.n_plans, 1);
    ck_assert_uint_eq(t.choice.n_blocks, BLOCKS);
    ck_assert_uint_ge(t.choice.microbatch, 1);
    ck_assert_uint_le(t.choice.microbatch, BATCH);
    ck_assert_uint_ge(t.choice.n_weight_buffers, 1);
    ck_assert_uint_gt(t.device_planned, 0);
    ck_assert_uint_eq(t.sum, t.device_planned);
    ck_assert_uint_gt(t.host_planned, 0);
    ck_assert_uint_eq(t.n_steps, STEPS);
    ck_assert_uint_eq(t.step_peak, t.device_planned);
    ck_assert_uint_eq(t.n_sides, 2);
    ck_assert_uint_eq(t.device_peak, t.device_planned);
    ck_assert(t.memory);          /* of the first step at the latest */
    ck_assert(isnan(t.norms[0])); /* eager commit knows none */
}

TEST_EACH(a_worker_without_a_share_is_told, 2)
{
    struct eps_train_options options = options_of(_i ? "two" : "one");
    struct eps_error error;
    unsigned a = 0, b = 0;
    struct told t;
    int end = 0;

    options.workers = 3, options.parts = (uint32_t)_i + 1, options.optimizer = EPS_ADAMW;
    ck_assert_msg(train(&t, &options, &error) == 0, "%s", error.text);
    ck_assert_uint_eq(t.n_notes, 1);
    /* 1 is the client; which of 2, 3 and 4 came last is chance. */
    if (_i == 0)
        ck_assert_msg(sscanf(t.note, "workers %u, %u have no share: the minibatch has 1 part (--parts)%n", &a, &b,
                             &end) == 2,
                      "%s", t.note);
    else
        ck_assert_msg(sscanf(t.note, "worker %u has no share: the minibatch has 2 parts (--parts)%n", &a, &end) == 1,
                      "%s", t.note);
    ck_assert_msg(a >= 2 && a <= 4 && a != b && (_i || (b >= 2 && b <= 4)) && end == (int)strlen(t.note), "%s", t.note);
}

TEST(a_clipped_run_says_its_price_and_knows_its_norms)
{
    struct eps_train_options options = options_of("clipped");
    struct eps_error error;
    struct told t;

    options.clip_norm = 0.125;
    ck_assert_msg(train(&t, &options, &error) == 0, "%s", error.text);
    ck_assert_uint_eq(t.n_notes, 1);
    ck_assert_holds(t.note, "--clip-norm turns --commit fenced on");
    for (unsigned i = 0; i < STEPS; i++)
        ck_assert_msg(isfinite(t.norms[i]) && t.norms[i] > 0, "step %u: %g", i + 1, t.norms[i]);
}
