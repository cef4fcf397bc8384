/* One step's gradient of random models, in fp32 and in bf16, against PyTorch in float64: a small part of what
 * tests/oracle/distribution.py shows, and its criterion, the distribution of how far off the worst tensor is. */
#include "tests/kit/fixture_step.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <stdlib.h>

SUITE_LABELS(release)

enum { N_MODELS = 12, N_OF_TYPE = 6 };

/* The largest distance of a tensor from float64, in PyTorch's own. The gradient of a key bias is nothing but rounding. */
static double worst_of(struct fixture_step *step)
{
    const struct fixture_set set = fixture_gradient(&step->fixture);
    double worst = 0;

    for (size_t i = 0; i < fixture_n_pieces(&set); i++) {
        const struct fixture_piece piece = fixture_measure(&set, i, fixture_step_find, step);
        if (piece.is_key || piece.single == 0)
            continue;
        if (piece.distance > worst * piece.single)
            worst = piece.distance / piece.single;
    }
    return worst;
}

static uint32_t number_of(const struct fixture_step *step, const char *name)
{
    return (uint32_t)json_integer_value(json_object_get(step->fixture.reference, name));
}

static double measure(unsigned model, enum number_type type)
{
    struct fixture_step step;
    char name[16];

    snprintf(name, sizeof name, "drawn/%02u", model);
    fixture_step_open(&step, name, type);
    ck_assert_str_eq(json_string_value(json_object_get(step.fixture.reference, "precision")), number_name(type));
    const struct fixture_set set = fixture_gradient(&step.fixture);
    const double want = fixture_loss(&set, 0);
    const double loss =
        fixture_step_run(&step, step.s.batch / number_of(&step, "parts"), number_of(&step, "microbatch"));
    ck_assert_double_eq_tol(loss, want, want * (type == NUMBER_FP32 ? 1e-6 : 5e-3)); /* roundings of either sign */
    const double worst = worst_of(&step);
    fprintf(stderr, "%s %s: loss %.6f, %.6f by PyTorch; the worst tensor %.2f of its distance\n", name,
            number_name(type), loss, want, worst);
    fixture_step_close(&step);
    return worst;
}

static int rising(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Of sixty models the script finds medians of 1.23 and 1.20, 95 % at 1.99 and 2.26, worsts of 2.03 and 4.36; of PyTorch's
 * one attention beside its other no less. The median of six may be off by a third of that, and a sketch's distance by a
 * tenth; their worst is seldom beyond the 95 %. */
TEST_EACH(gradients_are_as_near_as_pytorchs, 2)
{
    static const double medians[] = {1.6, 1.6}, worsts[] = {3, 3.5};
    const enum number_type type = _i == 0 ? NUMBER_FP32 : NUMBER_BF16;
    double worst[N_OF_TYPE];

    for (unsigned i = 0; i < N_OF_TYPE; i++)
        worst[i] = measure(2 * i + (unsigned)_i, type);
    qsort(worst, N_OF_TYPE, sizeof *worst, rising);
    ck_assert_double_le((worst[N_OF_TYPE / 2 - 1] + worst[N_OF_TYPE / 2]) / 2, medians[_i]);
    ck_assert_double_le(worst[N_OF_TYPE - 1], worsts[_i]);
}
