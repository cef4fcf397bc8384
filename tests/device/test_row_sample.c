/* Rows that stand for all in a sum over rows: their scores, the choice, its mean and its variance, and the copies. */
#include "tests/kit/device/operation.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(on_cuda_release)

SUITE_FIXTURE(mirror_forget, NULL)

/* ---- scores, and copies ---- */

/* Ends inside a vector and a pack, more than a thread adds up at once, and more rows than a device has blocks. */
static const struct shape {
    size_t m, n, gap;
} shapes[] = {{1, 1, 0}, {3, 5, 0}, {7, 33, 3}, {64, 64, 0}, {5, 300, 8}, {200, 24, 8}, {2, 5000, 0}};
enum { N_CASES = COUNT(shapes) * NUMBER_TYPES };

/* Of n squares added in fp32 in a fixed order, and the root halves it; then a product. */
static double near_norms(const struct call_test *test, const char *output)
{
    (void)output;
    return (2 + sqrt((double)test->call.row_norms.n)) * 0x1p-24;
}

TEST_EACH(a_norm_is_the_formula, 2 * N_CASES)
{
    const struct shape *s = &shapes[_i / 2 / NUMBER_TYPES];
    struct call_test test = {
        .type = (enum number_type)(_i / 2 % NUMBER_TYPES),
        .call = {.kind = CALL_row_norms,
                 .row_norms = {.m = s->m, .n = s->n, .stride = s->n + s->gap, .multiply = _i % 2}},
        .near = near_norms,
    };

    call_check(&test);
}

/* Heads of 1 to 64 values, in rows of the minibatch of one token and of several. */
static const struct {
    size_t m, n, n_heads, n_tokens;
} heads[] = {{1, 1, 1, 1}, {6, 64, 3, 2}, {6, 5, 2, 6}, {20, 8, 4, 5}};

TEST_EACH(each_head_of_a_row_has_a_norm, 2 * COUNT(heads) * NUMBER_TYPES)
{
    const size_t i = (size_t)_i / 2 / NUMBER_TYPES;
    struct call_test test = {
        .type = (enum number_type)(_i / 2 % NUMBER_TYPES),
        .call = {.kind = CALL_row_norms,
                 .row_norms = {.m = heads[i].m,
                               .n = heads[i].n,
                               .stride = heads[i].n * heads[i].n_heads + 8 * (size_t)(_i % 2),
                               .multiply = _i % 2,
                               .n_heads = heads[i].n_heads,
                               .n_tokens = heads[i].n_tokens}},
        .near = near_norms,
    };

    call_check(&test);
}

/* Rows of which some tokens have no norm yet, or are padding; of the last one all. */
static void leave_some_out(struct call_test *test)
{
    const struct device_weigh_scores *op = &test->host.weigh_scores;
    uint16_t *norms = (void *)(uintptr_t)op->norms;

    for (size_t i = 0; i < (op->n_rows - 1) * op->stride + op->n_tokens; i++) {
        const size_t row = i / op->stride;
        norms[i] &= 0x7fff;
        if (i % 3 == 0 || (row > 0 && row + 1 == op->n_rows))
            norms[i] = i % 2 ? 0 : SAMPLE_PADDING;
        if (i % 7 == 1 && norms[i] > 0)
            norms[i] = 1; /* below the floor */
    }
}

static double near_mean(const struct call_test *test, const char *output)
{
    (void)output;
    return (4 + sqrt((double)test->call.weigh_scores.n_tokens)) * 0x1p-24;
}

TEST_EACH(scores_are_weighed_by_the_norms_of_before, COUNT(shapes))
{
    const struct shape *s = &shapes[_i];
    struct call_test test = {
        .call = {.kind = CALL_weigh_scores,
                 .weigh_scores = {.n_rows = s->m, .n_tokens = s->n, .stride = s->n + s->gap}},
        .prepare = leave_some_out,
        .near = near_mean,
    };

    call_check(&test);
}

