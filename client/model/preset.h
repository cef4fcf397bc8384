/* client/model/preset.h - named models with fresh weights, the choice of a default, and the way to published ones.
 *
 * The text presets learn a tokenizer from their training text (client/corpus/learn.h); the byte presets take each byte as
 * a token. The gpt2 presets have OpenAI's published shapes (Radford et al. 2019), vocabulary and dropout of 0.1. No
 * tokenizer of that size comes with a text, so on text they train on bytes. The other presets have no dropout, and
 * initial weights of standard deviation 0.02 * sqrt(768 / width): GPT-2's 0.02 at width 768, scaled by the inverse root
 * (Glorot and Bengio 2010). */
#ifndef CLIENT_MODEL_PRESET_H
#define CLIENT_MODEL_PRESET_H

#include "client/eps.h"
#include "client/model/model.h"
#include "proto/base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* The preset of this name, or NULL. */
const struct eps_preset *client_preset_find(const char *name);

/* The error for a --model that is neither a file nor a preset: -ENOENT. */
int client_preset_unknown(const char *name, struct error *err);

/* True if weights of this preset are published. */
static inline bool client_preset_is_published(const struct eps_preset *preset)
{
    return preset->vocabulary > 256 && !preset->learns;
}

enum { CLIENT_BATCH_TOKENS = 16384 }; /* per minibatch, approximately; a recipe may take fewer */

/* Tokens of the tokenizer that a preset (NULL: none) learns from its training text; 0: it learns none. */
static inline uint32_t client_preset_learned(const struct eps_preset *preset)
{
    return preset && preset->learns ? preset->vocabulary : 0;
}

/* How a preset's fresh weights are trained by default, by its kind of tokens (client/options/options.h). */
struct client_recipe {
    uint64_t steps;        /* unless the data are too short for them */
    uint64_t least_tokens; /* per minibatch */
    double small_lr;       /* under 4 Mi parameters */
};
const struct client_recipe *client_preset_recipe(const struct eps_preset *preset);

/* Approximate tokens of a preset's minibatch. */
uint64_t client_preset_batch_tokens(const struct eps_preset *preset, uint64_t n_train);

/* Opens the preset as a model without weights; its config.json is a file in memory. Errors as client_model_open. */
int client_preset_open(struct client_model *out, const struct eps_preset *preset, uint32_t vocabulary,
                       struct error *err);

/* Inputs of the choice. */
struct client_preset_facts {
    bool text;           /* all data is text */
    uint64_t n_tokens;   /* training tokens; bytes of a text */
    uint32_t vocabulary; /* needed by the tokens */
    uint64_t free_bytes; /* free host memory */
    uint64_t device_mem; /* per worker; 0: half of free_bytes, divided by n_workers; UINT64_MAX: unknown */
    uint32_t n_workers;
};

/* Chooses by size of the data: a small preset under 8 Mi tokens, a medium one under 128 Mi, else a large one. Text of
 * 256 KiB or more gets a text preset, as tokens can be learned from it; other data gets a byte preset, or gpt2 for a
 * vocabulary over 256. A model that would take over half of the host's free memory, or more than a worker's, is
 * replaced by the next smaller one. The smallest is chosen in any case: daemon and worker report what they lack. */
const struct eps_preset *client_preset_choose(const struct client_preset_facts *facts);

/* True if memory made the choice smaller. */
bool client_preset_is_smaller(const struct eps_preset *chosen, const struct client_preset_facts *facts);

/* ---- Sentences that lead to published models. Nothing is downloaded here. ---- */

/* The error for a --model path that could not be opened; rc is the -errno. If the path looks like a Hugging Face hub
 * name ("org/name") or is the preset of a published model, the sentence gives the download command. */
int client_preset_missing(const char *path, int rc, struct error *err);

/* The error for a directory with a config.json, the open model's, but no *.safetensors: -ENOENT. If pytorch_model.bin
 * is there, the sentence gives the command that converts it. */
int client_preset_unconverted(const char *directory, const struct client_model *model, struct error *err);

/* The error for a directory of other files than a model's: GGUF. -EINVAL; 0: it is none. */
int client_preset_refuse_foreign(const char *directory, struct error *err);

/* True for the name of a GGUF file; and the error for it, or for its directory: -EINVAL. */
bool client_preset_is_gguf(const char *name);
int client_preset_refuse_gguf(const char *path, struct error *err);

/* True if the run trains fresh random weights under the name of a published model. The sentence says so and tells how
 * to get the published weights. */
bool client_preset_say_fresh(struct error *sentence, const struct eps_train_options *options);

#endif
