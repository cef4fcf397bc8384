/* Where layers are cut into segments: against all ways to cut a few layers, and where values lie then. */
#include "proto/plan/cuts.h"
#include "proto/plan/memory/segments.h"
#include "proto/plan/memory/units.h"
#include "proto/plan/memory/values.h"
#include "tests/kit/device/setting.h"
#include "tests/kit/inprocess/model.h"
#include "tests/kit/test.h"

#include <string.h>

static void open_net(struct model *model, const char *text)
{
    struct model_config config;
    struct error err = {""};

    ck_assert_msg(model_config_parse(&config, text, strlen(text), &err) == 0, "%s", err.text);
    ck_assert_msg(model_init(model, &config, &err) == 0, "%s", err.text);
}

/* Images of 32 x 32 in two rows: inputs of three sizes. Blocks of two layers, or with ghost batches of one;
 * bottlenecks. */
static const char *const nets[] = {
    "{\"model_type\": \"wide_resnet\", \"depth\": 16, \"widen_factor\": 2, \"ghost_batch_size\": 2}",
    "{\"model_type\": \"wide_resnet\", \"depth\": 10, \"widen_factor\": 1}",
    ("{\"model_type\": \"torchvision_resnet\", \"layer_type\": \"bottleneck\", \"depths\": [1, 2, 1, 1], "
     "\"embedding_size\": 8, \"stem\": \"cifar\", \"image_size\": 32}"),
};

static const struct plan_setting images = {.backend = &plan_cpu,
                                           .goal = {.purpose = PLAN_TRAIN, .batch = 2, .seq = 1024, .n_parts = 1},
                                           .share_rows = 2,
                                           .part_rows = 2,
                                           .n_threads = 1};

static const struct plan_choice plain = {.microbatch = 2, .n_weight_buffers = 1};

static uint64_t stash_of(const struct plan *plan, const struct model *model)
{
    struct plan_choice choice = plan->choice;
    struct plan cut;

    ck_assert_int_eq(plan_check_choice(model, &plan->setting, &choice, NULL), 0);
    plan_lay_out(&cut, model, &plan->setting, &choice);
    return cut.bytes[LEDGER_STASH];
}

/* The least bytes of any division, tried one by one; without gradients, which depend on where segments begin, too. */
TEST(no_division_takes_less_than_the_one_that_is_found)
{
    enum { LAYERS = 14 };
    const struct model_config config = GPT2_CONFIG(LAYERS - 3, 2, 8, 32, 16, 64, GPT2_ON(scale_attention));
    const struct plan_setting s = {.backend = &plan_cpu,
                                   .goal = {.purpose = PLAN_TRAIN, .batch = 2, .seq = 16, .n_parts = 1},
                                   .share_rows = 2,
                                   .part_rows = 2,
                                   .n_threads = 1};
    struct plan plan;
    struct plan_cuts cuts;
    struct model m;
    uint64_t least = UINT64_MAX, found;

    ck_assert_int_eq(model_init(&m, &config, NULL), 0);
    ck_assert_uint_eq(m.n_layers, LAYERS);
    plan_lay_out(&plan, &m, &s, &plain);
    plan_cuts_init(&cuts, &plan, &m);
    ck_assert(!plan_cut(&plan.choice, &cuts, cuts.least - 1));
    ck_assert(plan_cut(&plan.choice, &cuts, cuts.least));
    found = stash_of(&plan, &m);
    for (uint32_t set = 0; set < 1u << (LAYERS - 2); set++) {
        plan.choice.n_cuts = 1, plan.choice.cuts[0] = 1;
        for (uint32_t i = 2; i < LAYERS; i++)
            if (set >> (i - 2) & 1)
                plan.choice.cuts[plan.choice.n_cuts++] = i;
        const uint64_t bytes = stash_of(&plan, &m);
        least = least < bytes ? least : bytes;
    }
    ck_assert_uint_eq(found, least);
    model_free(&m);
}

/* By hand, of 13 inputs of equal size: the embedding's output is stored, and each segment leaves one more. In places
 * for five, segments can write 4, 3, 2 and 1, with which 11 are there; in six, 16. */
