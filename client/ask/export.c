/* eps_export: the output directory and its files besides the weights. Everything is written to OUT.partial, flushed and
 * renamed, so OUT is always complete. The next export reuses an OUT.partial that a killed one left behind. */
#include "client/ask/export.h"

#include "client/daemon/observer.h"
#include "client/model/adapter.h"
#include "client/model/preset.h"
#include "client/ask/forward.h"
#include "client/member.h"
#include "client/record/checkpoints.h"
#include "proto/model/file/checkpoint.h"
#include "proto/model/file/checkpoint_layout.h"
#include "proto/model/file/model_files.h"
#include "proto/model/output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct export
{
    const struct eps_export_options *options;
    uint64_t shard_bytes;
    struct client_model *models; /* (n) owned; their mean is written, and the other files of the first, the newest */
    size_t n;
    struct client_passed passed;
    enum safetensors_type type; /* to write */
    char out[PATH_MAX], partial[PATH_MAX];
    int directory_fd; /* descriptor of partial */
};

int client_export_text(int directory_fd, const char *name, const char *text, size_t n, struct error *err)
{
    int fd = openat(directory_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666), rc = fd < 0 ? -errno : 0;

    for (size_t done = 0; rc == 0 && done < n;) {
        const ssize_t now = write(fd, text + done, n - done);
        if (now < 0 && errno != EINTR)
            rc = -errno;
        done += now > 0 ? (size_t)now : 0;
    }
    if (rc == 0 && fsync(fd) != 0)
        rc = -errno;
    if (fd >= 0)
        close(fd);
    return rc == 0 ? 0 : error_set(err, rc, "%s: %s", name, strerror(-rc));
}

static int make_models(struct export *e, size_t n, struct error *err)
{
    e->models = calloc(n, sizeof *e->models);
    if (!e->models)
        return error_memory(err);
    for (e->n = 0; e->n < n; e->n++)
        e->models[e->n].config_fd = -1;
    return 0;
}

static int export_open_model(struct client_model *model, const struct export *e, const char *path, struct error *err)
{
    const struct client_model_name name = {.path = path, .base = e->options->base_model, .passes = true};
    int rc = client_model_open(model, &name, err);

    if (rc != 0)
        return rc;
    if (model->n_weights == 0)
        return error_set(err, -EINVAL, "--model %s: no weights to export; name the directory that holds them", path);
    rc = client_model_check(model, NULL, NULL, err);
    if (rc == 0)
        client_model_tell(model, e->options->on_note, e->options->user);
    if (rc == 0 && (rc = client_model_match(model, err)) != 0)
        error_prefix(err, path);
    return rc;
}

/* The newest checkpoints of a run, the newest first. */
static int open_newest(struct export *e, struct error *err)
{
    const char *run = e->options->model;
    const uint32_t n = e->options->average;
    struct client_checkpoints found = {0};
    char path[PATH_MAX];
    const int fd = open(run, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd < 0 ? error_set(err, -errno, "--model %s: %s", run, strerror(errno))
                    : client_checkpoints_list(&found, fd, err);

    if (rc == 0 && found.n < n)
        rc = error_set(err, -EINVAL, "--average %u: %s holds %zu checkpoint%s: %s", n, run, found.n,
                       found.n == 1 ? "" : "s",
                       found.n > 0 ? "eps train --keep says how many stay" : "name a run's directory");
    if (rc == 0)
        rc = make_models(e, n, err);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        if (snprintf(path, sizeof path, "%s/step-%" PRIu64, run, found.steps[found.n - 1 - i]) >= (int)sizeof path)
            rc = error_set(err, -ENAMETOOLONG, "--model %.200s: name too long", run);
        else
            rc = export_open_model(&e->models[i], e, path, err);
    }
    client_checkpoints_free(&found);
    if (fd >= 0)
        close(fd);
    return rc;
}

static int export_open_models(struct export *e, struct error *err)
{
    const struct eps_export_options *o = e->options;
    const struct client_await await = {.on_note = o->on_note, .user = o->user};
    const struct client_snapshot snapshot = {o->connect, o->base_model, true, NULL, &await};

    if (o->model && o->connect)
        return error_set(
            err, -EDOM,
            "--model %s does not go with --connect, which exports the model of a live daemon: leave one out", o->model);
    if (o->average && !o->model)
        return error_set(err, -EDOM, "--average %u needs --model, which names a run's directory", o->average);
    if (o->average)
        return open_newest(e, err);
    const int rc = make_models(e, 1, err);
    return rc         ? rc
           : o->model ? export_open_model(e->models, e, o->model, err)
                      : client_snapshot_fetch(e->models, NULL, &snapshot, err);
}

static void close_models(struct export *e)
{
    for (size_t i = 0; i < e->n; i++)
        client_model_close(&e->models[i]);
    free(e->models);
}

static int export_write_config(const struct export *e, struct error *err)
{
    char *text = NULL;
    int rc = e->passed.record ? client_passed_config(&text, &e->passed, e->models, e->type, err) : 0;

    if (rc == 0 && !text)
        rc = (text = client_model_print_config(e->models, e->type, err)) ? 0 : -ENOMEM;
    if (rc == 0)
        rc = client_export_text(e->directory_fd, checkpoint_config_name(&e->models->config), text, strlen(text), err);
    free(text);
    return rc;
}

