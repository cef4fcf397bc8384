/* proto/step/generate.h - generation: runs new tokens of several texts with caches of keys and values.
 *
 * A text's new tokens are a prompt, or the last sampled token. Texts advance together: a pass takes a tile of up to
 * PLAN_GENERATE_TILE tokens of each through all layers, so it reads the weights once, and the workspace does not grow
 * with prompts. The last norm and the head see only each text's last token. Resident units, and the token and position
 * tables, which are looked up in host memory, are pulled once. The other units are pulled for each pass.
 *
 * A run may begin at any token up to those run so far; the keys and values of later ones are forgotten. So a text that
 * has used all positions continues with its last tokens at the first positions, and a conversation whose text changes
 * runs again from the change on. A row may also go on after the tokens of another one, whose keys and values are copied
 * first: so a prompt runs once for all texts that begin with it. Where a model's layers keep the last tokens alone
 * (model_has_tails), a row that does not go on exactly where they stand runs again from its first token.
 *
 * Of an encoder-decoder the rows are targets. A row's source runs before its first token, through the encoder and as
 * far in the decoder as targets read it, which stays with the row; the encoder's weights are not read again for
 * targets.
 *
 * Where a model's layers keep a state (model_has_states), tiles end at multiples of DEVICE_DELTA_CHUNK in their text.
 *
 * The division of a text's tokens into runs changes their logits by rounding only. The other texts, the budget and the
 * number of threads do not change them at all. */
#ifndef PROTO_STEP_GENERATE_H
#define PROTO_STEP_GENERATE_H

#include "proto/step/step.h"

struct device_run {
    const uint32_t *ids;     /* (batch, seq), host memory that others can write: a copy is checked and used. New tokens;
                              * with model_has_tails also all that precede them in their texts */
    const uint32_t *sources; /* likewise, of an encoder-decoder; else unused */
    const struct plan_tokens *rows;
    uint32_t n_rows;
    float *logits; /* (batch, vocabulary), host memory: for the last token of each row that has new ones */
};

/* The worker must be planned for generation. Calls only pull, wait_weights and ended of the link, with version 0. 0;
 * -ECANCELED from the link; -EINVAL with a sentence for a token id outside the vocabulary, or for tokens that do not
 * follow those run so far, which then stay; -EIO: the device is lost. */
int device_worker_generate(struct device_worker *worker, const struct device_run *run, const struct device_link *link,
                           void *context, struct error *err);

#endif
