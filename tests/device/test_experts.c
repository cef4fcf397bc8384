/* Mixtures of experts. */
#include "tests/kit/device/operation.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

SUITE_LABELS(on_cuda)

/* Whom tokens choose: all alike, different ones, some more often than others, the last half of the experts alone. */
enum { ONE, SPREAD, HALF, KINDS };

/* Tokens and widths of less than a tile, of a tile, of more; experts from 3 to 64, of which a token has 1 to 8, or all. */
static const struct shape {
    size_t m, n, inner, n_experts, n_chosen;
} shapes[] = {
    {1, 3, 5, 4, 1},     {2, 16, 8, 4, 4},  {7, 33, 20, 8, 2},    {65, 24, 72, 5, 3},
    {130, 40, 16, 8, 4}, {33, 8, 4, 64, 8}, {129, 136, 16, 3, 2},
};
enum { N_CASES = COUNT(shapes) * KINDS * NUMBER_TYPES, N_ROUTES = COUNT(shapes) * 2 * NUMBER_TYPES };

static double unit_of(enum number_type type)
{
    return type == NUMBER_BF16 ? 0x1p-8 : type == NUMBER_FP16 ? 0x1p-11 : 0;
}

/* Sums of up to 136 products, of factors that are made of four numbers rounded to the type: gate, up, slope, unit. */
static double near(const struct call_test *test, const char *output)
{
    (void)output;
    return 24 * 0x1p-23 + 4 * unit_of(test->type);
}

/* Exponentials, and a sum of up to 64 of them. */
static double route_near(const struct call_test *test, const char *output)
{
    (void)test, (void)output;
    return 24 * 0x1p-23;
}

/* No token has an expert twice: those of a token follow each other, from one that the kind says. */
static void choose(struct call_test *test, size_t kind)
{
    const struct device_experts *op = &test->host.experts;
    const size_t first = kind == HALF ? op->n_experts - op->n_chosen : 0;
    uint32_t *numbers = (void *)(uintptr_t)op->numbers;

    for (size_t i = 0; i < op->m; i++)
        for (size_t c = 0; c < op->n_chosen; c++)
            numbers[i * op->n_chosen + c] =
                (uint32_t)(kind == SPREAD ? (i * i + op->n_chosen - c) % op->n_experts : first + c);
}

static void choose_one(struct call_test *test)
{
    choose(test, ONE);
}

static void choose_spread(struct call_test *test)
{
    choose(test, SPREAD);
}

static void choose_half(struct call_test *test)
{
    choose(test, HALF);
}

/* Case i of N_CASES: a type, a kind, a shape. */
static struct call_test make(enum call_kind kind, int i)
{
    static void (*const prepare[KINDS])(struct call_test *) = {choose_one, choose_spread, choose_half};
    const int k = i / NUMBER_TYPES;
    const struct shape *s = &shapes[k / KINDS];

    return (struct call_test){.type = (enum number_type)(i % NUMBER_TYPES),
                              .call = {.kind = kind,
                                       .experts = {.m = s->m,
                                                   .n = s->n,
                                                   .inner = s->inner,
                                                   .n_experts = s->n_experts,
                                                   .n_chosen = s->n_chosen}},
                              .near = near,
                              .prepare = prepare[k % KINDS]};
}

/* Besides, an adapter's inner values, as forward and as gradients. */
static double near_adapted(const struct call_test *test, const char *output)
{
    return near(test, output) + 2 * unit_of(test->type);
}

/* Ranks of less than a vector, of several; of one of the maps, or of both. */
static void adapt(struct call_test *test, int way)
{
    static const size_t ranks[][2] = {{3, 0}, {0, 5}, {6, 3}, {34, 17}};
    struct device_experts *op = &test->call.experts;
    struct device_experts_adapter *const adapters[] = {&op->gate_up, &op->of_down};

    for (int i = 0; i < 2; i++)
        if (ranks[way][i] > 0)
            *adapters[i] = (struct device_experts_adapter){.rank = ranks[way][i],
                                                           .factor = 0.1875f,
                                                           .a = call_given,
                                                           .b = call_given};
    test->near = near_adapted;
}

