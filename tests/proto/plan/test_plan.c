#include "tests/kit/device/backend.h"
#include "tests/kit/test.h"

#include "proto/plan/units.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A device of which only the sizes are asked. Odd ones, so that rounding shows. */
static uint64_t library(unsigned n_threads)
{
    (void)n_threads;
    return 1000;
}

static uint64_t scratch(size_t n_rows, size_t n_tokens, size_t n_heads, size_t n_kv_heads, size_t width,
                        unsigned n_threads)
{
    (void)n_kv_heads;
    return n_rows * n_tokens * n_heads + width + n_threads;
}

static uint64_t cache(enum number_type type, size_t n_positions, size_t n_heads, size_t width)
{
    (void)type;
    return n_positions * width * 8 + n_heads;
}

static const struct plan_backend sizes_only = {
    .name = "sizes",
    .takes_turns = true,
    .head_tile = 256,
    .head_pad = 1,
    .library_bytes = library,
    .scratch_bytes = scratch,
    .cache_bytes = cache,
};

static struct model_config config_of(uint32_t n_layers, uint32_t width, uint32_t vocabulary, bool tied)
{
    return (struct model_config){.family = &family_gpt2,
                                 .n_layers = n_layers,
                                 .n_heads = 2,
                                 .width = width,
                                 .inner_width = 4 * width,
                                 .n_positions = 64,
                                 .vocabulary = vocabulary,
                                 .tied = tied,
                                 .norm_epsilon = 1e-5f,
                                 .initializer_range = 0.02f};
}

struct options {
    struct plan_setting setting;
    struct plan_choice choice;
};

static struct options options_of(uint32_t parts, uint32_t part_rows, uint32_t seq)
{
    return (struct options){.setting = {.backend = &sizes_only,
                                        .purpose = PLAN_TRAIN,
                                        .share_rows = parts * part_rows,
                                        .part_rows = part_rows,
                                        .seq = seq,
                                        .n_threads = 2},
                            .choice = {.microbatch = part_rows, .n_weight_buffers = 2}};
}

static struct options generation_of(uint32_t seq)
{
    struct options o = options_of(1, 1, seq);

    o.setting.purpose = PLAN_GENERATE;
    return o;
}

static void open_model(struct model *model, uint32_t n_layers, uint32_t width, uint32_t vocabulary, bool tied)
{
    const struct model_config config = config_of(n_layers, width, vocabulary, tied);

    ck_assert_int_eq(model_init(model, &config, NULL), 0);
}

static int lay_out(struct plan *plan, const struct model *model, const struct options *o, struct error *err)
{
    int rc = plan_check(model, &o->setting, err);

    if (rc == 0)
        rc = plan_check_choice(model, &o->setting, &o->choice, err);
    if (rc == 0)
        plan_lay_out(plan, model, &o->setting, &o->choice);
    return rc;
}

static uint64_t sum_of(const struct plan *plan)
{
    uint64_t sum = 0;

    for (int c = 0; c < LEDGER_CATEGORIES; c++)
        sum += plan->bytes[c];
    return sum;
}

struct extent {
    uint64_t at, bytes;
};

static int by_place(const void *a, const void *b)
{
    const struct extent *x = a, *y = b;

    return x->at < y->at ? -1 : x->at > y->at;
}

/* By hand: 2 layers of width 8, inner 32: a block is 4*64 + 2*8*32 + 9*8 + 32 = 872; wte 11 * 8, wpe 64 * 8 = 512. */
TEST(the_terms_are_those_counted_by_hand)
{
    struct model model;
    struct plan plan;
    struct options o = options_of(2, 3, 5); /* 6 rows, 30 tokens */

    open_model(&model, 2, 8, 11, true);
    o.choice.microbatch = 2; /* 10 tokens */
    ck_assert_int_eq(lay_out(&plan, &model, &o, NULL), 0);
    ck_assert_uint_eq(plan.bytes[LEDGER_WEIGHTS], 2 * 872 * 4);
    ck_assert_uint_eq(plan.bytes[LEDGER_CONTRIBUTION], 872 * 4);
    ck_assert_uint_eq(plan.bytes[LEDGER_STASH], 4 * 30 * 8 * 4); /* embedding, two blocks, norm */
    ck_assert_uint_eq(plan.bytes[LEDGER_GRADIENT], 30 * 8 * 4);
    ck_assert_uint_eq(plan.bytes[LEDGER_STATISTICS], 30 * 3 * 4 + 30 * 8);
    ck_assert_uint_eq(plan.bytes[LEDGER_DATA], 2 * 30 * 4);
    ck_assert_uint_eq(plan.bytes[LEDGER_LIBRARY], 1000);
    /* The block's, for 10 tokens, where the activation is made, each term rounded up to 64 bytes but the last:
     * normed 320, statistics 80 -> 128, qkv 960, attended 320, log-sum-exp (2 heads) 80, residual 320, two of inner
     * 2560. Attention's scratch, 20 + 8 + 2 = 30 -> 64, lies where other steps have theirs. */
    ck_assert_uint_eq(plan.bytes[LEDGER_WORKSPACE], 320 + 128 + 960 + 320 + 80 + 320 + 2560);
    model_free(&model);
}

