/* tools/bench/samples.h - repeated time measurements and their median. */
#ifndef TOOLS_BENCH_SAMPLES_H
#define TOOLS_BENCH_SAMPLES_H

#include <assert.h>
#include <stdlib.h>
#include <time.h>

enum { SAMPLES_MAX = 512 };

struct samples {
    double ms[SAMPLES_MAX];
    size_t n;
};

static inline double samples_now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Adds the time since began_ms. */
static inline void samples_add(struct samples *s, double began_ms)
{
    const double ms = samples_now_ms() - began_ms;

    assert(s->n < SAMPLES_MAX);
    s->ms[s->n++] = ms;
}

static inline int samples_compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sorts the samples, at least one, and returns their median. */
static inline double samples_median(struct samples *s)
{
    qsort(s->ms, s->n, sizeof *s->ms, samples_compare);
    return s->ms[s->n / 2];
}

#endif
