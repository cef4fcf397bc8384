/* Tokens one run after another against the whole row at once. Several rows: test_generate_rows. */
#include "proto/model/gpt2.h"
#include "proto/step/generate.h"

#include "proto/model/family.h"
#include "proto/plan/memory/units.h"
#include "tests/kit/device/backend.h"
#include "tests/kit/test.h"
#include "tests/proto/step/speech.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single, on_cuda)

static int try_run(struct speech *t, uint32_t first, uint32_t n)
{
    const struct plan_tokens row = {.first = first, .n = n};
    const struct device_run run = {.ids = t->s.ids, .rows = &row, .n_rows = 1, .logits = t->logits};

    return device_worker_generate(&t->worker, &run, &array_link, &t->link, &t->err);
}

static void run(struct speech *t, uint32_t first, uint32_t n)
{
    int rc = try_run(t, first, n);

    ck_assert_msg(rc == 0, "%s", t->err.text);
}

/* The whole row in runs of n tokens; logits of all runs, one after the other. Owned. */
static float *run_all(struct speech *t, uint32_t n)
{
    const size_t vocabulary = t->s.model.config.vocabulary, seq = t->s.seq, runs = (seq + n - 1) / n;
    float *all = calloc(runs * vocabulary, sizeof *all), *to = all;

    ck_assert_ptr_nonnull(all);
    speech_open_worker(t);
    for (uint32_t first = 0; first < seq; first += n, to += vocabulary) {
        run(t, first, seq - first < n ? (uint32_t)seq - first : n);
        memcpy(to, t->logits, vocabulary * sizeof *to);
    }
    speech_close_worker(t);
    return all;
}

/* -log p of label k, from logits. */
static double surprise(const float *logits, size_t n, uint32_t k)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += exp((double)logits[i]);
    return log(sum) - (double)logits[k];
}

/* -log p of every label at one position, by asking the reference for each in turn. Logits of a few units in fp32. */
static void check_position(struct speech *t, const struct reference_gpt2 *ref, const float *logits, uint32_t position)
{
    const uint32_t vocabulary = t->s.model.config.vocabulary;
    const struct reference_batch batch = {.ids = t->s.ids, .labels = t->s.labels, .n_rows = 1, .seq = position + 1};

    memset(t->s.labels, 0xff, t->s.seq * sizeof *t->s.labels);
    for (uint32_t k = 0; k < vocabulary; k++) {
        t->s.labels[position] = k;
        ck_assert_double_eq_tol(surprise(logits, vocabulary, k), reference_gpt2_loss(ref, &batch), 1e-5);
    }
}

/* The simulated device runs what kernels and queues have a part in. */
static bool simulated(void)
{
    return backend_get()->simulated;
}

TEST_RANGE(logits_after_every_token_are_those_of_the_reference, simulated() ? 2 : 0, SETTING_CONFIGS)
{
    struct speech t;
    struct reference_gpt2 ref;
    float *logits;

    speech_set_up(&t, setting_config(_i), 9);
    reference_gpt2_init(&ref, &t.s.model, t.s.weights);
    logits = run_all(&t, 1);
    for (uint32_t i = 0; i < 9; i++)
        check_position(&t, &ref, logits + i * t.s.model.config.vocabulary, i);
    free(logits);
    reference_gpt2_free(&ref);
    speech_tear_down(&t);
}

static float cap_of(const struct model_config *c)
{
    (void)c;
    return 0.75f;
}

/* Of the size of these logits. */
TEST(a_family_caps_the_logits_that_it_generates_from)
{
    struct family capping = family_gpt2;
    struct model_config capped = *setting_config(2);
    struct speech t;

    capping.logit_cap = cap_of, capped.family = &capping;
    speech_set_up(&t, setting_config(2), 4);
    float *plain = run_all(&t, 2);
    speech_tear_down(&t);
    speech_set_up(&t, &capped, 4);
    float *logits = run_all(&t, 2);
    for (size_t i = 0; i < (size_t)2 * capped.vocabulary; i++)
        ck_assert_double_eq_tol((double)logits[i], 0.75 * tanh((double)plain[i] / 0.75), 1e-6);
    speech_tear_down(&t);
    free(plain), free(logits);
}

