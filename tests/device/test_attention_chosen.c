/* Gradients of keys and values from some queries: their formula, what stays exact, and the mean and the variance of the
 * estimate, by the draws that a step makes. */
#include "proto/operation/kind/attention.h"
#include "proto/operation/operation.h"
#include "tests/kit/device/mirror.h"
#include "tests/kit/reference/reference.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(on_cuda_release)
SUITE_TIMEOUT(60)

SUITE_FIXTURE(mirror_forget, NULL)

/* One row and its likes: two heads that share their keys, three in cross attention. */
enum { TOKENS = 24, WIDTH = 6, MOST_KEYS = 32, MOST_HEADS = 3, CHOSEN = 8 };
enum { QKV = (MOST_HEADS + 2 * MOST_HEADS) * WIDTH, BATCH = 1000, MOST_BATCHES = 5, FEW = 40 };

static const struct shape {
    size_t n_heads, n_kv_heads, n_keys; /* n_keys: cross attention */
    size_t window;
    float p;
    double spread; /* of the norms of the gradient's rows, in powers of e: 0.1: no winners; 1.5: a heavy tail */
    bool least;
} shapes[] = {
    {2, 2, .spread = 1.5},
    {2, 1, .spread = 0.1},
    {2, 2, .window = 9, .p = 0.2f, .spread = 1, .least = true},
    {3, 3, .n_keys = 19, .spread = 1.5},
};

/* A row's arrays, in double: all are normal deviates; those of the gradient of out have norms of their own. */
struct row {
    const struct shape *shape;
    size_t keys, qkv_columns, kv_columns, out_columns, sums; /* sums: elements of the gradients of keys and values */
    double qkv[TOKENS * QKV], kv[MOST_KEYS * QKV], out[TOKENS * MOST_HEADS * WIDTH], dy[TOKENS * MOST_HEADS * WIDTH];
    double log_sum_exp[MOST_HEADS * TOKENS];
};

static void draw(double *to, uint64_t seed, size_t n)
{
    float *const drawn = malloc(n * sizeof *drawn);

    ck_assert_ptr_nonnull(drawn);
    random_normal(drawn, (struct random_key){{31, 7}}, seed, 0, n);
    for (size_t i = 0; i < n; i++)
        to[i] = (double)drawn[i];
    free(drawn);
}

static struct device_attention call_of(const struct row *row, size_t n_rows)
{
    const struct shape *s = row->shape;

    return (struct device_attention){.n_rows = n_rows,
                                     .n_tokens = TOKENS,
                                     .n_heads = s->n_heads,
                                     .n_kv_heads = s->n_kv_heads,
                                     .width = s->n_heads * WIDTH,
                                     .full = s->n_keys > 0,
                                     .n_keys = s->n_keys,
                                     .window = s->window,
                                     .scale = 0.5f,
                                     .dropout = {.p = s->p, .key = {{4, 5}}}};
}

/* The reference works on doubles. */
static struct device_attention in_double(struct row *row, double *qkv_gradient, double *kv_gradient)
{
    struct device_attention op = call_of(row, 1);

    op.qkv = row->qkv, op.kv = row->shape->n_keys ? row->kv : NULL;
    op.out = row->out, op.log_sum_exp = (void *)row->log_sum_exp, op.out_gradient = row->dy;
    op.qkv_gradient = qkv_gradient, op.kv_gradient = kv_gradient;
    return op;
}

static void make_row(struct row *row, const struct shape *s)
{
    const size_t kv = 2 * s->n_kv_heads * WIDTH, out = s->n_heads * WIDTH;

    *row = (struct row){.shape = s,
                        .keys = s->n_keys ? s->n_keys : TOKENS,
                        .qkv_columns = out + (s->n_keys ? 0 : kv),
                        .kv_columns = kv,
                        .out_columns = out};
    row->sums = row->keys * kv;
    draw(row->qkv, 1, TOKENS * row->qkv_columns);
    draw(row->kv, 2, row->keys * kv);
    draw(row->dy, 3, TOKENS * out);
    draw(row->out, 4, TOKENS * s->n_heads);
    for (size_t i = 0; i < TOKENS * out; i++) /* as the device has it */
        row->dy[i] = (double)(float)(row->dy[i] * exp(s->spread * row->out[i / WIDTH]));
    struct device_attention op = in_double(row, NULL, NULL);
    reference_run(&(struct call){.kind = CALL_attention, .attention = op});
}

