/* The simulated CUDA device (tests/sim) is a judge, here of the threads of a block and of memory:
 * each mistake that is planted is found, and what has none gives the same, right result in every order. */
#include "device/cuda/kernels/fragment.cuh"
#include "tests/sim/planted.hpp"

#include <cublasLt.h>

SUITE_LABELS(cuda)

/* ---- threads of a block ---- */

/* Each takes over what a neighbour, `far` away, has read. */
static __global__ void shift(int *to, const int *from, int far, bool meet)
{
    __shared__ int kept[THREADS];
    const int i = (int)threadIdx.x, other = i + far;

    kept[i] = from[i];
    if (meet)
        __syncthreads();
    to[i] = other < 0 || other >= THREADS ? 0 : kept[other];
}

static bool shifts(int far, bool meet)
{
    cudaStream_t stream = make_stream();
    int *from = on_device<int>(THREADS), *to = on_device<int>(THREADS), host[THREADS], back[THREADS];
    bool right = true;

    for (int i = 0; i < THREADS; i++)
        host[i] = i + 7;
    OK(cudaMemcpyAsync(from, host, sizeof host, cudaMemcpyHostToDevice, stream));
    OK(launch(shift, 1, THREADS, 0, stream, to, from, far, meet));
    OK(cudaMemcpyAsync(back, to, sizeof back, cudaMemcpyDeviceToHost, stream));
    for (int i = 0; i < THREADS; i++)
        right = right && back[i] == (i + far < 0 || i + far >= THREADS ? 0 : host[i + far]);
    OK(cudaFree(from));
    OK(cudaFree(to));
    OK(cudaStreamDestroy(stream));
    return right;
}

TEST(a_missing_barrier_is_a_wrong_result)
{
    ck_assert_int_eq(n_right([]() { return shifts(1, true); }), ORDERS);
    ck_assert_int_eq(n_right([]() { return shifts(-1, true); }), ORDERS);
    ck_assert_int_eq(n_right([]() { return shifts(1, false); }), ORDERS / 3);  /* backward */
    ck_assert_int_eq(n_right([]() { return shifts(-1, false); }), ORDERS / 3); /* forward */
}

static __global__ void count_on(int *to)
{
    to[blockIdx.x + 1] = to[blockIdx.x] + 1;
}

/* No block may count on another. */
TEST(blocks_run_in_any_order)
{
    ck_assert_int_eq(n_right([]() {
                         cudaStream_t stream = make_stream();
                         int *device = on_device<int>(9), last;
                         OK(cudaMemsetAsync(device, 0, 9 * sizeof *device, stream));
                         OK(launch(count_on, 8, 1, 0, stream, device));
                         OK(cudaMemcpyAsync(&last, device + 8, sizeof last, cudaMemcpyDeviceToHost, stream));
                         OK(cudaFree(device));
                         OK(cudaStreamDestroy(stream));
                         return last == 8;
                     }),
                     ORDERS / 3);
}

static __global__ void some_return(int n)
{
    if (threadIdx.x >= (unsigned)n)
        return;
    __syncthreads();
}

static __global__ void two_barriers()
{
    if (threadIdx.x < warpSize)
        __syncthreads();
    else
        __syncthreads();
}

TEST(a_barrier_that_not_all_meet_is_a_fault)
{
    SAYS("kernel some_return(int), block (0, 0, 0): thread 0 waits at __syncthreads in line *, but thread 63 has "
         "returned",
         launch(some_return, 1, THREADS, 0, make_stream(), 63);
         cudaDeviceSynchronize(););
    SAYS("thread 0 waits at __syncthreads in line *, but thread 32 waits at __syncthreads in line *",
         launch(two_barriers, 1, THREADS, 0, make_stream());
         cudaDeviceSynchronize(););
}

static __global__ void shuffle_if(unsigned mask, int n)
{
    if (threadIdx.x < (unsigned)n)
        __shfl_xor_sync(mask, 1.0f, 1);
}

static __global__ void two_shuffles()
{
    if (threadIdx.x < 16)
        __shfl_xor_sync(WHOLE_WARP, 1.0f, 1);
    else
        __shfl_xor_sync(WHOLE_WARP, 1.0f, 1);
}

