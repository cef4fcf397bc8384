/* Tokens one run after another against the whole row at once, and rows that advance together against each alone. */
#include "proto/step/generate.h"

#include "proto/model/family.h"
#include "proto/plan/memory/units.h"
#include "proto/wire/message.h"
#include "tests/kit/device/backend.h"
#include "tests/kit/device/setting.h"
#include "tests/kit/test.h"
#include "device/find.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single, on_cuda)

/* More positions than two tiles, and tables of several units: 30,000 rows of width 300 come in five. */
static const struct model_config tall = {
    &family_gpt2, 2,     3,  12,
    20,           150,   17, MODEL_GELU_NEW,
    true,         1e-5f, 0,  .gpt2 = {.scale_attention = true, .scale_by_layer = true}};
static const struct model_config wide = {&family_gpt2, 1,          2,    300,   40, 9,
                                         30000,        MODEL_GELU, true, 1e-5f, 0,  .gpt2 = {.scale_attention = true}};

/* A window of attention longer than a tile, and half as long as the row. */
static const char windowed[] =
    "{\"model_type\": \"mistral\", \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
    "\"hidden_size\": 16, \"intermediate_size\": 20, \"max_position_embeddings\": 150, \"vocab_size\": 17, "
    "\"sliding_window\": 70}";

/* Blocks whose caches differ, of which two have none. */
static const char alternating[] =
    "{\"model_type\": \"alternating\", \"num_hidden_layers\": 5, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2, \"head_dim\": 4, \"hidden_size\": 16, \"intermediate_size\": 20, "
    "\"wide_intermediate_size\": 28, \"sliding_window\": 70, \"window_key_value_heads\": 1, \"window_head_dim\": 6, "
    "\"max_position_embeddings\": 150, \"vocab_size\": 17}";

/* Blocks of several layers, of which one has a cache, and values that pass by others. */
static const char chunked[] =
    "{\"model_type\": \"chunked\", \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
    "\"head_dim\": 4, \"hidden_size\": 16, \"intermediate_size\": 28, \"max_position_embeddings\": 150, "
    "\"vocab_size\": 17}";
static const char experts[] =
    "{\"model_type\": \"experts\", \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
    "\"head_dim\": 4, \"hidden_size\": 16, \"intermediate_size\": 6, \"max_position_embeddings\": 150, "
    "\"vocab_size\": 17}";

enum { TALL, WINDOWED, ALTERNATING, CHUNKED, EXPERTS, LONG_CONFIGS };

static struct model_config long_config(int which)
{
    static const char *const texts[] = {NULL, windowed, alternating, chunked, experts};
    const char *text = texts[which];
    struct model_config config = tall;
    struct error err;

    if (which != TALL)
        ck_assert_msg(model_config_parse(&config, text, strlen(text), &err) == 0, "%s", err.text);
    return config;
}

/* One row of a setting on one worker, or several that advance together. */
struct speech {
    struct setting s;
    struct device_worker_options options;
    struct device_worker worker;
    struct ledger ledger;
    struct array_link link;
    float *logits;
    struct error err;
};

static void set_up_rows(struct speech *t, const struct model_config *config, uint32_t rows, uint32_t seq)
{
    *t = (struct speech){0};
    setting_open(&t->s, config, rows, seq);
    t->options = setting_options(&t->s, rows, 0);
    t->options.setting.goal.purpose = PLAN_GENERATE;
    t->options.choice.n_resident = plan_count_uploaded(&t->s.model);
    t->logits = calloc((size_t)rows * config->vocabulary, sizeof *t->logits);
    ck_assert_ptr_nonnull(t->logits);
}

static void set_up(struct speech *t, const struct model_config *config, uint32_t seq)
{
    set_up_rows(t, config, 1, seq);
}

static void open_worker(struct speech *t)
{
    int rc = device_worker_init(&t->worker, &t->options, &t->ledger, &t->err);

    ck_assert_msg(rc == 0, "%s", t->err.text);
    array_link_init(&t->link, &t->s.model, t->s.weights);
    t->link.n_buffers = t->options.choice.n_weight_buffers;
    t->link.precision = t->options.setting.goal.precision;
}

static void close_worker(struct speech *t)
{
    array_link_free(&t->link);
    device_worker_free(&t->worker);
    for (int c = 0; c < LEDGER_CATEGORIES; c++)
        ck_assert_uint_eq(t->ledger.rows[c].current, 0);
}

