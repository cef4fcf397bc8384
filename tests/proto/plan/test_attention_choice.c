/* Which way a job computes attention in, by figures that make one of them the faster. */
#include "proto/plan/attention_choice.h"
#include "proto/plan/memory/data.h"
#include "tests/kit/inprocess/model.h"
#include "tests/kit/test.h"

#include "proto/model/family.h"

#include <errno.h>
#include <string.h>

static struct model model;
static struct profile profile;
static struct plan_fit_device devices[2];
static struct plan_fit_asked asked;

static void use_heads_of(uint32_t head)
{
    const struct model_config config =
        GPT2_CONFIG(2, 4, 4 * head, 16 * head, 1024, 256, .tied = true, GPT2_ON(scale_attention));

    model_free(&model);
    ck_assert_int_eq(model_init(&model, &config, NULL), 0);
}

/* By our kernels 300 and 200 TFLOP/s, by the library's these. */
static void set_rates(double forward, double backward)
{
    memset(profile.attention_by_shape, 0, sizeof profile.attention_by_shape);
    profile.attention_flops[PROFILE_FORWARD][ATTENTION_TENSOR][NUMBER_BF16] = 300e12;
    profile.attention_flops[PROFILE_BACKWARD][ATTENTION_TENSOR][NUMBER_BF16] = 200e12;
    profile.attention_flops[PROFILE_FORWARD][ATTENTION_LIBRARY][NUMBER_BF16] = forward;
    profile.attention_flops[PROFILE_BACKWARD][ATTENTION_LIBRARY][NUMBER_BF16] = backward;
}

/* A worker with a measured profile, in which cuDNN is the faster, of both passes. Calls and memory cost nothing. */
static void setup(void)
{
    use_heads_of(128);
    profile = *profile_default("cuda");
    profile.call_s = 0, profile.memory_bytes_per_s = profile.link_bytes_per_s = 1e21;
    profile.attention = PLAN_ATTENTION_ORDERED;
    set_rates(500e12, 400e12);
    for (int i = 0; i < COUNT(devices); i++)
        devices[i] = (struct plan_fit_device){.backend = &plan_cuda,
                                              .profile = &profile,
                                              .measured = true,
                                              .attention = PLAN_ATTENTION_ORDERED};
    asked = (struct plan_fit_asked){
        .model = &model,
        .goal = {.purpose = PLAN_TRAIN, .precision = NUMBER_BF16, .batch = 4, .seq = 1024, .n_parts = COUNT(devices)},
        .devices = devices,
        .n_workers = COUNT(devices)};
}

static void teardown(void)
{
    model_free(&model);
    memset(&model, 0, sizeof model);
}

SUITE_FIXTURE(setup, teardown)

static void check(enum plan_attention way)
{
    ck_assert_str_eq(plan_attention_name(plan_attention_of(&asked)), plan_attention_name(way));
}

/* Two products forward, five backward. By hand, per unit of work: own 2/300 + 5/200 = 31.7; with the library's forward
 * 2/F + 25; with its gradient too 2/F + 5/B. */
TEST(the_faster_way_is_taken)
{
    static const struct {
        double forward, backward;
        enum plan_attention way;
    } cases[] = {{500e12, 400e12, PLAN_ATTENTION_ORDERED}, {500e12, 190e12, PLAN_ATTENTION_FORWARD},
                 {250e12, 190e12, PLAN_ATTENTION_OWN},     {250e12, 220e12, PLAN_ATTENTION_ORDERED},
                 {250e12, 205e12, PLAN_ATTENTION_OWN},     {300e12, 200e12, PLAN_ATTENTION_OWN}};

    for (int i = 0; i < COUNT(cases); i++) {
        set_rates(cases[i].forward, cases[i].backward);
        check(cases[i].way);
    }
}

/* In an evaluation there is no gradient. */
TEST(an_evaluation_weighs_the_forward_pass_alone)
{
    set_rates(310e12, 1e12);
    check(PLAN_ATTENTION_FORWARD);
    asked.goal.purpose = PLAN_EVALUATE;
    check(PLAN_ATTENTION_FORWARD);
    set_rates(290e12, 900e12);
    check(PLAN_ATTENTION_OWN);
}

/* In rows of 512 tokens our kernels are the faster, of 4,096 cuDNN's. */
TEST(the_shape_decides)
{
    for (int direction = 0; direction < PROFILE_DIRECTIONS; direction++) {
        double *const own = profile.attention_by_shape[direction][ATTENTION_TENSOR][NUMBER_BF16][PROFILE_OWN_KEYS][1];
        double *const library =
            profile.attention_by_shape[direction][ATTENTION_LIBRARY][NUMBER_BF16][PROFILE_OWN_KEYS][1];
        own[0] = 200e12, own[1] = 300e12;
        library[0] = 100e12, library[1] = 500e12;
    }
    asked.goal.seq = 512;
    check(PLAN_ATTENTION_OWN);
    asked.goal.seq = 4096;
    check(PLAN_ATTENTION_ORDERED);
}

/* Where stored gradients of scores are not taken, the way is what it comes to. */
TEST(a_way_whose_gradient_is_ours_is_called_so)
{
    profile.attention = devices[0].attention = devices[1].attention = PLAN_ATTENTION_SCORES;
    check(PLAN_ATTENTION_SCORES);
    use_heads_of(64);
    check(PLAN_ATTENTION_FORWARD);
}