/* Rows from all over, some twice, some with weight 1. */
static void choose_some(struct call_test *test)
{
    const struct device_gather_rows *op = &test->host.gather_rows;
    uint32_t *chosen = (void *)(uintptr_t)op->chosen;
    float *weights = (void *)(uintptr_t)op->weights;

    for (size_t i = 0; i < op->m; i++) {
        chosen[i] = (uint32_t)(i * 7 / 2 % op->n_rows);
        if (weights && i % 3 == 0)
            weights[i] = 1;
    }
}

static double near_rounding(const struct call_test *test, const char *output)
{
    (void)output;
    return test->call.gather_rows.weights ? 0x1p-24 : 0;
}

TEST_EACH(chosen_rows_are_copied_and_weighted, 2 * N_CASES)
{
    const struct shape *s = &shapes[_i / 2 / NUMBER_TYPES];
    struct call_test test = {
        .type = (enum number_type)(_i / 2 % NUMBER_TYPES),
        .call = {.kind = CALL_gather_rows,
                 .gather_rows = {.n_rows = s->m,
                                 .n = s->n,
                                 .stride = s->n + s->gap,
                                 .m = (s->m + 1) / 2,
                                 .weights = _i % 2 ? (void *)call_given : NULL}},
        .near = near_rounding,
        .prepare = choose_some,
        .is_elementwise = true,
    };

    call_check(&test);
}

/* ---- the choice ---- */

/* What scores are like. */
enum pattern { NORMAL, FLAT, HEAVY, ONE, SPARSE, ZEROS, PATTERNS };

static void fill_scores(float *scores, size_t n, enum pattern pattern)
{
    random_uniform(scores, (struct random_key){{17, (uint32_t)pattern}}, 0, 0, n);
    for (size_t i = 0; i < n; i++) {
        const float x = fabsf(scores[i]) + 1e-3f;
        scores[i] = pattern == NORMAL   ? x
                    : pattern == FLAT   ? 0.7f
                    : pattern == HEAVY  ? 1 / (x * x)
                    : pattern == ONE    ? (i == n / 2 ? 1e6f : 1e-6f)
                    : pattern == SPARSE ? (i % 8 == 3 ? x : 0)
                                        : 0;
    }
}

struct choice {
    struct device_choose_rows op; /* its arrays are the host's */
    uint32_t *chosen;
    float *weights, *scores;
};

static struct choice make_choice(size_t n_rows, size_t n_tokens, size_t n_chosen, enum sample_rule rule)
{
    struct choice c = {.chosen = mirror_array(n_rows * n_chosen, sizeof *c.chosen),
                       .weights = mirror_array(n_rows * n_chosen, sizeof *c.weights),
                       .scores = mirror_array(n_rows * n_tokens, sizeof *c.scores)};

    c.op = (struct device_choose_rows){.n_rows = n_rows,
                                       .n_tokens = n_tokens,
                                       .n_chosen = n_chosen,
                                       .rule = rule,
                                       .scores = c.scores,
                                       .chosen = c.chosen,
                                       .weights = c.weights,
                                       .key = {{5, 6}},
                                       .first_row = 1000};
    return c;
}

static void choose(struct choice *c, unsigned n_threads)
{
    void *const outputs[] = {c->chosen, c->weights};
    struct device_choose_rows there = c->op;
    struct mirror at;

    mirror_open(&at, NUMBER_FP32, n_threads, false);
    mirror_begin(&at);
    there.scores = mirror_of(&at, c->scores);
    there.chosen = mirror_of(&at, c->chosen);
    there.weights = mirror_of(&at, c->weights);
    at.ops->choose_rows(at.dev, &there);
    mirror_end(&at, outputs, COUNT(outputs));
    mirror_close(&at);
}

/* ---- the rule, from the paper's words ---- */

static const float *sorting;

static int compare_scores(const void *a, const void *b)
{
    const uint32_t i = *(const uint32_t *)a, k = *(const uint32_t *)b;

    return sorting[i] != sorting[k] ? (sorting[i] < sorting[k] ? 1 : -1) : i < k ? -1 : 1;
}

