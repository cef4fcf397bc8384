/* tools/bench/cuda/bench.h - what the parts of bench_cuda share: the device under test, its memory, and times of one thing
 * beside those of another, taken in turns so that a clock that changes changes both.
 *
 * Every part prints lines "NAME|NUMBER|TEXT", as tools/gpu/measure.sh reads them. */
#ifndef TOOLS_BENCH_CUDA_BENCH_H
#define TOOLS_BENCH_CUDA_BENCH_H

#include "device/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>

struct bench {
    const struct device_ops *ops;
    struct device *dev; /* bf16 */
    char *next;         /* of the arena, what is not taken yet */
    size_t left;
    bool small;                    /* shapes for the simulator */
    enum plan_attention attention; /* the device's */
    cudaStream_t stream;           /* of what is measured beside ours */
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

/* Bytes of the arena, of any content; never given back but by bench_release. */
void *bench_take(struct bench *b, size_t bytes);
/* All that was taken since `mark` was b->next. */
void bench_release(struct bench *b, char *mark);
/* n normal deviates, as values (bf16) or in fp32. */
void *bench_values(struct bench *b, size_t n);
float *bench_floats(struct bench *b, size_t n);

/* Queues one thing; called many times before anyone waits. */
typedef void bench_run(struct bench *b, void *context);

/* Milliseconds of one call each, the middle of several rounds, in each of which every one of the n is repeated for long
 * enough. Ours or the other's: all of the device is waited for. */
enum { BENCH_MOST = 3 };
void bench_times(struct bench *b, double ms[], bench_run *const run[], void *context, unsigned n);

/* The parts. */
void bench_products(struct bench *b);
void bench_rows(struct bench *b);
void bench_copies(struct bench *b);
void bench_attention(struct bench *b);

#endif
