/* A device that works beside the host, in any order that the step's marks allow: the CPU's bits
 * (tests/kit/device/late.h). */
#include "proto/model/gpt2.h"
#include "proto/step/generate.h"
#include "proto/step/offers.h"
#include "proto/plan/memory/units.h"
#include "tests/kit/device/backend.h"
#include "tests/kit/device/late.h"
#include "tests/kit/device/setting.h"
#include "tests/kit/test.h"
#include "device/find.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = SANITIZED ? 6 : 20, SEEDS = SANITIZED ? 2 : 4, SEQ = 12 };

/* With a head that can be cut as on CUDA, in the CPU's operations. */
static struct plan_backend in_turn, beside;

static void cut_head(uint32_t tile, bool as_on_cuda)
{
    in_turn = plan_cpu;
    in_turn.head_tile = tile;
    in_turn.head_pad = as_on_cuda ? PLAN_CUDA_HEAD_PAD : 1;
    in_turn.head_sums = as_on_cuda;
    beside = backend_beside(&in_turn);
}

static void set_up(void)
{
    cut_head(PLAN_CPU_HEAD_TILE, false);
}

SUITE_LABELS(single)
SUITE_FIXTURE(set_up, NULL)

/* A model, a minibatch and a way to train it. */
struct sample {
    struct setting s;
    struct device_worker_options options;
    uint32_t n_inbox;
};

static void open_sample(struct sample *t, uint64_t *state)
{
    const struct model_config config = setting_random_config(state);
    const uint32_t part_rows = 1 + setting_below(state, 4), parts = 1 + setting_below(state, 3);

    setting_open(&t->s, &config, parts * part_rows, 1 + setting_below(state, SEQ));
    t->options = setting_options(&t->s, part_rows, 1 + setting_below(state, part_rows));
    t->options.ops = &device_cpu;
    t->options.setting.backend = &in_turn;
    t->options.setting.goal.precision = (enum number_type)setting_below(state, 2);
    t->options.setting.goal.grad = (enum number_type)setting_below(state, 2);
    setting_choose(&t->options.choice, &t->s.model, state);
    cut_head(1 + setting_below(state, 4 * SEQ), setting_below(state, 3));
    t->n_inbox = 1 + setting_below(state, setting_below(state, 3) ? 3 : ARRAY_LINK_SLOTS);
}

static void step(struct array_link *link, const struct sample *t, struct late *late)
{
    struct device_worker_options options = t->options;

    array_link_init(link, &t->s.model, t->s.weights);
    link->n_inbox = t->n_inbox;
    if (late) {
        options.ops = &device_late;
        options.setting.backend = &beside;
    }
    setting_step(link, &t->s, &options, t->s.batch / options.setting.part_rows, setting_parts);
}

static void check_same(const struct array_link *a, const struct array_link *b, const struct setting *s)
{
    ck_assert(setting_same_bits(a->gradient, b->gradient, s->model.segment_n));
    for (int part = 0; part < ARRAY_LINK_PARTS; part++)
        ck_assert(a->losses[part] == b->losses[part]);
    ck_assert_uint_eq(a->n_pulls, b->n_pulls);
    ck_assert_uint_eq(a->n_contributions, b->n_contributions);
    ck_assert_uint_eq(a->n_completed, b->n_completed);
}

/* Whatever stays, is kept, passes through buffers or lies on the host; of many parts and microbatches or few. The host
 * waits for no computing, and for all once. */
TEST_EACH(a_step_gives_the_cpus_bits_in_every_order, CASES)
{
    uint64_t state = 88172645463325252u + (uint64_t)_i;
    struct array_link plain, ordered;
    struct sample t;
    struct late late;

    open_sample(&t, &state);
    step(&plain, &t, NULL);
    for (enum late_order order = 0; order < LATE_ORDERS; order++)
        for (uint64_t seed = 1; seed <= (order < LATE_WAITS ? 1 : SEEDS); seed++) {
            late_begin(&late, order, seed);
            step(&ordered, &t, &late);
            check_same(&plain, &ordered, &t.s);
            ck_assert_uint_eq(late.n_syncs, 1);
            ck_assert_uint_eq(late.n_finishes, 0);
            array_link_free(&ordered);
        }
    array_link_free(&plain);
    setting_close(&t.s);
}

static double evaluate(const struct sample *t, struct late *late)
{
    struct device_worker_options options = t->options;
    const struct device_evaluation e = {.version = 3, .rows = setting_rows(&t->s), .n_rows = t->s.batch};
    struct device_worker worker;
    struct ledger ledger = {0};
    struct array_link link;
    double sum;

    if (late) {
        options.ops = &device_late;
        options.setting.backend = &beside;
    }
    ck_assert_int_eq(device_worker_init(&worker, &options, &ledger, NULL), 0);
    void *stash = worker.stash = malloc(worker.plan.host_stash_bytes);
    memset(stash, 0xff, worker.plan.host_stash_bytes);
    array_link_init(&link, &t->s.model, t->s.weights);
    link.version = 3;
    link.precision = options.setting.goal.precision;
    link.n_buffers = options.choice.n_weight_buffers;
    ck_assert_int_eq(device_worker_evaluate(&worker, &e, &array_link, &link, &sum, NULL), 0);
    device_worker_free(&worker);
    array_link_free(&link);
    free(stash);
    return sum;
}