/* What the rule minimises, for c winners of n scores in sorted order. */
static double value_of(enum sample_rule rule, const double *p, size_t n, size_t k, size_t c)
{
    double rest = 0;

    for (size_t i = c; i < n; i++)
        rest += p[i];
    return (rule == SAMPLE_VARIANCE ? rest * rest : rest) / (double)(k - c);
}

static size_t count_winners(enum sample_rule rule, const double *p, size_t n, size_t k)
{
    size_t c = 0;

    if (rule == SAMPLE_ALL || rule == SAMPLE_NONE)
        return rule == SAMPLE_ALL ? k : 0;
    for (size_t i = 1; i < k; i++)
        if (value_of(rule, p, n, k, i) < value_of(rule, p, n, k, c) * (1 - 1e-9))
            c = i;
    return c;
}

/* Tries every number of winners. Their rows must be first, with weight 1; what is drawn must have the weight that makes
 * it unbiased. */
static void check_block(const float *scores, size_t n, const uint32_t *chosen, const float *weights, size_t k,
                        uint32_t first, enum sample_rule rule)
{
    uint32_t *order = mirror_host_array(n, sizeof *order);
    double *p = operation_zeros(n), total = 0, rest = 0;
    size_t c = 0, n_above = 0;

    for (size_t i = 0; i < n; i++) {
        order[i] = (uint32_t)i;
        total += (double)scores[i];
        n_above += scores[i] > 0;
    }
    if (k == n) { /* all, in their order */
        for (size_t i = 0; i < n; i++) {
            ck_assert_uint_eq(chosen[i], first + i);
            ck_assert(weights[i] == 1);
        }
        return;
    }
    sorting = scores;
    qsort(order, n, sizeof *order, compare_scores);
    for (size_t i = 0; i < n; i++)
        p[i] = total > 0 ? (double)scores[order[i]] / total : 0;
    c = total > 0 || rule == SAMPLE_ALL ? count_winners(rule, p, n, k) : 0;
    for (size_t i = c; i < n; i++)
        rest += p[i];
    for (size_t i = 0; i < k; i++) {
        const uint32_t row = chosen[i] - first;
        ck_assert_uint_lt(row, n);
        if (i < c) {
            ck_assert_uint_eq(row, order[i]);
            ck_assert(weights[i] == 1);
        } else if (c >= n_above) { /* nothing is left to draw */
            ck_assert(weights[i] == 0);
        } else {
            const double want = rest / ((double)(k - c) * (double)scores[row] * (1 / total));
            ck_assert(scores[row] > 0);
            ck_assert_msg(fabs((double)weights[i] - want) <= 1e-6 * want, "weight %zu of %zu is %g, not %g", i, k,
                          (double)weights[i], want);
            for (size_t w = 0; w < c; w++)
                ck_assert_uint_ne(row, order[w]);
        }
    }
}

enum { RULES = SAMPLE_ALL + 1 };

/* Tokens of a row, and rows to choose: all, one, one less than all; one more than a block, where the halves differ. */
static const struct {
    size_t n_tokens, n_chosen;
} sizes[] = {{1, 1}, {5, 5}, {12, 1}, {40, 39}, {128, 38}, {300, 30}, {2048, 614}, {2049, 615}, {4500, 450}};

TEST_EACH(the_choice_follows_the_rule, COUNT(sizes) * PATTERNS * RULES)
{
    const size_t n = sizes[_i / RULES / PATTERNS].n_tokens, m = sizes[_i / RULES / PATTERNS].n_chosen, n_rows = 3;
    const size_t block = sample_block(n);
    struct choice c = make_choice(n_rows, n, m, (enum sample_rule)(_i % RULES));
    uint32_t *again = mirror_host_array(n_rows * m, sizeof *again);

    for (size_t row = 0; row < n_rows; row++)
        fill_scores(c.scores + row * n, n, (enum pattern)(_i / RULES % PATTERNS));
    choose(&c, 1);
    for (size_t row = 0; row < n_rows; row++)
        for (size_t first = 0, at = 0, k; first < n; first += block, at += k) {
            const size_t here = n - first < block ? n - first : block;
            k = sample_before(&c.op, first + here) - at;
            check_block(c.scores + row * n + first, here, c.chosen + row * m + at, c.weights + row * m + at, k,
                        (uint32_t)(row * n + first), (enum sample_rule)(_i % RULES));
        }
    memcpy(again, c.chosen, n_rows * m * sizeof *again);
    choose(&c, 3);
    ck_assert_mem_eq(again, c.chosen, n_rows * m * sizeof *again);
}

