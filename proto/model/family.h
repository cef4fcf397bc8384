/* proto/model/family.h - what one family of models is: the one place that names its config keys, tensors and layers.
 *
 * A family has one const table, in a file of its own: GPT-2's is gpt2.c. Its model is an embedding (a table of tokens and one
 * of positions), blocks, a norm and a head; block and norm are programs (proto/model/program.h). All other code knows
 * programs, tensors and units alone. */
#ifndef PROTO_MODEL_FAMILY_H
#define PROTO_MODEL_FAMILY_H

#include "proto/model/model.h"

enum family_key_type {
    FAMILY_COUNT,         /* a positive whole number: uint32_t */
    FAMILY_COUNT_OR_NULL, /* the same; null: as if it were not there */
    FAMILY_REAL,          /* float */
    FAMILY_SWITCH,        /* bool */
    FAMILY_ACTIVATION,    /* enum model_activation, by its name */
    FAMILY_SAME,          /* it must be the same as the uint32_t, which `other` names */
};

struct family_key {
    const char *name; /* in config.json */
    enum family_key_type type;
    size_t offset; /* in struct model_config, the family's own numbers included */
    bool required;
    const char *other;
};

struct family {
    const char *model_type;           /* in config.json */
    const char *const *architectures; /* accepted; NULL ends them; the first is what is trained */
    const struct family_key *keys;    /* without a name: the end */
    /* Keys that change nothing here, and those that must be off; NULL ends them; an asterisk at the end stands for any
     * ending. The bookkeeping of all models is in model_config.c. */
    const char *const *harmless, *const *unsupported;
    struct model_config defaults;
    uint32_t end_token; /* that transformers takes for granted */

    /* Fills in what follows from other numbers. */
    void (*complete)(struct model_config *config);
    /* As model_config_check. */
    int (*check)(const struct model_config *config, struct error *err);

    const char *prefix;                      /* of tensor names, which may be missing in a file: "transformer." */
    const char *block;                       /* of a block's tensors and its unit: "h.%u" */
    const char *norm;                        /* of the last norm's unit: "ln_f" */
    const char *tokens, *positions, *logits; /* tables: "wte"; the head's, where it is its own, has no prefix */
    void (*write_embedding)(struct model_embedding *out, const struct model_config *config);
    /* The programs; a norm's operations name no stem but `norm`. */
    void (*write_block)(struct program *program, const struct model_config *config);
    void (*write_norm)(struct program *program, const struct model_config *config);
    /* What old files have among the weights, and is none; without the prefix. NULL: there is no such thing. */
    bool (*is_mask)(const char *name);
};

#endif