TEST(categories_sum_to_the_arena_and_the_library)
{
    for (uint32_t i = 0; i < 48; i++) {
        struct model model;
        struct plan plan;
        struct options o = options_of(1 + i % 3, 1 + i % 5, 1 + i % 7);
        open_model(&model, 1 + i % 4, 2 * (1 + i % 9), 5 + i, i % 2);
        o.setting.purpose = i % 3 ? PLAN_TRAIN : PLAN_EVALUATE;
        o.choice.n_weight_buffers = 1 + i % 3;
        ck_assert_int_eq(lay_out(&plan, &model, &o, NULL), 0);
        ck_assert_uint_eq(sum_of(&plan), plan.arena_bytes + plan.bytes[LEDGER_LIBRARY]);
        ck_assert_uint_eq(plan_total(&plan), sum_of(&plan));
        model_free(&model);
    }
}

/* One after another, aligned, from the arena's start to its end, which is not rounded. There is room for one more than
 * n. */
static void check_extents(struct extent *e, size_t n, uint64_t arena_bytes)
{
    e[n++] = (struct extent){(arena_bytes + 63) / 64 * 64, 0};
    qsort(e, n, sizeof *e, by_place);
    ck_assert_uint_eq(e[0].at, 0);
    for (size_t i = 0; i + 1 < n; i++) {
        ck_assert_uint_eq(e[i].at % PLAN_ALIGNMENT, 0);
        ck_assert_uint_eq(e[i + 1].at, (e[i].at + e[i].bytes + 63) / 64 * 64);
    }
}

TEST(buffers_lie_apart_and_fill_the_arena)
{
    struct model model;
    struct plan plan;
    struct options o = options_of(2, 3, 7);

    open_model(&model, 3, 6, 13, false);
    o.choice.n_weight_buffers = 3;
    ck_assert_int_eq(lay_out(&plan, &model, &o, NULL), 0);
    const uint64_t tokens = 42, unit = model.largest_unit * 4;
    struct extent e[16] = {{plan.weights[0], unit},         {plan.weights[1], unit},
                           {plan.weights[2], unit},         {plan.contribution[0], unit},
                           {plan.gradient, tokens * 6 * 4}, {plan.running, tokens * 12},
                           {plan.losses, tokens * 8},       {plan.ids, tokens * 4},
                           {plan.labels, tokens * 4},       {plan.workspace, plan.workspace_bytes}};
    size_t n = 10;
    for (uint32_t b = 0; b < plan.n_boundaries; b++)
        e[n++] = (struct extent){plan.boundaries + b * plan.boundary_bytes, tokens * 6 * 4};
    check_extents(e, n, plan.arena_bytes);
    model_free(&model);
}

TEST(evaluation_keeps_two_boundaries_and_no_gradients)
{
    struct model model;
    struct plan plan;
    struct options o = options_of(1, 4, 8);

    open_model(&model, 6, 8, 11, true);
    o.setting.purpose = PLAN_EVALUATE;
    ck_assert_int_eq(lay_out(&plan, &model, &o, NULL), 0);
    ck_assert_uint_eq(plan.bytes[LEDGER_STASH], 2 * 32 * 8 * 4);
    ck_assert_uint_eq(plan.bytes[LEDGER_GRADIENT], 0);
    ck_assert_uint_eq(plan.bytes[LEDGER_CONTRIBUTION], 0);
    model_free(&model);
}

/* Depth costs its stash and nothing else. */
TEST(a_layer_more_costs_one_boundary)
{
    struct model shallow, deep;
    struct plan a, b;
    const struct options o = options_of(1, 4, 8);

    open_model(&shallow, 6, 8, 11, true);
    open_model(&deep, 7, 8, 11, true);
    ck_assert_int_eq(lay_out(&a, &shallow, &o, NULL), 0);
    ck_assert_int_eq(lay_out(&b, &deep, &o, NULL), 0);
    ck_assert_uint_eq(b.arena_bytes - a.arena_bytes, 32 * 8 * 4);
    model_free(&shallow);
    model_free(&deep);
}

