#include "tests/kit/device/backend.h"
#include "tests/kit/inprocess/model.h"
#include "tests/kit/test.h"

#include "proto/plan/time/cost.h"
#include "proto/plan/search.h"
#include "proto/plan/memory/units.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

SUITE_LABELS(single)

/* What differs by less is a tie. */
#define THOUSANDTH 1.001001

static const struct profile *profile;
static const struct plan_wish free_choice;

static struct model model_of(uint32_t n_layers, uint32_t width, uint32_t vocabulary, bool tied)
{
    const struct model_config config =
        GPT2_CONFIG(n_layers, width / 64, width, 4 * width, 1024, vocabulary, .tied = tied, GPT2_ON(scale_attention));
    struct model model;
    struct error err = {""};

    ck_assert_msg(model_init(&model, &config, &err) == 0, "%s", err.text);
    return model;
}

static struct plan_setting setting_of(enum plan_purpose purpose, uint32_t rows, uint32_t seq)
{
    return (struct plan_setting){.backend = &plan_cpu,
                                 .goal = {.purpose = purpose, .seq = seq},
                                 .share_rows = rows,
                                 .part_rows = rows,
                                 .n_threads = 2};
}

/* Of a step, or of a token of a text. */
static double ms_of(const struct plan *plan, const struct model *model)
{
    const struct plan_host_setting host = {.goal.purpose = plan->setting.goal.purpose,
                                           .goal.n_parts = 1,
                                           .n_workers = 1};
    struct plan_cost cost;

    plan_cost(&cost, plan, model, &host, profile, NULL);
    return plan->setting.goal.purpose == PLAN_GENERATE ? cost.step_ms / plan->choice.microbatch : cost.step_ms;
}

/* The same device working beside the host, so that weight buffers are worth something. */
static const struct plan_backend *beside(void)
{
    static struct plan_backend backend;

    backend = backend_beside(&plan_cpu);
    return &backend;
}

static const struct {
    uint32_t n_layers, width, vocabulary;
    bool tied;
    enum plan_purpose purpose;
    uint32_t rows, seq;
    bool is_beside;
    enum number_type precision;
} cases[] = {
    {12, 768, 50257, true, PLAN_TRAIN, 8, 1024, false, NUMBER_FP32},
    {12, 768, 50257, true, PLAN_TRAIN, 7, 1024, false, NUMBER_BF16},
    {2, 128, 256, true, PLAN_TRAIN, 16, 64, false, NUMBER_FP32},
    {24, 128, 256, false, PLAN_TRAIN, 16, 64, true, NUMBER_FP32},
    {1, 64, 9000, false, PLAN_TRAIN, 1, 1, true, NUMBER_BF16},
    {12, 768, 50257, false, PLAN_EVALUATE, 8, 512, false, NUMBER_FP32},
    {12, 768, 50257, true, PLAN_GENERATE, 1, 1024, false, NUMBER_FP32},
    {3, 128, 50257, false, PLAN_GENERATE, 1, 1000, true, NUMBER_BF16},
    {3, 128, 5000, false, PLAN_GENERATE, 5, 300, false, NUMBER_FP32},
};
static struct plan_setting setting_case(int i)
{
    struct plan_setting s = setting_of(cases[i].purpose, cases[i].rows, cases[i].seq);

    s.goal.precision = cases[i].precision;
    if (cases[i].is_beside)
        s.backend = beside();
    return s;
}

static void set_up(void)
{
    profile = profile_default("cpu");
}

SUITE_FIXTURE_ONCE(set_up, NULL)

static void check_both(const char *text, uint64_t one, uint64_t other)
{
    char bytes[2][40];

    snprintf(bytes[0], sizeof bytes[0], "(%" PRIu64 " bytes)", one);
    snprintf(bytes[1], sizeof bytes[1], "(%" PRIu64 " bytes)", other);
    ck_assert_holds(text, bytes[0], bytes[1]);
}

