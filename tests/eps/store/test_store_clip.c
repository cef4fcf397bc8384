/* The gradient's norm, clipped as PyTorch clips it. */
#include "tests/kit/inprocess/plain.h"
#include "tests/kit/inprocess/store_fixture.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void set_weights(struct store_fixture *f)
{
    for (struct store_piece at = {0}; store_fixture_next(f, &at);) {
        const struct parameters p = store_parameters(&f->store, at.unit, at.piece->offset, at.piece->n, 0);
        float *w = plain_zeros(p.n, sizeof *w);
        for (uint64_t i = 0; i < p.n; i++)
            w[i] = plain_number(i, 1000 + at.piece->tensor);
        optimizer_write(&p, w, NULL, NULL);
        free(w);
    }
}

/* All units; a tied one in two visits of half of it each. */
static void hold(struct store_fixture *f, uint64_t step, float scale, const struct hyper *hp)
{
    float *g = plain_zeros(f->model.segment_n, sizeof *g);

    for (struct store_piece at = {0}; store_fixture_next(f, &at);) {
        const struct model_unit *unit = &f->model.units[at.unit];
        for (uint64_t i = 0; i < at.piece->n; i++)
            g[unit->offset + at.piece->offset + i] =
                plain_number(i, 100 * step + at.piece->tensor) * (scale / (float)unit->n_visits);
    }
    for (uint32_t u = 0; u < f->model.n_units; u++)
        for (uint32_t visit = 0; visit < f->model.units[u].n_visits; visit++)
            store_fixture_fold(f, u, &(struct store_given){.g = g + f->model.units[u].offset, .first = visit == 0},
                               STORE_FOLD_HOLD, hp);
    free(g);
}

static double norm_of(const struct store_fixture *f)
{
    double sum = 0;

    for (uint32_t u = 0; u < f->model.n_units; u++)
        sum += store_sum_squares(&f->store, u);
    return sqrt(sum);
}

/* PyTorch's numbers are float64. Each step rounds w once; the gradient is scaled in fp32, by a factor rounded to fp32,
 * and squared, and moments are fp32: some 2^-22 of an update of at most a few lr. */
static void check_weights(const struct store_fixture *f, FILE *file, double lr, int n_steps)
{
    for (uint32_t t = 0; t < f->model.n_tensors; t++) {
        char name[64];
        unsigned n;
        ck_assert_int_eq(fscanf(file, " tensor %63s %u", name, &n), 2);
        const struct model_tensor *tensor = model_find(&f->model, name);
        ck_assert(tensor && tensor->n == n);
        for (struct store_piece at = {0}; store_fixture_next(f, &at);) {
            struct store_values x = store_fixture_values(f, at.unit);
            for (uint64_t k = 0; tensor == at.tensor && k < n; k++) {
                const double got = x.w[at.piece->offset + k];
                double want;
                ck_assert_int_eq(fscanf(file, "%lf", &want), 1);
                if (!(fabs(got - want) <= n_steps * (0x1p-24 * fmax(1, fabs(want)) + 0x1p-20 * lr)))
                    ck_abort_msg("%s, element %ju: %.9g, not %.9g", name, (uintmax_t)k, got, want);
            }
            store_values_free(&x);
        }
    }
}

SUITE_TIMEOUT(60)

TEST_RANGE(a_clipped_norm_gives_the_weights_of_pytorch, NUMBER_FP32, NUMBER_BF16 + 1)
{
    const struct store_options options = {.train = true, .fenced = true, .precision = (enum number_type)_i};
    struct hyper hp = {0};
    struct store_fixture f;
    double max_norm, scale, want;
    int n_steps = 0, n_clipped = 0;
    FILE *file = fopen(TESTS_DIR "/fixtures/vectors/clip.txt", "r");

    ck_assert_ptr_nonnull(file);
    store_fixture_open_as(&f, store_fixture_small, true, &options);
    set_weights(&f);
    ck_assert_int_eq(fscanf(file, "clip %lf %lf %lf %lf %lf %lf", &max_norm, &hp.lr, &hp.beta1, &hp.beta2, &hp.epsilon,
                            &hp.weight_decay),
                     6);
    for (; fscanf(file, " step %lf %lf", &scale, &want) == 2; n_steps++) {
        hold(&f, (uint64_t)n_steps + 1, (float)scale, &hp);
        const double norm = norm_of(&f);
        ck_assert_double_eq_tol(norm, want, 1e-13 * want); /* the gradients are exact in both */
        const double coefficient = max_norm / (norm + 1e-6);
        hp.grad_scale = coefficient < 1 ? (float)coefficient : 1;
        n_clipped += coefficient < 1;
        for (uint32_t u = 0; u < f.model.n_units; u++)
            store_update(&f.store, u, STORE_FOLD_HOLD, &hp);
    }
    ck_assert_int_eq(n_steps, 5);
    ck_assert_int_eq(n_clipped, 3);
    check_weights(&f, file, hp.lr, n_steps);
    fclose(file);
    store_fixture_close(&f);
}
