/* The reference's gradients against central differences of the reference itself, in double: the error of a difference
 * of step h is h^2 times a third derivative plus rounding / h, 1e-9 at h = 1e-5. And some of its results by hand. */
#include "tests/kit/device/operation.h"
#include "tests/kit/reference/reference.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const uint32_t lengths[] = {6, 2}, labels[] = {1, UINT32_MAX, 8};
static uint32_t chosen[15], numbers[] = {2, 0, 1, 2, 0, 1}; /* of experts: as route leaves them; of 3 tokens */
static const uint32_t positions[] = {0, 1, 2, 0, 0, 1, 0, 0, 1, 2, 3, 4};

/* Arrays of the backward call are forward's of the same name, and what is called X_gradient is of X. */
static const struct pair {
    struct call forward;
    enum call_kind backward;
} pairs[] = {
    {{CALL_norm, .norm = {.m = 3, .n = 7, .epsilon = 1e-2f, .bias = call_given}}, CALL_norm_backward},
    {{CALL_norm, .norm = {.kind = DEVICE_RMS_NORM, .m = 3, .n = 7, .epsilon = 1e-2f}}, CALL_norm_backward},
    {{CALL_row_moments, .row_moments = {.n_rows = 3, .n_elements = 4, .n = 5}}, CALL_row_moments_backward},
    /* Drawn sums of squares may be negative: epsilon is above them. */
    {{CALL_join_moments, .join_moments = {.n_rows = 4, .n_elements = 3, .n = 5, .epsilon = 4}},
     CALL_join_moments_backward},
    {{CALL_batch_norm,
      .batch_norm = {2, 3, 5, .weight_gradient = (void *)call_given, .bias_gradient = (void *)call_given}},
     CALL_batch_norm_backward},
    {{CALL_glu, .glu = {.m = 4, .n = 5, .stride = 7, .gradient_stride = 7, .activation = MODEL_SILU}},
     CALL_glu_backward},
    {{CALL_head_gate, .head_gate = {.m = 4, .n_heads = 3, .n = 5}}, CALL_head_gate_backward},
    {{CALL_dynamic_conv,
      .dynamic_conv =
          {.n_rows = 2, .n_tokens = 5, .n = 6, .n_heads = 2, .n_taps = 3, .n_before = 1, .lengths = lengths}},
     CALL_dynamic_conv_backward},
    {{CALL_dynamic_conv,
      .dynamic_conv =
          {.n_rows = 2, .n_tokens = 5, .n = 6, .n_heads = 3, .n_taps = 7, .n_before = 6, .dropout.p = 0.3f}},
     CALL_dynamic_conv_backward},
    {{CALL_short_conv,
      .short_conv = {.n_rows = 2, .n_tokens = 6, .n = 3, .n_taps = 4, .weight_gradient = (void *)call_given}},
     CALL_short_conv_backward},
    {{CALL_short_conv, .short_conv = {.n_rows = 2,
                                      .n_tokens = 6,
                                      .n = 3,
                                      .n_taps = 3,
                                      .silu = true,
                                      .positions = positions,
                                      .bias = (void *)call_given,
                                      .weight_gradient = (void *)call_given,
                                      .bias_gradient = (void *)call_given}},
     CALL_short_conv_backward},
    {{CALL_short_conv, .short_conv = {.n_rows = 2,
                                      .n_tokens = 6,
                                      .n = 3,
                                      .n_taps = 3,
                                      .gated = true,
                                      .positions = positions,
                                      .bias = (void *)call_given,
                                      .weight_gradient = (void *)call_given,
                                      .bias_gradient = (void *)call_given}},
     CALL_short_conv_backward},
    {{CALL_gated_delta, .gated_delta = {.n_rows = 2,
                                        .n_tokens = 6,
                                        .n_heads = 2,
                                        .n_key_heads = 2,
                                        .key_width = 3,
                                        .value_width = 2,
                                        .doubled = true}},
     CALL_gated_delta_backward},
    {{CALL_gated_delta, .gated_delta = {.n_rows = 2,
                                        .n_tokens = 6,
                                        .n_heads = 4,
                                        .n_key_heads = 2,
                                        .key_width = 2,
                                        .value_width = 3,
                                        .positions = positions,
                                        .a_log_gradient = (void *)call_given,
                                        .dt_bias_gradient = (void *)call_given}},
     CALL_gated_delta_backward},
    {{CALL_route, .route = {.m = 5, .n_experts = 6, .n_chosen = 3, .numbers = chosen}}, CALL_route_backward},
    {{CALL_route, .route = {.m = 5, .n_experts = 6, .n_chosen = 3, .normalises = true, .numbers = chosen}},
     CALL_route_backward},
    {{CALL_route, .route = {.m = 5, .n_experts = 6, .n_chosen = 3, .sigmoid = true, .scale = 2.5f, .numbers = chosen}},
     CALL_route_backward},
    {{CALL_route, .route = {.m = 5,
                            .n_experts = 6,
                            .n_chosen = 3,
                            .normalises = true,
                            .sigmoid = true,
                            .epsilon = 0.1f,
                            .scale = 2.5f,
                            .numbers = chosen}},
     CALL_route_backward},
    {{CALL_experts, .experts = {.m = 3,
                                .n = 4,
                                .inner = 5,
                                .n_experts = 3,
                                .n_chosen = 2,
                                .numbers = numbers,
                                .gate_gradient = (void *)call_given,
                                .up_gradient = (void *)call_given,
                                .down_gradient = (void *)call_given}},
     CALL_experts_backward},
    {{CALL_conv2d, .conv2d = {2, 4, 3, .n_in = 4, .n_out = 6, .n_groups = 2, .window = {3, 2, 2, 1}}},
     CALL_conv2d_input_gradient},
    {{CALL_conv2d, .conv2d = {2, 4, 3, .n_in = 4, .n_out = 6, .n_groups = 2, .window = {3, 2, 2, 1}}},
     CALL_conv2d_weight_gradient},
    {{CALL_max_pool, .max_pool = {2, 5, 4, .n = 3, .window = {3, 2, 2, 1}}}, CALL_max_pool_backward},
    {{CALL_average_pool, .average_pool = {2, 5, 4, .n = 3, .window = {3, 2, 2, 1}}}, CALL_average_pool_backward},
    {{CALL_position, .position = {.n_rows = 3, .n_tokens = 2, .n = 4}}, CALL_position_backward},
    {{CALL_attention, .attention = {.n_rows = 2, .n_tokens = 6, .n_heads = 3, .width = 12, .scale = 0.7f}},
     CALL_attention_backward},
    {{CALL_attention,
      .attention = {.n_rows = 2, .n_tokens = 6, .n_heads = 3, .width = 12, .scale = 0.7f, .dropout.p = 0.3f}},
     CALL_attention_backward},
    {{CALL_attention,
      .attention =
          {.n_rows = 2, .n_tokens = 6, .n_heads = 3, .width = 12, .window = 3, .scale = 0.7f, .dropout.p = 0.3f}},
     CALL_attention_backward},
    {{CALL_attention, .attention = {.n_rows = 2,
                                    .n_tokens = 6,
                                    .n_heads = 3,
                                    .n_kv_heads = 1,
                                    .width = 12,
                                    .scale = 0.7f,
                                    .full = true,
                                    .lengths = lengths}},
     CALL_attention_backward},
    {{CALL_attention,
      .attention =
          {.n_rows = 2, .n_tokens = 6, .n_heads = 3, .width = 12, .window = 2, .scale = 0.7f, .positions = positions}},
     CALL_attention_backward},
    {{CALL_attention,
      .attention =
          {.n_rows = 2, .n_tokens = 6, .n_heads = 3, .width = 12, .scale = 0.7f, .full = true, .positions = positions}},
     CALL_attention_backward},
    {{CALL_attention, .attention = {.n_rows = 2,
                                    .n_tokens = 6,
                                    .n_heads = 3,
                                    .width = 12,
                                    .scale = 0.7f,
                                    .full = true,
                                    .bias = (void *)call_given,
                                    .bias_gradient = (void *)call_given,
                                    .buckets = {6, true, {0, 1, 3}},
                                    .lengths = lengths}},
     CALL_attention_backward},
    {{CALL_attention, .attention = {.n_rows = 2,
                                    .n_tokens = 6,
                                    .n_heads = 3,
                                    .width = 12,
                                    .scale = 0.7f,
                                    .bias = (void *)call_given,
                                    .bias_gradient = (void *)call_given,
                                    .buckets = {3, false, {0, 1, 3}},
                                    .dropout.p = 0.3f}},
     CALL_attention_backward},
    {{CALL_attention, .attention = {.n_rows = 2,
                                    .n_tokens = 3,
                                    .n_heads = 4,
                                    .n_kv_heads = 2,
                                    .width = 12,
                                    .scale = 0.7f,
                                    .full = true,
                                    .kv = call_given,
                                    .n_keys = 7,
                                    .lengths = lengths,
                                    .dropout.p = 0.3f}},
     CALL_attention_backward},
};