/* Of both factors, of one, of none. */
static void ask_of_adapters(struct call_test *test, int way)
{
    struct device_experts_adapter *const adapters[] = {&test->call.experts.gate_up, &test->call.experts.of_down};

    for (int i = 0; i < 2; i++) {
        if (adapters[i]->rank > 0 && way % 3 != 1)
            adapters[i]->a_gradient = (void *)call_given;
        if (adapters[i]->rank > 0 && way % 3 != 2)
            adapters[i]->b_gradient = (void *)call_given;
    }
}

SUITE_FIXTURE(mirror_forget, NULL)

TEST_EACH(experts_are_the_formula, N_CASES)
{
    struct call_test test = make(CALL_experts, _i);

    call_check(&test);
}

/* Of x and of the choice's weights; and of weights, overwritten or added to: of all, of some. */
TEST_EACH(the_gradient_of_experts_is_the_formula, N_CASES)
{
    for (int way = 0; way < 4; way++) {
        struct call_test test = make(CALL_experts_backward, _i);
        struct device_experts *op = &test.call.experts;

        if (way > 0)
            op->gate_gradient = (void *)call_given, op->beta = (float)(way % 2);
        if (way > 1)
            op->up_gradient = op->down_gradient = (void *)call_given;
        call_check(&test);
    }
}

TEST_EACH(adapted_experts_are_the_formula, N_CASES)
{
    struct call_test test = make(CALL_experts, _i);

    adapt(&test, _i / NUMBER_TYPES % 4);
    call_check(&test);
}

/* Of x, of the choice's weights and of the factors; of the weights as well; overwritten or added to. */
TEST_EACH(the_gradient_of_adapted_experts_is_the_formula, N_CASES)
{
    for (int way = 0; way < 4; way++) {
        struct call_test test = make(CALL_experts_backward, _i);
        struct device_experts *op = &test.call.experts;

        adapt(&test, (_i / NUMBER_TYPES + way) % 4);
        ask_of_adapters(&test, way);
        op->beta = (float)(way % 2);
        if (way > 1)
            op->gate_gradient = op->up_gradient = op->down_gradient = (void *)call_given;
        call_check(&test);
    }
}

/* Scores are few, so that many are equal. */
static void tie(struct call_test *test)
{
    const struct device_route *op = &test->host.route;

    for (size_t i = 0; i < op->m * op->n_experts; i++) {
        void *const scores = (void *)(uintptr_t)op->scores;
        operation_set(test->type, scores, i, roundf(2 * operation_get(test->type, scores, i)) / 2);
    }
}

/* What route would have left. */
static void route_as_expected(struct call_test *test)
{
    const struct device_route *op = &test->host.route;
    const double *expected[CALL_ARRAYS];
    struct call_test forward = *test;

    forward.call.kind = forward.host.kind = CALL_route;
    call_describe(&forward.work, &forward.host,
                  &(struct call_device){&plan_cpu, test->type, 1, PLAN_ATTENTION_OWN, false, 0});
    call_expect(&forward, expected);
    for (unsigned k = 0; k < forward.work.n_arrays; k++)
        for (size_t i = 0; i < op->m * op->n_chosen; i++)
            if (strcmp(forward.work.arrays[k].name, "weights") == 0)
                op->weights[i] = (float)expected[k][i];
            else if (strcmp(forward.work.arrays[k].name, "numbers") == 0)
                op->numbers[i] = (uint32_t)expected[k][i];
}

static void tie_and_route(struct call_test *test)
{
    tie(test);
    route_as_expected(test);
}

static struct call_test make_route(enum call_kind kind, int i, void (*prepare)(struct call_test *))
{
    const int k = i / NUMBER_TYPES;
    const struct shape *s = &shapes[k / 2];

    return (struct call_test){
        .type = (enum number_type)(i % NUMBER_TYPES),
        .call = {.kind = kind,
                 .route = {.m = s->m, .n_experts = s->n_experts, .n_chosen = s->n_chosen, .normalises = k % 2}},
        .near = route_near,
        .prepare = prepare};
}

TEST_EACH(the_best_experts_are_chosen_the_lower_number_first_among_equals, N_ROUTES)
{
    struct call_test test = make_route(CALL_route, _i, tie);

    call_check(&test);
}

