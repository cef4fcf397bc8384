/* The source is opened as a model of its own, so the same match that refuses foreign tensors says which are passed.
 * What is trained may have other shapes or blocks than the source by now; only names are taken from there.
 *
 * Each sentence about a source that is gone or changed names both ways out: where it is now, or to leave it out. */
#include "client/model/passed.h"

#include "client/model/adapter.h"
#include "client/model/adapter_internal.h"
#include "client/model/file.h"
#include "proto/base/json.h"
#include "proto/base/process.h"
#include "proto/base/text.h"
#include "proto/model/coded.h"
#include "proto/model/family.h"
#include "proto/model/file/checkpoint.h"
#include "proto/model/file/model_files.h"
#include "proto/model/outside.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_PARTS = 6, DIGITS = 20 };

static uint64_t passed_bytes(const struct safetensors_entry *entry)
{
    return safetensors_entry_bytes(entry->coded ? &entry->coded->codes : entry);
}

/* Adds a part to the list, which says "..." where it ends early. */
static int add_part(json_t *parts, const char *part)
{
    size_t i;
    json_t *item;

    json_array_foreach(parts, i, item)
    {
        if (strcmp(json_string_value(item), part) == 0 || i == MOST_PARTS)
            return 0;
    }
    return json_array_append_new(parts, json_string(json_array_size(parts) == MOST_PARTS ? "..." : part));
}

/* NULL: no memory. Names of tensors are UTF-8: they come from a file's JSON. */
static json_t *passed_count(const struct weights *weights, const struct model *model)
{
    json_t *parts = json_array();
    json_int_t n = 0, bytes = 0;
    char part[OUTSIDE_PART_BYTES];
    int rc = 0;

    for (unsigned i = 0; i < weights->n_files; i++)
        for (size_t k = 0; k < weights->files[i].n_entries; k++) {
            const struct safetensors_entry *entry = &weights->files[i].entries[k];
            if (!entry->passed)
                continue;
            n++, bytes += (json_int_t)passed_bytes(entry);
            rc |= add_part(parts, outside_part(part, model, weights->wrapper, entry->name));
        }
    json_t *out = rc ? NULL : json_pack("{s:I, s:I, s:O}", "tensors", n, "bytes", bytes, "parts", parts);
    json_decref(parts);
    return out;
}

static int passed_fingerprint(char out[DIGITS], const struct client_model *model, struct error *err)
{
    uint64_t fingerprint;
    const int rc = client_adapter_fingerprint(&fingerprint, model, true, err);

    snprintf(out, DIGITS, "%016" PRIx64, rc ? 0 : fingerprint);
    return rc;
}

int client_passed_note(json_t **out, const struct client_model *model, const struct weights *weights,
                       const struct model *description, struct error *err)
{
    char digits[DIGITS];

    *out = NULL;
    if (!model->directory[0] || model->n_weights == 0 || model->config.adapter.rank > 0 || model->config.n_labels > 0)
        return 0;
    json_t *record = passed_count(weights, description);
    int rc = record ? 0 : error_memory(err);
    if (!rc && !*model->wrapper && json_integer_value(json_object_get(record, "tensors")) == 0) {
        json_decref(record);
        return 0;
    }
    if (!rc)
        rc = client_file_check_name(model->directory, err);
    if (!rc)
        rc = passed_fingerprint(digits, model, err);
    if (!rc && (json_object_set_new(record, "directory", json_string(model->directory)) ||
                json_object_set_new(record, "fingerprint", json_string(digits))))
        rc = error_memory(err);
    if (rc)
        json_decref(record);
    else
        *out = record;
    return rc;
}

