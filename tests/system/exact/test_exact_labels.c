/* Classifiers and a regression against transformers in float64: loss, logits, gradient, and the weights after three
 * steps; rows of different length, padded more and less. What tests/oracle/make_labels.py made. */
#include "proto/wire/message.h"
#include "tests/kit/device/backend.h"
#include "tests/kit/fixtures/exact.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(on_cuda_release)

static const char *const fixtures[] = {"labels_bert",    "labels_roberta",    "labels_regression",
                                       "labels_electra", "labels_distilbert", "labels_modernbert"};

enum { LONGEST = 19, ROOM = 24 }; /* the longest row, and goal.seq */

/* One of a fixture's minibatches, padded to n_tokens. */
struct minibatch {
    uint32_t n_rows, *ids, *labels;
    struct plan_row *rows;
    struct device_rows device;
};

static void put_label(uint32_t *to, const struct model_config *config, const json_t *label)
{
    const float number = (float)json_number_value(label);

    *to = (uint32_t)json_integer_value(label);
    if (config->regression)
        memcpy(to, &number, sizeof number);
}

/* padding: the id of what is beyond a row's length. */
static void minibatch_open(struct minibatch *m, const struct exact *exact, uint32_t number, uint32_t n_tokens,
                           uint32_t padding)
{
    const json_t *all = json_object_get(exact->fixture.reference, "minibatches");
    const json_t *list = json_array_get(all, number % exact->fixture.n_minibatches), *row;
    const uint32_t n = exact->fixture.batch;
    size_t i;

    *m = (struct minibatch){.n_rows = n,
                            .ids = calloc((size_t)n * n_tokens, sizeof *m->ids),
                            .labels = calloc((size_t)n * n_tokens, sizeof *m->labels),
                            .rows = calloc(n, sizeof *m->rows)};
    ck_assert(m->ids && m->labels && m->rows && json_array_size(list) == n);
    m->device = (struct device_rows){.n_tokens = n_tokens, .ids = m->ids, .labels = m->labels, .rows = m->rows};
    json_array_foreach(list, i, row)
    {
        const json_t *ids = json_object_get(row, "ids");
        const uint32_t length = (uint32_t)json_array_size(ids);
        m->rows[i] = (struct plan_row){length, (uint32_t)json_integer_value(json_object_get(row, "second"))};
        ck_assert_uint_le(length, n_tokens);
        for (uint32_t t = 0; t < n_tokens; t++) {
            m->ids[i * n_tokens + t] =
                t < length ? (uint32_t)json_integer_value(json_array_get(ids, t)) : (padding + t) % 61;
            m->labels[i * n_tokens + t] = PLAN_NO_LABEL;
        }
        put_label(&m->labels[i * n_tokens], &exact->ip->model.config, json_object_get(row, "label"));
    }
}

static void minibatch_close(struct minibatch *m)
{
    free(m->ids), free(m->labels), free(m->rows);
}

static double step(struct exact *exact, uint32_t number, uint32_t n_tokens, uint32_t padding)
{
    const struct fixture *f = &exact->fixture;
    const struct hyper hyper = {
        .lr = f->lr, .beta1 = f->beta1, .beta2 = f->beta2, .epsilon = f->epsilon, .weight_decay = f->weight_decay};
    struct minibatch m;
    struct error err = {""};
    double loss;

    minibatch_open(&m, exact, number, n_tokens, padding);
    ck_assert_msg(inprocess_step_rows(exact->ip, &m.device, m.n_rows, &hyper, &loss, &err) == 0, "%s", err.text);
    minibatch_close(&m);
    return loss;
}

/* As exact_gradient. */
static double gradient(struct exact *exact, uint32_t n_tokens, uint32_t padding)
{
    exact->gradient = calloc(exact->ip->model.segment_n, sizeof *exact->gradient);
    ck_assert_ptr_nonnull(exact->gradient);
    exact->ip->gradient = exact->gradient;
    exact->segment = exact->gradient;
    return step(exact, 0, n_tokens, padding);
}

/* One row in a microbatch, and all at once. */
static const struct inprocess_options hows[] = {{.n_parts = 1, .microbatch = 3}, {.n_parts = 7, .adamw = true}};

/* Within 1e-5 of a tensor's norm, and at most twice as far as PyTorch's own fp32 (of a classifier's bias: as the sum of
 * its distances of single rows). The exact value, rounded to fp32, may be 2^-24 of it away: of a tensor of a few
 * numbers, PyTorch's may happen to be nearer. keys: for the biases of keys, whose gradient is rounding alone. */
