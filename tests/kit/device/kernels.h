/* tests/kit/device/kernels.h - runs launchers of device/cuda/kernels/kernels.h by themselves on the simulated device.
 *
 * In several orders of threads and blocks, which must not change a bit of what comes back. */
#ifndef TESTS_KIT_DEVICE_KERNELS_H
#define TESTS_KIT_DEVICE_KERNELS_H

#include "device/cuda/kernels/kernels.h"
#include "tests/kit/device/operation.h"
#include "tests/sim/cudasim.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { ARRAYS = 8, PROCESSORS = 2, ORDERS = 3 };

/* An array that a kernel gets: the host's, and where it lies on the device, `off` bytes into its memory. */
struct array {
    void *host;
    size_t bytes, off;
    bool comes_back;
    char *device;
};

struct world {
    struct cuda_queue q;
    struct array arrays[ARRAYS];
};

/* The operation under test, on arrays w->arrays[i].device. */
typedef cudaError_t run_kernels(struct world *w, const void *context);

static inline void ok(cudaError_t rc)
{
    ck_assert_msg(rc == cudaSuccess, "%s", cudaGetErrorString(rc));
}

static inline void *at(const struct world *w, int array)
{
    return w->arrays[array].host ? w->arrays[array].device + w->arrays[array].off : NULL;
}

static inline void run_once(struct world *w, run_kernels *run, const void *context)
{
    ok(cudaSetDevice(0));
    ok(cudaStreamCreateWithFlags(&w->q.stream, cudaStreamNonBlocking));
    ok(cudaMalloc(&w->q.scratch, PLAN_CUDA_SCRATCH_BYTES));
    for (struct array *a = w->arrays; a < w->arrays + ARRAYS && a->host; a++) {
        ok(cudaMalloc((void **)&a->device, a->bytes + a->off));
        ok(cudaMemcpyAsync(a->device + a->off, a->host, a->bytes, cudaMemcpyHostToDevice, w->q.stream));
    }
    ok(run(w, context));
    for (struct array *a = w->arrays; a < w->arrays + ARRAYS && a->host; a++)
        if (a->comes_back)
            ok(cudaMemcpyAsync(a->host, a->device + a->off, a->bytes, cudaMemcpyDeviceToHost, w->q.stream));
    ok(cudaStreamSynchronize(w->q.stream));
    for (struct array *a = w->arrays; a < w->arrays + ARRAYS && a->host; a++)
        ok(cudaFree(a->device));
    ok(cudaFree(w->q.scratch));
    ok(cudaStreamDestroy(w->q.stream));
}

/* In every order of threads and blocks, which must give the same bits; what comes back is in the arrays then. */
static inline void run_orders(struct world *w, run_kernels *run, const void *context)
{
    void *before[ARRAYS] = {NULL}, *first[ARRAYS] = {NULL};

    for (int i = 0; i < ARRAYS && w->arrays[i].host; i++) {
        before[i] = malloc(w->arrays[i].bytes), first[i] = malloc(w->arrays[i].bytes);
        memcpy(before[i], w->arrays[i].host, w->arrays[i].bytes);
    }
    for (unsigned order = 0; order < ORDERS; order++) {
        cudasim_order(CUDASIM_STREAMS_AS_ISSUED, (enum cudasim_threads)order, order);
        for (int i = 0; i < ARRAYS && w->arrays[i].host; i++)
            memcpy(w->arrays[i].host, before[i], w->arrays[i].bytes);
        run_once(w, run, context);
        for (int i = 0; i < ARRAYS && w->arrays[i].host; i++)
            if (order == 0)
                memcpy(first[i], w->arrays[i].host, w->arrays[i].bytes);
            else
                ck_assert_msg(memcmp(first[i], w->arrays[i].host, w->arrays[i].bytes) == 0,
                              "array %d has other bits in order %u", i, order);
    }
    for (int i = 0; i < ARRAYS; i++)
        free(before[i]), free(first[i]);
    cudasim_order(CUDASIM_STREAMS_AS_ISSUED, CUDASIM_THREADS_FORWARD, 0);
}

static inline struct world world_of(enum number_type type)
{
    return (struct world){.q = {.type = type, .n_processors = PROCESSORS}};
}

/* Takes an array's host memory, for as long as the world. */
static inline void add_array(struct world *w, int i, void *host, size_t bytes, bool comes_back)
{
    w->arrays[i] = (struct array){.host = host, .bytes = bytes, .comes_back = comes_back};
}

static inline void *add_values(struct world *w, int i, enum number_type type, size_t n, bool comes_back)
{
    void *x = operation_values(type, n, (uint32_t)i + 1);

    add_array(w, i, x, n * number_bytes(type), comes_back);
    return x;
}

static inline void free_world(struct world *w)
{
    for (int i = 0; i < ARRAYS; i++)
        free(w->arrays[i].host);
}

static inline double get(const struct world *w, int array, size_t i)
{
    return (double)operation_get(w->q.type, w->arrays[array].host, i);
}

#endif
