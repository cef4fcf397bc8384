/* The simulated CUDA device (tests/sim) is a judge, here of streams, of errors that are returned and of products:
 * each mistake that is planted is found, and what has none gives the same, right result in every order. */
#include "device/cuda/kernels/fragment.cuh"
#include "tests/sim/planted.hpp"

#include <cublasLt.h>
#include <math.h>

SUITE_LABELS(cuda)

/* ---- streams ---- */

static __global__ void add(int *to, const int *from)
{
    *to += *from;
}

/* One stream uploads, the next computes, the last downloads: each for another number, and in turn. */
static bool pipelines(bool upload_first, bool download_last)
{
    cudaStream_t pull = make_stream(), compute = make_stream(), push = make_stream();
    cudaEvent_t pulled, computed;
    int *host = page_locked<int>(2), *device = on_device<int>(2);

    OK(cudaEventCreateWithFlags(&pulled, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&computed, cudaEventDisableTiming));
    host[0] = 20, host[1] = 0;
    OK(cudaMemcpyAsync(device, host, sizeof *host, cudaMemcpyHostToDevice, pull));
    OK(cudaMemcpyAsync(device + 1, host, sizeof *host, cudaMemcpyHostToDevice, compute));
    OK(cudaEventRecord(pulled, pull));
    if (upload_first)
        OK(cudaStreamWaitEvent(compute, pulled, 0));
    OK(launch(add, 1, 1, 0, compute, device + 1, (const int *)device));
    OK(cudaEventRecord(computed, compute));
    if (download_last)
        OK(cudaStreamWaitEvent(push, computed, 0));
    OK(cudaMemcpyAsync(host + 1, device + 1, sizeof *host, cudaMemcpyDeviceToHost, push));
    OK(cudaStreamSynchronize(push));
    const bool right = host[1] == 40;
    for (cudaStream_t stream : {pull, compute, push})
        OK(cudaStreamDestroy(stream));
    OK(cudaEventDestroy(pulled));
    OK(cudaEventDestroy(computed));
    OK(cudaFreeHost(host));
    OK(cudaFree(device));
    return right;
}

TEST(a_missing_event_is_a_wrong_result)
{
    ck_assert_int_eq(n_right([]() { return pipelines(true, true); }), ORDERS);
    ck_assert_int_lt(n_right([]() { return pipelines(false, true); }), ORDERS);
    ck_assert_int_lt(n_right([]() { return pipelines(true, false); }), ORDERS);
}

TEST(copies_of_registered_memory_are_done_when_the_host_has_waited)
{
    cudaStream_t stream = make_stream();
    cudaEvent_t done;
    int *host = page_locked<int>(2), *device = on_device<int>(1), pageable = 3;

    OK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    host[0] = 1, host[1] = 5;
    OK(cudaMemcpyAsync(device, host, sizeof *host, cudaMemcpyHostToDevice, stream));
    OK(cudaMemcpyAsync(host + 1, device, sizeof *host, cudaMemcpyDeviceToHost, stream));
    OK(cudaEventRecord(done, stream));
    host[0] = 2;                  /* too early: what is uploaded */
    ck_assert_int_eq(host[1], 5); /* too early: what was there before */
    ck_assert_int_eq(cudaEventQuery(done), cudaErrorNotReady);
    OK(cudaEventSynchronize(done));
    ck_assert_int_eq(cudaEventQuery(done), cudaSuccess);
    ck_assert_int_eq(host[1], 2);

    OK(cudaMemcpyAsync(device, &pageable, sizeof pageable, cudaMemcpyHostToDevice, stream));
    pageable = 4; /* not too early: it was taken */
    OK(cudaMemcpyAsync(&pageable, device, sizeof pageable, cudaMemcpyDeviceToHost, stream));
    ck_assert_int_eq(pageable, 3);

    OK(cudaEventDestroy(done));
    OK(cudaStreamDestroy(stream));
    OK(cudaFreeHost(host));
    OK(cudaFree(device));
}

/* ---- errors that are returned ---- */

