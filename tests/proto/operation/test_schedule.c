/* The order of a program's steps, written out, and what forward leaves for backward. */
#include "proto/operation/call.h"
#include "proto/operation/operation.h"
#include "proto/operation/schedule.h"
#include "tests/kit/inprocess/programs.h"
#include "tests/kit/test.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static const struct programs_shape plain = {8, 2, 1, 32, 0}, dropping = {8, 2, 1, 32, 0.1f};

/* A step as `norm ln_1`, `linear attn.c_attn+`: with the activation behind it, or before it on the way back; `add+`
 * with the norm behind it, `x norm ln_1+` with the gradient of what dropout let through before it; W: the gradients of
 * the weights; x: of the input, `x+` where they are added. */
static void print_step(char *out, size_t n, const struct program *p, const struct schedule_step *step)
{
    const struct program_operation *op = &p->operations[step->operation];
    const char *direction = step->action == SCHEDULE_FORWARD      ? ""
                            : step->action == SCHEDULE_CONTRIBUTE ? "W "
                            : step->action == SCHEDULE_SAMPLE     ? "sample "
                            : step->action == SCHEDULE_COMPRESS   ? "compress "
                            : step->action == SCHEDULE_EXPAND     ? "expand "
                            : step->accumulate                    ? "x+ "
                                                                  : "x ";
    const size_t used = strlen(out);

    snprintf(out + used, n - used, "%s%s%s%s%s", used ? ", " : "", direction, op->kind->name, op->n_tensors ? " " : "",
             op->n_tensors ? p->tensors[op->tensor].name : "");
    if (op->n_tensors)
        *strrchr(out, '.') = 0;
    if (step->absorbed != SCHEDULE_NONE)
        strcat(out, "+");
}

static void check_steps(const struct program *p, const struct schedule *s, const char *expected)
{
    char found[2000] = "";

    for (int i = 0; i < s->n_steps; i++)
        print_step(found, sizeof found - 2, p, &s->steps[i]);
    ck_assert_str_eq(found, expected);
}

#define GPT2_RECOMPUTED "norm ln_1, linear attn.c_attn, attention, linear attn.c_proj, add+, linear mlp.c_fc+"
#define GPT2_DERIVATIVES                                                                                               \
    "W linear mlp.c_proj, x linear mlp.c_proj+, W linear mlp.c_fc, x linear mlp.c_fc, x+ norm ln_2, "                  \
    "W linear attn.c_proj, x linear attn.c_proj, x attention, norm ln_1, W linear attn.c_attn, "                       \
    "x linear attn.c_attn, x+ norm ln_1"

/* The first norm is made again where the map behind it asks for it; nothing else is made twice. */
TEST(gpt2_runs_in_the_order_that_is_written_out)
{
    static struct program p;
    static struct schedule s;

    programs_gpt2(&p, &plain);
    schedule_forward(&s, &p, 0);
    check_steps(&p, &s, GPT2_RECOMPUTED ", linear mlp.c_proj, add");
    schedule_backward(&s, &p, 0);
    check_steps(&p, &s, GPT2_RECOMPUTED ", " GPT2_DERIVATIVES);
    schedule_backward(&s, &p, program_keepable(&p));
    check_steps(&p, &s, "norm ln_2, activation, " GPT2_DERIVATIVES);
    ck_assert_int_eq(s.n_recomputed, 2);
    programs_gpt2(&p, &dropping); /* a gradient passes through a sum as it is, unless something is dropped out */
    schedule_backward(&s, &p, program_keepable(&p));
    check_steps(&p, &s,
                "norm ln_2, activation, x add, "
                "W linear mlp.c_proj, x linear mlp.c_proj+, W linear mlp.c_fc, x linear mlp.c_fc, x+ norm ln_2+, "
                "W linear attn.c_proj, x linear attn.c_proj, x attention, norm ln_1, W linear attn.c_attn, "
                "x linear attn.c_attn, x+ norm ln_1");
}

static unsigned n_reduced, n_in_products;

static void count_biases(struct device *dev, struct call *call)
{
    (void)dev;
    n_reduced += call->kind == CALL_reduce_rows;
    n_in_products += call->kind == CALL_matmul && call->matmul.bias_gradient;
}
CALL_TABLE(count_biases)

/* Of the four maps of a block, the step that makes the gradient of the activation's operand makes that of the operand's
 * bias. Of a frozen bias neither does. */