TEST_EACH(the_gradient_of_a_choices_weights_is_the_formula, N_ROUTES)
{
    struct call_test test = make_route(CALL_route_backward, _i, tie_and_route);

    call_check(&test);
}

/* ---- by sigmoids ---- */

static void fill(struct call_test *test, const char *name, const float *values, size_t n)
{
    float *to = call_get(call_find(test, name));

    for (size_t i = 0; i < call_find(test, name)->n; i++)
        to[i] = values[i % n];
}

/* Experts from 4 to 66, in groups of which some are chosen, or in none. Scores are few; with groups above 0, and biases
 * all different, so that sums of two are equal where both terms are. */
static const struct sigmoids {
    size_t m, n_experts, n_chosen;
    uint32_t n_groups, n_chosen_groups;
    bool normalises, biased;
    float epsilon, scale;
} sigmoids[] = {
    {1, 4, 1, 0, 0, false, false, 0, 1},         {7, 8, 8, 0, 0, true, false, 1e-6f, 1},
    {33, 5, 3, 0, 0, true, true, 0.5f, 2.5f},    {65, 16, 4, 4, 2, true, true, 1e-20f, 1.5f},
    {40, 12, 2, 6, 1, false, true, 1e-20f, 3},   {18, 64, 8, 32, 4, true, false, 1e-20f, 1},
    {9, 66, 32, 2, 1, true, true, 1e-20f, 0.7f}, {50, 10, 6, 5, 3, true, false, 1e-6f, 1},
};
enum { N_SIGMOIDS = COUNT(sigmoids) * NUMBER_TYPES };

static void tie_sigmoids(struct call_test *test)
{
    const struct device_route *op = &test->host.route;
    void *const scores = (void *)(uintptr_t)op->scores;

    tie(test);
    for (size_t i = 0; op->n_groups > 0 && i < op->m * op->n_experts; i++)
        operation_set(test->type, scores, i, fabsf(operation_get(test->type, scores, i)));
}

static void tie_sigmoids_and_route(struct call_test *test)
{
    tie_sigmoids(test);
    route_as_expected(test);
}

static struct call_test make_sigmoids(enum call_kind kind, int i, void (*prepare)(struct call_test *))
{
    const struct sigmoids *s = &sigmoids[i / NUMBER_TYPES];

    return (struct call_test){.type = (enum number_type)(i % NUMBER_TYPES),
                              .call = {.kind = kind,
                                       .route = {.m = s->m,
                                                 .n_experts = s->n_experts,
                                                 .n_chosen = s->n_chosen,
                                                 .normalises = s->normalises,
                                                 .sigmoid = true,
                                                 .n_groups = s->n_groups,
                                                 .n_chosen_groups = s->n_chosen_groups,
                                                 .epsilon = s->epsilon,
                                                 .scale = s->scale,
                                                 .bias = s->biased && kind == CALL_route ? (const void *)call_given
                                                                                         : NULL}},
                              .near = route_near,
                              .prepare = prepare};
}

TEST_EACH(sigmoids_choose_by_score_and_bias_within_the_best_groups_and_weigh_by_score, N_SIGMOIDS)
{
    struct call_test test = make_sigmoids(CALL_route, _i, tie_sigmoids);

    call_check(&test);
}

TEST_EACH(the_gradient_of_sigmoids_weights_is_the_formula, N_SIGMOIDS)
{
    struct call_test test = make_sigmoids(CALL_route_backward, _i, tie_sigmoids_and_route);

    call_check(&test);
}

/* By hand: p is 1/2, 1/2, 1/2, 1/2, about 1, and p + bias 0.5, 0.8, 0.7, 0.9 | 1, 0.2: sums 1.3, 1.6, 1.2. Of the
 * second group 3 is first, and weighs as much as 2, whose bias is less. */
