/* tests/sim/product.cpp - cuBLASLt's products: plain loops in fp32, added up along k in order. What is stored is
 * rounded once, 16 bits to nearest, ties to even, as the library does. */
#include "tests/sim/state.hpp"

#include <cublasLt.h>
#include <math.h>
#include <string.h>

struct cublasLtContext {
    bool live;
};

/* What the opaque ones hold. */
struct product {
    cublasOperation_t transpose_a, transpose_b;
    cublasLtEpilogue_t epilogue;
    const void *bias;
    int bias_type; /* cudaDataType_t; -1: D's */
};

struct layout {
    cudaDataType type;
    uint64_t rows, columns;
    int64_t ld;
};

struct preference {
    uint64_t workspace;
    uint32_t alignment[4]; /* of A, B, C, D */
    uint32_t schemes;      /* by which parts of a sum may be added up */
};

/* A product as it was asked for, sizes and all: what runs later. */
struct job {
    product desc;
    layout a_layout, b_layout, d_layout;
    const void *a, *b, *c;
    void *d, *workspace;
    size_t m, n, k, workspace_bytes;
    float alpha, beta;
    double slower; /* than by the first algorithm */
};

enum { ALGO = 0xc0da, CONFIG = 9, N_ALGOS = 3 }; /* what marks ours */

/* The algorithms, as the heuristic has them: for 16 bits alone, or fp32 too; what they scribble on; and how much longer they
 * take than the first, but where rows are summed over. */
static const struct {
    uint16_t id, tile;
    bool fp32;
    unsigned workspace;
    double time, time_over_rows;
} algos[N_ALGOS] = {{21, 20, true, 64 << 10, 1, 1}, {66, 24, true, 0, 0.75, 1.5}, {67, 31, false, 0, 0.5, 0.875}};

static int n_handles;
static unsigned n_without_algorithm; /* products to come */
bool cudasim_products_are_idle;

void cudasim_no_algorithm(unsigned n)
{
    cudasim_call call(NULL);

    n_without_algorithm = n;
}

void cudasim_idle_products(bool are_idle)
{
    cudasim_call call(NULL);

    cudasim_products_are_idle = are_idle;
}

void cudasim_handles_left(void)
{
    if (n_handles != 0)
        cudasim_fault("%d handles of cuBLASLt are left at the end", n_handles);
}

/* The opaque one's contents. */
template <typename T, typename Opaque> static T &in(Opaque *opaque)
{
    static_assert(sizeof(T) <= sizeof *opaque, "it has room");
    void *data = opaque->data;

    return *(T *)data;
}

/* ---- numbers ---- */