TEST(a_bias_s_gradient_comes_with_that_of_its_map_s_result_behind_an_activation)
{
    static const struct device_ops table = {.name = "counted", DEVICE_CALLS(CALL_ROW)};
    static struct program p;
    static struct schedule s;
    static float nowhere;

    programs_gpt2(&p, &plain);
    schedule_backward(&s, &p, 0);
    struct operation_run r = {.ops = &table, .program = &p, .schedule = &s, .n_rows = 1, .n_tokens = 1};
    for (int i = 0; i < p.n_tensors; i++)
        r.weights[i] = r.gradients[i] = &nowhere;
    for (int i = 0; i < s.n_buffers; i++)
        r.at[i] = &nowhere;
    operation_run_steps(&r, 0, s.n_steps);
    ck_assert(n_reduced == 3 && n_in_products == 1);
    for (int i = 0; i < p.n_tensors; i++)
        if (strcmp(p.tensors[i].name, "mlp.c_fc.bias") == 0)
            r.gradients[i] = NULL;
    operation_run_steps(&r, 0, s.n_steps);
    ck_assert(n_reduced == 6 && n_in_products == 1);
}

/* Forward does not store a sum that the norm alone reads, if backward makes it again; and then the norm's result takes
 * the place of what was added. The residual of GPT-2, or a sum that is kept, is stored. */
TEST(a_sum_that_its_norm_alone_reads_is_not_stored)
{
    static struct program p;
    static struct schedule s;
    int n = 0, n_stored = 0;

    programs_write(&p, PROGRAMS_BERT, &dropping);
    for (int kept = 0; kept < 2; kept++) {
        schedule_forward(&s, &p, kept ? program_keepable(&p) : 0);
        for (const struct schedule_step *step = s.steps; step < s.steps + s.n_steps; step++)
            if (p.operations[step->operation].kind == &operation_add) {
                const bool stored = step->outputs[0] != SCHEDULE_NONE;
                n++, n_stored += stored;
                ck_assert_int_eq(stored, kept);
                ck_assert(step->absorbed == step->operation + 1 && step->after[1] != SCHEDULE_NONE);
                if (!kept && s.buffers[step->after[0]].place == SCHEDULE_WORKSPACE)
                    ck_assert_int_eq(step->after[0], step->inputs[1]);
            }
    }
    ck_assert(n == 4 && n_stored == 2);
    programs_gpt2(&p, &dropping);
    schedule_forward(&s, &p, 0);
    for (const struct schedule_step *step = s.steps; step < s.steps + s.n_steps; step++)
        ck_assert_int_ne(step->outputs[0], SCHEDULE_NONE);
}

/* y = x + dropout(h), normalised, where h is read once more: h's gradient has two terms, which are made one by one. */
TEST(a_branch_that_others_read_has_its_gradient_in_a_step_of_its_own)
{
    static struct program p;
    static struct schedule s;
    const struct program_norm_options norm = {.epsilon = 1e-5f};
    const struct program_linear_options linear = {.deviation = 0.02f};
    const struct program_dropout none = {0}, drop = {.p = 0.1f};

    const int x = program_begin(&p, 8), h = program_linear(&p, x, "in", 8, &linear);
    const int n = program_norm(&p, program_add(&p, x, h, &drop), "ln", &norm);
    program_end(&p, program_add(&p, n, h, &none));
    schedule_backward(&s, &p, program_keepable(&p));
    check_steps(&p, &s, "norm ln, x norm ln, x+ add, W linear in, x+ linear in");
}

/* Where forward kept all it can, backward computes nothing again but what is cheap. By hand: of 8 columns and 2 heads
 * qkv 24, attended 8, log-sum-exp 2, residual 8, the inner 32 before its activation; Llama keeps queries and keys as
 * they are turned, of 1 head of keys and values, and both halves of its gated unit. */
