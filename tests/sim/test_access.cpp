/* How kernels touch memory: the counts of uncoalesced accesses and bank conflicts of every packed kernel are stated here,
 * and must not rise. That the counting is right is shown of kernels whose counts are known by hand. */
#include "device/cuda/kernels/kernel.cuh"
#include "proto/operation/backend.h"
#include "tests/sim/access/access.hpp"
#include "tests/sim/access/traffic.h"
#include "tests/sim/planted.hpp"

#include <stdio.h>

SUITE_LABELS(cuda)

/* ---- by hand ---- */

static __global__ void read_apart(float *to, const float *from, unsigned apart)
{
    to[threadIdx.x] = from[threadIdx.x * apart];
}

static __global__ void read_twice(float *to, const float *from)
{
    to[threadIdx.x] = from[threadIdx.x] - from[threadIdx.x];
}

static __global__ void read_shared(float *to, unsigned apart)
{
    float *room = shared_memory<float>();

    for (unsigned i = threadIdx.x; i < 32 * 32; i += 32)
        room[i] = 0;
    __syncthreads();
    to[threadIdx.x] = room[threadIdx.x * apart];
}

static cudasim_accesses accesses_of(const std::function<void(cudaStream_t, float *)> &run)
{
    cudaStream_t stream = make_stream();
    float *memory = on_device<float>(4096);
    cudasim_accesses all = {};

    OK(cudaMemsetAsync(memory, 0, 4096 * sizeof *memory, stream));
    cudasim_take_accesses();
    run(stream, memory);
    OK(cudaStreamSynchronize(stream));
    for (const auto &kernel : cudasim_take_accesses()) {
        all.global += kernel.second.global, all.sectors += kernel.second.sectors, all.excess += kernel.second.excess;
        all.shared += kernel.second.shared, all.conflicts += kernel.second.conflicts;
    }
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(memory));
    return all;
}

/* A warp's 32 floats are 4 sectors; every second one 8, every eighth 32. */
TEST(sectors_beyond_what_is_read_are_counted)
{
    const unsigned apart[] = {1, 2, 8}, sectors[] = {4, 8, 32};

    for (int i = 0; i < 3; i++) {
        const cudasim_accesses a = accesses_of([&](cudaStream_t stream, float *x) {
            OK(launch(read_apart, 1, 32, 0, stream, x, (const float *)x + 1024, apart[i]));
        });
        ck_assert_uint_eq(a.global, 2);
        ck_assert_uint_eq(a.sectors, 4 + sectors[i]);
        ck_assert_uint_eq(a.excess, sectors[i] - 4);
        ck_assert_uint_eq(a.shared, 0);
    }
}

/* A warp's 32 floats are 128 bytes; of every second one 256 are moved. */
TEST(bytes_count_for_the_array_that_holds_them_as_often_as_they_are_asked_for)
{
    accesses_of([](cudaStream_t stream, float *x) {
        struct cudasim_array arrays[] = {{x, 128, 0}, {x + 1024, 4096, 0}, {x + 2048, 4096, 0}};

        cudasim_count_arrays(arrays, 3);
        OK(launch(read_twice, 1, 32, 0, stream, x, (const float *)x + 1024));
        OK(launch(read_apart, 1, 32, 0, stream, x + 1024, (const float *)x + 2048, 2));
        OK(cudaStreamSynchronize(stream));
        cudasim_count_arrays(NULL, 0);
        OK(launch(read_twice, 1, 32, 0, stream, x, (const float *)x + 1024));
        OK(cudaStreamSynchronize(stream));
        ck_assert_uint_eq(arrays[0].moved, 128);
        ck_assert_uint_eq(arrays[1].moved, 2 * 128 + 128);
        ck_assert_uint_eq(arrays[2].moved, 256);
    });
}

/* Words in 32, 16 and 1 of the banks; an odd distance meets each bank once. */
TEST(turns_of_a_bank_are_counted)
{
    const unsigned apart[] = {1, 2, 32, 17, 0}, conflicts[] = {0, 1, 31, 0, 0};

    for (int i = 0; i < 5; i++) {
        const cudasim_accesses a = accesses_of([&](cudaStream_t stream, float *x) {
            OK(launch(read_shared, 1, 32, 32 * 32 * sizeof(float), stream, x, apart[i]));
        });
        ck_assert_uint_eq(a.shared, 33);
        ck_assert_uint_eq(a.conflicts, conflicts[i]);
    }
}

