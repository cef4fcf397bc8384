/* How the head's products are cut, by the backend's constants alone: the cut changes what is rounded, not what is
 * computed, and what is on the device, which changes neither. The simulated device runs what its kernels have a part
 * in: units that are padded, and sums where they lie. */
#include "proto/model/family.h"
#include "proto/model/gpt2.h"
#include "proto/plan/memory/layers.h"
#include "proto/plan/memory/units.h"
#include "tests/kit/device/backend.h"
#include "tests/kit/device/extents.h"
#include "tests/kit/device/setting.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(slow, on_cuda)

/* Of two units, 4,102 and 4,101 rows, of which padding makes 4,104 each; 300 tokens. */
enum { WIDTH = 8, VOCABULARY = 8203, LOWER = 4102, UPPER = 4101, PADDED = 4104, ROWS = 10, SEQ = 30, MOST = 64 };

static const struct model_config config = {&family_gpt2, 1,     1,          WIDTH,
                                           12,           SEQ,   VOCABULARY, MODEL_GELU_NEW,
                                           true,         1e-5f, 0,          GPT2_ON(scale_attention)};

/* Products that have the vocabulary on one side, in order. */
static struct product {
    size_t m, n, k;
} products[MOST];
static unsigned n_products, n_rounded; /* onto what was rounded before */
static size_t cleared;                 /* bytes */

/* A backend's constants. */
static const struct cut {
    uint32_t tile, pad;
    bool sums;
    uint32_t n_parts;
} as_on_cpu = {PLAN_CPU_HEAD_TILE, 1, false, 1}, as_on_cuda = {PLAN_CUDA_HEAD_TILE, PLAN_CUDA_HEAD_PAD, true, 1},
  in_tiles = {200, PLAN_CUDA_HEAD_PAD, true, 1};

static void record_matmul(struct device *dev, const struct device_matmul *op)
{
    if (op->m > 4000 || op->n > 4000 || op->k > 4000) {
        ck_assert_uint_lt(n_products, MOST);
        products[n_products++] = (struct product){op->m, op->n, op->k};
        n_rounded += !op->wide && op->beta > 0;
    }
    device_extents.matmul(dev, op);
}

static void record_zero(struct device *dev, const struct device_zero *op)
{
    cleared += op->bytes;
    device_extents.zero(dev, op);
}

/* One step, in the plan's bytes to the last. */
static void step(struct array_link *link, const struct setting *s, const struct plan_choice *choice,
                 enum number_type precision, struct cut cut)
{
    const uint32_t part_rows = ROWS / cut.n_parts;
    struct device_worker_options options = setting_options(s, part_rows, part_rows);
    struct plan_backend cutting = *options.setting.backend; /* in the CPU's operations, too */
    struct device_ops recording;
    struct extents extents;
    struct plan plan;

    extents_begin(&extents);
    recording = device_extents;
    recording.matmul = record_matmul;
    recording.zero = record_zero;
    n_products = n_rounded = 0;
    cleared = 0;
    cutting.head_tile = cut.tile, cutting.head_pad = cut.pad, cutting.head_sums = cut.sums;
    options.setting.backend = &cutting;
    options.ops = &recording;
    options.choice = *choice;
    options.choice.microbatch = choice->microbatch ? choice->microbatch : part_rows;
    options.setting.goal.precision = precision;
    setting_step_whole(link, s, &options);
    plan_lay_out(&plan, &s->model, &options.setting, &options.choice);
    ck_assert_uint_eq(extents.n_outside, 0);
    ck_assert_uint_eq(extents.high_water, plan.arena_bytes);
}

static void check_products(const struct product *want, unsigned n)
{
    ck_assert_uint_eq(n_products, n);
    for (unsigned i = 0; i < n; i++)
        ck_assert_msg(memcmp(&products[i], &want[i], sizeof *want) == 0, "product %u is (%zu, %zu, %zu)", i,
                      products[i].m, products[i].n, products[i].k);
}

