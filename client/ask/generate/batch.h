/* client/ask/generate/batch.h - texts that are generated together: eps_generate's loop.
 *
 * A pass runs the new tokens of each row: the prompt of a text that begins, the last drawn token of one that goes on. A
 * text that has ended leaves its row to the next one. A prompt runs once for all its samples: they draw from the same
 * logits, and go on after its keys and values in another row. When all of the model's positions are used, a text's
 * window slides: the last half of the tokens runs again at the first positions, and the text goes on after them.
 *
 * What a text says depends on none of this: neither on its row, nor on the other rows. The caller hears of texts in
 * order, of the first that has not ended token by token as they are drawn. */
#ifndef CLIENT_ASK_GENERATE_BATCH_H
#define CLIENT_ASK_GENERATE_BATCH_H

#include "client/ask/generate/writer.h"
#include "client/eps.h"

/* A prompt's tokens. */
struct client_prompt {
    uint32_t *ids; /* (n), owned by the caller */
    size_t n;
};

struct client_batch_options {
    struct client_writer *writer; /* started, for rows of `window` tokens */
    /* (n_prompts). Of an encoder-decoder they are sources, and the texts their targets, which begin after the start
     * token and end with the window. */
    const struct client_prompt *prompts;
    size_t n_prompts;
    uint32_t n_samples, n_tokens; /* as in struct eps_generate_options, resolved */
    uint32_t window;              /* the last tokens of a text, which the model sees */
    uint64_t seed;
    const struct eps_generate_events *events; /* should_stop is asked between two passes */
    void *user;
};

/* What a text goes on after: its prompt; or of a target its start token. Borrowed. */
struct client_prompt client_batch_begin(const struct client_writer *writer, const struct client_prompt *prompt);

/* Generates all texts. *out has what is the same for all of them, and gets what they add up to, also after a failure.
 * -EINTR, -EINVAL, -ENOMEM, errors of the link. */
int client_batch_run(struct eps_generated *out, const struct client_batch_options *options, struct error *err);

#endif