/* ---- the backend's ---- */

enum { ROWS = 3, WIDTH = 1024, TOKENS = 64, ARRAY = 1 << 16 /* floats */ };

/* Arrays x, y, z, w of ARRAY floats each, all zeros. */
typedef void operation(const struct cuda_queue *q, float *x, float *y, float *z, float *w);

static struct device_attention attention_of(float *x, float *y, float *z, float *w, size_t head_width)
{
    struct device_attention op = {};

    op.n_rows = 1, op.n_tokens = TOKENS, op.n_heads = 1, op.width = head_width, op.scale = 1;
    op.qkv = x, op.out = y, op.log_sum_exp = y + ARRAY / 2, op.out_gradient = z, op.qkv_gradient = z + ARRAY / 2;
    op.scratch = w;
    return op;
}

static const struct device_dropout keeps = {};

static struct device_norm norm_of(void *y, const void *x, const void *weight, float *statistics)
{
    struct device_norm op = {};

    op.m = ROWS, op.n = WIDTH, op.epsilon = 1e-5f;
    op.x = x, op.weight = op.bias = weight, op.y = y, op.statistics = statistics;
    return op;
}

static struct device_row_moments row_moments_of(const void *x, float *moments, const float *gradient, void *x_gradient)
{
    struct device_row_moments op = {};

    op.n_rows = 2, op.n_elements = ROWS, op.n = WIDTH;
    op.x = x, op.moments = moments, op.moments_gradient = gradient, op.x_gradient = x_gradient;
    return op;
}

static struct device_join_moments join_moments_of(const float *moments, float *statistics, const float *gradient,
                                                  float *moments_gradient)
{
    struct device_join_moments op = {};

    op.n_rows = ROWS, op.n_elements = 2, op.n = WIDTH, op.epsilon = 1e-5f;
    op.moments = moments, op.statistics = statistics, op.statistics_gradient = gradient;
    op.moments_gradient = moments_gradient;
    return op;
}

/* x and its gradient, y or its gradient; what columns have, and its gradients. */
static struct device_batch_norm batch_norm_of(float *x, float *y, float *columns, float *gradients)
{
    struct device_batch_norm op = {};

    op.n_rows = 1, op.n_elements = ROWS, op.n = WIDTH;
    op.x = x, op.x_gradient = x + ARRAY / 2, op.y = y, op.y_gradient = y;
    op.statistics = columns, op.weight = columns + 2 * WIDTH, op.bias = columns + 3 * WIDTH;
    op.weight_gradient = gradients, op.bias_gradient = gradients + WIDTH,
    op.statistics_gradient = gradients + 2 * WIDTH;
    return op;
}

static struct device_dynamic_conv dynamic_conv_of(const float *x, const float *scores, float *filters)
{
    struct device_dynamic_conv op = {};

    op.n_rows = 1, op.n_tokens = ROWS, op.n = WIDTH, op.n_heads = 2, op.n_taps = 32, op.n_before = 16;
    op.x = x, op.scores = scores, op.filters = filters;
    return op;
}

static struct device_short_conv short_conv_of(const float *x, const float *weight)
{
    struct device_short_conv op = {};

    op.n_rows = 1, op.n_tokens = ROWS, op.n = WIDTH / 4, op.n_taps = 4, op.gated = true;
    op.x = x, op.weight = weight;
    return op;
}

static struct device_head_gate head_gate_of(float *x, const float *gate, float *y)
{
    struct device_head_gate op = {};

    op.m = ROWS, op.n_heads = WIDTH / 128, op.n = 128;
    op.x = x, op.gate = gate, op.y = y, op.y_gradient = y;
    op.x_gradient = x + ARRAY / 2, op.gate_gradient = y + ARRAY / 2;
    return op;
}

/* Two chunks of one head, of 64 columns. */
static struct device_gated_delta gated_delta_of(float *x, float *y, float *states, float *scratch)
{
    struct device_gated_delta op = {};