TEST(a_shuffle_that_lacks_lanes_is_a_fault)
{
    SAYS("thread 0 waits at __shfl_xor_sync (mask ffffffff) in line *, but thread 31 waits at __shfl_xor_sync",
         launch(two_shuffles, 1, 32, 0, make_stream());
         cudaDeviceSynchronize(););
    SAYS("thread 0 waits at __shfl_xor_sync (mask ffffffff) in line *, but thread 31 has returned",
         launch(shuffle_if, 1, THREADS, 0, make_stream(), WHOLE_WARP, 31);
         cudaDeviceSynchronize(););
    SAYS("but there is no thread 31", launch(shuffle_if, 1, 16, 0, make_stream(), WHOLE_WARP, 16);
         cudaDeviceSynchronize(););
    SAYS("thread 1: __shfl_xor_sync in line *: the mask fffffffd lacks the lane itself",
         launch(shuffle_if, 1, 32, 0, make_stream(), 0xfffffffdu, 32);
         cudaDeviceSynchronize(););
    SAYS("lane 2, which is read, is not in the mask 00000008", launch(
                                                                   +[](unsigned mask) {
                                                                       if (threadIdx.x == 3)
                                                                           __shfl_xor_sync(mask, 1, 1);
                                                                   },
                                                                   1, 32, 0, make_stream(), 8u);
         cudaDeviceSynchronize(););
}

/* By hand: lane i of 32. */
static __global__ void warp_operations(int *failed)
{
    const int i = (int)threadIdx.x % 32;
    bool ok = __shfl_sync(WHOLE_WARP, i, 5) == 5 && __shfl_sync(WHOLE_WARP, i, 1, 8) == i / 8 * 8 + 1;

    ok = ok && __shfl_xor_sync(WHOLE_WARP, 2.0 * i, 16) == 2.0 * (i ^ 16);
    ok = ok && __shfl_up_sync(WHOLE_WARP, i, 3u) == (i < 3 ? i : i - 3);
    ok = ok && __shfl_down_sync(WHOLE_WARP, i, 3u, 16) == (i % 16 > 12 ? i : i + 3);
    ok = ok && __ballot_sync(WHOLE_WARP, i % 2) == 0xaaaaaaaau;
    ok = ok && __shfl_xor_sync(i % 2 ? 0xaaaaaaaau : 0x55555555u, i, 2) == (i ^ 2); /* two at once */
    if (i < 4)
        ok = ok && __any_sync(0xf, i == 2) && !__all_sync(0xf, i == 2) && __all_sync(0xf, i < 4);
    ok = ok && __syncthreads_count(i < 3) == 3 * (int)blockDim.x / 32 && __syncthreads_or(threadIdx.x == 40) == 1 &&
         !__syncthreads_and(threadIdx.x != 40);
    if (!ok)
        atomicAdd(failed, 1);
}

TEST(lanes_and_threads_exchange_what_they_should)
{
    ck_assert_int_eq(n_right([]() {
                         cudaStream_t stream = make_stream();
                         int *failed = on_device<int>(1), host = 1;
                         OK(cudaMemsetAsync(failed, 0, sizeof *failed, stream));
                         OK(launch(warp_operations, 3, THREADS, 0, stream, failed));
                         OK(cudaMemcpyAsync(&host, failed, sizeof host, cudaMemcpyDefault, stream));
                         OK(cudaFree(failed));
                         OK(cudaStreamDestroy(stream));
                         return host == 0;
                     }),
                     ORDERS);
}

static __global__ void copy_by_way(float *to, const float *from, bool wait)
{
    float *kept = shared_memory<float>();
    const unsigned i = threadIdx.x;

    copy_async<4>(shared_at(kept + i), from + i, i > 0);
    copy_commit();
    if (wait)
        copy_wait<0>();
    __syncthreads();
    to[i] = kept[i];
}

static bool copies(bool wait)
{
    cudaStream_t stream = make_stream();
    float *from = on_device<float>(32), *to = on_device<float>(32), host[32], back[32];

    for (int i = 0; i < 32; i++)
        host[i] = (float)(i + 7);
    OK(cudaMemcpyAsync(from, host, sizeof host, cudaMemcpyHostToDevice, stream));
    OK(launch(copy_by_way, 1, 32, sizeof host, stream, to, from, wait));
    OK(cudaMemcpyAsync(back, to, sizeof back, cudaMemcpyDeviceToHost, stream));
    host[0] = 0;
    OK(cudaFree(from));
    OK(cudaFree(to));
    OK(cudaStreamDestroy(stream));
    return memcmp(host, back, sizeof host) == 0;
}

