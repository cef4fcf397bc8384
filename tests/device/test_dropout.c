/* Dropout against one Philox word at a time. */
#include "tests/kit/device/operation.h"
#include "tests/kit/test.h"

SUITE_LABELS(on_cuda)

/* The row's upper half is of the counter too. */
static const struct device_dropout_add shapes[] = {
    {.n_rows = 1, .n_tokens = 1, .n = 1, .dropout.p = 0.5f},
    {.n_rows = 2, .n_tokens = 3, .n = 7, .dropout.p = 0.5f},
    {.n_rows = 3, .n_tokens = 5, .n = 130, .dropout.p = 0.1f},
    {.n_rows = 2, .n_tokens = 2, .n = 384, .dropout.p = 0.9f},
    {.n_rows = 2, .n_tokens = 3, .n = 50},
    {.n_rows = 1, .n_tokens = 9, .n = 80, .dropout.p = 0.3f},
    {.n_rows = 2, .n_tokens = 3, .n = 64, .stride = 192},
    {.n_rows = 2, .n_tokens = 3, .n = 9, .stride = 16, .dropout.p = 0.3f}};

/* With x or without; y apart, or in the place of one of them. */
static const struct way {
    bool has_x;
    const char *onto;
} ways[] = {{true, NULL}, {true, "x"}, {true, "h"}, {false, NULL}, {false, "h"}};

/* One product, one sum: half a unit in the last place each. Kept and dropped elements differ by far more. The factor
 * 1/(1-p) is fp32. */
static double near(const struct call_test *test, const char *output)
{
    (void)test, (void)output;
    return 0x1p-23;
}

SUITE_FIXTURE(mirror_forget, NULL)

TEST_EACH(dropout_keeps_what_its_words_say, COUNT(ways) * NUMBER_TYPES * COUNT(shapes))
{
    const struct way *way = &ways[_i % COUNT(ways)];
    struct call_test test = {.type = (enum number_type)(_i / COUNT(ways) % NUMBER_TYPES),
                             .call = {.kind = CALL_dropout_add, .dropout_add = shapes[_i / COUNT(ways) / NUMBER_TYPES]},
                             .near = near,
                             .onto = {{way->onto ? "y" : NULL, way->onto}},
                             .is_elementwise = true};
    struct device_dropout_add *op = &test.call.dropout_add;

    op->x = way->has_x ? call_given : NULL;
    op->dropout.key = (struct random_key){{3, 4}}, op->dropout.first_row = (UINT64_C(1) << 33) + 9;
    call_check(&test);
}
