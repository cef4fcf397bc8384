/* The number of shards is known only at the end, and each file's name has it; so names are made when they are asked
 * for. A tied head that the source stores beside the table is written as the table now is: readers that find both
 * compare them. */
#include "client/ask/export_items.h"

#include "proto/base/text.h"
#include "proto/model/coded.h"
#include "proto/model/joined.h"
#include "proto/model/file/checkpoint.h"
#include "proto/model/file/checkpoint_layout.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned items_element_bytes(const struct client_export_form *form)
{
    return form->type == SAFETENSORS_F32 ? sizeof(float) : sizeof(uint16_t);
}

/* The name is the first n characters of this one. */
static int items_add_cut(struct export_items *items, const struct export_item *item, const char *name, size_t n,
                         struct error *err)
{
    struct export_item *const to = &items->at[items->n];

    *to = *item;
    to->name = strndup(name, n);
    if (!to->name)
        return error_memory(err);
    items->n++;
    return 0;
}

static int items_add(struct export_items *items, const struct export_item *item, const char *name, struct error *err)
{
    return items_add_cut(items, item, name, strlen(name), err);
}

/* An adapter alone has what its base has not; merged, there is no tensor of an adapter any more. */
static bool items_has(const struct client_export_form *form, const struct model_tensor *tensor)
{
    return form->merge ? !tensor->adapts : tensor->saved;
}

/* True of a tensor that is written joined with others, as its source has them. */
static bool is_joined(struct joined *out, const struct client_export_form *form, const struct model *model,
                      const struct model_tensor *tensor)
{
    return form->passed && form->passed->weights.n_parts > 0 && joined_find(out, model, tensor);
}

/* All that are joined, where this tensor is the first of them. */
static int add_joined(struct export_items *items, const struct client_export_form *form, const struct joined *joined,
                      const struct model_tensor *tensor, uint32_t index, struct error *err)
{
    const unsigned element = items_element_bytes(form);
    const struct export_item item = {.tensor = index,
                                     .joined = true,
                                     .bytes = tensor->n * joined->n_parts * tensor->n_stacked * element,
                                     .element_bytes = element};
    char name[CLIENT_PASSED_NAME_BYTES];

    if (joined->number > 0 || joined->part > 0)
        return 0;
    return items_add(items, &item, client_passed_name(name, form->passed, joined->name), err);
}

static int add_model(struct export_items *items, const struct model *model, const struct client_export_form *form,
                     struct error *err)
{
    _Static_assert((int)CLIENT_PASSED_NAME_BYTES >= (int)CHECKPOINT_TENSOR_BYTES, "room for both");
    const unsigned element = items_element_bytes(form);
    char name[CLIENT_PASSED_NAME_BYTES];
    int rc = 0;

    for (uint32_t t = 0; rc == 0 && t < model->n_tensors; t++) {
        const struct model_tensor *tensor = &model->tensors[t];
        const unsigned each = tensor->fixed ? sizeof(float) : element;
        const struct export_item item = {.tensor = t, .bytes = tensor->n * each, .element_bytes = each};
        struct joined joined;
        if (!items_has(form, tensor))
            continue;
        if (is_joined(&joined, form, model, tensor)) {
            rc = add_joined(items, form, &joined, tensor, t, err);
            continue;
        }
        if (form->passed)
            client_passed_name(name, form->passed, tensor->name);
        else if (form->merge)
            snprintf(name, sizeof name, "%s", tensor->name);
        else
            checkpoint_tensor_name(name, model, tensor);
        rc = items_add(items, &item, name, err);
    }
    return rc;
}

/* transformers keeps them as buffers, and computes with whatever memory held if a file lacks them. */
static int add_constants(struct export_items *items, const struct model *model, const struct client_export_form *form,
                         struct error *err)
{
    struct export_item item = {.tensor = EXPORT_CONSTANT,
                               .bytes = items_element_bytes(form),
                               .element_bytes = items_element_bytes(form)};
    char own[MODEL_TENSOR_BYTES], name[CLIENT_PASSED_NAME_BYTES];
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && model_constant(own, &item.constant, model, i); i++) {
        if (form->passed)
            client_passed_name(name, form->passed, own);
        rc = items_add(items, &item, form->passed ? name : own, err);
    }
    return rc;
}

static int add_tied_head(struct export_items *items, const struct model *model, const struct client_export_form *form,
                         struct error *err)
{
    const struct safetensors_entry *head = form->passed->weights.copies[WEIGHTS_HEAD];
    const uint32_t table = model->embedding.tables[0].tensor;
    const unsigned element = items_element_bytes(form);
    const struct export_item item = {.tensor = table,
                                     .bytes = model->tensors[table].n * element,
                                     .element_bytes = element};

    return head && model->config.tied ? items_add(items, &item, head->name, err) : 0;
}