static void fill(double *x, size_t n, uint32_t seed)
{
    float normal[512];

    ck_assert_uint_le(n, COUNT(normal));
    random_normal(normal, (struct random_key){{seed, 0}}, 0, 0, n);
    for (size_t i = 0; i < n; i++)
        x[i] = (double)normal[i];
}

static const struct call_array *find(const struct call_work *work, const char *name)
{
    for (unsigned i = 0; i < work->n_arrays; i++)
        if (strcmp(work->arrays[i].name, name) == 0)
            return &work->arrays[i];
    return NULL;
}

/* The array's namesake among the others, or what it is the gradient of there. */
static const struct call_array *twin(const struct call_array *array, const struct call_work *among, bool of_gradient)
{
    char name[32];

    snprintf(name, sizeof name, "%s", array->name);
    char *suffix = strstr(name, "_gradient");
    if (of_gradient != (suffix != NULL))
        return NULL;
    if (suffix)
        *suffix = 0;
    return find(among, name);
}

/* The sum of what forward writes, each times its gradient. */
static double scalar(const struct call *forward, const struct call_work *work, const struct call_work *backward)
{
    double sum = 0;

    for (unsigned i = 0; i < work->n_arrays; i++) /* for what is added to */
        if (strcmp(work->arrays[i].name, "y") == 0)
            memset(call_get(&work->arrays[i]), 0, work->arrays[i].n * sizeof(double));
    reference_run(forward);
    for (unsigned i = 0; i < backward->n_arrays; i++) {
        const struct call_array *y = twin(&backward->arrays[i], work, true);
        const double *dy = call_get(&backward->arrays[i]);
        for (size_t k = 0; y && !(backward->arrays[i].use & CALL_WRITTEN) && k < y->n; k++)
            sum += ((double *)call_get(y))[k] * dy[k];
    }
    return sum;
}