/* By hand: 300 tokens are tiles of 256 and 44. */
TEST_IF(a_tile_on_the_cpu_is_of_256_tokens, !backend_get()->simulated)
{
    static const struct plan_choice choice = {.n_weight_buffers = 2, .whole_head = true};
    static const size_t tiles[] = {256, 44};
    struct product want[12];
    struct array_link link;
    struct setting s;

    setting_open(&s, &config, ROWS, SEQ);
    step(&link, &s, &choice, NUMBER_FP32, as_on_cpu);
    for (unsigned i = 0; i < 2; i++) {
        const size_t m = tiles[i];
        const struct product tile[] = {{m, LOWER, WIDTH}, {m, UPPER, WIDTH}, {m, WIDTH, UPPER},
                                       {UPPER, WIDTH, m}, {m, WIDTH, LOWER}, {LOWER, WIDTH, m}};
        memcpy(want + 6 * i, tile, sizeof tile);
    }
    check_products(want, 12);
    ck_assert_uint_eq(n_rounded, 2);
    array_link_free(&link);
    setting_close(&s);
}

/* The same 300 tokens, in tiles of 200 and then in one, of padded units: what they add up is rounded once. */
TEST(a_tile_on_cuda_is_as_large_as_can_be)
{
    static const struct plan_choice choice = {.n_weight_buffers = 2, .whole_head = true};
    static const size_t tiles[] = {200, 100, 300};
    struct product want[18];
    struct array_link link;
    struct setting s;

    for (unsigned i = 0; i < 3; i++) {
        const size_t m = tiles[i];
        const struct product tile[] = {{m, PADDED, WIDTH}, {m, PADDED, WIDTH}, {m, WIDTH, PADDED},
                                       {PADDED, WIDTH, m}, {m, WIDTH, PADDED}, {PADDED, WIDTH, m}};
        memcpy(want + 6 * i, tile, sizeof tile);
    }
    setting_open(&s, &config, ROWS, SEQ);
    step(&link, &s, &choice, NUMBER_BF16, in_tiles);
    check_products(want, 12);
    ck_assert_uint_eq(n_rounded, 0);
    array_link_free(&link);
    step(&link, &s, &choice, NUMBER_BF16, as_on_cuda);
    check_products(want + 12, 6);
    ck_assert_uint_eq(n_rounded, 0);
    array_link_free(&link);
    setting_close(&s);
}

/* In microbatches of 120, 120 and 60 tokens and two units: 5 tiles of at most 100, whose logits are computed twice.
 * What they add up of the input's gradient is rounded once, in the place where it lies, or on its way to the host. */
TEST_EACH(units_one_by_one_add_up_the_gradient_in_fp32, 2)
{
    const struct plan_choice on_device = {.microbatch = 4, .n_weight_buffers = 1 + (uint32_t)_i};
    const struct cut cut = {100, PLAN_CUDA_HEAD_PAD, true, 1};
    struct plan_choice on_host = on_device;
    struct array_link device, stashed;
    struct setting s;

    on_host.host_stash = true;
    setting_open(&s, &config, ROWS, SEQ);
    step(&device, &s, &on_device, NUMBER_BF16, cut);
    ck_assert_uint_eq(n_products, 5 * 2 + 5 * 2 * 3);
    ck_assert_uint_eq(n_rounded, 0);
    step(&stashed, &s, &on_host, NUMBER_BF16, cut);
    ck_assert_uint_eq(n_rounded, 0);
    ck_assert(setting_same_bits(device.gradient, stashed.gradient, s.model.segment_n));
    array_link_free(&device), array_link_free(&stashed);
    setting_close(&s);
}

/* What a memory decides: one pass over both units or two, boundaries here or there, in microbatches of which the last
 * is the smallest. */
static const struct plan_choice places[] = {
    {.microbatch = 4, .n_weight_buffers = 3, .whole_head = true},
    {.microbatch = 4, .n_weight_buffers = 1},
    {.microbatch = 4, .n_weight_buffers = 2, .n_resident = 1},
    {.microbatch = 4, .n_weight_buffers = 2, .host_stash = true},
    {.microbatch = 4, .n_weight_buffers = 2, .host_stash = true, .whole_head = true},
};
enum { N_PLACES = sizeof places / sizeof *places };

