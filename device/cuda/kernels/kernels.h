/* device/cuda/kernels/kernels.h - launchers of the CUDA kernels.
 *
 * Each queues one operation of proto/operation/device.h on a stream and returns the launch's status; it neither waits
 * nor allocates. All are deterministic: no sum depends on the order of blocks. Views whose address or stride is not a
 * multiple of 16 bytes are supported, more slowly.
 *
 * The launchers are in .cu files for any C++ compiler that has the runtime's header: nvcc, or another one with the
 * stand-in of tests/sim. */
#ifndef DEVICE_CUDA_KERNELS_KERNELS_H
#define DEVICE_CUDA_KERNELS_KERNELS_H

#include "proto/operation/device.h"
#include "proto/operation/backend.h"

#include <cuda_runtime_api.h>

struct cuda_queue {
    cudaStream_t stream;
    enum number_type type; /* type of values */
    unsigned n_processors; /* streaming multiprocessors */
    /* (PLAN_CUDA_SCRATCH_BYTES) partial sums of kernels that sum over rows. One buffer is enough, as kernels of the
     * compute queue run one after another. */
    void *scratch;
};

/* Operations that are one launcher, cuda_NAME, and nothing else: rows of proto/operation/calls.h. */
#define CUDA_LAUNCHERS(X)                                                                                              \
    X(decode, device_decode)                                                                                           \
    X(scatter, device_sparse)                                                                                          \
    X(gather, device_sparse)                                                                                           \
    X(activate, device_activate)                                                                                       \
    X(activate_backward, device_activate)                                                                              \
    X(add, device_add)                                                                                                 \
    X(reduce_rows, device_reduce_rows)                                                                                 \
    X(row_norms, device_row_norms)                                                                                     \
    X(weigh_scores, device_weigh_scores)                                                                               \
    X(choose_rows, device_choose_rows)                                                                                 \
    X(gather_rows, device_gather_rows)                                                                                 \
    X(compress, device_compress)                                                                                       \
    X(expand, device_expand)                                                                                           \
    X(round_values, device_round_values)                                                                               \
    X(norm, device_norm)                                                                                               \
    X(norm_backward, device_norm)                                                                                      \
    X(row_moments, device_row_moments)                                                                                 \
    X(row_moments_backward, device_row_moments)                                                                        \
    X(join_moments, device_join_moments)                                                                               \
    X(join_moments_backward, device_join_moments)                                                                      \
    X(batch_norm, device_batch_norm)                                                                                   \
    X(running_statistics, device_running)                                                                              \
    X(running_gradient, device_running)                                                                                \
    X(batch_norm_backward, device_batch_norm)                                                                          \
    X(rope, device_rope)                                                                                               \
    X(sinusoid, device_sinusoid)                                                                                       \
    X(regroup, device_regroup)                                                                                         \
    X(split, device_split)                                                                                             \
    X(join, device_split)                                                                                              \
    X(glu, device_glu)                                                                                                 \
    X(glu_backward, device_glu)                                                                                        \
    X(head_gate, device_head_gate)                                                                                     \
    X(head_gate_backward, device_head_gate)                                                                            \
    X(xielu, device_xielu)                                                                                             \
    X(xielu_backward, device_xielu)                                                                                    \
    X(attention_cached, device_attention_cached)                                                                       \
    X(dynamic_conv, device_dynamic_conv)                                                                               \
    X(dynamic_conv_backward, device_dynamic_conv)                                                                      \
    X(short_conv, device_short_conv)                                                                                   \
    X(short_conv_backward, device_short_conv)                                                                          \
    X(short_conv_cached, device_short_conv)                                                                            \
    X(gated_delta, device_gated_delta)                                                                                 \
    X(gated_delta_backward, device_gated_delta)                                                                        \
    X(gated_delta_cached, device_gated_delta)                                                                          \
    X(route, device_route)                                                                                             \
    X(route_backward, device_route)                                                                                    \
    X(experts, device_experts)                                                                                         \
    X(experts_backward, device_experts)                                                                                \
    X(max_pool, device_pool)                                                                                           \
    X(max_pool_backward, device_pool)                                                                                  \
    X(average_pool, device_pool)                                                                                       \
    X(average_pool_backward, device_pool)                                                                              \
    X(sum_blocks, device_sum_blocks)                                                                                   \
    X(dropout_add, device_dropout_add)                                                                                 \
    X(pixels, device_pixels)                                                                                           \
    X(embed_backward, device_embed)                                                                                    \
    X(position_backward, device_position)                                                                              \
    X(soft_cap, device_soft_cap)                                                                                       \
    X(log_sum_exp, device_cross_entropy)                                                                               \
    X(loss, device_loss)                                                                                               \
    X(cross_entropy_gradient, device_cross_entropy)                                                                    \
    X(preference, device_preference)                                                                                   \
    X(squared_error, device_squared_error)                                                                             \
    X(squared_error_gradient, device_squared_error)

#ifdef __cplusplus
extern "C" {
#endif

#define CUDA_DECLARE(name, type) cudaError_t cuda_##name(const struct cuda_queue *, const struct type *);
CUDA_LAUNCHERS(CUDA_DECLARE)
#undef CUDA_DECLARE

/* attention.cu, attention_backward.cu: where cuDNN does not compute it. */
cudaError_t cuda_attention(const struct cuda_queue *q, const struct device_attention *op);
cudaError_t cuda_attention_backward(const struct cuda_queue *q, const struct device_attention *op);

/* conv2d.cu: the same. */
cudaError_t cuda_conv2d(const struct cuda_queue *q, const struct device_conv2d *op);
cudaError_t cuda_conv2d_input_gradient(const struct cuda_queue *q, const struct device_conv2d *op);
cudaError_t cuda_conv2d_weight_gradient(const struct cuda_queue *q, const struct device_conv2d *op);

/* embed.cu, rows.cu. Tables must be readable by the device. Positions: tokens first .. first + n_table - 1 of every
 * row; op's table holds only these. */
cudaError_t cuda_embed(const struct cuda_queue *q, const struct device_embed *op);
cudaError_t cuda_position(const struct cuda_queue *q, const struct device_position *op, size_t first, size_t n_table);

/* round.cu: to (n) = from (n), rounded to a type of 16 bits. */
cudaError_t cuda_to_half(const struct cuda_queue *q, enum number_type type, uint16_t *to, const float *from, size_t n);

/* elementwise.cu. Epilogues that cuBLASLt does not fuse, of c (m, n, stride c_stride). */
cudaError_t cuda_add_bias(const struct cuda_queue *q, void *c, size_t c_stride, const void *bias, size_t m, size_t n);
/* c = act(pre); pre and c have the same stride, and pre includes the bias. */
cudaError_t cuda_activate_rows(const struct cuda_queue *q, void *c, const void *pre, size_t stride, size_t m, size_t n,
                               enum model_activation activation);
/* c *= act'(pre), and sums (n) += the sum over its rows, unless it is NULL. */
cudaError_t cuda_activation_gradient(const struct cuda_queue *q, void *c, const void *pre, size_t stride, size_t m,
                                     size_t n, enum model_activation activation, float *sums);

#ifdef __cplusplus
}
#endif

#endif
