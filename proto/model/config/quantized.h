/* proto/model/config/quantized.h - what config.json says of weights that are quantised (quantization_config).
 *
 * bitsandbytes and MXFP4 have all of it beside their codes. fp8 has the size of its blocks here alone: a tensor and its
 * scales do not tell it where the last blocks of a row or column are smaller. */
#ifndef PROTO_MODEL_CONFIG_QUANTIZED_H
#define PROTO_MODEL_CONFIG_QUANTIZED_H

#include "proto/base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct json_t;

#define QUANTIZED_KEY "quantization_config"

/* A block has at least so many columns. */
enum { QUANTIZED_LEAST_COLUMNS = 32 };

struct quantized {
    bool fp8;                           /* the files may have weights in fp8 */
    uint32_t block_rows, block_columns; /* elements that share a scale (weight_block_size); 0: all of a tensor */
};

/* Reads the object. -EINVAL with a sentence: weights are quantised by a method that proto/model/coded.h does not read,
 * or in fp8 as it cannot be read. */
int quantized_read(struct quantized *out, const struct json_t *object, struct error *err);

#endif
