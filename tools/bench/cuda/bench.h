/* tools/bench/cuda/bench.h - shared by the parts of bench_cuda: the device under test, its memory, and alternating
 * measurements, so that a changing clock affects all of them.
 *
 * Every part prints lines "NAME|NUMBER|TEXT", which tools/gpu/measure.sh reads. */
#ifndef TOOLS_BENCH_CUDA_BENCH_H
#define TOOLS_BENCH_CUDA_BENCH_H

#include "device/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>

struct bench {
    const struct device_ops *ops;
    struct device *dev; /* bf16 */
    char *next;         /* first free byte of the arena */
    size_t left;
    bool small;                    /* tiny shapes for the simulator */
    enum plan_attention attention; /* the device's method */
    uint32_t convolution;          /* its library */
    double round_ms;               /* the least that a round of bench_times takes */
    cudaStream_t stream;           /* for what is measured beside ours */
};

/* Ends the program if a call fails. */
#define must(call) bench_must((call), #call)
static inline void bench_must(cudaError_t rc, const char *call)
{
    if (rc != cudaSuccess) {
        fprintf(stderr, "bench_cuda: %s: %s\n", call, cudaGetErrorString(rc));
        exit(1);
    }
}

/* Takes bytes of the arena, with any content; bench_release returns them. */
void *bench_take(struct bench *b, size_t bytes);
/* Returns everything taken since `mark` was b->next. */
void bench_release(struct bench *b, char *mark);
/* n normal deviates, as bf16 values or in fp32. */
void *bench_values(struct bench *b, size_t n);
float *bench_floats(struct bench *b, size_t n);
/* Reads bytes back from the device, once they are computed; the caller frees them. */
void *bench_read_back(struct bench *b, const void *values, size_t bytes);

/* |x - y| / |y| over n values in host memory; NaN if any value is NaN. */
double bench_apart(enum number_type type, const void *x, const void *y, size_t n);
/* How many of n values of so many bytes have other bits. */
size_t bench_count_other(const void *x, const void *y, size_t n, size_t bytes);

/* Queues one piece of work; called many times before a wait. */
typedef void bench_run(struct bench *b, void *context);

/* Measures the milliseconds of one call of each of n functions: the median of several rounds, in each of which every
 * function is repeated long enough. Waits for the whole device, both for ours and for the others. */
enum { BENCH_MOST = 3 };
void bench_times(struct bench *b, double ms[], bench_run *const run[], void *context, unsigned n);

/* The parts. */
void bench_products(struct bench *b);
void bench_rows(struct bench *b);
void bench_copies(struct bench *b);
void bench_attention(struct bench *b);
/* Attention of families, as the backend computes it. */
void bench_families(struct bench *b);
void bench_convolutions(struct bench *b);
/* Attention of a block of Qwen 3, with norms of heads and rotary positions. */
void bench_qwen3(struct bench *b);

#endif
