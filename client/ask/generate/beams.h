/* client/ask/generate/beams.h - beam search: of each prompt, the likeliest text that a few candidates side by side lead to.
 *
 * A step extends each live beam by every token, and keeps the best of these candidates: those that end are hypotheses,
 * the others the next step's beams. A hypothesis of n tokens scores the sum of their log p, divided by n to the power
 * of the length penalty. The search ends when no live beam, were it to end now, would score better than the worst of
 * n_beams hypotheses: transformers' rule with early_stopping=False. At the last token all candidates end.
 *
 * A beam has a row of the worker. The first child of a beam goes on in its row; further ones take rows of beams that
 * ended, after the worker has copied the keys and values there. Several prompts advance together. */
#ifndef CLIENT_ASK_GENERATE_BEAMS_H
#define CLIENT_ASK_GENERATE_BEAMS_H

#include "client/ask/generate/batch.h"

/* batch.n_samples and seed are of no meaning; a text never slides, so a prompt and its new tokens fit
 * the window. Errors as client_batch_run; -ENOSPC with a sentence: the device has no memory for so many beams. */
int client_beams_run(struct eps_generated *out, const struct client_batch_options *options, uint32_t n_beams,
                     double length_penalty, struct error *err);

#endif
