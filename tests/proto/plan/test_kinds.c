/* Blocks of several kinds, in periods: the plan, the search and the cost against what lists each block by itself. */
#include "tests/kit/device/backend.h"
#include "tests/kit/device/setting.h"
#include "tests/kit/inprocess/model.h"
#include "tests/kit/test.h"

#include "proto/model/family.h"
#include "proto/operation/operation.h"
#include "proto/plan/time/cost.h"
#include "proto/plan/memory/layers.h"
#include "proto/plan/search.h"
#include "proto/plan/memory/units.h"
#include "proto/plan/time/work.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ATTENDS, MIXES, GROUPED, WINDOW, WHOLE, KINDS };

/* GPT-2's attention, with so many heads of keys and values and so wide a window. */
static void write_attention(struct program *p, const struct model_config *c, uint32_t n_kv_heads, uint32_t window)
{
    const struct program_norm_options norm = {.epsilon = c->norm_epsilon, .bias = true};
    const struct program_linear_options linear = {.deviation = c->initializer_range, .bias = true};
    const struct program_attention_options attention = {.n_heads = c->n_heads,
                                                        .n_kv_heads = n_kv_heads,
                                                        .scale = 1,
                                                        .window = window};
    const struct program_dropout none = {0};
    const uint32_t columns = c->width + 2 * n_kv_heads * (c->width / c->n_heads);

    const int x = program_begin(p, c->width);
    const int n = program_norm(p, x, "ln_a", &norm);
    const int a = program_attention(p, program_linear(p, n, "qkv", columns, &linear), &attention);
    program_end(p, program_add(p, x, program_linear(p, a, "out", c->width, &linear), &none));
}

static void write_attends(struct program *p, const struct model_config *c)
{
    write_attention(p, c, c->n_heads, 0);
}

static void write_grouped(struct program *p, const struct model_config *c)
{
    write_attention(p, c, c->n_heads / 2, 0);
}

static void write_window(struct program *p, const struct model_config *c)
{
    write_attention(p, c, c->n_heads, 3);
}

static void write_mixes(struct program *p, const struct model_config *c)
{
    const struct program_norm_options norm = {.epsilon = c->norm_epsilon, .bias = true};
    const struct program_linear_options linear = {.deviation = c->initializer_range, .bias = true};
    const struct program_dropout none = {0};

    const int x = program_begin(p, c->width);
    const int n = program_norm(p, x, "ln", &norm);
    const int g = program_activation(p, program_linear(p, n, "fc", c->inner_width, &linear), c->activation);
    program_end(p, program_add(p, x, program_linear(p, g, "proj", c->width, &linear), &none));
}

static void write_whole(struct program *p, const struct model_config *c)
{
    family_gpt2.layers->write(p, c);
}

static void write_norm(struct program *p, const struct model_config *c)
{
    const struct program_norm_options norm = {.epsilon = c->norm_epsilon, .bias = true};
    const int x = program_begin(p, c->width);

    program_end(p, program_norm(p, x, "ln_f", &norm));
}

static const struct family_layer layers[] = {
    {MODEL_BLOCK, "h.%u", .write = write_attends},
    {MODEL_BLOCK, "h.%u", .write = write_mixes},
    {MODEL_BLOCK, "h.%u", .write = write_grouped},
    {MODEL_BLOCK, "h.%u", .write = write_window},
    {MODEL_BLOCK, "h.%u", .write = write_whole},
    {MODEL_SINGLE, "ln_f", .write = write_norm},
    {0},
};

/* The kinds of a period. */
static const char *const patterns[] = {"0", "01", "0121", "0313", "21", "1", "001", "00001", "30"};
static const char *pattern;

static uint32_t kind_of_block(const struct model_config *config, uint32_t index)
{
    (void)config;
    return (uint32_t)(pattern[index % strlen(pattern)] - '0');
}

static struct family family;
static struct model model;
static struct plan_setting setting;
static struct plan_choice choice;
static struct profile profile;

static void set_up(void)
{
    family = family_gpt2;
    family.layers = layers;
    family.kind_of_block = kind_of_block;
    profile = *profile_default("cpu");
}

static void tear_down(void)
{
    model_free(&model);
}