static void tear_down(struct speech *t)
{
    setting_close(&t->s);
    free(t->logits);
}

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
    open_worker(t);
    for (uint32_t first = 0; first < seq; first += n, to += vocabulary) {
        run(t, first, seq - first < n ? (uint32_t)seq - first : n);
        memcpy(to, t->logits, vocabulary * sizeof *to);
    }
    close_worker(t);
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

    set_up(&t, &setting_configs[_i], 9);
    reference_gpt2_init(&ref, &t.s.model, t.s.weights);
    logits = run_all(&t, 1);
    for (uint32_t i = 0; i < 9; i++)
        check_position(&t, &ref, logits + i * t.s.model.config.vocabulary, i);
    free(logits);
    reference_gpt2_free(&ref);
    tear_down(&t);
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
    struct model_config capped = setting_configs[2];
    struct speech t;

    capping.logit_cap = cap_of, capped.family = &capping;
    set_up(&t, &setting_configs[2], 4);
    float *plain = run_all(&t, 2);
    tear_down(&t);
    set_up(&t, &capped, 4);
    float *logits = run_all(&t, 2);
    for (size_t i = 0; i < (size_t)2 * capped.vocabulary; i++)
        ck_assert_double_eq_tol((double)logits[i], 0.75 * tanh((double)plain[i] / 0.75), 1e-6);
    tear_down(&t);
    free(plain), free(logits);
}

/* A prompt of two tiles and a bit, and of exactly two. */
TEST_EACH(a_long_prompt_then_single_tokens_are_as_the_reference_says, simulated() ? 0 : 2)
{
    struct speech t;
    struct reference_gpt2 ref;
    const uint32_t prompt = _i ? 2 * PLAN_GENERATE_TILE : 2 * PLAN_GENERATE_TILE + 5;

    set_up(&t, &tall, 150);
    reference_gpt2_init(&ref, &t.s.model, t.s.weights);
    open_worker(&t);
    run(&t, 0, prompt);
    check_position(&t, &ref, t.logits, prompt - 1);
    run(&t, prompt, 1);
    check_position(&t, &ref, t.logits, prompt);
    run(&t, prompt + 1, 150 - prompt - 1);
    check_position(&t, &ref, t.logits, 149);
    close_worker(&t);
    reference_gpt2_free(&ref);
    tear_down(&t);
}

/* The loss of one label, from the head that never gives logits; computed at once, where the logits come from a cache, to
 * which tokens came one by one at last. */
TEST_EACH(evaluation_of_the_same_row_says_the_same, simulated() ? 0 : LONG_CONFIGS)
{
    const struct model_config config = long_config(_i);
    struct speech t;
    double sum;

    set_up(&t, &config, 150);
    open_worker(&t);
    run(&t, 0, 66);
    for (uint32_t first = 66; first < 150; first++)
        run(&t, first, 1);
    close_worker(&t);
    memset(t.s.labels, 0xff, 150 * sizeof *t.s.labels);
    t.options.setting.goal.purpose = PLAN_EVALUATE;
    t.options.choice.n_resident = 0;
    for (uint32_t k = 0; k < config.vocabulary; k++) {
        const struct device_evaluation e = {.rows = setting_rows(&t.s), .n_rows = 1};
        t.s.labels[149] = k;
        open_worker(&t);
        ck_assert_int_eq(device_worker_evaluate(&t.worker, &e, &array_link, &t.link, &sum, &t.err), 0);
        close_worker(&t);
        ck_assert_double_eq_tol(surprise(t.logits, config.vocabulary, k), sum, 1e-5);
    }
    tear_down(&t);
}

TEST_EACH(how_the_row_is_cut_into_runs_changes_rounding_only, simulated() ? 0 : LONG_CONFIGS)
{
    const struct model_config config = long_config(_i);
    static const uint32_t lengths[] = {2, 7, 63, 64, 65, 100};
    struct speech t;
    float *whole, largest = 0;

    set_up(&t, &config, 150);
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
    tear_down(&t);
}

/* And threads. */
TEST_EACH(budgets_from_streamed_to_resident_give_the_same_bits, simulated() ? 1 : 2)
{
    struct speech t;
    float *roomy;

    set_up(&t, _i ? &wide : &tall, 9);
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
    tear_down(&t);
}

/* wide's units: 9 of tokens, 1 of positions, a block, the norm. What is looked up, of tokens and positions, is pulled once
 * in any case; the block, the norm and the tokens' nine as the head once, or with each run. */
