#include "client/model/model.h"

#include "client/model/preset.h"
#include "client/text/side.h"
#include "proto/model/checkpoint.h"
#include "proto/model/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <libgen.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_JSON_BYTES = 64 << 20 }; /* an index lists every tensor; a config is short */

static int open_regular(const char *path, struct error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc = 0;
    struct stat st;

    if (fd < 0)
        return error_set(err, -errno, "%s: %s", path, strerror(errno));
    if (fstat(fd, &st))
        rc = error_set(err, -errno, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        rc = error_set(err, -EINVAL, "%s: not a regular file", path);
    if (!rc)
        return fd;
    close(fd);
    return rc;
}

/* Reads the whole file, owned. pread keeps the position, which the daemon shares. */
static int read_all(char **out, size_t *n, int fd, const char *path, struct error *err)
{
    struct stat st;
    size_t used = 0;

    *out = NULL;
    if (fstat(fd, &st))
        return error_set(err, -errno, "%s: %s", path, strerror(errno));
    if (st.st_size > MAX_JSON_BYTES)
        return error_set(err, -EFBIG, "%s: %lld bytes are too large for a JSON file of a model", path,
                         (long long)st.st_size);
    *out = malloc((size_t)st.st_size + 1);
    if (!*out)
        return error_set(err, -ENOMEM, "%s: out of memory", path);
    while (used < (size_t)st.st_size) {
        ssize_t got = pread(fd, *out + used, (size_t)st.st_size - used, (off_t)used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            free(*out);
            *out = NULL;
            return error_set(err, -EIO, "%s: %s", path, got < 0 ? strerror(errno) : "became shorter while it was read");
        }
        used += (size_t)got;
    }
    *n = used;
    return 0;
}

static int read_config(struct client_model *model, const char *path, struct error *err)
{
    char *text;
    size_t n;
    int rc = read_all(&text, &n, model->config_fd, path, err);

    if (rc)
        return rc;
    rc = model_config_parse(&model->config, text, n, err);
    if (rc)
        error_prefix(err, path);
    free(text);
    return rc;
}

char *client_model_print_config(const struct client_model *model, enum number_type type, struct error *err)
{
    char *text, *out = NULL;
    size_t n;

    if (read_all(&text, &n, model->config_fd, CHECKPOINT_CONFIG, err) == 0) {
        out = model_config_print(text, n, type);
        if (!out)
            error_set(err, -ENOMEM, "out of memory");
        free(text);
    }
    return out;
}

static int open_config(struct client_model *model, const char *path, struct error *err)
{
    model->config_fd = open_regular(path, err);
    return model->config_fd < 0 ? model->config_fd : read_config(model, path, err);
}

static int join(char out[PATH_MAX], const char *directory, const char *name, struct error *err)
{
    if (snprintf(out, PATH_MAX, "%s/%s", directory, name) < PATH_MAX)
        return 0;
    return error_set(err, -ENAMETOOLONG, "%.200s: name too long", directory);
}

/* Checks that tensors lie where the header says. The daemon reads them, but only the client can name the file. */
static int check_weights(int fd, const char *path, struct error *err)
{
    struct safetensors file;
    int rc = safetensors_open(&file, fd, err);

    if (rc)
        error_prefix(err, path);
    else
        safetensors_close(&file);
    return rc;
}

static int add_weights(struct client_model *model, const char *directory, const char *name, struct error *err)
{
    char path[PATH_MAX];
    int rc = join(path, directory, name, err);

    if (rc)
        return rc;
    if (model->n_weights == CLIENT_MODEL_MAX_FILES)
        return error_set(err, -E2BIG, "%s: more than %d files of weights: save it in larger shards", directory,
                         CLIENT_MODEL_MAX_FILES);
    rc = open_regular(path, err);
    if (rc < 0)
        return rc;
    model->weight_fds[model->n_weights++] = rc;
    return check_weights(rc, path, err);
}

/* Adds the files in weight_map, each once. */
static int add_indexed(struct client_model *model, const char *directory, json_t *map, struct error *err)
{
    json_t *seen = json_object(), *value;
    const char *tensor;
    int rc = seen ? 0 : error_set(err, -ENOMEM, "out of memory");

    json_object_foreach(map, tensor, value)
    {
        const char *name = json_string_value(value);
        if (rc)
            break;
        if (!name || !*name || strchr(name, '/'))
            rc = error_set(err, -EINVAL, "%s: its index has no plain file name for %.100s", directory, tensor);
        else if (!json_object_get(seen, name))
            rc = json_object_set_new(seen, name, json_true()) ? error_set(err, -ENOMEM, "out of memory")
                                                              : add_weights(model, directory, name, err);
    }
    json_decref(seen);
    return rc;
}

/* Returns 1 if there is no index. */
static int open_index(struct client_model *model, const char *directory, struct error *err)
{
    char path[PATH_MAX], *text;
    json_error_t where;
    size_t n;
    int rc = join(path, directory, "model.safetensors.index.json", err);

    if (rc)
        return rc;
    if (access(path, F_OK))
        return 1;
    int fd = open_regular(path, err);
    if (fd < 0)
        return fd;
    rc = read_all(&text, &n, fd, path, err);
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
    static const char end[] = ".safetensors";
    const size_t n = strlen(entry->d_name), m = sizeof end - 1;
    return n > m && entry->d_name[0] != '.' && strcmp(entry->d_name, CHECKPOINT_MOMENTS) != 0 &&
           strcmp(entry->d_name + n - m, end) == 0;
}

static bool is_in(const char *directory, const char *name)
{
    char path[PATH_MAX];
    return join(path, directory, name, NULL) == 0 && access(path, F_OK) == 0;
}

static int open_weights(struct client_model *model, const char *directory, struct error *err)
{
    struct dirent **entries;
    int rc = open_index(model, directory, err);

    if (rc <= 0)
        return rc;
    if (is_in(directory, CHECKPOINT_WEIGHTS))
        return add_weights(model, directory, CHECKPOINT_WEIGHTS, err);
    int n = scandir(directory, &entries, is_weights, alphasort);
    if (n < 0)
        return error_set(err, -errno, "%s: %s", directory, strerror(errno));
    rc = n > 0 ? 0 : client_preset_unconverted(directory, err);
    for (int i = 0; i < n; i++) {
        if (!rc)
            rc = add_weights(model, directory, entries[i]->d_name, err);
        free(entries[i]);
    }
    free(entries);
    return rc;
}

/* Names a model by the distinctive part of its path: "runs/small/step-100" is step-100, "small/config.json" is
 * small. */
static void name_model(struct client_model *model, const char *path, bool directory)
{
    char real[PATH_MAX], *name;

    if (!realpath(path, real))
        snprintf(real, sizeof real, "%s", path);
    name = basename(real);
    if (!directory && strcmp(name, "config.json") == 0) {
        char *parent = dirname(real); /* basename points into real, and dirname cuts off before it */
        name = basename(parent);
    } else if (!directory && strlen(name) > 5 && strcmp(name + strlen(name) - 5, ".json") == 0) {
        name[strlen(name) - 5] = 0;
    }
    snprintf(model->name, sizeof model->name, "%s", strcmp(name, "/") == 0 ? "model" : name);
}

static int open_directory(struct client_model *model, const char *directory, struct error *err)
{
    char config[PATH_MAX];

    if (!realpath(directory, model->directory)) /* `latest` may point elsewhere a moment later */
        return error_set(err, -errno, "%s: %s", directory, strerror(errno));
    int rc = join(config, directory, CHECKPOINT_CONFIG, err);
    if (!rc)
        rc = open_config(model, config, err);
    if (!rc)
        rc = open_weights(model, directory, err);
    return rc ? rc : client_side_read(&model->side, directory, err);
}

/* True for a file of weights. */
static bool is_weights_file(const char *path)
{
    static const char *const ends[] = {".safetensors", ".bin", ".pt", ".pth", ".gguf"};
    const char *dot = strrchr(path, '.');

    for (size_t i = 0; dot && i < sizeof ends / sizeof *ends; i++) {
        if (strcmp(dot, ends[i]) == 0)
            return true;
    }
    return false;
}

/* Opens a config without weights. If its name is config.json, also reads side files such as a tokenizer. */
static int open_alone(struct client_model *model, const char *path, struct error *err)
{
    char directory[PATH_MAX];
    int rc = open_config(model, path, err);
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;

    if (rc || strcmp(name, CHECKPOINT_CONFIG) != 0)
        return rc;
    snprintf(directory, sizeof directory, "%.*s", slash ? (int)(name - path) : 1, slash ? path : ".");
    return client_side_read(&model->side, directory, err);
}

/* Resolves a path; a run directory means its latest checkpoint. *is_directory: a directory with a config.json. */
static int find_model(char out[PATH_MAX], bool *is_directory, const char *path, struct error *err)
{
    struct stat st;

    if (stat(path, &st))
        return client_preset_missing(path, -errno, err);
    *is_directory = S_ISDIR(st.st_mode);
    if ((size_t)snprintf(out, PATH_MAX, "%s", path) >= PATH_MAX)
        return error_set(err, -ENAMETOOLONG, "--model %.200s: name too long", path);
    if (!*is_directory && is_weights_file(path))
        return error_set(err, -EINVAL,
                         "--model %s is a file of weights: name the directory that holds it, with its config.json",
                         path);
    if (*is_directory && !is_in(path, CHECKPOINT_CONFIG) && is_in(path, "latest/" CHECKPOINT_CONFIG))
        return join(out, path, "latest", err);
    if (*is_directory && !is_in(path, CHECKPOINT_CONFIG))
        return error_set(err, -ENOENT,
                         "--model %s holds no config.json and no latest checkpoint: name a directory that has one",
                         path);
    return 0;
}

static int open_found(struct client_model *out, const char *path, bool weightless, struct error *err)
{
    char found[PATH_MAX], config[PATH_MAX];
    bool is_directory = false;

    *out = (struct client_model){.config_fd = -1};
    int rc = find_model(found, &is_directory, path, err);
    if (rc)
        return rc;
    name_model(out, found, is_directory);
    if (is_directory && !weightless)
        rc = open_directory(out, found, err);
    else if (!is_directory || !(rc = join(config, found, CHECKPOINT_CONFIG, err)))
        rc = open_alone(out, is_directory ? config : found, err);
    if (rc)
        client_model_close(out);
    return rc;
}

int client_model_open(struct client_model *out, const char *path, struct error *err)
{
    return open_found(out, path, false, err);
}

int client_model_open_fresh(struct client_model *out, const char *path, struct error *err)
{
    return open_found(out, path, true, err);
}

/* Verifies the files in use, without the moments. */
static int check_files(const struct checkpoint *checkpoint, int directory, int (*on_bytes)(void *data, uint64_t bytes),
                       void *data, struct error *err)
{
    int rc = checkpoint_check(checkpoint, directory, CHECKPOINT_WEIGHTS, on_bytes, data, err);

    for (size_t i = 0; !rc && i < checkpoint->n_files; i++) {
        const char *name = checkpoint->files[i].name;
        if (strcmp(name, CHECKPOINT_WEIGHTS) != 0 && strcmp(name, CHECKPOINT_MOMENTS) != 0)
            rc = checkpoint_check(checkpoint, directory, name, on_bytes, data, err);
    }
    return rc;
}

enum number_type client_model_precision(const json_t *options)
{
    const char *name = json_string_value(json_object_get(options, "precision"));

    return name && strcmp(name, number_name(NUMBER_BF16)) == 0 ? NUMBER_BF16 : NUMBER_FP32;
}

int client_model_check(struct client_model *model, int (*on_bytes)(void *data, uint64_t bytes), void *data,
                       struct error *err)
{
    struct checkpoint checkpoint;

    if (!model->directory[0] || !is_in(model->directory, CHECKPOINT_TRAINING))
        return 0;
    int directory = open(model->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0)
        return error_set(err, -errno, "%s: %s", model->directory, strerror(errno));
    int rc = checkpoint_read(&checkpoint, directory, err);
    if (!rc) {
        model->precision = client_model_precision(checkpoint.options);
        rc = check_files(&checkpoint, directory, on_bytes, data, err);
    }
    checkpoint_free(&checkpoint);
    close(directory);
    if (rc && rc != -EINTR)
        error_prefix(err, model->directory);
    return rc;
}

int client_model_from(struct client_model *out, const char *name, int config_fd, int weights_fd, json_t *side,
                      struct error *err)
{
    *out = (struct client_model){.config_fd = config_fd, .side = side};
    snprintf(out->name, sizeof out->name, "%s", name);
    if (weights_fd >= 0)
        out->weight_fds[out->n_weights++] = weights_fd;
    int rc = read_config(out, name, err);
    if (!rc && weights_fd >= 0)
        rc = check_weights(weights_fd, name, err);
    if (!rc && side && (rc = client_side_check(side, err)) != 0)
        error_prefix(err, name);
    if (rc)
        client_model_close(out);
    return rc;
}

void client_model_close(struct client_model *model)
{
    for (unsigned i = 0; i < model->n_weights; i++)
        close(model->weight_fds[i]);
    model->n_weights = 0;
    if (model->config_fd >= 0)
        close(model->config_fd);
    model->config_fd = -1;
    json_decref(model->side);
    model->side = NULL;
}
