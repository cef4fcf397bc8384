/* device/cuda/matmul.c - products by cuBLASLt.
 *
 * Its matrices are column-major: ours, read so, are their own transposes, and c' = op(b)' op(a)'. What a product needs -
 * descriptors and the library's first choice of an algorithm - is found out once per shape and kept in a table that
 * never grows.
 *
 * That choice depends on the shape alone: alignment is told to the library up to 16 bytes, which all of its kernels
 * can use, so that a block's place in the arena changes nothing. Parts of a sum over k are never added up in bf16; in
 * products with beta 0 there is one part, so that the order depends on k alone.
 *
 * Fused are the bias, always, and for bf16 the gradient of the tanh form of GELU. Not its forward: the library takes it
 * of the sum before that is rounded to `pre`, from which it could not be computed anew. */
#include "device/cuda/cuda.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { SHAPES = 128, ALIGNMENT = 16 };

/* Compared as bytes. */
struct key {
    uint64_t m, n, k, a_stride, b_stride, c_stride;
    uint32_t transpose_a, transpose_b, wide, accumulate, epilogue;
    uint32_t a_alignment, b_alignment, c_alignment, bias_alignment, reserved;
};

struct shape {
    struct key key; /* m 0: unused */
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
    cublasLtEpilogue_t epilogue; /* what is fused */
};

struct cuda_matmul {
    unsigned next; /* to be replaced: the oldest */
    struct shape shapes[SHAPES];
};

int cuda_matmul_open(struct device *dev)
{
    dev->matmul = calloc(1, sizeof *dev->matmul);
    return dev->matmul ? 0 : -ENOMEM;
}

void cuda_matmul_close(struct device *dev)
{
    free(dev->matmul);
    dev->matmul = NULL;
}

static uint32_t alignment_of(const void *at)
{
    const uintptr_t bits = (uintptr_t)at | ALIGNMENT;

    return (uint32_t)(bits & -bits);
}

static cublasLtEpilogue_t fused(const struct device *dev, const struct device_matmul *op)
{
    switch (op->epilogue) {
    case DEVICE_NO_EPILOGUE:
        break;
    case DEVICE_BIAS:
    case DEVICE_BIAS_ACTIVATION:
        return CUBLASLT_EPILOGUE_BIAS;
    case DEVICE_ACTIVATION_GRADIENT:
        if (dev->type == NUMBER_BF16 && op->activation == MODEL_GELU_NEW && op->c_stride % 8 == 0 &&
            alignment_of(op->pre) == ALIGNMENT)
            return CUBLASLT_EPILOGUE_DGELU;
        break;
    }
    return CUBLASLT_EPILOGUE_DEFAULT;
}

/* Where the product itself goes. */
static void *product_of(const struct device_matmul *op)
{
    return op->epilogue == DEVICE_BIAS_ACTIVATION ? op->pre : op->c;
}

static struct key key_of(const struct device_matmul *op, cublasLtEpilogue_t epilogue)
{
    return (struct key){
        .m = op->m,
        .n = op->n,
        .k = op->k,
        .a_stride = op->a_stride,
        .b_stride = op->b_stride,
        .c_stride = op->c_stride,
        .transpose_a = op->transpose_a,
        .transpose_b = op->transpose_b,
        .wide = op->wide,
        .accumulate = op->beta != 0,
        .epilogue = epilogue,
        .a_alignment = alignment_of(op->a),
        .b_alignment = alignment_of(op->b),
        .c_alignment = alignment_of(product_of(op)),
        .bias_alignment = epilogue == CUBLASLT_EPILOGUE_BIAS ? alignment_of(op->bias) : 0,
    };
}

static bool set(struct shape *s, cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes)
{
    return cublasLtMatmulDescSetAttribute(&s->product, attribute, value, bytes) == CUBLAS_STATUS_SUCCESS;
}

static bool set_bias(struct shape *s, const void *bias)
{
    return set(s, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
}

static bool set_pre(struct shape *s, const void *pre, size_t stride)
{
    const int64_t ld = (int64_t)stride;

    return set(s, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &pre, sizeof pre) &&
           set(s, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, sizeof ld);
}

/* The library's a is our b, and the other way round. Of bias and pre it wants to know how they are aligned. */
static bool describe(struct shape *s, const struct device *dev)
{
    const struct key *key = &s->key;
    const cudaDataType type = dev->type == NUMBER_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    const cublasOperation_t a = key->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                            b = key->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const uint64_t m = key->m, n = key->n, k = key->k;
    bool ok = cublasLtMatmulDescInit(&s->product, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
              set(s, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a) && set(s, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b) &&
              cublasLtMatrixLayoutInit(&s->a, type, key->transpose_b ? k : n, key->transpose_b ? n : k,
                                       (int64_t)key->b_stride) == CUBLAS_STATUS_SUCCESS &&
              cublasLtMatrixLayoutInit(&s->b, type, key->transpose_a ? m : k, key->transpose_a ? k : m,
                                       (int64_t)key->a_stride) == CUBLAS_STATUS_SUCCESS &&
              cublasLtMatrixLayoutInit(&s->c, key->wide ? CUDA_R_32F : type, n, m, (int64_t)key->c_stride) ==
                  CUBLAS_STATUS_SUCCESS;

    if (s->epilogue != CUBLASLT_EPILOGUE_DEFAULT)
        ok = ok && set(s, CUBLASLT_MATMUL_DESC_EPILOGUE, &s->epilogue, sizeof s->epilogue);
    if (s->epilogue == CUBLASLT_EPILOGUE_BIAS)
        ok = ok && set_bias(s, (const void *)(uintptr_t)key->bias_alignment);
    if (s->epilogue == CUBLASLT_EPILOGUE_DGELU)
        ok = ok && set_pre(s, (const void *)(uintptr_t)ALIGNMENT, key->c_stride);
    return ok;
}

static bool prefer(cublasLtMatmulPreferenceOpaque_t *preference, cublasLtMatmulPreferenceAttributes_t attribute,
                   uint32_t value)
{
    return cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value) == CUBLAS_STATUS_SUCCESS;
}

/* The library's first choice. */
static bool choose(struct shape *s, const struct device *dev)
{
    const struct key *key = &s->key;
    const size_t workspace = PLAN_CUDA_WORKSPACE_BYTES;
    const uint32_t schemes = key->accumulate ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE;
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulHeuristicResult_t found;
    int n = 0;

    if (!describe(s, dev) || cublasLtMatmulPreferenceInit(&preference) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                             sizeof workspace) != CUBLAS_STATUS_SUCCESS ||
        !prefer(&preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes) ||
        !prefer(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key->b_alignment) ||
        !prefer(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key->a_alignment) ||
        !prefer(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key->c_alignment) ||
        !prefer(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key->c_alignment) ||
        cublasLtMatmulAlgoGetHeuristic(dev->blas, &s->product, &s->a, &s->b, &s->c, &s->c, &preference, 1, &found,
                                       &n) != CUBLAS_STATUS_SUCCESS ||
        n == 0 || found.state != CUBLAS_STATUS_SUCCESS)
        return false;
    s->algorithm = found.algo;
    return true;
}

