/* client/model/preset.h - models by name, with fresh weights, and which one is trained when none is named.
 *
 * The text ones learn a tokenizer from the text that they are trained on (client/text/learn.h); to the byte ones a byte is a
 * token. The gpt2 ones have OpenAI's published shapes (Radford et al. 2019), vocabulary and dropout of 0.1; on a text,
 * for which there is no tokenizer of that size, they are models of bytes. The others have no dropout, and weights as
 * widely spread as their width asks for: GPT-2's 0.02 at 768, else by the inverse root (Glorot and Bengio 2010). */
#ifndef CLIENT_MODEL_PRESET_H
#define CLIENT_MODEL_PRESET_H

#include "client/eps.h"
#include "client/model/model.h"
#include "proto/base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* NULL if there is none of this name. */
const struct eps_preset *client_preset_find(const char *name);

/* The sentence for a --model that is neither a file nor a preset: -ENOENT. */
int client_preset_unknown(const char *name, struct error *err);

/* Weights of it are published. */
static inline bool client_preset_is_published(const struct eps_preset *preset)
{
    return preset->vocabulary > 256 && !preset->learns;
}

/* The preset as a model without weights; its config.json is a file in memory. As client_model_open. */
int client_preset_open(struct client_model *out, const struct eps_preset *preset, uint32_t vocabulary,
                       struct error *err);

/* What a choice depends on. */
struct client_preset_facts {
    bool text;           /* and nothing else */
    uint64_t n_tokens;   /* to train on; of a text, its bytes */
    uint32_t vocabulary; /* that the tokens need */
    uint64_t free_bytes; /* of the host's memory */
    uint64_t device_mem; /* of a worker; 0: half of free_bytes, divided by them; UINT64_MAX: not known */
    uint32_t n_workers;
};

/* Under 8 Mi tokens a small one, under 128 Mi a medium one, else a large one: a text one for 256 KiB of text or more,
 * from which tokens can be learned, else a byte one; gpt2 in their place for a vocabulary over 256. And a smaller one
 * while it would take over half of the host's free memory, or more than a worker's. The smallest is chosen in any case:
 * the daemon and the worker say what they lack. */
const struct eps_preset *client_preset_choose(const struct client_preset_facts *facts);

/* It was memory that decided. */
bool client_preset_is_smaller(const struct eps_preset *chosen, const struct client_preset_facts *facts);

#endif