TEST(without_figures_of_this_device_and_way_it_is_our_kernels)
{
    devices[0].measured = devices[1].measured = false;
    check(PLAN_ATTENTION_OWN);
    devices[1].measured = true; /* the first that was measured speaks for all */
    check(PLAN_ATTENTION_ORDERED);
    profile.attention = PLAN_ATTENTION_SCORES; /* another version of cuDNN was timed */
    check(PLAN_ATTENTION_OWN);
    profile.attention = PLAN_ATTENTION_ORDERED;
    set_rates(500e12, 0);
    check(PLAN_ATTENTION_FORWARD);
    set_rates(0, 500e12);
    check(PLAN_ATTENTION_OWN);
}

TEST(all_workers_compute_attention_in_one_way)
{
    for (uint32_t i = 0; i < 2; i++)
        ck_assert_int_eq(plan_fit_setting(&asked, i).attention, PLAN_ATTENTION_ORDERED);
    devices[1].attention = PLAN_ATTENTION_TWICE;
    for (uint32_t i = 0; i < 2; i++)
        ck_assert_int_eq(plan_fit_setting(&asked, i).attention, PLAN_ATTENTION_OWN);
    asked.goal.attention = PLAN_ATTENTION_CUDNN; /* what both can */
    check(PLAN_ATTENTION_FORWARD);
}

/* Rows of different length are cut, and then computed by our kernels, where the library would compute a third more. */
TEST(a_library_computes_rows_that_are_nearly_as_long)
{
    struct plan_setting setting;
    struct model whole = model;

    for (uint32_t n = asked.goal.seq / 4; n <= asked.goal.seq; n += asked.goal.seq / 4) {
        asked.goal.row_tokens[0] = n;
        setting = plan_fit_setting(&asked, 0);
        ck_assert_int_eq(setting.attention, n == asked.goal.seq ? PLAN_ATTENTION_ORDERED : PLAN_ATTENTION_OWN);
        ck_assert(plan_cuts_rows(&setting, &model) == (n < asked.goal.seq));
    }
    asked.goal.row_tokens[0] = asked.goal.seq / 2;
    asked.model = &whole; /* whose rows are not cut */
    whole.n_finishes = 1;
    check(PLAN_ATTENTION_ORDERED);
    asked.model = &model;
    asked.goal.kept_bits = 8; /* nor with these */
    setting = plan_fit_setting(&asked, 0);
    ck_assert_int_eq(setting.attention, PLAN_ATTENTION_ORDERED);
    ck_assert(!plan_cuts_rows(&setting, &model));
    asked.goal.precision = NUMBER_FP32;
    check(PLAN_ATTENTION_OWN);
}

/* Neither figures nor lengths of rows matter then. */
TEST(what_is_asked_for_is_done_or_refused_by_name)
{
    static const struct {
        enum plan_attention_wish wish;
        enum plan_attention best, way;
        const char *why;
    } cases[] = {
        {PLAN_ATTENTION_EXACTLY + PLAN_ATTENTION_OWN, PLAN_ATTENTION_OWN, PLAN_ATTENTION_OWN, NULL},
        {PLAN_ATTENTION_EXACTLY + PLAN_ATTENTION_OWN, PLAN_ATTENTION_ORDERED, PLAN_ATTENTION_OWN, NULL},
        {PLAN_ATTENTION_EXACTLY + PLAN_ATTENTION_FORWARD, PLAN_ATTENTION_TWICE, PLAN_ATTENTION_FORWARD, NULL},
        {PLAN_ATTENTION_EXACTLY + PLAN_ATTENTION_TWICE, PLAN_ATTENTION_TWICE, PLAN_ATTENTION_TWICE, NULL},
        {PLAN_ATTENTION_CUDNN, PLAN_ATTENTION_ORDERED, PLAN_ATTENTION_ORDERED, NULL},
        {PLAN_ATTENTION_CUDNN, PLAN_ATTENTION_FORWARD, PLAN_ATTENTION_FORWARD, NULL},
        {PLAN_ATTENTION_CUDNN, PLAN_ATTENTION_OWN, PLAN_ATTENTION_OWN, "--attention cudnn: the device has no cuDNN"},
        {PLAN_ATTENTION_EXACTLY + PLAN_ATTENTION_FORWARD, PLAN_ATTENTION_OWN, PLAN_ATTENTION_FORWARD,
         "--attention forward: the device has no cuDNN"},
        {PLAN_ATTENTION_EXACTLY + PLAN_ATTENTION_ORDERED, PLAN_ATTENTION_TWICE, PLAN_ATTENTION_ORDERED,
         "--attention ordered: the device's cuDNN has another way, twice"},
    };
    struct error err;

    devices[0].measured = devices[1].measured = false;
    asked.goal.row_tokens[0] = 8;
    for (int i = 0; i < COUNT(cases); i++) {
        err.text[0] = 0;
        asked.goal.attention = cases[i].wish;
        devices[0].attention = devices[1].attention = cases[i].best;
        check(cases[i].way);
        ck_assert_int_eq(plan_attention_check(&asked, &err), cases[i].why ? -EINVAL : 0);
        if (cases[i].why)
            ck_assert_holds(err.text, cases[i].why, "choose --attention own", "--change attention");
    }
    asked.goal.precision = NUMBER_FP16;
    ck_assert_int_eq(plan_attention_check(&asked, &err), -EINVAL);
    ck_assert_holds(err.text, "of bf16 alone: choose --precision bf16");
    asked.goal.attention = plan_attention_exactly(PLAN_ATTENTION_OWN);
    ck_assert_int_eq(plan_attention_check(&asked, &err), 0);
}
