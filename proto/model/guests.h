/* proto/model/guests.h - blocks whose programs another config writes.
 *
 * config.json may say that some blocks are those of another model:
 *
 *   "model_type": "eps_gpt2", ..., "eps_blocks": [{"blocks": [1, 3], "config": {"model_type": "llama", ...}}]
 *
 * Blocks 1 and 3 of this GPT-2 are guests: what a Llama of that config has at these places. Heads, the width of the
 * feed-forward layer, activation, norms and the family's own numbers are that config's. What concerns the whole model
 * is the model's: width, blocks, positions, vocabulary, head; that config may leave them out. A guest reads and writes
 * the values of the block in whose place it stands. Its tensors have its family's names
 * ("model.layers.1.mlp.up_proj.weight").
 *
 * No other program reads such a model, so model_type begins with "eps_", which refuses it there. */
#ifndef PROTO_MODEL_GUESTS_H
#define PROTO_MODEL_GUESTS_H

#include "proto/base/error.h"
#include "proto/model/own.h"
#include "proto/operation/kind/activation.h"

#include <stdint.h>

struct family;
struct json_t;
struct model_config;

#define MODEL_GUESTS_KEY  "eps_blocks"
#define MODEL_GUESTS_TYPE "eps_" /* before the model_type of a model with guests */

enum { MODEL_GUESTS = 8, MODEL_GUESTS_BLOCKS = 4096 };

/* What a config says of its blocks. */
struct model_guest {
    const struct family *family;
    uint32_t n_heads, inner_width;
    enum model_activation activation;
    float norm_epsilon, initializer_range;
    struct model_own own;
};

struct model_guests {
    uint32_t n; /* different configs */
    struct model_guest at[MODEL_GUESTS];
    uint8_t of[MODEL_GUESTS_BLOCKS]; /* if n > 0: model_guest_of */
};

/* Checks that guest is a config whose blocks can stand in the model of this config. -EINVAL with a sentence: it is
 * none, is of another width, or has blocks that cannot be guests. A list of kinds of blocks recurs if the model has
 * more of them. */
int model_guest_check(const struct model_config *config, const struct json_t *guest, struct error *err);

/* Reads the list into config, which is complete otherwise. -EINVAL with a sentence: it is no such list; a block is
 * beyond the model's, or named twice; or as model_guest_check. */
int model_guests_read(struct model_config *config, const struct json_t *list, struct error *err);

/* A block's guest: index in `at`, plus 1; 0: the block is the model's own. */
uint32_t model_guest_of(const struct model_config *config, uint32_t block);

/* The config that writes the programs of guest `at`. */
void model_guest_config(struct model_config *out, const struct model_config *config, uint32_t at);

/* Names guest, a config, for a block of a model in its config.json, in the place of what was said of the block. Keys
 * that say nothing of blocks are left out. -ENOMEM; -E2BIG: these are more than MODEL_GUESTS configs, now. */
int model_guests_set(struct json_t *config, uint32_t block, struct json_t *guest);

/* For a config.json whose model of n blocks gets n_added more, each a copy of the one n_added below it. -ENOMEM. */
int model_guests_grow(struct json_t *config, uint32_t n, uint32_t n_added);

#endif
