/* proto/model/config_lists.h - values of config.json that are lists of numbers. */
#ifndef PROTO_MODEL_CONFIG_LISTS_H
#define PROTO_MODEL_CONFIG_LISTS_H

#include "proto/base/error.h"
#include "proto/model/dynamic_conv.h"
#include "proto/model/image.h"

#include <jansson.h>

/* Each reads the value of a key. -EINVAL with a sentence that names key and value, and says what is accepted. */
int config_read_kernels(struct dynamic_conv_kernels *out, const char *key, const json_t *value, struct error *err);
int config_read_depths(uint32_t out[IMAGE_STAGES], const char *key, const json_t *value, struct error *err);
int config_read_channels(struct image_channels *out, const char *key, const json_t *value, struct error *err);

/* Repeats the last n_added entries of a list that has one for each of n blocks, if it is one. -1: no memory. */
int config_extend_list(json_t *list, uint32_t n, uint32_t n_added);

#endif
