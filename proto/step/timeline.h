/* proto/step/timeline.h - simulates one step: what each queue does and waits for, and so which one binds.
 *
 * It is the worker's step itself (device_worker_step), over a device that only counts seconds (proto/step/clock.h) and
 * a daemon that is played in virtual time: units to pull, slots, folds and updates. A visit takes as long as its layer,
 * run once on a meter (proto/plan/time/meter.h). Units are pulled into few buffers, full sums and inbox slots stall
 * computation, and the next step's pulls wait for the optimizer's updates. Of two simulated steps the second is
 * reported, from the end of the first on: a step in a long run.
 *
 * Messages take message_s each: a pull and its answer, a contribution, a slot that is free. The worker's own thread
 * takes no time here. Of several workers one is simulated. The others do the same at the same time: each has a device
 * and a link of its own, and all share host memory, which moves the copies of all of them, and the optimizer, which
 * handles their contributions together. */
#ifndef PROTO_STEP_TIMELINE_H
#define PROTO_STEP_TIMELINE_H

#include "proto/plan/memory/host.h"
#include "proto/plan/memory/plan.h"
#include "proto/plan/time/profile.h"
#include "proto/plan/time/meter.h"
#include "proto/plan/time/queues.h"

struct step_timeline_setting {
    const struct plan *plan; /* to train; borrowed, as the others */
    const struct model *model;
    const struct plan_host_setting *host;
    const struct profile *profile; /* checked */
    uint32_t n_slots;              /* slots of the worker's inbox, without the reserved one */
};

struct step_timeline {
    double first;   /* seconds of the first step, which starts idle */
    double seconds; /* seconds of the second step */
    struct {
        double busy;                    /* seconds of work in the second step */
        double waited[PLAN_QUEUES + 1]; /* idle seconds, by the queue waited for; busy + sum of waited = `seconds` */
    } queues[PLAN_QUEUES];
    enum plan_queue binds; /* the busiest */
    struct plan_uses uses; /* of the second step's computing; what is left moves memory */
};

/* 0 or -ENOMEM. */
int step_timeline(struct step_timeline *out, const struct step_timeline_setting *setting);

/* A plan_player (proto/plan/ties.h): the second step's seconds. */
double step_timeline_play(const struct plan *plan, const struct model *model, const struct plan_host_setting *host,
                          const struct profile *profile, uint32_t n_slots);

#endif
