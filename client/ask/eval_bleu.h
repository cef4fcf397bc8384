/* client/ask/eval_bleu.h - evaluates an encoder-decoder by the targets that it writes. */
#ifndef CLIENT_ASK_EVAL_BLEU_H
#define CLIENT_ASK_EVAL_BLEU_H

#include "client/ask/forward.h"
#include "client/eps.h"

/* eps_eval with options->bleu, for an open model. */
int client_eval_bleu(double *loss, uint64_t *n_tokens, struct client_forward *forward,
                     const struct eps_eval_options *options, const struct eps_eval_events *events, void *user,
                     struct error *err);

#endif