SUITE_FIXTURE(set_up, tear_down)

static void open_model(const char *kinds, uint32_t n_blocks, uint32_t width, const char *frozen)
{
    struct model_config config = GPT2_CONFIG(n_blocks, 4, width, 3 * width, 64, 40, .tied = true);

    model_free(&model);
    config.family = &family;
    pattern = kinds;
    ck_assert_int_eq(model_init(&model, &config, NULL), 0);
    if (model_freeze(&model, frozen, (struct model_base){0}, NULL) == 0)
        return;
    model_free(&model); /* none of its kinds has such a tensor */
    ck_assert_int_eq(model_init(&model, &config, NULL), 0);
}

static const struct model_layer *block_at(uint32_t index)
{
    return &model.layers[model.first_block + index];
}

/* Kinds 0 and 3 differ by a window alone. */
TEST(blocks_that_keep_the_same_are_a_class_whatever_their_window)
{
    static const struct {
        const char *kinds;
        uint32_t n_blocks, n_classes, period, counts[3];
    } cases[] = {{"0", 7, 1, 1, {7}},        {"01", 7, 2, 2, {4, 3}}, {"0121", 11, 3, 4, {3, 5, 3}},
                 {"0313", 10, 2, 4, {8, 2}}, {"21", 1, 1, 1, {1}},    {"0000000033333333", 16, 1, 1, {16}},
                 {"001", 9, 2, 3, {6, 3}}};

    for (int i = 0; i < COUNT(cases); i++) {
        uint32_t n[KINDS] = {0};
        open_model(cases[i].kinds, cases[i].n_blocks, 16, NULL);
        ck_assert_uint_eq(model.n_classes, cases[i].n_classes);
        ck_assert_uint_eq(model.period, cases[i].period);
        for (uint32_t b = 0; b < cases[i].n_blocks; b++) {
            const uint32_t c = model_class_of(block_at(b));
            ck_assert_uint_eq(block_at(b)->rank, n[c]++);
            ck_assert_ptr_eq(model_ranked(&model, c, block_at(b)->rank), block_at(b));
        }
        for (uint32_t c = 0; c < cases[i].n_classes; c++) {
            ck_assert_uint_eq(n[c], cases[i].counts[c]);
            ck_assert_uint_eq(model.classes[c].n_blocks, n[c]);
            ck_assert_ptr_eq(model.classes[c].program, model_ranked(&model, c, 0)->program);
        }
    }
}

/* Each is equal to the one a period below it; of the next ones, the first is not. */
TEST_EACH(units_that_recur_are_those_between_two_that_do_not, 3)
{
    static const char *const frozen[] = {"", "h.0.*", "h.5.ln*"};
    static const uint32_t ends[][3] = {{12, 12, 12}, {4, 12, 12}, {5, 9, 12}};

    open_model("0121", 12, 16, frozen[_i]);
    const uint32_t lowest = model.visits[block_at(0)->first_visit];
    for (uint32_t b = 0, k = 0; b < 12; b++) {
        const struct model_alike *alike = &model.units[lowest + b].alike;
        k += b == ends[_i][k];
        ck_assert_uint_eq(alike->first, lowest + (k ? ends[_i][k - 1] : 0));
        ck_assert_uint_eq(alike->end, lowest + ends[_i][k]);
        ck_assert_uint_eq(alike->period, 4);
    }
}

/* A table of 300 rows of 64 is one unit of 75 KiB, as any block is small; with 40,000 rows of 1,024, 160 MB are cut by
 * the largest kind that blocks have: 2 * 3 * 1024^2 + ... of 25 MB, or attention's 4 * 1024^2 + ... of 17 MB. */
TEST(tables_are_cut_by_the_largest_kind_of_the_model)
{
    struct model_config config = GPT2_CONFIG(2, 4, 1024, 3072, 64, 40000, .tied = true);

    config.family = &family;
    for (int i = 0; i < 2; i++) {
        struct model large;
        pattern = i ? "01" : "0";
        ck_assert_int_eq(model_init(&large, &config, NULL), 0);
        const double block = i ? 2 * 3 * 1024.0 * 1024 + 6 * 1024 : 4 * 1024.0 * 1024 + 6 * 1024;
        const uint64_t n = (uint64_t)(40000 * 1024.0 / block) + 1;
        ck_assert_uint_eq(large.pieces[large.units[0].first_piece].n_rows, (40000 + n - 1) / n);
        model_free(&large);
    }
}

