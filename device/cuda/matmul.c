/* device/cuda/matmul.c - products by cuBLASLt.
 *
 * Its matrices are column-major. Read so, ours are their own transposes, and c' = op(b)' op(a)'. Descriptors and an
 * algorithm are found once per shape and kept in a table of fixed size. The algorithm is the one chosen for the
 * product's class (proto/operation/products.h) if it applies, else the library's first choice.
 *
 * The first choice depends on the shape alone: the library is told alignments of at most 16 bytes, which all of its
 * kernels accept, so the place in the arena does not matter. Parts of a sum over k are never added in 16 bits. With
 * beta 0 there is only one part, except for sums over rows, so the order depends on k alone. If the library has no such
 * algorithm, parts are added in fp32, in a fixed order. With beta 1 and a result in bf16 the library's kernels for
 * Hopper round the product before they add what is there: on an H100 257 + 1 is 256, as 257 is rounded to 256 first.
 * What they do in fp16 has not been tried.
 *
 * Only the bias is fused. GELU is not: the library would apply it to the unrounded sum, which recomputation from `pre`
 * could not reproduce. Nor is its gradient: on an H100 the library's product with it (width 4,096, bf16) takes 1.4
 * times as long as a plain one with a pass over its result (tools/bench/cuda). */
#include "device/cuda/cuda.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { SHAPES = 128, ALIGNMENT = 16 };

/* Compared as bytes. */
struct key {
    uint64_t m, n, k, a_stride, b_stride, c_stride;
    uint32_t transpose_a, transpose_b, wide, accumulate, adds_bias;
    uint32_t a_alignment, b_alignment, c_alignment, bias_alignment;
    uint32_t chosen; /* 1 + the class whose algorithm is used; 0: none */
};

struct shape {
    struct key key; /* m 0: unused entry */
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
    bool adds_bias; /* fused */
};

struct cuda_matmul {
    unsigned next; /* the oldest entry, replaced next */
    struct products products;
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

/* The largest power of two, up to ALIGNMENT, that divides the address. */
static uint32_t alignment_of(const void *at)
{
    const uintptr_t bits = (uintptr_t)at | ALIGNMENT;

    return (uint32_t)(bits & -bits);
}

static bool adds_bias(const struct device_matmul *op)
{
    return op->epilogue == DEVICE_BIAS || op->epilogue == DEVICE_BIAS_ACTIVATION;
}

/* Destination of the product itself. */
static void *matmul_product_of(const struct device_matmul *op)
{
    return op->epilogue == DEVICE_BIAS_ACTIVATION ? op->pre : op->c;
}

/* -1 in fp16, for which none are timed, and if an operand is aligned to less than every algorithm accepts. */
static int matmul_class_of(const struct device *dev, const struct device_matmul *op)
{
    const size_t some = ALIGNMENT / number_bytes(dev->type);
    const bool aligned = alignment_of(op->a) == ALIGNMENT && alignment_of(op->b) == ALIGNMENT &&
                         alignment_of(matmul_product_of(op)) == ALIGNMENT;

    if (dev->type == NUMBER_FP16 || !aligned || op->a_stride % some || op->b_stride % some || op->c_stride % some)
        return -1;
    return products_find(dev->type, op->transpose_a, op->transpose_b, op->m, op->n, op->k);
}

/* All that the library's choice could depend on, and nothing else: addresses count by their alignment alone. */
static struct key matmul_key_of(const struct device *dev, const struct device_matmul *op)
{
    const int class = matmul_class_of(dev, op);