TEST(an_asynchronous_copy_not_waited_for_is_a_wrong_result)
{
    ck_assert_int_eq(n_right([]() { return copies(true); }), ORDERS);
    ck_assert_int_eq(n_right([]() { return copies(false); }), 0);
}

static __global__ void sum_of_two(float *to, const float *from)
{
    __shared__ float kept[2];

    kept[threadIdx.x] = from[threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0)
        *to = kept[0] + kept[1];
}

TEST(shared_memory_that_was_never_written_shows)
{
    cudaStream_t stream = make_stream();
    float *from = on_device<float>(2), host[2] = {1, 2};

    OK(cudaMemcpyAsync(from, host, sizeof host, cudaMemcpyHostToDevice, stream));
    OK(launch(sum_of_two, 1, 2, 0, stream, from, (const float *)from));
    OK(cudaMemcpyAsync(host, from, sizeof *host, cudaMemcpyDeviceToHost, stream));
    ck_assert_float_eq(host[0], 3);
    OK(launch(sum_of_two, 1, 1, 0, stream, from, (const float *)from)); /* one is missing */
    OK(cudaMemcpyAsync(host, from, sizeof *host, cudaMemcpyDeviceToHost, stream));
    ck_assert(isnan(host[0]));
    OK(cudaFree(from));
    OK(cudaStreamDestroy(stream));
}

/* ---- memory ---- */

static __global__ void fill(float *to, size_t first)
{
    to[first + blockIdx.x * blockDim.x + threadIdx.x] = 1;
}

TEST(memory_past_an_allocation_is_a_fault)
{
    SAYS_OR_ASAN("cudasim: device memory of 252 bytes is damaged at byte 252", /* the tail: 63 of 64 */
                 launch(fill, 1, THREADS, 0, make_stream(), on_device<float>(63), (size_t)0);
                 cudaDeviceSynchronize(););
    SAYS_OR_ASAN("cudasim: device memory of 1200000 bytes is damaged at byte 1200000", /* far from its beginning */
                 launch(fill, 1, 1, 0, make_stream(), on_device<float>(300000), (size_t)300000);
                 cudaDeviceSynchronize(););
    SAYS_OR_ASAN("is damaged at byte -4", launch(fill, 1, 1, 0, make_stream(), on_device<float>(1), (size_t)-1);
                 cudaDeviceSynchronize(););
    SAYS("kernel fill(float*, unsigned long), block (0, 0, 0): thread 0: byte 8000 of device memory of 4 bytes is "
         "touched",
         launch(fill, 1, 1, 0, make_stream(), on_device<float>(1), (size_t)2000);
         cudaDeviceSynchronize(););
    SAYS("kernel fill(float*, unsigned long), argument 0: 0 bytes at byte 256 of device memory of 252 bytes",
         launch(fill, 1, 1, 0, make_stream(), on_device<float>(63) + 64, (size_t)0););
    SAYS("cudaMemsetAsync: 8 bytes at byte 0 of device memory of 4 bytes",
         cudaMemsetAsync(on_device<float>(1), 0, 8, make_stream()););
}

static __global__ void fill_shared(unsigned n)
{
    shared_memory<char>()[n] = 1;
}

TEST(shared_memory_past_what_was_asked_for_is_a_fault)
{
    SAYS_OR_ASAN("kernel fill_shared(unsigned int), block (0, 0, 0): shared memory is damaged at byte 100 of 100",
                 launch(fill_shared, 1, 1, 100, make_stream(), 100u);
                 cudaDeviceSynchronize(););
    SAYS("memory past the block's shared memory is touched", launch(fill_shared, 1, 1, 128, make_stream(), 128u);
         cudaDeviceSynchronize(););
}

struct pair_of_pointers {
    float *to;
    const float *from;
};

TEST(host_memory_that_is_not_registered_is_a_fault_in_a_kernel)
{
    SAYS("cudasim: kernel fill(float*, unsigned long), argument 0: ",
         launch(fill, 1, 1, 0, make_stream(), (float *)malloc(4), (size_t)0););
    SAYS("is host memory that is not registered", pair_of_pointers both = {on_device<float>(1), (float *)malloc(4)};
         launch(
             +[](pair_of_pointers p) { *p.to = *p.from; }, 1, 1, 0, make_stream(), both););
    SAYS("is registered memory that is not to be written", void *memory = malloc(64);
         OK(cudaHostRegister(memory, 64, cudaHostRegisterReadOnly));
         launch(fill, 1, 1, 0, make_stream(), (float *)memory, (size_t)0););
    SAYS("is host memory that is not registered", /* any more */
         void *memory = malloc(64);
         OK(cudaHostRegister(memory, 64, cudaHostRegisterMapped));
         launch(fill, 1, 1, 0, make_stream(), (float *)memory, (size_t)0); OK(cudaHostUnregister(memory));
         cudaDeviceSynchronize(););
}