TEST_EACH(backward_is_the_slope_of_forward, COUNT(pairs))
{
    static double room[32][512];
    struct call forward = pairs[_i].forward, backward = forward;
    const struct call_device cpu = {&plan_cpu, NUMBER_FP32, 1, PLAN_ATTENTION_OWN, false, 0};
    struct call_work f, b;
    unsigned n = 0;

    backward.kind = pairs[_i].backward;
    if (forward.kind == CALL_norm)
        backward.norm.weight_gradient = (void *)call_given, backward.norm.bias_gradient = (void *)forward.norm.bias;
    call_describe(&f, &forward, &cpu);
    call_describe(&b, &backward, &cpu);
    for (unsigned i = 0; i < f.n_arrays; i++, n++)
        if (f.arrays[i].type != CALL_WORDS) {
            fill(room[n], f.arrays[i].use ? f.arrays[i].n : 0, n);
            call_set(&f.arrays[i], room[n]);
        }
    for (unsigned i = 0; i < b.n_arrays; i++, n++) {
        const struct call_array *same = twin(&b.arrays[i], &f, false);
        memset(room[n], 0, sizeof *room);
        if (!(b.arrays[i].use & CALL_WRITTEN))
            fill(room[n], b.arrays[i].use ? b.arrays[i].n : 0, n);
        call_set(&b.arrays[i], same ? call_get(same) : room[n]);
    }
    scalar(&forward, &f, &b);
    reference_run(&backward);
    unsigned n_checked = 0;
    for (unsigned i = 0; i < b.n_arrays; i++) {
        const struct call_array *x = b.arrays[i].use & CALL_WRITTEN ? twin(&b.arrays[i], &f, true) : NULL;
        double *at = x ? call_get(x) : NULL;
        const double h = 1e-5, *gradient = call_get(&b.arrays[i]);
        for (size_t k = 0; x && k < x->n; k++, n_checked++) {
            const double was = at[k];
            at[k] = was + h;
            const double above = scalar(&forward, &f, &b);
            at[k] = was - h;
            const double below = scalar(&forward, &f, &b);
            at[k] = was;
            ck_assert_double_eq_tol(gradient[k], (above - below) / (2 * h), 1e-7);
        }
    }
    ck_assert_uint_gt(n_checked, 0);
}

