/* tests/kit/device/backend.h - whose operations a test program runs: the CPU's, or those of a module that the
 * environment names.
 *
 * EPS_TEST_CUDA=PATH of an eps-cuda.so: tests/sim's, as ctest runs what is labelled cuda, or a real one on a machine
 * that has a GPU, as tools/gpu_check.sh does. A module that cannot be loaded fails the test: it was asked for. */
#ifndef TESTS_KIT_DEVICE_BACKEND_H
#define TESTS_KIT_DEVICE_BACKEND_H

#include "proto/operation/device.h"
#include "proto/operation/attention_way.h"

#include <stdbool.h>

struct backend {
    const struct device_ops *ops;
    const struct plan_backend *plan;
    enum plan_attention attention; /* its device's */
    uint32_t convolution;          /* its device's */
    bool cuda;
    bool simulated; /* every thread of a block is computed in turn: small shapes alone; memory is the host's */
    /* Of the simulator, NULL elsewhere: cudasim_order of tests/sim/cudasim.h. */
    void (*order)(unsigned streams, unsigned threads, uint64_t seed);
};

const struct backend *backend_get(void);

/* fp32 and bf16: of a test that fp16 would only repeat. */
enum { COMMON_TYPES = NUMBER_BF16 + 1 };

/* The same sizes, of a device that works beside the host: plans have two sets of sums and tiles. */
struct plan_backend backend_beside(const struct plan_backend *plan);

/* Whether a test of so many steps of arithmetic suits: what the backend does in well under a second, or as few as
 * EPS_TEST_STEPS says, for compute-sanitizer. */
bool backend_suits(double n_steps);

#endif
