/* The CPU's own exponential and hyperbolic tangent, in every instruction set. */
#include "device/cpu/cpu.h"
#include "tests/kit/test.h"
#include "device/find.h"

#include <math.h>

/* With maximum 0 and sum 1 the gradient is the exponential itself: every 1/64 from -87 to 88. */
enum { GRID = 175 * 64 };

TEST_RANGE(the_exponential_is_within_one_ulp, CPU_V2, CPU_ISAS)
{
    static float out[GRID];
    float running[3] = {0, 1, 0};
    const uint32_t label = GRID + 1;

    if (!cpu_isa_runs((enum cpu_isa)_i))
        TEST_SKIP("this processor lacks the instructions");
    struct device *dev;
    ck_assert_int_eq(device_cpu.open(&dev, 0, NUMBER_FP32, 4096, 1, NULL), 0);
    cpu_isa_use(dev, (enum cpu_isa)_i);
    for (int i = 0; i < GRID; i++)
        out[i] = (float)i / 64 - 87;
    device_cpu.cross_entropy_gradient(dev, &(struct device_cross_entropy){.m = 1,
                                                                          .n = GRID,
                                                                          .logits_stride = GRID,
                                                                          .logits = out,
                                                                          .labels = &label,
                                                                          .running = running,
                                                                          .scale = 1});
    for (int i = 0; i < GRID; i++) { /* in units of the last place of 1, so that each counts the same */
        const double ulp = ((double)out[i] / exp((double)i / 64 - 87) - 1) / 0x1p-23;
        if (!(fabs(ulp) <= 1))
            ck_abort_msg("v%d: exp(%g) is off by %g ulp", _i + 2, i / 64.0 - 87, ulp);
    }
    device_cpu.close(dev);
}

/* With a cap of 1: every 1/512 from -12 to 12, but 0, which gives 0; infinities; and a NaN, which stays. Relative to
 * each value, since small logits must keep their digits. */
enum { TANGENTS = 24 * 512 + 1 };

TEST_RANGE(the_hyperbolic_tangent_is_within_two_ulp, CPU_V2, CPU_ISAS)
{
    static float out[TANGENTS];
    float ends[] = {INFINITY, -INFINITY, NAN};

    if (!cpu_isa_runs((enum cpu_isa)_i))
        TEST_SKIP("this processor lacks the instructions");
    struct device *dev;
    ck_assert_int_eq(device_cpu.open(&dev, 0, NUMBER_FP32, 4096, 1, NULL), 0);
    cpu_isa_use(dev, (enum cpu_isa)_i);
    for (int i = 0; i < TANGENTS; i++)
        out[i] = (float)i / 512 - 12;
    device_cpu.soft_cap(dev, &(struct device_soft_cap){out, TANGENTS, 1});
    device_cpu.soft_cap(dev, &(struct device_soft_cap){ends, 3, 1});
    ck_assert(out[TANGENTS / 2] == 0 && ends[0] == 1 && ends[1] == -1 && isnan(ends[2]));
    for (int i = 0; i < TANGENTS; i++) {
        const double want = tanh((double)i / 512 - 12), ulp = ((double)out[i] - want) / (fabs(want) * 0x1p-23);
        if (!(i == TANGENTS / 2 || fabs(ulp) <= 2))
            ck_abort_msg("v%d: tanh(%g) is off by %g ulp", _i + 2, i / 512.0 - 12, ulp);
    }
    device_cpu.close(dev);
}
