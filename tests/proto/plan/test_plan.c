#include "tests/kit/device/backend.h"
#include "tests/kit/device/setting.h"
#include "tests/kit/inprocess/model.h"
#include "tests/kit/test.h"

#include "proto/plan/memory/data.h"
#include "proto/plan/memory/units.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A device of which only the sizes are asked. Odd ones, so that rounding shows. */
static uint64_t library(unsigned n_threads)
{
    (void)n_threads;
    return 1000;
}

static uint64_t scratch(const struct plan_attention_sizes *sizes, unsigned n_threads)
{
    return sizes->n_rows * sizes->n_tokens * sizes->n_heads + sizes->width + n_threads;
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
    return (struct model_config)GPT2_CONFIG(n_layers, 2, width, 4 * width, 64, vocabulary, .tied = tied);
}

/* What a test lays out. */
static struct model model;
static struct plan plan;
static struct plan_setting setting;
static struct plan_choice choice;

static void open_config(const struct model_config *config)
{
    model_free(&model);
    ck_assert_int_eq(model_init(&model, config, NULL), 0);
}

static void open_model(uint32_t n_layers, uint32_t width, uint32_t vocabulary, bool tied)
{
    const struct model_config config = config_of(n_layers, width, vocabulary, tied);

    open_config(&config);
}

static const struct model_layer *block_at(uint32_t index)
{
    return &model.layers[model.first_block + index];
}

/* To train so many parts, each in one microbatch. */
static void ask(uint32_t parts, uint32_t part_rows, uint32_t seq)
{
    setting = (struct plan_setting){.backend = &sizes_only,
                                    .goal = {.purpose = PLAN_TRAIN, .seq = seq},
                                    .share_rows = parts * part_rows,
                                    .part_rows = part_rows,
                                    .n_threads = 2};
    choice = (struct plan_choice){.microbatch = part_rows, .n_weight_buffers = 2};
}

static void ask_to_generate(uint32_t seq)
{
    ask(1, 1, seq);
    setting.goal.purpose = PLAN_GENERATE;
}

static int check(struct error *err)
{
    const int rc = plan_check(&model, &setting, err);

    return rc ? rc : plan_check_choice(&model, &setting, &choice, err);
}

static void lay_out(void)
{
    struct error err = {""};

    ck_assert_msg(check(&err) == 0, "%s", err.text);
    plan_lay_out(&plan, &model, &setting, &choice);
}

/* Two blocks of width 8, 2 parts of 3 rows of 5 tokens, 2 rows at a time. */
static void set_up(void)
{
    open_model(2, 8, 11, true);
    ask(2, 3, 5);
    choice.microbatch = 2;
}

static void tear_down(void)
{
    model_free(&model);
}

SUITE_FIXTURE(set_up, tear_down)

static uint64_t sum_of(const struct plan *of)
{
    uint64_t sum = 0;

    for (int c = 0; c < LEDGER_CATEGORIES; c++)
        sum += of->bytes[c];
    return sum;
}

/* By hand: 2 layers of width 8, inner 32: a block is 4*64 + 2*8*32 + 9*8 + 32 = 872; wte 11 * 8, wpe 64 * 8 = 512. */
TEST(the_terms_are_those_counted_by_hand)
{
    lay_out();
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
}

/* By hand: 4 bytes a token of the share on the device, and of a minibatch in each buffer of the data's segment. Nothing
 * else grows, and nothing at all of a job that does not pack. */
TEST(packed_rows_take_their_positions_and_no_byte_more)
{
    const struct plan_data whole = plan_data_of(&(struct plan_goal){.batch = 6, .seq = 5}, 0),
                           packed = plan_data_of(&(struct plan_goal){.batch = 6, .seq = 5, .packs = true}, 0);
    struct plan before;

    lay_out();
    before = plan;
    setting.goal.packs = true;
    lay_out();
    ck_assert_uint_eq(plan.bytes[LEDGER_DATA], before.bytes[LEDGER_DATA] + 30 * 4);
    ck_assert_uint_eq(plan_total(&plan), plan_total(&before) + 128); /* of 64-byte places */
    ck_assert_uint_eq(whole.bytes, 2 * 2 * 30 * 4);
    ck_assert_uint_eq(packed.bytes, 2 * 3 * 30 * 4);
    ck_assert_uint_eq(packed.buffers[1].at[PLAN_FIELD_POSITIONS], 5 * 30 * 4);
    ck_assert_uint_eq(packed.logits, packed.bytes);
}

