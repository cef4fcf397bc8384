/* Gradients of matrices from a sample of the tokens, in whole steps: which tensors they touch, their mean, and that
 * nothing but the seed changes the sample. */
#include "proto/model/encoder.h"
#include "proto/plan/memory/data.h"
#include "tests/kit/device/backend.h"
#include "tests/kit/device/setting.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single, slow, on_cuda)

enum { POSITIONS = 40, BATCH = 4 };

static const struct sampling some = {.share = 0.3}, least = {.share = 0.3, .rule = SAMPLE_VARIANCE},
                             queries = {.queries = 0.3};

/* Of the models below. */
enum { MAPS = 1, ADAPTERS = 2, RELU = 4, MODELS = 8 };

/* One linear map a matrix, (in, out); and three maps of one value, (out, in), beside a classifier, whose own maps are
 * of one token a row. With ADAPTERS, the same models with adapters, two of them of one value. With RELU, forward
 * samples the input of an MLP's second map, unless an adapter reads it, too. */
static void open_model(struct setting *s, int which)
{
    struct model_config config = which & MAPS ? setting_classifier(3, 2) : *setting_config(0);

    config.n_positions = POSITIONS;
    config.activation = which & RELU ? MODEL_RELU : config.activation;
    if (which & MAPS)
        encoder_edit(&config)->n_rows = POSITIONS;
    if (which & ADAPTERS)
        config.adapter = (struct model_adapter){.rank = 3, .factor = 0.25f};
    if (which & ADAPTERS)
        snprintf(config.adapter.modules, sizeof config.adapter.modules, "%s",
                 which & MAPS ? "attention.self.key,attention.self.value,output.dense" : "attn.c_attn,mlp.c_proj");
    setting_open(s, &config, BATCH, POSITIONS);
}

static struct device_worker_options sampled(const struct setting *s, const struct sampling *sampling,
                                            uint32_t microbatch)
{
    struct device_worker_options options = setting_options(s, BATCH, microbatch);

    options.setting.goal.sampling = *sampling;
    return options;
}

static bool is_sampled(const struct model_tensor *t)
{
    const char *const a = strstr(t->name, "lora_A"), *const b = strstr(t->name, "lora_B");

    return a ||
           (!b && t->n_dims == 2 && (strncmp(t->name, "transformer.h.", 14) == 0 || strstr(t->name, "encoder.layer.")));
}

/* The squared distance of a trained tensor in two gradients, and its own squared norm in the second; 0 of a frozen
 * one. */
static void compare(const struct setting *s, uint32_t tensor, const double *a, const double *b, double *distance,
                    double *size)
{
    const struct model *m = &s->model;

    *distance = *size = 0;
    if (m->tensors[tensor].frozen)
        return;
    for (const struct model_unit *unit = m->units; unit < m->units + m->n_units; unit++)
        for (const struct model_piece *p = &m->pieces[unit->first_piece];
             p < &m->pieces[unit->first_piece + unit->n_pieces]; p++)
            for (uint64_t i = unit->offset + p->offset; p->tensor == tensor && i < unit->offset + p->offset + p->n;
                 i++) {
                *distance += pow(a[i] - b[i], 2);
                *size += pow(b[i], 2);
            }
}

/* The simulated device is slow. How kernels choose rows and code values is for test_row_sample and test_compress: here
 * each rule, and all that is allowed at once, runs with two models. */
static bool simulated(void)
{
    return backend_get()->simulated;
}

/* Two models for the nth of these: one has the traits that the other has not. */
static int model_of(int nth, bool other)
{
    return nth % (MODELS / 2) ^ (other ? MODELS - 1 : 0);
}

/* The nth of half of the models, or of the others: each trait, and each absence of one, is in both halves, and so is
 * each pair. */
static int model_of_half(int half, int nth)
{
    return 2 * nth | (__builtin_parity((unsigned)nth) ^ half);
}