TEST(impossible_options_are_refused_by_name)
{
    struct model model;
    struct plan plan;
    const struct {
        uint32_t parts, part_rows, seq, microbatch, buffers;
        const char *name;
    } cases[] = {
        {1, 4, 8, 5, 2, "--microbatch 5"},
        {1, 4, 65, 1, 2, "--seq 65"},
        {0, 4, 8, 1, 2, "0 rows"},
        {1, 0, 8, 1, 2, "0 rows"},
        {1, 4, 0, 1, 2, "0 tokens"},
        {1, 4, 8, 1, 0, "0 weight buffers"},
        {1, 4, 8, 1, 4, "4 weight"},
        {1, 1u << 30, 8, 1, 2, "too many"},
        {1, 4, 8, 0, 2, "--microbatch 0"},
        {1, (1 << 25) + 1, 8, 1, 2, "at most 268435456 tokens"},
        {PLAN_MAX_PARTS + 1, 1, 8, 1, 2, "65537 rows in parts of 1"},
    };

    open_model(&model, 1, 8, 11, true);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct options o = options_of(cases[i].parts, cases[i].part_rows, cases[i].seq);
        struct error err = {""};
        o.choice.microbatch = cases[i].microbatch;
        o.choice.n_weight_buffers = cases[i].buffers;
        ck_assert_int_eq(lay_out(&plan, &model, &o, &err), -EINVAL);
        ck_assert_msg(strstr(err.text, cases[i].name), "%s: %s", cases[i].name, err.text);
    }
    model_free(&model);
}

/* The largest of everything: figures stay true where a product could wrap around. */
TEST(the_largest_sizes_do_not_overflow)
{
    struct model model;
    struct plan plan;
    struct model_config config = config_of(4096, 65536, 1 << 24, false);
    struct options o = options_of(1, 1 << 4, 1 << 24);

    config.n_heads = config.width, config.inner_width = 1 << 20, config.n_positions = 1 << 24;
    ck_assert_int_eq(model_init(&model, &config, NULL), 0);
    o.setting.backend = &plan_cpu, o.setting.n_threads = PLAN_MAX_THREADS;
    o.choice = (struct plan_choice){
        .microbatch = 16, .n_weight_buffers = 3, .n_kept = 4096, .kept = MODEL_KEEPS_ALL, .whole_head = true};
    ck_assert_int_eq(lay_out(&plan, &model, &o, NULL), 0);
    /* 2^28 tokens; a block keeps 5 width + inner values and a log-sum-exp a head */
    ck_assert_uint_eq(plan.bytes[LEDGER_KEPT], ((uint64_t)4096 << 30) * (5 * 65536 + (1 << 20) + 65536));
    ck_assert_uint_eq(plan.bytes[LEDGER_STASH], (uint64_t)4098 << 46);
    ck_assert_uint_eq(plan_total(&plan), sum_of(&plan));
    ck_assert_uint_lt(plan_total(&plan), (uint64_t)1 << 63);

    o = options_of(PLAN_MAX_PARTS, 1, 1 << 12); /* with a whole head, 2^40 weights of it for every part */
    o.choice = (struct plan_choice){.microbatch = 1, .n_weight_buffers = 3, .whole_head = true};
    ck_assert_int_eq(lay_out(&plan, &model, &o, NULL), 0);
    ck_assert_uint_gt(plan.bytes[LEDGER_CONTRIBUTION], (uint64_t)1 << (40 + 2 + 16));
    ck_assert_uint_lt(plan_total(&plan), (uint64_t)1 << 63);
    model_free(&model);
}

/* By hand, the model of the_terms_are_those_counted_by_hand: wte 88, wpe 512, blocks 872 each, norm 16 floats. */
TEST(the_terms_of_generating_are_those_counted_by_hand)
{
    struct model model;
    struct plan plan;
    struct options o = generation_of(5);

    open_model(&model, 2, 8, 11, true);
    o.choice.n_resident = 4; /* all but wpe, which is looked up where the host has it */
    ck_assert_int_eq(lay_out(&plan, &model, &o, NULL), 0);
    ck_assert_uint_eq(plan.resident_bytes, (88 + 2 * 872 + 16) * 4);
    ck_assert_uint_eq(plan.bytes[LEDGER_WEIGHTS], plan.resident_bytes);
    ck_assert_uint_eq(plan.bytes[LEDGER_CACHE], 2 * (5 * 8 * 8 + 2));
    ck_assert_uint_eq(plan.bytes[LEDGER_STASH], 2 * 5 * 8 * 4);
    ck_assert_uint_eq(plan.bytes[LEDGER_DATA], (5 + 11) * 4); /* ids, logits */
    ck_assert_uint_eq(plan.bytes[LEDGER_STATISTICS], 0);
    ck_assert_uint_eq(plan.bytes[LEDGER_GRADIENT], 0);
    /* The block's for 5 tokens, where the activation is made: normed 160, residual 160 -> 192, two of inner 1280. Without
     * backward nobody reads more by then. */
    ck_assert_uint_eq(plan.bytes[LEDGER_WORKSPACE], 160 + 192 + 1280);
    ck_assert_uint_eq(plan.bytes[LEDGER_LIBRARY], 1000);
    ck_assert_uint_eq(sum_of(&plan), plan.arena_bytes + 1000);

    o.choice.n_resident = 3;
    ck_assert_int_eq(lay_out(&plan, &model, &o, NULL), 0);
    ck_assert_uint_eq(plan.resident_bytes, (88 + 16 + 872) * 4); /* from the head down */
    ck_assert_uint_eq(plan.bytes[LEDGER_WEIGHTS], (88 + 16 + 872) * 4 + 872 * 4);
    model_free(&model);
}

