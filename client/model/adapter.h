/* client/model/adapter.h - models with low-rank adapters, in PEFT's form: a base that gets fresh ones, and directories
 * of adapters.
 *
 * config.json says what a model is, so the client rewrites it, in memory, with the adapter (proto/model/adapter.h).
 * adapter_config.json is one of the model's side files, so every checkpoint and export has it. An adapter's directory
 * names its base, whose weights, and whose tokenizer if the adapter brings none, are read from there. */
#ifndef CLIENT_MODEL_ADAPTER_H
#define CLIENT_MODEL_ADAPTER_H

#include "client/model/model.h"

/* True if the directory holds an adapter. */
bool client_adapter_is_in(const char *directory);

/* Gives an open model with weights fresh adapters, as --lora says:
 * "rank=16,alpha=32,targets=q_proj,v_proj,dropout=0.05, rslora", each of them optional. targets are ends of modules'
 * names, as PEFT matches them, or all-linear; of a mixture also experts, and names of its tensors as target_parameters has
 * them. A classifier's head is trained with them, and what its files lack. -EDOM
 * for the text, also where a target matches nothing; -EINVAL for the model; -ENOMEM. */
int client_adapter_add(struct client_model *model, const char *lora, struct error *err);

/* Adds adapters as client_adapter_add does, to a model without weights, to be planned. */
int client_adapter_plan(struct client_model *model, const char *lora, struct error *err);

/* The content of a directory's adapter_config.json. Owned: json_decref. -EINVAL by name if it asks for something that
 * is not done here, such as DoRA; -errno. */
int client_adapter_read(json_t **peft, const char *directory, struct error *err);

/* Finds the base's directory: `base` if it is not NULL, else as adapter_config.json names it, from here or from the
 * adapter's own directory (may be ""). -ENOENT with the remedy. */
int client_adapter_find_base(char out[PATH_MAX], const json_t *peft, const char *directory, const char *base,
                             struct error *err);

/* Makes an adapter's model of an open one, whose config is the base's or has the adapter already, and whose weights, if
 * they are open, are the base's: completes config and side files. base: the directory. -EINVAL if the adapter does not
 * fit the model, or was trained on another base. */
int client_adapter_set(struct client_model *model, json_t *peft, const char *base, struct error *err);

/* Of a mixture of experts with adapters: which maps are adapted and which not, with the number of experts; "": it is no
 * mixture. -ENOMEM. */
enum { CLIENT_ADAPTER_NOTE_BYTES = 1200 };
int client_adapter_note(char out[CLIENT_ADAPTER_NOTE_BYTES], const struct model_config *config, struct error *err);

/* Removes the adapter from the config and the side files, for a model into which it is merged. */
int client_adapter_remove(struct client_model *model, struct error *err);

#endif
