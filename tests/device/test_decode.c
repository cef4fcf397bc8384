/* Frozen weights from their codes. */
#include "tests/kit/device/operation.h"
#include "tests/kit/test.h"

SUITE_LABELS(on_cuda)

/* One element, a row, blocks of 64 that end in rows, a last one that is shorter, and several threads' pieces. */
static const struct {
    size_t rows, columns;
} shapes[] = {{1, 1}, {1, 200}, {3, 64}, {7, 33}, {16, 96}, {130, 256}};
static const enum form forms[] = {FORM_BF16, FORM_INT8, FORM_NF4};
enum { N_CASES = COUNT(shapes) * COUNT(forms) * NUMBER_TYPES };

/* In fp32 the same bits as in the reference, which computes as it was published. */
static double near(const struct call_test *test, const char *output)
{
    (void)test, (void)output;
    return 0;
}

SUITE_FIXTURE(mirror_forget, NULL)

TEST_EACH(decoded_weights_are_those_that_were_published, N_CASES)
{
    const enum form form = forms[_i / NUMBER_TYPES % COUNT(forms)];
    struct call_test test = {.type = (enum number_type)(_i % NUMBER_TYPES),
                             .call = {.kind = CALL_decode,
                                      .decode = {.form = form,
                                                 .rows = shapes[_i / NUMBER_TYPES / COUNT(forms)].rows,
                                                 .columns = shapes[_i / NUMBER_TYPES / COUNT(forms)].columns,
                                                 .scales = form == FORM_BF16 ? NULL : (void *)call_given}},
                             .near = near,
                             .is_elementwise = true};

    call_check(&test);
}
