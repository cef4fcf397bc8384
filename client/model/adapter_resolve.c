/* Which linear maps of a model an adapter_config.json adapts, block by block, and which base the adapter's files are
 * of.
 *
 * The maps are seen from the bottom up. Each block gives a row: the rank and alpha of each map that it has; so do all
 * layers outside of blocks together. Rows that differ are the forms of config.json's key. Where every row says the same
 * as peft does, the key has none. */
#include "client/model/adapter_internal.h"
#include "proto/base/file.h"
#include "proto/base/json.h"
#include "proto/model/family.h"
#include "proto/model/file/checkpoint.h"
#include "proto/model/file/checkpoint_layout.h"
#include "proto/model/wrapper.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLE = 64 /* values of a tensor */ };

/* A linear map of one name, in all layers. */
struct stem {
    char name[PROGRAM_NAME_BYTES];
    unsigned n, n_matched, n_plain; /* plain: adapted with peft's own rank and alpha */
    bool in_out;
};

struct row {
    struct client_adapter_map of[ADAPTER_MAPS]; /* of each stem */
};

struct resolving {
    struct client_adapter_targets targets;
    struct stem stems[ADAPTER_MAPS];
    unsigned n_stems;
    struct row forms[ADAPTER_FORMS];
    unsigned n_forms;
    struct row block;  /* the one that is being seen */
    uint32_t n_blocks; /* that one included */
    struct row outside;
    bool has_outside[ADAPTER_MAPS]; /* layers in no block have this map */
    uint8_t of[ADAPTER_BLOCKS];
    const char *within, *prefix; /* as in model_adapter_name */
    bool has_experts;
    struct error *err;
};

/* ---- what blocks have ---- */

static int row_take(uint8_t *form, struct resolving *r, const struct row *row)
{
    unsigned i = 0;

    while (i < r->n_forms && memcmp(&r->forms[i], row, sizeof *row) != 0)
        i++;
    if (i == ADAPTER_FORMS)
        return error_set(r->err, -EINVAL,
                         "its layers are adapted in more than %d ways: use fewer different ranks, or alphas",
                         ADAPTER_FORMS);
    if (i == r->n_forms)
        r->forms[r->n_forms++] = *row;
    *form = (uint8_t)i;
    return 0;
}

/* Ends the block that was seen last. */
static int block_end(struct resolving *r)
{
    const int rc = r->n_blocks > 0 ? row_take(&r->of[r->n_blocks - 1], r, &r->block) : 0;

    r->block = (struct row){0};
    return rc;
}

/* The place of a map's name among those seen; ADAPTER_MAPS: there is no room for it. */
static unsigned stem_place(struct resolving *r, const struct model_linear *linear)
{
    unsigned i = 0;

    while (i < r->n_stems &&
           (strlen(r->stems[i].name) != linear->n_stem || strncmp(r->stems[i].name, linear->stem, linear->n_stem) != 0))
        i++;
    if (i == r->n_stems && i < ADAPTER_MAPS) {
        r->stems[i] = (struct stem){.in_out = linear->in_out};
        snprintf(r->stems[i].name, sizeof r->stems[i].name, "%.*s", (int)linear->n_stem, linear->stem);
        r->n_stems++;
    }
    return i;
}

