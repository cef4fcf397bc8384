#include "proto/model/gpt2.h"
#include "proto/plan/memory/units.h"
#include "proto/step/step.h"

#include "proto/wire/message.h"
#include "tests/kit/device/backend.h"
#include "tests/kit/device/setting.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(on_cuda, on_cudnn)

/* The simulated device runs what queues, marks and kernels have a part in, with dropout: the last setting. */
static bool simulated(void)
{
    return backend_get()->simulated;
}

static int first_setting(void)
{
    return simulated() ? SETTING_CONFIGS - 1 : 0;
}

TEST_RANGE(each_part_is_told_its_own_loss, first_setting(), SETTING_CONFIGS)
{
    struct setting s;
    struct array_link link;
    struct reference_gpt2 ref;

    setting_open(&s, setting_config(_i), 6, 5);
    const struct device_worker_options options = setting_options(&s, 2, 0);
    setting_step_whole(&link, &s, &options);
    reference_gpt2_init(&ref, &s.model, s.weights);
    struct reference_batch batch = setting_batch(&s);
    for (uint32_t part = 0; part < 3; part++) {
        batch.first_row = 2 * part, batch.n_rows = 2;
        const double expected = reference_gpt2_loss(&ref, &batch);
        ck_assert(link.told[part] && link.finite[part]);
        ck_assert_double_eq_tol(link.losses[part], expected, 1e-6 * expected); /* fp32 forward */
    }
    ck_assert(!link.told[3]);
    reference_gpt2_free(&ref);
    array_link_free(&link);
    setting_close(&s);
}

/* The link itself checks that no more pulls are outstanding than there are buffers. The last one lends weights. */
TEST_RANGE(one_two_or_three_weight_buffers_give_the_same_bits, first_setting(), SETTING_CONFIGS)
{
    struct setting s;
    struct array_link links[3];

    setting_open(&s, setting_config(_i), 4, 7);
    struct device_worker_options options = setting_options(&s, 2, 1);
    for (uint32_t i = 0; i < 3; i++) {
        options.choice.n_weight_buffers = i + 1;
        s.lends = i == 2;
        setting_step_whole(&links[i], &s, &options);
    }
    const uint32_t visits = 2 * s.model.n_visits - 2; /* backward, the two tables that are looked up need no weights */
    ck_assert_uint_eq(links[0].n_pulls, visits - 1);  /* the topmost stays for its backward visit */
    ck_assert_uint_eq(links[1].n_pulls, visits - 2);
    ck_assert_uint_eq(links[2].n_pulls, visits - 3);
    for (uint32_t i = 1; i < 3; i++) {
        ck_assert(setting_same_bits(links[0].gradient, links[i].gradient, s.model.segment_n));
        ck_assert_mem_eq(links[0].losses, links[i].losses, sizeof links[i].losses);
    }
    for (uint32_t i = 0; i < 3; i++)
        array_link_free(&links[i]);
    setting_close(&s);
}

/* A link that counts the pulls of each unit. The array link is its first member, which is what the other calls see. */
struct pulls {
    struct array_link link;
    unsigned of_unit[32];
};

static int count_pull(void *context, uint64_t version, uint32_t unit)
{
    struct pulls *pulls = context;

    ck_assert_uint_lt(unit, COUNT(pulls->of_unit));
    pulls->of_unit[unit]++;
    return array_link.pull(&pulls->link, version, unit);
}

/* A step that drops these blocks; what it pulled. */
static void count_pulls(struct pulls *out, const struct setting *s, const struct device_worker_options *options,
                        const struct model_drop *drop)
{
    struct device_link link = array_link;
    struct device_share share = setting_share(s, 2);
    struct device_worker worker;
    struct ledger ledger = {0};

    *out = (struct pulls){0};
    link.pull = count_pull;
    share.drop = drop;
    array_link_init(&out->link, &s->model, s->weights);
    out->link.version = SETTING_STEP;
    ck_assert_int_eq(device_worker_init(&worker, options, &ledger, NULL), 0);
    ck_assert_int_eq(device_worker_step(&worker, &share, &link, out, NULL), 0);
    ck_assert_uint_eq(out->link.n_waits, out->link.n_pulls); /* each was waited for */
    device_worker_free(&worker);
    array_link_free(&out->link);
}

