/* proto/plan/timeline.h - one step in time: what each queue does when, what it waits for, and so what binds.
 *
 * The worker's step is played as device/ queues it (step.c, weights.c, boundaries.c, offers.c), with the durations of
 * proto/plan/work.h on the queues of proto/plan/queues.h: units pulled into few buffers, sums on the device and slots of the inbox that
 * hold computing up when they are full, an optimizer whose updates the next step's pulls wait for. Two steps follow each
 * other, and it is the second that is told, from the end of the first on: a step among many.
 *
 * Messages take no time here, nor do launches, nor the worker's own thread. Of several workers one is played, and
 * the optimizer does what all of them contribute. */
#ifndef PROTO_PLAN_TIMELINE_H
#define PROTO_PLAN_TIMELINE_H

#include "proto/plan/host.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"
#include "proto/plan/queues.h"

struct plan_timeline_setting {
    const struct plan *plan; /* to train; borrowed, as the others */
    const struct model *model;
    const struct plan_host_setting *host;
    const struct profile *profile; /* checked */
    uint32_t n_slots;              /* of the worker's inbox, but for the reserved one */
};

struct plan_timeline {
    double first;   /* seconds: of the first step, which nothing was before */
    double seconds; /* of the second */
    struct {
        double busy;                    /* in the second step */
        double waited[PLAN_QUEUES + 1]; /* for whom it was idle; with busy, `seconds` */
    } queues[PLAN_QUEUES];
    enum plan_queue binds; /* the busiest */
};

/* 0 or -ENOMEM. */
int plan_timeline(struct plan_timeline *out, const struct plan_timeline_setting *setting);

#endif
