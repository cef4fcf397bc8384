/* The gradient's norm, clipped as PyTorch clips it. */
#include "tests/kit/plain.h"
#include "tests/kit/store_fixture.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* tests/oracle/make_clip.py has the same. */
static float number(uint64_t i, uint64_t seed)
{
    return (float)(int32_t)((uint32_t)(i + seed * 1000003) * 2654435761u) * 0x1p-31f;
}

static float *numbers(const struct model_piece *piece, uint64_t seed, float scale)
{
    float *x = calloc(piece->n, sizeof *x);

    ck_assert_ptr_nonnull(x);
    for (uint64_t i = 0; i < piece->n; i++)
        x[i] = number(i, seed + piece->tensor) * scale;
    return x;
}

static void set_weights(struct store_fixture *f)
{
    for (uint32_t u = 0; u < f->model.n_units; u++)
        for (uint32_t i = 0; i < f->model.units[u].n_pieces; i++) {
            const struct model_piece *piece = &f->model.pieces[f->model.units[u].first_piece + i];
            const struct parameters p = store_parameters(&f->store, u, piece->offset, piece->n, 0);
            float *w = numbers(piece, 1000, 1);
            optimizer_write(&p, w, NULL, NULL);
            free(w);
        }
}

/* All units; a tied one in two visits of half of it each. */
static void hold(struct store_fixture *f, uint64_t step, float scale, const struct hyper *hp)
{
    for (uint32_t u = 0; u < f->model.n_units; u++) {
        const struct model_unit *unit = &f->model.units[u];
        float *g = calloc(unit->n, sizeof *g);
        ck_assert_ptr_nonnull(g);
        for (uint32_t i = 0; i < unit->n_pieces; i++) {
            const struct model_piece *piece = &f->model.pieces[unit->first_piece + i];
            float *x = numbers(piece, 100 * step, scale / (float)unit->n_visits);
            for (uint64_t k = 0; k < piece->n; k++)
                g[piece->offset + k] = x[k];
            free(x);
        }
        for (uint32_t visit = 0; visit < unit->n_visits; visit++)
            ck_assert(plain_store_fold(&f->store, u, 0, g, visit == 0, STORE_FOLD_HOLD, hp));
        free(g);
    }
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
        for (uint32_t u = 0; u < f->model.n_units; u++)
            for (uint32_t i = 0; i < f->model.units[u].n_pieces; i++) {
                const struct model_piece *piece = &f->model.pieces[f->model.units[u].first_piece + i];
                struct store_values x = store_fixture_values(f, u);
                for (uint64_t k = 0; tensor == &f->model.tensors[piece->tensor] && k < n; k++) {
                    const double got = x.w[piece->offset + k];
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