/* On the CPU test_boundaries.c draws places and cuts; the simulated device has fp32 below, in the first two places. */
TEST_RANGE(no_place_of_the_head_changes_a_bit, backend_get()->simulated ? NUMBER_BF16 : 0,
           backend_get()->cuda ? COMMON_TYPES : 0)
{
    const enum number_type precision = (enum number_type)_i;
    struct array_link first, other;
    struct setting s;

    setting_open(&s, &config, ROWS, SEQ);
    step(&first, &s, &places[0], precision, in_tiles);
    for (int i = 1; i < N_PLACES; i++) {
        step(&other, &s, &places[i], precision, in_tiles);
        ck_assert_msg(setting_same_bits(first.gradient, other.gradient, s.model.segment_n), "place %d", i);
        ck_assert(first.losses[0] == other.losses[0]);
        array_link_free(&other);
    }
    array_link_free(&first);
    setting_close(&s);
}

static size_t count_cleared(const struct setting *s, const struct plan_choice *choice, struct cut cut)
{
    struct array_link link;

    step(&link, s, choice, NUMBER_FP32, cut);
    array_link_free(&link);
    return cleared;
}

/* By hand: 2 and 3 rows pad the units. Each comes twice into one buffer, but that forward's last is backward's
 * first. */
TEST_IF(what_pads_a_unit_is_cleared_where_others_were, !backend_get()->simulated)
{
    static const struct {
        struct plan_choice choice;
        size_t rows;
    } cases[] = {{{.n_weight_buffers = 1}, 2 + 3 + 2},
                 {{.n_weight_buffers = 1, .n_resident = 1}, 2},
                 {{.n_weight_buffers = 1, .whole_head = true}, 0}};
    struct setting s;

    setting_open(&s, &config, ROWS, SEQ);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ck_assert_uint_eq(count_cleared(&s, &cases[i].choice, as_on_cuda) -
                              count_cleared(&s, &cases[i].choice, as_on_cpu),
                          cases[i].rows * WIDTH * sizeof(float));
    setting_close(&s);
}

static float cap_of(const struct model_config *c)
{
    (void)c;
    return 2;
}

/* With capped logits, which are capped where they are read: forward, and by their gradient where they lie. */
TEST_EACH(no_place_of_a_capped_head_changes_a_bit, COMMON_TYPES)
{
    const enum number_type precision = (enum number_type)_i;
    struct family capping = family_gpt2;
    struct model_config capped = config;
    struct array_link plain, first, other;
    struct setting s;

    setting_open(&s, &config, ROWS, SEQ);
    step(&plain, &s, &places[0], precision, in_tiles);
    setting_close(&s);
    capping.logit_cap = cap_of, capped.family = &capping;
    setting_open(&s, &capped, ROWS, SEQ);
    step(&first, &s, &places[0], precision, in_tiles);
    ck_assert(first.losses[0] != plain.losses[0]);
    step(&other, &s, &places[1], precision, in_tiles);
    ck_assert(setting_same_bits(first.gradient, other.gradient, s.model.segment_n));
    ck_assert(first.losses[0] == other.losses[0]);
    array_link_free(&plain), array_link_free(&first), array_link_free(&other);
    setting_close(&s);
}

static void write_biased(struct program *p, const struct model_config *c)
{
    family_gpt2.layers[1].write(p, c);
    program_logit_bias(p, "lm_head.bias", c->vocabulary);
}

/* The same step once more, by the same worker: what the first left in its arena counts for nothing. */
static void check_second_step(const struct setting *s, uint32_t part_rows)
{
    struct device_worker_options options = setting_options(s, part_rows, 2);
    const struct device_share share = setting_share(s, ROWS / part_rows);
    struct array_link links[2];
    struct device_worker worker;
    struct ledger ledger = {0};
    struct error err = {""};

    ck_assert_msg(device_worker_init(&worker, &options, &ledger, &err) == 0, "%s", err.text);
    for (int i = 0; i < 2; i++) {
        array_link_init(&links[i], &s->model, s->weights);
        links[i].version = SETTING_STEP;
        links[i].n_buffers = options.choice.n_weight_buffers;
        ck_assert_msg(device_worker_step(&worker, &share, &array_link, &links[i], &err) == 0, "%s", err.text);
    }
    ck_assert(setting_same_bits(links[0].gradient, links[1].gradient, s->model.segment_n));
    device_worker_free(&worker);
    array_link_free(&links[0]), array_link_free(&links[1]);
}

/* By hand: if the table is zero, logits are the bias b, so that the gradient of its element k is the sum over the
 * labels that count, T, of (softmax(b)_k - [label = k]) / T. In units of 4,102 and 4,101 rows, in all places, and in
 * two parts; on the simulated device over both units at once and one by one, in two parts in fp32 and in one in
 * bf16. */