/* The largest of everything: figures stay true where a product could wrap around. */
TEST(the_largest_sizes_do_not_overflow)
{
    struct model_config config = config_of(4096, 65536, 1 << 24, false);

    ask(1, 1 << 4, 1 << 24);
    config.n_heads = config.width, config.inner_width = 1 << 20, config.n_positions = 1 << 24;
    open_config(&config);
    setting.backend = &plan_cpu, setting.n_threads = PLAN_MAX_THREADS;
    choice = (struct plan_choice){.microbatch = 16,
                                  .n_weight_buffers = 3,
                                  .keeping = {{4096, MODEL_KEEPS_ALL}},
                                  .whole_head = true};
    lay_out();
    /* 2^28 tokens; a block keeps 5 width + inner values and a log-sum-exp a head */
    ck_assert_uint_eq(plan.bytes[LEDGER_KEPT], ((uint64_t)4096 << 30) * (5 * 65536 + (1 << 20) + 65536));
    ck_assert_uint_eq(plan.bytes[LEDGER_STASH], (uint64_t)4098 << 46);
    ck_assert_uint_eq(plan_total(&plan), sum_of(&plan));
    ck_assert_uint_lt(plan_total(&plan), (uint64_t)1 << 63);

    ask(PLAN_MAX_PARTS, 1, 1 << 12); /* with a whole head, 2^40 weights of it for every part */
    choice = (struct plan_choice){.microbatch = 1, .n_weight_buffers = 3, .whole_head = true};
    lay_out();
    ck_assert_uint_gt(plan.bytes[LEDGER_CONTRIBUTION], (uint64_t)1 << (40 + 2 + 16));
    ck_assert_uint_lt(plan_total(&plan), (uint64_t)1 << 63);
}

/* By hand, the model of the_terms_are_those_counted_by_hand: wte 88, wpe 512, blocks 872 each, norm 16 floats. */
TEST(the_terms_of_generating_are_those_counted_by_hand)
{
    ask_to_generate(5);
    choice.n_resident = 4; /* all but wpe, which is looked up where the host has it */
    lay_out();
    ck_assert_uint_eq(plan.resident_bytes, (88 + 2 * 872 + 16) * 4);
    ck_assert_uint_eq(plan.bytes[LEDGER_WEIGHTS], plan.resident_bytes);
    ck_assert_uint_eq(plan.bytes[LEDGER_CACHE], 2 * (5 * 8 * 8 + 2));
    ck_assert_uint_eq(plan.bytes[LEDGER_STASH], 2 * 5 * 8 * 4);
    ck_assert_uint_eq(plan.bytes[LEDGER_DATA], (5 + 11) * 4); /* ids, logits */
    ck_assert_uint_eq(plan.bytes[LEDGER_STATISTICS], 0);
    ck_assert_uint_eq(plan.bytes[LEDGER_GRADIENT], 0);
    /* The block's for 5 tokens, where the activation is made: normed 160, residual 160 -> 192, two of inner 1280.
     * Without backward nobody reads more by then. */
    ck_assert_uint_eq(plan.bytes[LEDGER_WORKSPACE], 160 + 192 + 1280);
    ck_assert_uint_eq(plan.bytes[LEDGER_LIBRARY], 1000);
    ck_assert_uint_eq(sum_of(&plan), plan.arena_bytes + 1000);

    choice.n_resident = 3;
    lay_out();
    ck_assert_uint_eq(plan.resident_bytes, (88 + 16 + 872) * 4); /* from the head down */
    ck_assert_uint_eq(plan.bytes[LEDGER_WEIGHTS], (88 + 16 + 872) * 4 + 872 * 4);
}

/* By hand, 2 parts of 3 rows of 5 tokens, 2 rows at a time: a block keeps of 10 tokens qkv 960, attended 320,
 * log-sum-exp 80 -> 128, residual 320, pre 1280, of 5 tokens 480 -> 512, 160 -> 192, 40 -> 64, 192, 640. Without them
 * the workspace has normed 320, statistics 80, active
 * 1280. */