TEST_IF(units_are_pulled_once_or_for_each_visit, !simulated())
{
    struct speech t;

    set_up(&t, &wide, 9);
    ck_assert_uint_eq(t.s.model.n_units, 12);
    for (uint32_t i = 0; i < 9; i++)
        t.s.ids[i] = i < 3 ? 29999 - i : i;
    open_worker(&t);
    ck_assert_uint_eq(t.worker.plan.choice.n_resident, 11);
    run(&t, 0, 1);
    run(&t, 1, 8);
    ck_assert_uint_eq(t.link.n_pulls, 10 + 11);
    ck_assert_uint_eq(t.link.n_waits, 10 + 11);
    close_worker(&t);

    t.options.choice.n_resident = 0;
    t.options.choice.n_weight_buffers = 1;
    open_worker(&t);
    ck_assert_uint_eq(t.worker.plan.choice.n_resident, 0);
    run(&t, 0, 1);
    ck_assert_uint_eq(t.link.n_pulls, 10 + 11);
    run(&t, 1, 8);
    ck_assert_uint_eq(t.link.n_pulls, 10 + 11 + 11);
    close_worker(&t);
    tear_down(&t);
}

TEST_IF(what_cannot_be_run_is_refused_and_changes_nothing, !simulated())
{
    struct speech t;
    float *all;

    set_up(&t, &setting_configs[0], 9);
    all = run_all(&t, 3);
    open_worker(&t);
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
    close_worker(&t);
    free(all);
    tear_down(&t);
}

/* The same tokens after others give the same bits: nothing of a row that was run before is left. */
TEST_IF(a_row_begins_anew_from_its_first_token, !simulated())
{
    struct speech t;
    float first[17], second[17];

    set_up(&t, &setting_configs[0], 9);
    open_worker(&t);
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
    close_worker(&t);
    tear_down(&t);
}

TEST_IF(a_worker_does_what_it_was_planned_for, !simulated())
{
    struct speech t;
    const struct device_evaluation e = {.rows.n_tokens = 1, .n_rows = 1};
    double sum;

    set_up(&t, &setting_configs[0], 9);
    open_worker(&t);
    ck_assert_int_eq(device_worker_evaluate(&t.worker, &e, &array_link, &t.link, &sum, &t.err), -EINVAL);
    close_worker(&t);
    t.options.setting.goal.purpose = PLAN_EVALUATE;
    t.options.choice.n_resident = 0;
    open_worker(&t);
    ck_assert_int_eq(try_run(&t, 0, 1), -EINVAL);
    close_worker(&t);
    tear_down(&t);
}

/* At each of its calls in turn, while the units that stay are loaded and after; the link checks that none follows. */
TEST_IF(a_link_that_ends_ends_the_run, !simulated())
{
    struct speech t;
    int rc = -ECANCELED;

    set_up(&t, &tall, 150);
    t.options.choice.n_resident = 2;
    for (unsigned at = 1; rc != 0; at++) {
        open_worker(&t);
        t.link.cancel_at = at;
        rc = try_run(&t, 0, 150);
        ck_assert_int_eq(rc, t.link.n_calls < at ? 0 : -ECANCELED);
        ck_assert_uint_eq(t.worker.n_run[0], rc == 0 ? 150 : 0);
        close_worker(&t);
    }
    tear_down(&t);
}

/* With nothing left to pull, the run asks by itself. */
TEST_IF(a_job_that_ends_ends_a_run_that_waits_for_nothing, !simulated())
{
    struct speech t;

    set_up(&t, &tall, 150);
    open_worker(&t);
    run(&t, 0, 1);
    t.link.cancel_at = t.link.n_calls + 7;
    ck_assert_int_eq(try_run(&t, 1, 149), -ECANCELED);
    ck_assert_uint_eq(t.worker.n_run[0], 1);
    close_worker(&t);
    tear_down(&t);
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

    set_up(&t, &tall, 60);
    t.options.choice.n_resident = 0; /* so each run pulls, and first when its ids have been read */
    for (int i = 0; i < 2; i++) {
        open_worker(&t);
        run(&t, 0, 1);
        if (i == 1) {
            t.link.n_pulls = t.link.n_waits = 0;
            t.link.on_first_pull = spoil;
            t.link.context = &t.s;
        }
        run(&t, 1, 59);
        close_worker(&t);
        if (i == 0)
            memcpy(calm, t.logits, sizeof calm);
    }
    ck_assert_uint_eq(t.s.ids[59], UINT32_MAX);
    ck_assert(setting_same_bits(t.logits, calm, tall.vocabulary));
    tear_down(&t);
}

/* ---- several rows ------------------------------------------------------------------------------------------------- */

enum { ROWS = 3 };

/* Prompts of unequal lengths, of one tile to three; a row that rests, one that begins anew, and one that goes on after
 * another's first tokens while that one begins anew; runs that end in another tile than the other rows'. */