/* From a byte below the smallest to more than anything needs, in steps of a twentieth. */
TEST_EACH(a_larger_budget_never_predicts_a_longer_step, COUNT(cases))
{
    const struct plan_setting s = setting_case(_i);
    struct model model = model_of(cases[_i].n_layers, cases[_i].width, cases[_i].vocabulary, cases[_i].tied);
    struct plan smallest, plan;
    struct error err = {""};
    double before = 0;
    uint32_t n_different = 0;

    plan_smallest(&smallest, &model, &s, &free_choice);
    const uint64_t least = plan_total(&smallest);
    ck_assert_int_eq(plan_search(&plan, &model, &s, &free_choice, profile, least, &err), 0);
    ck_assert_uint_eq(plan_total(&plan), least);
    ck_assert_int_eq(plan_search(&plan, &model, &s, &free_choice, profile, least - 1, &err), -ENOSPC);
    ck_assert_uint_eq(plan_total(&plan), least);
    check_both(err.text, least, least - 1);
    ck_assert_int_eq(plan_search(&plan, &model, &s, &free_choice, profile, 0, &err), -ENOSPC);
    for (uint64_t budget = least; budget < (uint64_t)1 << 38; budget += budget / 20 + 1) {
        ck_assert_msg(plan_search(&plan, &model, &s, &free_choice, profile, budget, &err) == 0, "%s", err.text);
        ck_assert_uint_le(plan_total(&plan), budget);
        ck_assert_int_eq(plan_check_choice(&model, &s, &plan.choice, &err), 0);
        const double ms = ms_of(&plan, &model);
        ck_assert_msg(before == 0 || ms <= before * THOUSANDTH, "%" PRIu64 " bytes: %g ms, before %g", budget, ms,
                      before);
        n_different += ms != before;
        before = ms;
    }
    ck_assert_uint_ge(n_different, 1);
    model_free(&model);
}

/* Every choice of a small model, laid out once: of none that a budget has room for is the step shorter by more than a
 * tie, and none as fast is smaller. Microbatches that the search passes over cut a part into no fewer pieces than those
 * it looks at. The second half: of sparse weights. */
TEST_EACH(nothing_that_fits_is_faster_than_what_is_found, 4)
{
    static const uint32_t rows[] = {1, 2, 3, 6};
    static struct {
        uint64_t bytes;
        double ms;
    } others[4 * 2 * 2 * 3 * 4 * 16 * 2];
    struct plan_setting s = setting_of(PLAN_TRAIN, 6, 64);
    const struct sparse sparse = {_i / 2 ? 0.5 : 0, 1, 0, 0, 0.1};
    struct model model = model_of(3, 128, 40000, true);
    struct plan smallest, found, other;
    uint32_t n = 0;

    model_sparsify(&model, &sparse);
    s.backend = _i % 2 ? beside() : &plan_cpu;
    plan_smallest(&smallest, &model, &s, &free_choice);
    for (uint32_t i = 0; i < COUNT(others); i++) {
        const struct plan_choice choice = {.microbatch = rows[i % 4],
                                           .host_stash = i / 4 % 2,
                                           .whole_head = i / 8 % 2,
                                           .n_weight_buffers = 1 + i / 16 % 3,
                                           .keeping = {{i / 48 % 4,
                                                        i / 48 % 4 ? MODEL_KEEPS_ALL : MODEL_KEEPS_NOTHING}},
                                           .n_resident = i / 192 % 16,
                                           .sparse_singly = i / 192 / 16};
        if (plan_check_choice(&model, &s, &choice, NULL) != 0)
            continue;
        plan_lay_out(&other, &model, &s, &choice);
        ck_assert_uint_ge(plan_total(&other), plan_total(&smallest));
        if (choice.keeping[0].n_kept > 0 && choice.keeping[0].n_kept < 3 && choice.n_resident > 0)
            continue; /* what is off both chains may be better by a part of a layer */
        others[n].bytes = plan_total(&other), others[n++].ms = ms_of(&other, &model);
    }
    for (uint64_t budget = plan_total(&smallest); budget < (uint64_t)100 << 20; budget += budget / 30) {
        ck_assert_int_eq(plan_search(&found, &model, &s, &free_choice, profile, budget, NULL), 0);
        const double ms = ms_of(&found, &model);
        for (uint32_t i = 0; i < n; i++)
            if (others[i].bytes <= budget &&
                (others[i].ms * THOUSANDTH < ms || (others[i].ms == ms && others[i].bytes < plan_total(&found))))
                ck_abort_msg("%" PRIu64 " bytes: choice %u is better", budget, i);
    }
    model_free(&model);
}

/* Groups of a GPT-2 block's values, in the order of its operations. */
enum { MAPS = 1 << 0 | 1 << 2 | 1 << 3, ATTENTION = 1 << 1 };

/* Where attention takes a thousand times as long as products, its results are kept first: by all blocks, in a budget
 * that holds just that. Where it takes no time, they are kept last. */
