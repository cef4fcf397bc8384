#include "tests/kit/exact.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void parse_config(struct model_config *config, const char *path)
{
    char text[16384];
    struct error err = {""};
    FILE *file = fopen(path, "rb");
    size_t n;

    ck_assert_msg(file != NULL, "%s: cannot be opened", path);
    n = fread(text, 1, sizeof text, file);
    fclose(file);
    ck_assert_msg(model_config_parse(config, text, n, &err) == 0, "%s: %s", path, err.text);
}

static uint64_t largest_tensor(const struct model *model)
{
    uint64_t largest = 0;

    for (uint32_t t = 0; t < model->n_tensors; t++)
        largest = model->tensors[t].n > largest ? model->tensors[t].n : largest;
    return largest;
}

void exact_open(struct exact *exact, const char *fixture, const struct inprocess_options *how)
{
    struct inprocess_options options = *how;
    struct error err = {""};
    size_t n;

    *exact = (struct exact){0};
    fixture_open(&exact->fixture, fixture);
    parse_config(&options.config, exact->fixture.config);
    options.batch = exact->fixture.batch;
    options.seq = exact->fixture.seq;
    ck_assert_msg(inprocess_open(&exact->ip, &options, &err) == 0, "%s", err.text);

    const struct model *model = &exact->ip->model;
    n = (size_t)options.batch * options.seq;
    exact->ids = malloc(n * sizeof *exact->ids);
    exact->labels = malloc(n * sizeof *exact->labels);
    exact->tensor = malloc(largest_tensor(model) * sizeof *exact->tensor);
    ck_assert(exact->ids && exact->labels && exact->tensor);
    if (options.precision == NUMBER_BF16) {
        exact->masters = calloc(model->segment_n, sizeof *exact->masters);
        ck_assert_ptr_nonnull(exact->masters);
    }
    exact->segment = exact->masters ? exact->masters : exact_weights(exact);
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        fixture_draw(exact->tensor, &exact->fixture, model->tensors[t].name);
        inprocess_set(exact->ip, (float *)(uintptr_t)exact->segment, t, exact->tensor);
    }
    for (uint64_t i = 0; exact->masters && i < model->segment_n; i++) /* fixtures in bf16 are of weights that are */
        ((uint16_t *)exact->ip->store.weights.base)[i] = number_to_bf16(exact->masters[i]);
    if (exact->masters)
        memset(exact->ip->store.low, 0, model->trained_n * sizeof *exact->ip->store.low);
}

void exact_close(struct exact *exact)
{
    inprocess_close(exact->ip);
    fixture_close(&exact->fixture);
    free(exact->ids);
    free(exact->labels);
    free(exact->tensor);
    free(exact->masters);
    *exact = (struct exact){0};
}

struct hyper exact_hyper(const struct exact *exact)
{
    const struct fixture *f = &exact->fixture;

    return (struct hyper){
        .lr = f->lr, .beta1 = f->beta1, .beta2 = f->beta2, .epsilon = f->epsilon, .weight_decay = f->weight_decay};
}

double exact_step(struct exact *exact, uint32_t step, const struct hyper *hyper)
{
    const uint64_t n_valid = fixture_minibatch(exact->ids, exact->labels, &exact->fixture, step);
    struct error err = {""};
    double loss;
    int rc = inprocess_step(exact->ip, exact->ids, exact->labels, n_valid, hyper, &loss, &err);

    ck_assert_msg(rc == 0, "step %u: %s", step, err.text);
    return loss;
}

float *exact_weights(const struct exact *exact)
{
    if (!exact->masters)
        return exact->ip->store.weights.base;
    inprocess_masters(exact->ip, exact->masters);
    return exact->masters;
}

const float *exact_find(void *context, const char *name, uint64_t n)
{
    struct exact *exact = context;
    const struct model *model = &exact->ip->model;
    const struct model_tensor *tensor = model_find(model, name);

    ck_assert_msg(tensor != NULL, "the model has no %s", name);
    ck_assert_uint_eq(tensor->n, n);
    inprocess_get(exact->ip, exact->tensor, exact->segment, (uint32_t)(tensor - model->tensors));
    return exact->tensor;
}

uint64_t exact_digest(const struct exact *exact, const float *segment)
{
    const struct model *model = &exact->ip->model;
    uint64_t h = 0xCBF29CE484222325;

    for (uint32_t u = 0; u < model->n_units; u++) {
        const float *unit = segment + model->units[u].offset;
        for (uint64_t i = 0; i < model->units[u].n; i++) {
            uint32_t bits;
            memcpy(&bits, &unit[i], sizeof bits);
            h = (h ^ bits) * 0x100000001B3;
        }
    }
    return h;
}

/* Within 1e-5 of a tensor's norm, and at most twice as far as PyTorch's own fp32. The gradient of a key bias is
 * rounding alone, 1e-8 in PyTorch with gradients of order 1; ten times that is the bound. */
void exact_check_gradient(const char *fixture, const struct inprocess_options *how)
{
    const struct fixture_limits limits = {.relative = 1e-5, .singles = 2, .keys = 1e-7};
    struct exact exact;
    struct fixture_set set;
    float *gradient;

    exact_open(&exact, fixture, how);
    gradient = calloc(exact.ip->model.segment_n, sizeof *gradient);
    ck_assert_ptr_nonnull(gradient);
    exact.ip->gradient = gradient;
    set = fixture_gradient(&exact.fixture);

    const struct hyper hyper = exact_hyper(&exact);
    const double loss = exact_step(&exact, 0, &hyper);
    ck_assert_double_eq_tol(loss, fixture_loss(&set, 0), 1e-6 * fixture_loss(&set, 0)); /* fp32 rounding of a mean */
    exact.segment = gradient;
    ck_assert_uint_eq(fixture_compare(&set, &limits, exact_find, &exact), 0);
    exact_close(&exact);
    free(gradient);
}

/* Nothing but rounding moves a key bias, and Adam makes steps of up to lr of it: it can go no farther than this. */
static double farthest(const struct exact *exact)
{
    return exact->fixture.lr * exact->fixture.n_steps * sqrt(exact->ip->model.config.width);
}

void exact_check_training(const char *fixture, const struct inprocess_options *how)
{
    struct exact exact;
    struct fixture_set set;

    exact_open(&exact, fixture, how);
    set = fixture_run(&exact.fixture, how->adamw ? "adamw" : "adama", how->n_parts);
    const struct hyper hyper = exact_hyper(&exact);
    for (uint32_t step = 0; step < exact.fixture.n_steps; step++)
        ck_assert_double_eq_tol(exact_step(&exact, step, &hyper), fixture_loss(&set, step), 1e-5);

    const struct fixture_limits limits = {.singles = 2, .keys = farthest(&exact)};
    ck_assert_uint_eq(fixture_compare(&set, &limits, exact_find, &exact), 0);
    exact_close(&exact);
}