TEST(memory_runs_out_where_the_test_says)
{
    size_t available, total;
    void *memory, *more;

    cudasim_limit(1000, 100);
    OK(cudaMalloc(&memory, 600));
    ck_assert_int_eq(cudaMalloc(&more, 401), cudaErrorMemoryAllocation);
    OK(cudaMemGetInfo(&available, &total));
    ck_assert_uint_eq(available, 400);
    ck_assert_uint_eq(total, 1000);
    ck_assert_int_eq(cudaHostAlloc(&more, 101, cudaHostAllocDefault), cudaErrorMemoryAllocation);
    OK(cudaFree(memory));
}

TEST(an_error_comes_where_the_test_asks_for_it)
{
    cudaStream_t stream = make_stream();

    cudasim_fail("cudaStreamSynchronize", 1, cudaErrorLaunchFailure);
    OK(cudaStreamSynchronize(stream));
    OK(cudaDeviceSynchronize());
    ck_assert_int_eq(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
    OK(cudaStreamSynchronize(stream));
    cudasim_lose(cudaErrorECCUncorrectable);
    ck_assert_int_eq(cudaStreamDestroy(stream), cudaErrorECCUncorrectable);
    ck_assert_int_eq(cudaGetLastError(), cudaErrorECCUncorrectable);
    ck_assert_int_eq(cudaPeekAtLastError(), cudaErrorECCUncorrectable);
}

/* ---- room for a block ---- */

static cudaError_t launch_with(unsigned threads)
{
    cudaStream_t stream = make_stream();
    int *x = on_device<int>(2);

    const cudaError_t rc = launch(add, 1, threads, 0, stream, x, (const int *)x + 1);
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(x));
    return rc;
}

TEST(a_block_has_the_shared_memory_of_its_target_and_no_more)
{
    const struct {
        const char *target;
        int major, minor;
        size_t kib;
    } targets[] = {
        {"sm_80", 8, 0, 163}, {"sm_86", 8, 6, 99}, {"sm_89", 8, 9, 99}, {"sm_90", 9, 0, 227}, {"sm_100", 10, 0, 227}};
    int value;

    for (const auto &t : targets) {
        cudasim_target(t.target, NULL);
        OK(allow_shared(add, t.kib << 10));
        ck_assert_int_eq(allow_shared(add, (t.kib << 10) + 1), cudaErrorInvalidValue);
        OK(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
        ck_assert_int_eq(value, (int)(t.kib << 10));
        OK(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 0));
        ck_assert_int_eq(value, t.major);
        OK(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMinor, 0));
        ck_assert_int_eq(value, t.minor);
    }
    SAYS("sm_75 is no device that is simulated", cudasim_target("sm_75", NULL););
}

/* By hand: 65,536 registers are enough for 16 warps of 128 a thread; of 129, which are handed out as 136, for 15. */
TEST(a_block_has_the_registers_of_a_processor_and_no_more)
{
    char path[] = "/tmp/cudasim-kernels-XXXXXX";
    const int fd = mkstemp(path);

    ck_assert_int_ge(fd, 0);
    FILE *table = fdopen(fd, "w");
    fprintf(table, "target   registers   shared   stack spilled  kernel\n"
                   "sm_80          128        0       0       0  add(int*, int const*)\n"
                   "sm_90          129        0       0       0  add(int*, int const*)\n"
                   "sm_100          40        0       0       0  add(int*)\n");
    fclose(table);
    for (const char *target : {"sm_80", "sm_86", "sm_89"}) { /* of one generation, which runs the first one's code */
        cudasim_target(target, path);
        OK(launch_with(512));
        ck_assert_int_eq(launch_with(513), cudaErrorLaunchOutOfResources);
    }
    cudasim_target("sm_90", path);
    OK(launch_with(480));
    ck_assert_int_eq(launch_with(512), cudaErrorLaunchOutOfResources);
    cudasim_target("sm_100", path);
    SAYS("kernel add(int[*], int const[*]) was not compiled for sm_100", launch_with(32););
    cudasim_target("sm_80", NULL);
    OK(launch_with(1024));
    unlink(path);
}

/* ---- products ---- */

