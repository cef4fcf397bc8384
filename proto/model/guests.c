/* Of a guest's config only what its blocks depend on is kept (trim), so blocks that came from different files, and
 * are alike, share an entry: there are MODEL_GUESTS of them. */
#include "proto/model/guests.h"

#include "proto/model/config/config_lists.h"
#include "proto/model/family.h"
#include "proto/model/model_internal.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

uint32_t model_guest_of(const struct model_config *config, uint32_t block)
{
    return config->guests.n > 0 ? config->guests.of[block] : 0;
}

void model_guest_config(struct model_config *out, const struct model_config *config, uint32_t at)
{
    const struct model_guest *guest = &config->guests.at[at];

    *out = *config;
    out->family = guest->family;
    out->n_heads = guest->n_heads;
    out->inner_width = guest->inner_width;
    out->activation = guest->activation;
    out->norm_epsilon = guest->norm_epsilon;
    out->initializer_range = guest->initializer_range;
    out->own = guest->own;
    out->widths.n = out->guests.n = 0;
}

static struct model_guest guest_of(const struct model_config *c)
{
    return (struct model_guest){.family = c->family,
                                .n_heads = c->n_heads,
                                .inner_width = c->inner_width,
                                .activation = c->activation,
                                .norm_epsilon = c->norm_epsilon,
                                .initializer_range = c->initializer_range,
                                .own = c->own};
}

/* ---- reading ---- */

/* True if the family's blocks read one value of a token and give the same one, and no more. */
static bool has_plain_blocks(const struct family *family)
{
    return !family->has_source && !family->sees_images && !family->own_domain;
}

/* A guest sees of other tokens what the model's own blocks see. */
static int check_family(const struct model_config *host, const struct family *guest, struct error *err)
{
    if (!has_plain_blocks(host->family))
        return error_set(err, -EINVAL, "a block of a %s model cannot be another model's", host->family->model_type);
    if (has_plain_blocks(guest) && guest->masked == host->family->masked)
        return 0;
    return error_set(err, -EINVAL, "a %s block cannot stand in a %s model: %s", guest->model_type,
                     host->family->model_type,
                     has_plain_blocks(guest) ? "one sees later tokens, and the other does not"
                                             : "it reads other values than that model's blocks");
}

static int guests_read_config(struct model_guest *out, const struct model_config *host, const json_t *object,
                              struct error *err)
{
    struct model_config config;
    int rc = json_is_object(object) ? model_config_read(&config, object, host, err)
                                    : error_set(err, -EINVAL, "a config must be an object");

    if (!rc && config.widths.n > 0)
        rc = error_set(err, -EINVAL, "%s is a list: these blocks have one width", model_widths_key(config.family));
    if (!rc)
        rc = check_family(host, config.family, err);
    if (!rc)
        *out = guest_of(&config);
    return rc;
}

int model_guest_check(const struct model_config *config, const json_t *guest, struct error *err)
{
    struct model_guest unused;

    return guests_read_config(&unused, config, guest, err);
}

static int read_blocks(struct model_config *c, const json_t *list, uint8_t guest, struct error *err)
{
    size_t i;
    json_t *item;

    if (!json_is_array(list) || json_array_size(list) == 0)
        return error_set(err, -EINVAL, "it has no list of numbers named blocks");
    json_array_foreach(list, i, item)
    {
        const json_int_t block = json_is_integer(item) ? json_integer_value(item) : -1;
        if (block < 0 || block >= c->n_layers || block >= MODEL_GUESTS_BLOCKS)
            return model_config_refuse(err, "a block", item, "it must be the number of one of the model's, from 0");
        if (c->guests.of[block])
            return model_config_refuse(err, "a block", item, "it is named twice");
        c->guests.of[block] = guest;
    }
    return 0;
}

int model_guests_read(struct model_config *config, const json_t *list, struct error *err)
{
    char where[48];
    size_t i;
    json_t *item;

    config->guests = (struct model_guests){0};
    if (!json_is_array(list) || json_array_size(list) == 0 || json_array_size(list) > MODEL_GUESTS)
        return error_set(err, -EINVAL, MODEL_GUESTS_KEY ": it must be a list of 1 to %d objects with blocks and config",
                         MODEL_GUESTS);
    json_array_foreach(list, i, item)
    {
        int rc = guests_read_config(&config->guests.at[i], config, json_object_get(item, "config"), err);
        if (!rc)
            rc = read_blocks(config, json_object_get(item, "blocks"), (uint8_t)(i + 1), err);
        if (!rc && json_object_size(item) != 2)
            rc = error_set(err, -EINVAL, "it has keys besides blocks and config");
        if (rc) {
            snprintf(where, sizeof where, MODEL_GUESTS_KEY ", entry %zu", i);
            error_prefix(err, where);
            return rc;
        }
        config->guests.n++;
    }
    return 0;
}