/* As whole numbers add up exactly, no order of threads and no instruction set changes a choice. */
TEST(every_device_chooses_the_same)
{
    struct choice c = make_choice(2, 3000, 700, SAMPLE_PAPER);
    uint32_t sum = 0;

    fill_scores(c.scores, 6000, HEAVY);
    choose(&c, 1);
    for (uint32_t i = 0; i < 1400; i++) {
        uint32_t bits;
        memcpy(&bits, &c.weights[i], sizeof bits);
        sum = sum * 31 + (c.chosen[i] ^ bits);
    }
    ck_assert_uint_eq(sum, 38599373);
}

/* The same rows with the same weights, row after row. */
TEST_EACH(chosen_rows_ascend_on_request, COUNT(sizes) * PATTERNS)
{
    const size_t n = sizes[_i / PATTERNS].n_tokens, m = sizes[_i / PATTERNS].n_chosen, n_rows = 2;
    struct choice c = make_choice(n_rows, n, m, SAMPLE_PAPER), sorted = c;
    double *const weights = operation_zeros(n_rows * n);

    sorted.chosen = mirror_array(n_rows * m, sizeof *c.chosen),
    sorted.weights = mirror_array(n_rows * m, sizeof(float));
    sorted.op.chosen = sorted.chosen, sorted.op.weights = sorted.weights, sorted.op.ascends = true;
    for (size_t row = 0; row < n_rows; row++)
        fill_scores(c.scores + row * n, n, (enum pattern)(_i % PATTERNS));
    choose(&c, 1);
    choose(&sorted, 1);
    for (size_t i = 0; i < n_rows * m; i++) {
        ck_assert(i % m == 0 || sorted.chosen[i] >= sorted.chosen[i - 1]);
        weights[c.chosen[i]] += (double)c.weights[i];
        weights[sorted.chosen[i]] -= (double)sorted.weights[i];
    }
    for (size_t i = 0; i < n_rows * n; i++)
        ck_assert_double_eq_tol(weights[i], 0, 1e-9 * (double)n);
}

TEST(a_row_alone_is_chosen_from_as_among_others)
{
    enum { ROWS = 4, TOKENS = 200, CHOSEN = 60 };
    struct choice all = make_choice(ROWS, TOKENS, CHOSEN, SAMPLE_PAPER),
                  alone = make_choice(1, TOKENS, CHOSEN, SAMPLE_PAPER);
    unsigned n_other = 0;

    for (int row = 0; row < ROWS; row++)
        fill_scores(all.scores + row * TOKENS, TOKENS, NORMAL);
    choose(&all, 1);
    for (uint32_t row = 0; row < ROWS; row++) {
        memcpy(alone.scores, all.scores + row * TOKENS, TOKENS * sizeof *alone.scores);
        alone.op.first_row = all.op.first_row + row;
        choose(&alone, 1);
        for (int i = 0; i < CHOSEN; i++) {
            ck_assert_uint_eq(alone.chosen[i], all.chosen[row * CHOSEN + (uint32_t)i] - row * TOKENS);
            ck_assert(alone.weights[i] == all.weights[row * CHOSEN + (uint32_t)i]);
            n_other += alone.chosen[i] != all.chosen[i];
        }
    }
    ck_assert_uint_gt(n_other, CHOSEN); /* equal scores, but draws of their own */
}