void client_passed_print(char out[CLIENT_PASSED_BYTES], const json_t *record)
{
    const json_int_t n = json_integer_value(json_object_get(record, "tensors"));
    const json_t *parts = json_object_get(record, "parts");
    char size[PROCESS_BYTES_TEXT];
    int at;

    out[0] = 0;
    if (n <= 0)
        return;
    process_format_bytes(size, (uint64_t)json_integer_value(json_object_get(record, "bytes")));
    at = snprintf(out, CLIENT_PASSED_BYTES, "%" JSON_INTEGER_FORMAT " tensor%s (%s) %s not trained: ", n,
                  n == 1 ? "" : "s", size, n == 1 ? "is" : "are");
    for (size_t i = 0; i < json_array_size(parts) && at < CLIENT_PASSED_BYTES; i++) {
        const char *part = json_string_value(json_array_get(parts, i));
        at += snprintf(out + at, (size_t)(CLIENT_PASSED_BYTES - at), "%s%s", i ? ", " : "", part ? part : "");
    }
    error_clean(out); /* names of a stranger's file */
}

/* ---- the source ---- */

#define REMEDY "name where that model is with --base-model, or leave the rest out with --text-only"

static int refuse_source(int rc, const char *directory, const char *why, struct error *err)
{
    return error_set(err, rc, "an export of this model has tensors that were not trained, from %.200s, %.200s: " REMEDY,
                     directory, why);
}

/* The base of an adapter: its record, if it is a checkpoint, or its own. */
static int passed_of_base(json_t **out, const struct client_model *model, struct error *err)
{
    json_t *peft = model_files_json(model->side, ADAPTER_CONFIG);
    const char *base = json_string_value(json_object_get(peft, "base_model_name_or_path"));
    struct client_model source = {.config_fd = -1};
    int rc = base ? client_model_open(&source, &(struct client_model_name){.path = base}, err) : 0;

    if (!rc && base)
        rc = client_model_match(&source, err);
    if (!rc)
        *out = json_incref(source.passed);
    client_model_close(&source);
    json_decref(peft);
    return rc;
}

static int passed_open_source(struct client_passed *out, const char *directory, struct error *err)
{
    const char *known = json_string_value(json_object_get(out->record, "fingerprint"));
    char digits[DIGITS];
    struct error why;

    if (access(directory, F_OK) != 0)
        return refuse_source(-errno, directory, strerror(errno), err);
    int rc = client_model_open(&out->source, &(struct client_model_name){.path = directory}, &why);
    if (!rc)
        rc = passed_fingerprint(digits, &out->source, &why);
    if (rc)
        return refuse_source(rc, directory, why.text, err);
    if (!known || strcmp(known, digits) != 0)
        return refuse_source(-EINVAL, directory, "which holds other weights than when its training began", err);
    rc = model_init(&out->model, &out->source.config, &why);
    if (!rc)
        rc = weights_open(&out->weights, &out->model, out->source.weights, out->source.n_weights, NULL, &why);
    return rc ? refuse_source(rc, directory, why.text, err) : 0;
}

int client_passed_open(struct client_passed *out, const struct client_model *model, const char *base, struct error *err)
{
    const bool adapts = model->config.adapter.rank > 0;
    int rc = 0;

    *out = (struct client_passed){.source.config_fd = -1};
    if (model->config.n_labels > 0) /* its base has another head, or none */
        return 0;
    if (adapts)
        rc = passed_of_base(&out->record, model, err);
    else
        out->record = json_incref(model->passed);
    if (rc || !out->record)
        return rc;
    const char *directory = json_string_value(json_object_get(out->record, "directory"));
    if (base && !adapts)
        directory = base;
    return passed_open_source(out, directory ? directory : "", err);
}

void client_passed_close(struct client_passed *passed)
{
    if (!passed->record)
        return;
    weights_close(&passed->weights);
    model_free(&passed->model);
    client_model_close(&passed->source);
    json_decref(passed->record);
    passed->record = NULL;
}

/* ---- names ---- */

/* A name without the family's prefix. */
static const char *passed_bare(const struct client_passed *passed, const char *name)
{
    const char *prefix = passed->model.config.family->prefix;
    const size_t n = strlen(prefix);

    return strncmp(name, prefix, n) == 0 ? name + n : name;
}