/* Only the cache grows with the row, and with it what is planned for a prompt of up to one tile. */
TEST(a_longer_row_costs_its_cache_alone)
{
    struct model model;
    struct plan a, b;
    struct options o = generation_of(PLAN_GENERATE_TILE);
    struct model_config config = config_of(3, 8, 11, true);

    config.n_positions = 1000;
    ck_assert_int_eq(model_init(&model, &config, NULL), 0);
    ck_assert_int_eq(lay_out(&a, &model, &o, NULL), 0);
    o.setting.seq = 1000;
    ck_assert_int_eq(lay_out(&b, &model, &o, NULL), 0);
    ck_assert_uint_eq(b.arena_bytes - a.arena_bytes, 3 * (1000 - PLAN_GENERATE_TILE) * 8 * 8);
    ck_assert_uint_eq(b.bytes[LEDGER_CACHE] - a.bytes[LEDGER_CACHE], b.arena_bytes - a.arena_bytes);
    model_free(&model);
}

TEST_EACH(buffers_of_generating_lie_apart_and_fill_the_arena, 2)
{
    struct model model;
    struct plan plan;
    struct options o = generation_of(7);

    open_model(&model, 6, 6, 13, false);
    o.choice.n_resident = _i ? 4 : plan_count_uploaded(&model);
    ck_assert_int_eq(lay_out(&plan, &model, &o, NULL), 0);
    struct extent e[40];
    size_t n = 0;
    for (uint32_t u = 0; u < plan.choice.n_resident; u++)
        e[n++] = (struct extent){plan_resident(&plan, &model, plan_unit_at(&model, u)),
                                 model.units[plan_unit_at(&model, u)].n * 4};
    for (uint32_t i = 0; _i && i < o.choice.n_weight_buffers; i++)
        e[n++] = (struct extent){plan.weights[i], model.largest_unit * 4};
    for (uint32_t i = 0; i < 6; i++)
        e[n++] = (struct extent){plan.cache + i * plan.cache_bytes, cache(NUMBER_FP32, 7, 2, 6)};
    for (uint32_t i = 0; i < 2; i++)
        e[n++] = (struct extent){plan.boundaries + i * plan.boundary_bytes, 7 * 6 * 4};
    e[n++] = (struct extent){plan.ids, 7 * 4};
    e[n++] = (struct extent){plan.logits, 13 * 4};
    e[n++] = (struct extent){plan.workspace, plan.workspace_bytes};
    check_extents(e, n, plan.arena_bytes);
    model_free(&model);
}

TEST(generating_is_of_one_row)
{
    struct model model;
    struct plan plan;
    struct options o = generation_of(8);
    struct error err;

    open_model(&model, 1, 8, 11, true);
    o.setting.share_rows = 2;
    ck_assert_int_eq(lay_out(&plan, &model, &o, &err), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "one row at a time, not 2"));
    model_free(&model);
}

/* By hand, 2 parts of 3 rows of 5 tokens, 2 rows at a time: tiles of 10 tokens of width 8. */
TEST(with_the_stash_on_the_host_the_device_has_tiles)
{
    struct model model;
    struct plan plan;
    struct options o = options_of(2, 3, 5);

    open_model(&model, 2, 8, 11, true);
    o.choice.microbatch = 2;
    o.choice.host_stash = true;
    ck_assert_int_eq(lay_out(&plan, &model, &o, NULL), 0);
    ck_assert_uint_eq(plan.bytes[LEDGER_STASH], 2 * 10 * 8 * 4);
    ck_assert_uint_eq(plan.bytes[LEDGER_GRADIENT], 10 * 8 * 4);
    ck_assert_uint_eq(plan.host_stash_bytes, (4 + 1) * 30 * 8 * 4); /* embedding, two blocks, norm; the gradient */
    o.setting.purpose = PLAN_EVALUATE;
    ck_assert_int_eq(lay_out(&plan, &model, &o, NULL), 0);
    ck_assert_uint_eq(plan.bytes[LEDGER_STASH], 2 * 10 * 8 * 4);
    ck_assert_uint_eq(plan.host_stash_bytes, 2 * 30 * 8 * 4);
    model_free(&model);
}

