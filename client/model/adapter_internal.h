/* client/model/adapter_internal.h - what the files about adapters share. */
#ifndef CLIENT_MODEL_ADAPTER_INTERNAL_H
#define CLIENT_MODEL_ADAPTER_INTERNAL_H

#include "client/model/adapter.h"
#include "proto/model/file/checkpoint_layout.h"

struct client_adapter_pattern;

struct client_adapter_patterns {
    struct client_adapter_pattern *at; /* (n) owned */
    size_t n;
};

struct client_adapter_names {
    const json_t *list;                      /* NULL: the pattern, or all */
    struct client_adapter_patterns patterns; /* none: all */
};

/* What an adapter_config.json says of modules by their names. */
struct client_adapter_targets {
    struct client_adapter_names targets, excluded;
    bool excludes;
    const json_t *saved;                           /* modules_to_save */
    const json_t *layers;                          /* layers_to_transform: a number or a list; NULL: all layers */
    struct client_adapter_patterns layer_patterns; /* the first that fits has a block's number in its group "idx" */
    struct client_adapter_patterns ranks, alphas;  /* of modules that have others than these: */
    double rank, alpha;
    const json_t *parameters; /* target_parameters: a list; NULL: none */
    bool used[ADAPTER_MAPS];  /* of the list of targets: it matched */
    bool used_parameters[ADAPTER_MAPS];
    const char *unanswered; /* the key of a pattern that gave no answer in time; NULL: there is none */
};

/* Borrows peft, which must outlive it. -EINVAL with a sentence. Undo: client_adapter_targets_close. */
int client_adapter_targets_open(struct client_adapter_targets *out, const json_t *peft, struct error *err);
void client_adapter_targets_close(struct client_adapter_targets *targets);

/* True within a module that is trained as a whole. */
bool client_adapter_is_saved(const struct client_adapter_targets *targets, const char *name);

struct client_adapter_map {
    double rank, alpha; /* rank 0: it is not adapted */
};

/* As PEFT: whether `end` (may be NULL) is the name, or its end behind a dot. */
bool client_adapter_is_end(const char *name, const char *end);

/* The last part of a name, in it. */
const char *client_adapter_last(const char *name);

/* How the linear map of this name, "model.layers.0.self_attn.q_proj", is adapted, unless it is saved. */
struct client_adapter_map client_adapter_find(struct client_adapter_targets *targets, const char *name);

/* The same of a tensor that target_parameters may name, "model.layers.0.mlp.experts.gate_up_proj". */
struct client_adapter_map client_adapter_find_parameter(struct client_adapter_targets *targets, const char *name);

/* Changes what peft says of a mixture's targets to what PEFT would; of other models nothing. own: the targets are
 * --lora's, which may name experts and tensors besides. -EINVAL with a sentence: PEFT would refuse it. */
int client_adapter_convert(json_t *peft, const struct model_config *config, const char *within, bool own,
                           struct error *err);

/* Resolves which linear maps of a model without an adapter, within a wrapper or not (proto/model/adapter.h), have one,
 * and how: *key, the keys beside peft in config.json
 * (proto/model/adapter.h), owned; and whether the maps' weights are (in, out), PEFT's fan_in_fan_out. strict: each
 * target must match. -EINVAL with a sentence that says which names there are. */
int client_adapter_resolve(json_t **key, bool *in_out, const struct model_config *config, const char *within,
                           const json_t *peft, bool strict, struct error *err);

/* The module of a wrapper that the open model is, "language_model"; "": the model is no wrapper's. */
const char *client_adapter_within(const struct client_model *model);

/* A number that tells models apart: of the names, shapes and some values of tensors in all files, however they are
 * divided among them. whole: of all tensors; else of those in fp32, fp16, bf16 and fp8, as adapters of earlier trees
 * have it of their base. */
int client_adapter_fingerprint(uint64_t *out, const struct client_model *model, bool whole, struct error *err);

#endif
