/* Twenty steps against PyTorch in float64: AdamW in 1, 2 and 8 parts, AdamA with as many microbatches. */
#include "tests/exact.h"
#include "tests/run.h"

#include <check.h>
#include <math.h>

static const struct {
    const char *fixture;
    uint32_t n_parts, microbatch;
    bool adamw;
} runs[] = {
    {"a", 1, 4, true},  {"a", 2, 4, true},   {"a", 8, 1, true},  {"a", 1, 8, false},
    {"a", 2, 1, false}, {"a", 8, 1, false},  {"b", 1, 3, true},  {"b", 2, 8, true},
    {"b", 8, 2, true},  {"b", 1, 16, false}, {"b", 2, 4, false}, {"b", 8, 1, false},
};

START_TEST(twenty_steps_are_pytorchs)
{
    const struct inprocess_options how = {.n_parts = runs[_i].n_parts,
                                          .microbatch = runs[_i].microbatch,
                                          .adamw = runs[_i].adamw};

    exact_check_training(runs[_i].fixture, &how);
}
END_TEST

static void train(struct exact *exact, bool adamw, uint32_t n_parts, uint32_t n_steps)
{
    const struct inprocess_options how = {.n_parts = n_parts, .microbatch = 1, .adamw = adamw};

    exact_open(exact, "a", &how);
    const struct eps_hyper hyper = exact_hyper(exact);
    for (uint32_t step = 0; step < n_steps; step++)
        exact_step(exact, step, &hyper);
}

START_TEST(adama_in_one_part_is_adamw_bit_for_bit)
{
    struct exact adama, adamw;

    train(&adama, false, 1, 20);
    train(&adamw, true, 1, 20);
    ck_assert_uint_eq(exact_digest(&adama, exact_weights(&adama)), exact_digest(&adamw, exact_weights(&adamw)));
    ck_assert_uint_eq(exact_digest(&adama, adama.ip->store.m), exact_digest(&adamw, adamw.ip->store.m));
    ck_assert_uint_eq(exact_digest(&adama, adama.ip->store.v), exact_digest(&adamw, adamw.ip->store.v));
    exact_close(&adama);
    exact_close(&adamw);
}
END_TEST

/* m collects the parts' gradients, whose sum is AdamW's: equal but for the order of rounding (8 additions of 6e-8).
 * v collects squares of parts: by Cauchy-Schwarz AdamW's is at most P times AdamA's. */
START_TEST(adamas_m_is_adamws_and_its_v_at_least_an_eighth)
{
    struct exact adama, adamw;
    double apart = 0, norm = 0;

    train(&adama, false, 8, 1);
    train(&adamw, true, 8, 1);
    const struct model *model = &adama.ip->model;
    for (uint32_t u = 0; u < model->n_units; u++) {
        for (uint64_t i = 0; i < model->units[u].n; i++) {
            const uint64_t at = model->units[u].offset + i;
            const double a = adama.ip->store.m[at], w = adamw.ip->store.m[at];
            apart += (a - w) * (a - w);
            norm += w * w;
            ck_assert_double_le(adamw.ip->store.v[at], 8 * 1.00001 * adama.ip->store.v[at] + 1e-30);
        }
    }
    ck_assert_double_gt(norm, 0);
    ck_assert_double_le(sqrt(apart / norm), 5e-7);
    exact_close(&adama);
    exact_close(&adamw);
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("training");

    tcase_add_loop_test(tcase, twenty_steps_are_pytorchs, 0, (int)(sizeof runs / sizeof *runs));
    tcase_add_test(tcase, adama_in_one_part_is_adamw_bit_for_bit);
    tcase_add_test(tcase, adamas_m_is_adamws_and_its_v_at_least_an_eighth);
    return run_tests(tcase);
}