/* By hand, the same model and microbatch: a largest unit of 872. */
TEST(beside_the_host_two_buffers_bring_two_sums_and_two_sets_of_tiles)
{
    const struct plan_backend beside = backend_beside(&sizes_only);
    struct model model;
    struct plan plan;
    struct options o = options_of(2, 3, 5);

    open_model(&model, 2, 8, 11, true);
    o.setting.backend = &beside;
    o.choice.microbatch = 2;
    o.choice.host_stash = true;
    for (uint32_t buffers = 1; buffers <= 3; buffers++) {
        const uint64_t sets = buffers > 1 ? 2 : 1;
        o.choice.n_weight_buffers = buffers;
        o.setting.purpose = PLAN_TRAIN;
        ck_assert_int_eq(lay_out(&plan, &model, &o, NULL), 0);
        ck_assert_uint_eq(plan.n_sets, sets);
        ck_assert_uint_eq(plan.bytes[LEDGER_CONTRIBUTION], sets * 872 * 4);
        ck_assert_uint_eq(plan.bytes[LEDGER_STASH], sets * 2 * 10 * 8 * 4);
        ck_assert_uint_eq(plan.bytes[LEDGER_GRADIENT], sets * 10 * 8 * 4);
        ck_assert_uint_eq(plan.host_stash_bytes, (4 + 1) * 30 * 8 * 4);
        ck_assert_uint_eq(sum_of(&plan), plan_total(&plan));
        o.setting.purpose = PLAN_EVALUATE;
        ck_assert_int_eq(lay_out(&plan, &model, &o, NULL), 0);
        ck_assert_uint_eq(plan.bytes[LEDGER_STASH], sets * 2 * 10 * 8 * 4);
        ck_assert_uint_eq(plan.bytes[LEDGER_CONTRIBUTION], 0);
    }
    model_free(&model);
}

/* The same model: contributions of embedding's two units, two blocks, norm and head, in one part; all but the head's where
 * that has a place of its own, as it has with two parts. */
TEST(sums_are_as_many_as_are_chosen_and_no_more_than_contributions)
{
    const struct plan_backend beside = backend_beside(&sizes_only);
    struct model model;
    struct plan plan;
    struct options o = options_of(1, 3, 5);

    open_model(&model, 2, 8, 11, true);
    ck_assert_uint_eq(model.n_visits, 6);
    o.setting.backend = &beside;
    o.choice.microbatch = 2;
    for (uint32_t n = 0; n <= PLAN_MAX_SUMS; n++) {
        const uint32_t wanted[] = {n < 3 ? 2 : n < 6 ? n : 6, n < 3 ? 2 : n < 10 ? n : 10};
        for (uint32_t parts = 1; parts <= 2; parts++) {
            o = options_of(parts, 3, 5);
            o.setting.backend = &beside;
            o.choice.n_sums = n;
            o.choice.whole_head = true;
            ck_assert_int_eq(lay_out(&plan, &model, &o, NULL), 0);
            ck_assert_uint_eq(plan.n_sums, wanted[parts - 1]);
            ck_assert_uint_eq(plan.n_sets, 2);
            ck_assert_uint_eq(plan.bytes[LEDGER_CONTRIBUTION],
                              plan.n_sums * 872 * 4 + (parts == 2 ? 2 * model.units[model.visits[5]].n * 4 : 0));
            ck_assert_uint_eq(sum_of(&plan), plan_total(&plan));
        }
        o.choice.n_weight_buffers = 1;
        ck_assert_int_eq(lay_out(&plan, &model, &o, NULL), 0);
        ck_assert_uint_eq(plan.n_sums, 1);
        o.choice.n_weight_buffers = 2;
        o.setting.backend = &sizes_only;
        ck_assert_int_eq(lay_out(&plan, &model, &o, NULL), 0);
        ck_assert_uint_eq(plan.n_sums, 1);
    }
    o.choice.n_sums = PLAN_MAX_SUMS + 1;
    ck_assert_int_eq(lay_out(&plan, &model, &o, NULL), -EINVAL);
    model_free(&model);
}

