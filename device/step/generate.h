/* device/step/generate.h - tokens of one row, one run after another, with keys and values of those before in a cache.
 *
 * A run is a prompt, or the one token that was sampled last. It goes through all layers in tiles of up to
 * PLAN_GENERATE_TILE tokens, so the workspace does not grow with the prompt; the last norm and the head see its last
 * token only. Units that the plan keeps on the device, and the tables of tokens and positions, which are looked up where
 * the host has them, are pulled once; the others for each tile.
 *
 * A run from token 0 begins the row anew, whatever was run before: so a text that has filled all positions goes on with
 * its last tokens at the first positions.
 *
 * How the tokens were cut into runs changes their logits by rounding alone; the budget, and the number of threads, not
 * at all. */
#ifndef DEVICE_STEP_GENERATE_H
#define DEVICE_STEP_GENERATE_H

#include "device/step/step.h"

struct device_run {
    const uint32_t *ids; /* (seq), host memory that others can write: what is used is a copy, checked */
    uint32_t first,
        n;         /* tokens first .. first+n-1 are new; those before are the ones run so far. first 0 begins anew */
    float *logits; /* (vocabulary), host memory: of the last token */
};

/* The worker was planned to generate. Of the link, pull, wait_weights and ended alone are called, the version of every
 * pull is 0. 0; -ECANCELED from the link; -EINVAL with a sentence for a token id outside the vocabulary or tokens that
 * do not follow those run so far, which then stand as before; -EIO: the device is lost. */
int device_worker_generate(struct device_worker *worker, const struct device_run *run, const struct device_link *link,
                           void *context, struct error *err);

#endif