static void draw(uint64_t *state)
{
    static const char *const frozen[] = {"", "", "h.0.*", "h.3.ln*", "*bias"};
    const uint32_t parts = 1 + setting_below(state, 3), part_rows = 1 + setting_below(state, 5);

    open_model(patterns[setting_below(state, COUNT(patterns))], 4 + setting_below(state, 9),
               8 * (1 + setting_below(state, 4)), frozen[setting_below(state, COUNT(frozen))]);
    setting = (struct plan_setting){.backend = setting_below(state, 2) ? &plan_cpu : &plan_cuda,
                                    .goal = {.precision = (enum number_type)setting_below(state, 2),
                                             .seq = 1 + setting_below(state, 40)},
                                    .share_rows = parts * part_rows,
                                    .part_rows = part_rows,
                                    .n_threads = 2};
    choice = (struct plan_choice){.microbatch = 1 + setting_below(state, part_rows)};
    setting_choose(&choice, &model, state);
}

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Bytes that a block keeps of so many rows: value by value. */
static uint64_t kept_bytes(const struct model_program *p, uint32_t keeping, uint64_t rows)
{
    uint64_t groups[PROGRAM_KEPT_GROUPS], bytes = 0;
    int operations[PROGRAM_KEPT_GROUPS];
    const int n = program_kept_groups(&p->program, groups, operations);

    for (int i = 0; i < n; i++)
        for (int v = 0; v < p->program.n_values; v++)
            if (keeping >> i & 1 && groups[i] >> v & 1) {
                const struct program_value *value = &p->program.values[v];
                const uint64_t each = value->type == PROGRAM_STATISTIC ? 4 : number_bytes(setting.goal.precision);
                bytes += aligned(rows * setting.goal.seq * value->columns * each);
            }
    return bytes;
}

static uint32_t keeping_of(const struct model_layer *block)
{
    const uint32_t c = model_class_of(block);
    const struct plan_keeping *k = &choice.keeping[c];
    uint32_t n_above = 0; /* blocks of its class */

    for (uint32_t b = block->index + 1; b < model.config.n_layers; b++)
        n_above += model_class_of(block_at(b)) == c;
    return n_above < k->n_kept ? k->kept : k->kept_below;
}

/* The workspace that one block needs. */
static uint64_t workspace_of(const struct plan *plan, const struct model_layer *block)
{
    const uint32_t keeping = model_keeping(block->program, keeping_of(block));
    const struct plan_shape shape = plan_shape_of(plan);
    struct plan_places forward, backward = {.bytes = 0};

    plan_places(&forward, &block->program->program, &block->program->forward[keeping], &setting, shape);
    if (setting.goal.purpose == PLAN_TRAIN)
        plan_places(&backward, &block->program->program, &block->program->backward[keeping], &setting, shape);
    return forward.bytes > backward.bytes ? forward.bytes : backward.bytes;
}

static void check_kept(const struct plan *plan)
{
    const uint64_t full = setting.part_rows / choice.microbatch, rest = setting.part_rows % choice.microbatch;
    uint64_t at = plan->kept[0][0].at, sum = 0, workspace = 0;

    for (uint32_t c = 0; c < model.n_classes; c++)
        for (uint32_t b = 0; b < model.config.n_layers; b++) {
            const struct model_layer *block = block_at(b);
            const uint32_t keeping = keeping_of(block);
            if (model_class_of(block) != c)
                continue;
            const struct plan_kept *kept = plan_kept_of(plan, block);
            const uint64_t part = full * kept_bytes(block->program, keeping, choice.microbatch) +
                                  (rest ? kept_bytes(block->program, keeping, rest) : 0);
            ck_assert_uint_eq(plan_keeping_of(plan, block), model_keeping(block->program, keeping));
            ck_assert_uint_eq(kept->at + (block->rank - kept->first) * kept->bytes, at);
            ck_assert_uint_eq(kept->bytes, setting.share_rows / setting.part_rows * part);
            at += kept->bytes, sum += kept->bytes;
            workspace = workspace_of(plan, block) > workspace ? workspace_of(plan, block) : workspace;
        }
    ck_assert_uint_eq(plan->bytes[LEDGER_KEPT], sum);
    ck_assert_uint_eq(plan->running, at);
    ck_assert_uint_eq(plan_workspace(plan, &model, MODEL_BLOCK, NULL), workspace);
}