/* Two sums and six tiles, all apart, and nothing between them. */
TEST(two_sets_lie_apart_and_fill_the_arena)
{
    const struct plan_backend beside = backend_beside(&sizes_only);
    struct model model;
    struct plan plan;
    struct options o = options_of(2, 3, 7);

    open_model(&model, 3, 6, 13, false);
    o.setting.backend = &beside;
    o.choice.host_stash = true;
    ck_assert_int_eq(lay_out(&plan, &model, &o, NULL), 0);
    const uint64_t tokens = 42, unit = model.largest_unit * 4, tile = 21 * 6 * 4;
    struct extent e[17] = {
        {plan.weights[0], unit},      {plan.weights[1], unit},     {plan.contribution[0], unit},
        {plan.contribution[1], unit}, {plan.input[0], tile},       {plan.input[1], tile},
        {plan.output[0], tile},       {plan.output[1], tile},      {plan.dy[0], tile},
        {plan.dy[1], tile},           {plan.running, tokens * 12}, {plan.losses, tokens * 8},
        {plan.ids, tokens * 4},       {plan.labels, tokens * 4},   {plan.workspace, plan.workspace_bytes}};
    check_extents(e, 15, plan.arena_bytes);
    model_free(&model);
}

/* By hand, the same: a block keeps of 10 tokens qkv 960, attended 320, log-sum-exp 80 -> 128, residual 320, pre 1280, of 5
 * tokens 480 -> 512, 160 -> 192, 40 -> 64, 192, 640. Without them the workspace has normed 320, statistics 80, active
 * 1280. */
TEST(what_is_kept_is_counted_by_hand)
{
    struct model model;
    struct plan plan;
    struct options o = options_of(2, 3, 5);

    open_model(&model, 2, 8, 11, true);
    o.choice.microbatch = 2;
    o.choice.n_kept = 1, o.choice.kept = MODEL_KEEPS_ALL;
    const uint64_t part = 960 + 320 + 128 + 320 + 1280 + 512 + 192 + 64 + 192 + 640;
    ck_assert_int_eq(lay_out(&plan, &model, &o, NULL), 0);
    ck_assert_uint_eq(plan.bytes[LEDGER_KEPT], 2 * part);
    ck_assert_uint_eq(plan.bytes[LEDGER_WORKSPACE], 320 + 128 + 960 + 320 + 80 + 320 + 2560);
    o.choice.n_kept = 2;
    ck_assert_int_eq(lay_out(&plan, &model, &o, NULL), 0);
    ck_assert_uint_eq(plan.bytes[LEDGER_KEPT], 2 * 2 * part);
    ck_assert_uint_eq(plan.bytes[LEDGER_WORKSPACE], 320 + 80 + 1280);
    /* Attention's results in the upper block, residual and pre in the lower one. */
    o.choice.n_kept = 1, o.choice.kept = 1 << 1, o.choice.kept_below = 1 << 2 | 1 << 3;
    ck_assert_int_eq(lay_out(&plan, &model, &o, NULL), 0);
    const uint64_t upper = 320 + 128 + 192 + 64, lower = 320 + 1280 + 192 + 640;
    ck_assert_uint_eq(plan.bytes[LEDGER_KEPT], 2 * (upper + lower));
    ck_assert_uint_eq(plan_kept_of(&plan, 0)->bytes, 2 * lower);
    ck_assert_uint_eq(plan_kept_of(&plan, 1)->bytes, 2 * upper);
    ck_assert_uint_eq(plan_kept_of(&plan, 1)->at, plan_kept_of(&plan, 0)->at + 2 * lower);
    model_free(&model);
}

/* By hand: 20,000 words of width 2 are three units of at most 6,667 rows; a block has 4*4 + 2*2*8 + 9*2 + 8 = 74 floats. */
TEST(a_whole_head_is_counted_by_hand)
{
    struct model model;
    struct plan plan;
    struct options o = options_of(2, 3, 5);
    const uint64_t unit = 6667 * 2 * 4;

    open_model(&model, 2, 2, 20000, false);
    ck_assert_int_eq(lay_out(&plan, &model, &o, NULL), 0);
    ck_assert_uint_eq(plan.bytes[LEDGER_WEIGHTS], 2 * unit);
    ck_assert_uint_eq(plan.bytes[LEDGER_CONTRIBUTION], unit);
    ck_assert_uint_eq(plan.bytes[LEDGER_WORKSPACE], 15 * 6667 * 4);
    o.choice.whole_head = true;
    ck_assert_int_eq(lay_out(&plan, &model, &o, NULL), 0);
    ck_assert_uint_eq(plan.bytes[LEDGER_WEIGHTS], 20000 * 2 * 4 + 2 * 74 * 4);
    ck_assert_uint_eq(plan.bytes[LEDGER_CONTRIBUTION], 2 * 20000 * 2 * 4 + unit); /* and what the embedding visits */
    ck_assert_uint_eq(plan.bytes[LEDGER_WORKSPACE], 15 * 20000 * 4);
    /* of 6,666 rows, and 6,667, each rounded up to 64 bytes */
    ck_assert_uint_eq(plan_resident(&plan, &model, plan_unit_at(&model, 2)) - plan.resident, 53376 + 53376);
    model_free(&model);
}

