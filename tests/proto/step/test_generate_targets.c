/* Targets of an encoder-decoder, whose sources run before them: rows that advance together against each alone. What the
 * tokens are: test_eps_generate_targets. */
#include "proto/step/generate.h"

#include "proto/plan/memory/units.h"
#include "tests/kit/device/backend.h"
#include "tests/kit/test.h"
#include "tests/proto/step/speech.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single, on_cuda)

/* More positions than one tile, and sources of unequal lengths. */
enum { ROWS = 3, SEQ = 75 };
static const uint32_t lengths[ROWS] = {75, 1, 20};

static const char t5[] =
    "{\"model_type\": \"t5\", \"d_model\": 24, \"d_kv\": 10, \"d_ff\": 20, \"num_layers\": 2, \"num_decoder_layers\": "
    "3, "
    "\"num_heads\": 2, \"vocab_size\": 17, \"relative_attention_num_buckets\": 8, "
    "\"relative_attention_max_distance\": 30, \"feed_forward_proj\": \"gated-gelu\", \"tie_word_embeddings\": false}";
static const char dynamic_conv[] =
    "{\"model_type\": \"dynamic_conv\", \"d_model\": 24, \"num_heads\": 2, \"ffn_dim\": 20, \"encoder_layers\": 2, "
    "\"decoder_layers\": 3, \"encoder_kernel_sizes\": [3, 5], \"decoder_kernel_sizes\": [3, 31, 4], \"glu\": true, "
    "\"vocab_size\": 17}";

enum { T5, DYNAMIC_CONV, MODELS };

static struct model_config config_of(int which)
{
    const char *text = which == T5 ? t5 : dynamic_conv;
    struct model_config config;
    struct error err;

    ck_assert_msg(model_config_parse(&config, text, strlen(text), &err) == 0, "%s", err.text);
    model_part_rows(&config, SEQ);
    return config;
}

static void set_up(struct speech *t, uint32_t rows, int which)
{
    const struct model_config config = config_of(which);

    speech_set_up_rows(t, &config, rows, SEQ);
    t->options.setting.goal.source = SEQ;
}

/* A source begins in the middle of what the rows say. */
static uint32_t *sources_of(const struct speech *t, uint32_t rows)
{
    uint32_t *sources = calloc((size_t)rows * SEQ, sizeof *sources);

    ck_assert_ptr_nonnull(sources);
    for (size_t i = 0; i < (size_t)rows * SEQ; i++)
        sources[i] = (t->s.ids[i] * 7 + (uint32_t)i) % 17;
    return sources;
}

static int try_run(struct speech *t, const uint32_t *ids, const uint32_t *sources, const struct plan_tokens *rows,
                   uint32_t n_rows)
{
    const struct device_run run = {.ids = ids, .sources = sources, .rows = rows, .n_rows = n_rows, .logits = t->logits};

    return device_worker_generate(&t->worker, &run, &array_link, &t->link, &t->err);
}

static void run(struct speech *t, const uint32_t *ids, const uint32_t *sources, const struct plan_tokens *rows,
                uint32_t n_rows)
{
    ck_assert_msg(try_run(t, ids, sources, rows, n_rows) == 0, "%s", t->err.text);
}

/* Sources come with the first tokens; a row rests; then one goes on after another's tokens and with its source, and a
 * row begins anew with another source, or with the one that it has. */
#define PASSES 5
static const struct plan_tokens passes[PASSES][ROWS] = {
    {{0, 0, 1, 75}, {1, 0, 3, 1}, {2, 0, 66, 20}}, {{0, 1, 1, 0}, {1, 0, 0, 0}, {2, 66, 1, 0}},
    {{0, 2, 1, 0}, {0, 2, 2, 0}, {2, 67, 3, 0}},   {{0, 0, 5, 30}, {1, 4, 1, 0}, {2, 0, 1, 0}},
    {{0, 5, 60, 0}, {1, 5, 1, 0}, {2, 1, 1, 0}},
};

/* One row by itself through all passes: what it takes from another one, it runs. */
static void run_alone(float *out, struct speech *t, const uint32_t *ids, const uint32_t *sources, uint32_t row)
{
    speech_open_worker(t);
    for (size_t p = 0; p < PASSES; p++, out += 17) {
        struct plan_tokens tokens = passes[p][row];
        const uint32_t of = tokens.from;
        if (of != row) { /* rows have the same first tokens */
            run(t, ids + of * SEQ, sources + of * SEQ, &(struct plan_tokens){.n = 1, .source = lengths[of]}, 1);
            run(t, ids + of * SEQ, sources + of * SEQ, &(struct plan_tokens){.first = 1, .n = 1}, 1);
        }
        tokens.from = 0;
        if (tokens.n > 0)
            run(t, ids + row * SEQ, sources + row * SEQ, &tokens, 1);
        memcpy(out, t->logits, 17 * sizeof *out);
    }
    speech_close_worker(t);
}

static void check_together(struct speech *t, const uint32_t *sources, float alone[ROWS][PASSES * 17])
{
    speech_open_worker(t);
    for (size_t p = 0; p < PASSES; p++) {
        memset(t->logits, 0xff, ROWS * 17 * sizeof *t->logits);
        run(t, t->s.ids, sources, passes[p], ROWS);
        for (uint32_t row = 0; row < ROWS; row++)
            ck_assert_msg(passes[p][row].n > 0 ? setting_same_bits(t->logits + row * 17, alone[row] + p * 17, 17)
                                               : isnan(t->logits[row * 17]),
                          "pass %zu, row %u", p, row);
    }
    speech_close_worker(t);
}

