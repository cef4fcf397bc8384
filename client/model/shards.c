/* A directory is most often wrong by being incomplete, which makes other faults: so all files of an index are looked
 * for before any is read. A header is then held to the bound that the daemon will hold it to, and to the index. Faults
 * of one kind are counted, and the first is named: a file that is the wrong one has hundreds. */
#include "client/model/shards.h"

#include "client/model/file.h"
#include "client/model/preset.h"
#include "proto/base/text.h"
#include "proto/model/file/checkpoint.h"
#include "proto/model/weights.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INDEX "model.safetensors.index.json"

/* Says the first fault of a file and counts those after it. */
static int shards_fail(struct error *err, size_t n, const char *tensor, const char *what)
{
    if (n == 1)
        return error_set(err, -EINVAL, "%.64s %s", tensor, what);
    return error_set(err, -EINVAL, "%.64s and %zu other%s: each %s", tensor, n - 1, n > 2 ? "s" : "", what);
}

/* Checks that the file holds the tensors that the index (weight_map) places in it, and no others. */
static int check_placed(const struct safetensors *file, const char *name, json_t *map, struct error *err)
{
    const char *first_lacking = NULL, *first_foreign = NULL, *tensor;
    size_t n_lacking = 0, n_foreign = 0;
    json_t *place;

    json_object_foreach(map, tensor, place)
    {
        if (strcmp(json_string_value(place), name) == 0 && !safetensors_find(file, tensor) && n_lacking++ == 0)
            first_lacking = tensor;
    }
    for (size_t i = 0; i < file->n_entries; i++) {
        const char *found = json_string_value(json_object_get(map, file->entries[i].name));
        if ((!found || strcmp(found, name) != 0) && n_foreign++ == 0)
            first_foreign = file->entries[i].name;
    }
    if (n_lacking > 0)
        return shards_fail(err, n_lacking, first_lacking, "is missing, though " INDEX " places it in this file");
    if (n_foreign == 0)
        return 0;
    return shards_fail(err, n_foreign, first_foreign,
                       json_object_get(map, first_foreign) ? "is in this file, though " INDEX " places it in another"
                                                           : "is in this file, though " INDEX " does not list it");
}

/* As the daemon will: a header that is far beyond the model is not read. */
static int open_header(struct safetensors *out, const struct client_model *of, int fd, struct error *err)
{
    struct model model;
    const int rc = model_init(&model, &of->config, err);

    *out = (struct safetensors){0};
    if (rc)
        return rc;
    const uint64_t most = weights_header_bytes(&model);
    model_free(&model);
    return safetensors_open_most(out, fd, most, err);
}

/* map: the index's weight_map, or NULL without an index. */
static int shards_add(struct client_model *model, const char *directory, const char *name, json_t *map,
                      struct error *err)
{
    struct safetensors file;
    char path[PATH_MAX];
    int rc = client_file_join(path, directory, name, err);

    if (rc)
        return rc;
    if (model->n_weights == CLIENT_MODEL_MAX_FILES)
        return error_set(err, -E2BIG, "%s: more than %d files of weights: save it in larger shards", directory,
                         CLIENT_MODEL_MAX_FILES);
    rc = client_file_open(path, err);
    if (rc < 0)
        return rc;
    model->weights[model->n_weights++] = file_own(rc);
    rc = open_header(&file, model, rc, err);
    if (!rc && map)
        rc = check_placed(&file, name, map, err);
    if (rc)
        error_prefix(err, path);
    safetensors_close(&file);
    return rc;
}

/* True for a relative path that stays within its directory. */
static bool shards_is_within(const char *name)
{
    if (!name || !*name || *name == '/')
        return false;
    for (const char *part = name;; part++) {
        if (strncmp(part, "..", 2) == 0 && (part[2] == '/' || part[2] == 0))
            return false;
        part = strchr(part, '/');
        if (!part)
            return true;
    }
}

