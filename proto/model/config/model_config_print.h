/* proto/model/config/model_config_print.h - config.json as it is written. */
#ifndef PROTO_MODEL_CONFIG_MODEL_CONFIG_PRINT_H
#define PROTO_MODEL_CONFIG_MODEL_CONFIG_PRINT_H

#include "proto/model/file/safetensors.h"

#include <stdbool.h>
#include <stddef.h>

struct json_t; /* jansson's */

/* A config as text; the caller frees it. Numbers are those of proto/base/dump.h: 0.1 stays 0.1. NULL: no memory. */
char *model_config_text(const struct json_t *config);

/* Converts a config.json (text, n bytes) for weights of this type; the caller frees the result. The type is named where
 * it was, as "dtype", "torch_dtype" or both; else as torch_dtype, which every version of transformers reads. Ids of
 * special tokens beyond the vocabulary, given or assumed, become null. All else stays; if nothing changes, so does
 * every byte. NULL: no memory, or text is no JSON object. */
char *model_config_print(const char *text, size_t n, enum safetensors_type type);

/* Names the type of the weights under each of the two keys that a config has. *changed is set if one said something
 * else. -1: no memory. */
int model_config_name_type(bool *changed, struct json_t *config, enum safetensors_type type);

#endif