TEST(what_is_kept_is_counted_by_hand)
{
    choice.keeping[0] = (struct plan_keeping){1, MODEL_KEEPS_ALL, 0};
    const uint64_t part = 960 + 320 + 128 + 320 + 1280 + 512 + 192 + 64 + 192 + 640;
    lay_out();
    ck_assert_uint_eq(plan.bytes[LEDGER_KEPT], 2 * part);
    ck_assert_uint_eq(plan.bytes[LEDGER_WORKSPACE], 320 + 128 + 960 + 320 + 80 + 320 + 2560);
    choice.keeping[0].n_kept = 2;
    lay_out();
    ck_assert_uint_eq(plan.bytes[LEDGER_KEPT], 2 * 2 * part);
    ck_assert_uint_eq(plan.bytes[LEDGER_WORKSPACE], 320 + 80 + 1280);
    /* Attention's results in the upper block, residual and pre in the lower one. */
    choice.keeping[0] = (struct plan_keeping){1, 1 << 1, 1 << 2 | 1 << 3};
    lay_out();
    const uint64_t upper = 320 + 128 + 192 + 64, lower = 320 + 1280 + 192 + 640;
    ck_assert_uint_eq(plan.bytes[LEDGER_KEPT], 2 * (upper + lower));
    ck_assert_uint_eq(plan_kept_of(&plan, block_at(0))->bytes, 2 * lower);
    ck_assert_uint_eq(plan_kept_of(&plan, block_at(1))->bytes, 2 * upper);
    ck_assert_uint_eq(plan_kept_of(&plan, block_at(1))->at, plan_kept_of(&plan, block_at(0))->at + 2 * lower);
}

/* By hand: 20,000 words of width 2 are three units of at most 6,667 rows; a block has 4*4 + 2*2*8 + 9*2 + 8 = 74
 * floats. */
TEST(a_whole_head_is_counted_by_hand)
{
    const uint64_t unit = 6667 * 2 * 4;

    ask(2, 3, 5);
    open_model(2, 2, 20000, false);
    lay_out();
    ck_assert_uint_eq(plan.bytes[LEDGER_WEIGHTS], 2 * unit);
    ck_assert_uint_eq(plan.bytes[LEDGER_CONTRIBUTION], unit);
    ck_assert_uint_eq(plan.bytes[LEDGER_WORKSPACE], 15 * 6667 * 4);
    choice.whole_head = true;
    lay_out();
    ck_assert_uint_eq(plan.bytes[LEDGER_WEIGHTS], 20000 * 2 * 4 + 2 * 74 * 4);
    ck_assert_uint_eq(plan.bytes[LEDGER_CONTRIBUTION], 2 * 20000 * 2 * 4 + unit); /* and what the embedding visits */
    ck_assert_uint_eq(plan.bytes[LEDGER_WORKSPACE], 15 * 20000 * 4);
    /* of 6,666 rows, and 6,667, each rounded up to 64 bytes */
    ck_assert_uint_eq(plan_resident(&plan, &model, plan_unit_at(&model, 2)) - plan.resident, 53376 + 53376);
}

/* By hand, of the same units where rows come in eights: of 6,672 each. The least tile is the microbatch. */
TEST(a_padded_head_is_counted_by_hand)
{
    const uint64_t padded = 6672 * 2 * 4;
    struct plan_backend backend = plan_cuda;

    ask(2, 3, 5);
    backend.head_tile = 4;
    setting.backend = &plan_cuda;
    open_model(2, 2, 20000, false);
    lay_out();
    ck_assert_uint_eq(plan.bytes[LEDGER_WEIGHTS], 2 * padded);
    ck_assert_uint_eq(plan.bytes[LEDGER_CONTRIBUTION], 2 * padded);
    ck_assert_uint_eq(plan.bytes[LEDGER_WORKSPACE], 15 * 6672 * 4);
    choice.whole_head = true;
    lay_out();
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
    setting.backend = &backend;
    lay_out();
    ck_assert_uint_eq(plan.bytes[LEDGER_WORKSPACE], 4 * 3 * 6672 * 4);
}

/* By hand: of two units in turn, whose microbatches are 5 of 30 tokens, in bf16. What they add up takes another
 * boundary, and the room that its rounding begins in; on the host another boundary there, and on the device nothing. In
 * one pass it is a tile of 15 tokens in the workspace. */