/* A prompt of two tiles and a bit, and of exactly two. */
TEST_EACH(a_long_prompt_then_single_tokens_are_as_the_reference_says, simulated() ? 0 : 2)
{
    struct speech t;
    struct reference_gpt2 ref;
    const uint32_t prompt = _i ? 2 * PLAN_GENERATE_TILE : 2 * PLAN_GENERATE_TILE + 5;

    speech_set_up(&t, &speech_tall, 150);
    reference_gpt2_init(&ref, &t.s.model, t.s.weights);
    speech_open_worker(&t);
    run(&t, 0, prompt);
    check_position(&t, &ref, t.logits, prompt - 1);
    run(&t, prompt, 1);
    check_position(&t, &ref, t.logits, prompt);
    run(&t, prompt + 1, 150 - prompt - 1);
    check_position(&t, &ref, t.logits, 149);
    speech_close_worker(&t);
    reference_gpt2_free(&ref);
    speech_tear_down(&t);
}

/* The loss of one label, from the head that never gives logits; computed at once, where the logits come from a cache,
 * to which tokens came one by one at last. */
TEST_EACH(evaluation_of_the_same_row_says_the_same, simulated() ? 0 : LONG_CONFIGS)
{
    const struct model_config config = speech_long_config(_i);
    struct speech t;
    double sum;

    speech_set_up(&t, &config, 150);
    speech_open_worker(&t);
    run(&t, 0, 66);
    for (uint32_t first = 66; first < 150; first++)
        run(&t, first, 1);
    speech_close_worker(&t);
    memset(t.s.labels, 0xff, 150 * sizeof *t.s.labels);
    t.options.setting.goal.purpose = PLAN_EVALUATE;
    t.options.choice.n_resident = 0;
    for (uint32_t k = 0; k < config.vocabulary; k++) {
        const struct device_evaluation e = {.rows = setting_rows(&t.s), .n_rows = 1};
        t.s.labels[149] = k;
        speech_open_worker(&t);
        ck_assert_int_eq(device_worker_evaluate(&t.worker, &e, &array_link, &t.link, &sum, &t.err), 0);
        speech_close_worker(&t);
        ck_assert_double_eq_tol(surprise(t.logits, config.vocabulary, k), sum, 1e-5);
    }
    speech_tear_down(&t);
}

TEST_EACH(how_the_row_is_cut_into_runs_changes_rounding_only, simulated() ? 0 : LONG_CONFIGS)
{
    const struct model_config config = speech_long_config(_i);
    static const uint32_t lengths[] = {2, 7, 63, 64, 65, 100};
    struct speech t;
    float *whole, largest = 0;

    speech_set_up(&t, &config, 150);
    whole = run_all(&t, 150);
    for (size_t k = 0; k < config.vocabulary; k++)
        largest = fmaxf(largest, fabsf(whole[k]));
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const size_t last = (150 + lengths[i] - 1) / lengths[i] - 1;
        float *cut = run_all(&t, lengths[i]);
        for (size_t k = 0; k < config.vocabulary; k++)
            ck_assert_float_eq_tol(cut[last * config.vocabulary + k], whole[k], 1e-5f * largest);
        free(cut);
    }
    free(whole);
    speech_tear_down(&t);
}

/* And threads. */
TEST_EACH(budgets_from_streamed_to_resident_give_the_same_bits, simulated() ? 1 : 2)
{
    struct speech t;
    float *roomy;

    speech_set_up(&t, _i ? &speech_wide : &speech_tall, 9);
    roomy = run_all(&t, 2);
    for (t.options.setting.n_threads = 2; !simulated() && t.options.setting.n_threads <= 3;
         t.options.setting.n_threads++) {
        float *more = run_all(&t, 2);
        ck_assert(setting_same_bits(roomy, more, (size_t)t.s.model.config.vocabulary * 5));
        free(more);
    }
    t.options.setting.n_threads = 1;
    for (uint32_t n = 0; n <= plan_count_uploaded(&t.s.model); n++) {
        t.options.choice.n_resident = n;
        for (t.options.choice.n_weight_buffers = 1; t.options.choice.n_weight_buffers <= 3;
             t.options.choice.n_weight_buffers++) {
            float *tight = run_all(&t, 2);
            ck_assert(setting_same_bits(roomy, tight, (size_t)t.s.model.config.vocabulary * 5));
            free(tight);
        }
        t.options.choice.n_weight_buffers = 2;
    }
    free(roomy);
    speech_tear_down(&t);
}

/* wide's units: 9 of tokens, 1 of positions, a block, the norm. What is looked up, of tokens and positions, is pulled
 * once in any case; the block, the norm and the tokens' nine as the head once, or with each run. */