/* True on a device whose library may add up products of other rows in another order. */
static bool rounds_by_rows(void)
{
    return backend_get()->cuda && !simulated();
}

/* Where scores find all rows that a gradient has, its estimate is exact. A library may add up the fewer rows in another
 * order: within fp32 rounding then, not the same bits. */
static bool is_exact(double distance, double size)
{
    return distance <= (rounds_by_rows() ? pow(1e-6, 2) * size : 0);
}

/* The gradient of a step. Owned. */
static double *widen(const struct array_link *link)
{
    double *gradient = malloc(link->model->segment_n * sizeof *gradient);

    ck_assert_ptr_nonnull(gradient);
    for (uint64_t i = 0; i < link->model->segment_n; i++)
        gradient[i] = (double)link->gradient[i];
    return gradient;
}

/* Of one step. Owned. */
static double *gradient_of(const struct setting *s, const struct device_worker_options *options, double *loss)
{
    struct array_link link;

    setting_step_whole(&link, s, options);
    double *const gradient = widen(&link);
    *loss = link.losses[0];
    array_link_free(&link);
    return gradient;
}

/* Matrices of blocks are estimated, and of adapters A; the gradients of B, biases, norms, embedding, pooler and head
 * are the exact ones, and so was what flowed down to them. */
TEST_EACH(only_matrices_of_blocks_are_estimated, simulated() ? 4 : MODELS)
{
    /* A classifier's last block: keys and values alone, as gradients of all else are of one token a row, which exact
     * scores find; those of forward do not. */
    static const unsigned n_matrices[MODELS] = {8, 8, 4, 5, 8, 9, 4, 5};
    const int which = simulated() ? model_of(_i / 2, _i % 2) : _i;
    struct setting s;
    double losses[2], distance, size;
    unsigned n_estimated = 0;

    open_model(&s, which);
    const struct device_worker_options exact = setting_options(&s, BATCH, 0), options = sampled(&s, &some, 0);
    double *const want = gradient_of(&s, &exact, &losses[0]), *const got = gradient_of(&s, &options, &losses[1]);
    ck_assert(losses[0] == losses[1]);
    for (uint32_t t = 0; t < s.model.n_tensors; t++) {
        compare(&s, t, got, want, &distance, &size);
        ck_assert_msg(is_exact(distance, size) || is_sampled(&s.model.tensors[t]), "%s: off by %g of %g",
                      s.model.tensors[t].name, sqrt(distance), sqrt(size));
        n_estimated += !is_exact(distance, size);
    }
    ck_assert_uint_eq(n_estimated, n_matrices[which]);
    free(want);
    free(got);
    setting_close(&s);
}

/* Before the first step that samples, gradients are the exact ones; of it, and later, those of a run that samples from
 * the first on. Of an input that forward sampled there are no other rows. */
TEST_EACH(gradients_are_exact_until_the_step_in_which_samples_begin, simulated() ? 4 : MODELS)
{
    const int which = simulated() ? model_of(_i / 2, _i % 2) : _i;
    struct sampling later = some;
    struct setting s;
    double loss, distance, size;
    unsigned n_estimated = 0;

    open_model(&s, which);
    const struct device_worker_options exact = setting_options(&s, BATCH, 0), always = sampled(&s, &some, 0);
    later.begin = SETTING_STEP + 1;
    const struct device_worker_options not_yet = sampled(&s, &later, 0);
    later.begin = SETTING_STEP;
    const struct device_worker_options from_now = sampled(&s, &later, 0);
    double *const want = gradient_of(&s, &exact, &loss), *const before = gradient_of(&s, &not_yet, &loss);
    double *const from = gradient_of(&s, &from_now, &loss), *const all = gradient_of(&s, &always, &loss);
    for (uint32_t t = 0; t < s.model.n_tensors; t++) {
        compare(&s, t, from, all, &distance, &size);
        ck_assert_msg(distance == 0, "%s: other samples", s.model.tensors[t].name);
        compare(&s, t, before, want, &distance, &size);
        n_estimated += !is_exact(distance, size);
    }
    ck_assert_uint_eq(n_estimated,
                      which & RELU && !(which & ADAPTERS) ? 2 : 0); /* of an MLP's second map, in two blocks */
    free(want);
    free(before);
    free(from);
    free(all);
    setting_close(&s);
}

