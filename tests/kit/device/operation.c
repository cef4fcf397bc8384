#include "tests/kit/device/operation.h"

#include "device/cpu/cpu.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    return mirror_array(n, number_bytes(type));
}

void *operation_values(enum number_type type, size_t n, uint32_t seed)
{
    float *drawn = malloc((n > 0 ? n : 1) * sizeof *drawn);
    void *values = operation_room(type, n);

    ck_assert_ptr_nonnull(drawn);
    random_normal(drawn, (struct random_key){{seed, 1}}, 0, 0, n);
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
    return mirror_host_array(n, sizeof(double));
}

static bool is_bf16(const struct operation *operation, unsigned part)
{
    return operation->parts[part].type == OPERATION_VALUES && operation->type == NUMBER_BF16;
}

static size_t element_bytes(const struct operation *operation, unsigned part)
{
    if (operation->parts[part].type == OPERATION_FP64)
        return sizeof(double);
    return is_bf16(operation, part) ? sizeof(uint16_t) : sizeof(float);
}

static size_t bytes_of(const struct operation *operation, unsigned part)
{
    return operation->parts[part].n * element_bytes(operation, part);
}

static double get(const struct operation *operation, unsigned part, const void *x, size_t i)
{
    if (operation->parts[part].type == OPERATION_FP64)
        return ((const double *)x)[i];
    return (double)operation_get(is_bf16(operation, part) ? NUMBER_BF16 : NUMBER_FP32, x, i);
}

static unsigned n_parts(const struct operation *operation)
{
    unsigned n = 0;

    while (n < OPERATION_PARTS && operation->parts[n].n > 0)
        n++;
    return n;
}

static void fill(const struct operation *operation, unsigned p, void *out)
{
    const struct operation_part *part = &operation->parts[p];

    if (part->initial)
        memcpy(out, part->initial, bytes_of(operation, p));
    for (size_t i = 0; i < part->n && !part->initial; i++)
        if (part->type == OPERATION_FP64)
            ((double *)out)[i] = 1e30;
        else
            operation_set(is_bf16(operation, p) ? NUMBER_BF16 : NUMBER_FP32, out, i, 1e30f);
}

static void run(const struct operation *operation, struct mirror *at, void *const out[])
{
    const unsigned n = n_parts(operation);
    void *there[OPERATION_PARTS] = {NULL};

    for (unsigned p = 0; p < n; p++)
        fill(operation, p, out[p]);
    mirror_begin(at);
    for (unsigned p = 0; p < n; p++)
        there[p] = mirror_of(at, out[p]);
    operation->run(at, there, operation->context);
    mirror_end(at, out, n);
}

void operation_run(const struct operation *operation, void *const out[])
{
    struct mirror at;

    mirror_open(&at, operation->type, 1, false);
    run(operation, &at, out);
    mirror_close(&at);
}

/* Half a unit of the last place of a number of this size. */
static double half_unit(double size)
{
    int exponent;

    frexp(size, &exponent);
    return ldexp(1, exponent - 9);
}

static void compare(const struct operation *operation, unsigned p, const void *out, const char *way)
{
    const struct operation_part *part = &operation->parts[p];
    double largest = 0;

    for (size_t i = 0; i < part->n; i++)
        largest = fmax(largest, fabs(part->expected[i]));
    const double near = part->tolerance * largest;
    for (size_t i = 0; i < part->n; i++) {
        const double got = get(operation, p, out, i), want = part->expected[i];
        const double rounding = is_bf16(operation, p) ? half_unit(fabs(want) + near) : 0;
        if (isnan(want) ? isfinite(got) : !(fabs(got - want) <= near + rounding)) /* an assertion is slow */
            ck_abort_msg("%s[%zu] in %s on %s is %.9g, not %.9g: off by %.3g of the largest", part->name, i,
                         number_name(operation->type), way, got, want, fabs(got - want) / largest);
    }
}

static void check_same(const struct operation *operation, void *const one[], void *const other[], const char *way)
{
    for (unsigned p = 0; p < n_parts(operation); p++)
        ck_assert_msg(memcmp(one[p], other[p], bytes_of(operation, p)) == 0, "%s gives other bits", way);
}

static void check_near(const struct operation *operation, void *const out[], const char *way)
{
    for (unsigned p = 0; p < n_parts(operation); p++)
        compare(operation, p, out[p], way);
}

static void check_isa(const struct operation *operation, void *const first[], void *const again[], enum cpu_isa isa)
{
    static const char *const names[CPU_ISAS] = {"v2", "v3", "v4", "v4 with pairs"};

    for (unsigned n_threads = 1; n_threads <= 3; n_threads++) {
        struct mirror at;

        mirror_open(&at, operation->type, n_threads, false);
        cpu_isa_use(at.dev, isa);
        run(operation, &at, n_threads == 1 ? first : again);
        mirror_close(&at);
        if (n_threads == 1)
            check_near(operation, first, names[isa]);
        else
            check_same(operation, first, again, names[isa]);
    }
}

static void check_cuda(const struct operation *operation, void *const first[], void *const again[])
{
    const struct backend *backend = backend_get();
    struct mirror at;

    mirror_open(&at, operation->type, 1, false);
    run(operation, &at, first);
    check_near(operation, first, "cuda");
    for (unsigned threads = 1; threads <= (backend->order ? 2 : 1); threads++) {
        if (backend->order)
            backend->order(0, threads, 7);
        run(operation, &at, again);
        check_same(operation, first, again, "cuda, once more,");
    }
    if (backend->order)
        backend->order(0, 0, 0);
    mirror_close(&at);
    mirror_open(&at, operation->type, 1, true);
    run(operation, &at, again);
    check_near(operation, again, "cuda, not aligned,");
    if (operation->is_elementwise)
        check_same(operation, first, again, "cuda, not aligned,");
    mirror_close(&at);
}

void operation_check(const struct operation *operation)
{
    void *first[OPERATION_PARTS] = {NULL}, *again[OPERATION_PARTS] = {NULL};

    for (unsigned p = 0; p < n_parts(operation); p++) {
        first[p] = mirror_array(operation->parts[p].n, element_bytes(operation, p));
        again[p] = mirror_array(operation->parts[p].n, element_bytes(operation, p));
    }
    if (backend_get()->cuda)
        check_cuda(operation, first, again);
    else
        for (int isa = CPU_V2; isa < CPU_ISAS; isa++)
            if (cpu_isa_runs((enum cpu_isa)isa))
                check_isa(operation, first, again, (enum cpu_isa)isa);
}
