/* proto/model/config/config_values.h - the values of config.json's keys, by their types. */
#ifndef PROTO_MODEL_CONFIG_CONFIG_VALUES_H
#define PROTO_MODEL_CONFIG_CONFIG_VALUES_H

#include "proto/model/config/config_lists.h"
#include "proto/model/family.h"

struct json_t;

/* Reads a key's value to its place in *out. -EINVAL with a sentence: the key does not accept it. What numbers must be
 * is checked later (model_config_check). */
int config_read_key(struct model_config *out, const struct family_key *key, const struct json_t *value,
                    struct error *err);

/* A whole number from 0 on. -EINVAL with a sentence. */
int config_read_count(uint32_t *out, const char *key, const struct json_t *value, struct error *err);

/* Has a list of kinds of blocks, if it is one, end with n blocks: it is cut, or recurs. */
void config_repeat_layers(struct config_layers *layers, uint32_t n);

/* Appends choice i of n to a sentence: "a", ", b", " or c". */
void config_add_choice(char *text, size_t size, int i, int n, const char *name);

#endif
