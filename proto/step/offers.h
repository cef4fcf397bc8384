/* proto/step/offers.h - transfers contributions from the device into slots on the host.
 *
 * A step makes contributions in order, numbered from 0: for each visit of a trained unit from the top down, for each
 * part of the share.
 * They are offered in this order, slice by slice, several slices in transfer at a time. With two sums in the plan, one
 * contribution is offered while the next is made. Its slices are queued between the next one's microbatches, before
 * these queue their own tiles, so that neither the queue nor the host waits for later work. With more sums, a
 * contribution without a slot stays in its sum until all sums are in use. With one sum, or a device that takes turns
 * with the optimizer, each contribution is offered as soon as it is made. */
#ifndef PROTO_STEP_OFFERS_H
#define PROTO_STEP_OFFERS_H

#include "proto/model/contribution.h"
#include "proto/plan/memory/plan.h"

struct device_pass;

enum { DEVICE_OFFERS = 8 }; /* maximum slices in transfer */

/* Zeroed before each step. */
struct device_offers {
    uint32_t n_made;              /* contributions that are fully queued */
    uint32_t next, slice;         /* contribution and slice to offer next */
    uint64_t made[PLAN_MAX_SUMS]; /* DEVICE_COMPUTE: the sum is complete */
    uint64_t sent[PLAN_MAX_SUMS]; /* DEVICE_PUSH: the sum was read */
    struct device_offer {
        uint32_t n, slice; /* number of the contribution, and slice */
        void *slot;
        struct block_sum sum;    /* if memory is checked */
        uint64_t arrived;        /* DEVICE_PUSH */
        uint64_t since;          /* for the trace */
    } flying[DEVICE_OFFERS];     /* oldest first */
    uint32_t n_flying, n_landed; /* slices; landed: in the step so far */
};

/* Address of the sum for contribution n. */
float *device_offers_sum(const struct device_pass *pass, uint32_t n);

/* Called when forward is queued: it has made all contributions that have a place of their own. */
void device_offers_made_apart(const struct device_pass *pass);

/* Makes the sum of contribution n available to what is queued next; its content is undefined. */
void device_offers_begin(const struct device_pass *pass, uint32_t n);

/* Called between two microbatches on a device that works in parallel with the host; `left` (> 0) microbatches of the
 * current contribution are still to come, including this one. Offers the due slices of earlier contributions. Waits for
 * slots only at the last microbatch, and only until the next contribution has a sum. -EIO with a sentence, or errors of
 * the link, like the functions below. */
int device_offers_go_on(struct device_pass *pass, uint32_t left);

/* Called when the next contribution is fully queued. */
int device_offers_made(struct device_pass *pass);

/* Contributes everything that was made. */
int device_offers_finish(struct device_pass *pass);

#endif
