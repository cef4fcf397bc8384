/* Convolutions and pools of images, and their gradients, against PyTorch in float64 (tests/fixtures/convolutions.json,
 * made by tests/oracle/make_convolutions.py). */
#include "tests/kit/device/operation.h"
#include "tests/kit/fixtures/fixture.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <math.h>

SUITE_LABELS(on_cuda)

SUITE_FIXTURE(mirror_forget, NULL)

enum { N_CONVOLUTIONS = 4, N_POOLS = 3 };

static size_t size_of(json_t *fixture, size_t i)
{
    return (size_t)json_integer_value(json_array_get(json_object_get(fixture, "sizes"), i));
}

static struct image_window window_of(json_t *fixture, size_t i)
{
    const uint32_t size = (uint32_t)size_of(fixture, i);

    return (struct image_window){size, size, (uint32_t)size_of(fixture, i + 1), (uint32_t)size_of(fixture, i + 2)};
}

/* Runs the call on what the fixture has of its arrays, and compares what it writes. Sums of up to 147 products, or of a
 * few numbers, in fp32; results in bf16 are rounded once. */
static void check(struct call_test *test, json_t *fixture)
{
    call_make(test);
    for (unsigned i = 0; i < test->work.n_arrays; i++) {
        const struct call_array *array = &test->work.arrays[i];
        json_t *numbers = json_object_get(fixture, array->name);
        ck_assert_uint_eq(json_array_size(numbers), array->use ? array->n : 0);
        for (size_t k = 0; array->use & CALL_READ && k < array->n; k++)
            operation_set(test->type, call_get(array), k, (float)json_integer_value(json_array_get(numbers, k)) / 64);
    }
    call_once(test);
    for (unsigned i = 0; i < test->work.n_arrays; i++) {
        const struct call_array *array = &test->work.arrays[i];
        const enum number_type type = array->type == CALL_FP32 ? NUMBER_FP32 : test->type;
        for (size_t k = 0; array->use & CALL_WRITTEN && k < array->n; k++) {
            const double want = json_number_value(json_array_get(json_object_get(fixture, array->name), k)),
                         got = (double)operation_get(type, call_get(array), k);
            const double near = type == NUMBER_FP32 ? 0 : (type == NUMBER_BF16 ? 0x1p-8 : 0x1p-11) * fabs(want);
            ck_assert_msg(fabs(got - want) <= near + 64 * 0x1p-20, "%s[%zu] is %.9g, not %.9g", array->name, k, got,
                          want);
        }
    }
}

static void check_case(enum call_kind kind, const char *name, int i)
{
    char path[600];
    snprintf(path, sizeof path, "%s/fixtures/convolutions.json", fixture_tests_dir());
    json_t *file = json_load_file(path, 0, NULL);
    json_t *fixture = json_array_get(json_object_get(file, name), (size_t)i / COMMON_TYPES);
    struct call_test test = {.type = (enum number_type)(i % COMMON_TYPES), .call = {.kind = kind}};

    ck_assert_ptr_nonnull(fixture);
    if (kind == CALL_conv2d || kind == CALL_conv2d_input_gradient || kind == CALL_conv2d_weight_gradient)
        test.call.conv2d = (struct device_conv2d){.n_rows = size_of(fixture, 0),
                                                  .height = size_of(fixture, 1),
                                                  .width = size_of(fixture, 2),
                                                  .n_in = size_of(fixture, 3),
                                                  .n_out = size_of(fixture, 4),
                                                  .n_groups = size_of(fixture, 5),
                                                  .window = window_of(fixture, 6),
                                                  .bias = call_given};
    else
        test.call.max_pool = (struct device_pool){.n_rows = size_of(fixture, 0),
                                                  .height = size_of(fixture, 1),
                                                  .width = size_of(fixture, 2),
                                                  .n = size_of(fixture, 3),
                                                  .window = window_of(fixture, 4)};
    check(&test, fixture);
    json_decref(file);
}

TEST_EACH(convolutions_are_pytorchs, N_CONVOLUTIONS *COMMON_TYPES)
{
    check_case(CALL_conv2d, "conv2d", _i);
    check_case(CALL_conv2d_input_gradient, "conv2d", _i);
    check_case(CALL_conv2d_weight_gradient, "conv2d", _i);
}

TEST_EACH(pools_are_pytorchs, N_POOLS *COMMON_TYPES)
{
    check_case(CALL_max_pool, "max_pool", _i);
    check_case(CALL_max_pool_backward, "max_pool", _i);
    check_case(CALL_average_pool, "average_pool", _i);
    check_case(CALL_average_pool_backward, "average_pool", _i);
}