TEST_RANGE(activation_gradients_are_the_activations_slopes, MODEL_GELU_NEW, MODEL_ACTIVATIONS)
{
    for (double x = -6.0003; x < 6; x += 0.01) { /* relu's corner at 0 is not met */
        const enum model_activation activation = (enum model_activation)_i;
        const double h = 1e-5;
        const double slope =
            (reference_activation(activation, x + h) - reference_activation(activation, x - h)) / (2 * h);
        ck_assert_double_eq_tol(reference_activation_gradient(activation, x), slope, 1e-8);
    }
}

/* The loss of logits in two chunks, and the gradient of each. */
static double loss_of(double *logits, double *gradient)
{
    double running[9], losses[3], sum = 0;
    struct device_cross_entropy op = {.m = 3,
                                      .n = 5,
                                      .logits_stride = 5,
                                      .start = true,
                                      .logits = (void *)logits,
                                      .labels = labels,
                                      .running = (void *)running,
                                      .scale = 1};

    for (int pass = 0; pass < 2; pass++, op.start = true)
        for (op.first = 0; op.first < 10; op.first += 5, op.start = false) {
            op.logits = (void *)((pass ? gradient : logits) + 3 * op.first);
            reference_run(
                &(struct call){.kind = pass ? CALL_cross_entropy_gradient : CALL_log_sum_exp, .log_sum_exp = op});
        }
    reference_run(&(struct call){.kind = CALL_loss, .loss = {3, losses, (void *)running, labels}});
    for (int i = 0; i < 3; i++)
        sum += losses[i];
    return sum;
}

TEST(the_gradient_of_chunks_is_the_slope_of_their_loss)
{
    double logits[30], gradient[30], unused[30];

    fill(logits, 30, 3);
    memcpy(gradient, logits, sizeof logits);
    loss_of(logits, gradient);
    for (int k = 0; k < 30; k++) {
        const double was = logits[k], h = 1e-5;
        logits[k] = was + h, memset(unused, 0, sizeof unused);
        const double above = loss_of(logits, unused);
        logits[k] = was - h, memset(unused, 0, sizeof unused);
        const double below = loss_of(logits, unused);
        logits[k] = was;
        ck_assert_double_eq_tol(gradient[k], (above - below) / (2 * h), 1e-7);
    }
}

/* ---- by hand ---- */

/* One query and one key give v itself; two equal keys its mean. With a window of two the third query sees the last two
 * of three, and with a window of one each its own. */