/* In groups of the share's rows, in an arena for training or for evaluation alone. */
TEST_EACH(an_evaluation_gives_the_cpus_sum_in_every_order, CASES)
{
    uint64_t state = 362436069u + (uint64_t)_i;
    struct sample t;
    struct late late;

    open_sample(&t, &state);
    t.options.setting.share_rows = t.options.setting.part_rows;
    if (_i % 2) {
        t.options.setting.goal.purpose = PLAN_EVALUATE;
        memset(t.options.choice.keeping, 0, sizeof t.options.choice.keeping);
        t.options.choice.whole_head = false, t.options.choice.n_cuts = 0;
    }
    const double plain = evaluate(&t, NULL);
    for (enum late_order order = 0; order < LATE_ORDERS; order++)
        for (uint64_t seed = 1; seed <= (order < LATE_WAITS ? 1 : SEEDS); seed++) {
            late_begin(&late, order, seed);
            ck_assert(evaluate(&t, &late) == plain);
            ck_assert_uint_eq(late.n_finishes, 0);
        }
    setting_close(&t.s);
}

/* Runs of n tokens; logits of all runs, one after the other. Owned. */
static float *generate(const struct setting *s, struct device_worker_options options, uint32_t n)
{
    const size_t vocabulary = s->model.config.vocabulary;
    struct device_worker worker;
    struct ledger ledger = {0};
    struct array_link link;
    float *all = calloc((s->seq + n - 1) / n * vocabulary, sizeof *all);
    struct plan_tokens row = {0};
    struct device_run run = {.ids = s->ids, .rows = &row, .n_rows = 1, .logits = all};

    ck_assert_ptr_nonnull(all);
    ck_assert_int_eq(device_worker_init(&worker, &options, &ledger, NULL), 0);
    array_link_init(&link, &s->model, s->weights);
    link.n_buffers = options.choice.n_weight_buffers;
    for (; row.first < s->seq; row.first += row.n, run.logits += vocabulary) {
        row.n = s->seq - row.first < n ? s->seq - row.first : n;
        ck_assert_int_eq(device_worker_generate(&worker, &run, &array_link, &link, NULL), 0);
    }
    array_link_free(&link);
    device_worker_free(&worker);
    return all;
}

/* Prompts of three tiles and tokens one by one, with all units on the device, some, or none. */
TEST_EACH(a_row_is_generated_with_the_cpus_bits_in_every_order, 9)
{
    const struct model_config config = {
        &family_gpt2,           3, 3, 12, 20, 150, 17, MODEL_GELU_NEW, true, 1e-5f, 0, GPT2_ON(scale_attention),
        GPT2_ON(scale_by_layer)};
    static const uint32_t runs[] = {150, 70};
    struct setting s;
    struct late late;

    setting_open(&s, &config, 1, 150);
    struct device_worker_options options = setting_options(&s, 1, 0);
    options.ops = &device_cpu;
    options.setting.backend = &plan_cpu;
    options.setting.goal.purpose = PLAN_GENERATE;
    options.choice.n_weight_buffers = 1 + (uint32_t)_i % 3;
    options.choice.n_resident = (uint32_t)_i / 3 * 2;
    for (int i = 0; i < 2; i++) {
        float *plain = generate(&s, options, runs[i]);
        struct device_worker_options later = options;
        later.ops = &device_late;
        later.setting.backend = &beside;
        for (enum late_order order = 0; order < LATE_ORDERS; order++) {
            late_begin(&late, order, 1 + (uint64_t)_i);
            float *ordered = generate(&s, later, runs[i]);
            ck_assert(setting_same_bits(plain, ordered, (150 + runs[i] - 1) / runs[i] * 17));
            free(ordered);
        }
        free(plain);
    }
    setting_close(&s);
}

/* Of two units with the stash on the host, where the rounded gradient leaves from the tile that the third microbatch's
 * input comes into. */
