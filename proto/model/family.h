/* proto/model/family.h - a family of models: its config keys, tensors and layers, named in one place.
 *
 * A family has one const table, family_NAME, in families/NAME.c, where the build finds it. Its model is an embedding
 * (the sum of rows of tables), layers that are programs (proto/operation/program.h), and a head (logits by a table).
 * All other code knows only layers, programs, tensors and units. */
#ifndef PROTO_MODEL_FAMILY_H
#define PROTO_MODEL_FAMILY_H

#include "proto/model/model.h"

#include <stddef.h>

enum family_key_type {
    FAMILY_COUNT,           /* a positive whole number: uint32_t */
    FAMILY_COUNT_OR_NULL,   /* a positive whole number, or null for 0: uint32_t */
    FAMILY_COUNT_OR_NONE,   /* the same, or 0 */
    FAMILY_PERIOD,          /* the same, where every so manyth block is of the other kind: also "LLLG" for 4 */
    FAMILY_WIDTHS,          /* of the feed-forward layers, inner_width: a count, or a list of one for each block */
    FAMILY_WIDTHS_OR_NULL,  /* the same, or null for 0 */
    FAMILY_REAL,            /* float */
    FAMILY_REAL_OR_NULL,    /* float greater than 0, or null for 0 */
    FAMILY_REAL_OR_DEFAULT, /* float; null: the default stays */
    FAMILY_SWITCH,          /* bool */
    FAMILY_SWITCHED_OFF,    /* bool: true where the file says false */
    FAMILY_ACTIVATION,      /* enum model_activation, by its name */
    FAMILY_WORD,            /* an enumeration: the value's index in `words` */
    FAMILY_LAYERS,          /* struct config_layers: a list with one of the `words` for each block, of which those
                             * with the word `counted` count */
    FAMILY_SWITCHES,        /* struct config_layers: a list with a number or a switch for each block, of which those
                             * that are 0 or false count */
    FAMILY_INDICES,         /* struct config_layers: the numbers of the blocks that count; n: any, if there is a list */
    FAMILY_KERNELS,         /* struct config_kernels: a list of positive whole numbers */
    FAMILY_REALS,           /* struct config_reals: a list of numbers, or null for none */
    FAMILY_DEPTHS,          /* uint32_t[IMAGE_STAGES]: a list of as many positive whole numbers */
    FAMILY_CHANNELS,        /* struct image_channels: a list of numbers */
    FAMILY_SAME,            /* no number of its own: if it and key `other` are both on, they must be equal */
};

/* Bounds on a FAMILY_REAL or FAMILY_REAL_OR_DEFAULT. */
enum family_range {
    FAMILY_ANY,         /* what the family's check allows */
    FAMILY_FRACTION,    /* from 0 to 1 */
    FAMILY_PROBABILITY, /* at least 0 and less than 1 */
    FAMILY_EPSILON,     /* greater than 0 and at most 1 */
};

struct family_key {
    const char *name; /* in config.json; "a.b": of the object a, which may be null */
    enum family_key_type type;
    size_t offset; /* in struct model_config: FAMILY_AT, FAMILY_OWN */
    bool required;
    uint32_t most; /* a count must be in 1..most once the family has completed it; 0: not bounded here */
    enum family_range range;
    const char *other;
    const char *const *words; /* NULL ends them */
    uint32_t counted;         /* an index of `words`; 0: 1 */
};

#define FAMILY_AT(member) offsetof(struct model_config, member)

/* A member of the family's own numbers, a struct of this type. */
#define FAMILY_OWN(type, member) (offsetof(struct model_config, own) + offsetof(type, member))

/* Members of struct family: defaults of the own numbers. */
#define FAMILY_OWN_DEFAULTS(type, ...) .own_defaults = &(const type){__VA_ARGS__}, .own_bytes = sizeof(type)

/* Lines for a family's list of keys: those that have the same names in nearly all families, and the activation's,
 * whose name differs. */
#define FAMILY_KEYS(hidden_act)                                                                                        \
    {"hidden_size", FAMILY_COUNT, .offset = FAMILY_AT(width), .required = true, .most = 65536},                        \
        FAMILY_KEYS_BUT_WIDTH(hidden_act)

#define FAMILY_KEYS_BUT_WIDTH(hidden_act)                                                                              \
    {"intermediate_size", FAMILY_WIDTHS, .offset = FAMILY_AT(inner_width), .required = true, .most = MODEL_WIDEST},    \
        FAMILY_KEYS_BUT_WIDTHS(hidden_act)

