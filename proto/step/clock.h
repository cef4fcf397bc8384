/* proto/step/clock.h - a device that only counts seconds: a step's queues in virtual time (proto/plan/time/queues.h).
 *
 * Copies take their bytes at the link's rate, of host memory too. Operations compute nothing and take the seconds of
 * their prices (proto/plan/time/meter.h); a whole visit can be given as one task. No address is read or written: those
 * in the arena, and of host memory that is copied, are numbers.
 *
 * A clock that takes turns with the host, as a CPU does, has done each task when the call returns, and its workers
 * share it. */
#ifndef PROTO_STEP_CLOCK_H
#define PROTO_STEP_CLOCK_H

#include "proto/operation/device.h"
#include "proto/plan/time/meter.h"
#include "proto/plan/time/queues.h"

/* Any address that is not NULL. */
#define CLOCK_ADDRESS ((void *)(uintptr_t)(1 << 20))

/* Made by its user, not opened. Undo: plan_queues_free. */
struct device {
    struct plan_queues queues;
    struct plan_meter meter; /* its prices */
    bool takes_turns;
    double slow;       /* workers that share the device: each task takes so many times as long */
    uint32_t n_beside; /* other workers, which copy at the same time by links of their own, all from one host memory */
    /* For each task that the optimizer finished: plan_queues_pass. */
    void (*on_optimized)(void *context, const struct plan_task *task);
    /* Called at the time `alarm` (INFINITY: never), which it must change; NULL: there is none. */
    void (*on_alarm)(void *context);
    double alarm;
    void *context; /* for both */
};

/* Waits find -EIO once a task found no memory (queues.no_memory). */
extern const struct device_ops device_clock;

/* Gives the device one task of so many seconds. */
void clock_compute(struct device *dev, double seconds);

/* Advances time to the next end of a task, the alarm or `until` (INFINITY: never), while the host waits for this queue;
 * not at all if the alarm is due. If none ever comes, so would the worker's step wait forever: an assertion fails. */
void clock_pass(struct device *dev, enum plan_queue host_waits_for, double until);

#endif
