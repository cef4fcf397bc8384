/* Rows that advance together against each alone. */
#include "proto/step/generate.h"

#include "proto/plan/memory/units.h"
#include "tests/kit/device/backend.h"
#include "tests/kit/test.h"
#include "tests/proto/step/speech.h"
#include "device/find.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single, on_cuda)

/* The simulated device runs what kernels and queues have a part in. */
static bool simulated(void)
{
    return backend_get()->simulated;
}

enum { ROWS = 3 };

/* Prompts of unequal lengths, of one tile to three; a row that rests, one that begins anew, and one that goes on after
 * another's first tokens, or all, while that one begins anew; runs that end in another tile than the other rows'. */
static const struct plan_tokens passes[][ROWS] = {
    {{0, 0, 5, 0}, {1, 0, 70, 0}, {2, 0, 130, 0}}, {{0, 5, 1, 0}, {1, 70, 1, 0}, {2, 130, 1, 0}},
    {{0, 6, 1, 0}, {1, 0, 0, 0}, {2, 131, 1, 0}},  {{0, 0, 66, 0}, {1, 71, 1, 0}, {2, 132, 3, 0}},
    {{0, 0, 1, 0}, {0, 40, 2, 0}, {0, 66, 1, 0}},  {{0, 1, 64, 0}, {1, 42, 1, 0}, {2, 67, 9, 0}},
};

/* All rows' ids, to change. Owned. */
static uint32_t *copy_ids(const uint32_t *ids, size_t seq)
{
    uint32_t *const copy = malloc(ROWS * seq * sizeof *copy);

    ck_assert_ptr_nonnull(copy);
    return memcpy(copy, ids, ROWS * seq * sizeof *copy);
}

/* A row that goes on after another's tokens has them before its own, as it may run them again. */
static void take_prefix(uint32_t *ids, size_t seq, uint32_t row, const struct plan_tokens *tokens)
{
    if (tokens->n > 0)
        memmove(ids + row * seq, ids + tokens->from * seq, tokens->first * sizeof *ids);
}

static void run_pass(struct speech *t, const uint32_t *ids, const struct plan_tokens *rows, uint32_t n_rows)
{
    const struct device_run run = {.ids = ids, .rows = rows, .n_rows = n_rows, .logits = t->logits};

    ck_assert_msg(device_worker_generate(&t->worker, &run, &array_link, &t->link, &t->err) == 0, "%s", t->err.text);
}

/* One row by itself through all passes: before it goes on after another's tokens, it runs those that the other has run.
 * Logits after each pass, 0 where it rests. */
static void run_alone(float *out, struct speech *t, const uint32_t *ids, uint32_t row)
{
    const size_t vocabulary = t->s.model.config.vocabulary, seq = t->s.seq;
    uint32_t *const own = copy_ids(ids, seq);

    speech_open_worker(t);
    for (size_t p = 0; p < COUNT(passes); p++, out += vocabulary) {
        struct plan_tokens tokens = passes[p][row];
        take_prefix(own, seq, row, &tokens);
        if (tokens.from != row) {
            struct plan_tokens before = passes[p - 1][tokens.from];
            ck_assert_uint_eq(before.first, 0);
            before.from = 0;
            run_pass(t, own + tokens.from * seq, &before, 1);
        }
        tokens.from = 0;
        if (tokens.n > 0)
            run_pass(t, own + row * seq, &tokens, 1);
        memcpy(out, t->logits, vocabulary * sizeof *out);
    }
    speech_close_worker(t);
    free(own);
}

/* All of them, with any part of the weights on the device. */
static void check_together(struct speech *t, float *const alone[ROWS])
{
    const size_t vocabulary = t->s.model.config.vocabulary;
    uint32_t *const ids = copy_ids(t->s.ids, t->s.seq);

    speech_open_worker(t);
    for (size_t p = 0; p < COUNT(passes); p++) {
        memset(t->logits, 0xff, ROWS * vocabulary * sizeof *t->logits);
        for (uint32_t row = 0; row < ROWS; row++)
            take_prefix(ids, t->s.seq, row, &passes[p][row]);
        run_pass(t, ids, passes[p], ROWS);
        for (uint32_t row = 0; row < ROWS; row++)
            ck_assert_msg(passes[p][row].n > 0
                              ? setting_same_bits(t->logits + row * vocabulary, alone[row] + p * vocabulary, vocabulary)
                              : isnan(t->logits[row * vocabulary]),
                          "pass %zu, row %u", p, row);
    }
    speech_close_worker(t);
    free(ids);
}

/* On the simulated device one format each, and no weights on the device. */
TEST_EACH(rows_that_advance_together_have_the_bits_of_each_alone, simulated() ? 3 : 2 * LONG_CONFIGS)
{
    const struct model_config config = speech_long_config(_i % LONG_CONFIGS);
    float *alone[ROWS];
    struct speech t, one;

    speech_set_up(&one, &config, 150);
    speech_set_up_rows(&t, &config, ROWS, 150);
    one.options.setting.goal.precision = t.options.setting.goal.precision =
        (simulated() ? _i : _i / LONG_CONFIGS) ? NUMBER_BF16 : NUMBER_FP32;
    for (uint32_t row = 0; row < ROWS; row++) {
        alone[row] = calloc(COUNT(passes) * config.vocabulary, sizeof **alone);
        ck_assert_ptr_nonnull(alone[row]);
        run_alone(alone[row], &one, t.s.ids, row);
    }
    ck_assert(!setting_same_bits(alone[0], alone[1], config.vocabulary));
    for (uint32_t n = 0; n <= plan_count_uploaded(&t.s.model); n += simulated() ? 8 : 1) {
        t.options.choice.n_resident = n;
        t.options.choice.n_weight_buffers = 1 + n % 3;
        check_together(&t, alone);
    }
    t.options.setting.n_threads = 3;
    if (!simulated())
        check_together(&t, alone);
    for (uint32_t row = 0; row < ROWS; row++)
        free(alone[row]);
    speech_tear_down(&t);
    speech_tear_down(&one);
}