/* The columns of keys and values, of whichever array has them; to (sums). */
static void take_sums(const struct row *row, double *to, const double *qkv_gradient, const double *kv_gradient)
{
    const bool apart = row->shape->n_keys > 0;
    const size_t stride = apart ? row->kv_columns : row->qkv_columns, before = stride - row->kv_columns;

    for (size_t i = 0; i < row->sums; i++)
        to[i] = (apart ? kv_gradient : qkv_gradient)[i / row->kv_columns * stride + before + i % row->kv_columns];
}

/* What one query of a head adds to the gradients of keys and values; all queries, if its number is none. */
static void term_of(struct row *row, double *to, uint32_t number)
{
    static double qkv[TOKENS * QKV], kv[MOST_KEYS * QKV];
    struct device_attention op = in_double(row, qkv, kv);
    uint32_t chosen[MOST_HEADS] = {number, number, number};
    double weights[MOST_HEADS] = {1};

    if (number < row->shape->n_heads * TOKENS)
        op.n_chosen = 1, op.chosen = chosen, op.weights = (void *)weights;
    reference_run(&(struct call){.kind = CALL_attention_backward, .attention = op});
    take_sums(row, to, qkv, kv);
}

static double norm_of(const double *x, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

/* How many of a head's largest norms win, by the rule. */
static size_t count_winners(const double *sorted, bool least)
{
    double rest = 0, smallest = INFINITY;
    size_t winners = 0;

    for (size_t i = 0; i < TOKENS; i++)
        rest += sorted[i];
    for (size_t c = 0; c < CHOSEN; c++) {
        const double rule = (least ? rest * rest : rest) / (double)(CHOSEN - c);
        if (rule < smallest * (1 - 1e-9))
            smallest = rule, winners = c;
        rest -= sorted[c];
    }
    return winners;
}

/* The variance of a head's estimate (TECHNIQUES: exact, of one sample), from the norms of the gradient's rows alone. */
static double variance_of(struct row *row, size_t head)
{
    double norms[TOKENS],
        sorted[TOKENS], *const terms = calloc(row->sums, sizeof *terms), *const mean = calloc(row->sums, sizeof *mean);
    double rest = 0, spread = 0;

    ck_assert(terms && mean);
    for (size_t i = 0; i < TOKENS; i++) {
        norms[i] = norm_of(row->dy + i * row->out_columns + head * WIDTH, WIDTH);
        size_t at = i;
        for (; at > 0 && sorted[at - 1] < norms[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = norms[i];
    }
    const size_t winners = count_winners(sorted, row->shape->least);
    for (size_t i = winners; i < TOKENS; i++)
        rest += sorted[i];
    for (size_t i = 0; i < TOKENS; i++)
        if (winners == 0 || norms[i] < sorted[winners - 1]) {
            term_of(row, terms, (uint32_t)(head * TOKENS + i));
            spread += pow(norm_of(terms, row->sums), 2) * rest / norms[i];
            for (size_t j = 0; j < row->sums; j++)
                mean[j] += terms[j];
        }
    const double variance = (spread - pow(norm_of(mean, row->sums), 2)) / (double)(CHOSEN - winners);
    free(terms);
    free(mean);
    return variance;
}

/* n copies of a row's array, in fp32. */
static float *copies_of(const double *x, size_t n_elements, size_t n)
{
    float *const to = mirror_array(n * n_elements, sizeof *to);

    for (size_t i = 0; i < n * n_elements; i++)
        to[i] = (float)x[i % n_elements];
    return to;
}

/* Copies of one row, as many rows of a minibatch, on the device. */
struct copies {
    struct row *row;
    size_t n;
    float *qkv, *kv, *dy, *qkv_gradient, *kv_gradient;
};

static void make_copies(struct copies *c, struct row *row, size_t n)
{
    *c = (struct copies){.row = row,
                         .n = n,
                         .qkv = copies_of(row->qkv, TOKENS * row->qkv_columns, n),
                         .kv = copies_of(row->kv, row->keys * row->kv_columns, n),
                         .dy = copies_of(row->dy, TOKENS * row->out_columns, n),
                         .qkv_gradient = mirror_array(n * TOKENS * row->qkv_columns, sizeof(float)),
                         .kv_gradient = mirror_array(n * row->keys * row->kv_columns, sizeof(float))};
}

/* Forward, the choice as a step makes it, and backward, of minibatch rows from first_row on. sampling: NULL: all. */
static void run(const struct copies *c, const struct sampling *sampling, uint64_t first_row)
{
    const size_t n_heads = c->row->shape->n_heads;
    void *outputs[] = {c->qkv_gradient, c->kv_gradient};
    struct device_attention op = call_of(c->row, c->n);
    struct mirror at;

    mirror_open(&at, NUMBER_FP32, 2, false);
    mirror_begin(&at);
    const struct plan_attention_sizes sizes = {.n_rows = c->n,
                                               .n_tokens = TOKENS,
                                               .n_keys = c->row->keys,
                                               .n_heads = n_heads,
                                               .n_kv_heads = c->row->shape->n_kv_heads,
                                               .width = op.width,
                                               .n_chosen = sampling ? CHOSEN : 0};
    op.qkv = mirror_of(&at, c->qkv), op.kv = op.full ? mirror_of(&at, c->kv) : NULL;
    op.out_gradient = mirror_of(&at, c->dy);
    op.qkv_gradient = mirror_of(&at, c->qkv_gradient), op.kv_gradient = mirror_of(&at, c->kv_gradient);
    op.out = mirror_scratch(&at, c->n * TOKENS * op.width * sizeof(float));
    op.log_sum_exp = mirror_scratch(&at, c->n * n_heads * TOKENS * sizeof(float));
    op.scratch = mirror_scratch(&at, sampling_queries_bytes(c->n, n_heads, TOKENS, sizes.n_chosen) +
                                         at.plan->scratch_bytes(&sizes, at.n_threads));
    at.ops->attention(at.dev, &op);
    if (sampling) {
        const struct operation_run r = {.ops = at.ops,
                                        .dev = at.dev,
                                        .type = NUMBER_FP32,
                                        .sampling = *sampling,
                                        .seed = 17,
                                        .first_row = first_row};
        op.n_chosen = sampling_queries(sampling, TOKENS);
        ck_assert_uint_eq(op.n_chosen, CHOSEN);
        sampling_choose_queries(&r, 3, &op);
    }
    at.ops->attention_backward(at.dev, &op);
    mirror_end(&at, outputs, op.full ? 2 : 1);
    mirror_close(&at);
}

static struct sampling sampling_of(const struct shape *s)
{
    return (struct sampling){.queries = (double)CHOSEN / TOKENS + 1e-9,
                             .rule = s->least ? SAMPLE_VARIANCE : SAMPLE_PAPER};
}

/* Dropout's masks are those of the minibatch's row, so copies of a row would differ: with dropout, of row 0 alone. */
static size_t batch_of(const struct shape *s)
{
    return s->p > 0 ? 1 : backend_get()->cuda ? FEW : BATCH;
}

/* The squared distance of the mean is chi-squared over the rounds, and that of one sample the formula's. A library's or
 * a simulator's fewer rounds show a bias alone. */
TEST_EACH(the_estimate_is_unbiased_and_varies_as_it_should, COUNT(shapes))
{
    const struct shape *s = &shapes[_i];
    const size_t batch = batch_of(s), n_rounds = backend_get()->cuda ? FEW : batch == 1 ? 2000 : BATCH * MOST_BATCHES;
    const struct sampling sampling = sampling_of(s);
    struct row *const row = calloc(1, sizeof *row);
    struct copies c;
    double theory = 0, squares = 0;

    ck_assert_ptr_nonnull(row);
    make_row(row, s);
    double *const exact = calloc(row->sums, sizeof *exact), *const mean = calloc(row->sums, sizeof *mean);
    double *const off = calloc(row->sums, sizeof *off), *const wide = calloc(TOKENS * QKV, sizeof *wide);
    ck_assert(exact && mean && off && wide);
    term_of(row, exact, UINT32_MAX);
    for (size_t head = 0; head < s->n_heads; head++)
        theory += variance_of(row, head);
    make_copies(&c, row, batch);
    for (size_t round = 0; round < n_rounds; round += batch) {
        run(&c, &sampling, round);
        for (size_t i = 0; i < batch; i++) {
            const size_t n = s->n_keys ? row->sums : TOKENS * row->qkv_columns;
            for (size_t j = 0; j < n; j++)
                wide[j] = (double)(s->n_keys ? c.kv_gradient : c.qkv_gradient)[i * n + j];
            take_sums(row, off, wide, wide);
            for (size_t j = 0; j < row->sums; j++) {
                off[j] -= exact[j];
                mean[j] += off[j] / (double)n_rounds;
            }
            squares += pow(norm_of(off, row->sums), 2) / (double)n_rounds;
        }
    }
    const double statistic = (double)n_rounds * pow(norm_of(mean, row->sums), 2) / theory;
    ck_assert_msg(n_rounds <= FEW || fabs(squares / theory - 1) < 0.03,
                  "the mean squared error is %g times the formula", squares / theory);
    ck_assert_msg(statistic < 4, "the mean's squared distance is %g times what it should be", statistic);
    free(exact);
    free(mean);
    free(off);
    free(wide);
    free(row);
}

/* Bit for bit, whatever keys and values get. */
TEST_EACH(gradients_of_queries_stay_exact, COUNT(shapes))
{
    const struct shape *s = &shapes[_i];
    const struct sampling sampling = sampling_of(s);
    struct row *const row = calloc(1, sizeof *row);
    struct copies all, some;
    size_t n_other = 0;

    ck_assert_ptr_nonnull(row);
    make_row(row, s);
    make_copies(&all, row, 2);
    make_copies(&some, row, 2);
    run(&all, NULL, 0);
    run(&some, &sampling, 0);
    for (size_t i = 0; i < 2 * TOKENS; i++) {
        const float *const a = all.qkv_gradient + i * row->qkv_columns, *const b =
                                                                            some.qkv_gradient + i * row->qkv_columns;
        ck_assert_mem_eq(a, b, row->out_columns * sizeof *a);
        for (size_t j = row->out_columns; j < row->qkv_columns; j++)
            n_other += a[j] != b[j];
    }
    for (size_t i = 0; s->n_keys && i < 2 * row->sums; i++)
        n_other += all.kv_gradient[i] != some.kv_gradient[i];
    ck_assert_uint_gt(n_other, row->sums / 2);
    free(row);
}

/* As shares allow only fewer, an exact gradient takes the exact kernel, and needs no scratch. */
TEST(a_share_of_one_query_is_all_of_it)
{
    const struct sampling none = {.share = 0.5}, some = {.queries = 0.5};

    ck_assert_uint_eq(sampling_queries(&none, 100), 0);
    ck_assert_uint_eq(sampling_queries(&some, 1), 0);
    ck_assert_uint_eq(sampling_queries(&some, 2), 1);
    ck_assert_uint_eq(sampling_queries(&some, 100), 50);
    ck_assert_uint_eq(sampling_queries_bytes(3, 4, 100, 0), 0);
}

/* A library computes the gradient from all queries. */
TEST(sampled_queries_take_our_own_kernels)
{
    const struct program_attention_options attention = {.n_heads = 2, .n_kv_heads = 2};
    struct operation_setting setting = {
        .type = NUMBER_BF16, .attention = PLAN_ATTENTION_SCORES, .trains = true, .n_rows = 1, .n_tokens = 100};

    ck_assert_int_eq(operation_attention_way(&attention, &setting), PLAN_ATTENTION_SCORES);
    setting.sampling.queries = 0.5;
    ck_assert_int_eq(operation_attention_way(&attention, &setting), PLAN_ATTENTION_FORWARD);
    setting.n_tokens = 1;
    ck_assert_int_eq(operation_attention_way(&attention, &setting), PLAN_ATTENTION_SCORES);
}