TEST_EACH(scores_that_are_not_finite_spoil_the_block, 2)
{
    struct choice c = make_choice(2, 64, 20, SAMPLE_PAPER);

    fill_scores(c.scores, 128, NORMAL);
    c.scores[50] = _i ? INFINITY : NAN;
    choose(&c, 1);
    for (int i = 0; i < 40; i++) {
        ck_assert_uint_lt(c.chosen[i], 128);
        ck_assert(i < 20 ? isnan(c.weights[i]) : isfinite(c.weights[i]));
    }
}

/* ---- mean and variance of the estimate ---- */

enum { N = 40, IN = 4, OUT = 4, MOST_ROUNDS = 40000, FEW_ROUNDS = 400, DIRECTIONS = 20 };

struct operands {
    double x[N][IN], g[N][OUT];
};

/* Rows whose norms spread by `spread` powers of e. */
static void fill_operands(struct operands *o, double spread)
{
    float normal[N * (IN + OUT)], sizes_of[N];

    random_normal(normal, (struct random_key){{3, 4}}, 0, 0, COUNT(normal));
    random_normal(sizes_of, (struct random_key){{3, 4}}, 1, 0, N);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < IN; j++) {
            o->x[i][j] = (double)normal[i * IN + j] * exp(spread * (double)sizes_of[i]);
            o->g[i][j] = (double)normal[N * IN + i * OUT + j];
        }
}