TEST(blocks_keep_first_what_saves_most_time_for_each_byte)
{
    const struct plan_setting s = setting_of(PLAN_TRAIN, 8, 256);
    struct model model = model_of(12, 128, 256, true);
    struct plan_choice choice = {.microbatch = 8, .n_weight_buffers = 1, .keeping = {{12}}};
    const struct plan_wish wish = {.microbatch = 8};

    for (int slow = 0; slow < 2; slow++) {
        struct profile changed = *profile_default("cpu");
        struct plan plan;
        choice.keeping[0].kept = slow ? ATTENTION : MAPS;
        for (int i = 0; i < PROFILE_DIRECTIONS; i++)
            changed.attention_flops[i][ATTENTION_PLAIN][NUMBER_FP32] =
                changed.matmul_flops[NUMBER_FP32][0] * (slow ? 1e-3 : 1e6);
        changed.memory_bytes_per_s = 1e18;
        plan_lay_out(&plan, &model, &s, &choice);
        ck_assert_int_eq(plan_search(&plan, &model, &s, &wish, &changed, plan_total(&plan), NULL), 0);
        ck_assert_uint_eq(plan.choice.keeping[0].kept, choice.keeping[0].kept);
        ck_assert_uint_eq(plan.choice.keeping[0].n_kept, 12);
    }
    model_free(&model);
}

/* To generate, what stays never falls as the budget grows, and one unit more would not have fitted. */
TEST_EACH(units_stay_to_generate_as_soon_as_they_fit, 2)
{
    const struct plan_setting s = setting_of(PLAN_GENERATE, 1, 16);
    struct model model = model_of(_i ? 1 : 9, 64, 50, true);
    const uint32_t all = plan_count_uploaded(&model);
    uint32_t most = 0, distinct = 0;
    struct plan smallest, plan;

    plan_smallest(&smallest, &model, &s, &free_choice);
    for (uint64_t budget = plan_total(&smallest); most < all; budget += 4096) {
        ck_assert_int_eq(plan_search(&plan, &model, &s, &free_choice, profile, budget, NULL), 0);
        ck_assert_uint_le(plan_total(&plan), budget);
        ck_assert_uint_ge(plan.choice.n_resident, most);
        distinct += plan.choice.n_resident > most;
        most = plan.choice.n_resident;
        for (struct plan_choice more = plan.choice; ++more.n_resident <= all;) {
            plan_lay_out(&plan, &model, &s, &more);
            ck_assert_uint_gt(plan_total(&plan), budget);
        }
    }
    ck_assert_uint_ge(distinct, _i ? 1 : 8);
    model_free(&model);
}

/* The most texts of which a plan with no resident unit fits in the budget. */
static uint32_t most_texts(const struct plan_setting *s, const struct model *model, uint64_t budget)
{
    struct plan smallest;
    uint32_t rows = 0;

    while (rows < s->part_rows) {
        const struct plan_wish more = {.microbatch = rows + 1};
        plan_smallest(&smallest, model, s, &more);
        if (plan_total(&smallest) > budget)
            break;
        rows++;
    }
    return rows;
}

/* Where weights pass for each token anyway, more texts share them. */
TEST(as_many_texts_advance_together_as_fit)
{
    const struct plan_setting s = setting_of(PLAN_GENERATE, 7, 64);
    struct model model = model_of(24, 128, 50, true);
    struct plan plan;
    uint32_t distinct = 0, before = 0;

    for (uint64_t budget = 0; before < 7; budget += 100000) { /* a text takes 1.6 MB, the weights 19 */
        const uint32_t most = most_texts(&s, &model, budget);
        const int rc = plan_search(&plan, &model, &s, &free_choice, profile, budget, NULL);
        ck_assert_int_eq(rc, most > 0 ? 0 : -ENOSPC);
        if (most == 0)
            continue;
        ck_assert_uint_le(plan_total(&plan), budget);
        ck_assert_uint_eq(plan.choice.microbatch, most);
        distinct += most > before;
        before = most;
    }
    ck_assert_uint_eq(distinct, 7);
    model_free(&model);
}

/* Over a link a thousand times slower than the device's memory: in a budget in which the weights stay beside the caches
 * of five texts, nine that fit without them would take longer. */