/* With any part of the weights on the device. */
TEST_EACH(targets_that_advance_together_have_the_bits_of_each_alone, MODELS * 2)
{
    float alone[ROWS][PASSES * 17];
    struct speech t, one;

    set_up(&t, ROWS, _i / 2);
    set_up(&one, 1, _i / 2);
    one.options.setting.goal.precision = t.options.setting.goal.precision = _i % 2 ? NUMBER_BF16 : NUMBER_FP32;
    uint32_t *sources = sources_of(&t, ROWS);
    for (uint32_t row = 0; row < ROWS; row++)
        run_alone(alone[row], &one, t.s.ids, sources, row);
    ck_assert(!setting_same_bits(alone[0], alone[1], 17) && !setting_same_bits(alone[0], alone[0] + 17, 17));
    for (uint32_t n = 0; n <= plan_count_uploaded(&t.s.model); n += backend_get()->simulated ? 5 : 1) {
        t.options.choice.n_resident = n;
        t.options.choice.n_weight_buffers = 1 + n % 3;
        check_together(&t, sources, alone);
    }
    free(sources);
    speech_tear_down(&t);
    speech_tear_down(&one);
}

/* Through the window of a convolution, which is longer than some of these runs, and through caches. fp32; a product of
 * many rows may sum in another order than one of a single row. */
TEST_EACH(a_target_token_by_token_has_the_logits_of_one_run, MODELS)
{
    enum { STEPS = 40 };
    struct speech t, whole;

    set_up(&t, 1, _i);
    set_up(&whole, 1, _i);
    uint32_t *sources = sources_of(&t, 1);
    speech_open_worker(&t);
    speech_open_worker(&whole);
    for (uint32_t k = 0; k < STEPS; k++) {
        run(&t, t.s.ids, sources, &(struct plan_tokens){.first = k, .n = 1, .source = k ? 0 : 20}, 1);
        if (k > 4 && k % 13)
            continue;
        run(&whole, t.s.ids, sources, &(struct plan_tokens){.n = k + 1, .source = 20}, 1);
        for (int i = 0; i < 17; i++)
            ck_assert_msg(fabsf(t.logits[i] - whole.logits[i]) <= 1e-5f, "token %u: %g, not %g", k, (double)t.logits[i],
                          (double)whole.logits[i]);
    }
    speech_close_worker(&t);
    speech_close_worker(&whole);
    free(sources);
    speech_tear_down(&t);
    speech_tear_down(&whole);
}

/* The encoder's units are pulled for sources alone: in a pass of targets each other unit once, if none stays. */
TEST(a_pass_of_targets_pulls_nothing_of_the_encoder)
{
    struct speech t;

    set_up(&t, 1, T5);
    t.options.choice.n_resident = 0;
    uint32_t *sources = sources_of(&t, 1);
    uint32_t of_encoder = 0;
    speech_open_worker(&t);
    for (uint32_t l = 0; l < t.s.model.n_layers; l++)
        of_encoder += model_is_of_source(&t.s.model.layers[l]) ? t.s.model.layers[l].n_visits : 0;
    ck_assert_uint_eq(of_encoder, 3); /* two blocks and the norm */
    run(&t, t.s.ids, sources, &(struct plan_tokens){.n = 1, .source = 9}, 1);
    const unsigned before = t.link.n_pulls;
    run(&t, t.s.ids, sources, &(struct plan_tokens){.first = 1, .n = 1}, 1);
    ck_assert_uint_eq(t.link.n_pulls - before, t.s.model.n_visits - t.s.model.layers[0].n_visits - of_encoder);
    speech_close_worker(&t);
    free(sources);
    speech_tear_down(&t);
}

TEST(a_target_without_its_source_is_refused)
{
    static const struct {
        struct plan_tokens row;
        const char *why;
    } wrongs[] = {
        {{.n = 1}, "row 0 has no source"},
        {{.n = 1, .source = SEQ + 1}, "a source of 76 tokens: up to 75 are possible"},
        {{.first = 1, .n = 1, .source = 3}, "tokens 1 to 2 to run"},
    };
    struct speech t;

    set_up(&t, 1, T5);
    uint32_t *sources = sources_of(&t, 1);
    speech_open_worker(&t);
    for (int i = 0; i < COUNT(wrongs); i++) {
        ck_assert_int_eq(try_run(&t, t.s.ids, sources, &wrongs[i].row, 1), -EINVAL);
        ck_assert_holds(t.err.text, wrongs[i].why);
    }
    run(&t, t.s.ids, sources, &(struct plan_tokens){.n = 2, .source = 3}, 1);
    ck_assert_int_eq(try_run(&t, t.s.ids, sources, &(struct plan_tokens){.first = 1, .n = 1, .source = 3}, 1), -EINVAL);
    ck_assert_holds(t.err.text, "a source of 3 tokens before token 1");
    sources[2] = 17;
    ck_assert_int_eq(try_run(&t, t.s.ids, sources, &(struct plan_tokens){.n = 1, .source = 3}, 1), -EINVAL);
    ck_assert_holds(t.err.text, "token id 17 at position 2");
    ck_assert_int_eq(try_run(&t, t.s.ids, sources, &(struct plan_tokens){.n = 1}, 1), -EINVAL); /* it is gone */
    speech_close_worker(&t);
    free(sources);
    speech_tear_down(&t);
}
