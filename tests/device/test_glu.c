/* Gated linear units, and gates of heads. */
#include "tests/kit/device/operation.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

SUITE_LABELS(on_cuda)

static const struct device_glu shapes[] = {{.m = 1, .n = 1, .stride = 1},
                                           {.m = 3, .n = 16, .stride = 32},
                                           {.m = 5, .n = 33, .stride = 75},
                                           {.m = 64, .n = 24, .stride = 72},
                                           {.m = 2, .n = 1000, .stride = 2024}};
enum { N_ACTIVATIONS = MODEL_ACTIVATIONS, N_CASES = COUNT(shapes) * NUMBER_TYPES * N_ACTIVATIONS };

/* The activation within 3 units in the last place, as test_rows.c has it, and a product or two. */
static double near(const struct call_test *test, const char *output)
{
    (void)test, (void)output;
    return 5 * 0x1p-23;
}

SUITE_FIXTURE(mirror_forget, NULL)

/* Forward; backward into arrays of its own, or over gate and up. */
TEST_EACH(glu_is_the_formula, 3 * N_CASES)
{
    const int way = _i / N_CASES;
    struct call_test test = {.type = (enum number_type)(_i / N_ACTIVATIONS % NUMBER_TYPES),
                             .call = {.kind = way ? CALL_glu_backward : CALL_glu,
                                      .glu = shapes[_i % N_CASES / N_ACTIVATIONS / NUMBER_TYPES]},
                             .near = near,
                             .is_elementwise = true};

    test.call.glu.activation = (enum model_activation)(_i % N_ACTIVATIONS);
    test.call.glu.gradient_stride = test.call.glu.stride;
    if (way == 2) {
        test.onto[0].written = "gate_gradient", test.onto[0].read = "gate";
        test.onto[1].written = "up_gradient", test.onto[1].read = "up";
    }
    call_check(&test);
}

/* One column; a head that is no whole vector, less than a team of lanes, more than a warp of packs; of a model. */
static const struct device_head_gate heads[] = {{1, 1, 1, .x = NULL},
                                                {3, 5, 7, .x = NULL},
                                                {9, 3, 24, .x = NULL},
                                                {2, 16, 128, .x = NULL},
                                                {2, 2, 1000, .x = NULL}};

/* A product with a sigmoid; the gate's gradient is a sum over the head. */
static double near_of_head(const struct call_test *test, const char *output)
{
    return (strcmp(output, "gate_gradient") == 0 ? 5 + sqrt((double)test->call.head_gate.n) : 5) * 0x1p-23;
}

/* Forward; backward into arrays of its own, or over the gradient of y. */
TEST_EACH(a_head_is_multiplied_by_its_gate, 3 * COUNT(heads) * NUMBER_TYPES)
{
    const int way = _i % 3;
    struct call_test test = {.type = (enum number_type)(_i / 3 % NUMBER_TYPES),
                             .call = {.kind = way ? CALL_head_gate_backward : CALL_head_gate,
                                      .head_gate = heads[_i / 3 / NUMBER_TYPES]},
                             .near = near_of_head};

    if (way == 2)
        test.onto[0].written = "x_gradient", test.onto[0].read = "y_gradient";
    call_check(&test);
}