/* True if the unit is that of one of these blocks. */
static bool is_unit_of(const struct model *model, uint32_t unit, uint64_t blocks)
{
    bool is = false;

    for (uint32_t b = 0; b < model->config.n_layers; b++)
        is |= (blocks >> b & 1) && model->visits[model->layers[model->first_block + b].first_visit] == unit;
    return is;
}

/* Forward, backward and where a segment is computed again. The blocks that are dropped are not those that stay in a
 * buffer between forward and backward: so each other unit is pulled as often as if none were dropped. */
TEST_EACH(a_dropped_block_is_not_pulled, 6)
{
    const struct model_config config = {&family_gpt2, 4,          2,     12,    20, 9,
                                        11,           MODEL_GELU, false, 1e-5f, 0,  GPT2_ON(scale_attention)};
    static const uint64_t dropped[] = {0x1, 0x2, 0x5, 0x7}; /* block 3 is kept */
    struct setting s;
    struct pulls all;

    setting_open(&s, &config, 4, 5);
    struct device_worker_options options = setting_options(&s, 2, 1);
    options.setting.goal.drop_layers = 0.5;
    options.choice.n_weight_buffers = 1 + (uint32_t)_i % 3;
    if (_i >= 3)
        options.choice.n_cuts = 1, options.choice.cuts[0] = s.model.first_block + 2;
    count_pulls(&all, &s, &options, NULL);
    for (size_t i = 0; i < COUNT(dropped); i++) {
        const struct model_drop drop = {.blocks = {dropped[i]}};
        struct pulls some;
        count_pulls(&some, &s, &options, &drop);
        for (uint32_t unit = 0; unit < s.model.n_units; unit++)
            ck_assert_uint_eq(some.of_unit[unit], is_unit_of(&s.model, unit, dropped[i]) ? 0 : all.of_unit[unit]);
    }
    for (uint32_t unit = 0; unit < s.model.n_units; unit++)
        ck_assert_uint_gt(all.of_unit[unit], 0);
    setting_close(&s);
}

/* Of a model that is not tied, where each element is contributed once a part, and whose block of 12,000 parameters
 * comes by way of the stack in pieces; the head's sums of two parts in turn, or side by side, rounded where they lie,
 * padded or not. */
TEST_EACH(contributions_in_bf16_are_those_in_fp32_rounded, 3 * COMMON_TYPES)
{
    const struct model_config config = {&family_gpt2, 1,          2,     32,    120, 9,
                                        11,           MODEL_GELU, false, 1e-5f, 0,   GPT2_ON(scale_attention)};
    struct setting s;
    struct array_link wide, rounded;

    setting_open(&s, &config, 6, 5);
    s.precision = (enum number_type)(_i % COMMON_TYPES);
    struct device_worker_options options = setting_options(&s, 3, 2);
    struct plan_backend tight = *options.setting.backend;
    tight.rounding_bytes = 64; /* less than a sum: the next one's numbers begin within it */
    options.setting.backend = &tight;
    options.choice.whole_head = _i >= COMMON_TYPES;
    if (_i >= 2 * COMMON_TYPES)
        tight.head_tile = 4, tight.head_pad = 8;
    setting_step_whole(&wide, &s, &options);
    options.setting.goal.grad = NUMBER_BF16;
    setting_step_whole(&rounded, &s, &options);
    for (int part = 0; part < 2; part++)
        for (uint64_t i = 0; i < s.model.segment_n; i++)
            ck_assert(rounded.parts[part][i] == number_from_bf16(number_to_bf16(wide.parts[part][i])));
    array_link_free(&wide);
    array_link_free(&rounded);
    setting_close(&s);
}

/* By a power of two, of everything, and of the losses of nothing. */
TEST_EACH(a_scaled_loss_scales_gradients_alone, simulated() ? 1 : SETTING_CONFIGS)
{
    struct setting s;
    struct array_link plain, scaled;

    setting_open(&s, setting_config(_i), 4, 7);
    const struct device_worker_options options = setting_options(&s, 2, 2);
    setting_step_whole(&plain, &s, &options);
    s.loss_scale = 1024;
    setting_step_whole(&scaled, &s, &options);
    ck_assert_mem_eq(plain.losses, scaled.losses, sizeof plain.losses);
    for (uint64_t i = 0; i < s.model.segment_n; i++)
        ck_assert(scaled.gradient[i] == 1024 * plain.gradient[i]);
    array_link_free(&plain);
    array_link_free(&scaled);
    setting_close(&s);
}

