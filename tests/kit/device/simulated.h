/* tests/kit/device/simulated.h - the CUDA backend on the device of tests/sim, with the simulator's controls. */
#ifndef TESTS_KIT_DEVICE_SIMULATED_H
#define TESTS_KIT_DEVICE_SIMULATED_H

#include "proto/operation/device.h"
#include "tests/sim/cudasim.h"

enum { SIMULATED_ARENA = 8 << 20, SIMULATED_ORDERS = 4 /* of the queues */ };

/* tests/sim/cudasim.h says what they do. */
struct simulated {
    const struct device_ops *ops;
    void (*order)(enum cudasim_streams streams, enum cudasim_threads threads, uint64_t seed);
    void (*limit)(size_t device_bytes, size_t registered_bytes);
    void (*target)(const char *name, const char *table);
    void (*no_algorithm)(unsigned n);
    void (*idle_products)(bool are_idle);
    void (*have_dnn)(const struct cudasim_dnn *dnn);
    void (*fail_call)(const char *name, unsigned calls, cudaError_t rc);
    void (*lose)(cudaError_t rc);
    struct cudasim_counts (*count)(void);
    void (*finish)(void);
    void (*time)(const struct profile *profile);
    double (*now)(void);
    void (*host_works)(double seconds);
    unsigned (*thread)(const char *name);
    double (*thread_works)(unsigned thread, double seconds);
    double (*thread_worked)(unsigned thread, double since, double seconds);
    void (*host_awaits)(unsigned thread, double until);
    void (*tell_time)(struct cudasim_report *report);
    void (*print_time)(FILE *to, const struct cudasim_report *report);
};
extern struct simulated simulated;

/* A checked fixture of the tests: fills `simulated`. */
void simulated_load(void);

/* Device 0 with an arena of SIMULATED_ARENA, and queues in one of SIMULATED_ORDERS. */
struct device *simulated_open(enum number_type type, int order);
/* Aborts if anything of the device was left. */
void simulated_close(struct device *dev);

#endif