#define FAMILY_KEYS_BUT_WIDTHS(hidden_act)                                                                             \
    {"num_hidden_layers", FAMILY_COUNT, .offset = FAMILY_AT(n_layers), .required = true, .most = 4096},                \
        {"num_attention_heads", FAMILY_COUNT, .offset = FAMILY_AT(n_heads), .required = true, .most = 65536},          \
        {"vocab_size", FAMILY_COUNT, .offset = FAMILY_AT(vocabulary), .required = true, .most = 1 << 24},              \
        {hidden_act, FAMILY_ACTIVATION, .offset = FAMILY_AT(activation)},                                              \
        {"initializer_range", FAMILY_REAL, .offset = FAMILY_AT(initializer_range), .range = FAMILY_FRACTION},          \
    {                                                                                                                  \
        "tie_word_embeddings", FAMILY_SWITCH, .offset = FAMILY_AT(tied)                                                \
    }

/* A table of the embedding, (rows, width). */
struct family_table {
    const char *name; /* "wte", of tensor "wte.weight"; NULL: the end */
    enum model_lookup by;
    size_t rows;   /* offset in struct model_config of the number of rows, a uint32_t, unless `some` is set; where that
                    * is 0, there is no such table */
    uint32_t some; /* number of rows; 0: as `rows` says */
    size_t first;  /* MODEL_BY_POSITION: offset there of position 0's row, a uint32_t; 0: row 0 */
};

/* A layer between embedding and head: a program.
 *
 * A family's blocks are of one kind, or of several, which stand side by side in its list. A block has one layer, or
 * several: the rows behind its first one that go on. */
struct family_layer {
    enum model_layer_kind kind; /* MODEL_BLOCK: n_layers blocks in all; or MODEL_SINGLE */
    const char *name;           /* the unit's: "h.%u" in block %u, "ln_f"; NULL: the end */
    /* A block's tensors are named by the block's first layer, or by a layer whose name has no number, a dot and the
     * program's name; a single layer's by the program's name alone. The prefix precedes both, unless a single layer is
     * `bare`. */
    bool bare;
    bool goes_on; /* belongs to the block of the row before */
    /* config->inner_width is the block's (proto/model/widths.h). */
    void (*write)(struct program *program, const struct model_config *config);
    /* In the place of `write`, where one function serves blocks of several kinds: kind counts from 0 in the family's
     * list. */
    void (*write_kind)(struct program *program, const struct model_config *config, uint32_t kind);
    /* A second program, run once a part: forward behind the part's last microbatch, backward before its first. Its
     * inputs are values of a row that the layer wrote, its outputs values of the part. It has no tensors. kind: as
     * above, 0 of a single layer. NULL: none. */
    void (*finish)(struct program *program, const struct model_config *config, uint32_t kind);
};

/* The layers above the blocks in a model that predicts a label for each row, from the row's first token. */
struct family_classifier {
    const char *architecture;          /* "BertForSequenceClassification" */
    const struct family_layer *layers; /* in place of the family's, and the same up to the blocks */
    const char *logits;                /* the head's table, which is never tied; with the prefix if it has one */
    const char *const *others;         /* other heads' tensors, as `unsupported` below, without the prefix */
    /* In the place of `layers` where batch norms are over ghost batches, with the same kinds of block. NULL: they are
     * not possible. */
    const struct family_layer *ghost_layers;
};

/* A tensor of one element, which is never trained. */
struct family_constant {
    const char *ending; /* of its name, "mlp.act_fn.beta"; NULL: the end */
    float value;        /* in files up to bf16's rounding */
};

/* Stacks of tensors (struct program_tensor) that files may have as one of three dimensions: each number's matrices,
 * rows of all parts one behind the other. Parts are tensors of the program one behind the other. */
struct family_joined {
    const char *name;     /* within the block, "mlp.experts.gate_up_proj"; NULL: the end */
    const char *parts[2]; /* "mlp.experts.%u.gate_proj.weight"; the second may be NULL */
};

enum { FAMILY_NO_TOKEN = INT32_MAX };

struct family {
    const char *model_type;                     /* in config.json */
    bool is_own;                                /* eps's own: transformers does not read its models */
    const char *const *architectures;           /* accepted; NULL ends them; the first is the one trained */
    const struct family_classifier *classifier; /* used by configs with its architecture; NULL: there is none */
    const struct family_key *keys; /* where two set the same number, the later one wins; the last one has no name */
    /* Keys that change nothing here, and keys that must be off; NULL ends each list, or stands for none. An asterisk at
     * the end of a name stands for any ending. model_config.c has the keys that all families share. */
    const char *const *harmless, *const *unsupported;
    /* Of `keys`, those that transformers reads elsewhere alone: here they have no effect either, and the user is told
     * (model_config.ignored) unless they are true or null, as they then say what holds anyway. */
    const char *const *ignored;
    struct model_config defaults; /* own: zeroed */
    const void *own_defaults;     /* (own_bytes) those of `own`; NULL: all are 0 */
    size_t own_bytes;
    uint32_t end_token; /* the id that transformers assumes if config.json has none; or FAMILY_NO_TOKEN */
    /* pad_token_id if config.json has none; or FAMILY_NO_TOKEN. That token's row of the table gets no gradient from the
     * input (PyTorch's padding_idx); a tied head's gradient reaches it. */
    uint32_t padding;
    bool trains_padding; /* the row of pad_token_id is trained as any other */

