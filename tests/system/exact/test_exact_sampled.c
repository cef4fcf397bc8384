/* Gradients from a sample of the tokens: their mean is PyTorch's gradient, in whole models and in adapters. */
#include "tests/kit/device/backend.h"
#include "tests/kit/fixtures/exact.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single)
SUITE_TIMEOUT(60)

static const char *const fixtures[] = {"a",          "alternating",   "t5",
                                       "t5_gated",   "padding_qwen2", "lora_gpt2_all",
                                       "lora_llama", "lora_bert",     "lora_t5"};

enum { STEPS = 200, LEAST_STEPS = 20 };

/* One step more, of the same weights and minibatch, as the rate is 0: another sample. Squared distances of its gradient
 * from PyTorch's, piece by piece, are added to squares; the gradient to mean. */
static void add_estimate(struct exact *exact, const struct fixture_set *set, double *squares, float *mean, uint64_t n)
{
    memset(exact->gradient, 0, n * sizeof *exact->gradient);
    exact->segment = exact->gradient;
    exact_step(exact, 0);
    for (size_t i = 0; i < fixture_n_pieces(set); i++) {
        const double distance = fixture_measure(set, i, exact_find, exact).distance;
        squares[i] += distance * distance;
    }
    for (uint64_t i = 0; i < n; i++)
        mean[i] += exact->gradient[i];
}

/* The mean's squared distance is the variance of one estimate over their number, to three standard deviations if it all
 * were in one direction. Of what is exact, a distance is rounding alone. */
TEST_EACH(the_mean_of_estimates_is_pytorchs, COUNT(fixtures))
{
    const struct inprocess_options how = {.n_parts = 1, .microbatch = 3, .adamw = true, .sampling = {.share = 0.3}};
    const unsigned n_steps = SANITIZED || backend_get()->simulated ? LEAST_STEPS : STEPS;
    struct exact exact;
    unsigned n_estimated = 0;

    exact_open(&exact, fixtures[_i], &how);
    exact.fixture.lr = exact.fixture.weight_decay = 0;
    const struct fixture_set set = fixture_gradient(&exact.fixture);
    const uint64_t n = inprocess_at(&exact.ip->model, exact.ip->model.n_units);
    double *const squares = calloc(fixture_n_pieces(&set), sizeof *squares);
    float *const mean = calloc(n, sizeof *mean);
    exact.ip->gradient = exact.gradient = calloc(n, sizeof *exact.gradient);
    ck_assert(squares && mean && exact.gradient);
    for (unsigned step = 0; step < n_steps; step++)
        add_estimate(&exact, &set, squares, mean, n);
    for (uint64_t i = 0; i < n; i++)
        mean[i] /= (float)n_steps;
    exact.segment = mean;
    for (size_t i = 0; i < fixture_n_pieces(&set); i++) {
        const struct fixture_piece piece = fixture_measure(&set, i, exact_find, &exact);
        const double variance = squares[i] / n_steps;
        if (piece.is_key || variance < 1e-6 * piece.norm * piece.norm)
            continue;
        n_estimated++;
        ck_assert_msg(piece.distance * piece.distance * n_steps < 9 * variance,
                      "%s: the mean's squared distance is %g times its variance", piece.text,
                      piece.distance * piece.distance * n_steps / variance);
    }
    ck_assert_uint_ge(n_estimated, 4);
    free(squares);
    free(mean);
    exact_close(&exact);
}