TEST(fewer_texts_advance_together_where_the_weights_then_stay)
{
    const struct plan_setting s = setting_of(PLAN_GENERATE, 9, 1000);
    struct model model = model_of(2, 640, 50, true);
    const uint32_t all = plan_count_uploaded(&model);
    const struct plan_wish five = {.microbatch = 5};
    struct profile slow = *profile;
    struct plan plan;

    slow.link_bytes_per_s = slow.memory_bytes_per_s / 1000;
    plan_smallest(&plan, &model, &s, &five);
    struct plan_choice choice = plan.choice;
    choice.n_resident = all;
    plan_lay_out(&plan, &model, &s, &choice);
    const uint64_t budget = plan_total(&plan);
    ck_assert_uint_gt(most_texts(&s, &model, budget), 5);
    ck_assert_int_eq(plan_search(&plan, &model, &s, &free_choice, &slow, budget, NULL), 0);
    ck_assert(plan.choice.microbatch == 5 && plan.choice.n_resident == all);
    model_free(&model);
}

/* The head's tiles are the backend's, whatever the budget, so none of it changes how a sum is ordered; the least budget
 * is that of tiles of 256 tokens but for one unit's logits, of at most 4,096 tokens and 8,192 labels, and where blocks
 * are wide it is the same. */
TEST(the_tiles_of_a_head_on_cuda_cost_the_smallest_budget_little)
{
    static const struct {
        uint32_t n_layers, width, vocabulary;
        uint64_t most;
    } models[] = {{12, 768, 50257, 1 << 23}, {32, 4096, 32000, 0}, {32, 4096, 128256, 0}};
    struct plan_backend small = plan_cuda;

    small.head_tile = PLAN_CPU_HEAD_TILE;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct plan_setting s = setting_of(PLAN_TRAIN, 8, 1024);
        struct model model = model_of(models[i].n_layers, models[i].width, models[i].vocabulary, true);
        struct plan plans[2];

        s.goal.precision = NUMBER_BF16;
        s.backend = &plan_cuda;
        plan_smallest(&plans[0], &model, &s, &free_choice);
        s.backend = &small;
        plan_smallest(&plans[1], &model, &s, &free_choice);
        ck_assert_uint_eq(plans[0].head_tile, PLAN_CUDA_HEAD_TILE);
        ck_assert_uint_ge(plan_total(&plans[0]), plan_total(&plans[1]));
        ck_assert_uint_le(plan_total(&plans[0]) - plan_total(&plans[1]), models[i].most);
        model_free(&model);
    }
}

TEST(a_wish_is_kept_or_refused_with_what_a_smaller_one_would_need)
{
    const struct plan_setting s = setting_of(PLAN_TRAIN, 8, 256);
    struct model model = model_of(12, 128, 256, true);
    struct plan_wish wish = {.microbatch = 3};
    struct plan plan, smallest;
    struct error err = {""};
    char bytes[64];

    ck_assert_int_eq(plan_search(&plan, &model, &s, &wish, profile, (uint64_t)1 << 30, &err), 0);
    ck_assert_uint_eq(plan.choice.microbatch, 3);
    wish.microbatch = 9;
    ck_assert_int_eq(plan_search(&plan, &model, &s, &wish, profile, (uint64_t)1 << 30, &err), -EINVAL);
    ck_assert_holds(err.text, "--microbatch 9");
    wish.microbatch = 8;
    plan_smallest(&smallest, &model, &s, &free_choice);
    ck_assert_int_eq(plan_search(&plan, &model, &s, &wish, profile, plan_total(&smallest), &err), -ENOSPC);
    snprintf(bytes, sizeof bytes, "(%" PRIu64 " bytes) with microbatches of 1 row", plan_total(&smallest));
    ck_assert_holds(err.text, bytes, "with microbatches of 8 rows (");
    wish = (struct plan_wish){.no_host_stash = true};
    plan_smallest(&smallest, &model, &s, &wish);
    ck_assert(!smallest.choice.host_stash);
    ck_assert_int_eq(plan_search(&plan, &model, &s, &wish, profile, plan_total(&smallest), &err), 0);
    ck_assert(!plan.choice.host_stash);
    model_free(&model);
    model = model_of(2, 1024, 256, true);
    ck_assert_int_eq(plan_search(&plan, &model, &s, &free_choice, profile, 1 << 20, &err), -ENOSPC);
    ck_assert_holds(err.text, "its largest unit, h.0, alone has 48.1 MiB of weights");
    model_free(&model);
}