static size_t type_bytes(int type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

static float load(int type, const void *from, size_t i)
{
    if (type == CUDA_R_32F)
        return ((const float *)from)[i];
    return number_from_half(type == CUDA_R_16F ? NUMBER_FP16 : NUMBER_BF16, ((const uint16_t *)from)[i]);
}

static void store(int type, void *to, size_t i, float x)
{
    if (type == CUDA_R_32F)
        ((float *)to)[i] = x;
    else
        ((uint16_t *)to)[i] = number_to_half(type == CUDA_R_16F ? NUMBER_FP16 : NUMBER_BF16, x);
}

/* ---- running ---- */

/* op(x) as floats: (depth, width), or its transpose's columns. */
static std::vector<float> unpack(const void *from, const layout &layout, bool columns_are_depth)
{
    const size_t depth = columns_are_depth ? layout.columns : layout.rows;
    const size_t width = columns_are_depth ? layout.rows : layout.columns;
    std::vector<float> values(depth * width);

    for (size_t k = 0; k < depth; k++)
        for (size_t i = 0; i < width; i++) {
            const size_t row = columns_are_depth ? i : k, column = columns_are_depth ? k : i;
            values[k * width + i] = load(layout.type, from, row + column * (size_t)layout.ld);
        }
    return values;
}

static void store_column(const job &job, size_t column, const std::vector<float> &sums)
{
    const int type = job.d_layout.type, e = job.desc.epilogue;
    const int bias_type = job.desc.bias_type < 0 ? type : job.desc.bias_type;
    const size_t at = column * (size_t)job.d_layout.ld;

    for (size_t i = 0; i < job.m; i++) {
        float x = job.alpha * sums[i];
        if (job.beta != 0)
            x += job.beta * load(type, job.c, at + i);
        if (e & CUBLASLT_EPILOGUE_BIAS)
            x += load(bias_type, job.desc.bias, i);
        store(type, job.d, at + i, x);
    }
}

static size_t extent(const layout &layout)
{
    return ((layout.columns - 1) * (size_t)layout.ld + layout.rows) * type_bytes(layout.type);
}

static void check(const job &job)
{
    const int e = job.desc.epilogue, type = job.d_layout.type;

    cudasim_check("cublasLtMatmul, A", job.a, extent(job.a_layout), false);
    cudasim_check("cublasLtMatmul, B", job.b, extent(job.b_layout), false);
    cudasim_check("cublasLtMatmul, D", job.d, extent(job.d_layout), true);
    if (job.beta != 0)
        cudasim_check("cublasLtMatmul, C", job.c, extent(job.d_layout), false);
    if (e & CUBLASLT_EPILOGUE_BIAS)
        cudasim_check("cublasLtMatmul, bias", job.desc.bias,
                      job.m * type_bytes(job.desc.bias_type < 0 ? type : job.desc.bias_type), false);
    if (job.workspace_bytes)
        cudasim_check("cublasLtMatmul, workspace", job.workspace, job.workspace_bytes, true);
}

/* Rows of activations are what the library calls columns of B; or they are summed over, if that is transposed. */
static struct cudasim_duration duration_of(const job &job)
{
    const double m = (double)job.m, n = (double)job.n, k = (double)job.k;
    const double bytes = (m * k + k * n) * (double)type_bytes(job.a_layout.type) +
                         m * n * (double)type_bytes(job.d_layout.type) * (job.beta != 0 ? 2 : 1);

    const bool over_rows = job.desc.transpose_b == CUBLAS_OP_T;

    return cudasim_product_duration(2 * m * n * k * job.slower, bytes, over_rows ? k : n,
                                    sqrt(over_rows ? m * n : m * k),
                                    job.a_layout.type == CUDA_R_32F ? NUMBER_FP32 : NUMBER_BF16);
}

static void run(const job &job)
{
    if (cudasim_products_are_idle)
        return;
    check(job);
    if (job.workspace_bytes)
        memset(job.workspace, CUDASIM_POISON_BYTE, job.workspace_bytes);
    const std::vector<float> a = unpack(job.a, job.a_layout, job.desc.transpose_a == CUBLAS_OP_N);
    const std::vector<float> b = unpack(job.b, job.b_layout, job.desc.transpose_b == CUBLAS_OP_T);
    std::vector<float> sums(job.m);
    for (size_t j = 0; j < job.n; j++) {
        std::fill(sums.begin(), sums.end(), 0.0f);
        for (size_t k = 0; k < job.k; k++)
            for (size_t i = 0; i < job.m; i++)
                sums[i] += a[k * job.m + i] * b[k * job.n + j];
        store_column(job, j, sums);
    }
}

/* ---- the library's calls ---- */

#define CUBLAS_CALL()                                                                                                  \
    cudasim_call call(__func__);                                                                                       \
    if (call.rc != cudaSuccess)                                                                                        \
    return call.rc == cudaErrorMemoryAllocation ? CUBLAS_STATUS_ALLOC_FAILED                                           \
           : call.rc == cudaErrorNotSupported   ? CUBLAS_STATUS_NOT_SUPPORTED                                          \
                                                : CUBLAS_STATUS_EXECUTION_FAILED

size_t cublasLtGetVersion(void)
{
    return 120000;
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
        return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    }
    return "unknown";
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return cublasLtGetStatusName(status);
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    CUBLAS_CALL();

    *handle = new cublasLtContext{true};
    n_handles++;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    delete handle; /* of a device that is lost too */
    n_handles--;
    CUBLAS_CALL();

    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t desc, cublasComputeType_t compute, cudaDataType_t scale)
{
    CUBLAS_CALL();

    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    in<product>(desc) = {CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, NULL, -1};
    return CUBLAS_STATUS_SUCCESS;
}