/* Threads change no bit. Sums over rows are grouped otherwise in other microbatches and parts: within fp32 rounding of
 * a few additions. A library may also add up every product of few rows in another order. Each order is then as far from
 * the gradient as PyTorch's fp32 is, some 1e-6 of a tensor's norm in the fixtures: two are up to 2.5e-6 apart on an
 * H100. */
TEST_EACH(however_a_step_is_cut_its_gradient_is_the_same, simulated() ? 0 : SETTING_CONFIGS)
{
    struct setting s;
    struct array_link whole, cut;

    setting_open(&s, setting_config(_i), 6, 7);
    struct device_worker_options options = setting_options(&s, 6, 6);
    setting_step_whole(&whole, &s, &options);
    options.setting.n_threads = 2;
    setting_check_bits(&whole, &s, &options);
    options.setting.n_threads = 1;
    for (uint32_t part_rows = 6; part_rows > 0; part_rows = part_rows == 6 ? 3 : part_rows - 1)
        for (uint32_t rows = 1; rows <= part_rows && (part_rows == 6 ? rows < 6 : rows == 1); rows++) {
            options.setting.part_rows = part_rows, options.choice.microbatch = part_rows == 6 ? rows : part_rows;
            setting_step_whole(&cut, &s, &options);
            ck_assert_double_lt(setting_distance(&s.model, cut.gradient, whole.gradient),
                                backend_get()->cuda ? 4e-6 : 1e-6);
            double sum = 0;
            for (uint32_t part = 0; part < 6 / part_rows; part++)
                sum += cut.losses[part];
            ck_assert_double_eq_tol(sum, whole.losses[0], 1e-6 * sum);
            array_link_free(&cut);
        }
    array_link_free(&whole);
    setting_close(&s);
}

TEST_EACH(a_part_is_the_same_bits_whoever_does_it, simulated() ? 0 : SETTING_CONFIGS)
{
    struct setting s;
    struct array_link one, two;
    static const uint32_t left[] = {0, 2}, right[] = {1};

    setting_open(&s, setting_config(_i), 6, 5);
    struct device_worker_options options = setting_options(&s, 2, 0);
    setting_step_whole(&one, &s, &options);
    array_link_init(&two, &s.model, s.weights);
    options.setting.share_rows = 4;
    setting_step(&two, &s, &options, 2, left);
    two.n_pulls = two.n_waits = two.n_slots = two.n_contributions = 0;
    two.last_name = 0;
    options.setting.share_rows = 2;
    setting_step(&two, &s, &options, 1, right);
    for (uint32_t part = 0; part < 3; part++) {
        ck_assert(setting_same_bits(one.parts[part], two.parts[part], s.model.segment_n));
        ck_assert(one.losses[part] == two.losses[part]);
    }
    array_link_free(&one);
    array_link_free(&two);
    setting_close(&s);
}

TEST_RANGE(a_step_again_in_the_same_arena_gives_the_same_bits, first_setting(), SETTING_CONFIGS)
{
    struct setting s;
    struct array_link link[2];
    struct device_worker worker;
    struct ledger ledger = {0};
    double sum;

    setting_open(&s, setting_config(_i), 3, 7);
    const struct device_worker_options options = setting_options(&s, 3, 2);
    const struct device_share share = setting_share(&s, 1);
    const struct device_evaluation evaluation = {.version = SETTING_STEP, .rows = setting_rows(&s), .n_rows = 2};
    ck_assert_int_eq(device_worker_init(&worker, &options, &ledger, NULL), 0);
    for (int i = 0; i < 2; i++) {
        array_link_init(&link[i], &s.model, s.weights);
        link[i].version = SETTING_STEP;
        ck_assert_int_eq(device_worker_step(&worker, &share, &array_link, &link[i], NULL), 0);
        link[i].n_pulls = link[i].n_waits = 0;
        ck_assert_int_eq(device_worker_evaluate(&worker, &evaluation, &array_link, &link[i], &sum, NULL), 0);
    }
    ck_assert(setting_same_bits(link[0].gradient, link[1].gradient, s.model.segment_n));
    device_worker_free(&worker);
    array_link_free(&link[0]);
    array_link_free(&link[1]);
    setting_close(&s);
}

