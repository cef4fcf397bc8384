/* client/ask/generate/generate.h - what eps_generate and an evaluation by BLEU share. */
#ifndef CLIENT_ASK_GENERATE_GENERATE_H
#define CLIENT_ASK_GENERATE_GENERATE_H

#include "client/ask/generate/batch.h"

/* Continues prompts whose tokens are known, or writes their targets, with a model that is open and not started. Of
 * options, which are checked, the prompts and what opens a model do not matter. Special tokens give no text. Errors as
 * eps_generate. */
int client_generate(struct eps_generated *out, struct client_forward *forward,
                    const struct eps_generate_options *options, const struct client_prompt *prompts, size_t n_prompts,
                    const struct eps_generate_events *events, void *user, struct error *err);

#endif
