/* The CPU's activations in every instruction set, to the unit in the last place; and the memory that products do not
 * take. */
#include "device/cpu/cpu.h"
#include "tests/kit/device/operation.h"
#include "tests/kit/reference/reference.h"
#include "tests/kit/test.h"
#include "device/find.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(long)

static struct device *open_cpu(unsigned n_threads)
{
    struct device *dev;

    ck_assert_int_eq(device_cpu.open(&dev, 0, NUMBER_FP32, 4096, n_threads, NULL), 0);
    return dev;
}

/* Every 1/512 from -15 to 15, and a few more, so that the last vector is not whole. */
enum { GRID = 30 * 512 + 5 };

/* In units of the last place of the result, or of `least` where it is smaller: there it is a small difference of larger
 * terms, which PyTorch's form has no nearer in fp32. */
static double worst_ulp(const float *got, const double *want, double least)
{
    double worst = 0;

    for (int i = 0; i < GRID; i++) {
        int exponent;
        frexp(fmax(fabs(want[i]), least), &exponent);
        worst = fmax(worst, fabs((double)got[i] - want[i]) / ldexp(1, exponent - 24));
    }
    return worst;
}

/* A product's epilogue gives the same bits (test_rows.c). */
static void check_activation(struct device *dev, enum model_activation activation)
{
    static float x[GRID], out[GRID], gradient[GRID];
    static double want[GRID], slope[GRID];

    for (int i = 0; i < GRID; i++) {
        x[i] = (float)(i - GRID / 2) / 512;
        gradient[i] = 3;
        want[i] = reference_activation(activation, (double)x[i]);
        slope[i] = 3 * reference_activation_gradient(activation, (double)x[i]);
    }
    const struct device_activate op = {.n = GRID, .activation = activation, .x = x, .y = out, .gradient = gradient};

    device_cpu.activate(dev, &op);
    device_cpu.activate_backward(dev, &op);
    ck_assert_double_le(worst_ulp(out, want, 0.25), 3);
    ck_assert_double_le(worst_ulp(gradient, slope, 1), 4); /* of a slope of 3 ulp, times 3, rounded again */
}

SUITE_FIXTURE(mirror_forget, NULL)

TEST_RANGE(activations_and_slopes_are_within_three_ulp, MODEL_GELU_NEW, MODEL_ACTIVATIONS)
{
    for (int isa = CPU_V2; isa < CPU_ISAS; isa++) {
        struct device *dev;
        if (!cpu_isa_runs((enum cpu_isa)isa))
            continue;
        dev = open_cpu(2);
        cpu_isa_use(dev, (enum cpu_isa)isa);
        check_activation(dev, (enum model_activation)_i);
        device_cpu.close(dev);
    }
}

/* Bytes of this process that are private and in memory. */
static size_t anonymous_bytes(void)
{
    char line[256];
    size_t kib = 0;
    FILE *file = fopen("/proc/self/status", "r");

    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "RssAnon: %zu kB", &kib) == 1)
            break;
    fclose(file);
    return kib << 10;
}

/* The second call finds everything there; the first may have brought threads, whose stacks are not the device's. */
TEST(products_take_no_memory)
{
    const size_t n = 3072 * 1024;
    float *a = operation_values(NUMBER_FP32, n, 1), *b = operation_values(NUMBER_FP32, n, 2),
          *c = operation_values(NUMBER_FP32, n, 3);
    struct device *dev = open_cpu(2);
    size_t before = 0;

    for (int i = 0; i < 4; i++) {
        const bool ta = i % 2, tb = !ta;
        const size_t m = ta ? 768 : 1024, k = ta ? 1024 : 768;
        const struct device_matmul op = {ta, tb, m, 3072, k, a, b, ta ? m : k, tb ? k : 3072, 3072, .c = c};
        device_cpu.matmul(dev, &op);
        if (i == 0)
            before = anonymous_bytes();
        if (!SANITIZED)
            ck_assert_uint_le(anonymous_bytes(), before + (64 << 10)); /* of the C library's own */
    }
    device_cpu.close(dev);
}