static size_t alignment(const void *at)
{
    const uintptr_t bits = (uintptr_t)at | 64;

    return bits & -bits;
}

/* As a library that chooses an algorithm by the shape and the alignment of its operands. */
static void fickle_matmul(struct device *dev, const struct device_matmul *op)
{
    float *c = op->c;

    device_cpu.matmul(dev, op);
    for (size_t i = 0; i < op->m; i++)
        c[i * op->c_stride] += 1e-2f * (float)op->m + 1e-3f * (float)alignment(op->a) + 1e-4f * (float)alignment(op->c);
}

/* Odd widths, 17 logits: rows side by side would begin at other alignments. */
TEST_IF(a_backend_that_rounds_by_shape_runs_each_row_as_if_alone, !simulated())
{
    struct device_ops fickle = device_cpu;
    struct plan_backend apart = plan_cpu;
    float *alone[ROWS];
    struct speech t, one;

    fickle.matmul = fickle_matmul;
    apart.joins_rows = false;
    speech_set_up(&one, &speech_tall, 150);
    speech_set_up_rows(&t, &speech_tall, ROWS, 150);
    t.options.ops = one.options.ops = &fickle;
    t.options.setting.backend = one.options.setting.backend = &apart;
    for (uint32_t row = 0; row < ROWS; row++) {
        alone[row] = calloc(COUNT(passes) * speech_tall.vocabulary, sizeof **alone);
        ck_assert_ptr_nonnull(alone[row]);
        run_alone(alone[row], &one, t.s.ids, row);
    }
    check_together(&t, alone);
    for (uint32_t row = 0; row < ROWS; row++)
        free(alone[row]);
    speech_tear_down(&t);
    speech_tear_down(&one);
}

/* wide has 12 units, tall two tables, two blocks and a norm. Prompts of one tile need one pass, the longest here
 * three. */
TEST_IF(a_pass_pulls_units_once_for_all_rows, !simulated())
{
    static const struct plan_tokens prompts[] = {{0, 0, 3, 0}, {1, 0, 1, 0}, {2, 0, 9, 0}},
                                    next[] = {{0, 3, 1, 0}, {1, 1, 1, 0}, {2, 0, 0, 0}};
    struct speech t;

    speech_set_up_rows(&t, &speech_wide, ROWS, 9);
    t.options.choice.n_resident = 0;
    speech_open_worker(&t);
    run_pass(&t, t.s.ids, prompts, ROWS);
    ck_assert_uint_eq(t.link.n_pulls, 10 + 11);
    run_pass(&t, t.s.ids, next, ROWS);
    ck_assert_uint_eq(t.link.n_pulls, 10 + 11 + 11);
    speech_close_worker(&t);
    speech_tear_down(&t);

    speech_set_up_rows(&t, &speech_tall, ROWS, 150);
    t.options.choice.n_resident = 0;
    speech_open_worker(&t);
    run_pass(&t, t.s.ids, passes[0], ROWS);
    ck_assert_uint_eq(t.link.n_pulls, 2 + 3 * 4);
    speech_close_worker(&t);
    speech_tear_down(&t);
}

TEST_IF(rows_that_cannot_be_run_are_refused_and_change_nothing, !simulated())
{
    static const struct plan_tokens begun[] = {{0, 0, 4, 0}, {1, 0, 2, 0}};
    static const struct {
        struct plan_tokens rows[ROWS + 1];
        uint32_t n_rows;
        const char *why;
    } wrongs[] = {
        {{{0, 4, 1, 0}, {1, 2, 1, 0}, {2, 0, 1, 0}, {3, 0, 1, 0}},
         4,
         "4 texts to generate: this worker was planned for 3"},
        {{{0, 4, 1, 0}, {1, 3, 1, 0}}, 2, "tokens 3 to 4 to run: 2 of up to 9 were run so far"},
        {{{0, 4, 1, 0}, {0, 5, 1, 0}}, 2, "tokens 5 to 6 to run: 4 of up to 9 were run so far"},
        {{{0, 4, 1, 0}, {0, 4, 6, 0}}, 2, "tokens 4 to 10 to run"},
        {{{0, 4, 1, 0}, {2, 0, 1, 0}}, 2, "row 1 goes on after row 2"},
        {{{0, 4, 1, 0}, {2, 0, 1, 0}, {0, 1, 1, 0}}, 3, "row 1 goes on after row 2"},
        {{{0, 4, 0, 0}, {1, 2, 0, 0}}, 2, "no row has tokens"},
        {{{0, 0, 0, 0}}, 0, "no row has tokens"},
    };
    struct speech t;

    speech_set_up_rows(&t, setting_config(0), ROWS, 9);
    speech_open_worker(&t);
    for (int i = 0; i < COUNT(wrongs); i++) {
        const struct device_run run = {.ids = t.s.ids,
                                       .rows = wrongs[i].rows,
                                       .n_rows = wrongs[i].n_rows,
                                       .logits = t.logits};
        run_pass(&t, t.s.ids, begun, 2);
        ck_assert_int_eq(device_worker_generate(&t.worker, &run, &array_link, &t.link, &t.err), -EINVAL);
        ck_assert_holds(t.err.text, wrongs[i].why);
        ck_assert(t.worker.n_run[0] == 4 && t.worker.n_run[1] == 2 && t.worker.n_run[2] == 0);
    }
    speech_close_worker(&t);
    speech_tear_down(&t);
}