static void check_set(struct exact *exact, const struct fixture_set *set, double keys)
{
    for (size_t i = 0; i < fixture_n_pieces(set); i++) {
        const struct fixture_piece p = fixture_measure(set, i, exact_find, exact);
        ck_assert_msg(p.is_key ? p.distance <= keys
                               : p.distance <= 1e-5 * p.norm &&
                                     (p.distance <= 2 * p.single || p.distance <= 0x1p-24 * p.norm),
                      "%s: %.2e from float64, whose norm is %.2e; PyTorch's fp32 %.2e", p.text, p.distance, p.norm,
                      p.single);
    }
}

static void check_gradient(const char *fixture, const struct inprocess_options *how, uint32_t n_tokens)
{
    struct exact exact;

    exact_open(&exact, fixture, how);
    const struct fixture_set set = fixture_gradient(&exact.fixture);
    const double want = fixture_loss(&set, 0);
    ck_assert_double_eq_tol(gradient(&exact, n_tokens, 0), want, 1e-6 * want);
    check_set(&exact, &set, 1e-6); /* ten times PyTorch's own */
    exact_close(&exact);
}

TEST_EACH(the_gradient_is_that_of_transformers_whatever_the_padding, COUNT(fixtures) * 2)
{
    check_gradient(fixtures[_i / 2], &hows[_i % 2], _i % 2 ? LONGEST : ROOM);
}

/* The simulated device leaves out what is the optimizer's, on the host. */
TEST_EACH(three_steps_are_those_of_transformers, backend_get()->simulated ? 0 : COUNT(fixtures))
{
    struct exact exact;

    exact_open(&exact, fixtures[_i], &hows[0]);
    const struct fixture_set set = fixture_run(&exact.fixture, "adamw", 1);
    for (uint32_t i = 0; i < exact.fixture.n_steps; i++)
        ck_assert_double_eq_tol(step(&exact, i, LONGEST, 0), fixture_loss(&set, i), 1e-5);
    check_set(&exact, &set, exact_farthest_key(&exact));
    exact_close(&exact);
}

/* Those of some rows alone too, and beside the loss of these. */
TEST_EACH(an_evaluation_gives_each_rows_logits, COUNT(fixtures))
{
    const struct inprocess_options how = {.n_parts = 1, .microbatch = 2, .evaluate_only = true};
    struct minibatch m;
    struct exact exact;
    struct error err = {""};
    double sum, some;

    exact_open(&exact, fixtures[_i], &how);
    minibatch_open(&m, &exact, 0, LONGEST, 0);
    const uint32_t n_labels = exact.ip->model.config.n_labels;
    const json_t *want = json_object_get(exact.fixture.reference, "logits");
    float *logits = calloc((size_t)m.n_rows * n_labels, sizeof *logits),
          *one = calloc(m.n_rows, n_labels * sizeof *one);
    struct device_evaluation e = {.rows = m.device, .n_rows = m.n_rows, .logits = logits};
    ck_assert_int_eq(inprocess_evaluate_rows(exact.ip, &e, &sum, &err), 0);
    for (uint32_t row = 0; row < m.n_rows; row++)
        for (uint32_t i = 0; i < n_labels; i++)
            ck_assert_double_eq_tol((double)logits[row * n_labels + i],
                                    json_number_value(json_array_get(json_array_get(want, row), i)), 1e-5);
    const double loss = fixture_loss(&(struct fixture_set){.json = fixture_gradient(&exact.fixture).json}, 0);
    ck_assert_double_eq_tol(sum / m.n_rows, loss, 1e-6 * loss);
    e.first_row = 4, e.n_rows = 1, e.logits = one;
    ck_assert_int_eq(inprocess_evaluate_rows(exact.ip, &e, &some, &err), 0);
    for (uint32_t i = 0; i < m.n_rows * n_labels; i++)
        ck_assert_float_eq(one[i], i / n_labels == 4 ? logits[i] : 0);
    ck_assert(some > 0 && some < sum);
    free(logits), free(one);
    minibatch_close(&m);
    exact_close(&exact);
}

/* What a row is padded with: no bit of the gradient, of the loss, or of the next weights. */
TEST_EACH(padding_influences_nothing, COUNT(fixtures))
{
    uint64_t digest[2];
    double loss[2];

    for (int i = 0; i < 2; i++) {
        struct exact exact;
        exact_open(&exact, fixtures[_i], &hows[0]);
        loss[i] = gradient(&exact, ROOM, i ? 17 : 0);
        digest[i] = exact_digest(&exact, exact.gradient) ^ 5 * exact_state(&exact);
        exact_close(&exact);
    }
    ck_assert(loss[0] == loss[1] && digest[0] == digest[1]);
}