TEST_EACH(what_can_be_kept_is_what_is_dear_and_is_not_computed_again, PROGRAMS)
{
    static const uint32_t columns[PROGRAMS][8] = {[PROGRAMS_GPT2] = {24, 8, 2, 8, 32},
                                                  [PROGRAMS_LLAMA] = {16, 8, 2, 8, 64},
                                                  [PROGRAMS_BERT] = {24, 8, 2, 8, 32, 8}};
    static struct program p;
    static struct schedule s;
    int n = 0;

    programs_write(&p, _i, &plain);
    const uint64_t kept = program_keepable(&p);
    for (int value = 0; value < p.n_values; value++)
        if (kept >> value & 1)
            ck_assert_uint_eq(p.values[value].columns, columns[_i][n++]);
    ck_assert_uint_eq(columns[_i][n], 0);
    schedule_backward(&s, &p, kept);
    for (int i = 0; i < s.n_steps; i++)
        if (s.steps[i].action == SCHEDULE_FORWARD)
            ck_assert(p.operations[s.steps[i].operation].kind->cheap);
}

static void adapt(struct program *p, const char *modules, const char *trained)
{
    program_adapt(p,
                  &(struct program_adaptation){.all = {2, 1}, .modules = modules, .trained = trained, .dropout = 0.5f});
}

/* An adapter follows its map, and the activation is then a step of its own. Of the base no gradient of a tensor is
 * made: what only those would read, such as the input of mlp.c_fc, is neither kept nor computed again. */
TEST(an_adapters_steps_are_written_out_and_the_base_contributes_nothing)
{
    static struct program p;
    static struct schedule s;

    programs_gpt2(&p, &plain);
    adapt(&p, "attn.c_attn,mlp.c_proj", "");
    schedule_forward(&s, &p, 0);
    check_steps(&p, &s,
                "norm ln_1, linear attn.c_attn, adapter attn.c_attn.lora_A, attention, linear attn.c_proj, add+, "
                "linear mlp.c_fc+, linear mlp.c_proj, adapter mlp.c_proj.lora_A, add");
    schedule_backward(&s, &p, program_keepable(&p));
    check_steps(
        &p, &s,
        "norm ln_2, activation, x adapter mlp.c_proj.lora_A, x+ linear mlp.c_proj, x activation, x linear mlp.c_fc, "
        "x+ norm ln_2, x linear attn.c_proj, x attention, norm ln_1, x adapter attn.c_attn.lora_A, "
        "x+ linear attn.c_attn, x+ norm ln_1");
}

/* Two of Llama's three maps in one operation: A and B of each, 8 columns in, queries of 8 and values of 4. */
TEST(any_of_the_maps_that_lie_side_by_side_is_adapted)
{
    static struct program p;

    programs_write(&p, PROGRAMS_LLAMA, &plain);
    adapt(&p, "self_attn.q_proj,self_attn.v_proj,mlp.up_proj", "mlp.up_proj");
    const struct program_operation *op = program_find(&p, &operation_adapter);
    const struct program_tensor *t = &p.tensors[op->tensor];
    ck_assert(op->n_tensors == 4 && op->adapter.n_maps == 2 && op->inputs[0] == op[-1].outputs[0]);
    ck_assert_str_eq(t[0].name, "self_attn.q_proj.lora_A.weight");
    ck_assert_str_eq(t[3].name, "self_attn.v_proj.lora_B.weight");
    ck_assert(t[0].rows == 2 && t[0].columns == 8 && t[1].rows == 8 && t[1].columns == 2 && t[3].rows == 4);
    ck_assert(op->adapter.maps[0].first == 0 && op->adapter.maps[1].first == 12 && op->adapter.maps[1].columns == 4);
    ck_assert(t[0].init == MODEL_INIT_UNIFORM && fabsf(t[0].deviation - 0.35355339f) < 1e-7f); /* 1 / sqrt(8) */
    for (int i = 0, n = 0; i < p.n_operations; i++) {
        op = &p.operations[i];
        n += op->kind == &operation_adapter; /* what is trained as a whole has none */
        ck_assert_int_le(n, 1);
        if (op->kind == &operation_linear)
            ck_assert_int_eq(op->frozen, strncmp(p.tensors[op->tensor].name, "mlp.gate_proj", 13) != 0);
    }
}

/* A linear map cannot write over the gradient that it reads. So where nothing passes the gradient around it, backward
 * leaves the place of the output's gradient before the map, and the input's gradient comes into that place. */
/* Readers look for the last dot without a check. */
TEST_SIGNAL(a_parameter_of_no_module_is_a_mistake, SIGABRT)
{
    struct program p;

    program_begin(&p, 8);
    program_parameter(&p, "scale", 8);
}

