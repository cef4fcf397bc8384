/* proto/step/boundaries.h - the place of a visit's boundary activations and of their gradient.
 *
 * If the stash is on the device, all of them have a place there. If it is on the host, the device has tiles of one
 * microbatch: a visit's input is uploaded before it, and its output is downloaded after it, even between visits of one
 * layer. With two sets of tiles in the plan, one set is transferred while the other is computed. Traced as "upload
 * tile" and "download tile". */
#ifndef PROTO_STEP_BOUNDARIES_H
#define PROTO_STEP_BOUNDARIES_H

#include "proto/step/layers.h"
#include "proto/step/pass.h"

/* Sets the visit's input, output and gradient for the microbatch that begins at `token` of the pass; all other fields
 * of *visit must be set. backward, or a head in one pass, includes the gradient. */
void device_boundaries_enter(struct device_pass *pass, struct layer_pass *visit, size_t token, bool backward);

/* Called after the visit, once for each enter. */
void device_boundaries_leave(struct device_pass *pass, const struct layer_pass *visit, size_t token, bool backward);

#endif