static bool adapter_resolve_is_same(const struct client_adapter_map *a, const struct client_adapter_map *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* Experts and routers are tensors to PEFT, which target_parameters names. */
static struct client_adapter_map resolve_find(struct resolving *r, const struct model_linear *linear, const char *name)
{
    char tensor[CHECKPOINT_TENSOR_BYTES + 8];

    snprintf(tensor, sizeof tensor, linear->role == LINEAR_EXPERTS ? "%s" : "%s.weight", name);
    r->has_experts |= linear->role == LINEAR_EXPERTS;
    return linear->role == LINEAR_PLAIN ? client_adapter_find(&r->targets, name)
                                        : client_adapter_find_parameter(&r->targets, tensor);
}

static int on_linear(void *data, const struct model_linear *linear)
{
    struct resolving *r = data;
    const bool in_block = linear->layer->kind == MODEL_BLOCK;
    char bare[2 * PROGRAM_ADAPTED_BYTES], name[CHECKPOINT_TENSOR_BYTES];
    int rc = 0;

    snprintf(bare, sizeof bare, "%.*s", (int)linear->n, linear->name);
    model_adapter_name(name, sizeof name, r->within, r->prefix, bare);
    while (!rc && in_block && r->n_blocks <= linear->layer->index) {
        rc = block_end(r);
        r->n_blocks++;
    }
    if (rc || client_adapter_is_saved(&r->targets, name))
        return rc;
    const unsigned i = stem_place(r, linear);
    if (i == ADAPTER_MAPS)
        return error_set(r->err, -EINVAL, "this model has too many linear maps");
    const struct client_adapter_map map = resolve_find(r, linear, name);
    r->stems[i].n++;
    r->stems[i].n_matched += map.rank > 0;
    r->stems[i].n_plain +=
        adapter_resolve_is_same(&map, &(struct client_adapter_map){r->targets.rank, r->targets.alpha});
    if (in_block) {
        r->block.of[i] = map;
        return 0;
    }
    if (r->has_outside[i] && !adapter_resolve_is_same(&map, &r->outside.of[i]))
        return error_set(r->err, -EINVAL, "%s is adapted in another way than a map of this name in another layer",
                         name);
    r->has_outside[i] = true;
    r->outside.of[i] = map;
    return 0;
}

/* ": its linear maps are attn.c_attn, mlp.c_fc and mlp.c_proj; all-linear means all of them". */
static int refuse_target(struct error *err, const struct resolving *r, const char *target)
{
    error_set(err, -EINVAL, "the target %.60s matches no linear map that can be adapted here: these are", target);
    for (unsigned i = 0; i < r->n_stems; i++)
        error_append(err, "%s %s", i == 0 ? "" : i + 1 < r->n_stems ? "," : " and", r->stems[i].name);
    if (!r->has_experts)
        error_append(err, "; all-linear means all of them");
    return -EINVAL;
}

static int check_used(const struct resolving *r, bool strict, struct error *err)
{
    bool any = false;
    size_t i;
    json_t *item;

    if (r->targets.unanswered)
        return error_set(err, -EINVAL, "%s has a pattern that takes too long to match: write it in a simpler way",
                         r->targets.unanswered);
    for (unsigned s = 0; s < r->n_stems; s++)
        any |= r->stems[s].n_matched > 0;
    json_array_foreach((json_t *)(uintptr_t)r->targets.targets.list, i, item)
    {
        if (strict && i < ADAPTER_MAPS && !r->targets.used[i])
            return refuse_target(err, r, json_is_string(item) ? json_string_value(item) : "(no name)");
    }
    json_array_foreach((json_t *)(uintptr_t)r->targets.parameters, i, item)
    {
        if (i < ADAPTER_MAPS && !r->targets.used_parameters[i])
            return refuse_target(err, r, json_is_string(item) ? json_string_value(item) : "(no name)");
    }
    return any ? 0 : refuse_target(err, r, "of this adapter");
}

/* ---- the key ---- */

static json_t *adapter_resolve_row_json(const struct resolving *r, const struct row *row)
{
    json_t *out = json_array();

    for (unsigned s = 0; s < r->n_stems; s++)
        if (r->stems[s].n_matched > 0 && row->of[s].rank > 0)
            json_append(&out, json_pack("[I, f]", (json_int_t)row->of[s].rank, row->of[s].alpha));
        else if (r->stems[s].n_matched > 0)
            json_append(&out, json_null());
    return out;
}

/* True if maps are not all adapted as peft says in every layer that has them. */
static bool maps_differ(const struct resolving *r)
{
    bool differ = false;

    for (unsigned s = 0; s < r->n_stems; s++)
        differ |= r->stems[s].n_matched > 0 && r->stems[s].n_plain < r->stems[s].n;
    return differ;
}

static int add_forms(json_t *key, struct resolving *r, struct error *err)
{
    json_t *forms, *blocks;
    uint8_t outside = 0;
    bool any = false;
    int rc = 0;

    for (unsigned s = 0; s < r->n_stems; s++)
        any |= r->has_outside[s];
    if (any && (rc = row_take(&outside, r, &r->outside)) != 0)
        return rc;
    forms = json_array(), blocks = json_array();
    for (unsigned i = 0; i < r->n_forms; i++)
        json_append(&forms, adapter_resolve_row_json(r, &r->forms[i]));
    for (uint32_t i = 0; i < r->n_blocks; i++)
        json_append(&blocks, json_integer(r->of[i]));
    rc = json_object_set_new(key, "forms", forms) | json_object_set_new(key, "blocks", blocks) |
         json_object_set_new(key, "outside", json_integer(outside));
    return rc ? error_memory(err) : 0;
}

static int resolving_key(json_t **key, bool *in_out, struct resolving *r, struct error *err)
{
    json_t *modules = json_array();
    int rc = 0;

    for (unsigned i = 0; i < r->n_stems; i++)
        if (r->stems[i].n_matched > 0) {
            *in_out |= r->stems[i].in_out;
            json_append(&modules, json_string(r->stems[i].name));
        }
    *key = json_pack("{s:o}", "modules", modules);
    if (!*key)
        return error_memory(err);
    if (maps_differ(r) && (rc = add_forms(*key, r, err)) != 0) {
        json_decref(*key);
        *key = NULL;
    }
    return rc;
}

int client_adapter_resolve(json_t **key, bool *in_out, const struct model_config *config, const char *within,
                           const json_t *peft, bool strict, struct error *err)
{
    struct resolving *r = calloc(1, sizeof *r);
    struct model model;

    *key = NULL, *in_out = false;
    if (!r)
        return error_memory(err);
    r->err = err, r->within = within, r->prefix = config->family->prefix;
    int rc = client_adapter_targets_open(&r->targets, peft, err);
    if (!rc && (rc = model_init(&model, config, err)) == 0) {
        rc = model_each_linear(&model, on_linear, r);
        for (; !rc && r->n_blocks < config->n_layers; r->n_blocks++)
            rc = block_end(r);
        rc = rc ? rc : block_end(r);
        model_free(&model);
    }
    if (!rc)
        rc = check_used(r, strict, err);
    if (!rc)
        rc = resolving_key(key, in_out, r, err);
    client_adapter_targets_close(&r->targets);
    free(r);
    return rc;
}

/* ---- the base ---- */

/* The files' prefix tells them apart; older ones say "language_model." where transformers has model.language_model. */
const char *client_adapter_within(const struct client_model *model)
{
    bool other = false;

    for (unsigned i = 0; *model->wrapper && i < model->n_weights; i++) {
        struct safetensors file;
        if (safetensors_open(&file, model->weights[i].fd, NULL) != 0)
            continue;
        for (size_t k = 0; k < file.n_entries; k++) {
            const char *prefix = wrapper_prefix(file.entries[k].name);
            other |= prefix && strcmp(prefix, "model.text_model.") == 0;
        }
        safetensors_close(&file);
    }
    return !*model->wrapper ? "" : other ? "text_model" : "language_model";
}

/* "model.norm.weight 24", or with the type in front where the values are not read as numbers. Returns the length. */
static size_t print_tensor(char *text, size_t size, const struct safetensors_entry *entry, const char *type)
{
    int n = snprintf(text, size, "%s%.200s", type, entry->name);

    for (uint32_t i = 0; i < entry->n_dims; i++)
        n += snprintf(text + n, size - (size_t)n, " %ju", (uintmax_t)entry->shape[i]);
    return (size_t)n;
}

/* The last values; of other types than floats the last bytes. */
static int adapter_resolve_add_tensor(uint64_t *sum, const struct safetensors_entry *entry, bool whole,
                                      struct error *err)
{
    const bool is_real = safetensors_is_real(entry), is_read = is_real || strcmp(entry->dtype, "F8_E4M3") == 0;
    const uint64_t bytes = safetensors_entry_bytes(entry), most = is_real ? entry->n : bytes;
    const uint64_t n = most < SAMPLE ? most : SAMPLE;
    float values[SAMPLE] = {0};
    char text[512];
    int rc = 0;

    if (!whole && (!is_read || n == 0))
        return 0;
    const size_t n_text = print_tensor(text, sizeof text, entry, is_real ? "" : entry->dtype);
    if (n > 0)
        rc = is_real ? safetensors_read(values, entry, entry->n - n, n, err)
                     : file_read(&entry->file, values, n, entry->offset + bytes - n, err);
    *sum += checkpoint_hash(text, n_text) ^ 3 * checkpoint_hash(values, is_real ? n * sizeof *values : n);
    return rc;
}

int client_adapter_fingerprint(uint64_t *out, const struct client_model *model, bool whole, struct error *err)
{
    int rc = 0;

    *out = 0;
    for (unsigned i = 0; !rc && i < model->n_weights; i++) {
        struct safetensors file;
        rc = safetensors_open(&file, model->weights[i].fd, err);
        for (size_t k = 0; !rc && k < file.n_entries; k++)
            rc = adapter_resolve_add_tensor(out, &file.entries[k], whole, err);
        safetensors_close(&file);
    }
    return rc;
}
