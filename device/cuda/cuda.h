/* device/cuda/cuda.h - one CUDA device: what the files of this backend share. */
#ifndef DEVICE_CUDA_CUDA_H
#define DEVICE_CUDA_CUDA_H

#include "device/cuda/kernels.h"

#include <cublasLt.h>

/* cuBLASLt's, within library_bytes. */
enum { CUDA_WORKSPACE_BYTES = 32 << 20 };

struct cuda_matmul; /* chosen algorithms, by shape: matmul.c */
struct cuda_dnn;    /* cuDNN and its plans: dnn.c */

struct device {
    unsigned index;
    enum number_type type;
    char *arena;
    struct cuda_queue queue; /* of DEVICE_COMPUTE: what launchers take */
    cudaStream_t streams[DEVICE_QUEUES];
    cublasLtHandle_t blas;
    void *workspace; /* (CUDA_WORKSPACE_BYTES) */
    struct cuda_matmul *matmul;
    struct cuda_dnn *dnn; /* NULL: no library was found, or it cannot what is asked: our own kernels */
    cudaError_t failed;   /* the first fault; told by finish and sync */
};

/* Keeps the first fault. */
static inline void cuda_note(struct device *dev, cudaError_t rc)
{
    if (rc != cudaSuccess && dev->failed == cudaSuccess)
        dev->failed = rc;
}

/* matmul.c: the products. Handle and workspace are the device's. -ENOMEM. Undo: cuda_matmul_close, safe on NULL. */
int cuda_matmul_open(struct device *dev);
void cuda_matmul_close(struct device *dev);
void cuda_matmul(struct device *dev, const struct device_matmul *op);

/* dnn.c: looks for cuDNN (EPS_CUDNN=DIR, then the usual places) and sets dev->dnn, or leaves it NULL; *why says, for the
 * log, what was found or is missing (a constant or the device's). Undo: cuda_dnn_close, safe without. */
void cuda_dnn_open(struct device *dev, const char **why);
void cuda_dnn_close(struct device *dev);
/* False: not computed, our own kernel must. Takes no more scratch than op->scratch has. */
bool cuda_dnn_attention(struct device *dev, const struct device_attention *op);
bool cuda_dnn_attention_backward(struct device *dev, const struct device_attention *op);

#endif