    /* Sets the numbers that are derived from others. */
    void (*complete)(struct model_config *config);
    /* Checks relations between numbers, each of which is within the bounds of its key. As model_config_check. */
    int (*check)(const struct model_config *config, struct error *err);

    const char *prefix; /* precedes tensor names, "transformer."; files may omit it */
    /* The embedding's, that of tokens first. NULL: there is no embedding; the lowest layer begins with what needs no
     * value, as the pixels of images do. */
    const struct family_table *tables;
    const struct family_layer *layers; /* from the bottom up */
    /* The kind of this block, numbered from 0 in the order of `layers`. NULL: there is one kind. */
    uint32_t (*kind_of_block)(const struct model_config *config, uint32_t index);
    /* The number in a block's name. NULL: its index. */
    uint32_t (*number_of_block)(const struct model_config *config, uint32_t index);
    /* The family's domain PROGRAM_OWN + own. NULL: it has none, or, with a source, the two sides of its rows. */
    struct program_own (*own_domain)(const struct model_config *config, uint32_t own);
    /* A row is a source, which the encoder reads, and its target, of which the decoder predicts each token. */
    bool has_source;
    const char *logits; /* the head's table if it is not tied: "lm_head"; without the prefix */
    /* A key of config.json with which tie_word_embeddings tells nothing: a model whose files hold a head that differs
     * from the table of tokens is not tied (client/model/untie.h). NULL: tie_word_embeddings always tells. */
    const char *ties_by_files;
    /* Dropout of the embedding's sum. NULL: none. */
    struct program_dropout (*embedding_dropout)(const struct model_config *config);
    /* A constant by which rows of the table of tokens are multiplied, in the embedding alone. NULL: 1. */
    float (*embedding_scale)(const struct model_config *config);
    /* The head's logits become cap * tanh(logit / cap). 0, or NULL: they stay. */
    float (*logit_cap)(const struct model_config *config);
    /* Trained to restore tokens that were masked, as every token sees all others; else to predict the next one. */
    bool masked;
    /* A row is an image, and the model a classifier of images: `classifier` has all its layers, and model_config.image
     * is complete. The tokens of a row are the image's pixels (proto/operation/kind/pixels.h). */
    bool sees_images;
    /* True if a file may have a tensor of this name (without prefix) that is no weight here: a mask, a layer that other
     * heads read. NULL: there are none. */
    bool (*is_mask)(const char *name);
    /* True if it is a layer that other heads read, which an export has again. NULL: no mask is. */
    bool (*is_other)(const char *name);
    /* Numbers of files that are computed with as constants: others are refused. NULL: there are none. */
    const struct family_constant *constants;
    const struct family_joined *joined; /* NULL: files have each tensor by itself */
    /* Tensors that a file may have as copies of the table of tokens, up to WEIGHTS_STACKS: the tables of the two stacks
     * of an encoder-decoder, which has one for both. NULL ends them; NULL: there are none. */
    const char *const *copies;
    /* The name that old files give a tensor. False: they have none of their own; NULL: for any. */
    bool (*old_name)(char *out, size_t size, const char *name);
    /* Files of whole models have old_name, which transformers changes as it reads them; adapters have the name itself,
     * as PEFT names what transformers has in memory. */
    bool keeps_old_names;
    /* PEFT's all-linear, and targets by name, mean experts and routers as well; else the maps beside them alone. */
    bool adapts_experts;
    /* What the config has a coefficient for and training leaves out, as a sentence for whoever trains all weights;
     * static. NULL: nothing. */
    const char *(*left_out)(const struct model_config *config);
};

extern const struct family *const model_families[]; /* NULL ends them */

/* The family of a config's model_type. NULL: it has none, or no family has this name. */
const struct family *family_find(const struct json_t *config);

/* A config before its keys are read: the family's defaults, its own numbers included. */
void family_set_defaults(struct model_config *out, const struct family *family);

/* What training of the config's model leaves out (left_out), unless it has an adapter. NULL: nothing. */
const char *family_left_out(const struct model_config *config);

/* True if the list has this name, or an ending in '*' that matches it. list NULL: empty. */
bool family_lists(const char *const *list, const char *name);

#endif
