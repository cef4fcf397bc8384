/* Every operation of the CUDA backend has room on every device that its kernels are compiled for: shared memory of a block,
 * and registers, where nvcc has said how many a kernel takes (build/cuda-kernels.txt). */
#include "tests/kit/device/simulated.h"
#include "tests/kit/test.h"

#include <unistd.h>

SUITE_LABELS(cuda)

static const char *const targets[] = {"sm_80", "sm_86", "sm_89", "sm_90", "sm_100"};
enum { N_TARGETS = sizeof targets / sizeof *targets };

static const char *table(void)
{
    static const char path[] = BIN_DIR "/../cuda-kernels.txt";

    return access(path, R_OK) == 0 ? path : NULL;
}

static void *at(struct device *dev, size_t kib)
{
    return (char *)simulated.ops->arena(dev) + (kib << 10);
}

static void attend(struct device *dev, size_t n_heads, size_t head_width, float p)
{
    const struct device_attention op = {.n_rows = 1,
                                        .n_tokens = 5,
                                        .n_heads = n_heads,
                                        .width = n_heads * head_width,
                                        .scale = 1,
                                        .qkv = at(dev, 0),
                                        .out = at(dev, 512),
                                        .log_sum_exp = at(dev, 1024),
                                        .out_gradient = at(dev, 1536),
                                        .qkv_gradient = at(dev, 2048),
                                        .scratch = at(dev, 3072),
                                        .dropout = {.p = p}};
    const struct device_attention_cached cached = {.n_tokens = 3,
                                                   .n_heads = n_heads,
                                                   .width = n_heads * head_width,
                                                   .n_positions = 8,
                                                   .scale = 1,
                                                   .qkv = at(dev, 0),
                                                   .out = at(dev, 512),
                                                   .cache = at(dev, 1024),
                                                   .scratch = at(dev, 3072)};

    simulated.ops->attention(dev, &op);
    simulated.ops->attention_backward(dev, &op);
    simulated.ops->attention_cached(dev, &cached);
}

/* skew: bytes, which no pack fits. */
static void others(struct device *dev, size_t n, size_t skew)
{
    enum { M = 6, N_TABLE = 50257, N_EMBEDDED = 8 };
    char *x = (char *)at(dev, 0) + skew, *y = (char *)at(dev, 512) + skew, *weight = (char *)at(dev, 1024) + skew;
    float *sums = at(dev, 1100), *other_sums = at(dev, 1300), *statistics = at(dev, 1500);
    uint32_t *ids = at(dev, 1600);
    const struct device_norm normed = {.m = M,
                                       .n = n,
                                       .epsilon = 1e-5f,
                                       .x = x,
                                       .weight = weight,
                                       .bias = weight,
                                       .y = y,
                                       .statistics = statistics,
                                       .y_gradient = x,
                                       .x_gradient = y,
                                       .accumulate = true,
                                       .weight_gradient = sums,
                                       .bias_gradient = other_sums};
    struct device_dropout_add drops = {.n_rows = 2, .n_tokens = M / 2, .n = n, .x = x, .h = y, .y = y};
    const struct device_position positions = {
        .n_rows = 2, .n_tokens = M / 2, .n = n, .table = x, .y = y, .y_gradient = x, .table_gradient = sums};
    const struct device_embed looked_up = {.m = M, .n = n, .n_table = 2, .ids = ids, .table = x, .y = y},
                              summed = {.m = 2048,
                                        .n = N_EMBEDDED,
                                        .n_table = N_TABLE,
                                        .ids = ids,
                                        .y_gradient = x,
                                        .table_gradient = at(dev, 4096)};
    const struct device_cross_entropy chunk = {.m = M,
                                               .n = n,
                                               .logits_stride = n,
                                               .start = true,
                                               .logits = statistics,
                                               .labels = ids,
                                               .running = sums,
                                               .scale = 1};

    simulated.ops->activate(dev, y, x, M * n, MODEL_GELU);
    simulated.ops->reduce_rows(dev, sums, x, M, n);
    simulated.ops->norm(dev, &normed);
    simulated.ops->norm_backward(dev, &normed);
    simulated.ops->dropout_add(dev, &drops);
    drops.dropout.p = 0.1f;
    simulated.ops->dropout_add(dev, &drops);
    simulated.ops->position(dev, &positions);
    simulated.ops->position_backward(dev, &positions);
    simulated.ops->embed(dev, &looked_up);
    simulated.ops->embed_backward(dev, &summed);
    simulated.ops->log_sum_exp(dev, &chunk);
    simulated.ops->loss(dev, at(dev, 1700), sums, ids, M);
    simulated.ops->cross_entropy_gradient(dev, &chunk);
}

static void multiply(struct device *dev, enum device_epilogue epilogue)
{
    const struct device_matmul op = {.m = 4,
                                     .n = 8,
                                     .k = 8,
                                     .a = at(dev, 0),
                                     .b = at(dev, 64),
                                     .c = at(dev, 128),
                                     .bias = at(dev, 192),
                                     .pre = at(dev, 256),
                                     .a_stride = 8,
                                     .b_stride = 8,
                                     .c_stride = 8,
                                     .epilogue = epilogue,
                                     .activation = MODEL_GELU};

    simulated.ops->matmul(dev, &op);
}

SUITE_FIXTURE(simulated_load, NULL)

TEST_EACH(every_operation_has_room, N_TARGETS *NUMBER_TYPES)
{
    struct device *dev = simulated_open((enum number_type)(_i / N_TARGETS), CUDASIM_STREAMS_AS_ISSUED);
    static const size_t head_widths[] = {16, 64, 128, 17, 256};
    struct error err = {""};

    simulated.target(targets[_i % N_TARGETS], table());
    for (size_t i = 0; i < sizeof head_widths / sizeof *head_widths; i++) {
        attend(dev, 1, head_widths[i], 0);
        attend(dev, 2, head_widths[i], 0.1f);
    }
    others(dev, 768, 0);
    others(dev, 33, 4);
    multiply(dev, DEVICE_BIAS_ACTIVATION);
    multiply(dev, DEVICE_ACTIVATION_GRADIENT);
    simulated.ops->round_bf16(dev, at(dev, 0), at(dev, 512), 8);
    ck_assert_msg(simulated.ops->finish(dev, DEVICE_COMPUTE, 0) == 0 || simulated.ops->fault(dev, &err) == 0, "%s: %s",
                  targets[_i % N_TARGETS], err.text);
    simulated.lose(cudaErrorLaunchFailure); /* nothing need run */
    simulated.ops->close(dev);
}