TEST_IF(units_are_pulled_once_or_for_each_visit, !simulated())
{
    struct speech t;

    speech_set_up(&t, &speech_wide, 9);
    ck_assert_uint_eq(t.s.model.n_units, 12);
    for (uint32_t i = 0; i < 9; i++)
        t.s.ids[i] = i < 3 ? 29999 - i : i;
    speech_open_worker(&t);
    ck_assert_uint_eq(t.worker.plan.choice.n_resident, 11);
    run(&t, 0, 1);
    run(&t, 1, 8);
    ck_assert_uint_eq(t.link.n_pulls, 10 + 11);
    ck_assert_uint_eq(t.link.n_waits, 10 + 11);
    speech_close_worker(&t);

    t.options.choice.n_resident = 0;
    t.options.choice.n_weight_buffers = 1;
    speech_open_worker(&t);
    ck_assert_uint_eq(t.worker.plan.choice.n_resident, 0);
    run(&t, 0, 1);
    ck_assert_uint_eq(t.link.n_pulls, 10 + 11);
    run(&t, 1, 8);
    ck_assert_uint_eq(t.link.n_pulls, 10 + 11 + 11);
    speech_close_worker(&t);
    speech_tear_down(&t);
}

TEST_IF(what_cannot_be_run_is_refused_and_changes_nothing, !simulated())
{
    struct speech t;
    float *all;

    speech_set_up(&t, setting_config(0), 9);
    all = run_all(&t, 3);
    speech_open_worker(&t);
    run(&t, 0, 3);
    ck_assert_int_eq(try_run(&t, 4, 1), -EINVAL);
    ck_assert_holds(t.err.text, "tokens 4 to 5 to run: 3 of up to 9");
    ck_assert_int_eq(try_run(&t, 1, 0), -EINVAL);
    ck_assert_int_eq(try_run(&t, 1, 9), -EINVAL);
    ck_assert_int_eq(try_run(&t, 3, 0), -EINVAL);
    ck_assert_int_eq(try_run(&t, 3, 7), -EINVAL);
    ck_assert_int_eq(try_run(&t, 3, UINT32_MAX), -EINVAL);
    const uint32_t id = t.s.ids[5];
    t.s.ids[5] = 17;
    ck_assert_int_eq(try_run(&t, 3, 3), -EINVAL);
    ck_assert_holds(t.err.text, "token id 17 at position 5");
    t.s.ids[5] = UINT32_MAX;
    ck_assert_int_eq(try_run(&t, 3, 3), -EINVAL);
    t.s.ids[5] = id;
    run(&t, 3, 3);
    ck_assert(setting_same_bits(t.logits, all + 17, 17));
    run(&t, 6, 3);
    ck_assert_int_eq(try_run(&t, 9, 1), -EINVAL);
    speech_close_worker(&t);
    free(all);
    speech_tear_down(&t);
}

/* The same tokens after others give the same bits: nothing of a row that was run before is left. */
TEST_IF(a_row_begins_anew_from_its_first_token, !simulated())
{
    struct speech t;
    float first[17], second[17];

    speech_set_up(&t, setting_config(0), 9);
    speech_open_worker(&t);
    run(&t, 0, 4);
    memcpy(first, t.logits, sizeof first);
    run(&t, 4, 5);
    memcpy(second, t.logits, sizeof second);
    ck_assert(!setting_same_bits(second, first, 17));
    run(&t, 0, 4);
    ck_assert(setting_same_bits(t.logits, first, 17));
    ck_assert_int_eq(try_run(&t, 0, 10), -EINVAL);
    ck_assert_holds(t.err.text, "tokens 0 to 10 to run: 4 of up to 9");
    run(&t, 4, 5); /* the row is as it was */
    ck_assert(setting_same_bits(t.logits, second, 17));
    run(&t, 0, 9);
    speech_close_worker(&t);
    speech_tear_down(&t);
}

static void check_near(const float *logits, const float *expected, size_t n)
{
    float largest = 0;

    for (size_t k = 0; k < n; k++)
        largest = fmaxf(largest, fabsf(expected[k]));
    for (size_t k = 0; k < n; k++)
        ck_assert_float_eq_tol(logits[k], expected[k], 1e-5f * largest);
}

/* Whatever it ran from there on before: other tokens, or some layers of them alone, as a run was cancelled. Where
 * layers keep the last tokens alone, it runs again from its first: so by rounding. */
