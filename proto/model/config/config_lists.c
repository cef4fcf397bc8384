/* Bounds are compared as jansson's 64-bit integers, before anything is narrowed, and a list's length before its first
 * item. So no number of a file is cut off to one that would pass. */
#include "proto/model/config/config_lists.h"

#include "proto/model/model_internal.h"
#include "proto/operation/call/dynamic_conv.h"

#include <jansson.h>

int config_read_kernels(struct config_kernels *out, const char *key, const json_t *value, struct error *err)
{
    size_t i;
    json_t *item;

    *out = (struct config_kernels){0};
    if (!json_is_array(value) || json_array_size(value) > CONFIG_KERNELS)
        return model_config_refuse(err, key, value,
                                   "it must be a list with a whole number for each block, of at most 256");
    json_array_foreach(value, i, item)
    {
        const json_int_t taps = json_is_integer(item) ? json_integer_value(item) : 0;
        if (taps < 1 || taps > DEVICE_MOST_TAPS)
            return model_config_refuse(err, key, item, "each kernel must be a whole number from 1 to 128");
        out->taps[out->n++] = (uint8_t)taps;
    }
    return 0;
}

int config_read_reals(struct config_reals *out, const char *key, const json_t *value, struct error *err)
{
    size_t i;
    json_t *item;

    *out = (struct config_reals){0};
    if (json_is_null(value))
        return 0;
    if (!json_is_array(value) || json_array_size(value) > CONFIG_REALS)
        return model_config_refuse(err, key, value, "it must be a list of numbers, of at most 256");
    json_array_foreach(value, i, item)
    {
        if (!json_is_number(item))
            return model_config_refuse(err, key, item, "each entry must be a number");
        out->of[out->n++] = (float)json_number_value(item);
    }
    return 0;
}

int config_read_depths(uint32_t out[IMAGE_STAGES], const char *key, const json_t *value, struct error *err)
{
    size_t i;
    json_t *item;

    if (!json_is_array(value) || json_array_size(value) != IMAGE_STAGES)
        return model_config_refuse(err, key, value, "it must be a list of 4 whole numbers, the blocks of each stage");
    json_array_foreach(value, i, item)
    {
        const json_int_t n = json_is_integer(item) ? json_integer_value(item) : 0;
        if (n < 1 || n > IMAGE_MOST_DEPTH)
            return model_config_refuse(err, key, item, "each stage must have from 1 to 64 blocks");
        out[i] = (uint32_t)n;
    }
    return 0;
}

int config_read_channels(struct image_channels *out, const char *key, const json_t *value, struct error *err)
{
    size_t i;
    json_t *item;

    *out = (struct image_channels){0};
    if (!json_is_array(value) || json_array_size(value) < 1 || json_array_size(value) > IMAGE_CHANNELS)
        return model_config_refuse(err, key, value, "it must be a list of numbers, one for each channel");
    json_array_foreach(value, i, item)
    {
        if (!json_is_number(item))
            return model_config_refuse(err, key, item, "it must be a list of numbers, one for each channel");
        out->of[out->n++] = (float)json_number_value(item);
    }
    return 0;
}

int config_extend_list(json_t *list, uint32_t n, uint32_t n_added)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && json_array_size(list) == n + i && i < n_added; i++)
        rc = json_array_append(list, json_array_get(list, n + i - n_added));
    return rc;
}
