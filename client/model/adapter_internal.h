/* client/model/adapter_internal.h - what the files about adapters share. */
#ifndef CLIENT_MODEL_ADAPTER_INTERNAL_H
#define CLIENT_MODEL_ADAPTER_INTERNAL_H

#include "client/model/adapter.h"

/* Resolves target_modules of an adapter in a model without one: *modules, a list of linear maps' names within their layers,
 * owned; and whether their weights are (in, out), PEFT's fan_in_fan_out. strict: each target must match. -EINVAL with a
 * sentence that says which names there are. */
int client_adapter_resolve(json_t **modules, bool *in_out, const struct model_config *config, const json_t *peft,
                           bool strict, struct error *err);

/* A number that tells bases apart: of the names, shapes and some values of all tensors in the first n files, however they are
 * divided among them. */
int client_adapter_fingerprint(uint64_t *out, const struct client_model *model, struct error *err);

#endif
