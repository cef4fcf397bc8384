/* A block of a short convolution and a gated delta rule: its tensors, the places of its states, and what a text keeps. */
#include "proto/model/draw.h"
#include "proto/operation/operation.h"
#include "proto/plan/memory/layers.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

enum {
    TOKENS = 130,
    HEADS = 4,
    KEY = 6,
    VALUE = 5,
    COLUMNS = 2 * 2 * KEY + HEADS * VALUE,
    STATE = HEADS * KEY * VALUE
};

static struct program program;

/* With the delta rule's gates by a linear map of their own. */
static void write_block(void)
{
    const struct program_linear_options linear = {.deviation = 0.02f};
    const struct program_short_conv_options conv = {.n_taps = 4, .silu = true, .deviation = 0.02f};
    const struct program_gated_delta_options delta = {.n_heads = HEADS,
                                                      .n_key_heads = 2,
                                                      .key_width = KEY,
                                                      .largest = 16};
    const int x = program_begin(&program, 16), qkv = program_linear(&program, x, "mixer.qkv", COLUMNS, &linear);
    const int u = program_short_conv(&program, qkv, "mixer.conv1d", &conv);
    const int gates = program_linear(&program, x, "mixer.ab", 2 * HEADS, &linear);
    const int y = program_gated_delta(&program, u, gates, "mixer", &delta);

    program_end(&program, program_linear(&program, y, "mixer.out", 16, &linear));
}

static const struct program_operation *delta_of(void)
{
    return program_find(&program, &operation_gated_delta);
}

/* Vectors do not decay (proto/model/model.c). */
TEST(a_gated_delta_rule_has_two_vectors)
{
    write_block();
    const struct program_tensor *t = &program.tensors[delta_of()->tensor];
    ck_assert_int_eq(delta_of()->n_tensors, 2);
    ck_assert_str_eq(t[0].name, "mixer.A_log");
    ck_assert_str_eq(t[1].name, "mixer.dt_bias");
    ck_assert(t[0].rows == HEADS && t[0].columns == 0 && t[1].rows == HEADS && t[1].columns == 0);
    ck_assert(t[0].init == MODEL_INIT_LOG_UNIFORM && t[0].deviation == 16.0f && t[1].init == MODEL_INIT_ONE);
}

/* exp(A_log): 1000 uniform numbers from 0.01 to 16, whose mean's standard deviation is 16 / sqrt(12000). */
TEST(a_fresh_rate_of_forgetting_is_uniform)
{
    const struct model_tensor t = {.init = MODEL_INIT_LOG_UNIFORM, .deviation = 16};
    float drawn[1000];
    double sum = 0, least = 16;

    model_draw(drawn, &t, (struct random_key){{1, 2}}, 3, 0, COUNT(drawn));
    for (size_t i = 0; i < COUNT(drawn); i++) {
        const double rate = exp((double)drawn[i]);
        ck_assert(rate > 0.00999 && rate < 16.001);
        sum += rate, least = fmin(least, rate);
    }
    ck_assert_double_eq_tol(sum / COUNT(drawn), 8.005, 4 * 16 / sqrt(12.0 * COUNT(drawn)));
    ck_assert_double_lt(least, 0.2);
}

/* softplus(dt_bias): 1000 log-uniform numbers from 0.001 to 0.1, whose logarithms' mean's standard deviation is log(100) /
 * sqrt(12000). */
TEST(a_fresh_size_of_a_step_is_log_uniform)
{
    const struct model_tensor t = {.init = MODEL_INIT_STEP, .deviation = 0.1f, .least = 0.001f};
    float drawn[1000];
    double sum = 0, least = 1, most = 0;

    model_draw(drawn, &t, (struct random_key){{1, 2}}, 3, 0, COUNT(drawn));
    for (size_t i = 0; i < COUNT(drawn); i++) {
        const double size = log1p(exp((double)drawn[i]));
        ck_assert(size > 0.000999 && size < 0.1001);
        sum += log(size), least = fmin(least, size), most = fmax(most, size);
    }
    ck_assert_double_eq_tol(sum / COUNT(drawn), log(0.01), 4 * log(100) / sqrt(12.0 * COUNT(drawn)));
    ck_assert(least < 0.0011 && most > 0.09);
}