/* Groups of any size, with an arena for training or for evaluation alone: one sum, in row order; no dropout. */
TEST_RANGE(evaluation_sums_the_loss_without_dropout, first_setting(), SETTING_CONFIGS)
{
    struct setting s;
    struct reference_gpt2 ref;
    double sums[4];

    setting_open(&s, setting_config(_i), 6, 5);
    reference_gpt2_init(&ref, &s.model, s.weights);
    struct reference_batch batch = setting_batch(&s);
    batch.dropout = false, batch.first_row = 1, batch.n_rows = 5;
    const double expected = reference_gpt2_loss(&ref, &batch);
    for (uint32_t i = 0; i < 4; i++) {
        unsigned n_pulls;
        struct device_worker_options options = setting_options(&s, 1 + i % 3, 1);
        options.setting.share_rows = 2 * (1 + i % 3);
        options.setting.goal.purpose = i < 3 ? PLAN_TRAIN : PLAN_EVALUATE;
        const struct device_evaluation e = {.version = 9, .rows = setting_rows(&s), .first_row = 1, .n_rows = 5};
        sums[i] = setting_evaluate(&s, &options, &e, &n_pulls);
        ck_assert_uint_eq(n_pulls,
                          s.model.n_visits * ((5 + options.setting.share_rows - 1) / options.setting.share_rows));
        ck_assert_double_eq_tol(sums[i], expected, 1e-6 * expected);
        ck_assert(sums[i] == sums[0]);
    }
    reference_gpt2_free(&ref);
    setting_close(&s);
}

/* Whatever is kept and wherever the stash lies, in an arena for longer rows. */
TEST_EACH(a_step_of_shorter_rows_has_the_bits_of_a_plan_of_their_length, SETTING_CONFIGS)
{
    struct array_link link;
    struct setting s;

    setting_open(&s, setting_config(_i), 6, 5);
    struct device_worker_options options = setting_options(&s, 3, 2);
    const struct device_evaluation e = {.rows = setting_rows(&s), .n_rows = 6};
    setting_step_whole(&link, &s, &options);
    const double sum = setting_evaluate(&s, &options, &e, NULL);
    options.setting.goal.seq = 9;
    setting_check_bits(&link, &s, &options);
    ck_assert(setting_evaluate(&s, &options, &e, NULL) == sum);
    options.choice.keeping[0] = (struct plan_keeping){1, MODEL_KEEPS_ALL, 0};
    setting_check_bits(&link, &s, &options);
    options.choice.keeping[0] = (struct plan_keeping){0}, options.choice.host_stash = true;
    setting_check_bits(&link, &s, &options);
    array_link_free(&link);
    setting_close(&s);
}

/* 4,500 tokens pass between host and device in several pieces; in groups of 50 rows in one. */
TEST_IF(many_rows_at_once_are_as_a_few_at_a_time, !simulated())
{
    struct setting s;
    double sums[2];

    setting_open(&s, setting_config(1), 500, 9);
    const struct device_evaluation e = {.version = SETTING_STEP, .rows = setting_rows(&s), .n_rows = 500};
    for (int i = 0; i < 2; i++) {
        struct device_worker_options options = setting_options(&s, 50, 50);
        options.setting.share_rows = i ? 50 : 500;
        sums[i] = setting_evaluate(&s, &options, &e, NULL);
    }
    ck_assert(sums[0] == sums[1]);
    setting_close(&s);
}