static double norm(const double *x, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

/* dw (OUT, IN) += weight * g_i x_i^T */
static void add_row(double dw[OUT * IN], const struct operands *o, size_t i, double weight)
{
    for (int a = 0; a < OUT; a++)
        for (int b = 0; b < IN; b++)
            dw[a * IN + b] += weight * o->g[i][a] * o->x[i][b];
}

/* The variance of the estimate, summed over dw's elements (TECHNIQUES: exact, of one sample), with these winners. */
static double variance_of(const struct operands *o, const float *scores, const bool *wins, size_t k, size_t n_winners)
{
    double rest = 0, spread = 0, mean[OUT * IN] = {0};

    for (size_t i = 0; i < N; i++)
        rest += wins[i] ? 0 : (double)scores[i];
    for (size_t i = 0; i < N; i++)
        if (!wins[i]) {
            const double size = norm(o->x[i], IN) * norm(o->g[i], OUT);
            spread += size * size * rest / (double)scores[i];
            add_row(mean, o, i, 1);
        }
    return (spread - pow(norm(mean, OUT * IN), 2)) / (double)(k - n_winners);
}

static const struct {
    double spread;                       /* 0.1: rows alike, so that there are no winners; 1.5: a heavy tail */
    enum { NORMS, STALE, EQUAL } scores; /* STALE: they have nothing to do with the rows */
    enum sample_rule rule;
} estimates[] = {{0.1, NORMS, SAMPLE_PAPER},    {1.5, NORMS, SAMPLE_PAPER},    {1.5, NORMS, SAMPLE_VARIANCE},
                 {0.5, STALE, SAMPLE_PAPER},    {0.5, STALE, SAMPLE_VARIANCE}, {0.5, EQUAL, SAMPLE_PAPER},
                 {0.5, EQUAL, SAMPLE_VARIANCE}, {1.5, NORMS, SAMPLE_NONE},     {0.5, STALE, SAMPLE_NONE}};

static float score_of(const struct operands *o, int estimate, size_t i)
{
    switch (estimates[estimate].scores) {
    case NORMS:
        return (float)(norm(o->x[i], IN) * norm(o->g[i], OUT));
    case STALE:
        return 5.1f + (float)(i * 7 % N);
    case EQUAL:
        return 0.7f;
    }
    return 0;
}

/* CRS of k rows with equal probabilities (Drineas et al., 2006; in arXiv:2305.15265, no winners): the
 * mean squared error is (N sum |x_i|^2 |g_i|^2 - |sum g_i x_i^T|^2) / k. */
static double error_of_crs(const struct operands *o, const double exact[OUT * IN], size_t k)
{
    double squares = 0;

    for (size_t i = 0; i < N; i++)
        squares += pow(norm(o->x[i], IN) * norm(o->g[i], OUT), 2);
    return (N * squares - pow(norm(exact, OUT * IN), 2)) / (double)k;
}

/* The mean of many draws, against the sum itself: the squared distance is a multiple of chi-squared with up to 16
 * degrees of freedom, and in each of 20 directions a normal deviate. The mean squared error, against the formula,
 * which with equal scores is that of CRS. The simulated device would take minutes for that many: it chooses what the
 * CPU does. */
TEST_EACH(the_estimate_is_unbiased_and_varies_as_it_should, COUNT(estimates))
{
    const size_t k = 12, n_rounds = backend_get()->cuda ? FEW_ROUNDS : MOST_ROUNDS;
    struct choice c = make_choice(n_rounds, N, k, estimates[_i].rule);
    double exact[OUT * IN] = {0}, mean[OUT * IN] = {0}, squares = 0, directions[DIRECTIONS][OUT * IN],
                       along[DIRECTIONS][2] = {{0}};
    float drawn[DIRECTIONS * OUT * IN];
    struct operands o;
    bool wins[N] = {false};
    size_t n_winners = 0;

    fill_operands(&o, estimates[_i].spread);
    random_normal(drawn, (struct random_key){{8, 9}}, 0, 0, COUNT(drawn));
    for (int d = 0; d < DIRECTIONS; d++)
        for (int j = 0; j < OUT * IN; j++)
            directions[d][j] = (double)drawn[d * OUT * IN + j];
    for (size_t i = 0; i < N; i++) {
        c.scores[i] = score_of(&o, _i, i);
        add_row(exact, &o, i, 1);
    }
    for (size_t round = 1; round < n_rounds; round++)
        memcpy(c.scores + round * N, c.scores, N * sizeof *c.scores);
    choose(&c, 1);
    while (n_winners < k && c.weights[n_winners] == 1)
        wins[c.chosen[n_winners++]] = true;
    ck_assert_uint_lt(n_winners, k);
    ck_assert((_i > 0 && estimates[_i].scores != EQUAL) || n_winners == 0);
    ck_assert(_i != 1 || n_winners > 0);
    for (size_t round = 0; round < n_rounds; round++) {
        double dw[OUT * IN] = {0};
        for (size_t i = round * k; i < (round + 1) * k; i++)
            add_row(dw, &o, c.chosen[i] - round * N, (double)c.weights[i]);
        for (int j = 0; j < OUT * IN; j++) {
            mean[j] += dw[j] / (double)n_rounds;
            dw[j] -= exact[j];
        }
        squares += pow(norm(dw, OUT * IN), 2) / (double)n_rounds;
        for (int d = 0; d < DIRECTIONS; d++) {
            double z = 0;
            for (int j = 0; j < OUT * IN; j++)
                z += directions[d][j] * dw[j];
            along[d][0] += z / (double)n_rounds;
            along[d][1] += z * z / (double)n_rounds;
        }
    }
    const double theory = variance_of(&o, c.scores, wins, k, n_winners);
    if (estimates[_i].scores == EQUAL)
        ck_assert_double_eq_tol(theory, error_of_crs(&o, exact, k), 1e-12 * theory); /* sums in double */
    for (int j = 0; j < OUT * IN; j++)
        mean[j] -= exact[j];
    const double statistic = (double)n_rounds * pow(norm(mean, OUT * IN), 2) / theory;
    ck_assert_msg(n_rounds < MOST_ROUNDS || fabs(squares / theory - 1) < 0.03,
                  "the mean squared error is %g times the formula", squares / theory);
    ck_assert_msg(statistic < 4, "the mean's squared distance is %g times what it should be", statistic);
    for (int d = 0; d < DIRECTIONS; d++)
        ck_assert_msg(fabs(along[d][0]) < 4 * sqrt(along[d][1] / (double)n_rounds), "direction %d: %g deviations", d,
                      along[d][0] / sqrt(along[d][1] / (double)n_rounds));
}