/* The bytes of a schedule's workspace. */
static uint64_t workspace_of(const struct schedule *schedule, enum plan_purpose purpose, struct plan_shape shape)
{
    const struct plan_setting setting = {.goal = {.purpose = purpose, .precision = NUMBER_FP32, .seq = TOKENS},
                                         .backend = &plan_cpu,
                                         .n_threads = 1};
    struct plan_places places;

    plan_places(&places, &program, schedule, &setting, shape);
    return places.bytes;
}

/* There is room for a state per 64 tokens, which backward reads: kept, or made again. */
TEST(states_are_kept_or_made_again_but_not_in_generation)
{
    static struct schedule forward, kept, backward;
    const struct plan_shape shape = {2, TOKENS};

    write_block();
    const int states = delta_of()->outputs[1];
    const uint64_t bit = UINT64_C(1) << states, bytes = 2 * TOKENS * program.values[states].columns * sizeof(float);
    ck_assert_int_eq(program.values[states].type, PROGRAM_STATISTIC);
    ck_assert_uint_ge(bytes, 2 * device_gated_delta_slots(TOKENS) * STATE * sizeof(float));
    ck_assert(program_keepable(&program) & bit && program_read_backward(&program) & bit);
    schedule_forward(&forward, &program, 0);
    schedule_forward(&kept, &program, program_keepable(&program));
    ck_assert_uint_ge(workspace_of(&forward, PLAN_TRAIN, shape), bytes);
    ck_assert_uint_lt(workspace_of(&forward, PLAN_GENERATE, shape) + bytes / 2,
                      workspace_of(&forward, PLAN_TRAIN, shape));
    schedule_backward(&backward, &program, 0);
    int n_again = 0;
    for (int i = 0; i < backward.n_recomputed; i++)
        n_again += &program.operations[backward.steps[i].operation] == delta_of();
    ck_assert_int_eq(n_again, 1);
    schedule_backward(&backward, &program, program_keepable(&program));
    for (int i = 0; i < backward.n_steps; i++)
        ck_assert(backward.steps[i].action != SCHEDULE_FORWARD ||
                  &program.operations[backward.steps[i].operation] != delta_of());
}

/* The convolution's last 3 tokens of bf16, then from the next line on a state in fp32. */
TEST(operations_of_a_block_keep_what_they_keep_side_by_side)
{
    const struct operation_texts texts = {&plan_cpu, NUMBER_BF16, TOKENS};
    const uint64_t tail = 3 * COLUMNS * 2, at = (tail + 63) / 64 * 64;
    const struct operation_run run = {.program = &program,
                                      .type = NUMBER_BF16,
                                      .backend = &plan_cpu,
                                      .n_positions = TOKENS};
    char cache[1];
    const struct operation_span span = {.cache = cache};

    write_block();
    ck_assert_uint_ne(tail, at);
    ck_assert_uint_eq(operation_cache_bytes(&program, &texts), at + STATE * sizeof(float));
    ck_assert_ptr_eq(operation_cache(&run, program_find(&program, &operation_short_conv), &span), cache);
    ck_assert_uint_eq((size_t)((char *)operation_cache(&run, delta_of(), &span) - cache), at);
}

/* A training step's scratch differs from that of a text's tokens. */
TEST(scratch_is_what_the_call_asks_for)
{
    const struct plan_delta_sizes sizes = {PLAN_DELTA_BACKWARD, 2, TOKENS, HEADS, 2, KEY, VALUE};
    const struct operation_setting setting = {.backend = &plan_cpu,
                                              .trains = true,
                                              .n_threads = 3,
                                              .n_rows = 2,
                                              .n_tokens = TOKENS,
                                              .action = SCHEDULE_BACKWARD};

    write_block();
    ck_assert_uint_eq(operation_gated_delta.scratch(&program, delta_of(), &setting), plan_cpu.delta_bytes(&sizes, 3));
    ck_assert_uint_eq(plan_cpu.delta_bytes(&sizes, 3) % 64, 0);
    ck_assert_uint_eq(plan_cuda.delta_bytes(&sizes, 3) % 64, 0);
}