/* The first column of a matrix's gradient, (in, out), that differs; `columns` if none does. */
static uint64_t first_other_column(const struct setting *s, const char *name, uint64_t columns, const double *a,
                                   const double *b)
{
    const struct model *m = &s->model;
    uint64_t first = columns;

    for (const struct model_unit *unit = m->units; unit < m->units + m->n_units; unit++)
        for (const struct model_piece *p = &m->pieces[unit->first_piece];
             p < &m->pieces[unit->first_piece + unit->n_pieces]; p++)
            for (uint64_t i = 0; strcmp(m->tensors[p->tensor].name, name) == 0 && i < p->n; i++)
                if (a[unit->offset + p->offset + i] != b[unit->offset + p->offset + i] && i % columns < first)
                    first = i % columns;
    return first;
}

/* The loss is exact, and so is all that is above the last attention's keys and values: the maps behind it, and the
 * columns of its queries. All below it is estimated. */
TEST(sampled_queries_change_gradients_of_keys_and_values_and_all_below)
{
    struct setting s;
    double losses[2], distance, size;
    unsigned n_exact = 0;

    open_model(&s, 0);
    const uint64_t width = s.model.config.width;
    const struct device_worker_options exact = setting_options(&s, BATCH, 0), options = sampled(&s, &queries, 0);
    double *const want = gradient_of(&s, &exact, &losses[0]), *const got = gradient_of(&s, &options, &losses[1]);
    ck_assert(losses[0] == losses[1]);
    for (uint32_t t = 0; t < s.model.n_tensors; t++) {
        const char *const name = s.model.tensors[t].name;
        const bool above = strstr(name, "ln_f") || strstr(name, "h.1.attn.c_proj") || strstr(name, "h.1.ln_2") ||
                           strstr(name, "h.1.mlp");
        compare(&s, t, got, want, &distance, &size);
        ck_assert_msg((distance == 0) == above, "%s: off by %g of %g", name, sqrt(distance), sqrt(size));
        n_exact += above;
    }
    ck_assert_uint_eq(n_exact, 2 + 2 + 2 + 4);
    ck_assert_uint_eq(first_other_column(&s, "transformer.h.1.attn.c_attn.weight", 3 * width, got, want), width);
    free(want);
    free(got);
    setting_close(&s);
}

/* The mean over many seeds, against the exact gradient: its squared distance is the variance of one over their number.
 * Each rule with half of the models. */
TEST_EACH(the_mean_of_estimates_is_the_gradient, simulated() ? 4 : 3 * MODELS / 2)
{
    enum { SEEDS = 200 };
    static const struct sampling *const all[] = {&some, &least, &queries};
    const unsigned n_seeds = simulated() ? 4 : SANITIZED || backend_get()->cuda ? 20 : SEEDS;
    const int nth = simulated() ? _i / 2 * 2 : _i / (MODELS / 2);
    const struct sampling *const how = all[nth];
    struct setting s;
    double loss, distance, size;

    open_model(&s, simulated() ? model_of(2 + _i / 2, _i % 2) : model_of_half(nth % 2, _i % (MODELS / 2)));
    struct device_worker_options exact = setting_options(&s, BATCH, 0), options = sampled(&s, how, 0);
    double *const want = gradient_of(&s, &exact, &loss);
    double *const mean = calloc(s.model.segment_n, sizeof *mean);
    double *const squares = calloc(s.model.n_tensors, sizeof *squares);
    ck_assert(mean && squares);
    for (options.seed = 100; options.seed < 100 + n_seeds; options.seed++) {
        double *const got = gradient_of(&s, &options, &loss);
        for (uint64_t i = 0; i < s.model.segment_n; i++)
            mean[i] += got[i] / n_seeds;
        for (uint32_t t = 0; t < s.model.n_tensors; t++) {
            compare(&s, t, got, want, &distance, &size);
            squares[t] += distance / n_seeds;
        }
        free(got);
    }
    for (uint32_t t = 0; t < s.model.n_tensors; t++) {
        compare(&s, t, mean, want, &distance, &size);
        if (is_exact(squares[t], size) || strstr(s.model.tensors[t].name, "key.bias")) /* 0 but for rounding */
            continue;
        ck_assert_msg(distance * n_seeds < 3 * squares[t], "%s: the mean's squared distance is %g times its variance",
                      s.model.tensors[t].name, distance * n_seeds / squares[t]);
    }
    free(want);
    free(mean);
    free(squares);
    setting_close(&s);
}