TEST(a_head_that_adds_up_in_fp32_gives_the_same_bits_in_every_order)
{
    const struct model_config config = {
        &family_gpt2, 1, 1, 4, 8, 2, 8200, MODEL_GELU_NEW, true, 1e-5f, 0, GPT2_ON(scale_attention)};
    struct sample t = {.n_inbox = 3};
    struct array_link plain, ordered;
    struct late late;

    setting_open(&t.s, &config, 4, 2);
    t.options = setting_options(&t.s, 4, 1);
    t.options.ops = &device_cpu;
    t.options.setting.backend = &in_turn;
    t.options.setting.goal.precision = NUMBER_BF16;
    cut_head(16, true);
    t.options.choice.host_stash = true;
    step(&plain, &t, NULL);
    for (enum late_order order = 0; order < LATE_ORDERS; order++)
        for (uint64_t seed = 1; seed <= (order < LATE_WAITS ? 1 : SEEDS); seed++) {
            late_begin(&late, order, seed);
            step(&ordered, &t, &late);
            check_same(&plain, &ordered, &t.s);
            array_link_free(&ordered);
        }
    array_link_free(&plain);
    setting_close(&t.s);
}

/* Units of two slices, one of them short: each slice goes to a slot of its own, of one that there is or three. */
TEST_EACH(slices_fly_side_by_side, 2)
{
    const struct model_config config = {&family_gpt2, 2,     1, 600,
                                        2400,         2,     5, MODEL_GELU_NEW,
                                        false,        1e-5f, 0, GPT2_ON(scale_attention)};
    struct sample t = {.n_inbox = 1 + 2 * (uint32_t)_i};
    struct array_link plain, ordered;
    struct late late;

    setting_open(&t.s, &config, 2, 2);
    ck_assert_uint_eq(t.s.model.units[t.s.model.visits[2]].n_slices, 2);
    t.options = setting_options(&t.s, 1, 0);
    t.options.ops = &device_cpu;
    t.options.setting.backend = &plan_cpu;
    step(&plain, &t, NULL);
    late_begin(&late, LATE_RANDOM, 7);
    step(&ordered, &t, &late);
    check_same(&plain, &ordered, &t.s);
    array_link_free(&plain);
    array_link_free(&ordered);
    setting_close(&t.s);
}

/* A device that does nothing before it must always has computing left while the host waits for losses or a
 * contribution, but for the last: that are in the sums when all is computed, but one. */
TEST_EACH(while_the_host_waits_the_device_has_work, 48)
{
    struct sample t = {.n_inbox = 1 + (uint32_t)_i % 3};
    struct array_link link;
    struct late late;

    setting_open(&t.s, setting_config(0), 6, 5);
    t.options = setting_options(&t.s, 2, 1 + (uint32_t)_i / 12 % 2);
    t.options.choice.host_stash = _i / 3 % 2;
    t.options.choice.whole_head = _i / 6 % 2;
    t.options.choice.n_sums = (uint32_t)_i / 24 * 4;
    late_begin(&late, LATE_LAZY, 1);
    step(&link, &t, &late);
    ck_assert_uint_gt(late.n_waits[DEVICE_PUSH], link.n_contributions / 2);
    ck_assert_uint_le(late.n_starved, t.options.choice.n_sums ? t.options.choice.n_sums - 1 : 1);
    array_link_free(&link);
    t.options.choice.n_weight_buffers = 1; /* and if there is no room, none */
    late_begin(&late, LATE_LAZY, 1);
    step(&link, &t, &late);
    ck_assert_uint_ge(late.n_starved, link.n_contributions - 3);
    array_link_free(&link);
    setting_close(&t.s);
}

/* At each of the link's calls in turn. That nothing is in flight then, the device checks as it is closed. */
TEST_EACH(a_step_that_is_cancelled_leaves_nothing_in_flight, 2)
{
    struct sample t = {.n_inbox = 2};
    unsigned at = 0;
    int rc;

    setting_open(&t.s, setting_config(1), 4, 5);
    t.options = setting_options(&t.s, 2, 1);
    t.options.ops = &device_late;
    t.options.setting.backend = &beside;
    t.options.choice.host_stash = _i;
    const struct device_share share = {
        .step = SETTING_STEP, .n_valid = t.s.n_valid, .n_parts = 2, .parts = setting_parts, .rows = setting_rows(&t.s)};
    do {
        struct device_worker worker;
        struct ledger ledger = {0};
        struct array_link link;
        struct late late;
        late_begin(&late, LATE_LAZY, 1);
        ck_assert_int_eq(device_worker_init(&worker, &t.options, &ledger, NULL), 0);
        void *stash = worker.stash = malloc(worker.plan.host_stash_bytes);
        array_link_init(&link, &t.s.model, t.s.weights);
        link.version = SETTING_STEP;
        link.n_inbox = t.n_inbox;
        link.cancel_at = ++at;
        rc = device_worker_step(&worker, &share, &array_link, &link, NULL);
        ck_assert_int_eq(rc, link.n_calls < at ? 0 : -ECANCELED);
        device_worker_free(&worker);
        array_link_free(&link);
        free(stash);
    } while (rc != 0);
    ck_assert_uint_gt(at, 40);
    setting_close(&t.s);
}
