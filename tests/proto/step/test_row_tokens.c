/* A microbatch computes no more tokens of its rows than the longest of them has: the bits of a minibatch that was never
 * padded further. */
#include "proto/model/model.h"
#include "tests/kit/device/backend.h"
#include "tests/kit/device/setting.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 6, PART = 2, LONG = 24, CLASSIFIER = SETTING_CONFIGS, TARGETS, KINDS };

static const char targets[] =
    "{\"model_type\": \"dynamic_conv\", \"d_model\": 8, \"num_heads\": 2, \"ffn_dim\": 12, \"encoder_layers\": 1, "
    "\"decoder_layers\": 1, \"encoder_kernel_sizes\": [3], \"decoder_kernel_sizes\": [3], \"vocab_size\": 31, "
    "\"decoder_start_token_id\": 0, \"eos_token_id\": 1, \"dropout\": 0.2}";

static struct model_config config_of(int kind)
{
    struct model_config config =
        kind == CLASSIFIER ? setting_classifier(3, 2) : *setting_config(kind % SETTING_CONFIGS);
    struct error err = {""};

    if (kind == TARGETS) {
        ck_assert_msg(model_config_parse(&config, targets, strlen(targets), &err) == 0, "%s", err.text);
        ck_assert_int_eq(model_divide_rows(&config, LONG / 2, LONG, &err), 0);
    } else {
        config.n_positions = LONG;
    }
    return config;
}

/* Tokens of a short row: of a source and its target half each. */
static uint32_t length_of(int kind)
{
    return kind == TARGETS ? 16 : 8;
}

/* Where token t of a row of n tokens is in one of LONG. */
static uint32_t place_of(int kind, uint32_t t, uint32_t n)
{
    return kind == TARGETS && t >= n / 2 ? t - n / 2 + LONG / 2 : t;
}

/* Row `row` has n tokens, of which the last one counts. */
static void shorten(struct setting *s, int kind, uint32_t row, uint32_t n)
{
    uint32_t *const labels = s->labels + (size_t)row * LONG;
    bool keeps[LONG] = {false};

    for (uint32_t t = 0; t < n; t++)
        keeps[place_of(kind, t, n)] = kind != TARGETS || t >= n / 2;
    for (uint32_t t = 0; kind != CLASSIFIER && t < LONG; t++)
        labels[t] = !keeps[t] ? PLAN_NO_LABEL : (row + t) % 7;
    if (kind == TARGETS) /* targets are the longer ones */
        s->rows[row] = (struct plan_row){n / 4, n / 4};
    else if (s->rows)
        s->rows[row] = (struct plan_row){n, row % 2 ? n : n / 2};
}

static void open_long(struct setting *s, const struct model_config *config, int kind)
{
    setting_open(s, config, ROWS, LONG);
    if (kind == TARGETS)
        s->rows = calloc(ROWS, sizeof *s->rows);
    for (uint32_t row = 0; row < ROWS; row++)
        shorten(s, kind, row, row < ROWS - 1 ? length_of(kind) : LONG); /* the last row is long */
}

/* The same rows, cut. */
static void open_short(struct setting *s, const struct model_config *config, int kind, const struct setting *from)
{
    const uint32_t n = length_of(kind);

    setting_open(s, config, ROWS, n);
    memcpy(s->weights, from->weights, s->model.segment_n * sizeof *s->weights);
    s->n_valid = from->n_valid;
    if (kind == TARGETS)
        s->rows = calloc(ROWS, sizeof *s->rows);
    if (s->rows)
        memcpy(s->rows, from->rows, ROWS * sizeof *s->rows);
    for (uint32_t i = 0; i < ROWS * n; i++) {
        const uint32_t at = i / n * LONG + place_of(kind, i % n, n);
        s->ids[i] = from->ids[at], s->labels[i] = from->labels[at];
    }
}

static struct device_worker_options options_of(const struct setting *s)
{
    struct device_worker_options options = setting_options(s, PART, PART);

    options.setting.goal.seq = LONG;
    options.setting.goal.source = s->model.config.source;
    options.setting.goal.row_tokens[0] = 1; /* rows differ */
    return options;
}

TEST_EACH(rows_that_are_padded_with_longer_ones_have_the_bits_of_their_own_length, KINDS)
{
    const struct model_config config = config_of(_i);
    struct array_link padded, cut;
    struct setting s, own;

    open_long(&s, &config, _i);
    open_short(&own, &config, _i, &s);
    for (int way = 0; way < 3; way++) {
        struct device_worker_options options = options_of(&s);
        options.choice.keeping[0] = (struct plan_keeping){way == 1, way == 1 ? MODEL_KEEPS_ALL : 0, 0};
        options.choice.host_stash = way == 2;
        array_link_init(&padded, &s.model, s.weights);
        array_link_init(&cut, &own.model, own.weights);
        setting_step(&padded, &s, &options, ROWS / PART - 1, setting_parts); /* all but the long row's part */
        setting_step(&cut, &own, &options, ROWS / PART - 1, setting_parts);
        ck_assert(setting_same_bits(padded.gradient, cut.gradient, s.model.segment_n));
        ck_assert_mem_eq(padded.losses, cut.losses, sizeof cut.losses);
        array_link_free(&padded), array_link_free(&cut);
    }
    setting_close(&s), setting_close(&own);
}

static size_t computed; /* rows of products */

static void count_matmul(struct device *dev, const struct device_matmul *op)
{
    computed += op->transpose_a ? 0 : op->m;
    backend_get()->ops->matmul(dev, op);
}

static size_t count(const struct setting *s, const struct device_worker_options *options, uint32_t n)
{
    struct device_ops ops = *backend_get()->ops;
    struct device_worker_options counting = *options;
    struct array_link link;

    ops.matmul = count_matmul;
    counting.ops = &ops;
    computed = 0;
    array_link_init(&link, &s->model, s->weights);
    setting_step(&link, s, &counting, 1, (const uint32_t[]){n});
    array_link_free(&link);
    return computed;
}

/* The last part has a long row, the first one none: products have as many rows as there are tokens, or predictions. */
TEST_EACH(a_microbatch_of_short_rows_computes_short_rows, KINDS)
{
    const struct model_config config = config_of(_i);
    struct setting s;

    open_long(&s, &config, _i);
    const struct device_worker_options options = options_of(&s);
    const size_t few = count(&s, &options, 0), many = count(&s, &options, ROWS / PART - 1);
    if (_i == CLASSIFIER) /* which computes some of each row alone */
        ck_assert_uint_lt(few, many / 2);
    else
        ck_assert_uint_eq(few * LONG, many * length_of(_i));
    setting_close(&s);
}
