/* tests/kit/device/operation.h - runs one device operation in every way there is, and compares.
 *
 * On the CPU: every instruction set of this machine; on the best one, with 1, 2 and 3 threads, whose results are equal
 * bit for bit: work is divided by shapes alone. On a CUDA device (tests/kit/device/backend.h): twice, the results equal
 * bit for bit, and once more with arrays that begin where no vector may be loaded; on the simulated one in three orders
 * of threads and blocks. All are near what the reference says.
 *
 * What the reference says is computed in double from the values as the device gets them. A result that is bf16 may be
 * off by what fp32 arithmetic may be off, and by its one rounding on top: half a unit in the last place. */
#ifndef TESTS_KIT_DEVICE_OPERATION_H
#define TESTS_KIT_DEVICE_OPERATION_H

#include "proto/operation/call.h"
#include "tests/kit/device/mirror.h"

/* One array of results, and how far its elements may be from the expected ones, relative to the largest of those. */
struct operation_part {
    const char *name;
    size_t n;
    const double *expected; /* a NaN: one that is not finite */
    double tolerance;       /* of fp32 */
    const void *initial;    /* what it holds before, in its type; NULL: a number no result has */
    enum call_type type;    /* VALUES: the device's */
};

enum { OPERATION_PARTS = 9 };

struct operation {
    enum number_type type; /* of the device's values */
    /* Queues what is to be tested on at->dev. out[p]: where part p lies there; for all else, mirror_of. */
    void (*run)(struct mirror *at, void *const out[], const void *context);
    const void *context;
    bool is_elementwise;                          /* where arrays begin changes no bit */
    struct operation_part parts[OPERATION_PARTS]; /* up to the first of n = 0 */
};

void operation_check(const struct operation *operation);

/* In each way, but with one thread and order, both leave the same bits in their parts, which are alike. */
void operation_check_alike(const struct operation *one, const struct operation *other);

/* Runs once, on the CPU's best instruction set and one thread; for comparisons of one call with another. out[p]: arrays
 * of operation_room. */
void operation_run(const struct operation *operation, void *const out[]);

/* n normal deviates, other ones for each seed. All arrays of these functions live until the test's end. */
void *operation_values(enum number_type type, size_t n, uint32_t seed);
/* n values of the number type, zeros. */
void *operation_room(enum number_type type, size_t n);
/* For the host alone: the same numbers in double; and n zeros. */
double *operation_widen(enum number_type type, const void *x, size_t n);
double *operation_zeros(size_t n);

/* Element i, and setting it, rounded to its type. */
float operation_get(enum number_type type, const void *x, size_t i);
void operation_set(enum number_type type, void *x, size_t i, float to);

/* ---- one call, against the reference ---- */

/* In the place of an optional array: there is one. */
extern char call_given[];

struct call_test {
    enum number_type type;
    struct call call; /* sizes and options; the arrays are made: normal deviates, also in what is written */
    double (*near)(const struct call_test *test, const char *output); /* its tolerance */
    void (*prepare)(struct call_test *test); /* or NULL: fills what is not drawn; ids and the like are zeros before */
    /* Or NULL: on the device, before the call, which it may change; leaves there what backward reads of forward. */
    void (*before)(struct mirror *at, struct call *call, const struct call_test *test);
    struct {
        const char *written, *read; /* the first lies where the second does */
    } onto[2];
    enum call_place { CALL_ON_DEVICE, CALL_ON_HOST, CALL_LENT } table; /* where an array is that may be anywhere */
    bool is_elementwise;
    struct call host;      /* once it is made: with the host's arrays */
    struct call_work work; /* its */
};

/* operation_check of it, in the type. */
void call_check(struct call_test *test);
/* Makes the arrays, without a check. */
void call_make(struct call_test *test);
/* One of them, which is there; by its name. */
const struct call_array *call_find(const struct call_test *test, const char *name);
/* What the reference makes of them as they are: (n) each, in the order of test->work.arrays. */
void call_expect(const struct call_test *test, const double *expected[CALL_ARRAYS]);
/* Runs once, as operation_run; outputs are then the call's. */
void call_once(struct call_test *test);

#endif