TEST(attention_averages_values)
{
    const double qkv[9] = {5, 3, 10, -2, 3, 20, 1, 3, 40};
    double out[3], log_sum_exp[3];
    struct device_attention op = {.n_rows = 1,
                                  .n_tokens = 3,
                                  .n_heads = 1,
                                  .width = 1,
                                  .scale = 1,
                                  .qkv = qkv,
                                  .out = out,
                                  .log_sum_exp = (void *)log_sum_exp};

    reference_run(&(struct call){.kind = CALL_attention, .attention = op});
    ck_assert_double_eq_tol(out[0], 10, 1e-14);
    ck_assert_double_eq_tol(out[1], 15, 1e-14);
    ck_assert_double_eq_tol(log_sum_exp[0], 15, 1e-14);
    ck_assert_double_eq_tol(log_sum_exp[1], -6 + log(2), 1e-14);
    ck_assert_double_eq_tol(out[2], 70.0 / 3, 1e-14);
    op.window = 2;
    reference_run(&(struct call){.kind = CALL_attention, .attention = op});
    ck_assert_double_eq_tol(out[0], 10, 1e-14);
    ck_assert_double_eq_tol(out[1], 15, 1e-14);
    ck_assert_double_eq_tol(out[2], 30, 1e-14);
    ck_assert_double_eq_tol(log_sum_exp[2], 3 + log(2), 1e-14);
    op.window = 1;
    reference_run(&(struct call){.kind = CALL_attention, .attention = op});
    ck_assert_double_eq_tol(out[2], 40, 1e-14);
}

/* Queries, keys and values of 1 column. All keys are 0, so each query averages the values of those that it sees: of its
 * document, up to its own, or all; log-sum-exps are logarithms of their number. */
TEST(attention_averages_values_of_its_own_document)
{
    const double qkv[12] = {1, 0, 10, 1, 0, 20, 1, 0, 40, 1, 0, 80};
    const uint32_t at[4] = {0, 0, 1, 0};
    double out[4], log_sum_exp[4];
    struct device_attention op = {.n_rows = 1,
                                  .n_tokens = 4,
                                  .n_heads = 1,
                                  .width = 1,
                                  .scale = 1,
                                  .positions = at,
                                  .qkv = qkv,
                                  .out = out,
                                  .log_sum_exp = (void *)log_sum_exp};

    for (int full = 0; full < 2; full++) {
        const double expected[4] = {10, full ? 30 : 20, 30, 80}, number[4] = {1, full ? 2 : 1, 2, 1};
        op.full = full;
        reference_run(&(struct call){.kind = CALL_attention, .attention = op});
        for (int i = 0; i < 4; i++) {
            ck_assert_double_eq_tol(out[i], expected[i], 1e-14);
            ck_assert_double_eq_tol(log_sum_exp[i], log(number[i]), 1e-14);
        }
    }
}

/* Two rows of two queries, of 1 and 2, and of three keys. The first row has one key for all; the second has three equal
 * keys, of which dropout keeps some, at twice their weight: by the draws of elements query*3 + key of row 1. */
TEST(attention_averages_values_of_another_array)
{
    const double queries[4] = {1, 2, 1, 2}, kv[12] = {3, 10, 0, 20, 0, 40, 5, 6, 5, 12, 5, 24};
    const uint32_t counted[2] = {1, 3};
    double out[4], log_sum_exp[4];
    struct device_attention op = {.n_rows = 2,
                                  .n_tokens = 2,
                                  .n_heads = 1,
                                  .width = 1,
                                  .full = true,
                                  .lengths = counted,
                                  .scale = 1,
                                  .qkv = queries,
                                  .kv = kv,
                                  .n_keys = 3,
                                  .out = out,
                                  .log_sum_exp = (void *)log_sum_exp};

    reference_run(&(struct call){.kind = CALL_attention, .attention = op});
    for (int query = 0; query < 2; query++) {
        ck_assert_double_eq_tol(out[query], 10, 1e-14);
        ck_assert_double_eq_tol(log_sum_exp[query], 3 * queries[query], 1e-14);
        ck_assert_double_eq_tol(out[2 + query], 14, 1e-14);
        ck_assert_double_eq_tol(log_sum_exp[2 + query], 5 * queries[query] + log(3), 1e-14);
    }
    op.dropout = (struct device_dropout){.p = 0.5f, .key = {{1, 2}}};
    reference_run(&(struct call){.kind = CALL_attention, .attention = op});
    for (size_t query = 0; query < 2; query++) {
        double sum = 0;
        for (size_t key = 0; key < 3; key++)
            sum += reference_dropout(&op.dropout, 1, query * 3 + key) * kv[6 + 2 * key + 1] / 3;
        ck_assert_double_eq_tol(out[2 + query], sum, 1e-14);
    }
}