TEST_EACH(a_row_that_goes_back_goes_on_from_there, simulated() ? 0 : LONG_CONFIGS)
{
    const struct model_config config = speech_long_config(_i);
    struct speech t;
    float before[17], behind[17];
    int rc = -ECANCELED;

    ck_assert_uint_eq(config.vocabulary, COUNT(before));
    speech_set_up(&t, &config, 150);
    t.options.choice.n_resident = 0;
    speech_open_worker(&t);
    run(&t, 0, 70);
    run(&t, 70, 5);
    memcpy(before, t.logits, sizeof before);
    run(&t, 75, 9);
    memcpy(behind, t.logits, sizeof behind);
    for (unsigned at = 1; rc != 0; at++) {
        run(&t, 70, 5);
        check_near(t.logits, before, COUNT(before));
        t.link.n_calls = 0, t.link.cancel_at = at;
        rc = try_run(&t, 75, 9);
        t.link.cancel_at = 0, t.link.n_waits = t.link.n_pulls; /* what was under way is dropped */
        run(&t, 75, 9);
        check_near(t.logits, behind, COUNT(behind));
    }
    speech_close_worker(&t);
    speech_tear_down(&t);
}

TEST_IF(a_worker_does_what_it_was_planned_for, !simulated())
{
    struct speech t;
    const struct device_evaluation e = {.rows.n_tokens = 1, .n_rows = 1};
    double sum;

    speech_set_up(&t, setting_config(0), 9);
    speech_open_worker(&t);
    ck_assert_int_eq(device_worker_evaluate(&t.worker, &e, &array_link, &t.link, &sum, &t.err), -EINVAL);
    speech_close_worker(&t);
    t.options.setting.goal.purpose = PLAN_EVALUATE;
    t.options.choice.n_resident = 0;
    speech_open_worker(&t);
    ck_assert_int_eq(try_run(&t, 0, 1), -EINVAL);
    speech_close_worker(&t);
    speech_tear_down(&t);
}

/* At each of its calls in turn, while the units that stay are loaded and after; the link checks that none follows. */
TEST_IF(a_link_that_ends_ends_the_run, !simulated())
{
    struct speech t;
    int rc = -ECANCELED;

    speech_set_up(&t, &speech_tall, 150);
    t.options.choice.n_resident = 2;
    for (unsigned at = 1; rc != 0; at++) {
        speech_open_worker(&t);
        t.link.cancel_at = at;
        rc = try_run(&t, 0, 150);
        ck_assert_int_eq(rc, t.link.n_calls < at ? 0 : -ECANCELED);
        ck_assert_uint_eq(t.worker.n_run[0], rc == 0 ? 150 : 0);
        speech_close_worker(&t);
    }
    speech_tear_down(&t);
}

/* With nothing left to pull, the run asks by itself. */
TEST_IF(a_job_that_ends_ends_a_run_that_waits_for_nothing, !simulated())
{
    struct speech t;

    speech_set_up(&t, &speech_tall, 150);
    speech_open_worker(&t);
    run(&t, 0, 1);
    t.link.cancel_at = t.link.n_calls + 7;
    ck_assert_int_eq(try_run(&t, 1, 149), -ECANCELED);
    ck_assert_uint_eq(t.worker.n_run[0], 1);
    speech_close_worker(&t);
    speech_tear_down(&t);
}

static void spoil(void *context)
{
    struct setting *s = context;

    memset(s->ids, 0xff, s->seq * sizeof *s->ids);
}

TEST_IF(ids_that_change_during_the_run_change_nothing, !simulated())
{
    struct speech t;
    float calm[17];

    speech_set_up(&t, &speech_tall, 60);
    t.options.choice.n_resident = 0; /* so each run pulls, and first when its ids have been read */
    for (int i = 0; i < 2; i++) {
        speech_open_worker(&t);
        run(&t, 0, 1);
        if (i == 1) {
            t.link.n_pulls = t.link.n_waits = 0;
            t.link.on_first_pull = spoil;
            t.link.context = &t.s;
        }
        run(&t, 1, 59);
        speech_close_worker(&t);
        if (i == 0)
            memcpy(calm, t.logits, sizeof calm);
    }
    ck_assert_uint_eq(t.s.ids[59], UINT32_MAX);
    ck_assert(setting_same_bits(t.logits, calm, speech_tall.vocabulary));
    speech_tear_down(&t);
}