/* By hand, of the same units where rows come in eights: of 6,672 each. The least tile is the microbatch. */
TEST(a_padded_head_is_counted_by_hand)
{
    const uint64_t padded = 6672 * 2 * 4;
    struct model model;
    struct plan plan;
    struct options o = options_of(2, 3, 5);
    struct plan_backend backend = plan_cuda;

    backend.head_tile = 4;
    o.setting.backend = &plan_cuda;
    open_model(&model, 2, 2, 20000, false);
    ck_assert_int_eq(lay_out(&plan, &model, &o, NULL), 0);
    ck_assert_uint_eq(plan.bytes[LEDGER_WEIGHTS], 2 * padded);
    ck_assert_uint_eq(plan.bytes[LEDGER_CONTRIBUTION], 2 * padded);
    ck_assert_uint_eq(plan.bytes[LEDGER_WORKSPACE], 15 * 6672 * 4);
    o.choice.whole_head = true;
    ck_assert_int_eq(lay_out(&plan, &model, &o, NULL), 0);
    ck_assert_uint_eq(plan.bytes[LEDGER_WEIGHTS], 3 * padded + 2 * 74 * 4);
    ck_assert_uint_eq(plan.resident_bytes, 20000 * 2 * 4);
    ck_assert_uint_eq(plan.head_bytes, 3 * padded);
    ck_assert_uint_eq(plan.bytes[LEDGER_WORKSPACE], 15 * 3 * 6672 * 4);
    for (uint32_t unit = 0; unit < 3; unit++) {
        const uint32_t id = model.visits[plan_head(&model)->first_visit + unit];
        ck_assert_uint_eq(plan_resident(&plan, &model, id) - plan.resident, (2 - unit) * padded);
        ck_assert_uint_eq(plan_head_contribution(&plan, &model, 1, unit), plan.head + (3 + unit) * padded);
    }
    /* the norm above the blocks, where the head ends */
    ck_assert_uint_eq(plan_resident(&plan, &model, plan_unit_at(&model, 3)) - plan.resident, 3 * padded);
    o.setting.backend = &backend;
    ck_assert_int_eq(lay_out(&plan, &model, &o, NULL), 0);
    ck_assert_uint_eq(plan.bytes[LEDGER_WORKSPACE], 4 * 3 * 6672 * 4);
    model_free(&model);
}

/* By hand: of three units in turn, whose microbatches are 5 of 30 tokens, in bf16. What they add up takes another boundary,
 * and the room that its rounding begins in; on the host another boundary there, and on the device nothing. In one pass it
 * is a tile of 15 tokens in the workspace. */
TEST(a_gradient_in_fp32_is_counted_by_hand)
{
    struct model model;
    struct plan with, without;
    struct options o = options_of(2, 3, 5);
    struct plan_backend rounds = plan_cuda;

    rounds.head_sums = false;
    o.setting.precision = NUMBER_BF16;
    open_model(&model, 2, 2, 20000, false);
    for (unsigned i = 0; i < 4; i++) {
        const bool host = i & 1, whole = i & 2;
        o.choice.host_stash = host;
        o.choice.whole_head = whole;
        o.setting.backend = &rounds;
        ck_assert_int_eq(lay_out(&without, &model, &o, NULL), 0);
        o.setting.backend = &plan_cuda;
        ck_assert_int_eq(lay_out(&with, &model, &o, NULL), 0);
        ck_assert(with.head_sums && !without.head_sums);
        ck_assert_uint_eq(with.bytes[LEDGER_GRADIENT] - without.bytes[LEDGER_GRADIENT],
                          host || whole ? 0 : 30 * 2 * 2 + PLAN_CUDA_ROUNDING_BYTES);
        ck_assert_uint_eq(with.host_stash_bytes - without.host_stash_bytes, host && !whole ? 128 : 0);
        ck_assert_uint_eq(with.bytes[LEDGER_WORKSPACE] - without.bytes[LEDGER_WORKSPACE], whole ? 15 * 2 * 4 : 0);
        if (!whole)
            ck_assert_uint_eq(with.gradient_sum - with.gradient, host ? 0 : PLAN_CUDA_ROUNDING_BYTES);
    }
    model_free(&model);
}

/* fp32 stays what is summed up, and tables; all values halve. */
/* By hand: contributions in fp32 as they were; in bf16 a sum, or all that lie side by side for the head, with 256 bytes
 * before it. */