template <typename T> static cublasStatus_t set(T *to, const void *value, size_t bytes)
{
    if (bytes != sizeof *to)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    CUBLAS_CALL();
    product &p = in<product>(desc);

    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set(&p.transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return set(&p.transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return set(&p.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set(&p.bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return set(&p.bias_type, value, bytes);
    }
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t opaque, cudaDataType type, uint64_t rows,
                                        uint64_t columns, int64_t ld)
{
    CUBLAS_CALL();

    if (rows == 0 || columns == 0 || ld < (int64_t)rows)
        return CUBLAS_STATUS_INVALID_VALUE;
    in<layout>(opaque) = {type, rows, columns, ld};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t opaque)
{
    CUBLAS_CALL();

    in<preference>(opaque) = {0, {256, 256, 256, 256}, ~UINT32_C(0)};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t opaque,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes)
{
    CUBLAS_CALL();
    preference &p = in<preference>(opaque);

    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return set(&p.workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return set(&p.schemes, value, bytes); /* there is one part of each sum all the same */
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return set(&p.alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
    }
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

/* Whether the sizes agree, and the library has such a product. */
static cublasStatus_t judge(const product *desc, const layout *a, const layout *b, const layout *c, const layout *d)
{
    const bool ta = desc->transpose_a == CUBLAS_OP_T, tb = desc->transpose_b == CUBLAS_OP_T;
    const int e = desc->epilogue;

    if ((ta ? a->columns : a->rows) != d->rows || (tb ? b->rows : b->columns) != d->columns ||
        (ta ? a->rows : a->columns) != (tb ? b->columns : b->rows) || c->rows != d->rows || c->columns != d->columns)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (a->type != b->type || c->type != d->type || c->ld != d->ld || (d->type != a->type && d->type != CUDA_R_32F))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (e & ~(CUBLASLT_EPILOGUE_DEFAULT | CUBLASLT_EPILOGUE_BIAS))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if ((e & CUBLASLT_EPILOGUE_BIAS) && desc->bias_type >= 0 && desc->bias_type != d->type)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

/* What of an algorithm is ours. */
struct algo {
    uint32_t mark, workspace, alignment[4], schemes;
    uint16_t config[CONFIG]; /* by cublasLtMatmulAlgoConfigAttributes_t */
};

static algo get(const cublasLtMatmulAlgo_t *opaque)
{
    algo out;

    static_assert(sizeof out <= sizeof *opaque, "it has room");
    memcpy(&out, opaque, sizeof out);
    return out;
}

static void put(cublasLtMatmulAlgo_t *opaque, const algo &value)
{
    memcpy(opaque, &value, sizeof value);
}

/* Its place in `algos`; N_ALGOS: of none. */
static int place_of(uint16_t id)
{
    int i = 0;

    while (i < N_ALGOS && algos[i].id != id)
        i++;
    return i;
}

static cublasStatus_t judge_opaque(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                   cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d)
{
    return judge(&in<product>(desc), &in<layout>(a), &in<layout>(b), &in<layout>(c), &in<layout>(d));
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t opaque, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *n_results)
{
    CUBLAS_CALL();
    const cublasStatus_t status = judge_opaque(desc, a, b, c, d);
    const preference &p = in<preference>(opaque);

    *n_results = 0;
    if (!handle || status != CUBLAS_STATUS_SUCCESS)
        return handle ? status : CUBLAS_STATUS_NOT_INITIALIZED;
    if (n_without_algorithm > 0) {
        n_without_algorithm--;
        return CUBLAS_STATUS_SUCCESS;
    }
    for (const auto &known : algos)
        if (*n_results < wanted && known.workspace <= p.workspace && (known.fp32 || in<layout>(a).type != CUDA_R_32F)) {
            cublasLtMatmulHeuristicResult_t *result = &results[(*n_results)++];
            *result = {};
            algo proposed = {
                ALGO, known.workspace, {}, p.schemes, {known.id, known.tile, 1, (uint16_t)p.schemes, 0, 0, 7, 0, 2}};
            memcpy(proposed.alignment, p.alignment, sizeof p.alignment);
            put(&result->algo, proposed);
            result->workspaceSize = known.workspace;
            result->wavesCount = 1;
        }
    return CUBLAS_STATUS_SUCCESS;
}

/* Of no configuration yet, and for matrices as aligned as any algorithm can use. */
cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t handle, cublasComputeType_t compute, cudaDataType scale,
                                      cudaDataType a, cudaDataType b, cudaDataType c, cudaDataType d, int id,
                                      cublasLtMatmulAlgo_t *opaque)
{
    CUBLAS_CALL();
    const int place = id < 0 || id > UINT16_MAX ? N_ALGOS : place_of((uint16_t)id);

    if (!handle || compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F || a != b || c != d)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (place == N_ALGOS || (a == CUDA_R_32F && !algos[place].fp32))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    put(opaque, {ALGO, algos[place].workspace, {16, 16, 16, 16}, 0, {(uint16_t)id}});
    return CUBLAS_STATUS_SUCCESS;
}

static size_t config_bytes(int attribute)
{
    return attribute < CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID ? 4 : 2;
}

cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t *opaque,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, const void *value,
                                                    size_t bytes)
{
    CUBLAS_CALL();
    algo a = get(opaque);
    uint32_t number = 0;

    if (attribute == CUBLASLT_ALGO_CONFIG_ID || (int)attribute >= CONFIG || bytes != config_bytes(attribute))
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&number, value, bytes);
    if (number > UINT16_MAX)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    a.config[attribute] = (uint16_t)number;
    if (attribute == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME)
        a.schemes = number;
    put(opaque, a);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *opaque,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void *value,
                                                    size_t bytes, size_t *written)
{
    CUBLAS_CALL();

    if ((int)attribute >= CONFIG || bytes != config_bytes(attribute))
        return CUBLAS_STATUS_INVALID_VALUE;
    const algo a = get(opaque);
    const uint32_t number = a.config[attribute];
    memcpy(value, &number, bytes);
    *written = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *opaque, cublasLtMatmulHeuristicResult_t *result)
{
    CUBLAS_CALL();
    const algo checked = get(opaque);
    const cublasStatus_t status = judge_opaque(desc, a, b, c, d);
    const int place = place_of(checked.config[0]);

    if (!handle || status != CUBLAS_STATUS_SUCCESS)
        return handle ? status : CUBLAS_STATUS_NOT_INITIALIZED;
    if (checked.mark != ALGO || place == N_ALGOS || checked.config[1] != algos[place].tile)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *result = {};
    result->algo = *opaque;
    result->workspaceSize = checked.workspace;
    return CUBLAS_STATUS_SUCCESS;
}

static void check_alignment(const algo &chosen, const void *a, const void *b, const void *c, const void *d)
{
    const void *matrices[4] = {a, b, c, d};

    for (int i = 0; i < 4; i++)
        if ((uintptr_t)matrices[i] % chosen.alignment[i])
            cudasim_fault("cublasLtMatmul, %c: %p is not aligned to %u, which its algorithm was asked for", "ABCD"[i],
                          matrices[i], chosen.alignment[i]);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *opaque, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    CUBLAS_CALL();
    const cublasStatus_t status = judge_opaque(desc, a_layout, b_layout, c_layout, d_layout);
    const algo chosen = opaque ? get(opaque) : algo{ALGO, 0, {1, 1, 1, 1}, 0, {algos[0].id}};
    const int place = place_of(chosen.config[0]);

    cudasim_check_stream(stream, "cublasLtMatmul");
    if (!handle || status != CUBLAS_STATUS_SUCCESS)
        return handle ? status : CUBLAS_STATUS_NOT_INITIALIZED;
    if (chosen.mark != ALGO || place == N_ALGOS || chosen.workspace > workspace_bytes)
        return CUBLAS_STATUS_INVALID_VALUE;
    check_alignment(chosen, a, b, c, d);
    const layout &la = in<layout>(a_layout), &ld = in<layout>(d_layout);
    job job = {in<product>(desc),
               la,
               in<layout>(b_layout),
               ld,
               a,
               b,
               c,
               d,
               workspace,
               ld.rows,
               ld.columns,
               0,
               chosen.workspace,
               *(const float *)alpha,
               *(const float *)beta,
               1};
    job.k = job.desc.transpose_a == CUBLAS_OP_T ? la.rows : la.columns;
    job.slower = job.desc.transpose_b == CUBLAS_OP_T ? algos[place].time_over_rows : algos[place].time;
    check(job);
    cudasim_counted.products++;
    cudasim_counted.products_by[place]++;
    cudasim_counted.products_in_parts += chosen.schemes != CUBLASLT_REDUCTION_SCHEME_NONE;
    cudasim_queue(stream, duration_of(job), [=]() { run(job); });
    return CUBLAS_STATUS_SUCCESS;
}
