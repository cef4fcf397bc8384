/* GLUE's metrics, against scikit-learn and SciPy (tests/fixtures/scores.json, made by tests/oracle/make_scores.py). */
#include "tests/kit/test.h"

#include "client/task/score.h"
#include "proto/base/number.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>

static void check_case(const json_t *of, size_t i)
{
    const json_t *logits = json_object_get(of, "logits"), *labels = json_object_get(of, "labels");
    const uint32_t n_labels = (uint32_t)json_integer_value(json_object_get(of, "n_labels"));
    const size_t n = json_array_size(labels);
    float *x = calloc(n * n_labels, sizeof *x);
    uint32_t *y = calloc(n, sizeof *y);
    struct client_scores scores;

    for (size_t k = 0; k < n * n_labels; k++)
        x[k] = (float)json_number_value(json_array_get(logits, k));
    for (size_t k = 0; k < n; k++) {
        const json_t *label = json_array_get(labels, k);
        y[k] = n_labels == 1 ? number_pattern((float)json_number_value(label)) : (uint32_t)json_integer_value(label);
    }
    ck_assert_int_eq(n_labels == 1 ? client_score_numbers(&scores, x, y, n, NULL)
                                   : client_score_classes(&scores, x, y, n, n_labels, NULL),
                     0);
    ck_assert_uint_eq(scores.n, json_object_size(of) - 3);
    for (size_t k = 0; k < scores.n; k++) {
        const json_t *expected = json_object_get(of, scores.list[k].name);
        ck_assert_msg(expected != NULL, "case %zu: %s", i, scores.list[k].name);
        if (json_is_null(expected))
            ck_assert_msg(isnan(scores.list[k].value), "case %zu: %s", i, scores.list[k].name);
        else /* sums in another order, of at most 300 terms */
            ck_assert_msg(fabs(scores.list[k].value - json_number_value(expected)) < 1e-11,
                          "case %zu: %s is %.15g, not %.15g", i, scores.list[k].name, scores.list[k].value,
                          json_number_value(expected));
    }
    free(x);
    free(y);
}

TEST(metrics_are_those_of_scikit_learn_and_scipy)
{
    json_t *cases = json_load_file(TESTS_DIR "/fixtures/scores.json", 0, NULL), *of;
    size_t i;

    ck_assert_uint_ge(json_array_size(cases), 50);
    json_array_foreach(cases, i, of) check_case(of, i);
    json_decref(cases);
}

/* By hand, of six classes: the label is the likeliest; the fifth; the last; as likely as four others before it, and as
 * five. */
TEST(a_label_is_among_the_five_likeliest)
{
    static const float logits[] = {6, 1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 1, 2,
                                   3, 4, 5, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1};
    static const uint32_t labels[] = {0, 2, 1, 4, 5};
    struct client_scores scores = {.n = 0};

    client_score_add_top5(&scores, logits, labels, 5, 6);
    ck_assert_str_eq(scores.list[0].name, "top5_accuracy");
    ck_assert_double_eq_tol(scores.list[0].value, 0.6, 1e-15);
    scores.n = 0;
    client_score_add_top5(&scores, logits, labels, 5, 5);
    ck_assert_uint_eq(scores.n, 0);
}

/* Three rows of six classes: the first has no numbers, the second one that is none beside its label, the third is
 * right. */
TEST(a_logit_that_is_no_number_makes_no_row_right)
{
    static const float logits[] = {NAN, NAN, NAN, NAN, NAN, NAN, 9, 1, 2, NAN, 3, 4, 9, 1, 2, 3, 4, 5};
    static const uint32_t labels[] = {0, 3, 0};
    struct client_scores scores;

    ck_assert_int_eq(client_score_classes(&scores, logits, labels, 3, 6, NULL), 0);
    client_score_add_top5(&scores, logits, labels, 3, 6);
    ck_assert_str_eq(scores.list[0].name, "accuracy");
    ck_assert_double_eq_tol(scores.list[0].value, 1. / 3, 1e-15);
    ck_assert_str_eq(scores.list[scores.n - 1].name, "top5_accuracy");
    ck_assert_double_eq_tol(scores.list[scores.n - 1].value, 1. / 3, 1e-15);
}