TEST_IF(tokens_outside_the_vocabulary_are_refused_by_place, !simulated())
{
    struct setting s;
    struct device_worker worker;
    struct ledger ledger = {0};
    struct array_link link;
    struct error err;

    setting_open(&s, setting_config(0), 4, 7);
    const struct device_worker_options options = setting_options(&s, 2, 0);
    struct device_share share = setting_share(&s, 1);
    share.parts = setting_parts + 1;
    ck_assert_int_eq(device_worker_init(&worker, &options, &ledger, NULL), 0);
    array_link_init(&link, &s.model, s.weights);
    link.version = SETTING_STEP;

    s.ids[3 * 7 + 2] = 17; /* row 3 is of part 1 */
    ck_assert_int_eq(device_worker_step(&worker, &share, &array_link, &link, &err), -EINVAL);
    ck_assert_holds(err.text, "token id 17 in row 3, position 2");
    s.ids[3 * 7 + 2] = PLAN_NO_LABEL;
    ck_assert_int_eq(device_worker_step(&worker, &share, &array_link, &link, &err), -EINVAL);
    s.ids[3 * 7 + 2] = 16;
    s.labels[2 * 7] = 20;
    ck_assert_int_eq(device_worker_step(&worker, &share, &array_link, &link, &err), -EINVAL);
    ck_assert_holds(err.text, "label 20 in row 2, position 0");
    ck_assert_uint_eq(link.n_calls, 0);
    share.parts = setting_parts; /* rows of others are not looked at */
    ck_assert_int_eq(device_worker_step(&worker, &share, &array_link, &link, &err), 0);
    device_worker_free(&worker);
    array_link_free(&link);
    setting_close(&s);
}

static void spoil(void *context)
{
    struct setting *s = context;

    memset(s->ids, 0xff, (size_t)s->batch * s->seq * sizeof *s->ids);
    memset(s->labels, 0x77, (size_t)s->batch * s->seq * sizeof *s->labels);
}

TEST_IF(data_that_changes_during_the_step_changes_nothing, !simulated())
{
    struct setting s;
    struct array_link calm, hostile;

    setting_open(&s, setting_config(0), 4, 7);
    const struct device_worker_options options = setting_options(&s, 2, 0);
    setting_step_whole(&calm, &s, &options);
    array_link_init(&hostile, &s.model, s.weights);
    hostile.on_first_pull = spoil;
    hostile.context = &s;
    setting_step(&hostile, &s, &options, 2, setting_parts);
    ck_assert(setting_same_bits(calm.gradient, hostile.gradient, s.model.segment_n));
    array_link_free(&calm);
    array_link_free(&hostile);
    setting_close(&s);
}

TEST_IF(shares_that_were_not_planned_for_are_refused, !simulated())
{
    struct setting s;
    struct device_worker worker;
    struct ledger ledger = {0};
    struct array_link link;
    struct error err;
    static const uint32_t twice[] = {1, 1}, beyond[] = {0, 3}, down[] = {1, 0}, three[] = {0, 1, 2};
    const struct {
        uint32_t n;
        const uint32_t *parts;
    } cases[] = {{2, twice}, {2, beyond}, {2, down}, {3, three}};

    setting_open(&s, setting_config(0), 6, 5);
    struct device_worker_options options = setting_options(&s, 2, 0);
    options.setting.share_rows = 4;
    ck_assert_int_eq(device_worker_init(&worker, &options, &ledger, NULL), 0);
    array_link_init(&link, &s.model, s.weights);
    struct device_share share = setting_share(&s, 0);
    ck_assert_int_eq(device_worker_step(&worker, &share, &array_link, &link, &err), 0); /* an empty one is done */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        share.n_parts = cases[i].n, share.parts = cases[i].parts;
        err.text[0] = 0;
        ck_assert_int_eq(device_worker_step(&worker, &share, &array_link, &link, &err), -EINVAL);
        ck_assert(err.text[0] != 0);
    }
    const struct device_evaluation e = {.rows = setting_rows(&s), .first_row = 3, .n_rows = 4};
    double sum;
    ck_assert_int_eq(device_worker_evaluate(&worker, &e, &array_link, &link, &sum, &err), -EINVAL);
    ck_assert_uint_eq(link.n_calls, 0);
    device_worker_free(&worker);
    array_link_free(&link);
    setting_close(&s);
}