static void check_weights(const struct plan *plan)
{
    uint64_t at = plan->resident, largest = 0, sum = 0;

    for (uint32_t place = 0; place < plan_count_uploaded(&model); place++) {
        const uint32_t unit = plan_unit_at(&model, place);
        const uint64_t bytes = plan_unit_room(&model, unit, plan->head_pad) * number_bytes(setting.goal.precision);
        if (place < plan->n_resident) {
            ck_assert_uint_eq(plan_resident(plan, &model, unit), at);
            at += aligned(bytes);
        } else if (bytes > largest)
            largest = bytes;
    }
    if (plan->n_weight_buffers > 0)
        ck_assert_uint_eq(plan->weights[0], at);
    if (plan->n_weight_buffers > 1)
        ck_assert_uint_eq(plan->weights[1], at + aligned(largest));
    for (uint32_t visit = 0; visit < model.n_visits - plan_count_apart(plan, &model); visit++) {
        const uint64_t bytes = 4 * plan_unit_sum(&model, model.visits[visit], plan->head_pad);
        sum = bytes > sum ? bytes : sum;
    }
    if (setting.goal.purpose == PLAN_TRAIN && plan->n_sums > 1)
        ck_assert_uint_eq(plan->contribution[1] - plan->contribution[0], aligned(sum) + aligned(plan->rounding_bytes));
}

/* Of each block by itself, class after class. */
static void check_caches(const struct plan *plan)
{
    uint64_t sum = 0, at = 0;

    for (uint32_t c = 0; c < model.n_classes; c++)
        for (uint32_t b = 0; b < model.config.n_layers; b++) {
            const struct model_layer *block = block_at(b);
            const uint32_t width = model.config.width;
            const bool attends = block->program->kind != MIXES;
            const bool grouped = block->program->kind == GROUPED;
            const uint64_t bytes = attends ? setting.backend->cache_bytes(setting.goal.precision, setting.goal.seq,
                                                                          grouped ? 2 : 4, grouped ? width / 2 : width)
                                           : 0;
            if (model_class_of(block) != c)
                continue;
            ck_assert_uint_eq(plan_block_cache(plan, block), at);
            at += aligned(bytes), sum += bytes;
        }
    ck_assert_uint_eq(plan->row_cache_bytes, at);
    ck_assert_uint_eq(plan->bytes[LEDGER_CACHE], choice.microbatch * sum);
    ck_assert_uint_eq(plan_row_cache(plan, choice.microbatch), plan->cache + choice.microbatch * at);
}

TEST(every_block_has_what_a_list_of_all_blocks_gives_it)
{
    uint64_t state = 88172645463325252;

    for (int i = 0; i < 300; i++) {
        struct plan plan;
        draw(&state);
        setting.goal.purpose = i % 3 ? PLAN_TRAIN : PLAN_GENERATE;
        if (setting.goal.purpose == PLAN_GENERATE) {
            setting.share_rows = setting.part_rows;
            memset(choice.keeping, 0, sizeof choice.keeping);
            choice.host_stash = choice.whole_head = false;
            choice.n_cuts = 0;
        }
        ck_assert_int_eq(plan_check_choice(&model, &setting, &choice, NULL), 0);
        plan_lay_out(&plan, &model, &setting, &choice);
        check_weights(&plan);
        if (setting.goal.purpose == PLAN_GENERATE)
            check_caches(&plan);
        else
            check_kept(&plan);
    }
}

