/* What becomes of convolutions where cuDNN is found: the library's plans, in blocks of images, or our kernels, and a
 * line for the log that says which. The library is the simulator's (tests/sim/dnn.cpp). That results are right, and the
 * same however images are divided, is test_conv2d's to show. */
#include "tests/kit/device/simulated.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <string.h>

SUITE_LABELS(cuda)

SUITE_FIXTURE(simulated_load, NULL)

static struct cudasim_dnn library(size_t version)
{
    return (struct cudasim_dnn){.version = version, .n_proposals = 1, .proposals = {{.workspace = CUDASIM_DNN_USUAL}}};
}

static uint32_t probe(const struct cudasim_dnn *dnn)
{
    struct device_facts facts;
    struct error err;

    simulated.have_dnn(dnn);
    ck_assert_int_eq(simulated.ops->probe(0, &facts, &err), 0);
    return facts.convolution;
}

/* kind: 0 forward, 1 the gradient of x, 2 that of weights. */
static struct device_conv2d operation(struct device *dev, size_t n_rows, size_t n_in, int kind)
{
    char *const arena = simulated.ops->arena(dev);
    void *const x = arena, *const y = arena + (1 << 20), *const weight = arena + (2 << 20);
    struct device_conv2d op = {
        .n_rows = n_rows, .height = 4, .width = 4, .n_in = n_in, .n_out = 8, .n_groups = 1, .window = {3, 3, 1, 1}};

    if (kind == 0)
        op.x = x, op.weight = weight, op.y = y;
    else if (kind == 1)
        op.x_gradient = x, op.weight = weight, op.y_gradient = y;
    else
        op.x = x, op.weight_gradient = weight, op.y_gradient = y;
    return op;
}

static void run(struct device *dev, const struct device_conv2d *op, int kind)
{
    if (kind == 0)
        simulated.ops->conv2d(dev, op);
    else if (kind == 1)
        simulated.ops->conv2d_input_gradient(dev, op);
    else
        simulated.ops->conv2d_weight_gradient(dev, op);
}

/* Of 35 images two blocks and three by themselves; of 16, one block. Plans are run once each when they are prepared. */
TEST_EACH(the_librarys_plans_take_blocks_of_images, 6)
{
    static const struct {
        size_t n_rows, plans;
    } calls[] = {{35, 5}, {16, 1}};
    const int kind = _i / 2;
    const struct cudasim_dnn dnn = library(92501);
    const uint32_t convolution = probe(&dnn);
    char told[DEVICE_TOLD];

    ck_assert_uint_ne(convolution, 0);
    struct device *dev = simulated_open(NUMBER_BF16, CUDASIM_STREAMS_AS_ISSUED);
    const struct device_conv2d op = operation(dev, calls[_i % 2].n_rows, 8, kind);
    simulated.ops->prepare_conv2d(dev, &op, 1, convolution, told);
    ck_assert_msg(strstr(told, "convolutions: cuDNN 9.25.1 computes 1 of 1; it took ") == told, "%s", told);
    const struct cudasim_counts before = simulated.count();
    run(dev, &op, kind);
    ck_assert_int_eq(simulated.ops->sync(dev), 0);
    ck_assert_uint_eq(simulated.count().dnn_convolutions, before.dnn_convolutions + calls[_i % 2].plans);
    ck_assert_uint_eq(simulated.count().launches, before.launches);
    simulated_close(dev);
}

/* Fp32; another library than the job's; none of a workspace that fits; images of 54 bytes, which do not begin at
 * multiples of 16; what was not prepared; fp16. */
TEST_EACH(what_the_library_has_not_is_ours, 6)
{
    static const enum number_type types[] = {NUMBER_FP32, NUMBER_BF16, NUMBER_BF16,
                                             NUMBER_BF16, NUMBER_BF16, NUMBER_FP16};
    static const char *const why[] = {"convolutions: our own kernels: cuDNN is used in bf16 alone",
                                      "convolutions: our own kernels: the job's workers do not have the same cuDNN",
                                      "convolutions: cuDNN 9.25.1 computes 0 of 1, our own kernels the others; it took",
                                      "convolutions: cuDNN 9.25.1 computes 0 of 1, our own kernels the others; it took",
                                      "convolutions: cuDNN 9.25.1 computes 1 of 1; it took ",
                                      "convolutions: our own kernels: cuDNN is used in bf16 alone"};
    struct cudasim_dnn dnn = library(92501);
    char told[DEVICE_TOLD];

    if (_i == 2)
        dnn.proposals[0].workspace = PLAN_CUDA_WORKSPACE_BYTES + 1;
    const uint32_t convolution = probe(&dnn);
    struct device *dev = simulated_open(types[_i], CUDASIM_STREAMS_AS_ISSUED);
    struct device_conv2d op = operation(dev, 2, 8, 0);
    if (_i == 3)
        op.height = op.width = op.n_in = 3;
    simulated.ops->prepare_conv2d(dev, &op, 1, _i == 1 ? 0 : convolution, told);
    ck_assert_msg(strstr(told, why[_i]) == told, "%s", told);
    if (_i == 4)
        op.window.stride = 2;
    const struct cudasim_counts before = simulated.count();
    simulated.ops->conv2d(dev, &op);
    ck_assert_int_eq(simulated.ops->sync(dev), 0);
    ck_assert_uint_eq(simulated.count().dnn_convolutions, before.dnn_convolutions);
    ck_assert_uint_eq(simulated.count().launches, before.launches + 1);
    simulated_close(dev);
}

/* An image must not be the library's beside others and ours alone. */
TEST_EACH(a_block_has_the_librarys_plan_only_if_an_image_alone_has_it, 4)
{
    struct cudasim_dnn dnn = library(92501);
    char told[DEVICE_TOLD];

    dnn.proposals[0].refuses = _i / 2 ? 16 : 1;
    const uint32_t convolution = probe(&dnn);
    struct device *dev = simulated_open(NUMBER_BF16, CUDASIM_STREAMS_AS_ISSUED);
    const struct device_conv2d op = operation(dev, _i / 2 ? 3 : 16, 8, _i % 2);
    simulated.ops->prepare_conv2d(dev, &op, 1, convolution, told);
    ck_assert_msg(strstr(told, "computes 0 of 1"), "%s", told);
    simulated_close(dev);
}

TEST(another_library_has_another_name)
{
    const struct cudasim_dnn dnn = library(92501), older = library(91900);

    ck_assert_uint_ne(probe(&dnn), probe(&older));
}

/* As of attention: other bits in the middle of a run would be worse than its end. */
TEST(what_fails_in_a_step_is_a_fault)
{
    struct cudasim_dnn dnn = library(92501);
    const uint32_t convolution = probe(&dnn);
    char told[DEVICE_TOLD];
    struct error err;

    struct device *dev = simulated_open(NUMBER_BF16, CUDASIM_STREAMS_AS_ISSUED);
    const struct device_conv2d op = operation(dev, 2, 8, 2);
    simulated.ops->prepare_conv2d(dev, &op, 1, convolution, told);
    dnn.fails = true;
    simulated.have_dnn(&dnn);
    simulated.ops->conv2d_weight_gradient(dev, &op);
    ck_assert_int_eq(simulated.ops->sync(dev), -EIO);
    ck_assert_int_eq(simulated.ops->fault(dev, &err), -EIO);
    ck_assert_ptr_nonnull(strstr(err.text, "cuda:0, the gradient of a convolution's weights through cuDNN (failed): "));
    simulated_close(dev);
}