/* Lists the files in weight_map, each once, as an object's keys. */
static int list_files(json_t *files, const char *directory, json_t *map, struct error *err)
{
    const char *tensor;
    json_t *place;

    json_object_foreach(map, tensor, place)
    {
        const char *name = json_string_value(place);
        if (!shards_is_within(name))
            return error_set(err, -EINVAL, "%s: " INDEX " names no file within this directory for %.64s", directory,
                             tensor);
        if (json_object_set_new(files, name, json_true()))
            return error_memory(err);
    }
    return 0;
}

/* Before any file is read: what is wrong with another one may follow from the one that is missing. */
static int check_there(json_t *files, const char *directory, struct error *err)
{
    const char *name, *first = NULL;
    size_t n_missing = 0;
    json_t *file;

    json_object_foreach(files, name, file)
    {
        if (!client_file_is_in(directory, name) && n_missing++ == 0)
            first = name;
    }
    if (n_missing == 0)
        return 0;
    error_set(err, -ENOENT, "%s/%.100s: No such file or directory, though " INDEX " lists it", directory, first);
    if (n_missing > 1)
        error_append(err, " (%zu other%s missing, too)", n_missing - 1, n_missing > 2 ? "s are" : " is");
    error_append(err, ": is the download complete?");
    return -ENOENT;
}

static int add_indexed(struct client_model *model, const char *directory, json_t *map, struct error *err)
{
    json_t *files = json_object(), *file;
    const char *name;
    int rc = files ? list_files(files, directory, map, err) : error_memory(err);

    if (!rc)
        rc = check_there(files, directory, err);
    json_object_foreach(files, name, file)
    {
        if (!rc)
            rc = shards_add(model, directory, name, map, err);
    }
    json_decref(files);
    return rc;
}

static int open_index(struct client_model *model, const char *directory, struct error *err)
{
    char path[PATH_MAX], *text;
    json_error_t where;
    size_t n;
    int rc = client_file_join(path, directory, INDEX, err);
    int fd = rc ? rc : client_file_open(path, err);

    if (fd < 0)
        return fd;
    rc = client_file_read(&text, &n, fd, path, err);
    close(fd);
    if (rc)
        return rc;
    json_t *index = json_loadb(text, n, JSON_REJECT_DUPLICATES, &where);
    json_t *map = json_object_get(index, "weight_map");
    if (!index)
        rc = error_set(err, -EINVAL, "%s: line %d: %s", path, where.line, where.text);
    else if (!json_is_object(map) || json_object_size(map) == 0)
        rc = error_set(err, -EINVAL, "%s: it has no weight_map", path);
    else
        rc = add_indexed(model, directory, map, err);
    json_decref(index);
    free(text);
    return rc;
}

static int is_weights(const struct dirent *entry)
{
    return entry->d_name[0] != '.' && strcmp(entry->d_name, CHECKPOINT_MOMENTS) != 0 &&
           strcmp(entry->d_name, ADAPTER_WEIGHTS) != 0 && text_ends_with(entry->d_name, ".safetensors");
}

static int open_all(struct client_model *model, const char *directory, struct error *err)
{
    struct dirent **entries;
    int n = scandir(directory, &entries, is_weights, alphasort);

    if (n < 0)
        return error_set(err, -errno, "%s: %s", directory, strerror(errno));
    int rc = n > 0 ? 0 : client_preset_unconverted(directory, model, err);
    for (int i = 0; i < n; i++) {
        if (!rc)
            rc = shards_add(model, directory, entries[i]->d_name, NULL, err);
        free(entries[i]);
    }
    free(entries);
    return rc;
}

int client_shards_add(struct client_model *model, const char *directory, const char *name, struct error *err)
{
    return shards_add(model, directory, name, NULL, err);
}

/* As transformers looks for them: one file, an index; then whatever is there, for files that no index lists. */
int client_shards_open(struct client_model *model, const char *directory, struct error *err)
{
    if (client_file_is_in(directory, CHECKPOINT_WEIGHTS))
        return shards_add(model, directory, CHECKPOINT_WEIGHTS, NULL, err);
    if (client_file_is_in(directory, INDEX))
        return open_index(model, directory, err);
    return open_all(model, directory, err);
}
