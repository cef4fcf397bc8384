/* Pairs of texts against PyTorch in float64: the loss of direct preference optimisation, rewards, gradient, and the
 * weights after three steps. What tests/oracle/make_preferences.py made. */
#include "proto/plan/memory/data.h"
#include "tests/kit/device/backend.h"
#include "tests/kit/fixtures/exact.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(on_cuda_release)

static const char *const fixtures[] = {"pairs_gpt2", "pairs_qwen3"};

enum { BATCH = 8, LONGEST = 17, ROOM = 20 }; /* the longest row, and goal.seq */

/* One of a fixture's minibatches, padded to n_tokens. */
struct minibatch {
    uint32_t ids[BATCH * ROOM], labels[BATCH * ROOM];
    float references[BATCH];
    struct device_rows device;
};

static void minibatch_read(struct minibatch *m, const struct exact *exact, uint32_t number, uint32_t n_tokens)
{
    const json_t *all = json_object_get(exact->fixture.reference, "minibatches");
    const json_t *list = json_array_get(all, number % exact->fixture.n_minibatches), *row;
    size_t i;

    *m = (struct minibatch){
        .device = {.n_tokens = n_tokens, .ids = m->ids, .labels = m->labels, .references = m->references}};
    ck_assert_uint_eq(json_array_size(list), BATCH);
    json_array_foreach(list, i, row)
    {
        const json_t *ids = json_object_get(row, "ids");
        const size_t length = json_array_size(ids), prompt = (size_t)json_integer_value(json_object_get(row, "prompt"));
        m->references[i] = (float)json_number_value(json_object_get(row, "reference"));
        for (size_t t = 0; t < n_tokens; t++) {
            m->ids[i * n_tokens + t] = (uint32_t)json_integer_value(json_array_get(ids, t));
            m->labels[i * n_tokens + t] = t + 1 >= prompt && t + 1 < length
                                              ? (uint32_t)json_integer_value(json_array_get(ids, t + 1))
                                              : PLAN_NO_LABEL;
        }
    }
}

static void open_pairs(struct exact *exact, const char *fixture, const struct inprocess_options *how)
{
    struct inprocess_options options = *how;
    struct fixture fixture_of;

    fixture_open(&fixture_of, fixture);
    options.preference.beta = json_number_value(json_object_get(fixture_of.reference, "beta"));
    options.preference.smoothing = json_number_value(json_object_get(fixture_of.reference, "smoothing"));
    fixture_close(&fixture_of);
    exact_open(exact, fixture, &options);
}

static double step(struct exact *exact, uint32_t number, uint32_t n_tokens)
{
    const struct fixture *f = &exact->fixture;
    const struct hyper hyper = {
        .lr = f->lr, .beta1 = f->beta1, .beta2 = f->beta2, .epsilon = f->epsilon, .weight_decay = f->weight_decay};
    struct minibatch m;
    struct error err = {""};
    double loss;

    minibatch_read(&m, exact, number, n_tokens);
    ck_assert_msg(inprocess_step_rows(exact->ip, &m.device, BATCH / 2, &hyper, &loss, &err) == 0, "%s", err.text);
    return loss;
}

static double gradient(struct exact *exact, uint32_t n_tokens)
{
    exact->gradient = calloc(exact->ip->model.segment_n, sizeof *exact->gradient);
    ck_assert_ptr_nonnull(exact->gradient);
    exact->ip->gradient = exact->gradient;
    exact->segment = exact->gradient;
    return step(exact, 0, n_tokens);
}

/* Within 1e-5 of a tensor's norm, and at most twice as far as PyTorch's own fp32. */
static void check_set(struct exact *exact, const struct fixture_set *set, double keys)
{
    const struct fixture_limits limits = {.relative = 1e-5, .singles = 2, .keys = keys};

    ck_assert_uint_eq(fixture_compare(set, &limits, exact_find, exact), 0);
}

/* All pairs at once; pairs one by one; in parts of one pair and of two; one head chunk after another where memory is
 * scarce. */
static const struct inprocess_options hows[] = {{.n_parts = 1},
                                                {.n_parts = 1, .microbatch = 2},
                                                {.n_parts = 4, .adamw = true},
                                                {.n_parts = 2, .adamw = true}};