/* 1 and 3: mean 2, variance 1. 1 and 7: mean square 25. */
TEST_EACH(two_numbers_are_normalised, 2)
{
    static const struct {
        double x[2], bias[2], y[2], statistics[2];
    } cases[] = {{{1, 3}, {0, 10}, {-1, 11}, {2, 1}}, {{1, 7}, {0, 0}, {0.2, 1.4}, {0, 0.2}}};
    const double weight[2] = {1, 1};
    double y[2], statistics[2];
    const struct device_norm op = {.kind = (enum device_norm_kind)_i,
                                   .m = 1,
                                   .n = 2,
                                   .x = cases[_i].x,
                                   .weight = weight,
                                   .bias = cases[_i].bias,
                                   .y = y,
                                   .statistics = (void *)statistics};

    reference_run(&(struct call){.kind = CALL_norm, .norm = op});
    for (int i = 0; i < 2; i++) {
        ck_assert_double_eq_tol(y[i], cases[_i].y[i], 1e-14);
        ck_assert_double_eq_tol(statistics[i], cases[_i].statistics[i], 1e-14);
    }
}

/* A part of two rows of three elements, by the six calls. The sum of c y, and with `gradient` its slope. */
static double batch_norm_of(const double *x, const double *c, double *gradient)
{
    const double weight[2] = {1.5, -0.5}, bias[2] = {0, 3};
    double moments[8], statistics[4], of_statistics[4] = {0}, of_moments[8], y[12], sum = 0;
    struct device_row_moments rows = {.n_rows = 2,
                                      .n_elements = 3,
                                      .n = 2,
                                      .x = x,
                                      .moments = (void *)moments,
                                      .moments_gradient = (void *)of_moments,
                                      .x_gradient = gradient,
                                      .accumulate = true};
    struct device_join_moments join = {.n_rows = 2,
                                       .n_elements = 3,
                                       .n = 2,
                                       .epsilon = 0.5f,
                                       .moments = rows.moments,
                                       .statistics = (void *)statistics,
                                       .statistics_gradient = (void *)of_statistics,
                                       .moments_gradient = (void *)of_moments};
    struct device_batch_norm norm = {.n_rows = 2,
                                     .n_elements = 3,
                                     .n = 2,
                                     .x = x,
                                     .statistics = join.statistics,
                                     .weight = weight,
                                     .bias = bias,
                                     .y = y,
                                     .y_gradient = c,
                                     .x_gradient = gradient,
                                     .statistics_gradient = (void *)of_statistics};

    reference_run(&(struct call){.kind = CALL_row_moments, .row_moments = rows});
    reference_run(&(struct call){.kind = CALL_join_moments, .join_moments = join});
    reference_run(&(struct call){.kind = CALL_batch_norm, .batch_norm = norm});
    if (gradient) {
        reference_run(&(struct call){.kind = CALL_batch_norm_backward, .batch_norm = norm});
        reference_run(&(struct call){.kind = CALL_join_moments_backward, .join_moments = join});
        reference_run(&(struct call){.kind = CALL_row_moments_backward, .row_moments = rows});
    }
    for (int i = 0; i < 12; i++)
        sum += c[i] * y[i];
    return sum;
}