TEST(segments_are_the_larger_the_lower_they_are)
{
    const struct model_config config = GPT2_CONFIG(11, 2, 8, 32, 16, 64, GPT2_ON(scale_attention));
    const struct plan_setting s = {.backend = &plan_cpu,
                                   .goal = {.purpose = PLAN_TRAIN, .batch = 2, .seq = 16, .n_parts = 1},
                                   .share_rows = 2,
                                   .part_rows = 2,
                                   .n_threads = 1};
    enum { EACH = 2 * 16 * 8 * 4 };
    struct plan plan, cut;
    struct plan_cuts cuts;
    struct model m;

    ck_assert_int_eq(model_init(&m, &config, NULL), 0);
    plan_lay_out(&plan, &m, &s, &plain);
    ck_assert_uint_eq(plan.bytes[LEDGER_STASH], 13 * EACH);
    plan_cuts_init(&cuts, &plan, &m);
    ck_assert(plan_cut(&plan.choice, &cuts, cuts.least));
    plan_lay_out(&cut, &m, &s, &plan.choice);
    ck_assert_uint_eq(cut.bytes[LEDGER_STASH], 6 * EACH);
    model_free(&m);
}

static uint32_t count_again(const struct plan_choice *choice, const struct model *model)
{
    uint32_t n = 0;

    for (uint32_t s = 0; s <= choice->n_cuts; s++)
        n += plan_again_of(choice, model, s).n;
    return n;
}

/* Within more bytes no more visits come again, down to none. */
TEST_EACH(more_bytes_leave_less_to_compute_again, COUNT(nets))
{
    struct plan plan;
    struct plan_cuts cuts;
    struct model m;
    uint32_t n[3];

    open_net(&m, nets[_i]);
    plan_lay_out(&plan, &m, &images, &plain);
    plan_cuts_init(&cuts, &plan, &m);
    ck_assert_uint_lt(cuts.least, cuts.most);
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert(plan_cut(&plan.choice, &cuts, cuts.least + (cuts.most - cuts.least) * i / 2));
        n[i] = count_again(&plan.choice, &m);
    }
    ck_assert_uint_gt(n[0], 0);
    ck_assert_uint_ge(n[0], n[1]);
    ck_assert_uint_eq(n[2], 0);
    model_free(&m);
}

/* ---- places ---- */

static uint32_t segment_of(const struct plan_choice *choice, uint32_t layer)
{
    uint32_t s = 0;

    while (s < choice->n_cuts && choice->cuts[s] <= layer)
        s++;
    return s;
}

/* True if a value, or gradient, is there while segment `now` is in backward: stored below, or its own. */
static bool is_there(const struct plan *plan, const struct model_value *v, uint32_t now)
{
    const uint32_t first = segment_of(&plan->choice, v->first), top = segment_of(&plan->choice, v->top);

    return first == now || (first < now && top >= now) || (first < now && first == 0);
}

static bool meet(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

static bool is_large(const struct model *m, const struct model_value *v)
{
    return v->stashed && !model_is_small(&m->values.shapes[v->shape]);
}

static void check_apart(const struct plan *plan, const struct model *m, uint32_t now)
{
    for (uint32_t a = 0; a < m->values.n; a++)
        for (uint32_t b = 0; b < m->values.n; b++) {
            const struct model_value *v = &m->values.of[a], *w = &m->values.of[b];
            const uint64_t v_bytes = plan->values[v->shape].bytes, at = plan_value(plan, m, a);
            if (!is_large(m, v) || !is_there(plan, v, now))
                continue;
            ck_assert_uint_le(at + v_bytes, plan->arena_bytes);
            if (a < b && is_large(m, w) && is_there(plan, w, now))
                ck_assert(!meet(at, v_bytes, plan_value(plan, m, b), plan->values[w->shape].bytes));
            /* the gradient of w, between its topmost reader and its writer */
            if (!model_is_small(&m->values.shapes[w->gradient_shape]) && segment_of(&plan->choice, w->first) <= now &&
                segment_of(&plan->choice, w->top) >= now)
                ck_assert(!meet(at, v_bytes, plan_gradient(plan, m, b), plan->values[w->gradient_shape].bytes) ||
                          v->first > w->top);
        }
}

TEST_EACH(what_is_there_at_a_time_lies_apart, COUNT(nets))
{
    struct plan plan, cut;
    struct plan_cuts cuts;
    struct model m;

    open_net(&m, nets[_i]);
    plan_lay_out(&plan, &m, &images, &plain);
    plan_cuts_init(&cuts, &plan, &m);
    for (uint32_t i = 0; i <= 5; i++) {
        if (i < 5)
            ck_assert(plan_cut(&plan.choice, &cuts, cuts.least + (plan_total(&plan) - cuts.least) * i / 4));
        else /* several layers in the lowest segment */
            plan.choice.n_cuts = 2, plan.choice.cuts[0] = cuts.at[2], plan.choice.cuts[1] = cuts.at[4];
        plan_lay_out(&cut, &m, &images, &plan.choice);
        ck_assert(i > 0 || plan_total(&cut) < plan_total(&plan));
        for (uint32_t now = 0; now <= cut.choice.n_cuts; now++)
            check_apart(&cut, &m, now);
    }
    model_free(&m);
}
