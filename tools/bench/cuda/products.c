/* The products of a transformer block: ours with their fused epilogues, compared with plain cuBLASLt. Its time is that
 * of the best among all algorithms that its heuristics propose; each is timed. Types are the same: fp32 sums, bf16
 * results, and fp32 accumulation for weight gradients. If ours needs another pass over a stored result, the time of
 * plain cuBLASLt includes one, at the device's copy speed.
 *
 * Ours are measured twice: with the library's first choice, and, as "chosen", with the algorithms that a profile would
 * have. */
#include "tools/bench/cuda/bench.h"

#include "device/worker/profile.h"
#include "proto/operation/backend.h"
#include "tools/bench/samples.h"

#include <math.h>
#include <string.h>

enum { TOKENS = 8192, ALGORITHMS = 32, TRIES = 5 };

struct shape {
    const char *name;
    size_t n, k; /* in widths; m is the tokens. For a weight gradient, k is the tokens and m is in widths */
    size_t m;
    bool transpose_a, transpose_b;
    enum device_epilogue epilogue;
};

static const struct shape shapes[] = {
    {"qkv", 3, 1, 0, false, false, DEVICE_BIAS},
    {"out", 1, 1, 0, false, false, DEVICE_BIAS},
    {"up", 4, 1, 0, false, false, DEVICE_BIAS_ACTIVATION},
    {"down", 1, 4, 0, false, false, DEVICE_BIAS},
    {"plain", 4, 1, 0, false, false, DEVICE_NO_EPILOGUE},
    {"down-gradient", 4, 1, 0, false, true, DEVICE_ACTIVATION_GRADIENT},
    {"up-gradient", 1, 4, 0, false, true, DEVICE_NO_EPILOGUE},
    {"weight-gradient", 4, 0, 1, true, false, DEVICE_NO_EPILOGUE},
};

struct product {
    struct device_matmul op;
    cublasLtHandle_t blas;
    cublasLtMatmulDescOpaque_t how;
    cublasLtMatrixLayoutOpaque_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
    void *workspace;
};

/* The activation is computed from the stored result, and its slope multiplies that. */
static bool needs_pass(const struct product *p)
{
    return p->op.epilogue == DEVICE_BIAS_ACTIVATION || p->op.epilogue == DEVICE_ACTIVATION_GRADIENT;
}

static void products_check(cublasStatus_t rc, const char *what)
{
    if (rc != CUBLAS_STATUS_SUCCESS) {
        fprintf(stderr, "bench_cuda: %s: cuBLASLt says %d\n", what, (int)rc);
        exit(1);
    }
}

static void ours(struct bench *b, void *context)
{
    const struct product *p = context;

    b->ops->matmul(b->dev, &p->op);
}

static void bare(struct bench *b, void *context)
{
    struct product *p = context;
    const float one = 1, beta = p->op.beta;

    products_check(cublasLtMatmul(p->blas, &p->how, &one, p->op.b, &p->b, p->op.a, &p->a, &beta, p->op.c, &p->c,
                                  p->op.c, &p->c, &p->algorithm, p->workspace, PLAN_CUDA_WORKSPACE_BYTES, b->stream),
                   "cublasLtMatmul");
}

static void bare_with_pass(struct bench *b, void *context)
{
    const struct product *p = context;

    bare(b, context);
    if (needs_pass(p))
        must(cudaMemcpyAsync(p->op.pre, p->op.c, p->op.m * p->op.n * sizeof(uint16_t), cudaMemcpyDeviceToDevice,
                             b->stream));
}

/* A row-major (rows, columns) matrix is a column-major (columns, rows) one. */
static void products_lay_out(cublasLtMatrixLayoutOpaque_t *out, cudaDataType_t type, size_t rows, size_t columns)
{
    products_check(cublasLtMatrixLayoutInit(out, type, columns, rows, (int64_t)columns), "cublasLtMatrixLayoutInit");
}

