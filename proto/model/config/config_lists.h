/* proto/model/config/config_lists.h - values of config.json that are lists of numbers. */
#ifndef PROTO_MODEL_CONFIG_CONFIG_LISTS_H
#define PROTO_MODEL_CONFIG_CONFIG_LISTS_H

#include "proto/base/error.h"
#include "proto/model/image.h"
#include "proto/model/own.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_t;

enum {
    CONFIG_LAYERS = 4096, /* blocks of a list, at most */
    CONFIG_KERNELS = 256, /* the same, of kernels */
    CONFIG_REALS = 256,
};

/* For each block one of two kinds: the set of blocks of the second. */
struct config_layers {
    uint32_t n;                       /* blocks that the file lists; 0: it lists none */
    uint64_t set[CONFIG_LAYERS / 64]; /* bit i % 64 of element i / 64: block i */
} MODEL_OWN;

static inline void config_layers_add(struct config_layers *layers, size_t block)
{
    layers->set[block / 64] |= UINT64_C(1) << block % 64;
}

static inline bool config_layers_has(const struct config_layers *layers, size_t block)
{
    return layers->set[block / 64] >> block % 64 & 1;
}

/* For each block the taps of its filters. */
struct config_kernels {
    uint32_t n;
    uint8_t taps[CONFIG_KERNELS]; /* (n) */
} MODEL_OWN;

/* Real numbers, of which the family says what each is for. */
struct config_reals {
    uint32_t n;
    float of[CONFIG_REALS]; /* (n) */
} MODEL_OWN;

/* Each reads the value of a key. -EINVAL with a sentence that names key and value, and says what is accepted. */
int config_read_kernels(struct config_kernels *out, const char *key, const struct json_t *value, struct error *err);
int config_read_reals(struct config_reals *out, const char *key, const struct json_t *value, struct error *err);
int config_read_depths(uint32_t out[IMAGE_STAGES], const char *key, const struct json_t *value, struct error *err);
int config_read_channels(struct image_channels *out, const char *key, const struct json_t *value, struct error *err);

/* Repeats the last n_added entries of a list that has one for each of n blocks, if it is one. -1: no memory. */
int config_extend_list(struct json_t *list, uint32_t n, uint32_t n_added);

#endif