/* Attention with a window has another way to compute than attention without one, and other scratch. */
TEST_EACH(a_class_has_the_workspace_of_its_kind_with_the_most_scratch, 2)
{
    struct plan plan;

    open_model(_i ? "30" : "03", 4, 64, NULL); /* heads of 16 or 32: of 64 none would have stored scores */
    setting = (struct plan_setting){.backend = &plan_cuda,
                                    .goal = {.precision = NUMBER_BF16, .seq = 256},
                                    .share_rows = 2,
                                    .part_rows = 2,
                                    .n_threads = 1,
                                    .attention = PLAN_ATTENTION_SCORES};
    choice = (struct plan_choice){.microbatch = 2, .n_weight_buffers = 1};
    plan_lay_out(&plan, &model, &setting, &choice);
    ck_assert_uint_eq(model.n_classes, 1);
    ck_assert_uint_ne(workspace_of(&plan, block_at(0)), workspace_of(&plan, block_at(1)));
    check_kept(&plan);
}

TEST(what_a_class_cannot_keep_is_refused)
{
    struct error err;

    open_model("01", 5, 16, NULL);
    setting =
        (struct plan_setting){.backend = &plan_cpu, .goal.seq = 4, .share_rows = 2, .part_rows = 2, .n_threads = 1};
    choice = (struct plan_choice){.microbatch = 1, .n_weight_buffers = 1, .keeping = {{3, 1}, {2, 1}}};
    ck_assert_int_eq(plan_check_choice(&model, &setting, &choice, &err), 0);
    choice.keeping[1].n_kept = 3;
    ck_assert_int_ne(plan_check_choice(&model, &setting, &choice, &err), 0);
    ck_assert_holds(err.text, "3 blocks keep activations: the model has 2");
    choice.keeping[1].n_kept = 2, choice.keeping[2] = (struct plan_keeping){1, 1, 0};
    ck_assert_int_ne(plan_check_choice(&model, &setting, &choice, &err), 0);
    ck_assert_holds(err.text, "1 blocks keep activations: the model has 0");
}

/* ---- recurring units and visits, against each by itself ---- */

/* A copy in which nothing recurs, so that each unit and visit is taken by itself. */
static struct model without_periods(struct model_unit *units)
{
    struct model other = model;

    memcpy(units, model.units, model.n_units * sizeof *units);
    for (uint32_t u = 0; u < model.n_units; u++)
        units[u].alike = (struct model_alike){u, u + 1, 1};
    other.units = units;
    return other;
}

static void check_same(double one, double other)
{
    ck_assert_double_eq_tol(one, other, 1e-9 * other + 1e-30);
}

/* 60 blocks, of which most visits are skipped, on devices that take turns and that do not. */
TEST(a_period_at_a_time_is_as_long_and_as_large_as_each_block_by_itself)
{
    static const char *const frozen[] = {
        "", "", "h.0.*", "h.30.*", "h.2?.*,wte*,wpe*,h.1.*,h.0.*", "wte*,wpe*,*.ln_a.*,*.qkv.*,*.out.*", "wte*,wpe*"};
    const struct plan_backend backends[] = {plan_cpu, backend_beside(&plan_cpu)};
    struct model_unit units[80];
    uint64_t state = 2463534242u;

    for (int i = 0; i < 1000; i++) {
        struct plan plan, slow;
        struct plan_cost cost, walked;
        open_model(patterns[setting_below(&state, COUNT(patterns))], 60, 16,
                   frozen[setting_below(&state, COUNT(frozen))]);
        ck_assert_uint_le(model.n_units, COUNT(units));
        const struct model each = without_periods(units);
        const uint32_t parts = 1 + setting_below(&state, 2), part_rows = 1 + setting_below(&state, 3);
        setting = (struct plan_setting){.backend = &backends[i % 2],
                                        .goal = {.seq = 1 + setting_below(&state, 16), .n_parts = parts},
                                        .share_rows = parts * part_rows,
                                        .part_rows = part_rows,
                                        .n_threads = 2};
        choice = (struct plan_choice){.microbatch = 1 + setting_below(&state, part_rows)};
        setting_choose(&choice, &model, &state);
        const struct plan_host_setting host = {.goal = setting.goal, .n_workers = 1};
        profile.link_bytes_per_s = 1e6 * (1 << setting_below(&state, 14));
        plan_lay_out(&plan, &model, &setting, &choice);
        plan_lay_out(&slow, &each, &setting, &choice);
        ck_assert_mem_eq(&plan, &slow, sizeof plan);
        plan_cost(&cost, &plan, &model, &host, &profile, NULL);
        plan_cost(&walked, &plan, &each, &host, &profile, NULL);
        check_same(cost.step_ms, walked.step_ms), check_same(cost.compute_ms, walked.compute_ms);
        check_same(cost.pull_ms, walked.pull_ms), check_same(cost.push_ms, walked.push_ms);
        check_same(cost.stash_ms, walked.stash_ms), check_same(cost.optimizer_ms, walked.optimizer_ms);
        ck_assert_uint_eq(cost.down_bytes, walked.down_bytes);
        ck_assert_uint_eq(cost.up_bytes, walked.up_bytes);
        ck_assert_uint_eq(cost.stash_bytes, walked.stash_bytes);
    }
}