/* NULL: the library refuses it, fused or not. What is not fused under a key that is, was refused. */
static struct shape *find(struct device *dev, const struct device_matmul *op)
{
    struct cuda_matmul *table = dev->matmul;
    const struct key key = key_of(op, fused(dev, op));

    for (struct shape *s = table->shapes; s < table->shapes + SHAPES; s++)
        if (memcmp(&s->key, &key, sizeof key) == 0)
            return s;
    struct shape *s = &table->shapes[table->next];
    *s = (struct shape){.key = key, .epilogue = (cublasLtEpilogue_t)key.epilogue};
    bool chosen = choose(s, dev);
    if (!chosen && s->epilogue != CUBLASLT_EPILOGUE_DEFAULT) {
        s->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
        chosen = choose(s, dev);
    }
    if (!chosen) {
        *s = (struct shape){0};
        return NULL;
    }
    table->next = (table->next + 1) % SHAPES;
    return s;
}

static void fail(struct device *dev, const struct device_matmul *op, cublasStatus_t status)
{
    if (dev->failed != cudaSuccess)
        return;
    snprintf(dev->failed_at, sizeof dev->failed_at, "cuBLASLt, product of (%zu, %zu) and (%zu, %zu) in %s, status %d",
             op->m, op->k, op->k, op->n, number_name(dev->type), (int)status);
    switch ((int)status) {
    case CUBLAS_STATUS_NOT_SUPPORTED:
        cuda_note(dev, cudaErrorNotSupported);
        break;
    case CUBLAS_STATUS_ALLOC_FAILED:
        cuda_note(dev, cudaErrorMemoryAllocation);
        break;
    default:
        cuda_note(dev, cudaPeekAtLastError());
        cuda_note(dev, cudaErrorLaunchFailure);
    }
}

/* What the product did not fuse. */
static cudaError_t follow_up(struct device *dev, const struct device_matmul *op, cublasLtEpilogue_t done)
{
    cudaError_t rc = cudaSuccess;

    switch (op->epilogue) {
    case DEVICE_NO_EPILOGUE:
        break;
    case DEVICE_BIAS:
    case DEVICE_BIAS_ACTIVATION:
        if (done != CUBLASLT_EPILOGUE_BIAS)
            rc = cuda_add_bias(&dev->queue, product_of(op), op->c_stride, op->bias, op->m, op->n);
        if (rc == cudaSuccess && op->epilogue == DEVICE_BIAS_ACTIVATION)
            rc = cuda_activate_rows(&dev->queue, op->c, op->pre, op->c_stride, op->m, op->n, op->activation);
        break;
    case DEVICE_ACTIVATION_GRADIENT:
        if (done != CUBLASLT_EPILOGUE_DGELU)
            rc = cuda_activation_gradient(&dev->queue, op->c, op->pre, op->c_stride, op->m, op->n, op->activation);
        break;
    }
    return rc;
}

void cuda_matmul(struct device *dev, const struct device_matmul *op)
{
    const float one = 1;
    void *c = product_of(op);

    assert((op->beta == 0 || op->beta == 1) && (op->epilogue == DEVICE_NO_EPILOGUE || (op->beta == 0 && !op->wide)));
    if (op->m == 0 || op->n == 0 || dev->failed != cudaSuccess)
        return;
    struct shape *s = find(dev, op);
    if (!s) {
        fail(dev, op, CUBLAS_STATUS_NOT_SUPPORTED);
        return;
    }
    bool ok = true;
    if (s->epilogue == CUBLASLT_EPILOGUE_BIAS)
        ok = set_bias(s, op->bias);
    if (s->epilogue == CUBLASLT_EPILOGUE_DGELU)
        ok = set_pre(s, op->pre, op->c_stride);
    const cublasStatus_t status =
        ok ? cublasLtMatmul(dev->blas, &s->product, &one, op->b, &s->a, op->a, &s->b, &op->beta, c, &s->c, c, &s->c,
                            &s->algorithm, dev->workspace, PLAN_CUDA_WORKSPACE_BYTES, dev->queue.stream)
           : CUBLAS_STATUS_INVALID_VALUE;
    if (status != CUBLAS_STATUS_SUCCESS)
        fail(dev, op, status);
    else
        cuda_note(dev, follow_up(dev, op, s->epilogue));
}