    op.n_rows = 1, op.n_tokens = 80, op.n_heads = op.n_key_heads = 1, op.key_width = op.value_width = 64;
    op.qkv = x, op.gates = y + ARRAY / 2, op.a_log = y + ARRAY / 2 + WIDTH, op.dt_bias = y + ARRAY / 2 + 2 * WIDTH;
    op.y = y, op.y_gradient = y, op.states = op.state = states, op.scratch = scratch;
    op.qkv_gradient = x + ARRAY / 2, op.gates_gradient = y + ARRAY / 2 + 3 * WIDTH;
    op.a_log_gradient = states + ARRAY / 2, op.dt_bias_gradient = states + ARRAY / 2 + WIDTH;
    return op;
}

static struct device_route route_of(float *scores, float *y, float *gradient)
{
    struct device_route op = {};

    op.m = ROWS, op.n_experts = 128, op.n_chosen = 8;
    op.scores = scores, op.weights = y, op.numbers = (uint32_t *)y + ROWS * 8;
    op.weights_gradient = y + ARRAY / 2, op.scores_gradient = gradient;
    return op;
}

/* Memory is zeros, so that each token has the first of two experts. */
static struct device_experts experts_of(float *x, float *y, float *weights, float *gradients)
{
    struct device_experts op = {};

    op.m = ROWS, op.n = 64, op.inner = 32, op.n_experts = 2, op.n_chosen = 1;
    op.x = x, op.y = x + ARRAY / 4, op.y_gradient = x + ARRAY / 2, op.x_gradient = x + 3 * ARRAY / 4;
    op.weights = y, op.numbers = (uint32_t *)y + ROWS, op.weights_gradient = y + 2 * ROWS, op.scratch = y + ARRAY / 4;
    op.gate = weights, op.up = weights + ARRAY / 4, op.down = weights + ARRAY / 2;
    op.gate_gradient = gradients, op.up_gradient = gradients + ARRAY / 4, op.down_gradient = gradients + ARRAY / 2;
    return op;
}

static struct device_conv2d conv2d_of(const float *x, const float *weight, float *y)
{
    struct device_conv2d op = {};

    op.n_rows = 2, op.height = op.width = 8, op.n_in = 64, op.n_out = 64, op.n_groups = 1;
    op.window.height = op.window.width = 3, op.window.stride = op.window.padding = 1;
    op.x = x, op.weight = weight, op.y = y;
    return op;
}

template <cudaError_t (*POOL)(const struct cuda_queue *, const struct device_pool *)>
static void pool(const struct cuda_queue *q, float *x, float *y, float *largest, float *)
{
    struct device_pool op = {};

    op.n_rows = 2, op.height = op.width = 8, op.n = 64, op.largest = (uint8_t *)largest;
    op.window.height = op.window.width = 3, op.window.stride = 2, op.window.padding = 1;
    op.x = op.x_gradient = x, op.y = y, op.y_gradient = y;
    OK(POOL(q, &op));
}

static struct device_embed embed_of(const void *ids)
{
    struct device_embed op = {};

    op.m = ROWS, op.n = WIDTH, op.n_table = 8, op.ids = (const uint32_t *)ids;
    return op;
}

static struct device_cross_entropy cross_entropy_of(float *running, float *logits, const void *labels)
{
    struct device_cross_entropy op = {};

    op.m = ROWS, op.n = op.logits_stride = WIDTH, op.start = true, op.scale = 1;
    op.logits = logits, op.labels = (const uint32_t *)labels, op.running = running;
    return op;
}

/* Where they are not 0: numbers in fp32 of 8 columns are two packs, each of which takes half of its sectors (norm's and
 * positions' gradients, which are added onto what is there; a short convolution's slopes; a batch's moments and
 * statistics, for columns that a thread keeps); ids are sorted through memory; and of the gated delta rule gates, weights
 * and L are read as sums lie, and squares of sums are laid down and inverted. */