/* Of a regression and of a model of three labels, on top of what a minibatch of theirs is. */
static const struct {
    uint32_t n_labels, n_segments;
    struct plan_row row;
    uint32_t label;
    const char *sentence;
} strange[] = {
    {3, 2, {0, 0}, 0, "row 1 has 0 tokens"},
    {3, 2, {6, 2}, 0, "row 1 has 6 tokens"},
    {3, 2, {UINT32_MAX, 2}, 0, "row 1 has 4294967295 tokens"},
    {3, 2, {4, 5}, 0, "row 1 has 4 tokens, and its second segment begins at 5"},
    {3, 1, {4, 2}, 0, "row 1 has a second segment"},
    {3, 2, {4, 4}, 3, "label 3 in row 1, position 0"},
    {1, 2, {4, 4}, 0x7F800000, "label in row 1, position 0 "},
    {1, 2, {4, 4}, 0x7FC00000, "label in row 1, position 0 "},
    {3, 2, {5, 0}, 2, NULL},
    {1, 2, {1, 1}, 0xFF7FFFFF, NULL},
    {3, 1, {4, 4}, PLAN_NO_LABEL, NULL},
};

TEST_EACH(a_row_that_cannot_be_is_refused_by_its_number, COUNT(strange))
{
    const struct model_config config = setting_classifier(strange[_i].n_labels, strange[_i].n_segments);
    struct device_worker worker;
    struct ledger ledger = {0};
    struct array_link link;
    struct setting s;
    struct error err = {""};

    setting_open(&s, &config, 3, 5);
    const struct device_worker_options options = setting_options(&s, 3, 2);
    const struct device_share share = setting_share(&s, 1);
    s.rows[1] = strange[_i].row;
    s.labels[1 * 5] = strange[_i].label;
    ck_assert_int_eq(device_worker_init(&worker, &options, &ledger, NULL), 0);
    array_link_init(&link, &s.model, s.weights);
    link.version = SETTING_STEP;
    ck_assert_int_eq(device_worker_step(&worker, &share, &array_link, &link, &err), strange[_i].sentence ? -EINVAL : 0);
    ck_assert_holds(err.text, strange[_i].sentence ? strange[_i].sentence : "");
    device_worker_free(&worker);
    array_link_free(&link);
    setting_close(&s);
}

TEST(rows_longer_than_the_plan_s_or_of_no_tokens_are_refused)
{
    const struct model_config config = setting_classifier(2, 2);
    struct device_worker worker;
    struct ledger ledger = {0};
    struct array_link link;
    struct setting s;
    struct error err = {""};
    double sum;

    setting_open(&s, &config, 3, 5);
    const struct device_worker_options options = setting_options(&s, 3, 2);
    struct device_share share = setting_share(&s, 1);
    struct device_evaluation e = {.rows = setting_rows(&s), .n_rows = 3};
    ck_assert_int_eq(device_worker_init(&worker, &options, &ledger, NULL), 0);
    array_link_init(&link, &s.model, s.weights);
    share.rows.n_tokens = 6;
    ck_assert_int_eq(device_worker_step(&worker, &share, &array_link, &link, &err), -EINVAL);
    ck_assert_holds(err.text, "rows of 6 tokens", "1 to 5");
    share.rows.n_tokens = e.rows.n_tokens = 0;
    ck_assert_int_eq(device_worker_step(&worker, &share, &array_link, &link, &err), -EINVAL);
    ck_assert_int_eq(device_worker_evaluate(&worker, &e, &array_link, &link, &sum, &err), -EINVAL);
    ck_assert_holds(err.text, "rows of 0 tokens", "1 to 5");
    ck_assert_uint_eq(link.n_calls, 0);
    device_worker_free(&worker);
    array_link_free(&link);
    setting_close(&s);
}

/* At each of its calls in turn; the link checks that none follows. */
TEST_IF(a_link_that_ends_ends_the_step, !simulated())
{
    struct setting s;
    struct device_worker worker;
    struct ledger ledger = {0};
    struct array_link link;
    unsigned at = 0;
    int rc;

    setting_open(&s, setting_config(1), 4, 5);
    const struct device_worker_options options = setting_options(&s, 2, 0);
    const struct device_share share = setting_share(&s, 2);
    ck_assert_int_eq(device_worker_init(&worker, &options, &ledger, NULL), 0);
    do {
        array_link_init(&link, &s.model, s.weights);
        link.version = SETTING_STEP;
        link.cancel_at = ++at;
        rc = device_worker_step(&worker, &share, &array_link, &link, NULL);
        ck_assert_int_eq(rc, link.n_calls < at ? 0 : -ECANCELED);
        array_link_free(&link);
    } while (rc != 0);
    /* 10 pulls but the 2 that stay and the 2 that backward looks nothing up in, and as many waits; 2 losses; 5 visits
     * of 2 parts: slot, slice, done. */
    ck_assert_uint_eq(at - 1, 2 * (2 * s.model.n_visits - 4) + 2 + s.model.n_visits * 2 * 3);
    device_worker_free(&worker);
    setting_close(&s);
}