TEST(a_gradient_in_fp32_is_counted_by_hand)
{
    struct plan_backend rounds = plan_cuda;

    ask(2, 3, 5);
    rounds.head_sums = false;
    setting.goal.precision = NUMBER_BF16;
    open_model(2, 2, 10000, false);
    for (unsigned i = 0; i < 4; i++) {
        const bool host = i & 1, whole = i & 2;
        choice.host_stash = host;
        choice.whole_head = whole;
        setting.backend = &rounds;
        lay_out();
        const struct plan without = plan;
        setting.backend = &plan_cuda;
        lay_out();
        ck_assert(plan.head_sums && !without.head_sums);
        ck_assert_uint_eq(plan.bytes[LEDGER_GRADIENT] - without.bytes[LEDGER_GRADIENT],
                          host || whole ? 0 : 30 * 2 * 2 + PLAN_CUDA_ROUNDING_BYTES);
        ck_assert_uint_eq(plan.host_stash_bytes - without.host_stash_bytes, host && !whole ? 128 : 0);
        ck_assert_uint_eq(plan.bytes[LEDGER_WORKSPACE] - without.bytes[LEDGER_WORKSPACE], whole ? 15 * 2 * 4 : 0);
        if (!whole)
            ck_assert_uint_eq(plan.gradient_sum - plan.gradient, host ? 0 : PLAN_CUDA_ROUNDING_BYTES);
    }
}

/* By hand: contributions in fp32 as they were; in bf16 a sum, or all that lie side by side for the head, with 256 bytes
 * before it. */
TEST(sums_that_are_rounded_have_room_before_them)
{
    struct plan_backend backend = backend_beside(&sizes_only);

    ask(3, 1, 5);
    backend.rounding_bytes = 256;
    setting.backend = &backend;
    choice.whole_head = true;
    open_model(2, 8, 11, false);
    lay_out();
    const struct plan wide = plan;
    setting.goal.grad = NUMBER_BF16;
    lay_out();
    ck_assert_uint_eq(wide.rounding_bytes, 0);
    ck_assert_uint_eq(plan.rounding_bytes, 256);
    ck_assert_uint_eq(plan.arena_bytes - wide.arena_bytes, 3 * 256); /* the head's and two sets */
    ck_assert_uint_eq(plan.bytes[LEDGER_CONTRIBUTION] - wide.bytes[LEDGER_CONTRIBUTION], 3 * 256);
    ck_assert_uint_eq(plan.head, wide.head + 256);
    ck_assert_uint_eq(plan.head_bytes, wide.head_bytes);
    ck_assert_uint_eq(plan.contribution[0], wide.contribution[0] + 2 * 256);
    ck_assert_uint_eq(plan.contribution[1], wide.contribution[1] + 3 * 256);
    setting.backend = &sizes_only;
    lay_out();
    ck_assert_uint_eq(plan.rounding_bytes, 0);
}

/* By hand, of matrices of 8 x 24, 8 x 8, and twice 8 x 32: a unit's weights in all their places, in bf16, but one
 * gradient, in fp32. */
TEST(sparse_weights_have_one_gradient_in_all_its_places)
{
    const struct sparse half = {.keep = 0.5, .room = 1};

    ask(3, 1, 5);
    setting.goal.precision = NUMBER_BF16;
    open_model(2, 8, 11, false);
    model_sparsify(&model, &half);
    lay_out();
    const struct model_unit *const block = &model.units[model.visits[block_at(0)->first_visit]];
    ck_assert_uint_eq(block->n_decoded, 8 * 24 + 8 * 8 + 2 * 8 * 32);
    ck_assert_uint_eq(plan.contribution[0] - plan.dense, 8 * 32 * 4);
    ck_assert_uint_eq(sum_of(&plan), plan_total(&plan));
}

/* The same: of the decoded weights no byte remains, as the gradient's place holds one matrix of them. */
TEST(sparse_weights_that_are_decoded_singly_need_no_place_of_their_own)
{
    const struct sparse half = {.keep = 0.5, .room = 1};
    struct plan whole;

    ask(3, 1, 5);
    setting.goal.precision = NUMBER_BF16;
    open_model(2, 8, 11, false);
    model_sparsify(&model, &half);
    lay_out();
    whole = plan;
    choice.sparse_singly = true;
    lay_out();
    ck_assert_uint_eq(whole.arena_bytes - plan.arena_bytes, 2 * (8 * 24 + 8 * 8 + 2 * 8 * 32));
    ck_assert_uint_eq(whole.bytes[LEDGER_WEIGHTS] - plan.bytes[LEDGER_WEIGHTS], whole.arena_bytes - plan.arena_bytes);
    ck_assert_uint_eq(plan.contribution[0] - plan.dense, 8 * 32 * 4);
    ck_assert_uint_eq(sum_of(&plan), plan_total(&plan));
    choice.sparse_singly = false;
}

/* ---- where everything lies ---- */

struct extent {
    uint64_t at, bytes;
};