/* Of one step in one part: the norms that it leaves behind its contributions, as the daemon remembers them, whose zeros
 * are the smallest number. Owned. */
static uint16_t *norms_after(const struct setting *s, const struct device_worker_options *options)
{
    const size_t n = (size_t)s->model.n_norm_maps * BATCH * POSITIONS;
    struct array_link link;
    uint16_t *norms = calloc(n, sizeof *norms);

    ck_assert(norms && n > 0);
    setting_step_whole(&link, s, options);
    for (size_t i = 0; i < n; i++)
        norms[i] = link.norms[0][i] > 0 ? number_to_bf16(link.norms[0][i]) : 1;
    array_link_free(&link);
    return norms;
}

/* The mean squared distance of estimates from the gradient, of the second maps of MLPs behind a relu. */
static double distance_of_sampled(const struct setting *s, struct device_worker_options options, const double *want)
{
    const unsigned n_seeds = simulated() ? 3 : 40;
    double loss, distance, size, all = 0;

    for (options.seed = 500; options.seed < 500 + n_seeds; options.seed++) {
        double *const got = gradient_of(s, &options, &loss);
        for (uint32_t t = 0; t < s->model.n_tensors; t++) {
            const char *const name = s->model.tensors[t].name;
            const bool is_second = strstr(name, "mlp.c_proj.weight") ||
                                   (strstr(name, "output.dense.weight") && !strstr(name, "attention"));
            compare(s, t, got, want, &distance, &size);
            all += is_second ? distance / n_seeds : 0;
        }
        free(got);
    }
    return all;
}

/* Estimates are nearer once the norms of gradients are known: those of one token a row, as in a classifier's last
 * block, are then found; and whatever is kept, the same rows are chosen by them. */
TEST_EACH(known_norms_bring_estimates_nearer, 2)
{
    struct setting s;
    struct array_link link;
    uint64_t state = 362436069u;
    double loss;

    open_model(&s, RELU | (_i ? MAPS : 0));
    struct device_worker_options exact = setting_options(&s, BATCH, 0), options = sampled(&s, &some, 0);
    double *const want = gradient_of(&s, &exact, &loss);
    options.setting.goal.entries = BATCH * POSITIONS;
    options.setting.goal.n_parts = 1;
    model_approximate(&s.model, &(struct model_approximation){.samples = true});
    plan_remember_norms(&s.model, &options.setting.goal);
    const double unknown = distance_of_sampled(&s, options, want);
    uint16_t *const norms = norms_after(&s, &options);
    s.norms = norms;
    const double known = distance_of_sampled(&s, options, want);
    ck_assert_msg(known < (_i ? 0.1 : 0.7) * unknown, "%g, and %g without", known, unknown);
    setting_step_whole(&link, &s, &options);
    for (int k = 0; k < (simulated() ? 2 : SANITIZED ? 4 : 30); k++) {
        setting_choose(&options.choice, &s.model, &state);
        setting_check_bits(&link, &s, &options);
    }
    array_link_free(&link);
    free(norms);
    free(want);
    setting_close(&s);
}