/* Without a stash on the host, from the least to more than all layers' inputs take. Layers are cut only where the same
 * choice would not fit otherwise; then less is there at a time, and the step takes longer. */
TEST_EACH(layers_are_in_segments_where_not_all_inputs_fit, 2)
{
    const struct plan_setting s = setting_case(_i ? 3 : 0);
    const struct plan_wish wish = {.no_host_stash = true};
    struct model model = model_of(_i ? 24 : 12, _i ? 128 : 768, _i ? 256 : 50257, !_i);
    struct plan least, plan, whole;
    uint32_t n_cut = 0;
    double before = 0;

    plan_smallest(&least, &model, &s, &wish);
    ck_assert_uint_gt(least.choice.n_cuts, 1);
    for (uint64_t budget = plan_total(&least); budget < 4 * plan_total(&least); budget += budget / 20) {
        ck_assert_int_eq(plan_search(&plan, &model, &s, &wish, profile, budget, NULL), 0);
        ck_assert_uint_le(plan_total(&plan), budget);
        struct plan_choice choice = plan.choice;
        choice.n_cuts = 0;
        plan_lay_out(&whole, &model, &s, &choice);
        ck_assert_int_eq(plan_total(&whole) > budget, plan.choice.n_cuts > 0);
        if (plan.choice.n_cuts > 0) {
            ck_assert_double_gt(ms_of(&plan, &model), ms_of(&whole, &model));
            n_cut++;
        }
        ck_assert(before == 0 || ms_of(&plan, &model) <= before * THOUSANDTH);
        before = ms_of(&plan, &model);
    }
    ck_assert_uint_gt(n_cut, 3);
    ck_assert_uint_eq(plan.choice.n_cuts, 0);
    model_free(&model);
}

/* The same of a residual net, of all whose inputs those that can be are derived. */
TEST(inputs_are_derived_again_where_not_all_fit)
{
    static const char text[] =
        "{\"model_type\": \"torchvision_resnet\", \"layer_type\": \"basic\", \"depths\": [2, 2, 2, 2], "
        "\"embedding_size\": 16, \"stem\": \"cifar\", \"image_size\": 32}";
    const struct plan_setting s = setting_of(PLAN_TRAIN, 8, 1024);
    const struct plan_wish wish = {.no_host_stash = true, .microbatch = 8};
    struct plan least, plan, stored;
    struct model_config config;
    struct model model;
    uint32_t n_derived = 0;
    double before = 0;

    ck_assert_int_eq(model_config_parse(&config, text, strlen(text), NULL), 0);
    ck_assert_int_eq(model_init(&model, &config, NULL), 0);
    plan_smallest(&least, &model, &s, &wish);
    for (uint64_t budget = plan_total(&least); budget < 4 * plan_total(&least); budget += budget / 20) {
        ck_assert_int_eq(plan_search(&plan, &model, &s, &wish, profile, budget, NULL), 0);
        ck_assert_uint_le(plan_total(&plan), budget);
        struct plan_choice choice = plan.choice;
        choice.derives = false;
        plan_lay_out(&stored, &model, &s, &choice);
        ck_assert(!plan.choice.derives || plan_total(&stored) > budget);
        n_derived += plan.choice.derives;
        ck_assert(before == 0 || ms_of(&plan, &model) <= before * THOUSANDTH);
        before = ms_of(&plan, &model);
    }
    ck_assert_uint_gt(n_derived, 0);
    ck_assert(!plan.choice.derives && plan.choice.n_cuts == 0);
    model_free(&model);
}

/* In two thirds of what all layers' inputs take on a device beside the host: over a fast link they go to the host,
 * which takes no time. A slow one moves each input four times, and a block's weights, half as many bytes as its input,
 * once more. */
TEST(over_a_slow_link_layers_are_cut_before_the_host_has_their_inputs)
{
    const struct plan_backend *backend = beside();
    struct plan_setting s = setting_of(PLAN_TRAIN, 48, 64);
    const struct profile *const measured = profile;
    struct model model = model_of(24, 128, 256, true);
    const struct plan_choice choice = {.microbatch = 8, .n_weight_buffers = 2};
    struct profile link = *profile;
    struct plan whole, plan[2];

    s.backend = backend;
    plan_lay_out(&whole, &model, &s, &choice);
    profile = &link;
    for (int slow = 0; slow < 2; slow++) {
        link.link_bytes_per_s = slow ? 2e8 : 1e11;
        ck_assert_int_eq(plan_search(&plan[slow], &model, &s, &free_choice, profile, plan_total(&whole) * 2 / 3, NULL),
                         0);
    }
    profile = measured;
    ck_assert(plan[0].choice.host_stash && plan[0].choice.n_cuts == 0);
    ck_assert(!plan[1].choice.host_stash && plan[1].choice.n_cuts > 0);
    model_free(&model);
}

