/* What must not change a bit: threads, weight buffers, budget, and with --deterministic the number of workers. */
#include "proto/plan/search.h"
#include "tests/kit/exact.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single)

enum { N_STEPS = SANITIZED ? 1 : 4 };

static void train(struct exact *exact, const char *fixture, const struct inprocess_options *how)
{
    exact_open(exact, fixture, how);
    const struct hyper hyper = exact_hyper(exact);
    for (uint32_t step = 0; step < N_STEPS; step++)
        exact_step(exact, step, &hyper);
}

static uint64_t digest(const struct exact *exact)
{
    const struct store *store = &exact->ip->store;

    return exact_digest(exact, exact_weights(exact)) ^ 3 * exact_digest(exact, store->m) ^
           7 * exact_digest(exact, store->v);
}

static uint64_t digest_of(const char *fixture, const struct inprocess_options *how)
{
    struct exact exact;
    uint64_t out;

    train(&exact, fixture, how);
    out = digest(&exact);
    exact_close(&exact);
    return out;
}

TEST(threads_do_not_change_a_bit)
{
    struct inprocess_options how = {.n_parts = 2, .microbatch = 4, .n_threads = 1};
    const uint64_t one = digest_of("b", &how);

    how.n_threads = 2;
    ck_assert_uint_eq(digest_of("b", &how), one);
    how.n_threads = 5; /* more than rows */
    ck_assert_uint_eq(digest_of("b", &how), one);
}

TEST(weight_buffers_do_not_change_a_bit)
{
    struct inprocess_options how = {.n_parts = 2, .microbatch = 2, .n_weight_buffers = 1};
    const uint64_t one = digest_of("a", &how);

    how.n_weight_buffers = 2;
    ck_assert_uint_eq(digest_of("a", &how), one);
    how.n_weight_buffers = 3;
    ck_assert_uint_eq(digest_of("a", &how), one);
}

/* The planner's choices from the roomiest budget down to the smallest that works: less and less stays on the device. */
TEST(no_budget_changes_a_bit)
{
    struct inprocess_options how = {.n_parts = 2, .microbatch = 2, .budget = (uint64_t)4 << 30};
    const struct plan_wish wish = {.microbatch = 2};
    unsigned n_host_stash = 0;
    struct exact exact;
    struct plan least;

    train(&exact, "b", &how);
    const uint64_t expected = digest(&exact);
    const struct plan *roomy = &exact.ip->workers[0].worker.plan;
    plan_smallest(&least, &exact.ip->model, &roomy->setting, &wish);
    const uint64_t smallest = plan_total(&least), step = (plan_total(roomy) - smallest) / 8;
    exact_close(&exact);
    ck_assert_uint_gt(step, 0);
    for (unsigned i = 0; i <= 8; i += SANITIZED ? 4 : 1) {
        how.budget = smallest + i * step;
        train(&exact, "b", &how);
        ck_assert_uint_le(plan_total(&exact.ip->workers[0].worker.plan), how.budget);
        ck_assert_uint_eq(digest(&exact), expected);
        n_host_stash += exact.ip->workers[0].worker.plan.choice.host_stash;
        exact_close(&exact);
    }
    ck_assert_uint_gt(n_host_stash, 0);
}

/* Parts, shares and order of folding: 8 parts by 1, 2, 3 and 8 workers; 3 do not divide 8. */
static const struct {
    uint32_t n_workers;
    bool adamw;
} crews[] = {{3, true}, {8, false}, {2, false}, {3, false}, {2, true}};

TEST_EACH(deterministic_workers_do_not_change_a_bit, SANITIZED ? 2 : COUNT(crews))
{
    struct inprocess_options how = {.n_parts = 8, .microbatch = 1, .n_workers = 1, .adamw = crews[_i].adamw};
    const uint64_t one = digest_of("a", &how);

    how.deterministic = true;
    how.n_workers = crews[_i].n_workers;
    ck_assert_uint_eq(digest_of("a", &how), one);
}

/* The same without --deterministic: contributions are folded as they come, so only the order of rounding differs. */
TEST_EACH(workers_change_no_more_than_rounding, SANITIZED ? 2 : COUNT(crews))
{
    struct inprocess_options how = {.n_parts = 8, .microbatch = 1, .n_workers = 1, .adamw = crews[_i].adamw};
    struct exact one, several;
    double apart = 0, norm = 0;

    exact_open(&one, "a", &how);
    how.n_workers = crews[_i].n_workers;
    exact_open(&several, "a", &how);
    const struct hyper hyper = exact_hyper(&one);
    ck_assert_double_eq_tol(exact_step(&one, 0, &hyper), exact_step(&several, 0, &hyper), 1e-6);
    const struct model *model = &one.ip->model;
    for (uint32_t u = 0; u < model->n_units; u++) {
        for (uint64_t i = 0; i < model->units[u].n; i++) {
            const double m = one.ip->store.m[model->units[u].offset + i];
            const double d = several.ip->store.m[model->units[u].offset + i] - m;
            apart += d * d;
            norm += m * m;
        }
    }
    ck_assert_double_gt(norm, 0);
    ck_assert_double_le(sqrt(apart / norm), 1e-6);
    exact_close(&one);
    exact_close(&several);
}
