/* GLUE's metrics, against scikit-learn and SciPy (tests/fixtures/scores.json, made by tests/oracle/make_scores.py). */
#include "tests/kit/test.h"

#include "client/rows/score.h"
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
