/* The kit itself: C draws what Python drew, the comparison with PyTorch has teeth, and a failed test says why. */
#include "tests/kit/fixtures/fixture.h"
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

SUITE_FIXTURE(processes_setup, processes_remove)

/* Printed by numpy from drawn.py; its words are SplitMix64's. */
TEST(weights_are_those_that_python_drew)
{
    struct fixture f;
    float *w = malloc(4656 * sizeof *w);

    fixture_open(&f, "a");
    fixture_draw(w, &f, "transformer.wte.weight");
    ck_assert_float_eq(w[0], -0x1.e12c3p-3f);
    ck_assert_float_eq(w[1], 0x1.2ffa4p-6f);
    ck_assert_float_eq(w[4655], 0x1.bcae2p-6f);
    fixture_close(&f);
    free(w);
}

TEST(tokens_are_those_that_python_drew)
{
    static const uint32_t first[8] = {42, 45, 1, 21, 22, 79, 2, 31}, last[4] = {60, UINT32_MAX, 19, 57};
    uint32_t ids[8 * 24], labels[8 * 24];
    struct fixture f;

    fixture_open(&f, "a");
    ck_assert_uint_eq(fixture_minibatch(ids, labels, &f, 3), 160);
    ck_assert_mem_eq(ids, first, sizeof first);
    ck_assert_uint_eq(labels[7], UINT32_MAX);
    ck_assert_mem_eq(labels + 8 * 24 - 4, last, sizeof last);
    ck_assert_uint_eq(fixture_minibatch(ids, labels, &f, 7), 160); /* four minibatches, in turn */
    fixture_close(&f);
}

/* float64's own gradient of "a", all of it stored, rounded to fp32, times a factor. */
struct echo {
    const struct fixture_set *set;
    float factor;
    float tensor[9216]; /* the largest of "a" */
};

static const float *find_echo(void *context, const char *name, uint64_t n)
{
    struct echo *echo = context;
    const json_t *piece;
    size_t i;

    json_array_foreach(json_object_get(echo->set->json, "pieces"), i, piece)
    {
        if (strcmp(json_string_value(json_object_get(piece, "tensor")), name) != 0)
            continue;
        const size_t first = (size_t)json_integer_value(json_object_get(piece, "first"));
        const size_t count = (size_t)json_integer_value(json_object_get(piece, "n"));
        const size_t at = (size_t)json_integer_value(json_object_get(piece, "sample"));
        ck_assert_uint_le(first + count, n);
        for (size_t k = 0; k < count; k++)
            echo->tensor[first + k] = echo->factor * (float)echo->set->fixture->values[at + k];
    }
    return echo->tensor;
}

TEST(a_gradient_off_by_one_in_ten_thousand_is_beyond)
{
    const struct fixture_limits limits = {.relative = 1e-5, .singles = 2, .keys = 1e-7};
    struct fixture f;
    struct fixture_set set;
    struct echo echo = {.set = &set, .factor = 1};

    fixture_open(&f, "a");
    set = fixture_gradient(&f);
    ck_assert_uint_eq(fixture_compare(&set, &limits, find_echo, &echo), 0);
    echo.factor = 1.0001f;
    ck_assert_uint_eq(fixture_compare(&set, &limits, find_echo, &echo), fixture_n_pieces(&set) - 2 /* key biases */);
    fixture_close(&f);
}

static const float *find_drawn(void *context, const char *name, uint64_t n)
{
    static float weights[9216];

    ck_assert_uint_le(n, 9216);
    fixture_draw(weights, context, name);
    return weights;
}

/* Python knows how far each tensor moved in training; from the weights at the start, C must measure the same: exactly
 * where everything is stored, else by a sketch of 128 buckets, whose norms have a deviation of 6 %. */
TEST(a_sketch_measures_a_distance)
{
    struct fixture f;
    struct fixture_set set;
    unsigned n_estimated = 0;

    fixture_open(&f, "a");
    set = fixture_run(&f, "adamw", 8);
    for (size_t i = 0; i < fixture_n_pieces(&set); i++) {
        struct fixture_piece piece = fixture_measure(&set, i, find_drawn, &f);
        ck_assert_double_gt(piece.moved, 0);
        ck_assert_double_eq_tol(piece.distance, piece.moved, (piece.estimated ? 0.25 : 1e-9) * piece.moved);
        n_estimated += piece.estimated;
    }
    ck_assert_uint_eq(n_estimated, 10); /* wte, wpe and the four matrices of each block */
    fixture_close(&f);
}

/* For the test below, in a process of its own. */
TEST_IF(what_fails_with_a_long_text, getenv("FAILS") != NULL)
{
    ck_abort_msg("the first word%20000sthe last", " ");
}

TEST_IF(a_long_text_is_shown_to_its_last_word, getenv("FAILS") == NULL)
{
    expect("FAILS=1 " BIN_DIR "/test_kit >checked", 1, "the first word ", " the last\n");
    expect_file("checked", "Failures: 1, Errors: 0", "the first word ", "(all of it on stderr)");
}
