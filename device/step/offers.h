/* device/step/offers.h - contributions on their way from the device into slots of the host.
 *
 * A step makes one contribution after another, numbered from 0: of each visit from the top down, of each part of the
 * share. They are offered in this order, slice by slice, several slices at a time on their way. Where the plan has two
 * sums, one is offered while the next is made: its slices are queued between the next one's microbatches, before these
 * send their tiles down the same queue, so that neither the queue nor the host waits for what is made later. Where it
 * has more, what finds no slot stays in its sum until the last of them is needed. With one sum, or a device that takes
 * turns, each is offered as soon as it is made. */
#ifndef DEVICE_STEP_OFFERS_H
#define DEVICE_STEP_OFFERS_H

#include "proto/plan/plan.h"

struct device_pass;

enum { DEVICE_OFFERS = 8 }; /* slices on their way, at most */

/* Zeroed before each step. */
struct device_offers {
    uint32_t n_made;              /* contributions that are queued whole */
    uint32_t next, slice;         /* what is offered next */
    uint64_t made[PLAN_MAX_SUMS]; /* DEVICE_COMPUTE: the sum is there */
    uint64_t sent[PLAN_MAX_SUMS]; /* DEVICE_PUSH: it was read */
    struct device_offer {
        uint32_t n, slice; /* of which contribution */
        void *slot;
        uint64_t arrived;        /* DEVICE_PUSH */
        uint64_t since;          /* traced */
    } flying[DEVICE_OFFERS];     /* oldest first */
    uint32_t n_flying, n_landed; /* slices; landed: of the step so far */
};

/* Where contribution n is summed up. */
float *device_offers_sum(const struct device_pass *pass, uint32_t n);

/* Forward is queued: of those that have a place of their own it has made all. */
void device_offers_made_apart(const struct device_pass *pass);

/* What is queued next may write to the sum of contribution n, which is of any content. */
void device_offers_begin(const struct device_pass *pass, uint32_t n);

/* Where the device works beside the host, between two microbatches, of which `left` (> 0) of the contribution that is
 * being made are still to come, this one counted: offers what is due of those before. Waits for slots only at the last,
 * and only until there is a sum for the next one.
 * -EIO with a sentence, or of the link, as the rest. */
int device_offers_go_on(struct device_pass *pass, uint32_t left);

/* The next contribution is queued whole. */
int device_offers_made(struct device_pass *pass);

/* All that were made are contributed. */
int device_offers_finish(struct device_pass *pass);

#endif