/* On the device alone no term grows with depth once the stash is on the host. */
TEST(the_smallest_plan_of_384_layers_is_that_of_12)
{
    const struct plan_setting s = setting_of(PLAN_TRAIN, 8, 64);
    struct plan plan[2];

    for (int i = 0; i < 2; i++) {
        struct model model = model_of(i ? 384 : 12, 128, 256, true);
        plan_smallest(&plan[i], &model, &s, &free_choice);
        model_free(&model);
    }
    ck_assert(plan[0].choice.host_stash);
    ck_assert_uint_eq(plan_total(&plan[0]), plan_total(&plan[1]));
}

static size_t n_asked;

static uint64_t count_scratch(const struct plan_attention_sizes *sizes, unsigned n_threads)
{
    n_asked++;
    return plan_cpu.scratch_bytes(sizes, n_threads);
}

/* How often a search of so many layers asks what a block's attention takes. */
static size_t count_asked(uint32_t n_layers)
{
    struct plan_backend counting = plan_cpu;
    struct plan_setting s = setting_of(PLAN_TRAIN, 16, 1024);
    struct model model = model_of(n_layers, 1024, 50257, true);
    const uint64_t budget = (UINT64_C(1) << 30) + n_layers * (UINT64_C(24) << 20); /* half of them can be resident */
    struct plan plan;

    counting.scratch_bytes = count_scratch;
    s.backend = &counting;
    n_asked = 0;
    ck_assert_int_eq(plan_search(&plan, &model, &s, &free_choice, profile, budget, NULL), 0);
    model_free(&model);
    return n_asked;
}

TEST(a_search_of_many_layers_tries_hardly_more_plans)
{
    ck_assert_uint_lt(count_asked(400), 2 * count_asked(25));
}

/* The head's contribution, as slow to leave as a block's, stands with the norm's in two sums: the upper block would
 * wait for one of them. A third is taken where there is room for it, and nothing else gives way; the smallest plan has
 * two. */
TEST(more_sums_are_taken_of_what_is_left)
{
    const struct model_config config =
        GPT2_CONFIG(14, 2, 128, 512, 1024, 22684, .activation = MODEL_GELU_NEW, GPT2_ON(scale_attention));
    const struct plan_setting s = {.backend = &plan_cuda,
                                   .goal = {.purpose = PLAN_TRAIN, .precision = NUMBER_BF16, .seq = 512},
                                   .share_rows = 16,
                                   .part_rows = 16,
                                   .n_threads = 1};
    const struct plan_wish wish = {0};
    struct profile slow = *profile_default("cuda");
    struct plan least, roomy, exact, less;
    struct model model;

    slow.link_bytes_per_s /= 4;
    ck_assert_int_eq(model_init(&model, &config, NULL), 0);
    plan_smallest(&least, &model, &s, &wish);
    ck_assert_uint_le(least.n_sums, 2);
    ck_assert_int_eq(plan_search(&roomy, &model, &s, &wish, &slow, UINT64_MAX, NULL), 0);
    ck_assert_uint_gt(roomy.n_sums, 2);
    ck_assert_int_eq(plan_search(&exact, &model, &s, &wish, &slow, plan_total(&roomy), NULL), 0);
    ck_assert_uint_eq(plan_total(&exact), plan_total(&roomy));
    ck_assert_uint_eq(exact.n_sums, roomy.n_sums);
    ck_assert_uint_eq(exact.choice.keeping[0].n_kept, roomy.choice.keeping[0].n_kept);
    ck_assert_uint_eq(exact.choice.microbatch, roomy.choice.microbatch);
    ck_assert_int_eq(plan_search(&less, &model, &s, &wish, &slow, plan_total(&roomy) - 1, NULL), 0);
    ck_assert_uint_lt(less.n_sums, roomy.n_sums);
    ck_assert_uint_eq(less.choice.keeping[0].n_kept, roomy.choice.keeping[0].n_kept);
    ck_assert_uint_eq(less.n_resident, roomy.n_resident);
    model_free(&model);
}