TEST_EACH(a_bias_is_added_to_the_logits_of_every_unit, 2 * COMMON_TYPES)
{
    const enum number_type precision = (enum number_type)(_i / 2);
    const struct cut cut = {200, PLAN_CUDA_HEAD_PAD, true, 1 + (uint32_t)_i % 2};
    const int n_places = backend_get()->simulated ? 2 : N_PLACES;
    const struct family_layer layers[] = {family_gpt2.layers[0],
                                          {MODEL_SINGLE, "ln_f", .write = write_biased},
                                          {.name = NULL}};
    struct family biasing = family_gpt2;
    struct model_config biased = config;
    double sum = 0, loss = 0;
    struct array_link first, link;
    struct setting s;

    if (backend_get()->simulated && _i / 2 == _i % 2)
        TEST_SKIP("too slow here, or of another device: other tests have it");
    double *const want = calloc(VOCABULARY, sizeof *want);
    biasing.layers = layers, biased.family = &biasing;
    setting_open(&s, &biased, ROWS, SEQ);
    const struct model_unit *unit = &s.model.units[s.model.n_units - 1];
    const struct model_piece *piece = &s.model.pieces[unit->first_piece + unit->n_pieces - 1];
    const uint64_t at = unit->offset + piece->offset;
    ck_assert_uint_eq(piece->n, VOCABULARY);
    memset(s.weights, 0, (s.model.units[1].offset + s.model.units[1].n) * sizeof *s.weights);
    for (uint32_t k = 0; k < VOCABULARY; k++) {
        s.weights[at + k] = number_from_bf16(number_to_bf16(s.weights[at + k]));
        sum += exp((double)s.weights[at + k]);
    }
    for (uint32_t i = 0; i < ROWS * SEQ; i++)
        if (s.labels[i] < VOCABULARY) {
            want[s.labels[i]] -= 1;
            loss += log(sum) - (double)s.weights[at + s.labels[i]];
        }
    for (int i = 0; i < n_places; i++) {
        step(&link, &s, &places[i], precision, cut);
        double got = 0;
        for (uint32_t part = 0; part < cut.n_parts; part++)
            got += link.losses[part];
        ck_assert_double_eq_tol(got, loss, 1e-6 * loss);
        for (uint32_t k = 0; k < VOCABULARY; k++)
            ck_assert_double_eq_tol((double)link.gradient[at + k],
                                    want[k] / (double)s.n_valid + exp((double)s.weights[at + k]) / sum,
                                    precision == NUMBER_BF16 ? 0x1p-8 / (double)s.n_valid : 1e-7);
        if (i == 0)
            first = link;
        else
            ck_assert(setting_same_bits(first.gradient, link.gradient, s.model.segment_n));
        if (i > 0)
            array_link_free(&link);
    }
    check_second_step(&s, ROWS / cut.n_parts);
    array_link_free(&first);
    free(want);
    setting_close(&s);
}

/* In fp32, of sums of 300 and 8,203 products in another order: 1e-5 as from float64. In bf16 as far from fp32 as in
 * tiles of 256, but for chance. */
TEST_EACH(no_cut_of_the_head_moves_the_gradient, backend_get()->simulated ? 0 : SANITIZED ? 1 : 2)
{
    struct array_link exact, cut, half[2];
    struct setting s;

    setting_open(&s, &config, ROWS, SEQ);
    step(&exact, &s, &places[_i], NUMBER_FP32, as_on_cpu);
    step(&cut, &s, &places[_i], NUMBER_FP32, in_tiles);
    ck_assert_double_le(setting_distance(&s.model, cut.gradient, exact.gradient), 1e-5);
    ck_assert_double_eq_tol(cut.losses[0], exact.losses[0], 1e-6 * exact.losses[0]);
    step(&half[0], &s, &places[_i], NUMBER_BF16, as_on_cpu);
    step(&half[1], &s, &places[_i], NUMBER_BF16, in_tiles);
    ck_assert_double_le(setting_distance(&s.model, half[1].gradient, exact.gradient),
                        1.1 * setting_distance(&s.model, half[0].gradient, exact.gradient));
    array_link_free(&exact), array_link_free(&cut), array_link_free(&half[0]), array_link_free(&half[1]);
    setting_close(&s);
}