TEST(the_calls_of_a_batch_normalisation_make_its_slope_together)
{
    double x[12], c[12], gradient[12];

    fill(x, 12, 1), fill(c, 12, 2);
    batch_norm_of(x, c, gradient);
    for (int k = 0; k < 12; k++) {
        const double was = x[k], h = 1e-5;
        x[k] = was + h;
        const double above = batch_norm_of(x, c, NULL);
        x[k] = was - h;
        const double below = batch_norm_of(x, c, NULL);
        x[k] = was;
        ck_assert_double_eq_tol(gradient[k], (above - below) / (2 * h), 1e-7);
    }
}

/* 0, 3 and 3 have the mean 2 and the squares 4 + 1 + 1; 6, 6 and 9 the mean 7 and 1 + 1 + 4. All six: mean 4.5,
 * variance (6 + 6 + 3 (2.5^2 + 2.5^2)) / 6 = 8.25. */
TEST(moments_of_two_rows_are_joined)
{
    const double x[] = {0, 3, 3, 6, 6, 9}, want[] = {2, 6, 7, 6};
    double moments[4], statistics[2];
    const struct device_row_moments rows = {.n_rows = 2, .n_elements = 3, .n = 1, .x = x, .moments = (void *)moments};
    const struct device_join_moments join = {.n_rows = 2,
                                             .n_elements = 3,
                                             .n = 1,
                                             .epsilon = 0.75f,
                                             .moments = (void *)moments,
                                             .statistics = (void *)statistics};

    reference_run(&(struct call){.kind = CALL_row_moments, .row_moments = rows});
    reference_run(&(struct call){.kind = CALL_join_moments, .join_moments = join});
    for (int i = 0; i < 4; i++)
        ck_assert_double_eq_tol(moments[i], want[i], 1e-14);
    ck_assert_double_eq_tol(statistics[0], 4.5, 1e-14);
    ck_assert_double_eq_tol(statistics[1], 1.0 / 3, 1e-14);
}

/* A quarter of a turn takes (1, 2) to (-2, 1), and a position of 3 to (2, -1); back again the other way. */
TEST(quarters_of_a_turn)
{
    const double frequency = 1.5707963267948966, want[] = {1, 2, -2, 1, -1, -2, 2, -1};
    double x[] = {1, 2, 1, 2, 1, 2, 1, 2};
    struct device_rope op = {.n_rows = 1,
                             .n_tokens = 4,
                             .n_heads = 1,
                             .head_width = 2,
                             .n_rotated = 2,
                             .frequencies = &frequency,
                             .x = x,
                             .stride = 2};

    for (int back = 0; back < 2; back++) {
        op.inverse = back;
        reference_run(&(struct call){.kind = CALL_rope, .rope = op});
        for (int i = 0; i < 8; i++)
            ck_assert_double_eq_tol(x[i], back ? 1 + i % 2 : want[i], 1e-14);
    }
}

/* At position 1 the first pair makes a quarter of a turn, and the second none: columns 0 and 2 of halves, 0 and 1 where
 * pairs are neighbours. All are doubled; the first head is multiplied by 1 + 0.5 log(1 + 1) too. */
TEST(pairs_of_a_turn_and_factors)
{
    const double frequencies[] = {1.5707963267948966, 0}, turned[2][4] = {{-3, 2, 1, 4}, {-2, 1, 3, 4}};

    for (int interleaved = 0; interleaved < 2; interleaved++) {
        double x[] = {1, 2, 3, 4, 1, 2, 3, 4};
        const struct device_rope op = {.n_rows = 1,
                                       .n_tokens = 1,
                                       .n_heads = 2,
                                       .head_width = 4,
                                       .n_rotated = 4,
                                       .frequencies = frequencies,
                                       .first = 1,
                                       .x = x,
                                       .stride = 8,
                                       .interleaved = interleaved,
                                       .factor = 2,
                                       .n_grown = 1,
                                       .growth = 0.5f,
                                       .period = 1};
        reference_run(&(struct call){.kind = CALL_rope, .rope = op});
        for (int i = 0; i < 8; i++)
            ck_assert_double_eq_tol(x[i], 2 * turned[interleaved][i % 4] * (i < 4 ? 1.3465735902799727 : 1), 1e-14);
    }
}