static const struct plan_tokens passes[][ROWS] = {
    {{0, 0, 5}, {1, 0, 70}, {2, 0, 130}},  {{0, 5, 1}, {1, 70, 1}, {2, 130, 1}}, {{0, 6, 1}, {1, 0, 0}, {2, 131, 1}},
    {{0, 0, 66}, {1, 71, 1}, {2, 132, 3}}, {{0, 0, 1}, {0, 40, 2}, {2, 0, 1}},   {{0, 1, 64}, {1, 42, 1}, {2, 1, 9}},
};

static void run_pass(struct speech *t, const uint32_t *ids, const struct plan_tokens *rows, uint32_t n_rows)
{
    const struct device_run run = {.ids = ids, .rows = rows, .n_rows = n_rows, .logits = t->logits};

    ck_assert_msg(device_worker_generate(&t->worker, &run, &array_link, &t->link, &t->err) == 0, "%s", t->err.text);
}

/* One row by itself through all passes: before it goes on after another's tokens, it runs those that the other has run.
 * Logits after each pass, 0 where it rests. */
static void run_alone(float *out, struct speech *t, const uint32_t *ids, uint32_t row)
{
    const size_t vocabulary = t->s.model.config.vocabulary, seq = t->s.seq;

    open_worker(t);
    for (size_t p = 0; p < COUNT(passes); p++, out += vocabulary) {
        struct plan_tokens tokens = passes[p][row];
        if (tokens.from != row) {
            struct plan_tokens before = passes[p - 1][tokens.from];
            ck_assert_uint_eq(before.first, 0);
            before.from = 0;
            run_pass(t, ids + tokens.from * seq, &before, 1);
        }
        tokens.from = 0;
        if (tokens.n > 0)
            run_pass(t, ids + row * seq, &tokens, 1);
        memcpy(out, t->logits, vocabulary * sizeof *out);
    }
    close_worker(t);
}

/* All of them, with any part of the weights on the device. */
static void check_together(struct speech *t, float *const alone[ROWS])
{
    const size_t vocabulary = t->s.model.config.vocabulary;

    open_worker(t);
    for (size_t p = 0; p < COUNT(passes); p++) {
        memset(t->logits, 0xff, ROWS * vocabulary * sizeof *t->logits);
        run_pass(t, t->s.ids, passes[p], ROWS);
        for (uint32_t row = 0; row < ROWS; row++)
            ck_assert_msg(passes[p][row].n > 0
                              ? setting_same_bits(t->logits + row * vocabulary, alone[row] + p * vocabulary, vocabulary)
                              : isnan(t->logits[row * vocabulary]),
                          "pass %zu, row %u", p, row);
    }
    close_worker(t);
}

/* On the simulated device one format each, and no weights on the device. */
TEST_EACH(rows_that_advance_together_have_the_bits_of_each_alone, simulated() ? 3 : 2 * LONG_CONFIGS)
{
    const struct model_config config = long_config(_i % LONG_CONFIGS);
    float *alone[ROWS];
    struct speech t, one;

    set_up(&one, &config, 150);
    set_up_rows(&t, &config, ROWS, 150);
    one.options.setting.goal.precision = t.options.setting.goal.precision =
        (simulated() ? _i : _i / LONG_CONFIGS) ? NUMBER_BF16 : NUMBER_FP32;
    for (uint32_t row = 0; row < ROWS; row++) {
        alone[row] = calloc(COUNT(passes) * config.vocabulary, sizeof **alone);
        ck_assert_ptr_nonnull(alone[row]);
        run_alone(alone[row], &one, t.s.ids, row);
    }
    ck_assert(!setting_same_bits(alone[0], alone[1], config.vocabulary));
    for (uint32_t n = 0; n <= plan_count_uploaded(&t.s.model); n += simulated() ? 8 : 1) {
        t.options.choice.n_resident = n;
        t.options.choice.n_weight_buffers = 1 + n % 3;
        check_together(&t, alone);
    }
    t.options.setting.n_threads = 3;
    if (!simulated())
        check_together(&t, alone);
    for (uint32_t row = 0; row < ROWS; row++)
        free(alone[row]);
    tear_down(&t);
    tear_down(&one);
}

static size_t alignment(const void *at)
{
    const uintptr_t bits = (uintptr_t)at | 64;

    return bits & -bits;
}

/* As a library that chooses an algorithm by the shape and the alignment of its operands. */
static void fickle_matmul(struct device *dev, const struct device_matmul *op)
{
    float *c = op->c;

    device_cpu.matmul(dev, op);
    for (size_t i = 0; i < op->m; i++)
        c[i * op->c_stride] += 1e-2f * (float)op->m + 1e-3f * (float)alignment(op->a) + 1e-4f * (float)alignment(op->c);
}

