/* The CPU's own exponential, in every instruction set, and what its sums make of numbers that are not finite. */
#include "device/cpu/cpu.h"
#include "tests/kit/test.h"

#include <math.h>

/* With maximum 0 and sum 1 the gradient is the exponential itself: every 1/64 from -87 to 88. */
enum { GRID = 175 * 64 };

static struct device *open_isa(enum cpu_isa isa)
{
    struct device *dev;

    ck_assert_int_eq(device_cpu.open(&dev, 0, NUMBER_FP32, 4096, 1, NULL), 0);
    cpu_isa_use(dev, isa);
    return dev;
}

TEST_RANGE(the_exponential_is_within_one_ulp, CPU_V2, CPU_ISAS)
{
    static float out[GRID];
    float running[3] = {0, 1, 0};
    const uint32_t label = GRID + 1;

    if (!cpu_isa_runs((enum cpu_isa)_i))
        return;
    struct device *dev = open_isa((enum cpu_isa)_i);
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

/* The loss of a row of two chunks of 20 that holds this value in this place, else zeros, under label 5. */
static double loss_with(float value, int place, enum cpu_isa isa)
{
    const uint32_t label = 5;
    float logits[40] = {0}, running[3];
    double loss;
    struct device *dev = open_isa(isa);

    logits[place] = value;
    struct device_cross_entropy op = {
        .m = 1, .n = 20, .logits_stride = 40, .start = true, .logits = logits, .labels = &label, .running = running};
    device_cpu.log_sum_exp(dev, &op);
    op.start = false, op.first = 20, op.logits += 20;
    device_cpu.log_sum_exp(dev, &op);
    device_cpu.loss(dev, &loss, running, &label, 1);
    device_cpu.close(dev);
    return loss;
}

TEST_RANGE(a_loss_shows_what_is_not_finite, CPU_V2, CPU_ISAS)
{
    for (int place = 7; place < 40 && cpu_isa_runs((enum cpu_isa)_i); place += 26) { /* either chunk */
        ck_assert(!isfinite(loss_with(NAN, place, (enum cpu_isa)_i)));
        ck_assert(!isfinite(loss_with(INFINITY, place, (enum cpu_isa)_i)));
    }
}