static int export_on_file(void *data, const char *name, const char *text, size_t n, struct error *err)
{
    const struct export *e = data;

    return client_export_text(e->directory_fd, name, text, n, err);
}

/* Checks that OUT is absent or empty and sets the names: absolute if OUT exists. scandir counts "." and "..", too. */
static int check_out(struct export *e, struct error *err)
{
    const char *out = e->options->out;
    struct dirent **entries;
    struct stat st;

    if (!out || !*out)
        return error_set(err, -EDOM, "--out is needed: a new directory");
    if (strlen(out) >= sizeof e->out - sizeof ".partial")
        return error_set(err, -ENAMETOOLONG, "--out %.200s: name too long", out);
    if (client_preset_is_gguf(out))
        return error_set(err, -EDOM,
                         "--out %.150s: a directory is written, for transformers: name one, DIR; then python3 "
                         "llama.cpp/convert_hf_to_gguf.py DIR --outfile %.150s makes that file",
                         out, out);
    if (stat(out, &st) != 0) {
        snprintf(e->out, sizeof e->out, "%s", out);
        for (size_t n = strlen(e->out); n > 1 && e->out[n - 1] == '/'; n--)
            e->out[n - 1] = 0;
    } else {
        if (!S_ISDIR(st.st_mode))
            return error_set(err, -ENOTDIR, "--out %s: not a directory", out);
        if (!realpath(out, e->out) || strlen(e->out) >= sizeof e->out - sizeof ".partial")
            return error_set(err, -ENAMETOOLONG, "--out %.200s: name too long", out);
        int n = scandir(e->out, &entries, NULL, NULL);
        if (n < 0)
            return error_set(err, -errno, "--out %s: %s", out, strerror(errno));
        for (int i = 0; i < n; i++)
            free(entries[i]);
        free(entries);
        if (n > 2)
            return error_set(err, -EEXIST, "--out %s is not empty: choose a new directory", out);
    }
    snprintf(e->partial, sizeof e->partial, "%.*s.partial", PATH_MAX - 9, e->out);
    return 0;
}

/* True if directory_fd is still the directory of that name: another export may have renamed it. */
static bool is_partial(const struct export *e)
{
    struct stat ours, named;

    return fstat(e->directory_fd, &ours) == 0 && stat(e->partial, &named) == 0 && ours.st_dev == named.st_dev &&
           ours.st_ino == named.st_ino;
}

