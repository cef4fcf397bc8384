/* proto/plan/time/meter.h - a device that computes nothing: it prices the operations that it is given, and adds up
 * seconds.
 *
 * A call moves its bytes at the memory's rate or computes at its own rate, whichever takes longer
 * (proto/operation/call.h):
 *
 *   products    twice the multiply-adds at the profile's rate for the microbatch's tokens (the head: a tile's) and the
 *               product's width
 *   convolutions  the same, at the rate of the path that the device will take (proto/operation/conv2d_path.h)
 *   attention   2 n^2 width per row forward (the causal half of two products), 2.5 times that backward (of five);
 *               with a window, less: the keys seen; at the rate of the path that the device will take
 *               (proto/operation/attention_path.h), in the shape measured that is nearest; so much longer
 *               as heads do not fill tensor cores' tiles, and the last blocks of our kernels leave multiprocessors idle
 *   the rest    reads each input once and writes each output once; norms at a rate of their own
 *   tables      rows that the embedding gathers from host memory, at the link's rate
 *
 * An activation behind a product takes a pass of its own, and so does the gradient of one. Each pass has a launch
 * (call_s), of cuDNN's convolutions each block of images; zeroing is priced like a copy, without one.
 *
 * The simulated device prices its kernels the same way (tests/sim/priced.c), from their arguments. */
#ifndef PROTO_PLAN_TIME_METER_H
#define PROTO_PLAN_TIME_METER_H

#include "proto/operation/call.h"
#include "proto/plan/memory/plan.h"
#include "proto/plan/time/profile.h"

/* What a device's time goes to. Each kind of convolution and of attention has a part for each path. */
enum plan_use {
    PLAN_USE_PRODUCTS,
    PLAN_USE_CONVOLUTIONS,
    PLAN_USE_ATTENTION = PLAN_USE_CONVOLUTIONS + CONV2D_KINDS * CONV2D_PATHS,
    PLAN_USE_ATTENTION_BACKWARD = PLAN_USE_ATTENTION + ATTENTION_PATHS,
    PLAN_USES = PLAN_USE_ATTENTION_BACKWARD + ATTENTION_PATHS
};

struct plan_uses {
    double seconds[PLAN_USES], operations[PLAN_USES];
};

struct plan_meter {
    struct call_device on;
    const struct profile *profile; /* checked; borrowed */
    double found;                  /* in embed: the share of its tokens whose rows are in its table; 0: all */
    double seconds;                /* so far */
    struct plan_uses uses;         /* of these seconds; what is left of them moves memory */
};

/* The device of this plan; the profile is borrowed. */
static inline struct plan_meter plan_meter_of(const struct plan_setting *setting, const struct profile *profile)
{
    return (struct plan_meter){.on = {setting->backend, setting->goal.precision, setting->n_threads, setting->attention,
                                      setting->convolution != 0, profile->n_multiprocessors},
                               .profile = profile};
}

double plan_meter_price(const struct plan_meter *meter, struct call *call);

/* Operations alone: memory and queues are NULL. The device is a struct plan_meter. */
extern const struct device_ops plan_meter_ops;

static inline struct device *plan_meter_device(struct plan_meter *meter)
{
    return (struct device *)meter;
}

#endif
