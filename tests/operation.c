#include "tests/operation.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct device *operation_open(unsigned n_threads)
{
    struct device *dev;

    ck_assert_int_eq(device_cpu.open(&dev, 0, NUMBER_FP32, 4096, n_threads, NULL), 0);
    return dev;
}

float *operation_values(size_t n, uint32_t seed)
{
    float *values = malloc((n + 1) * sizeof *values);

    random_normal(values, (struct random_key){{seed, 1}}, 0, 0, n);
    return values;
}

double *operation_widen(const float *x, size_t n)
{
    double *wide = malloc((n + 1) * sizeof *wide);

    for (size_t i = 0; i < n; i++)
        wide[i] = (double)x[i];
    return wide;
}

double *operation_zeros(size_t n)
{
    return calloc(n + 1, sizeof(double));
}

static size_t count(const struct operation *operation)
{
    size_t n = 0;

    for (int i = 0; i < OPERATION_PARTS; i++)
        n += operation->parts[i].n;
    return n;
}

static void run(const struct operation *operation, struct device *dev, float *out)
{
    const size_t n = count(operation);

    for (size_t i = 0; i < n; i++)
        out[i] = operation->initial ? operation->initial[i] : 1e30f;
    operation->run(dev, out, operation->context);
}

void operation_run(const struct operation *operation, float *out)
{
    struct device *dev = operation_open(1);

    run(operation, dev, out);
    device_cpu.close(dev);
}

static void compare(const struct operation *operation, const float *out, int isa)
{
    for (int p = 0; p < OPERATION_PARTS && operation->parts[p].n > 0; p++) {
        const struct operation_part *part = &operation->parts[p];
        double largest = 0;

        for (size_t i = 0; i < part->n; i++)
            largest = fmax(largest, fabs(part->expected[i]));
        for (size_t i = 0; i < part->n; i++)
            if (!(fabs((double)out[i] - part->expected[i]) <= part->tolerance * largest)) /* an assertion is slow */
                ck_abort_msg("%s[%zu] on v%d is %.9g, not %.9g: off by %.3g of the largest", part->name, i, isa + 2,
                             (double)out[i], part->expected[i], fabs((double)out[i] - part->expected[i]) / largest);
        out += part->n;
    }
}

void operation_check(const struct operation *operation)
{
    const size_t n = count(operation);
    float *first = malloc(n * sizeof *first), *again = malloc(n * sizeof *again);

    for (int isa = CPU_V2; isa < CPU_ISAS; isa++) {
        if (!cpu_isa_runs((enum cpu_isa)isa))
            continue;
        for (unsigned n_threads = 1; n_threads <= 3; n_threads++) {
            struct device *dev = operation_open(n_threads);

            cpu_isa_use(dev, (enum cpu_isa)isa);
            run(operation, dev, n_threads == 1 ? first : again);
            device_cpu.close(dev);
            if (n_threads == 1)
                compare(operation, first, isa);
            else
                ck_assert_msg(memcmp(first, again, n * sizeof *first) == 0, "v%d: %u threads give other bits", isa + 2,
                              n_threads);
        }
    }
    free(first);
    free(again);
}
