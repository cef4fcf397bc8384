/* One step's gradient in bf16 against PyTorch in float64, and PyTorch's own bf16. */
#include "tests/array_link.h"
#include "tests/fixture.h"
#include "tests/run.h"
#include "tests/setting.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The fixture's model, of which every tensor lies in a segment. */
struct half {
    struct fixture fixture;
    struct setting s; /* weights as drawn, the first minibatch */
    const float *segment;
    float *tensor; /* what find returns */
};

/* Every piece of a tensor, from its place in the segment to that in the tensor or the other way. */
static void copy_tensor(const struct model *model, const struct model_tensor *tensor, float *segment, float *values,
                        bool to_segment)
{
    for (uint32_t u = 0; u < model->n_units; u++)
        for (uint32_t i = 0; i < model->units[u].n_pieces; i++) {
            const struct model_piece *piece = &model->pieces[model->units[u].first_piece + i];
            float *there = segment + model->units[u].offset + piece->offset;
            float *here = values + piece->first_row * tensor->shape[1];
            if (&model->tensors[piece->tensor] == tensor)
                memcpy(to_segment ? there : here, to_segment ? here : there, piece->n * sizeof *here);
        }
}

static void open_half(struct half *half)
{
    char text[4096];
    struct model_config config;
    struct error err = {""};

    *half = (struct half){0};
    fixture_open(&half->fixture, "half");
    FILE *file = fopen(half->fixture.config, "rb");
    ck_assert_ptr_nonnull(file);
    const size_t n = fread(text, 1, sizeof text, file);
    fclose(file);
    ck_assert_msg(model_config_parse(&config, text, n, &err) == 0, "%s", err.text);
    setting_open(&half->s, &config, half->fixture.batch, half->fixture.seq);
    half->s.precision = NUMBER_BF16;
    half->tensor = malloc(half->s.model.largest_unit * half->s.model.n_units * sizeof *half->tensor);
    ck_assert_ptr_nonnull(half->tensor);
    for (uint32_t t = 0; t < half->s.model.n_tensors; t++) {
        const struct model_tensor *tensor = &half->s.model.tensors[t];
        fixture_draw(half->tensor, &half->fixture, tensor->name);
        copy_tensor(&half->s.model, tensor, half->s.weights, half->tensor, true);
    }
    half->s.n_valid = fixture_minibatch(half->s.ids, half->s.labels, &half->fixture, 0);
}

static void close_half(struct half *half)
{
    setting_close(&half->s);
    fixture_close(&half->fixture);
    free(half->tensor);
}

static const float *find(void *context, const char *name, uint64_t n)
{
    struct half *half = context;
    const struct model_tensor *tensor = model_find(&half->s.model, name);

    ck_assert(tensor && tensor->n == n);
    copy_tensor(&half->s.model, tensor, (float *)(uintptr_t)half->segment, half->tensor, false);
    return half->tensor;
}

/* Rows of a part, of a microbatch: the whole minibatch at once, and row by row in eight parts. */
static const uint32_t cuts[][2] = {{8, 8}, {4, 3}, {1, 1}};
enum { N_CUTS = sizeof cuts / sizeof *cuts };

/* Each tensor is no farther from float64 than PyTorch's bf16, whose activations, like ours, are rounded wherever they are
 * written; a quarter for how roundings fall. The gradient of a key bias, which is 0 but for rounding, is below what
 * PyTorch's comes to. The loss has nothing but roundings of 2^-9 of activations behind it, many and of either sign: 1e-3
 * of it. */
START_TEST(a_gradient_in_bf16_is_as_near_as_pytorchs)
{
    const struct fixture_limits limits = {.singles = 1.25, .keys = 2e-4};
    struct array_link link;
    struct half half;
    double loss = 0;

    open_half(&half);
    const struct fixture_set set = fixture_gradient(&half.fixture);
    const struct device_worker_options options = setting_options(&half.s, cuts[_i][0], cuts[_i][1]);
    setting_step_whole(&link, &half.s, &options);
    for (uint32_t part = 0; part < half.s.batch / cuts[_i][0]; part++)
        loss += link.losses[part] / (double)half.s.n_valid;
    ck_assert_double_eq_tol(loss, fixture_loss(&set, 0), 1e-3 * fixture_loss(&set, 0));
    half.segment = link.gradient;
    ck_assert_uint_eq(fixture_compare(&set, &limits, find, &half), 0);
    array_link_free(&link);
    close_half(&half);
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("bf16");

    tcase_add_loop_test(tcase, a_gradient_in_bf16_is_as_near_as_pytorchs, 0, N_CUTS);
    return run_tests(tcase);
}