static struct extent extents[600];
static size_t n_extents;
static uint64_t wanted[LEDGER_CATEGORIES]; /* bytes */

static void add(enum ledger_category category, uint64_t at, uint64_t bytes)
{
    ck_assert_uint_lt(n_extents, COUNT(extents));
    extents[n_extents++] = (struct extent){at, bytes};
    wanted[category] += bytes;
}

static int by_place(const void *a, const void *b)
{
    const struct extent *x = a, *y = b;

    return x->at != y->at ? (x->at > y->at) - (x->at < y->at) : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static void add_weights(uint64_t value)
{
    const uint32_t n = plan_count_uploaded(&model);
    uint64_t largest = 0;

    for (uint32_t place = 0; place < n; place++) {
        const uint64_t bytes = model.units[plan_unit_at(&model, place)].n * value;
        if (place < plan.n_resident)
            add(LEDGER_WEIGHTS, plan_resident(&plan, &model, plan_unit_at(&model, place)), bytes);
        else
            largest = bytes > largest ? bytes : largest;
    }
    for (uint32_t i = 0; i < plan.n_weight_buffers; i++)
        add(LEDGER_WEIGHTS, plan.weights[i], largest);
}

/* With the stash on the host the device has tiles of a microbatch, a set of them or two; the host has the boundaries,
 * each in whole cache lines, and one gradient. Of so many bytes each. */
static void add_boundaries(uint64_t value, uint64_t bytes, uint32_t n_sets)
{
    const bool trains = setting.goal.purpose == PLAN_TRAIN;
    const uint64_t width = model.config.width * value, tile = choice.microbatch * setting.goal.seq * width;
    const uint32_t n = trains ? model.n_layers - 1 : 2;

    for (uint32_t set = 0; choice.host_stash && set < n_sets; set++) {
        add(LEDGER_STASH, plan.input[set], tile), add(LEDGER_STASH, plan.output[set], tile);
        if (trains)
            add(LEDGER_GRADIENT, plan.dy[set], tile);
    }
    for (uint32_t i = 0; !choice.host_stash && i < n; i++)
        add(LEDGER_STASH, (trains ? plan.values[0].stashed : plan.values[0].passing) + i * plan.values[0].bytes, bytes);
    if (trains && !choice.host_stash)
        add(LEDGER_GRADIENT, plan.gradient, bytes);
    ck_assert_uint_eq(plan.host_stash_bytes, choice.host_stash ? (n + trains) * ((bytes + 63) / 64 * 64) : 0);
}

/* Contributions are in fp32 whatever the values are. Beside the host two buffers bring two sums, or as many as are
 * chosen, but no more than there are contributions without a place of their own, as the head's have of several parts or
 * units. */
static void add_gradients(bool in_turn)
{
    const struct model_layer *head = plan_head(&model);
    const uint32_t parts = setting.share_rows / setting.part_rows;
    uint32_t n_contributions = 0;
    uint64_t largest = 0;

    ck_assert_int_eq(plan.head_apart, choice.whole_head && (parts > 1 || head->n_visits > 1));
    for (uint32_t visit = 0; visit < model.n_visits; visit++) {
        const uint64_t bytes = model.units[model.visits[visit]].n * 4;
        const bool apart = plan.head_apart && visit >= head->first_visit;
        largest = !apart && bytes > largest ? bytes : largest;
        n_contributions += apart ? 0 : parts;
        for (uint32_t part = 0; apart && part < parts; part++)
            add(LEDGER_CONTRIBUTION, plan_head_contribution(&plan, &model, part, visit - head->first_visit), bytes);
    }
    const uint32_t n_sums = in_turn ? 1 : choice.n_sums < 2 ? 2 : choice.n_sums;
    ck_assert_uint_eq(plan.n_sums, n_sums < n_contributions ? n_sums : n_contributions);
    for (uint32_t i = 0; i < plan.n_sums; i++)
        add(LEDGER_CONTRIBUTION, plan.contribution[i], largest);
    for (uint32_t i = 0; i < model.config.n_layers; i++) {
        const struct plan_kept *kept = plan_kept_of(&plan, block_at(i));
        add(LEDGER_KEPT, kept->at + (i - kept->first) * kept->bytes, kept->bytes);
    }
}

static void draw(uint64_t *state)
{
    const uint32_t parts = 1 + setting_below(state, 3), part_rows = 1 + setting_below(state, 5);

    open_model(1 + setting_below(state, 5), 2 * (1 + setting_below(state, 9)),
               setting_below(state, 3) ? 5 + setting_below(state, 40) : 20000, setting_below(state, 2));
    ask(parts, part_rows, 1 + setting_below(state, 7));
    setting.goal.purpose = (enum plan_purpose)setting_below(state, 3);
    setting.goal.precision = (enum number_type)setting_below(state, 2);
    setting_choose(&choice, &model, state);
    choice.microbatch = 1 + setting_below(state, part_rows);
    choice.n_cuts = 0; /* of segments: test_cuts.c */
    if (setting.goal.purpose != PLAN_TRAIN)
        choice.keeping[0] = (struct plan_keeping){0}, choice.whole_head = false;
    if (setting.goal.purpose == PLAN_GENERATE) {
        setting.share_rows = setting.part_rows;
        choice.host_stash = false;
    }
}

/* Of any plan: one buffer after another, aligned, from the arena's start to its end, which is not rounded; and each in
 * its category. */
TEST(buffers_lie_apart_and_fill_the_arena)
{
    static const enum ledger_category exact[] = {LEDGER_WEIGHTS, LEDGER_STASH, LEDGER_GRADIENT, LEDGER_STATISTICS,
                                                 LEDGER_DATA,    LEDGER_CACHE, LEDGER_KEPT,     LEDGER_CONTRIBUTION};
    const struct plan_backend beside = backend_beside(&sizes_only);
    uint64_t state = 88172645463325252;

    for (int i = 0; i < 300; i++) {
        draw(&state);
        setting.backend = i % 2 ? &beside : &sizes_only;
        lay_out();
        const uint64_t value = number_bytes(setting.goal.precision);
        const bool generates = setting.goal.purpose == PLAN_GENERATE;
        const uint64_t tokens = (uint64_t)(generates ? choice.microbatch : setting.share_rows) * setting.goal.seq;
        const bool in_turn = i % 2 == 0 || plan.choice.n_weight_buffers == 1;
        n_extents = 0;
        memset(wanted, 0, sizeof wanted);
        add_weights(value);
        ck_assert_uint_eq(plan.n_sets, in_turn ? 1 : 2);
        const uint64_t row = setting.goal.seq * model.config.width * value, padding = (row + 63) / 64 * 64 - row;
        add_boundaries(value, tokens * model.config.width * value + (generates ? (choice.microbatch - 1) * padding : 0),
                       plan.n_sets);
        add(LEDGER_DATA, plan.ids, tokens * 4), add(LEDGER_WORKSPACE, plan.workspace, plan.workspace_bytes);
        if (setting.goal.purpose == PLAN_TRAIN)
            add_gradients(in_turn);
        if (setting.goal.purpose == PLAN_GENERATE) {
            for (uint32_t b = 0; b < choice.microbatch * model.config.n_layers; b++)
                add(LEDGER_CACHE, plan.cache + b * plan.caches[0].bytes,
                    cache(setting.goal.precision, setting.goal.seq, 2, model.config.width));
            for (uint32_t r = 0; r < choice.microbatch; r++)
                add(LEDGER_DATA, plan.logits + r * plan.logits_stride * 4, model.config.vocabulary * 4);
        } else {
            add(LEDGER_STATISTICS, plan.running, tokens * 12), add(LEDGER_STATISTICS, plan.losses, tokens * 8);
            add(LEDGER_DATA, plan.labels, tokens * 4);
        }
        add(LEDGER_OTHER, (plan.arena_bytes + 63) / 64 * 64, 0);
        qsort(extents, n_extents, sizeof *extents, by_place);
        ck_assert_uint_eq(extents[0].at, 0);
        for (size_t k = 0; k + 1 < n_extents; k++)
            if (extents[k + 1].at != (extents[k].at + extents[k].bytes + 63) / 64 * 64)
                ck_abort_msg("plan %d: %zu of %zu ends apart from the next", i, k, n_extents);
        for (int k = 0; k < COUNT(exact); k++)
            ck_assert_msg(plan.bytes[exact[k]] == wanted[exact[k]], "plan %d: %s of %ju, not %ju", i,
                          ledger_name(exact[k]), (uintmax_t)plan.bytes[exact[k]], (uintmax_t)wanted[exact[k]]);
        ck_assert_uint_eq(sum_of(&plan), plan.arena_bytes + plan.bytes[LEDGER_LIBRARY]);
        ck_assert_uint_eq(plan_total(&plan), sum_of(&plan));
    }
}