TEST(a_linear_map_may_be_the_last_of_backward)
{
    static struct program p;
    static struct schedule s;
    const struct program_norm_options norm = {.epsilon = 1e-5f};
    const struct program_linear_options linear = {.deviation = 0.02f};

    program_end(&p, program_norm(&p, program_linear(&p, program_begin(&p, 8), "dense", 8, &linear), "ln", &norm));
    schedule_backward(&s, &p, 0);
    check_steps(&p, &s, "linear dense, norm ln, x norm ln, W linear dense, x linear dense");
    const struct schedule_buffer *of_input = &s.buffers[s.gradients[0]], *of_output = &s.buffers[s.steps[2].y_gradient];
    ck_assert_int_eq(of_input->place, SCHEDULE_GRADIENT);
    ck_assert_int_eq(of_output->place, SCHEDULE_GRADIENT);
    ck_assert_int_eq(s.buffers[s.steps[2].x_gradient].place == SCHEDULE_GRADIENT, false);
    ck_assert_int_lt(of_output->last, of_input->first);
}

/* y = convolution(activation(x)): what the activation's gradient is made over is what the convolution writes, and that
 * it cannot write over the gradient that it reads, though all below it are done in place. */
TEST(a_convolution_does_not_write_over_the_gradient_that_it_reads)
{
    static struct program p;
    static struct schedule s;
    const struct program_conv2d_options conv = {.window = {3, 3, 1, 1}, .n_groups = 1, .deviation = 0.02f};

    program_init(&p);
    const int x = program_input(&p, "", PROGRAM_OWN, 8);
    program_output(&p, "", program_conv2d(&p, program_activation(&p, x, MODEL_RELU), "conv", PROGRAM_OWN, 8, &conv));
    schedule_backward(&s, &p, 0);
    check_steps(&p, &s, "activation, W convolution conv, x convolution conv, x activation");
    ck_assert_int_ne(s.steps[2].x_gradient, s.steps[2].y_gradient);
    ck_assert_int_eq(s.buffers[s.steps[2].x_gradient].place == SCHEDULE_GRADIENT, false);
    ck_assert_int_eq(s.passes, false);
}

/* y = r + (m + linear(norm(r))): r's gradient, which the norm adds to, is in the output's place. m's is not, and is
 * copied before. */
TEST(a_gradient_is_copied_for_an_input_before_it_is_added_to_for_another)
{
    static struct program p;
    static struct schedule s;
    const struct program_norm_options norm = {.epsilon = 1e-5f};
    const struct program_linear_options linear = {.deviation = 0.02f};
    const struct program_dropout none = {0};

    const int r = program_begin(&p, 8), m = program_input(&p, "m", PROGRAM_TOKENS, 8);
    const int mapped = program_linear(&p, program_norm(&p, r, "ln", &norm), "dense", 8, &linear);
    program_end(&p, program_add(&p, r, program_add(&p, m, mapped, &none), &none));
    schedule_backward(&s, &p, 0);
    check_steps(&p, &s, "norm ln, x add, W linear dense, x linear dense, x+ norm ln");
    ck_assert(s.passes);
    ck_assert_int_eq(s.buffers[s.gradients[0]].place, SCHEDULE_GRADIENT);
    ck_assert_int_eq(s.buffers[s.gradients[1]].place, SCHEDULE_INPUT_GRADIENT);
    ck_assert_int_eq(s.buffers[s.gradients[1]].boundary, 1);
}

/* Other layers of the block still read it: x's gradient is a copy, and so is that of what the norm gives to both the
 * map and the sum. */
TEST(the_gradient_of_a_sum_that_layers_share_is_never_added_to)
{
    static struct program p;
    static struct schedule s;
    const struct program_norm_options norm = {.epsilon = 1e-5f};
    const struct program_linear_options linear = {.deviation = 0.02f};
    const struct program_dropout none = {0};

    const int x = program_begin(&p, 8), n = program_norm(&p, x, "ln", &norm);
    const int mapped = program_linear(&p, n, "dense", 8, &linear);
    program_add_to(&p, "sum", program_add(&p, x, program_add(&p, n, mapped, &none), &none));
    schedule_backward(&s, &p, 0);
    check_steps(&p, &s, "norm ln, x add, x add, W linear dense, x+ linear dense, x+ norm ln");
    for (int i = 0; i < s.n_steps; i++)
        if (s.steps[i].x_gradient != SCHEDULE_NONE)
            ck_assert_int_ne(s.buffers[s.steps[i].x_gradient].place, SCHEDULE_GRADIENT);
    ck_assert_int_eq(s.buffers[s.gradients[0]].place, SCHEDULE_INPUT_GRADIENT);
}

