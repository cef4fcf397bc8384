/* device/step/generate.h - generation: runs tokens of one row with a cache of keys and values.
 *
 * A run is a prompt, or the last sampled token. It passes through all layers in tiles of up to PLAN_GENERATE_TILE
 * tokens, so the workspace does not grow with the prompt. The last norm and the head see only its last token. Resident
 * units, and the token and position tables, which are looked up in host memory, are pulled once. The other units are
 * pulled for each tile.
 *
 * A run may begin at any token up to those run so far; the keys and values of later ones are forgotten. So a text that
 * has used all positions continues with its last tokens at the first positions, and a conversation whose text changes
 * runs again from the change on.
 *
 * The division of tokens into runs changes their logits by rounding only. The budget and the number of threads do not
 * change them at all. */
#ifndef DEVICE_STEP_GENERATE_H
#define DEVICE_STEP_GENERATE_H

#include "device/step/step.h"

struct device_run {
    const uint32_t *ids; /* (seq), host memory that others can write: a copy is checked and used */
    uint32_t first, n;   /* tokens first .. first+n-1 are new, those before have run; later ones are forgotten */
    float *logits;       /* (vocabulary), host memory: for the last token */
};

/* The worker must be planned for generation. Calls only pull, wait_weights and ended of the link, with version 0. 0;
 * -ECANCELED from the link; -EINVAL with a sentence for a token id outside the vocabulary, or for tokens that do not
 * follow those run so far, which then stay; -EIO: the device is lost. */
int device_worker_generate(struct device_worker *worker, const struct device_run *run, const struct device_link *link,
                           void *context, struct error *err);

#endif