TEST(a_group_with_the_best_expert_may_lose_to_one_with_two_good_ones)
{
    static const float scores[] = {0, 0, 0, 0, 40, 0}, bias[] = {0, 0.3f, 0.2f, 0.4f, 0, -0.3f};
    struct call_test test = {.type = NUMBER_FP32,
                             .call = {.kind = CALL_route,
                                      .route = {.m = 1,
                                                .n_experts = 6,
                                                .n_chosen = 2,
                                                .normalises = true,
                                                .sigmoid = true,
                                                .n_groups = 3,
                                                .n_chosen_groups = 1,
                                                .epsilon = 1e-20f,
                                                .scale = 4,
                                                .bias = (const void *)call_given}}};

    call_make(&test);
    fill(&test, "scores", scores, COUNT(scores));
    fill(&test, "bias", bias, COUNT(bias));
    call_once(&test);
    ck_assert(test.host.route.numbers[0] == 3 && test.host.route.numbers[1] == 2);
    ck_assert(test.host.route.weights[0] == 2 && test.host.route.weights[1] == 2);
}

/* A token's bits are its own: alone, beside others of the same experts, and beside others of others. */
TEST_EACH(a_tokens_result_does_not_depend_on_other_tokens, NUMBER_TYPES)
{
    enum { TOKENS = 70, WIDTH = 24, INNER = 20, EXPERTS = 6, CHOSEN = 2 };
    struct call_test all = {.type = (enum number_type)_i,
                            .call = {.kind = CALL_experts,
                                     .experts = {TOKENS, WIDTH, INNER, EXPERTS, CHOSEN, .x = NULL}},
                            .prepare = choose_spread};

    call_make(&all);
    choose_spread(&all);
    call_once(&all);
    for (size_t i = 0; i < TOKENS; i += 23) {
        const size_t bytes = number_bytes(all.type), n = EXPERTS * WIDTH * INNER * bytes;
        struct call_test one = all;

        one.call.experts.m = 1;
        call_make(&one);
        memcpy(call_get(call_find(&one, "x")), (const char *)all.host.experts.x + i * WIDTH * bytes, WIDTH * bytes);
        memcpy(call_get(call_find(&one, "gate")), all.host.experts.gate, n);
        memcpy(call_get(call_find(&one, "up")), all.host.experts.up, n);
        memcpy(call_get(call_find(&one, "down")), all.host.experts.down, n);
        memcpy(call_get(call_find(&one, "weights")), all.host.experts.weights + i * CHOSEN, CHOSEN * sizeof(float));
        memcpy(call_get(call_find(&one, "numbers")), all.host.experts.numbers + i * CHOSEN, CHOSEN * sizeof(uint32_t));
        call_once(&one);
        ck_assert_mem_eq(one.host.experts.y, (const char *)all.host.experts.y + i * WIDTH * bytes, WIDTH * bytes);
    }
}

/* ---- the order of sums ---- */

/* Three experts of one number each, alike but for the factors behind their units. */
static float sum_of(enum call_kind kind, const float factors[3], const char *output)
{
    static const float one = 1;
    struct call_test test = {.type = NUMBER_FP32,
                             .call = {.kind = kind, .experts = {1, 1, 1, .n_experts = 3, .n_chosen = 3}},
                             .prepare = choose_one};

    call_make(&test);
    fill(&test, "x", &one, 1);
    fill(&test, "gate", &one, 1);
    fill(&test, "up", &one, 1);
    fill(&test, "weights", &one, 1);
    fill(&test, "down", factors, 3);
    if (kind == CALL_experts_backward)
        fill(&test, "y_gradient", &one, 1);
    call_once(&test);
    return *(const float *)call_get(call_find(&test, output));
}

/* Where the two large terms meet first, the small one remains: silu(1), and its gradient and itself. */
TEST(terms_are_added_from_the_first_expert_up_and_gradients_from_the_last_down)
{
    const float last_small[] = {0x1p30f, -0x1p30f, 1}, first_small[] = {1, -0x1p30f, 0x1p30f};

    ck_assert_float_eq_tol(sum_of(CALL_experts, last_small, "y"), 0.7310586f, 1e-6f);
    ck_assert_float_eq(sum_of(CALL_experts, first_small, "y"), 0);
    ck_assert_float_eq_tol(sum_of(CALL_experts_backward, first_small, "x_gradient"), 0.9276705f + 0.7310586f, 1e-6f);
    ck_assert_float_eq(sum_of(CALL_experts_backward, last_small, "x_gradient"), 0);
}