/* Odd widths, 17 logits: rows side by side would begin at other alignments. */
TEST_IF(a_backend_that_rounds_by_shape_runs_each_row_as_if_alone, !simulated())
{
    struct device_ops fickle = device_cpu;
    struct plan_backend apart = plan_cpu;
    float *alone[ROWS];
    struct speech t, one;

    fickle.matmul = fickle_matmul;
    apart.joins_rows = false;
    set_up(&one, &tall, 150);
    set_up_rows(&t, &tall, ROWS, 150);
    t.options.ops = one.options.ops = &fickle;
    t.options.setting.backend = one.options.setting.backend = &apart;
    for (uint32_t row = 0; row < ROWS; row++) {
        alone[row] = calloc(COUNT(passes) * tall.vocabulary, sizeof **alone);
        ck_assert_ptr_nonnull(alone[row]);
        run_alone(alone[row], &one, t.s.ids, row);
    }
    check_together(&t, alone);
    for (uint32_t row = 0; row < ROWS; row++)
        free(alone[row]);
    tear_down(&t);
    tear_down(&one);
}

/* wide has 12 units, tall two tables, two blocks and a norm. Prompts of one tile need one pass, the longest here three. */
TEST_IF(a_pass_pulls_units_once_for_all_rows, !simulated())
{
    static const struct plan_tokens prompts[] = {{0, 0, 3}, {1, 0, 1}, {2, 0, 9}},
                                    next[] = {{0, 3, 1}, {1, 1, 1}, {2, 0, 0}};
    struct speech t;

    set_up_rows(&t, &wide, ROWS, 9);
    t.options.choice.n_resident = 0;
    open_worker(&t);
    run_pass(&t, t.s.ids, prompts, ROWS);
    ck_assert_uint_eq(t.link.n_pulls, 10 + 11);
    run_pass(&t, t.s.ids, next, ROWS);
    ck_assert_uint_eq(t.link.n_pulls, 10 + 11 + 11);
    close_worker(&t);
    tear_down(&t);

    set_up_rows(&t, &tall, ROWS, 150);
    t.options.choice.n_resident = 0;
    open_worker(&t);
    run_pass(&t, t.s.ids, passes[0], ROWS);
    ck_assert_uint_eq(t.link.n_pulls, 2 + 3 * 4);
    close_worker(&t);
    tear_down(&t);
}

TEST_IF(rows_that_cannot_be_run_are_refused_and_change_nothing, !simulated())
{
    static const struct plan_tokens begun[] = {{0, 0, 4}, {1, 0, 2}};
    static const struct {
        struct plan_tokens rows[ROWS + 1];
        uint32_t n_rows;
        const char *why;
    } wrongs[] = {
        {{{0, 4, 1}, {1, 2, 1}, {2, 0, 1}, {3, 0, 1}}, 4, "4 texts to generate: this worker was planned for 3"},
        {{{0, 4, 1}, {1, 3, 1}}, 2, "tokens 3 to 4 to run: 2 of up to 9 were run so far"},
        {{{0, 4, 1}, {0, 5, 1}}, 2, "tokens 5 to 6 to run: 4 of up to 9 were run so far"},
        {{{0, 4, 1}, {0, 4, 6}}, 2, "tokens 4 to 10 to run"},
        {{{0, 4, 1}, {2, 0, 1}}, 2, "row 1 goes on after row 2"},
        {{{0, 4, 1}, {2, 0, 1}, {0, 1, 1}}, 3, "row 1 goes on after row 2"},
        {{{0, 4, 0}, {1, 2, 0}}, 2, "no row has tokens"},
        {{{0, 0, 0}}, 0, "no row has tokens"},
    };
    struct speech t;

    set_up_rows(&t, &setting_configs[0], ROWS, 9);
    open_worker(&t);
    for (int i = 0; i < COUNT(wrongs); i++) {
        const struct device_run run = {.ids = t.s.ids,
                                       .rows = wrongs[i].rows,
                                       .n_rows = wrongs[i].n_rows,
                                       .logits = t.logits};
        run_pass(&t, t.s.ids, begun, 2);
        ck_assert_int_eq(device_worker_generate(&t.worker, &run, &array_link, &t.link, &t.err), -EINVAL);
        ck_assert_holds(t.err.text, wrongs[i].why);
        ck_assert(t.worker.n_run[0] == 4 && t.worker.n_run[1] == 2 && t.worker.n_run[2] == 0);
    }
    close_worker(&t);
    tear_down(&t);
}
