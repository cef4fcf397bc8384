#include "tests/kit/exact.h"

#include "tests/kit/processes.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    char *config = processes_read(exact->fixture.config);
    ck_assert_msg(model_config_parse(&options.config, config, strlen(config), &err) == 0, "%s", err.text);
    free(config);
    options.batch = exact->fixture.batch;
    options.seq = exact->fixture.seq;
    options.clip_norm = json_number_value(json_object_get(exact->fixture.reference, "clip_norm"));
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
    free(exact->gradient);
    *exact = (struct exact){0};
}

void exact_train(struct exact *exact, const char *fixture, const struct inprocess_options *how, uint32_t n_steps)
{
    exact_open(exact, fixture, how);
    for (uint32_t step = 0; step < n_steps; step++)
        exact_step(exact, step);
}

double exact_step(struct exact *exact, uint32_t step)
{
    const struct fixture *f = &exact->fixture;
    const uint64_t n_valid = fixture_minibatch(exact->ids, exact->labels, f, step);
    const struct hyper hyper = {.lr = f->lr,
                                .beta1 = f->beta1,
                                .beta2 = f->beta2,
                                .epsilon = f->n_steps > 1 ? f->epsilon : 1, /* of a gradient alone there is none */
                                .weight_decay = f->weight_decay};
    struct error err = {""};
    double loss;
    const int rc = inprocess_step(exact->ip, exact->ids, exact->labels, n_valid, &hyper, &loss, &err);

    ck_assert_msg(rc == 0, "step %u: %s", step, err.text);
    return loss;
}

double exact_gradient(struct exact *exact)
{
    exact->gradient = calloc(exact->ip->model.segment_n, sizeof *exact->gradient);
    ck_assert_ptr_nonnull(exact->gradient);
    exact->ip->gradient = exact->gradient;
    exact->segment = exact->gradient;
    return exact_step(exact, 0);
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

uint64_t exact_state(const struct exact *exact)
{
    const struct store *store = &exact->ip->store;

    return exact_digest(exact, exact_weights(exact)) ^ 3 * exact_digest(exact, store->m) ^
           7 * exact_digest(exact, store->v);
}

/* Within 1e-5 of a tensor's norm, and at most twice as far as PyTorch's own fp32. The gradient of a key bias is
 * rounding alone, 1e-8 in PyTorch with gradients of order 1; ten times that is the bound. */
void exact_check_gradient(const char *fixture, const struct inprocess_options *how)
{
    const struct fixture_limits limits = {.relative = 1e-5, .singles = 2, .keys = 1e-7};
    struct exact exact;

    exact_open(&exact, fixture, how);
    const struct fixture_set set = fixture_gradient(&exact.fixture);
    const double loss = exact_gradient(&exact);
    ck_assert_double_eq_tol(loss, fixture_loss(&set, 0), 1e-6 * fixture_loss(&set, 0)); /* fp32 rounding of a mean */
    ck_assert_uint_eq(fixture_compare(&set, &limits, exact_find, &exact), 0);
    exact_close(&exact);
}

double exact_farthest_key(const struct exact *exact)
{
    return exact->fixture.lr * exact->fixture.n_steps * sqrt(exact->ip->model.config.width);
}

/* The norm before it is clipped: the same as a sum in double of fp32 contributions, whose own rounding is 1e-6 of it. Of
 * twenty, some are clipped and some are not. */
static void check_norm(const struct exact *exact, const json_t *norms, uint32_t step, unsigned *n_clipped)
{
    const double norm = json_number_value(json_array_get(norms, step));

    ck_assert_double_eq_tol(exact->ip->norm, norm, 1e-5 * norm);
    *n_clipped += norm > exact->ip->options.clip_norm;
}

void exact_check_training(const char *fixture, const struct inprocess_options *how)
{
    struct exact exact;
    unsigned n_clipped = 0;

    exact_open(&exact, fixture, how);
    const struct fixture_set set = fixture_run(&exact.fixture, how->adamw ? "adamw" : "adama", how->n_parts);
    const json_t *norms = json_object_get(exact.fixture.reference, "norms");
    for (uint32_t step = 0; step < exact.fixture.n_steps; step++) {
        ck_assert_double_eq_tol(exact_step(&exact, step), fixture_loss(&set, step), 1e-5);
        if (norms)
            check_norm(&exact, norms, step, &n_clipped);
    }
    ck_assert(!norms || (n_clipped > 3 && n_clipped < exact.fixture.n_steps - 3));
    const struct fixture_limits limits = {.singles = 2, .keys = exact_farthest_key(&exact)};
    ck_assert_uint_eq(fixture_compare(&set, &limits, exact_find, &exact), 0);
    exact_close(&exact);
}