/* Of one model and setting, in an order in which microbatches change and come again. */
TEST(workspaces_that_are_remembered_are_those_of_each_plan)
{
    uint64_t state = 362436069u;

    for (size_t i = 0; i < COUNT(patterns); i++) {
        struct plan_workspaces known = {0};
        open_model(patterns[i], 60, 16, NULL);
        setting = (struct plan_setting){
            .backend = &plan_cpu, .goal = {.seq = 8, .n_parts = 1}, .share_rows = 3, .part_rows = 3, .n_threads = 2};
        for (int k = 0; k < 50; k++) {
            struct plan plan, alone;
            choice = (struct plan_choice){.microbatch = 1 + setting_below(&state, 3)};
            setting_choose(&choice, &model, &state);
            plan_lay_out_next(&plan, &model, &setting, &choice, &known);
            plan_lay_out(&alone, &model, &setting, &choice);
            ck_assert_mem_eq(&plan, &alone, sizeof plan);
        }
    }
}

/* ---- the chain ---- */

enum { MOST_MIXES = 40000 };

/* All that the blocks of two classes may keep, by bytes and by seconds saved. */
static struct mix {
    uint64_t bytes;
    double saved;
} mixes[MOST_MIXES];
static uint32_t n_mixes;
static double seconds[MODEL_CLASSES][MODEL_KEEPINGS]; /* of a block */

static void price_blocks(void)
{
    const struct plan plan = {.setting = setting, .choice = choice};
    struct plan_prices prices = {0};
    struct plan_work work;

    plan_work_init(&work, &plan, &model, &profile, &prices);
    for (uint32_t c = 0; c < model.n_classes; c++)
        for (uint32_t k = 0; k < MODEL_KEEPINGS; k++)
            seconds[c][k] = plan_work_keeping(&work, c, k);
}

static double saved_by(const struct plan_choice *of)
{
    double saved = 0;

    for (uint32_t c = 0; c < model.n_classes; c++) {
        const struct plan_keeping *k = &of->keeping[c];
        saved += k->n_kept * (seconds[c][0] - seconds[c][k->kept]);
        saved += (model.classes[c].n_blocks - k->n_kept) * (seconds[c][0] - seconds[c][k->kept_below]);
    }
    return saved;
}

static void add_mix(void)
{
    struct plan plan;

    plan_lay_out(&plan, &model, &setting, &choice);
    ck_assert_uint_lt(n_mixes, MOST_MIXES);
    mixes[n_mixes++] = (struct mix){plan_total(&plan), saved_by(&choice)};
}

/* Every number of blocks with every set, above every set, of this class and those after it. */
static void add_mixes(uint32_t c)
{
    if (c == model.n_classes || c == MODEL_CLASSES) {
        add_mix();
        return;
    }
    const uint32_t n_keepings = model.classes[c].program->n_keepings;
    choice.keeping[c] = (struct plan_keeping){0};
    add_mixes(c + 1);
    for (uint32_t n = 1; n <= model.classes[c].n_blocks; n++)
        for (uint32_t kept = 1; kept < n_keepings; kept++)
            for (uint32_t below = 0; below < (n < model.classes[c].n_blocks ? n_keepings : 1); below++) {
                choice.keeping[c] = (struct plan_keeping){n, kept, below};
                add_mixes(c + 1);
            }
}

