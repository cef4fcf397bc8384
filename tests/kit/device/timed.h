/* tests/kit/device/timed.h - steps of a worker on the simulated CUDA device, in virtual time (tests/sim/cudasim.h),
 * with a daemon of which only the time is played.
 *
 * The daemon is one thread, the optimizer: it has each slice of a contribution from when the worker contributes it,
 * takes the one of the lowest unit first (eps/store/updater.h), needs the profile's update for it, and frees its slot
 * when it is done. A unit can be pulled in the next step once all its contributions were folded. Each message takes the
 * profile's time: a contribution, a freed slot, a pull and its answer. The worker's own thread takes none: it waits,
 * for slots, units and copies, and begins a step when it has contributed all of the one before. The inbox, the weights
 * and the stash are lent to the device. */
#ifndef TESTS_KIT_DEVICE_TIMED_H
#define TESTS_KIT_DEVICE_TIMED_H

#include "proto/plan/time/profile.h"
#include "tests/kit/device/setting.h"
#include "tests/kit/device/simulated.h"

enum { TIMED_STEPS = 6, TIMED_SLOTS = 256 /* at most */ };

/* What the optimizer takes for a parameter, in updates of the profile. */
struct timed_price {
    double fold, update; /* of each contribution; once all of a unit are there */
};

struct timed_options {
    struct device_worker_options worker; /* of the simulated device: timed_worker */
    struct profile profile;
    double update;                    /* of a parameter that is contributed, in updates of the profile */
    const struct timed_price *prices; /* (2) instead: of units that are visited once, and twice; or NULL */
    uint32_t n_slots;                 /* of the inbox, at most TIMED_SLOTS */
    uint32_t n_steps;
};

struct timed {
    double ends[TIMED_STEPS];   /* seconds: when the worker has done each step */
    double folded[TIMED_STEPS]; /* and the optimizer */
    unsigned optimizer;         /* its lane; the device's queues are those from TIMED_QUEUE on */
    struct cudasim_report report;
    struct array_link link; /* of the last step: with its gradient */
};

enum { TIMED_QUEUE = CUDASIM_HOST + 1 };

/* Options of a worker on the simulated device: as setting_options has them. simulated_load comes before. */
struct device_worker_options timed_worker(const struct setting *s, uint32_t part_rows, uint32_t microbatch);

/* Owned: timed_free. */
void timed_run(struct timed *out, const struct setting *s, const struct timed_options *options);
void timed_free(struct timed *timed);

#endif