/* Removes what a killed export left, if that is all that is there. */
static bool empty_partial(const struct export *e)
{
    const int fd = openat(e->directory_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry;
    bool ours = entries;

    if (!entries && fd >= 0)
        close(fd);
    while (ours && (entry = readdir(entries)))
        ours = output_is_name(entry->d_name) || strcmp(entry->d_name, MODEL_FILES_TEMPLATES) == 0 ||
               strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    if (entries)
        closedir(entries);
    if (ours && client_checkpoints_empty(e->directory_fd, MODEL_FILES_TEMPLATES))
        unlinkat(e->directory_fd, MODEL_FILES_TEMPLATES, AT_REMOVEDIR);
    return ours && client_checkpoints_empty(e->directory_fd, ".");
}

/* The lock distinguishes a directory in use from one that a killed export left behind. */
static int make_partial(struct export *e, struct error *err)
{
    if (mkdir(e->partial, 0777) != 0 && errno != EEXIST)
        return error_set(err, -errno, "--out %s: %s", e->options->out, strerror(errno));
    e->directory_fd = open(e->partial, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (e->directory_fd < 0)
        return error_set(err, -errno, "--out %s: %s: %s", e->options->out, e->partial, strerror(errno));
    if (flock(e->directory_fd, LOCK_EX | LOCK_NB) != 0 || !is_partial(e))
        return error_set(err, -EBUSY, "--out %s: another export is writing it", e->options->out);
    if (!empty_partial(e))
        return error_set(err, -EEXIST, "%s holds files that no export wrote: move it, or choose another --out",
                         e->partial);
    return 0;
}

/* The weights first: the adapter is then taken out of the config. */
static int export_fill(struct export *e, struct error *err)
{
    const struct client_export_form form = {e->type, e->shard_bytes, e->options->merge,
                                            e->passed.record ? &e->passed : NULL};
    int rc = client_export_weights(e->models, e->n, e->directory_fd, &form, err);

    if (rc == 0 && e->options->merge)
        rc = client_adapter_remove(e->models, err);
    if (rc == 0)
        rc = export_write_config(e, err);
    if (rc == 0)
        rc = model_files_write(e->models->side, e->directory_fd, err);
    if (rc == 0 && e->passed.record)
        rc = client_passed_files(&e->passed, export_on_file, e, err);
    if (rc == 0 && fsync(e->directory_fd) != 0)
        rc = error_set(err, -errno, "cannot be flushed: %s", strerror(errno));
    if (rc != 0) /* -EINVAL, -ERANGE: the source is at fault, otherwise the output */
        error_prefix(err, (rc == -EINVAL || rc == -ERANGE) && e->options->model ? e->options->model : e->partial);
    return rc;
}

/* rename replaces an empty directory; it fails if OUT has got files meanwhile. */
static int export_write_out(struct export *e, struct error *err)
{
    int rc = make_partial(e, err);

    if (rc != 0)
        return rc;
    rc = export_fill(e, err);
    if (rc == 0 && rename(e->partial, e->out) != 0)
        rc = error_set(err, -errno, "--out %s: %s", e->options->out, strerror(errno));
    if (rc != 0 && client_checkpoints_empty(e->directory_fd, "."))
        rmdir(e->partial);
    if (rc != 0)
        return rc;
    rc = output_flush_parent(e->out);
    return rc == 0 ? 0 : error_set(err, rc, "--out %s: cannot be flushed: %s", e->out, strerror(-rc));
}

static bool writes_adapter(const struct export *e)
{
    return e->models->config.adapter.rank > 0 && !e->options->merge;
}

static enum safetensors_type type_to_write(const struct export *e)
{
    switch (e->options->dtype) {
    case EPS_DTYPE_FP32:
        return SAFETENSORS_F32;
    case EPS_DTYPE_FP16:
        return SAFETENSORS_F16;
    case EPS_DTYPE_BF16:
        return SAFETENSORS_BF16;
    case EPS_DTYPE_DEFAULT:
        break;
    }
    return writes_adapter(e) ? SAFETENSORS_F32 : e->models->dtype;
}

/* --merge, --average and --base-model, by what the model is. */
static int check_form(const struct export *e, struct error *err)
{
    const bool adapts = e->models->config.adapter.rank > 0, text_only = e->options->text_only;

    if (e->options->base_model && !adapts && (text_only || !e->models->passed))
        return error_set(
            err, -EDOM,
            "--base-model %.200s is for an adapter, or for a model that has more than was trained: leave it "
            "out",
            e->options->base_model);
    if (text_only && adapts && !e->options->merge)
        return error_set(err, -EDOM,
                         "--text-only of adapters needs --merge: alone they have PEFT's names within the whole model");
    if (e->options->merge && !adapts)
        return error_set(err, -EDOM, "--merge is for models with adapters, and this one has none: leave it out");
    if (e->options->average && adapts && !e->options->merge)
        return error_set(err, -EDOM,
                         "--average of adapters needs --merge: the product of mean factors is not the mean of their "
                         "products");
    return 0;
}

/* A wrapper's class follows from what it has beside the text model; NULL: it is not known here. */
static const char *export_loader(const struct export *e)
{
    const char *loader = client_model_loader(&e->models->config);
    const char *wrapper = e->passed.record ? e->passed.source.wrapper : "";

    return !loader || !*wrapper ? loader : strstr(wrapper, "vision") ? "AutoModelForImageTextToText" : NULL;
}

/* None of PEFT's own classes loads every wrapper. */
static const char *adapter_loader(const struct export *e)
{
    return *e->models->config.adapter.within ? NULL : client_model_peft(&e->models->config).loader;
}

int client_export(struct eps_exported *written, const struct eps_export_options *options, uint64_t shard_bytes,
                  struct error *err)
{
    static const enum eps_dtype public[] = {
        [SAFETENSORS_F32] = EPS_DTYPE_FP32, [SAFETENSORS_F16] = EPS_DTYPE_FP16, [SAFETENSORS_BF16] = EPS_DTYPE_BF16};
    struct export e = {.options = options, .shard_bytes = shard_bytes, .directory_fd = -1};
    bool adapter = false;
    int rc = check_out(&e, err);

    if (rc == 0)
        rc = export_open_models(&e, err);
    if (rc == 0)
        rc = check_form(&e, err);
    if (rc == 0 && !options->text_only && !writes_adapter(&e))
        rc = client_passed_open(&e.passed, e.models, options->base_model, err);
    if (rc == 0 && e.passed.record)
        rc = client_passed_files(&e.passed, NULL, NULL, err);
    if (rc == 0) {
        e.type = type_to_write(&e);
        adapter = writes_adapter(&e);
        rc = export_write_out(&e, err);
    }
    if (rc == 0 && written) {
        *written =
            (struct eps_exported){public[e.type], adapter ? adapter_loader(&e) : export_loader(&e), .adapter = adapter};
        snprintf(written->part, sizeof written->part, "%s", e.passed.record ? "" : e.models->wrapper);
        client_passed_print(written->passed, e.passed.record);
    }
    if (e.directory_fd >= 0)
        close(e.directory_fd);
    client_passed_close(&e.passed);
    close_models(&e);
    return rc;
}

struct eps_export_options eps_export_defaults(void)
{
    return (struct eps_export_options){.model = NULL};
}

int eps_export(struct eps_exported *written, const struct eps_export_options *options, struct eps_error *error)
{
    struct error err = {""};
    int rc = client_export(written, options, CLIENT_EXPORT_SHARD_BYTES, &err);

    return client_report(error, &err, rc);
}