static double wanted(const json_t *rewards, const char *name)
{
    return json_number_value(json_object_get(rewards, name));
}

TEST_EACH(the_gradient_is_pytorchs, COUNT(fixtures) * COUNT(hows))
{
    struct exact exact;

    open_pairs(&exact, fixtures[_i % 2], &hows[_i / 2]);
    const struct fixture_set set = fixture_gradient(&exact.fixture);
    const double want = fixture_loss(&set, 0);
    ck_assert_double_eq_tol(gradient(&exact, _i % 3 ? LONGEST : ROOM), want, 1e-6 * want);
    check_set(&exact, &set, 1e-6); /* ten times PyTorch's own */
    const struct preference_rewards *got = &exact.ip->rewards;
    const json_t *rewards = json_object_get(exact.fixture.reference, "rewards");
    ck_assert_double_eq_tol(got->chosen_log_p, wanted(rewards, "chosen_log_p"), 1e-4); /* fp32 rounding of some 100 */
    ck_assert_double_eq_tol(got->rejected_log_p, wanted(rewards, "rejected_log_p"), 1e-4);
    ck_assert_double_eq_tol(got->chosen, wanted(rewards, "chosen"), 1e-4);
    ck_assert_double_eq_tol(got->rejected, wanted(rewards, "rejected"), 1e-4);
    ck_assert_double_eq(got->right, wanted(rewards, "right"));
    exact_close(&exact);
}

/* The simulated device leaves out what is the optimizer's, on the host. */
TEST_EACH(three_steps_are_pytorchs, backend_get()->simulated ? 0 : COUNT(fixtures))
{
    struct exact exact;

    open_pairs(&exact, fixtures[_i], &hows[0]);
    const struct fixture_set set = fixture_run(&exact.fixture, "adamw", 1);
    for (uint32_t i = 0; i < exact.fixture.n_steps; i++)
        ck_assert_double_eq_tol(step(&exact, i, LONGEST), fixture_loss(&set, i), 1e-5);
    const struct fixture_limits limits = {.singles = 2, .keys = exact_farthest_key(&exact)};
    ck_assert_uint_eq(fixture_compare(&set, &limits, exact_find, &exact), 0);
    exact_close(&exact);
}

/* Of rows that an evaluation runs, in pieces of whole pairs. */
TEST_EACH(an_evaluation_returns_log_p_of_each_row, COUNT(fixtures))
{
    struct exact exact;
    struct minibatch m;
    struct error err = {""};
    float log_p[BATCH] = {0};
    double sum;

    open_pairs(&exact, fixtures[_i], &hows[_i]);
    const json_t *want = json_object_get(json_object_get(exact.fixture.reference, "rewards"), "log_p");
    minibatch_read(&m, &exact, 0, LONGEST);
    for (uint32_t row = 0; row < BATCH; row += 4)
        ck_assert_msg(inprocess_evaluate_rows(
                          exact.ip,
                          &(struct device_evaluation){.rows = m.device, .first_row = row, .n_rows = 4, .logits = log_p},
                          &sum, &err) == 0,
                      "%s", err.text);
    for (size_t i = 0; i < BATCH; i++)
        ck_assert_double_eq_tol((double)log_p[i], json_number_value(json_array_get(want, i)), 3e-5);
    ck_assert_int_eq(inprocess_evaluate_rows(exact.ip,
                                             &(struct device_evaluation){.rows = m.device, .first_row = 1, .n_rows = 2},
                                             &sum, &err),
                     -EINVAL);
    exact_close(&exact);
}

TEST(half_a_pair_is_refused)
{
    struct inprocess_options how = {.n_parts = 8, .preference = {.beta = 0.1}};
    struct inprocess *ip;
    struct error err = {""};
    struct exact exact;

    open_pairs(&exact, fixtures[0], &hows[0]);
    how.config = exact.ip->options.config, how.batch = BATCH, how.seq = ROOM;
    ck_assert_int_eq(inprocess_open(&ip, &how, &err), -EINVAL);
    ck_assert_holds(err.text, "half a pair of texts");
    how.n_parts = 1, how.microbatch = 3;
    ck_assert_int_eq(inprocess_open(&ip, &how, &err), -EINVAL);
    ck_assert_holds(err.text, "--microbatch 3: pairs of texts need an even number of rows");
    exact_close(&exact);
}