/* A tensor that the source lacks, as of a block that was added, is named like its first: the wrapper's prefix is either
 * in front of the family's, "language_model.model.norm.weight", or in its place, which leaves a head outside. */
static const char *passed_name_new(char out[CLIENT_PASSED_NAME_BYTES], const struct client_passed *passed,
                                   const char *name)
{
    const char *first = passed->model.tensors[0].name, *there = passed->weights.entries[0]->name;
    const char *bare = passed_bare(passed, name);

    if (text_ends_with(there, first))
        snprintf(out, CLIENT_PASSED_NAME_BYTES, "%.*s%s", (int)(strlen(there) - strlen(first)), there, name);
    else if (bare == name || !text_ends_with(there, passed_bare(passed, first)))
        snprintf(out, CLIENT_PASSED_NAME_BYTES, "%s", name);
    else
        snprintf(out, CLIENT_PASSED_NAME_BYTES, "%.*s%s", (int)(strlen(there) - strlen(passed_bare(passed, first))),
                 there, bare);
    return out;
}

const char *client_passed_name(char out[CLIENT_PASSED_NAME_BYTES], const struct client_passed *passed, const char *name)
{
    const struct model_tensor *tensor = model_find(&passed->model, name);
    const struct safetensors_entry *entry = tensor ? passed->weights.entries[tensor - passed->model.tensors] : NULL;

    if (*passed->source.wrapper && (!entry || entry->coded))
        return passed_name_new(out, passed, name);
    snprintf(out, CLIENT_PASSED_NAME_BYTES, "%s", *passed->source.wrapper ? entry->name : name);
    return out;
}

/* ---- files ---- */

static int passed_read(char **text, size_t *n, const struct client_passed *passed, const char *name, struct error *err)
{
    char path[PATH_MAX];
    int rc = client_file_join(path, passed->source.directory, name, err);
    const int fd = rc ? rc : client_file_open(path, err);

    *text = NULL;
    if (fd < 0)
        return fd;
    rc = client_file_read(text, n, fd, path, err);
    close(fd);
    return rc;
}

int client_passed_config(char **out, const struct client_passed *passed, const struct client_model *model,
                         enum safetensors_type type, struct error *err)
{
    char *outer = NULL, *inner = NULL;
    size_t n_outer, n_inner;
    int rc = 0;

    *out = NULL;
    if (!*passed->source.wrapper)
        return 0;
    rc = passed_read(&outer, &n_outer, passed, CHECKPOINT_CONFIG, err);
    if (!rc)
        rc = client_file_read(&inner, &n_inner, model->config_fd, CHECKPOINT_CONFIG, err);
    if (!rc && !(*out = wrapper_print(outer, n_outer, inner, n_inner, type)))
        rc = error_memory(err);
    free(outer);
    free(inner);
    return rc;
}

/* Also as a link to a file that is gone: a hub's cache has links, and to leave the file out would be silent. */
static bool passed_has(const struct client_passed *passed, const char *name)
{
    char path[PATH_MAX];
    struct stat status;

    return client_file_join(path, passed->source.directory, name, NULL) == 0 && lstat(path, &status) == 0;
}

int client_passed_files(const struct client_passed *passed,
                        int (*on_file)(void *data, const char *name, const char *text, size_t n, struct error *err),
                        void *data, struct error *err)
{
    static const char *const names[] = {"preprocessor_config.json", "processor_config.json",
                                        "video_preprocessor_config.json", "audio_tokenizer_config.json"};
    int rc = 0;

    for (size_t i = 0; !rc && i < sizeof names / sizeof *names; i++) {
        char *text;
        size_t n;
        if (!passed_has(passed, names[i]))
            continue;
        rc = passed_read(&text, &n, passed, names[i], err);
        if (!rc && on_file)
            rc = on_file(data, names[i], text, n, err);
        free(text);
    }
    return rc;
}
