/* tests/operation.h - runs one operation of the CPU device every way it can run, and compares.
 *
 * Every instruction set of this machine, 1, 2 and 3 threads: the results on the same instruction set are equal bit for
 * bit, and all are near what the reference says. */
#ifndef TESTS_OPERATION_H
#define TESTS_OPERATION_H

#include "device/cpu/cpu.h"

/* A run of the results, and how far its elements may be from the expected ones, relative to the largest of those. */
struct operation_part {
    const char *name;
    size_t n;
    const double *expected;
    double tolerance;
};

enum { OPERATION_PARTS = 4 };

struct operation {
    void (*run)(struct device *dev, float *out, const void *context);
    const void *context;
    const float *initial; /* what `out` holds before, all parts one after the other; NULL: a number no result has */
    struct operation_part parts[OPERATION_PARTS]; /* up to the first of n = 0 */
};

void operation_check(const struct operation *operation);

/* Runs on the best instruction set and one thread; for comparisons of one call with another. */
void operation_run(const struct operation *operation, float *out);

/* A device of n_threads; asserts that it opens. */
struct device *operation_open(unsigned n_threads);

/* n normal deviates, other ones for each seed; owned by the caller: free. */
float *operation_values(size_t n, uint32_t seed);
/* The same numbers in double, owned; and an array of n zeros. */
double *operation_widen(const float *x, size_t n);
double *operation_zeros(size_t n);

#endif