/* Untied, so that the embedding of the last token spoils its own row alone. */
TEST(a_loss_that_is_not_finite_is_told)
{
    struct setting s;
    struct array_link link;
    const size_t last = 4 * 7 - 1;

    setting_open(&s, setting_config(1), 4, 7);
    for (size_t i = 0; i < last; i++)
        s.ids[i] %= 10;
    s.ids[last] = 10;
    s.labels[last] = 3;
    s.weights[10 * s.model.config.width] = INFINITY;
    const struct device_worker_options options = setting_options(&s, 2, 0);
    setting_step_whole(&link, &s, &options);
    ck_assert(link.told[0] && link.finite[0]);
    ck_assert(link.told[1] && !link.finite[1]);
    array_link_free(&link);
    setting_close(&s);
}

TEST(padding_contributes_nothing)
{
    struct setting s;
    struct array_link link;

    setting_open(&s, setting_config(0), 2, 5);
    for (int i = 0; i < 10; i++)
        s.labels[i] = PLAN_NO_LABEL;
    s.n_valid = 0;
    const struct device_worker_options options = setting_options(&s, 2, 0);
    setting_step_whole(&link, &s, &options);
    ck_assert(link.losses[0] == 0);
    for (uint64_t i = 0; i < s.model.segment_n; i++)
        ck_assert(link.gradient[i] == 0);
    array_link_free(&link);
    setting_close(&s);
}

static struct counted {
    unsigned n_matmuls, n_attentions;
} counted;

static void count_matmul(struct device *dev, const struct device_matmul *op)
{
    counted.n_matmuls++;
    backend_get()->ops->matmul(dev, op);
}

static void count_attention(struct device *dev, const struct device_attention *op)
{
    counted.n_attentions++;
    backend_get()->ops->attention(dev, op);
}

static struct counted count_step(const struct setting *s, struct device_worker_options options)
{
    struct device_ops counting = *backend_get()->ops;
    struct array_link link;

    counting.matmul = count_matmul;
    counting.attention = count_attention;
    options.ops = &counting;
    counted = (struct counted){0, 0};
    setting_step_whole(&link, s, &options);
    array_link_free(&link);
    return counted;
}

static uint64_t uploaded;

static void count_upload(struct device *dev, void *to, const void *from, size_t bytes)
{
    uploaded += bytes;
    backend_get()->ops->upload(dev, to, from, bytes);
}

/* The next step's weights: those that are trained have moved. If `gone`, those that stay on the device cannot be read
 * any more. Returns their bytes. */
static uint64_t move_weights(float *to, const struct setting *s, const struct plan *plan, bool gone)
{
    uint64_t bytes = 0;

    for (uint32_t u = 0; u < s->model.n_units; u++) {
        const struct model_unit *unit = &s->model.units[u];
        const bool stays = plan_stays(plan, &s->model, u);
        for (uint64_t i = 0; i < unit->n; i++) {
            const float weight = s->weights[unit->offset + i];
            to[unit->offset + i] = i < unit->n_trained ? weight * 0.875f : stays && gone ? NAN : weight;
        }
        bytes += stays ? (unit->n - unit->n_trained) * sizeof(float) : 0;
    }
    return bytes;
}

static void step_of(struct array_link *link, struct device_worker *worker, const struct setting *s,
                    const float *weights)
{
    struct device_share share = setting_share(s, 2);
    struct error err = {""};

    array_link_init(link, &s->model, weights);
    link->version = SETTING_STEP;
    link->n_buffers = worker->plan.choice.n_weight_buffers;
    share.parts = (const uint32_t[]){0, 1};
    uploaded = 0;
    ck_assert_msg(device_worker_step(worker, &share, &array_link, link, &err) == 0, "%s", err.text);
}

