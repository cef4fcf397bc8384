/* tests/operation.h - runs one device operation in every way the CPU has, and compares.
 *
 * Every instruction set of this machine, 1, 2 and 3 threads: the results on the same instruction set are equal bit for
 * bit, and all are near what the reference says.
 *
 * What the reference says is computed in double from the values as the device gets them. A result that is bf16 may be
 * off by what fp32 arithmetic may be off, and by its one rounding on top: half a unit in the last place. */
#ifndef TESTS_OPERATION_H
#define TESTS_OPERATION_H

#include "device/cpu/cpu.h"

/* One array of results, and how far its elements may be from the expected ones, relative to the largest of those. */
struct operation_part {
    const char *name;
    size_t n;
    const double *expected;
    double tolerance;    /* of fp32 */
    const void *initial; /* what it holds before, in its type; NULL: a number no result has */
    bool wide;           /* fp32, whatever the values are */
};

enum { OPERATION_PARTS = 4 };

struct operation {
    enum number_type type;                                                   /* of the device's values */
    void (*run)(struct device *dev, void *const out[], const void *context); /* out[p]: part p */
    const void *context;
    struct operation_part parts[OPERATION_PARTS]; /* up to the first of n = 0 */
};

void operation_check(const struct operation *operation);

/* Runs on the best instruction set and one thread; for comparisons of one call with another. */
void operation_run(const struct operation *operation, void *const out[]);

/* A device of n_threads; asserts that it opens. */
struct device *operation_open(enum number_type type, unsigned n_threads);

/* n normal deviates, other ones for each seed; owned by the caller: free. */
void *operation_values(enum number_type type, size_t n, uint32_t seed);
/* n values of the number type, of any content; owned. */
void *operation_room(enum number_type type, size_t n);
/* The same numbers in double, owned; and an array of n zeros. */
double *operation_widen(enum number_type type, const void *x, size_t n);
double *operation_zeros(size_t n);

/* Element i, and setting it, rounded to its type. */
float operation_get(enum number_type type, const void *x, size_t i);
void operation_set(enum number_type type, void *x, size_t i, float to);

#endif