/* Both convolutions behind a relu share its means, which are taken when backward needs them; the first one's input is a
 * boundary's, so it is read as it is. 5 x 5 pixels of 6 channels are 3 x 3 means of 2 x 2, and fewer of larger
 * blocks. */
TEST(means_are_what_backward_reads_of_a_convolution_s_input)
{
    static struct program p;
    static struct schedule s;
    const struct program_conv2d_options wide = {.window = {3, 3, 1, 1}, .n_groups = 1, .deviation = 0.02f},
                                        narrow = {.window = {1, 1, 1, 0}, .n_groups = 1, .deviation = 0.02f};
    const struct program_dropout none = {0};

    program_init(&p);
    p.own[0] = (struct program_own){.height = 5, .width = 5};
    const int x = program_input(&p, "", PROGRAM_OWN, 4),
              a = program_activation(&p, program_conv2d(&p, x, "first", PROGRAM_OWN, 6, &wide), MODEL_RELU),
              left = program_conv2d(&p, a, "left", PROGRAM_OWN, 4, &wide),
              right = program_conv2d(&p, a, "right", PROGRAM_OWN, 4, &narrow);
    program_output(&p, "", program_add(&p, left, right, &none));
    ck_assert(program_can_pool(&p));
    program_pool(&p, 2);
    program_compress(&p, 0);
    ck_assert_uint_eq(program_keepable(&p) >> a & 1, 0);
    ck_assert_uint_eq(program_pooled_bytes(&p, a, 7, sizeof(float)), 7 * 3 * 3 * 6 * sizeof(float));
    schedule_backward(&s, &p, 0);
    check_steps(&p, &s,
                "convolution first, activation, sample convolution right, W convolution right, x convolution right, "
                "W convolution left, x+ convolution left, x activation, W convolution first, x convolution first");
    program_pool(&p, 4);
    ck_assert_uint_eq(program_pooled_bytes(&p, a, 7, sizeof(float)), 7 * 2 * 2 * 6 * sizeof(float));
    program_pool(&p, 8);
    ck_assert_uint_eq(program_pooled_bytes(&p, a, 7, sizeof(float)), 7 * 6 * sizeof(float));
    program_pool(&p, 1);
    ck_assert_int_eq(program_sampler(&p, a), -1);
}

/* Forward keeps signs and rows, and backward reads these. What it must make of all rows, here the norm's operand, is
 * made from the layer's input again, and the rows serve as they were kept; if they were not, the same are chosen. */
TEST(signs_and_rows_are_what_backward_reads_of_a_relu)
{
    static struct program p;
    static struct schedule s;
    const struct program_norm_options norm = {.epsilon = 1e-5f};
    const struct program_linear_options linear = {.deviation = 0.02f};
    const struct program_dropout none = {0}, drop = {.p = 0.1f};
    const int x = program_begin(&p, 8), u = program_linear(&p, x, "in", 32, &linear),
              v = program_drop(&p, program_activation(&p, u, MODEL_RELU), &drop);
    const uint64_t held = UINT64_C(1) << u | UINT64_C(1) << v;

    program_end(&p, program_norm(&p, program_add(&p, x, program_linear(&p, v, "out", 8, &linear), &none), "ln", &norm));
    program_sample(&p);
    program_compress(&p, 0);
    ck_assert_uint_eq(held & ~program_keepable(&p), 0);
    schedule_forward(&s, &p, held);
    check_steps(&p, &s, "linear in, compress linear in, activation, dropout, sample linear out, linear out, add+");
    schedule_backward(&s, &p, program_keepable(&p));
    check_steps(
        &p, &s,
        "norm ln, x norm ln, W linear out, x linear out, x dropout, expand linear in, x activation, W linear in, "
        "x+ linear in");
    schedule_backward(&s, &p, held);
    check_steps(&p, &s,
                "linear in, activation, dropout, linear out, add+, "
                "x norm ln, W linear out, x linear out, x dropout, x activation, W linear in, x+ linear in");
    schedule_backward(&s, &p, 0);
    check_steps(&p, &s,
                "linear in, activation, dropout, linear out, add+, "
                "x norm ln, sample linear out, W linear out, x linear out, x dropout, x activation, W linear in, "
                "x+ linear in");
}