/* Codes are decoded, as they are of the model's own tensors: config.json then says of none that it is quantised. */
static int add_passed(struct export_items *items, const struct safetensors_entry *entry,
                      const struct client_export_form *form, struct error *err)
{
    static const char blocks[] = "_blocks";
    struct export_item item = {.tensor = EXPORT_PASSED, .passed = entry};
    size_t n = strlen(entry->name);

    if (entry->coded && text_ends_with(entry->name, blocks))
        n -= strlen(blocks);
    item.bytes = entry->coded ? entry->n * items_element_bytes(form) : safetensors_entry_bytes(entry);
    item.element_bytes = entry->coded   ? items_element_bytes(form)
                         : entry->n > 0 ? (unsigned)(item.bytes / entry->n)
                                        : 1;
    return items_add_cut(items, &item, entry->name, n, err);
}

static int check_names(const struct export_items *items, struct error *err)
{
    json_t *names = json_object();
    int rc = names ? 0 : error_memory(err);

    for (const struct export_item *i = items->at; rc == 0 && i < items->at + items->n; i++) {
        const json_t *passed = json_object_get(names, i->name);
        if (json_is_true(passed))
            rc = error_set(err, -EINVAL, "%.100s is there twice: remove one of the two", i->name);
        else if (passed)
            rc = error_set(err, -EINVAL,
                           "%.100s is a tensor of this model, and another one in the model that its training began "
                           "from: leave that one out with --text-only",
                           i->name);
        else if (json_object_set_new(names, i->name, json_boolean(i->tensor == EXPORT_PASSED)))
            rc = error_memory(err);
    }
    json_decref(names);
    return rc;
}

static void items_divide(struct export_items *items, uint64_t shard_bytes)
{
    uint64_t bytes = 0;

    items->n_shards = 1;
    for (struct export_item *i = items->at; i < items->at + items->n; i++) {
        if (bytes > 0 && bytes + i->bytes > shard_bytes)
            items->n_shards++, bytes = 0;
        bytes += i->bytes;
        i->shard = items->n_shards - 1;
    }
}

static size_t count_passed(const struct client_passed *passed)
{
    size_t n = 0;

    for (unsigned f = 0; passed && f < passed->weights.n_files; f++)
        n += passed->weights.files[f].n_entries;
    return n;
}

int export_items_init(struct export_items *out, const struct model *model, const struct client_export_form *form,
                      struct error *err)
{
    const struct weights *source = form->passed ? &form->passed->weights : NULL;
    const bool adapters = model->config.adapter.rank > 0 && !form->merge;
    int rc;

    *out = (struct export_items){.alone = form->merge ? CHECKPOINT_WEIGHTS : checkpoint_weights_name(model)};
    out->at = calloc(model->n_tensors + model_count_constants(model) + 1 + count_passed(form->passed), sizeof *out->at);
    rc = out->at ? add_model(out, model, form, err) : error_memory(err);
    if (rc == 0 && !adapters)
        rc = add_constants(out, model, form, err);
    if (rc == 0 && source)
        rc = add_tied_head(out, model, form, err);
    for (unsigned f = 0; source && f < source->n_files; f++)
        for (size_t k = 0; rc == 0 && k < source->files[f].n_entries; k++)
            if (source->files[f].entries[k].passed)
                rc = add_passed(out, &source->files[f].entries[k], form, err);
    if (rc == 0 && source)
        rc = check_names(out, err);
    items_divide(out, adapters ? UINT64_MAX : form->shard_bytes);
    return rc;
}

void export_items_free(struct export_items *items)
{
    for (size_t i = 0; i < items->n; i++)
        free(items->at[i].name);
    free(items->at);
    *items = (struct export_items){0};
}

const char *export_items_file(char out[EXPORT_SHARD_BYTES], const struct export_items *items, uint32_t shard)
{
    if (items->n_shards == 1)
        snprintf(out, EXPORT_SHARD_BYTES, "%s", items->alone);
    else
        snprintf(out, EXPORT_SHARD_BYTES, "model-%05u-of-%05u.safetensors", shard + 1, items->n_shards);
    return out;
}

const struct export_item **export_items_of(size_t *n, const struct export_items *items, uint32_t shard)
{
    const struct export_item **list = calloc(items->n + 1, sizeof *list);

    *n = 0;
    for (unsigned size = 16; list && size > 0; size /= 2)
        for (const struct export_item *i = items->at; i < items->at + items->n; i++)
            if (i->shard == shard && i->element_bytes >= size && i->element_bytes < 2 * size)
                list[(*n)++] = i;
    return list;
}

char *export_items_index(const struct export_items *items)
{
    json_t *map = json_object();
    char name[EXPORT_SHARD_BYTES];
    uint64_t bytes = 0;
    int rc = 0;

    for (const struct export_item *i = items->at; i < items->at + items->n; i++) {
        rc |= json_object_set_new(map, i->name, json_string(export_items_file(name, items, i->shard)));
        bytes += i->bytes;
    }
    json_t *index = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)bytes, "weight_map", map);
    char *text = rc == 0 && index ? json_dumps(index, JSON_INDENT(2)) : NULL;
    json_decref(index);
    return text;
}