/* Whatever fits a budget, and whatever else it holds. */
static double most_saved(uint64_t budget)
{
    double most = 0;

    for (const struct mix *mix = mixes; mix < mixes + n_mixes; mix++)
        most = mix->bytes <= budget && mix->saved > most ? mix->saved : most;
    return most;
}

/* Copies cost nothing here, so that all of the memory goes to what blocks keep. The search takes what is within a
 * thousandth of the best step for as good. */
TEST_EACH(no_mix_of_classes_saves_more_than_the_chosen_one_by_more_than_a_block, 5)
{
    static const struct {
        const char *kinds;
        uint32_t n_blocks;
    } cases[] = {{"01", 16}, {"0121", 8}, {"1110", 12}, {"14", 6}, {"02", 10}};
    const struct plan_wish wish = {.microbatch = 4, .no_host_stash = true};
    double of_block = 0;

    open_model(cases[_i].kinds, cases[_i].n_blocks, 64, NULL);
    setting = (struct plan_setting){
        .backend = &plan_cpu, .goal = {.seq = 64, .n_parts = 1}, .share_rows = 4, .part_rows = 4, .n_threads = 1};
    choice = (struct plan_choice){.microbatch = 4, .n_weight_buffers = 1, .whole_head = true};
    profile.link_bytes_per_s = profile.update_parameters_per_s = 1e18;
    price_blocks();
    for (uint32_t c = 0; c < model.n_classes; c++)
        for (uint32_t k = 0; k < MODEL_KEEPINGS; k++)
            of_block = fmax(of_block, seconds[c][0] - seconds[c][k]);
    n_mixes = 0;
    add_mixes(0);
    uint64_t least = UINT64_MAX, most = 0;
    for (const struct mix *mix = mixes; mix < mixes + n_mixes; mix++)
        least = mix->bytes < least ? mix->bytes : least, most = mix->bytes > most ? mix->bytes : most;
    for (int i = 0; i <= 40; i++) {
        const uint64_t budget = least + (most - least) * (uint64_t)i / 40;
        struct plan_cost cost;
        struct plan plan;
        ck_assert_int_eq(plan_search(&plan, &model, &setting, &wish, &profile, budget, NULL), 0);
        const struct plan_host_setting host = {.goal = setting.goal, .n_workers = 1};
        plan_cost(&cost, &plan, &model, &host, &profile, NULL);
        const double lost = most_saved(budget) - saved_by(&plan.choice);
        ck_assert_msg(lost <= of_block + 0.001 * cost.step_ms / 1e3, "budget %d of 40: %.3g of a block more saved", i,
                      lost / of_block);
    }
}

/* As with blocks of one kind: from the smallest budget on, in steps of a twentieth. */
TEST_EACH(the_smallest_budget_suffices_and_more_is_never_slower, COUNT(patterns))
{
    const struct plan_backend beside = backend_beside(&plan_cpu);
    const struct plan_wish wish = {0};
    struct plan plan;
    double before = INFINITY;

    open_model(patterns[_i], 10, 32, NULL);
    setting = (struct plan_setting){.backend = _i % 2 ? &beside : &plan_cpu,
                                    .goal = {.seq = 32, .n_parts = 2},
                                    .share_rows = 8,
                                    .part_rows = 4,
                                    .n_threads = 1};
    plan_smallest(&plan, &model, &setting, &wish);
    const uint64_t least = plan_total(&plan);
    ck_assert_int_ne(plan_search(&plan, &model, &setting, &wish, &profile, least - 1, NULL), 0);
    for (uint64_t budget = least; budget < 4 * least; budget += budget / 20) {
        const struct plan_host_setting host = {.goal = {.n_parts = 2}, .n_workers = 1};
        struct plan_cost cost;
        ck_assert_int_eq(plan_search(&plan, &model, &setting, &wish, &profile, budget, NULL), 0);
        ck_assert_uint_le(plan_total(&plan), budget);
        plan_cost(&cost, &plan, &model, &host, &profile, NULL);
        ck_assert_double_le(cost.step_ms, 1.001001 * before); /* what differs by less is a tie */
        before = fmin(before, cost.step_ms);
    }
}
