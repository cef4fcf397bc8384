/* proto/model/adapter.h - a model whose weights are frozen, with low-rank adapters that are trained in their place.
 *
 * LoRA (Hu et al., arXiv:2106.09685) in the form of PEFT, Hugging Face's library: names, files and arithmetic are its
 * own. An adapter directory has two files: adapter_config.json and adapter_model.safetensors. The base, which the
 * former names, stays where it is. There is no config.json, or transformers would take the directory for a whole model.
 *
 * config.json says what a model is, and daemon, workers and clients all read it. So an adapter is a key of config.json,
 * in memory, and as base_config.json in the checkpoints of its run:
 *
 *   "adapter": {"peft": {"peft_type": "LORA", "r": 16, ...}, "modules": ["self_attn.q_proj", ...]}
 *
 * In a tied base whose table or head modules_to_save names, PEFT trains a copy of that one, and the other stays as the
 * base has it. Such a model is not tied (tie_word_embeddings is false), and "unties": true says that its base has one
 * table for both.
 *
 * peft is the content of adapter_config.json. PEFT's target_modules are endings of names, or a pattern; what they match
 * in this model is resolved once, by the client, to `modules`: the names of linear maps within their layers. They are
 * adapted in every layer that has them, with the rank and alpha of peft, unless three more keys say otherwise:
 *
 *   "forms": [[[8, 16], null], [[4, 16], [4, 2.5]]], "blocks": [0, 1, 1], "outside": 0
 *
 * A form has the rank and alpha of each of `modules`, or null where it is not adapted; each block, and all layers
 * outside of blocks together, have one of the forms. So PEFT's rank_pattern, alpha_pattern and layers_to_transform are
 * resolved as well.
 *
 * PEFT names the modules of the model that it loads, and of a wrapper (proto/model/wrapper.h) that is the whole: there
 * model.language_model stands in place of the text model's own prefix. "within": "language_model" says so.
 *
 * A program with adapters has an operation behind each linear map that is adapted (proto/operation/kind/adapter.h), and more
 * tensors in the operation of experts (experts.h), so that no family knows of adapters. */
#ifndef PROTO_MODEL_ADAPTER_H
#define PROTO_MODEL_ADAPTER_H

#include "proto/base/error.h"
#include "proto/operation/kind/adapter.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ADAPTER_CONFIG  "adapter_config.json"
#define ADAPTER_WEIGHTS "adapter_model.safetensors"
#define ADAPTER_BASE    "base_config.json"  /* the base's config.json, with the key: eps's own, which others ignore */
#define ADAPTER_KEY     "adapter"           /* of config.json */
#define ADAPTER_PREFIX  "base_model.model." /* precedes names in adapter_model.safetensors */

enum {
    ADAPTER_MODULES_BYTES = 512,
    ADAPTER_TRAINED_BYTES = 128,
    ADAPTER_WITHIN_BYTES = 24,
    ADAPTER_MOST_RANK = 4096,
    ADAPTER_MAPS = 32,  /* modules with forms of their own: at most */
    ADAPTER_FORMS = 64, /* at most */
    ADAPTER_BLOCKS = 4096,
};

/* Layers that are not all adapted alike. */
struct model_adapter_forms {
    uint32_t n;                                                   /* 0: they are */
    struct program_adapter_map maps[ADAPTER_FORMS][ADAPTER_MAPS]; /* (n) of each of `modules` */
    uint32_t n_blocks;
    uint8_t of[ADAPTER_BLOCKS]; /* (n_blocks) */
    uint8_t outside;            /* of layers that are in no block */
};

struct model_adapter {
    uint32_t rank;                       /* the largest of any map; 0: there is no adapter */
    float factor;                        /* of B A, without forms: alpha / rank, or with rsLoRA alpha / sqrt(rank) */
    float dropout;                       /* probability */
    char modules[ADAPTER_MODULES_BYTES]; /* "self_attn.q_proj,mlp.up_proj": as in struct program_adaptation */
    char trained[ADAPTER_TRAINED_BYTES]; /* "classifier,score": modules that are trained as a whole */
    char within[ADAPTER_WITHIN_BYTES];   /* the text model's module in its wrapper; "": there is none */
    bool unties;                         /* the head's table, if the adapter has none, is the base's table of tokens */
    struct model_adapter_forms forms;
};

struct json_t;
struct model;
struct model_layer;

/* Reads the value of config.json's key, of a model with so many blocks. -EINVAL with a sentence. */
int model_adapter_read(struct model_adapter *out, const struct json_t *value, uint32_t n_blocks, struct error *err);

/* Name of a module or tensor in PEFT's model: "model.language_model.norm.weight" of "model.norm.weight" within
 * language_model; prefix: the family's. Without `within` it stays. Cut to n bytes. Returns out. */
const char *model_adapter_name(char *out, size_t n, const char *within, const char *prefix, const char *name);

/* The smallest rank of any map; 0: there is no adapter. */
uint32_t model_adapter_least_rank(const struct model_adapter *adapter);

/* How a matrix of the base is adapted: by factor B A. Of experts A and B have all of them (struct
 * device_experts_adapter); of other maps n_experts is 1, and B's first row 0. */
struct model_adapted {
    uint32_t a, b; /* tensors; 0 both: it is not */
    uint32_t rank;
    float factor;
    uint32_t expert, n_experts, first_row;
};

struct model_adapted model_find_adapted(const struct model *model, uint32_t tensor);

enum model_linear_role {
    LINEAR_PLAIN,
    LINEAR_ROUTER,  /* it makes the scores of experts */
    LINEAR_EXPERTS, /* of all experts of the layer, which are one tensor in transformers: "mlp.experts.gate_up_proj" */
};

/* A linear map of a model without adapters, in one of its layers, by its name in transformers' model. */
struct model_linear {
    enum model_linear_role role;
    const struct model_layer *layer;
    const char *name; /* the module's, "model.layers.0.self_attn.q_proj", of n characters, not terminated */
    size_t n;
    const char *stem; /* its name in the layer's program, "self_attn.q_proj", of n_stem characters */
    size_t n_stem;
    const char *parts; /* of experts: the last names of an expert's own maps, "gate_proj,up_proj"; else NULL */
    uint32_t n_experts;
    bool in_out; /* its weight is (in, out) */
};

/* Calls on_linear for each, from the bottom up, until it returns a number other than 0; returns that. */
int model_each_linear(const struct model *model, int (*on_linear)(void *data, const struct model_linear *linear),
                      void *data);

/* True for the weight of a linear map that is (in, out). */
bool model_is_in_out(const struct model *model, const char *tensor);

#endif
