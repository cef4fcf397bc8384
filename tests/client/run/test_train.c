/* eps_train: what it says of a run's memory, and how options reach the daemon. */
#include "client/eps.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
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

/* With one worker, and with more of them. */
struct crowd {
    double losses[STEPS];
    unsigned n_steps;
    char notes[2048];
};

static void on_loss(void *user, const struct eps_step *step)
{
    struct crowd *c = user;
    c->losses[c->n_steps++] = step->loss;
}

static void on_any_note(void *user, const char *sentence)
{
    struct crowd *c = user;
    const size_t n = strlen(c->notes);

    snprintf(c->notes + n, sizeof c->notes - n, "%s\n", sentence);
}

static struct crowd train_with(uint32_t n_workers, uint32_t n_parts, enum eps_optimizer_kind optimizer, const char *out)
{
    static const struct eps_train_events events = {.on_step = on_loss, .on_note = on_any_note};
    struct eps_train_options options = options_of(out);
    struct crowd c = {.n_steps = 0};
    struct eps_error error;

    options.workers = n_workers, options.parts = n_parts, options.optimizer = optimizer;
    options.warmup = 0, options.lr = 1e-2;
    const int rc = eps_train(&options, &events, &c, &error);
    ck_assert_msg(rc == 0, "%s", error.text);
    ck_assert_uint_eq(c.n_steps, STEPS);
    return c;
}

/* Sums are in another order, and Adam divides by a small root: 1e-5 of the loss. AdamA's v of two parts is up to half
 * as large, which moves the loss of the third step by a hundredth. */
TEST(more_workers_give_what_one_gives_unless_adama_is_named)
{
    const struct crowd one = train_with(1, 0, EPS_OPTIMIZER_DEFAULT, "one"),
                       two = train_with(2, 0, EPS_OPTIMIZER_DEFAULT, "two"),
                       adama = train_with(2, 0, EPS_ADAMA, "adama");

    for (unsigned i = 0; i < STEPS; i++)
        ck_assert_double_eq_tol(two.losses[i], one.losses[i], 1e-5 * one.losses[i]);
    ck_assert_double_gt(fabs(adama.losses[STEPS - 1] - one.losses[STEPS - 1]), 1e-4 * one.losses[STEPS - 1]);
    ck_assert_str_eq(one.notes, "");
    ck_assert_str_eq(adama.notes, "");
    ck_assert_ptr_nonnull(strstr(two.notes, "the 2 parts are summed before they are squared (--optimizer adamw)"));
}

TEST(a_worker_without_a_share_is_told)
{
    const struct crowd three = train_with(3, 2, EPS_ADAMW, "three"), four = train_with(3, 1, EPS_ADAMW, "four");

    unsigned a, b;
    int end = 0;

    /* 1 is the client; which of 2, 3 and 4 came last is chance. */
    ck_assert_msg(sscanf(three.notes, "worker %u has no share: the minibatch has 2 parts (--parts)\n%n", &a, &end) == 1,
                  "%s", three.notes);
    ck_assert(a >= 2 && a <= 4 && end == (int)strlen(three.notes));
    end = 0;
    ck_assert_msg(sscanf(four.notes, "workers %u, %u have no share: the minibatch has 1 part (--parts)\n%n", &a, &b,
                         &end) == 2,
                  "%s", four.notes);
    ck_assert(a >= 2 && a <= 4 && b >= 2 && b <= 4 && a != b && end == (int)strlen(four.notes));
}

TEST(a_clipped_run_says_its_price_and_knows_its_norms)
{
    struct eps_train_options options = options_of("clipped");
    struct eps_error error;
    struct told t;

    options.clip_norm = 0.125;
    ck_assert_msg(train(&t, &options, &error) == 0, "%s", error.text);
    ck_assert_uint_eq(t.n_notes, 1);
    ck_assert_msg(strstr(t.note, "--clip-norm turns --commit fenced on") != NULL, "%s", t.note);
    for (unsigned i = 0; i < STEPS; i++)
        ck_assert_msg(isfinite(t.norms[i]) && t.norms[i] > 0, "step %u: %g", i + 1, t.norms[i]);
}

static double loss_of(const char *run)
{
    const char *files[] = {processes_path("data.txt")};
    const struct eps_eval_options options = {
        .model = processes_path(run), .data = files, .n_data = 1, .programs = BIN_DIR, .batch = BATCH, .seq = SEQ};
    struct eps_error error;
    double loss = NAN;
    uint64_t tokens;

    ck_assert_msg(eps_eval(&loss, &tokens, &options, NULL, NULL, &error) == 0, "%s", error.text);
    return loss;
}

/* bf16 has 8 bits: a loss of 5.5 nats is known to some hundredths of it. */
TEST(a_run_in_bf16_learns_as_one_in_fp32_and_goes_on_in_bf16)
{
    struct eps_train_options wide = options_of("wide"), narrow = options_of("narrow");
    struct eps_error error;
    struct told t;

    narrow.precision = narrow.moments = narrow.grad_dtype = EPS_BF16;
    ck_assert_msg(train(&t, &wide, &error) == 0, "%s", error.text);
    ck_assert_msg(train(&t, &narrow, &error) == 0, "%s", error.text);
    ck_assert_double_eq_tol(loss_of("narrow"), loss_of("wide"), 0.05);

    struct eps_train_options again = eps_train_defaults();
    again.resume = processes_path("narrow"), again.steps = STEPS + 1, again.programs = BIN_DIR;
    again.precision = EPS_FP32;
    ck_assert_int_eq(train(&t, &again, &error), -EDOM);
    ck_assert_msg(strstr(error.text, "--precision fp32 differs from the run's bf16") != NULL, "%s", error.text);
    again.precision = EPS_NUMBER_DEFAULT;
    ck_assert_msg(train(&t, &again, &error) == 0, "%s", error.text);
    ck_assert_uint_eq(t.n_steps, 1);
}

TEST(a_job_over_the_host_memory_named_is_refused_before_the_first_step)
{
    struct eps_train_options options = options_of("small-host");
    struct eps_error error;
    struct told t;

    options.host_mem = 1000;
    ck_assert_int_eq(train(&t, &options, &error), -ENOMEM);
    ck_assert_msg(strstr(error.text, "--host-mem") != NULL, "%s", error.text);
    ck_assert_uint_eq(t.n_steps, 0);
}