    return (struct key){
        .chosen = class >= 0 && dev->matmul->products.of[class].known ? 1 + (uint32_t) class : 0,
        .m = op->m,
        .n = op->n,
        .k = op->k,
        .a_stride = op->a_stride,
        .b_stride = op->b_stride,
        .c_stride = op->c_stride,
        .transpose_a = op->transpose_a,
        .transpose_b = op->transpose_b,
        .wide = op->wide,
        .accumulate = op->over_rows || op->beta != 0,
        .adds_bias = adds_bias(op),
        .a_alignment = alignment_of(op->a),
        .b_alignment = alignment_of(op->b),
        .c_alignment = alignment_of(matmul_product_of(op)),
        .bias_alignment = adds_bias(op) ? alignment_of(op->bias) : 0,
    };
}

static bool matmul_set(struct shape *s, cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes)
{
    return cublasLtMatmulDescSetAttribute(&s->product, attribute, value, bytes) == CUBLAS_STATUS_SUCCESS;
}

static bool set_bias(struct shape *s, const void *bias)
{
    return matmul_set(s, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
}

static cudaDataType type_of(const struct device *dev)
{
    return dev->type == NUMBER_FP32 ? CUDA_R_32F : dev->type == NUMBER_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

/* The library's a is our b, and vice versa. It needs the alignment of the bias. The pointer is set again for each
 * call. */
static bool matmul_describe(struct shape *s, const struct device *dev)
{
    const struct key *key = &s->key;
    const cudaDataType type = type_of(dev);
    const cublasOperation_t a = key->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                            b = key->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const uint64_t m = key->m, n = key->n, k = key->k;
    bool ok = cublasLtMatmulDescInit(&s->product, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
              matmul_set(s, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a) &&
              matmul_set(s, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b) &&
              cublasLtMatrixLayoutInit(&s->a, type, key->transpose_b ? k : n, key->transpose_b ? n : k,
                                       (int64_t)key->b_stride) == CUBLAS_STATUS_SUCCESS &&
              cublasLtMatrixLayoutInit(&s->b, type, key->transpose_a ? m : k, key->transpose_a ? k : m,
                                       (int64_t)key->a_stride) == CUBLAS_STATUS_SUCCESS &&
              cublasLtMatrixLayoutInit(&s->c, key->wide ? CUDA_R_32F : type, n, m, (int64_t)key->c_stride) ==
                  CUBLAS_STATUS_SUCCESS;

    if (s->adds_bias) {
        const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        ok = ok && matmul_set(s, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue) &&
             set_bias(s, (const void *)(uintptr_t)key->bias_alignment);
    }
    return ok;
}

static bool prefer(cublasLtMatmulPreferenceOpaque_t *preference, cublasLtMatmulPreferenceAttributes_t attribute,
                   uint32_t value)
{
    return cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value) == CUBLAS_STATUS_SUCCESS;
}

/* Gets at most n of the library's choices that add parts in this way, or have one part; returns their number. */
static int matmul_ask(struct shape *s, const struct device *dev, uint32_t schemes,
                      cublasLtMatmulHeuristicResult_t *found, int most)
{
    const struct key *key = &s->key;
    const size_t workspace = PLAN_CUDA_WORKSPACE_BYTES;
    cublasLtMatmulPreferenceOpaque_t preference;
    int n = 0;

    if (!matmul_describe(s, dev) || cublasLtMatmulPreferenceInit(&preference) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                             sizeof workspace) != CUBLAS_STATUS_SUCCESS ||
        !prefer(&preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes) ||
        !prefer(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key->b_alignment) ||
        !prefer(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key->a_alignment) ||
        !prefer(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key->c_alignment) ||
        !prefer(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key->c_alignment) ||
        cublasLtMatmulAlgoGetHeuristic(dev->blas, &s->product, &s->a, &s->b, &s->c, &s->c, &preference, most, found,
                                       &n) != CUBLAS_STATUS_SUCCESS)
        return 0;
    return n;
}

/* Prefers an algorithm of one part. */
static int matmul_propose(struct shape *s, const struct device *dev, cublasLtMatmulHeuristicResult_t *found, int most)
{
    int n = s->key.accumulate ? 0 : matmul_ask(s, dev, CUBLASLT_REDUCTION_SCHEME_NONE, found, most);

    if (n == 0 || found->state != CUBLAS_STATUS_SUCCESS)
        n = matmul_ask(s, dev, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, found, most);
    return n;
}

/* ---- chosen algorithms ---- */

/* Two of the library's attributes have 16 bits. */
static size_t config_bytes(int i)
{
    return i == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID || i == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID ? sizeof(uint16_t)
                                                                                                  : sizeof(uint32_t);
}

/* False if the algorithm is unknown to this library; the entry is then unchanged. */
static bool matmul_read_config(struct products_algorithm *out, const cublasLtMatmulAlgo_t *algorithm)
{
    *out = (struct products_algorithm){.known = true};
    for (int i = 0; i < PRODUCTS_CONFIG; i++) {
        uint16_t half = 0;
        size_t written;
        void *to = config_bytes(i) == sizeof half ? (void *)&half : (void *)&out->config[i];
        if (cublasLtMatmulAlgoConfigGetAttribute(algorithm, (cublasLtMatmulAlgoConfigAttributes_t)i, to,
                                                 config_bytes(i), &written) != CUBLAS_STATUS_SUCCESS)
            return false;
        if (config_bytes(i) == sizeof half)
            out->config[i] = half;
    }
    return true;
}

/* Rejects algorithms that add parts in any order, or in 16 bits, even if a checkpoint names one. */
static bool matmul_is_ordered(const struct products_algorithm *a)
{
    const uint32_t scheme = a->config[CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME];

    return scheme == CUBLASLT_REDUCTION_SCHEME_NONE || scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

static bool matmul_write_config(cublasLtMatmulAlgo_t *out, const struct device *dev, bool wide,
                                const struct products_algorithm *a)
{
    const cudaDataType type = type_of(dev), to = wide ? CUDA_R_32F : type;

    if (!matmul_is_ordered(a) || a->config[0] > INT32_MAX ||
        cublasLtMatmulAlgoInit(dev->blas, CUBLAS_COMPUTE_32F, CUDA_R_32F, type, type, to, to, (int)a->config[0], out) !=
            CUBLAS_STATUS_SUCCESS)
        return false;
    for (int i = 1; i < PRODUCTS_CONFIG; i++) {
        const uint16_t half = (uint16_t)a->config[i];
        const void *from = config_bytes(i) == sizeof half ? (const void *)&half : (const void *)&a->config[i];
        if ((config_bytes(i) == sizeof half && a->config[i] != half) ||
            cublasLtMatmulAlgoConfigSetAttribute(out, (cublasLtMatmulAlgoConfigAttributes_t)i, from, config_bytes(i)) !=
                CUBLAS_STATUS_SUCCESS)
            return false;
    }
    return true;
}

/* The chosen algorithm, if it supports this shape. */
static bool matmul_take(struct shape *s, const struct device *dev)
{
    cublasLtMatmulHeuristicResult_t result;

    if (!s->key.chosen || !matmul_describe(s, dev) ||
        !matmul_write_config(&s->algorithm, dev, s->key.wide, &dev->matmul->products.of[s->key.chosen - 1]))
        return false;
    return cublasLtMatmulAlgoCheck(dev->blas, &s->product, &s->a, &s->b, &s->c, &s->c, &s->algorithm, &result) ==
               CUBLAS_STATUS_SUCCESS &&
           result.state == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= PLAN_CUDA_WORKSPACE_BYTES;
}

static bool matmul_choose(struct shape *s, const struct device *dev)
{
    cublasLtMatmulHeuristicResult_t found;

    if (matmul_take(s, dev))
        return true;
    if (matmul_propose(s, dev, &found, 1) == 0 || found.state != CUBLAS_STATUS_SUCCESS)
        return false;
    s->algorithm = found.algo;
    return true;
}

/* Candidates for a measurement (device/worker/profile_products.c), in the library's own order. */
void cuda_matmul_propose(struct device *dev, const struct device_matmul *op, struct products_candidates *out)
{
    cublasLtMatmulHeuristicResult_t found[PRODUCTS_CANDIDATES];
    struct shape s = {.key = matmul_key_of(dev, op), .adds_bias = adds_bias(op)};
    int n = 0;

    *out = (struct products_candidates){.version = cublasLtGetVersion()};
    if (matmul_class_of(dev, op) >= 0)
        n = matmul_propose(&s, dev, found, PRODUCTS_CANDIDATES);
    for (int i = 0; i < n; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS && matmul_read_config(&out->of[out->n], &found[i].algo))
            out->n++;
}

/* The table of shapes is emptied, as their algorithms were found under the old choice. */
int cuda_matmul_choose(struct device *dev, const struct products *products, struct error *err)
{
    struct cuda_matmul *table = dev->matmul;
    const size_t version = cublasLtGetVersion();
    unsigned n = 0, n_left_out = 0;

    *table = (struct cuda_matmul){0};
    if (products->version == 0)
        return 0;
    if (products->version != version)
        return error_set(err, -ENOTSUP,
                         "cuda:%u: algorithms of products were chosen for cuBLASLt %" PRIu64
                         ", and this is %zu: its own first choices are taken (eps bench --profile chooses anew)",
                         dev->index, products->version, version);
    table->products.version = version;
    for (int class = 0; class < PRODUCTS_CLASSES; class ++) {
        const bool wide = class / PRODUCTS_ROWS % PRODUCTS_KINDS == PRODUCTS_WEIGHTS;
        cublasLtMatmulAlgo_t algorithm;
        if (!products->of[class].known || class / (PRODUCTS_ROWS * PRODUCTS_KINDS) != (int)dev->type)
            continue;
        n++;
        if (matmul_write_config(&algorithm, dev, wide, &products->of[class]))
            table->products.of[class] = products->of[class];
        else
            n_left_out++;
    }
    if (n_left_out == 0)
        return 0;
    return error_set(err, -ENOTSUP,
                     "cuda:%u: %u of the %u algorithms that were chosen for products mean nothing to cuBLASLt %zu: its "
                     "own first choices are taken there (eps bench --profile chooses anew)",
                     dev->index, n_left_out, n, version);
}

/* NULL: the library refuses it, fused or not. An unfused entry under a fused key means that it refused to fuse. The
 * table is searched from its beginning: a step has few shapes, and a product takes longer than the search. */
static struct shape *matmul_find(struct device *dev, const struct device_matmul *op)
{
    struct cuda_matmul *table = dev->matmul;
    const struct key key = matmul_key_of(dev, op);

    for (struct shape *s = table->shapes; s < table->shapes + SHAPES; s++)
        if (memcmp(&s->key, &key, sizeof key) == 0)
            return s;
    struct shape *s = &table->shapes[table->next];
    *s = (struct shape){.key = key, .adds_bias = adds_bias(op)};
    bool chosen = matmul_choose(s, dev);
    if (!chosen && s->adds_bias) {
        s->adds_bias = false;
        chosen = matmul_choose(s, dev);
    }
    if (!chosen) {
        *s = (struct shape){0};
        return NULL;
    }
    table->next = (table->next + 1) % SHAPES;
    return s;
}

/* The library has no algorithm: in one part or in ordered parts, fused or not. */
static void matmul_refuse(struct device *dev, const struct device_matmul *op)
{
    snprintf(
        dev->failed_at, sizeof dev->failed_at,
        "cuBLASLt %zu has no algorithm whose bits are always the same for the product of (%zu, %zu) and (%zu, %zu) "
        "in %s (another version of it may, or --precision %s, or --device cpu)",
        cublasLtGetVersion(), op->m, op->k, op->k, op->n, number_name(dev->type),
        number_name(dev->type == NUMBER_FP32 ? NUMBER_BF16 : NUMBER_FP32));
    cuda_note(dev, cudaErrorNotSupported);
}

/* The first fault counts; later ones follow from it. */
static void matmul_fail(struct device *dev, const struct device_matmul *op, cublasStatus_t status)
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
static cudaError_t follow_up(struct device *dev, const struct device_matmul *op, bool has_bias)
{
    cudaError_t rc = cudaSuccess;

    switch (op->epilogue) {
    case DEVICE_NO_EPILOGUE:
        break;
    case DEVICE_BIAS:
    case DEVICE_BIAS_ACTIVATION:
        if (!has_bias)
            rc = cuda_add_bias(&dev->queue, matmul_product_of(op), op->c_stride, op->bias, op->m, op->n);
        if (rc == cudaSuccess && op->epilogue == DEVICE_BIAS_ACTIVATION)
            rc = cuda_activate_rows(&dev->queue, op->c, op->pre, op->c_stride, op->m, op->n, op->activation);
        break;
    case DEVICE_ACTIVATION_GRADIENT:
        rc = cuda_activation_gradient(&dev->queue, op->c, op->pre, op->c_stride, op->m, op->n, op->activation,
                                      op->bias_gradient);
        break;
    }
    return rc;
}

void cuda_matmul(struct device *dev, const struct device_matmul *op)
{
    const float factor = op->factor != 0 ? op->factor : 1;
    void *c = matmul_product_of(op);

    assert((op->beta == 0 || op->beta == 1) &&
           (op->epilogue == DEVICE_NO_EPILOGUE || (op->beta == 0 && op->factor == 0 && !op->wide)));
    if (op->m == 0 || op->n == 0 || dev->failed != cudaSuccess)
        return;
    struct shape *s = matmul_find(dev, op);
    if (!s) {
        matmul_refuse(dev, op);
        return;
    }
    const bool ok = !s->adds_bias || set_bias(s, op->bias);
    const cublasStatus_t status =
        ok ? cublasLtMatmul(dev->blas, &s->product, &factor, op->b, &s->a, op->a, &s->b, &op->beta, c, &s->c, c, &s->c,
                            &s->algorithm, dev->workspace, PLAN_CUDA_WORKSPACE_BYTES, dev->queue.stream)
           : CUBLAS_STATUS_INVALID_VALUE;
    if (status != CUBLAS_STATUS_SUCCESS)
        matmul_fail(dev, op, status);
    else
        cuda_note(dev, follow_up(dev, op, s->adds_bias));
}