TEST(sums_that_are_rounded_have_room_before_them)
{
    struct model model;
    struct plan wide, rounded;
    struct plan_backend backend = backend_beside(&sizes_only);
    struct options o = options_of(3, 1, 5);

    backend.rounding_bytes = 256;
    o.setting.backend = &backend;
    o.choice.whole_head = true;
    open_model(&model, 2, 8, 11, false);
    ck_assert_int_eq(lay_out(&wide, &model, &o, NULL), 0);
    o.setting.grad = NUMBER_BF16;
    ck_assert_int_eq(lay_out(&rounded, &model, &o, NULL), 0);
    ck_assert_uint_eq(wide.rounding_bytes, 0);
    ck_assert_uint_eq(rounded.rounding_bytes, 256);
    ck_assert_uint_eq(rounded.arena_bytes - wide.arena_bytes, 3 * 256); /* the head's and two sets */
    ck_assert_uint_eq(rounded.bytes[LEDGER_CONTRIBUTION] - wide.bytes[LEDGER_CONTRIBUTION], 3 * 256);
    ck_assert_uint_eq(rounded.head, wide.head + 256);
    ck_assert_uint_eq(rounded.head_bytes, wide.head_bytes);
    ck_assert_uint_eq(rounded.contribution[0], wide.contribution[0] + 2 * 256);
    ck_assert_uint_eq(rounded.contribution[1], wide.contribution[1] + 3 * 256);
    o.setting.backend = &sizes_only;
    ck_assert_int_eq(lay_out(&rounded, &model, &o, NULL), 0);
    ck_assert_uint_eq(rounded.rounding_bytes, 0);
    model_free(&model);
}

TEST(values_in_bf16_take_half)
{
    struct model model;
    struct plan wide, half;
    struct options o = options_of(2, 3, 16);

    open_model(&model, 2, 32, 11, true); /* every buffer whole cache lines in either type */
    ck_assert_int_eq(lay_out(&wide, &model, &o, NULL), 0);
    o.setting.precision = NUMBER_BF16;
    ck_assert_int_eq(lay_out(&half, &model, &o, NULL), 0);
    ck_assert_uint_eq(half.bytes[LEDGER_WEIGHTS] * 2, wide.bytes[LEDGER_WEIGHTS]);
    ck_assert_uint_eq(half.bytes[LEDGER_STASH] * 2, wide.bytes[LEDGER_STASH]);
    ck_assert_uint_eq(half.bytes[LEDGER_GRADIENT] * 2, wide.bytes[LEDGER_GRADIENT]);
    ck_assert_uint_eq(half.bytes[LEDGER_CONTRIBUTION], wide.bytes[LEDGER_CONTRIBUTION]);
    ck_assert_uint_eq(half.bytes[LEDGER_STATISTICS], wide.bytes[LEDGER_STATISTICS]);
    ck_assert_uint_eq(half.bytes[LEDGER_DATA], wide.bytes[LEDGER_DATA]);
    model_free(&model);
}

TEST(choices_that_no_plan_has_are_refused)
{
    struct model model;
    struct plan plan;
    static const struct {
        enum plan_purpose purpose;
        struct plan_choice choice;
        const char *name;
    } cases[] = {
        {PLAN_TRAIN, {.host_stash = true, .n_kept = 1, .kept = 1}, "1 blocks that keep their"},
        {PLAN_TRAIN, {.n_kept = 3, .kept = 1}, "3 blocks that keep their"},
        {PLAN_EVALUATE, {.n_kept = 1, .kept = 1}, "1 blocks that keep their"},
        {PLAN_TRAIN, {.n_kept = 1}, "1 blocks that keep set 0"},
        {PLAN_TRAIN, {.kept = 1}, "0 blocks that keep set 1"},
        {PLAN_TRAIN, {.kept_below = 1}, "the others set 1:"},
        {PLAN_TRAIN, {.n_kept = 1, .kept = 16}, "keep set 16"},
        {PLAN_TRAIN, {.n_kept = 1, .kept = 1, .kept_below = 16}, "the others set 16"},
        {PLAN_EVALUATE, {.whole_head = true}, "whole head"},
        {PLAN_GENERATE, {.host_stash = true}, "no stash"},
        {PLAN_TRAIN, {.n_resident = 5}, "5 units that stay: this model has 4"},
        {PLAN_GENERATE, {.n_resident = 5}, "5 units that stay: this model has 4"},
    };

    open_model(&model, 2, 8, 11, true);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct options o = options_of(1, 1, 8);
        struct error err = {""};
        o.setting.purpose = cases[i].purpose;
        o.choice = cases[i].choice;
        o.choice.microbatch = o.choice.n_weight_buffers = 1;
        ck_assert_int_eq(lay_out(&plan, &model, &o, &err), -EINVAL);
        ck_assert_msg(strstr(err.text, cases[i].name), "%s: %s", cases[i].name, err.text);
    }
    model_free(&model);
}