static const struct {
    const char *name;
    operation *run;
    unsigned long excess, conflicts;
} stated[] = {
    {"cuda_add_bias", [](auto q, auto x, auto y, auto, auto) { OK(cuda_add_bias(q, x, WIDTH, y, ROWS, WIDTH)); }, 0, 0},
    {"cuda_activate_rows",
     [](auto q, auto x, auto y, auto, auto) { OK(cuda_activate_rows(q, x, y, WIDTH, ROWS, WIDTH, MODEL_GELU_NEW)); }, 0,
     0},
    {"cuda_activation_gradient",
     [](auto q, auto x, auto y, auto, auto) {
         OK(cuda_activation_gradient(q, x, y, WIDTH, ROWS, WIDTH, MODEL_GELU_NEW, NULL));
     },
     0, 0},
    {"cuda_dropout_add",
     [](auto q, auto x, auto y, auto z, auto) {
         const struct device_dropout_add op = {1, ROWS, WIDTH, WIDTH, y, z, x, keeps};
         OK(cuda_dropout_add(q, &op));
     },
     0, 0},
    {"cuda_to_half",
     [](auto q, auto x, auto y, auto, auto) { OK(cuda_to_half(q, q->type, (uint16_t *)x, y, ROWS * WIDTH)); }, 0, 0},
    {"cuda_reduce_rows",
     [](auto q, auto x, auto y, auto, auto) {
         const struct device_reduce_rows op = {x, y, ROWS, WIDTH, WIDTH};
         OK(cuda_reduce_rows(q, &op));
     },
     0, 0},
    {"cuda_norm",
     [](auto q, auto x, auto y, auto z, auto w) {
         struct device_norm op = norm_of(x, y, z, w);
         OK(cuda_norm(q, &op));
     },
     0, 0},
    {"cuda_norm_backward",
     [](auto q, auto x, auto y, auto z, auto w) {
         struct device_norm op = norm_of(x, y + ARRAY / 2, z + 2 * WIDTH, w);
         op.y_gradient = y, op.x_gradient = x, op.weight_gradient = z, op.bias_gradient = z + WIDTH;
         OK(cuda_norm_backward(q, &op));
     },
     768, 0},
    {"cuda_row_moments",
     [](auto q, auto x, auto y, auto, auto) {
         const auto op = row_moments_of(x, y, NULL, NULL);
         OK(cuda_row_moments(q, &op));
     },
     0, 0},
    {"cuda_row_moments_backward",
     [](auto q, auto x, auto y, auto z, auto w) {
         const auto op = row_moments_of(x, y, z, w);
         OK(cuda_row_moments_backward(q, &op));
     },
     768, 0},
    {"cuda_join_moments",
     [](auto q, auto x, auto y, auto, auto) {
         const auto op = join_moments_of(x, y, NULL, NULL);
         OK(cuda_join_moments(q, &op));
     },
     0, 0},
    {"cuda_join_moments_backward",
     [](auto q, auto x, auto y, auto z, auto w) {
         const auto op = join_moments_of(x, y, z, w);
         OK(cuda_join_moments_backward(q, &op));
     },
     0, 0},
    {"cuda_batch_norm",
     [](auto q, auto x, auto y, auto z, auto w) {
         const auto op = batch_norm_of(x, y, z, w);
         OK(cuda_batch_norm(q, &op));
     },
     256, 0},
    {"cuda_batch_norm_backward",
     [](auto q, auto x, auto y, auto z, auto w) {
         const auto op = batch_norm_of(x, y, z, w);
         OK(cuda_batch_norm_backward(q, &op));
     },
     256, 0},
    {"cuda_running_statistics",
     [](auto q, auto x, auto y, auto z, auto) {
         struct device_running op = {};
         op.n = WIDTH, op.mean = x, op.variance = y, op.statistics = z;
         OK(cuda_running_statistics(q, &op));
     },
     0, 0},
    {"cuda_running_gradient",
     [](auto q, auto x, auto y, auto z, auto) {
         struct device_running op = {};
         op.n = WIDTH, op.mean_gradient = x, op.variance_gradient = y, op.statistics = z;
         OK(cuda_running_gradient(q, &op));
     },
     0, 0},
    {"cuda_dynamic_conv",
     [](auto q, auto x, auto y, auto z, auto w) {
         struct device_dynamic_conv op = dynamic_conv_of(x, y, w);
         op.y = z;
         OK(cuda_dynamic_conv(q, &op));
     },
     0, 0},
    {"cuda_dynamic_conv_backward",
     [](auto q, auto x, auto y, auto z, auto w) {
         struct device_dynamic_conv op = dynamic_conv_of(x, y, w);
         op.y_gradient = z, op.x_gradient = z + ARRAY / 2, op.scores_gradient = y + ARRAY / 2;
         OK(cuda_dynamic_conv_backward(q, &op));
     },
     0, 0},
    {"cuda_split",
     [](auto q, auto x, auto y, auto z, auto) {
         const struct device_split op = {ROWS, 4, 128, 256, x, y, z};
         OK(cuda_split(q, &op));
     },
     0, 0},
    {"cuda_join",
     [](auto q, auto x, auto y, auto z, auto) {
         const struct device_split op = {ROWS, 4, 128, 256, x, y, z};
         OK(cuda_join(q, &op));
     },
     0, 0},
    {"cuda_head_gate",
     [](auto q, auto x, auto y, auto z, auto) {
         const auto op = head_gate_of(x, y, z);
         OK(cuda_head_gate(q, &op));
     },
     0, 0},
    {"cuda_head_gate_backward",
     [](auto q, auto x, auto y, auto z, auto) {
         const auto op = head_gate_of(x, y, z);
         OK(cuda_head_gate_backward(q, &op));
     },
     0, 0},
    {"cuda_short_conv",
     [](auto q, auto x, auto y, auto z, auto) {
         struct device_short_conv op = short_conv_of(x, y);
         op.y = z;
         OK(cuda_short_conv(q, &op));
     },
     0, 0},
    {"cuda_short_conv_backward",
     [](auto q, auto x, auto y, auto z, auto w) {
         struct device_short_conv op = short_conv_of(x, y);
         op.y_gradient = z, op.x_gradient = z + ARRAY / 2, op.slopes = w;
         op.weight_gradient = y + WIDTH, op.bias_gradient = y + 4 * WIDTH;
         OK(cuda_short_conv_backward(q, &op));
     },
     288, 0},
    {"cuda_short_conv_cached",
     [](auto q, auto x, auto y, auto z, auto w) {
         struct device_short_conv op = short_conv_of(x, y);
         op.y = z, op.tail = w;
         OK(cuda_short_conv_cached(q, &op));
     },
     0, 0},
    {"cuda_gated_delta",
     [](auto q, auto x, auto y, auto z, auto w) {
         const struct device_gated_delta op = gated_delta_of(x, y, z, w);
         OK(cuda_gated_delta(q, &op));
     },
     28, 1120},
    {"cuda_gated_delta_backward",
     [](auto q, auto x, auto y, auto z, auto w) {
         const struct device_gated_delta op = gated_delta_of(x, y, z, w);
         OK(cuda_gated_delta_backward(q, &op));
     },
     898, 5728},
    {"cuda_gated_delta_cached",
     [](auto q, auto x, auto y, auto z, auto w) {
         const struct device_gated_delta op = gated_delta_of(x, y, z, w);
         OK(cuda_gated_delta_cached(q, &op));
     },
     0, 0},
    {"cuda_route",
     [](auto q, auto x, auto y, auto z, auto) {
         const struct device_route op = route_of(x, y, z);
         OK(cuda_route(q, &op));
     },
     0, 0},
    {"cuda_route_backward",
     [](auto q, auto x, auto y, auto z, auto) {
         const struct device_route op = route_of(x, y, z);
         OK(cuda_route_backward(q, &op));
     },
     0, 0},
    {"cuda_experts",
     [](auto q, auto x, auto y, auto z, auto w) {
         const struct device_experts op = experts_of(x, y, z, w);
         OK(cuda_experts(q, &op));
     },
     8, 0},
    {"cuda_experts_backward",
     [](auto q, auto x, auto y, auto z, auto w) {
         const struct device_experts op = experts_of(x, y, z, w);
         OK(cuda_experts_backward(q, &op));
     },
     12, 0},
    {"cuda_conv2d",
     [](auto q, auto x, auto y, auto z, auto) {
         const struct device_conv2d op = conv2d_of(x, y, z);
         OK(cuda_conv2d(q, &op));
     },
     0, 0},
    {"cuda_conv2d_input_gradient",
     [](auto q, auto x, auto y, auto z, auto w) {
         struct device_conv2d op = conv2d_of(x, y, z);
         op.y_gradient = z, op.x_gradient = w;
         OK(cuda_conv2d_input_gradient(q, &op));
     },
     0, 0},
    {"cuda_conv2d_weight_gradient",
     [](auto q, auto x, auto y, auto z, auto w) {
         struct device_conv2d op = conv2d_of(x, y, z);
         op.y_gradient = z, op.weight_gradient = w;
         OK(cuda_conv2d_weight_gradient(q, &op));
     },
     0, 0},
    {"cuda_max_pool", pool<cuda_max_pool>, 0, 0},
    {"cuda_max_pool_backward", pool<cuda_max_pool_backward>, 0, 0},
    {"cuda_average_pool", pool<cuda_average_pool>, 0, 0},
    {"cuda_average_pool_backward", pool<cuda_average_pool_backward>, 0, 0},
    {"cuda_embed",
     [](auto q, auto x, auto y, auto z, auto) {
         struct device_embed op = embed_of(z);
         op.table = y, op.y = x;
         OK(cuda_embed(q, &op));
     },
     0, 0},
    {"cuda_pixels",
     [](auto q, auto x, auto, auto z, auto) {
         struct device_pixels op = {};
         op.m = ROWS, op.n = 3, op.ids = (const uint32_t *)z, op.y = x;
         OK(cuda_pixels(q, &op));
     },
     0, 0},
    {"cuda_embed_backward",
     [](auto q, auto x, auto y, auto z, auto) {
         struct device_embed op = embed_of(z);
         op.y_gradient = y, op.table_gradient = x;
         OK(cuda_embed_backward(q, &op));
     },
     257, 0},
    {"cuda_position",
     [](auto q, auto x, auto y, auto, auto) {
         const struct device_position op = {1, ROWS, WIDTH, y, false, x, NULL, NULL};
         OK(cuda_position(q, &op, 0, ROWS));
     },
     0, 0},
    {"cuda_position_backward",
     [](auto q, auto x, auto y, auto, auto) {
         const struct device_position op = {1, ROWS, WIDTH, NULL, false, NULL, y, x};
         OK(cuda_position_backward(q, &op));
     },
     768, 0},
    {"cuda_add",
     [](auto q, auto x, auto y, auto, auto) {
         const struct device_add op = {x, y, ROWS * WIDTH};
         OK(cuda_add(q, &op));
     },
     0, 0},
    {"cuda_row_norms",
     [](auto q, auto x, auto y, auto, auto) {
         const struct device_row_norms op = {ROWS, WIDTH, WIDTH, x, y, false, 0, 0};
         OK(cuda_row_norms(q, &op));
     },
     0, 0},
    {"cuda_weigh_scores",
     [](auto q, auto x, auto y, auto, auto) {
         const struct device_weigh_scores op = {ROWS, WIDTH, WIDTH, (const uint16_t *)x, y};
         OK(cuda_weigh_scores(q, &op));
     },
     0, 0},
    {"cuda_choose_rows",
     [](auto q, auto x, auto y, auto z, auto) {
         struct device_choose_rows op = {};
         op.n_rows = 2, op.n_tokens = 1024, op.n_chosen = 256;
         op.scores = x, op.weights = y, op.chosen = (uint32_t *)z;
         OK(cuda_choose_rows(q, &op));
     },
     0, 20096},
    {"cuda_gather_rows",
     [](auto q, auto x, auto y, auto z, auto) {
         const struct device_gather_rows op = {ROWS, WIDTH, WIDTH, ROWS, x, (uint32_t *)z, NULL, y};
         OK(cuda_gather_rows(q, &op));
     },
     0, 0},
    {"cuda_scatter",
     [](auto q, auto x, auto y, auto z, auto) {
         const struct device_sparse op = {ROWS, WIDTH, ROWS * WIDTH, (uint32_t *)z, (uint32_t *)z, x, y, false};
         OK(cuda_scatter(q, &op));
     },
     0, 0},
    {"cuda_gather",
     [](auto q, auto x, auto y, auto z, auto) {
         const struct device_sparse op = {ROWS, WIDTH, ROWS * WIDTH, (uint32_t *)z, (uint32_t *)z, x, y, false};
         OK(cuda_gather(q, &op));
     },
     0, 0},
    {"cuda_compress",
     [](auto q, auto x, auto y, auto, auto) {
         const struct device_compress op = {ROWS, WIDTH, 8, x, (uint8_t *)y, {{1, 2}}, 0};
         OK(cuda_compress(q, &op));
     },
     0, 0},
    {"cuda_expand",
     [](auto q, auto x, auto y, auto, auto) {
         const struct device_expand op = {ROWS, WIDTH, 4, (const uint8_t *)y, x};
         OK(cuda_expand(q, &op));
     },
     0, 0},
    {"cuda_round_values",
     [](auto q, auto x, auto, auto, auto) {
         const struct device_round_values op = {ROWS, WIDTH, 8, x, {{1, 2}}, 0};
         OK(cuda_round_values(q, &op));
     },
     0, 0},
    {"cuda_soft_cap",
     [](auto q, auto x, auto, auto, auto) {
         const struct device_soft_cap op = {x, ROWS * WIDTH, 30};
         OK(cuda_soft_cap(q, &op));
     },
     0, 0},
    {"cuda_log_sum_exp",
     [](auto q, auto x, auto y, auto z, auto) {
         const struct device_cross_entropy op = cross_entropy_of(x, y, z);
         OK(cuda_log_sum_exp(q, &op));
     },
     0, 0},
    {"cuda_cross_entropy_gradient",
     [](auto q, auto x, auto y, auto z, auto) {
         const struct device_cross_entropy op = cross_entropy_of(x, y, z);
         OK(cuda_cross_entropy_gradient(q, &op));
     },
     0, 0},
    {"cuda_attention, heads of 64",
     [](auto q, auto x, auto y, auto z, auto w) {
         const auto op = attention_of(x, y, z, w, 64);
         OK(cuda_attention(q, &op));
     },
     0, 0},
    {"cuda_attention, heads of 128",
     [](auto q, auto x, auto y, auto z, auto w) {
         const auto op = attention_of(x, y, z, w, 128);
         OK(cuda_attention(q, &op));
     },
     0, 0},
    {"cuda_attention_backward, heads of 64",
     [](auto q, auto x, auto y, auto z, auto w) {
         const auto op = attention_of(x, y, z, w, 64);
         OK(cuda_attention_backward(q, &op));
     },
     0, 0},
    {"cuda_attention_backward, heads of 128",
     [](auto q, auto x, auto y, auto z, auto w) {
         const auto op = attention_of(x, y, z, w, 128);
         OK(cuda_attention_backward(q, &op));
     },
     0, 0},
};
enum { N_STATED = sizeof stated / sizeof *stated };

/* In bf16. */
static void check(int i)
{
    const auto &s = stated[i];
    float *const memory = on_device<float>(4 * ARRAY);

    const cudasim_accesses a = accesses_of([&](cudaStream_t stream, float *) {
        const struct cuda_queue q = {stream, NUMBER_BF16, 2, on_device<char>(PLAN_CUDA_SCRATCH_BYTES)};
        OK(cudaMemsetAsync(memory, 0, 4 * ARRAY * sizeof *memory, stream));
        s.run(&q, memory, memory + ARRAY, memory + 2 * ARRAY, memory + 3 * ARRAY);
        OK(cudaFree(q.scratch));
    });
    ck_assert_uint_gt(a.global, 0);
    ck_assert_msg(a.excess <= s.excess && a.conflicts <= s.conflicts,
                  "%s: %lu sectors in excess of %lu, %lu conflicts of %lu accesses", s.name, a.excess, a.sectors,
                  a.conflicts, a.shared);
    OK(cudaFree(memory));
}

TEST(no_kernel_touches_memory_worse_than_is_stated)
{
    for (int i = 0; i < N_STATED; i++)
        check(i);
}
