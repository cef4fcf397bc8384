/* device/step/boundaries.h - where a visit finds its boundary activations and their gradient.
 *
 * On the device they all have a place. With the stash on the host the device has tiles of one microbatch: what a visit
 * reads comes up before it, what it wrote goes down after it; also between visits of one layer. Where the plan has two
 * sets of tiles they take turns, so that one microbatch's come and go while another is computed. Traced as "upload tile"
 * and "download tile". */
#ifndef DEVICE_STEP_BOUNDARIES_H
#define DEVICE_STEP_BOUNDARIES_H

#include "device/layers/layers.h"
#include "device/step/pass.h"

/* Gives the visit its input, output and gradient for the microbatch from `token` of the pass on; everything else of
 * *visit must be set. backward, or a head in one pass: with the gradient. */
void device_boundaries_enter(struct device_pass *pass, struct layer_pass *visit, size_t token, bool backward);

/* After the visit, once for each enter. */
void device_boundaries_leave(struct device_pass *pass, const struct layer_pass *visit, size_t token, bool backward);

#endif