/* d (2, 2) = a (2, 3) b (3, 2), by hand, column by column; then with a bias. */
TEST(products_are_what_the_library_documents)
{
    const float a[6] = {1, 4, 2, 5, 3, 6}, b[6] = {7, 9, 11, 8, 10, 12}, bias[2] = {-58, -153};
    const float product[4] = {58, 139, 64, 154}, one = 1, zero = 0;
    cublasLtHandle_t handle;
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t la, lb, ld;
    const cublasLtEpilogue_t adds_bias = CUBLASLT_EPILOGUE_BIAS;
    cudaStream_t stream = make_stream();
    float *device = on_device<float>(64), host[64];
    float *const device_bias = device + 12, *const d = device + 16;

    OK(cudaMemcpyAsync(device, a, sizeof a, cudaMemcpyHostToDevice, stream));
    OK(cudaMemcpyAsync(device + 6, b, sizeof b, cudaMemcpyHostToDevice, stream));
    OK(cudaMemcpyAsync(device_bias, bias, sizeof bias, cudaMemcpyHostToDevice, stream));
    OK(cublasLtCreate(&handle));
    OK(cublasLtMatmulDescInit(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    OK(cublasLtMatrixLayoutInit(&la, CUDA_R_32F, 2, 3, 2));
    OK(cublasLtMatrixLayoutInit(&lb, CUDA_R_32F, 3, 2, 3));
    OK(cublasLtMatrixLayoutInit(&ld, CUDA_R_32F, 2, 2, 2));
    OK(cublasLtMatmul(handle, &desc, &one, device, &la, device + 6, &lb, &zero, d, &ld, d, &ld, NULL, NULL, 0, stream));
    OK(cudaMemcpyAsync(host, d, sizeof product, cudaMemcpyDeviceToHost, stream));
    ck_assert_mem_eq(host, product, sizeof product);

    OK(cublasLtMatmulDescSetAttribute(&desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &adds_bias, sizeof adds_bias));
    OK(cublasLtMatmulDescSetAttribute(&desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &device_bias, sizeof device_bias));
    OK(cublasLtMatmul(handle, &desc, &one, device, &la, device + 6, &lb, &zero, d, &ld, d, &ld, NULL, NULL, 0, stream));
    OK(cudaMemcpyAsync(host, device, 64 * sizeof *host, cudaMemcpyDeviceToHost, stream));
    ck_assert_float_eq(host[16], 0); /* 58 - 58 */
    ck_assert_float_eq(host[19], 1); /* 154 - 153 */
    OK(cublasLtDestroy(handle));
    OK(cudaFree(device));
    OK(cudaStreamDestroy(stream));
}

/* d is 4 x 4, its memory 15 numbers. */
static void multiply_past_the_end(size_t a_offset)
{
    const float one = 1, zero = 0;
    const uint32_t alignment = 16;
    cublasLtHandle_t handle;
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t square;
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulHeuristicResult_t found;
    float *a = on_device<float>(20) + a_offset, *d = on_device<float>(15);
    int n;

    OK(cublasLtCreate(&handle));
    OK(cublasLtMatmulDescInit(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    OK(cublasLtMatrixLayoutInit(&square, CUDA_R_32F, 4, 4, 4));
    OK(cublasLtMatmulPreferenceInit(&preference));
    for (int i = CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES; i <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES; i++)
        OK(cublasLtMatmulPreferenceSetAttribute(&preference, (cublasLtMatmulPreferenceAttributes_t)i, &alignment,
                                                sizeof alignment));
    OK(cublasLtMatmulAlgoGetHeuristic(handle, &desc, &square, &square, &square, &square, &preference, 1, &found, &n));
    ck_assert_int_eq(n, 1);
    cublasLtMatmul(handle, &desc, &one, a, &square, a, &square, &zero, d, &square, d, &square, &found.algo, NULL, 0,
                   make_stream());
}

TEST(products_past_a_matrix_or_less_aligned_than_promised_are_faults)
{
    SAYS("cublasLtMatmul, D: 64 bytes at byte 0 of device memory of 60 bytes", multiply_past_the_end(0););
    SAYS("cublasLtMatmul, A: * is not aligned to 16", multiply_past_the_end(1););
}