/* What is allowed at once. */
static const struct allowed {
    struct sampling sampling;
    uint32_t kept_bits;
} allowed[] = {{{.share = 0.3}, 0},   {.kept_bits = 8},
               {.kept_bits = 4},      {{.share = 0.3, .rule = SAMPLE_VARIANCE}, 4},
               {{.queries = 0.3}, 0}, {{.share = 0.3, .queries = 0.3}, 8}};

/* Kept or recomputed, on the host or on the device, whatever else is chosen: the same bits. In microbatches of other
 * rows, the same sample and the same codes: the gradient but for the order of additions, of keys' biases, whose
 * gradient is zero, rounding alone: of 160 numbers of up to 1. Microbatches of 3 rows have one of a row at the end. */
TEST_EACH(no_choice_changes_what_is_drawn, (simulated() ? 2 : MODELS) * COUNT(allowed))
{
    const int which = simulated() ? model_of(_i / 2, _i % 2) : _i % MODELS;
    const struct allowed *how = &allowed[_i / (simulated() ? 2 : MODELS)];
    struct setting s;
    struct array_link link;
    uint64_t state = 521288629u;
    double loss, distance, size;

    open_model(&s, which);
    model_approximate(&s.model, &(struct model_approximation){how->kept_bits, how->sampling.share > 0, 0});
    struct device_worker_options options = sampled(&s, &how->sampling, 2);
    options.setting.goal.kept_bits = how->kept_bits;
    options.setting.goal.row_tokens[0] = 1; /* rows differ, and are not cut */
    setting_step_whole(&link, &s, &options);
    for (int k = 0; k < (simulated() ? 1 : SANITIZED ? 4 : 15); k++) {
        setting_choose(&options.choice, &s.model, &state);
        setting_check_bits(&link, &s, &options);
    }
    double *const want = widen(&link);
    for (uint32_t rows = simulated() ? 3 : 1; rows <= 3; rows += 2) {
        options.choice.microbatch = rows;
        double *const got = gradient_of(&s, &options, &loss);
        for (uint32_t t = 0; t < s.model.n_tensors; t++) {
            compare(&s, t, got, want, &distance, &size);
            ck_assert_msg(sqrt(distance) <= 1e-5 * sqrt(size) + (rounds_by_rows() ? 1e-6 : 1e-7), "%s: off by %g of %g",
                          s.model.tensors[t].name, sqrt(distance), sqrt(size));
        }
        free(got);
    }
    free(want);
    array_link_free(&link);
    setting_close(&s);
}

/* Activations in few bits: the loss is the exact one, as forward reads them as they are; the gradient is near, the
 * nearer the more bits, but not the exact one. */
TEST_EACH(few_bits_leave_the_gradient_near, simulated() ? 4 : 2 * MODELS)
{
    static const double within[] = {0.05, 0.3};
    const int nth = _i / (simulated() ? 2 : MODELS);
    struct setting s;
    double losses[2], distance, size, all = 0, of = 0;

    open_model(&s, simulated() ? model_of(2 + nth, _i % 2) : _i % MODELS);
    struct device_worker_options options = setting_options(&s, BATCH, 0);
    double *const want = gradient_of(&s, &options, &losses[0]);
    options.setting.goal.kept_bits = nth ? 4 : 8;
    double *const got = gradient_of(&s, &options, &losses[1]);
    ck_assert(losses[0] == losses[1]);
    for (uint32_t t = 0; t < s.model.n_tensors; t++) {
        compare(&s, t, got, want, &distance, &size);
        all += distance, of += size;
    }
    ck_assert_msg(sqrt(all / of) < within[nth] && sqrt(all / of) > within[nth] / 50, "off by %g", sqrt(all / of));
    free(want);
    free(got);
    setting_close(&s);
}