TEST(what_is_freed_or_destroyed_is_not_used)
{
    SAYS("is device memory that has been freed", float *memory = on_device<float>(1); OK(cudaFree(memory));
         launch(fill, 1, 1, 0, make_stream(), memory, (size_t)0););
    SAYS("is not device memory, or has been freed", float *memory = on_device<float>(1); OK(cudaFree(memory));
         cudaFree(memory););
    SAYS("is destroyed", cudaStream_t stream = make_stream(); OK(cudaStreamDestroy(stream));
         cudaStreamSynchronize(stream););
    SAYS("the default stream is not simulated", cudaStreamSynchronize(NULL););
}

TEST(what_is_left_at_the_end_is_a_fault)
{
    SAYS("cudasim: 28 bytes of device memory are left at the end", on_device<float>(7););
    SAYS("8 bytes of host memory are left allocated at the end", page_locked<float>(2););
    SAYS(" is left at the end", make_stream(););
    SAYS("2 handles of cuBLASLt are left", cublasLtHandle_t handle; cublasLtCreate(&handle); cublasLtCreate(&handle););
    hear([]() { cudaFree(on_device<float>(7)); });
    ck_assert_str_eq(text, "");
}

TEST(the_host_does_not_touch_device_memory)
{
    SAYS("the host touches device memory, byte 12 of 64", on_device<volatile float>(16)[3] = 1;);
    SAYS("the host touches device memory, byte 0 of 4", float *memory = on_device<float>(1);
         OK(launch(fill, 1, 1, 0, make_stream(), memory, (size_t)0)); OK(cudaDeviceSynchronize()); *memory = 1;);
    SAYS("the host touches device memory, byte 1199996 of 1200000", float *memory = on_device<float>(300000);
         OK(launch(fill, 1, 1, 0, make_stream(), memory, (size_t)299999)); OK(cudaDeviceSynchronize());
         memory[299999] = 1;);
}

/* Fresh memory is full of NaNs. */
TEST(memory_that_was_never_written_shows)
{
    cudaStream_t stream = make_stream();
    float *memory = on_device<float>(1), host = 0;

    OK(cudaMemcpyAsync(&host, memory, sizeof host, cudaMemcpyDeviceToHost, stream));
    ck_assert(isnan(host));
    OK(cudaFree(memory));
    OK(cudaStreamDestroy(stream));
}

/* ---- launches ---- */

TEST(launches_that_no_device_takes_are_refused)
{
    cudaStream_t stream = make_stream();

    ck_assert_int_eq(launch(some_return, 0, THREADS, 0, stream, 64), cudaErrorInvalidConfiguration);
    ck_assert_int_eq(launch(some_return, dim3(1, 65536), THREADS, 0, stream, 64), cudaErrorInvalidConfiguration);
    ck_assert_int_eq(launch(some_return, 1, 0, 0, stream, 64), cudaErrorInvalidConfiguration);
    ck_assert_int_eq(launch(some_return, 1, 1025, 0, stream, 64), cudaErrorInvalidConfiguration);
    ck_assert_int_eq(launch(fill_shared, 1, 1, 49153, stream, 0u), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaGetLastError(), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaGetLastError(), cudaSuccess);
    OK(allow_shared(fill_shared, 227 << 10));
    OK(launch(fill_shared, 1, 1, 227 << 10, stream, 0u));
    ck_assert_int_eq(allow_shared(fill_shared, (227 << 10) + 1), cudaErrorInvalidValue);
    OK(cudaStreamDestroy(stream));
}

TEST(what_was_called_is_counted)
{
    const struct cudasim_counts before = cudasim_count();

    ck_assert(shifts(1, true));
    const struct cudasim_counts after = cudasim_count();
    ck_assert_uint_eq(after.launches - before.launches, 1);
    ck_assert_uint_eq(after.copies - before.copies, 2);
    ck_assert_uint_eq(after.pageable_copies - before.pageable_copies, 2);
    ck_assert_uint_eq(after.allocations - before.allocations, 4);
    ck_assert_uint_eq(after.device_waits + after.stream_waits + after.event_waits, 0);
}
