#include "tests/operation.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct device *operation_open(enum number_type type, unsigned n_threads)
{
    struct device *dev;

    ck_assert_int_eq(device_cpu.open(&dev, 0, type, 4096, n_threads, NULL), 0);
    return dev;
}

float operation_get(enum number_type type, const void *x, size_t i)
{
    return type == NUMBER_BF16 ? number_from_bf16(((const uint16_t *)x)[i]) : ((const float *)x)[i];
}

void operation_set(enum number_type type, void *x, size_t i, float to)
{
    if (type == NUMBER_BF16)
        ((uint16_t *)x)[i] = number_to_bf16(to);
    else
        ((float *)x)[i] = to;
}

void *operation_room(enum number_type type, size_t n)
{
    void *room = malloc(n > 0 ? n * number_bytes(type) : 1);

    ck_assert_ptr_nonnull(room);
    return room;
}

void *operation_values(enum number_type type, size_t n, uint32_t seed)
{
    float *drawn = operation_room(NUMBER_FP32, n);
    void *values;

    random_normal(drawn, (struct random_key){{seed, 1}}, 0, 0, n);
    if (type == NUMBER_FP32)
        return drawn;
    values = operation_room(type, n);
    for (size_t i = 0; i < n; i++)
        operation_set(type, values, i, drawn[i]);
    free(drawn);
    return values;
}

double *operation_widen(enum number_type type, const void *x, size_t n)
{
    double *wide = operation_zeros(n);

    for (size_t i = 0; i < n; i++)
        wide[i] = (double)operation_get(type, x, i);
    return wide;
}

double *operation_zeros(size_t n)
{
    double *zeros = calloc(n + 1, sizeof(double));

    ck_assert_ptr_nonnull(zeros);
    return zeros;
}

static enum number_type type_of(const struct operation *operation, int part)
{
    return operation->parts[part].wide ? NUMBER_FP32 : operation->type;
}

static size_t bytes_of(const struct operation *operation, int part)
{
    return operation->parts[part].n * number_bytes(type_of(operation, part));
}

static void run(const struct operation *operation, struct device *dev, void *const out[])
{
    for (int p = 0; p < OPERATION_PARTS && operation->parts[p].n > 0; p++) {
        const struct operation_part *part = &operation->parts[p];
        if (part->initial)
            memcpy(out[p], part->initial, bytes_of(operation, p));
        else
            for (size_t i = 0; i < part->n; i++)
                operation_set(type_of(operation, p), out[p], i, 1e30f);
    }
    operation->run(dev, out, operation->context);
}

void operation_run(const struct operation *operation, void *const out[])
{
    struct device *dev = operation_open(operation->type, 1);

    run(operation, dev, out);
    device_cpu.close(dev);
}

/* Half a unit of the last place of a number of this size. */
static double half_unit(double size)
{
    int exponent;

    frexp(size, &exponent);
    return ldexp(1, exponent - 9);
}

static void compare(const struct operation *operation, int p, const void *out, int isa)
{
    const struct operation_part *part = &operation->parts[p];
    const enum number_type type = type_of(operation, p);
    double largest = 0;

    for (size_t i = 0; i < part->n; i++)
        largest = fmax(largest, fabs(part->expected[i]));
    const double near = part->tolerance * largest;
    for (size_t i = 0; i < part->n; i++) {
        const double got = (double)operation_get(type, out, i), want = part->expected[i];
        const double rounding = type == NUMBER_BF16 ? half_unit(fabs(want) + near) : 0;
        if (!(fabs(got - want) <= near + rounding)) /* an assertion is slow */
            ck_abort_msg("%s[%zu] in %s on v%d is %.9g, not %.9g: off by %.3g of the largest", part->name, i,
                         number_name(type), isa + 2, got, want, fabs(got - want) / largest);
    }
}

static void check_isa(const struct operation *operation, enum cpu_isa isa)
{
    void *first[OPERATION_PARTS] = {NULL}, *again[OPERATION_PARTS] = {NULL};

    for (int p = 0; p < OPERATION_PARTS; p++) {
        first[p] = operation_room(type_of(operation, p), operation->parts[p].n);
        again[p] = operation_room(type_of(operation, p), operation->parts[p].n);
    }
    for (unsigned n_threads = 1; n_threads <= 3; n_threads++) {
        struct device *dev = operation_open(operation->type, n_threads);

        cpu_isa_use(dev, isa);
        run(operation, dev, n_threads == 1 ? first : again);
        device_cpu.close(dev);
        for (int p = 0; p < OPERATION_PARTS && operation->parts[p].n > 0; p++)
            if (n_threads == 1)
                compare(operation, p, first[p], (int)isa);
            else
                ck_assert_msg(memcmp(first[p], again[p], bytes_of(operation, p)) == 0,
                              "v%d: %u threads give other bits", (int)isa + 2, n_threads);
    }
    for (int p = 0; p < OPERATION_PARTS; p++) {
        free(first[p]);
        free(again[p]);
    }
}

void operation_check(const struct operation *operation)
{
    for (int isa = CPU_V2; isa < CPU_ISAS; isa++)
        if (cpu_isa_runs((enum cpu_isa)isa))
            check_isa(operation, (enum cpu_isa)isa);
}
