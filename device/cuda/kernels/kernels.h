/* device/cuda/kernels/kernels.h - launchers of the CUDA kernels.
 *
 * Each queues one operation of proto/operation/device.h on a stream and returns the launch's status; it neither waits nor
 * allocates. All are deterministic: no sum depends on the order of blocks. Views whose address or stride is not a
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
    enum number_type type; /* of values */
    unsigned n_processors; /* streaming multiprocessors */
    /* (PLAN_CUDA_SCRATCH_BYTES) partial sums of kernels that sum over rows. One buffer is enough, as kernels of the
     * compute queue run one after another. */
    void *scratch;
};

#ifdef __cplusplus
extern "C" {
#endif

/* elementwise.cu. Epilogues that cuBLASLt does not fuse, of c (m, n, stride c_stride). */
cudaError_t cuda_add_bias(const struct cuda_queue *q, void *c, size_t c_stride, const void *bias, size_t m, size_t n);
/* c = act(pre); pre and c have the same stride, and pre includes the bias. */
cudaError_t cuda_activate_rows(const struct cuda_queue *q, void *c, const void *pre, size_t stride, size_t m, size_t n,
                               enum model_activation activation);
/* c *= act'(pre). */
cudaError_t cuda_activation_gradient(const struct cuda_queue *q, void *c, const void *pre, size_t stride, size_t m,
                                     size_t n, enum model_activation activation);
cudaError_t cuda_activate(const struct cuda_queue *q, const struct device_activate *op);
cudaError_t cuda_activate_backward(const struct cuda_queue *q, const struct device_activate *op);
cudaError_t cuda_dropout_add(const struct cuda_queue *q, const struct device_dropout_add *op);
/* to (n) = from (n) to bf16. */
cudaError_t cuda_to_bf16(const struct cuda_queue *q, uint16_t *to, const float *from, size_t n);

/* rows.cu */
cudaError_t cuda_reduce_rows(const struct cuda_queue *q, const struct device_reduce_rows *op);

/* norm.cu */
cudaError_t cuda_norm(const struct cuda_queue *q, const struct device_norm *op);
cudaError_t cuda_norm_backward(const struct cuda_queue *q, const struct device_norm *op);

/* rope.cu */
cudaError_t cuda_rope(const struct cuda_queue *q, const struct device_rope *op);

/* elementwise.cu */
cudaError_t cuda_glu(const struct cuda_queue *q, const struct device_glu *op);
cudaError_t cuda_glu_backward(const struct cuda_queue *q, const struct device_glu *op);
cudaError_t cuda_add(const struct cuda_queue *q, const struct device_add *op);
cudaError_t cuda_soft_cap(const struct cuda_queue *q, const struct device_soft_cap *op);

/* embed.cu. Tables must be readable by the device. */
cudaError_t cuda_embed(const struct cuda_queue *q, const struct device_embed *op);
cudaError_t cuda_embed_backward(const struct cuda_queue *q, const struct device_embed *op);

/* Tokens first .. first + n_table - 1 of every row; op's table holds only these. */
cudaError_t cuda_position(const struct cuda_queue *q, const struct device_position *op, size_t first, size_t n_table);
cudaError_t cuda_position_backward(const struct cuda_queue *q, const struct device_position *op);

/* softmax.cu */
cudaError_t cuda_log_sum_exp(const struct cuda_queue *q, const struct device_cross_entropy *op);
cudaError_t cuda_loss(const struct cuda_queue *q, const struct device_loss *op);
cudaError_t cuda_cross_entropy_gradient(const struct cuda_queue *q, const struct device_cross_entropy *op);
cudaError_t cuda_squared_error(const struct cuda_queue *q, const struct device_squared_error *op);
cudaError_t cuda_squared_error_gradient(const struct cuda_queue *q, const struct device_squared_error *op);

/* attention.cu, attention_backward.cu, attention_cached.cu */
cudaError_t cuda_attention(const struct cuda_queue *q, const struct device_attention *op);
cudaError_t cuda_attention_backward(const struct cuda_queue *q, const struct device_attention *op);
cudaError_t cuda_attention_cached(const struct cuda_queue *q, const struct device_attention_cached *op);

#ifdef __cplusplus
}
#endif

#endif