static void set_how(cublasLtMatmulDesc_t how, cublasLtMatmulDescAttributes_t what, bool transpose)
{
    const cublasOperation_t value = transpose ? CUBLAS_OP_T : CUBLAS_OP_N;

    products_check(cublasLtMatmulDescSetAttribute(how, what, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
}

/* c^T = b^T a^T: cuBLASLt's first factor is our b. */
static void products_describe(struct product *p)
{
    const struct device_matmul *o = &p->op;

    products_check(cublasLtMatmulDescInit(&p->how, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescInit");
    set_how(&p->how, CUBLASLT_MATMUL_DESC_TRANSA, o->transpose_b);
    set_how(&p->how, CUBLASLT_MATMUL_DESC_TRANSB, o->transpose_a);
    products_lay_out(&p->b, CUDA_R_16BF, o->transpose_b ? o->n : o->k, o->transpose_b ? o->k : o->n);
    products_lay_out(&p->a, CUDA_R_16BF, o->transpose_a ? o->k : o->m, o->transpose_a ? o->m : o->k);
    products_lay_out(&p->c, o->wide ? CUDA_R_32F : CUDA_R_16BF, o->m, o->n);
}

static double time_algorithm(struct bench *b, struct product *p)
{
    bare(b, p);
    must(cudaStreamSynchronize(b->stream));
    const double began = samples_now_ms();
    for (int i = 0; i < TRIES; i++)
        bare(b, p);
    must(cudaStreamSynchronize(b->stream));
    return (samples_now_ms() - began) / TRIES;
}

static unsigned products_choose(struct bench *b, struct product *p)
{
    cublasLtMatmulHeuristicResult_t found[ALGORITHMS];
    cublasLtMatmulPreferenceOpaque_t preference;
    const size_t most = PLAN_CUDA_WORKSPACE_BYTES;
    double least = INFINITY;
    int n = 0, best = 0;

    products_check(cublasLtMatmulPreferenceInit(&preference), "cublasLtMatmulPreferenceInit");
    products_check(cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most,
                                                        sizeof most),
                   "cublasLtMatmulPreferenceSetAttribute");
    products_check(cublasLtMatmulAlgoGetHeuristic(p->blas, &p->how, &p->b, &p->a, &p->c, &p->c, &preference, ALGORITHMS,
                                                  found, &n),
                   "cublasLtMatmulAlgoGetHeuristic");
    products_check(n ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED, "no algorithm");
    for (int i = 0; i < n; i++) {
        p->algorithm = found[i].algo;
        const double ms = time_algorithm(b, p);
        if (ms < least)
            least = ms, best = i;
    }
    p->algorithm = found[best].algo;
    return (unsigned)n;
}

static void products_measure(struct bench *b, struct product *p, const char *name, size_t width, const char *kind)
{
    bench_run *const runs[] = {ours, bare_with_pass};
    const struct device_matmul *o = &p->op;
    const double flops = 2.0 * (double)o->m * (double)o->n * (double)o->k;
    double ms[2];

    products_describe(p);
    const unsigned n = products_choose(b, p);
    bench_times(b, ms, runs, p, 2);
    printf("%s-%zu-%s|%.3f|%.1f TFLOP/s (%zu x %zu x %zu), the best of %u bare ones %.1f%s\n", kind, width, name,
           ms[1] / ms[0], flops / ms[0] * 1e-9, o->m, o->n, o->k, n, flops / ms[1] * 1e-9,
           needs_pass(p) ? " with a pass over the result" : "");
    fflush(stdout);
}

static void products_run_shape(struct bench *b, const struct shape *s, size_t name, cublasLtHandle_t blas,
                               const char *kind)
{
    char *mark = b->next;
    const size_t tokens = b->small ? 32 : TOKENS, width = b->small ? 32 : name;
    const size_t m = s->m ? s->m * width : tokens, n = s->n * width, k = s->k ? s->k * width : tokens;
    struct product p = {.blas = blas};

    p.workspace = bench_take(b, (size_t)PLAN_CUDA_WORKSPACE_BYTES);
    p.op = (struct device_matmul){.transpose_a = s->transpose_a,
                                  .transpose_b = s->transpose_b,
                                  .m = m,
                                  .n = n,
                                  .k = k,
                                  .a = bench_values(b, m * k),
                                  .b = bench_values(b, n * k),
                                  .a_stride = s->transpose_a ? m : k,
                                  .b_stride = s->transpose_b ? k : n,
                                  .c_stride = n,
                                  .wide = s->m > 0,
                                  .beta = s->m > 0,
                                  .epilogue = s->epilogue,
                                  .activation = MODEL_GELU_NEW};
    p.op.c = s->m ? (void *)bench_floats(b, m * n) : bench_values(b, m * n);
    if (s->epilogue == DEVICE_BIAS || s->epilogue == DEVICE_BIAS_ACTIVATION)
        p.op.bias = bench_values(b, n);
    if (s->epilogue == DEVICE_BIAS_ACTIVATION || s->epilogue == DEVICE_ACTIVATION_GRADIENT)
        p.op.pre = bench_values(b, m * n);
    products_measure(b, &p, s->name, name, kind);
    bench_release(b, mark);
}

static void run_shapes(struct bench *b, size_t width, cublasLtHandle_t blas, const char *kind)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i += b->small ? 2 : 1)
        products_run_shape(b, &shapes[i], width, blas, kind);
}

/* False, with the reason on stderr, continues without a profile. Small products belong to no class. */
static bool choose_algorithms(struct bench *b)
{
    struct products products = {0};
    struct error err;

    if ((b->small || device_profile_products(&products, b->ops, 0, NULL, &err) == 0) &&
        b->ops->choose(b->dev, &products, &err) == 0)
        return true;
    fprintf(stderr, "bench_cuda: %s\n", err.text);
    return false;
}

void bench_products(struct bench *b)
{
    cublasLtHandle_t blas;

    products_check(cublasLtCreate(&blas), "cublasLtCreate");
    for (size_t width = 4096; width <= 8192; width *= 2)
        run_shapes(b, width, blas, "product");
    if (choose_algorithms(b))
        run_shapes(b, 4096, blas, "chosen");
    cublasLtDestroy(blas);
}
