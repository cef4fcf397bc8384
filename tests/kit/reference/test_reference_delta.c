/* The gated delta rule's reference against PyTorch's autograd in float64 (tests/fixtures/delta.json, made by
 * tests/oracle/make_delta.py). */
#include "tests/kit/fixtures/fixture.h"
#include "tests/kit/reference/reference_gated_delta.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 2, MOST = 2048 };

/* The arrays of one case: as given, and to be written. */
static struct {
    double qkv[MOST], gates[MOST], a_log[8], dt_bias[8], y_gradient[MOST];
    double y[MOST], states[MOST], qkv_gradient[MOST], gates_gradient[MOST], a_log_gradient[8], dt_bias_gradient[8];
    uint32_t positions[128];
} is;

static void read(double *to, const json_t *of, const char *name, double factor)
{
    const json_t *numbers = json_object_get(of, name);

    for (size_t i = 0; i < json_array_size(numbers); i++)
        to[i] = json_number_value(json_array_get(numbers, i)) * factor;
}

static void check(const double *got, const json_t *of, const char *name)
{
    const json_t *numbers = json_object_get(of, name);

    ck_assert_uint_gt(json_array_size(numbers), 0);
    for (size_t i = 0; i < json_array_size(numbers); i++)
        ck_assert_double_eq_tol(got[i], json_number_value(json_array_get(numbers, i)), 1e-12);
}

static size_t number(const json_t *documents)
{
    size_t n = 0;

    for (size_t d = 0; d < json_array_size(documents); d++)
        for (uint32_t i = 0; i < (uint32_t)json_integer_value(json_array_get(documents, d)); i++)
            is.positions[n++] = i;
    return n;
}

TEST_EACH(the_recurrence_and_its_gradient_are_pytorchs, CASES)
{
    char path[512];
    double sizes[5];

    snprintf(path, sizeof path, "%s/fixtures/delta.json", fixture_tests_dir());
    json_t *file = json_load_file(path, 0, NULL), *of = json_array_get(file, (size_t)_i);
    ck_assert_msg(json_array_size(file) == CASES, "open %s: not %d cases", path, CASES);
    memset(&is, 0, sizeof is);
    read(sizes, of, "sizes", 1);
    const struct device_gated_delta op = {.n_rows = 1,
                                          .n_tokens = number(json_object_get(of, "documents")),
                                          .n_heads = (size_t)sizes[0],
                                          .n_key_heads = (size_t)sizes[1],
                                          .key_width = (size_t)sizes[2],
                                          .value_width = (size_t)sizes[3],
                                          .doubled = sizes[4] > 0,
                                          .positions = is.positions,
                                          .qkv = is.qkv,
                                          .gates = is.gates,
                                          .a_log = is.a_log,
                                          .dt_bias = is.dt_bias,
                                          .y = is.y,
                                          .states = (void *)is.states,
                                          .y_gradient = is.y_gradient,
                                          .qkv_gradient = is.qkv_gradient,
                                          .gates_gradient = is.gates_gradient,
                                          .a_log_gradient = (void *)is.a_log_gradient,
                                          .dt_bias_gradient = (void *)is.dt_bias_gradient};
    read(is.qkv, of, "qkv", 0x1p-6), read(is.gates, of, "gates", 0x1p-6);
    read(is.a_log, of, "a_log", 0x1p-6), read(is.dt_bias, of, "dt_bias", 0x1p-6);
    read(is.y_gradient, of, "y_gradient", 0x1p-6);
    reference_gated_delta(&op);
    check(is.y, of, "y");
    reference_gated_delta_backward(&op);
    check(is.qkv_gradient, of, "qkv_gradient"), check(is.gates_gradient, of, "gates_gradient");
    check(is.a_log_gradient, of, "a_log_gradient"), check(is.dt_bias_gradient, of, "dt_bias_gradient");
    json_decref(file);
}