/* ---- writing ---- */

/* Takes a block from all entries. */
static void remove_block(json_t *list, uint32_t block)
{
    for (size_t i = json_array_size(list); i-- > 0;) {
        json_t *blocks = json_object_get(json_array_get(list, i), "blocks");
        for (size_t j = json_array_size(blocks); j-- > 0;)
            if (json_integer_value(json_array_get(blocks, j)) == block)
                json_array_remove(blocks, j);
        if (json_array_size(blocks) == 0)
            json_array_remove(list, i);
    }
}

bool model_is_of_frame(size_t offset)
{
    return offset == FAMILY_AT(width) || offset == FAMILY_AT(n_layers) || offset == FAMILY_AT(n_positions) ||
           offset == FAMILY_AT(vocabulary);
}

/* True for a key of config.json that says what the family's blocks are: "a", or of "a.b" the object a. */
static bool is_of_blocks(const struct family *family, const char *name)
{
    const size_t n = strlen(name);

    for (const struct family_key *key = family->keys; key->name; key++)
        if (strncmp(key->name, name, n) == 0 && (key->name[n] == 0 || key->name[n] == '.'))
            return key->type == FAMILY_SAME || !model_is_of_frame(key->offset);
    return strcmp(name, "model_type") == 0;
}

/* What a config says of its blocks; owned. NULL: no memory, or no config. */
static json_t *guests_trim(const json_t *guest)
{
    const struct family *family = family_find(guest);
    json_t *out = family ? json_object() : NULL, *value;
    const char *name;

    json_object_foreach((json_t *)guest, name, value)
    {
        if (out && is_of_blocks(family, name) && json_object_set(out, name, value)) {
            json_decref(out);
            out = NULL;
        }
    }
    return out;
}

/* The blocks of the entry with this config, which is added if there is none. Borrowed; NULL: no memory. */
static json_t *guests_blocks_of(json_t *list, json_t *guest)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        if (json_equal(json_object_get(item, "config"), guest))
            return json_object_get(item, "blocks");
    }
    if (json_array_append_new(list, json_pack("{s:[], s:O}", "blocks", "config", guest)))
        return NULL;
    return json_object_get(json_array_get(list, json_array_size(list) - 1), "blocks");
}

/* Puts "eps_" in front of the model_type, if it is not there. */
static int guests_mark(json_t *config)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));

    if (!type || strncmp(type, MODEL_GUESTS_TYPE, strlen(MODEL_GUESTS_TYPE)) == 0)
        return 0;
    return json_object_set_new(config, "model_type", json_sprintf(MODEL_GUESTS_TYPE "%s", type)) ? -ENOMEM : 0;
}

int model_guests_set(json_t *config, uint32_t block, json_t *guest)
{
    json_t *list = json_object_get(config, MODEL_GUESTS_KEY), *trimmed = guests_trim(guest);
    int rc = trimmed && (list || json_object_set_new(config, MODEL_GUESTS_KEY, list = json_array()) == 0) ? 0 : -ENOMEM;

    remove_block(list, block);
    json_t *blocks = rc ? NULL : guests_blocks_of(list, trimmed);
    if (!rc)
        rc = !blocks || json_array_append_new(blocks, json_integer(block)) ? -ENOMEM : guests_mark(config);
    json_decref(trimmed);
    return !rc && json_array_size(list) > MODEL_GUESTS ? -E2BIG : rc;
}

int model_guests_grow(json_t *config, uint32_t n, uint32_t n_added)
{
    size_t i;
    json_t *item, *list = json_object_get(config, MODEL_GUESTS_KEY);

    json_array_foreach(list, i, item)
    {
        json_t *blocks = json_object_get(item, "blocks");
        if (config_extend_list(json_object_get(json_object_get(item, "config"), "layer_types"), n, n_added))
            return -ENOMEM;
        const size_t n_blocks = json_array_size(blocks);
        for (size_t j = 0; j < n_blocks; j++) {
            const json_int_t block = json_integer_value(json_array_get(blocks, j));
            if (block >= n - n_added && json_array_append_new(blocks, json_integer(block + n_added)))
                return -ENOMEM;
        }
    }
    return 0;
}