/* From a worker's second step on. With one buffer that is lent, too, as a resident unit is read before the next. */
TEST(what_is_frozen_of_resident_units_is_uploaded_once)
{
    static const char frozen[] = "h.0.*,h.*.mlp.*,ln_f.*";
    struct setting s;
    struct error err = {""};

    setting_open(&s, setting_config(0), 4, 5);
    ck_assert_msg(model_freeze(&s.model, frozen, model_base_of(FORM_VALUES, NUMBER_FP32), &err) == 0, "%s", err.text);
    float *moved = calloc(s.model.segment_n, sizeof *moved), *left = calloc(s.model.segment_n, sizeof *left);
    struct device_worker_options options = setting_options(&s, 2, 1);
    struct device_ops counting = *backend_get()->ops;
    counting.upload = count_upload;
    options.ops = &counting;
    options.freeze = frozen;
    for (uint32_t n = 0; n <= plan_count_uploaded(&s.model); n++) {
        struct array_link first, second, fresh;
        struct device_worker worker, other;
        struct ledger ledger = {0};
        options.choice.n_resident = n;
        ck_assert_msg(device_worker_init(&worker, &options, &ledger, &err) == 0, "%s", err.text);
        step_of(&first, &worker, &s, s.weights);
        const uint64_t all = uploaded, staying = move_weights(left, &s, &worker.plan, true);
        move_weights(moved, &s, &worker.plan, false);
        step_of(&second, &worker, &s, left);
        ck_assert_uint_eq(all - uploaded, staying);
        ck_assert_int_eq(staying > 0, n > 1);
        device_worker_free(&worker);
        ck_assert_msg(device_worker_init(&other, &options, &ledger, &err) == 0, "%s", err.text);
        step_of(&fresh, &other, &s, moved);
        ck_assert(setting_same_bits(second.gradient, fresh.gradient, s.model.segment_n));
        ck_assert_mem_eq(second.losses, fresh.losses, sizeof fresh.losses);
        device_worker_free(&other);
        array_link_free(&first), array_link_free(&second), array_link_free(&fresh);
    }
    free(moved), free(left);
    setting_close(&s);
}

/* A block's forward has 4 products and an attention, its backward 8; computed again it has all but the last product of
 * forward. A head has 3 products for each of its units, and a fourth only where not all of them are there at once: here
 * of 2 units, in 2 parts of 2 microbatches. */
TEST_IF(what_is_kept_is_not_computed_again_and_a_whole_head_never, !simulated())
{
    const struct model_config config = {&family_gpt2, 3,          2,    16,    24, 9,
                                        9000,         MODEL_GELU, true, 1e-5f, 0,  GPT2_ON(scale_attention)};
    struct setting s;

    setting_open(&s, &config, 8, 5);
    struct device_worker_options options = setting_options(&s, 4, 2);
    for (unsigned whole = 0; whole <= 1; whole++)
        for (unsigned kept = 0; kept <= 3; kept++) {
            options.choice.whole_head = whole;
            options.choice.keeping[0] = (struct plan_keeping){kept, kept ? MODEL_KEEPS_ALL : MODEL_KEEPS_NOTHING, 0};
            const struct counted n = count_step(&s, options);
            ck_assert_uint_eq(n.n_matmuls, 4 * (3 * 12 + (3 - kept) * 3 + 2 * (whole ? 3u : 4u)));
            ck_assert_uint_eq(n.n_attentions, 4 * (3 + 3 - kept));
        }
    setting_close(&s);
}

/* That of one unit, with the least of everything, where a part is a worker's whole share. */
TEST_IF(a_head_of_one_unit_is_computed_once_without_being_asked, !simulated())
{
    struct setting s;

    setting_open(&s, setting_config(0), 4, 5);
    struct device_worker_options options = setting_options(&s, 4, 1);
    options.choice.n_weight_buffers = 1;
    for (int host = 0; host <= 1; host++) {
        options.choice.host_stash = host;
        ck_assert_uint_eq(count_step(&s, options).n_matmuls, 4 * (2 * 15 + 3));
    }
    setting_close(&s);
}
