/* The config that counts is in config_fd: the file's own; or, in memory, its text model's (proto/model/wrapper.h), or
 * what a task or an adapter made of that. Daemon, workers and checkpoints have it from there. It is opened before the
 * weights, as it bounds how long a header of theirs may be (client/model/shards.c). */
#include "client/model/model.h"

#include "client/member.h"
#include "client/model/adapter.h"
#include "client/model/file.h"
#include "client/model/passed.h"
#include "client/model/preset.h"
#include "client/model/shards.h"
#include "client/model/untie.h"
#include "proto/model/file/checkpoint.h"
#include "proto/model/family.h"
#include "proto/model/config/model_config_print.h"
#include "proto/model/file/model_files.h"
#include "proto/model/weights.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int model_read_config(struct client_model *model, const char *path, struct error *err)
{
    char *text;
    size_t n;
    int rc = client_file_read(&text, &n, model->config_fd, path, err);

    if (rc)
        return rc;
    if ((rc = model_config_check_size(n, err)) != 0) { /* before anybody reads it as JSON */
        error_prefix(err, path);
        free(text);
        return rc;
    }
    char *inner = wrapper_text_config(model->wrapper, text, n), *other = NULL;
    if (inner) {
        free(text);
        text = inner, n = strlen(inner);
    }
    if (model->rewrite)
        rc = model->rewrite->rewrite(&other, text, n, model->rewrite->data, err);
    if (!rc && (other || inner))
        rc = client_model_replace_config(model, other ? other : inner, err);
    else if (!rc)
        rc = model_config_parse(&model->config, text, n, err);
    if (rc)
        error_prefix(err, path);
    model->rewritten = other != NULL;
    free(other);
    free(text);
    return rc;
}

/* A config as a file in memory: its descriptor, owned, or -errno. */
static int model_hold_config(const char *text, size_t n, struct error *err)
{
    const int fd = memfd_create("eps-config", MFD_CLOEXEC);

    if (fd < 0)
        return error_set(err, -errno, "no memory for a model's config: %s", strerror(errno));
    if (pwrite(fd, text, n, 0) == (ssize_t)n)
        return fd;
    close(fd);
    return error_set(err, -ENOSPC, "no memory for a model's config");
}

/* The new text lies in memory, as others get the config by its descriptor. After an error the model has the old one. */
int client_model_replace_config(struct client_model *model, const char *text, struct error *err)
{
    const size_t n = strlen(text);
    struct model_config config;
    const int rc = model_config_parse(&config, text, n, err);

    if (rc)
        return rc;
    const int fd = model_hold_config(text, n, err);
    if (fd < 0)
        return fd;
    close(model->config_fd);
    model->config_fd = fd;
    model->config = config;
    return 0;
}

uint32_t client_model_blocks(struct eps_blocks out[EPS_BLOCKS], const struct model *model,
                             const struct plan_choice *choice)
{
    _Static_assert((int)EPS_BLOCKS >= (int)MODEL_CLASSES && sizeof out->lowest >= MODEL_NAME_BYTES, "room for all");
    for (uint32_t c = 0; c < model->n_classes; c++) {
        const struct plan_keeping *keeping = &choice->keeping[c];
        const struct model_program *program = model->classes[c].program;
        out[c] = (struct eps_blocks){.n = model->classes[c].n_blocks, .n_kept = keeping->n_kept};
        model_unit_name(out[c].lowest, model, model->visits[model_ranked(model, c, 0)->first_visit]);
        model_keeping_name(out[c].kept.names, program, keeping->kept);
        model_keeping_name(out[c].kept_below.names, program, keeping->kept_below);
    }
    return model->n_classes;
}

/* No class of another program reads such a model. */
static bool model_is_own(const struct model_config *config)
{
    return config->family->is_own || config->guests.n > 0;
}

const char *client_model_loader(const struct model_config *config)
{
    return model_is_own(config)       ? NULL
           : config->n_labels         ? "AutoModelForSequenceClassification"
           : config->family->masked   ? "AutoModelForMaskedLM"
           : model_has_source(config) ? "AutoModelForSeq2SeqLM"
                                      : "AutoModelForCausalLM";
}

struct client_peft client_model_peft(const struct model_config *config)
{
    if (model_is_own(config))
        return (struct client_peft){NULL, NULL};
    if (config->n_labels)
        return (struct client_peft){"SEQ_CLS", "AutoPeftModelForSequenceClassification"};
    if (config->family->masked)
        return (struct client_peft){NULL, "AutoPeftModel"};
    if (model_has_source(config))
        return (struct client_peft){"SEQ_2_SEQ_LM", "AutoPeftModelForSeq2SeqLM"};
    return (struct client_peft){"CAUSAL_LM", "AutoPeftModelForCausalLM"};
}

char *client_model_print_config(const struct client_model *model, enum safetensors_type type, struct error *err)
{
    char *text, *out = NULL;
    size_t n;

    if (client_file_read(&text, &n, model->config_fd, CHECKPOINT_CONFIG, err) == 0) {
        out = model_config_print(text, n, type);
        if (!out)
            error_memory(err);
        free(text);
    }
    return out;
}

static int model_open_config(struct client_model *model, const char *path, struct error *err)
{
    model->config_fd = client_file_open(path, err);
    return model->config_fd < 0 ? model->config_fd : model_read_config(model, path, err);
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

/* The directory's weights, unless only what they tell of the model is wanted. */
static int open_weights(struct client_model *model, const char *directory, bool weightless, struct error *err)
{
    if (weightless)
        return client_untie_by(model, directory, err);
    const int rc = client_shards_open(model, directory, err);
    return rc ? rc : client_untie(model, err);
}

static int model_open_directory(struct client_model *model, const char *directory, struct error *err)
{
    char config[PATH_MAX];
    int rc = client_file_join(config, directory, CHECKPOINT_CONFIG, err);
    if (!rc)
        rc = model_open_config(model, config, err);
    if (!rc)
        rc = open_weights(model, directory, false, err);
    return rc ? rc : model_files_read(&model->side, directory, err);
}

/* Adds side files of a directory that the model does not have yet. */
static int model_add_side(struct client_model *model, const char *directory, struct error *err)
{
    json_t *files;
    const int rc = model_files_read(&files, directory, err);

    if (rc)
        return rc;
    int failed = json_object_update_missing(model->side, files) ? error_memory(err) : 0;
    if (!failed)
        failed = model_files_keep_templates(model->side, files, err);
    json_decref(files);
    return failed;
}

/* The base's weights, then the adapter's. */
static int open_base(struct client_model *model, json_t *peft, const char *base, bool weightless, struct error *err)
{
    const int rc = open_weights(model, base, weightless, err);

    return rc ? rc : client_adapter_set(model, peft, base, err);
}

/* An adapter's directory has a config of its own if eps wrote it. Side files of the base only fill in what the
 * adapter's lack, and its weights come before the adapter's. */
static int open_adapter(struct client_model *model, const char *directory, const char *named, bool weightless,
                        struct error *err)
{
    char base[PATH_MAX], config[PATH_MAX];
    json_t *peft;
    int rc = client_adapter_read(&peft, directory, err);

    if (rc)
        return rc;
    rc = client_adapter_find_base(base, peft, directory, named, err);
    if (!rc)
        rc = client_file_is_in(directory, ADAPTER_BASE) ? client_file_join(config, directory, ADAPTER_BASE, err)
                                                        : client_file_join(config, base, CHECKPOINT_CONFIG, err);
    if (!rc)
        rc = model_open_config(model, config, err);
    if (!rc)
        rc = model_files_read(&model->side, directory, err);
    if (!rc)
        rc = model_add_side(model, base, err);
    if (!rc && (rc = open_base(model, peft, base, weightless, err)) != 0)
        error_prefix(err, directory);
    if (!rc && !weightless)
        rc = client_shards_add(model, directory, ADAPTER_WEIGHTS, err);
    json_decref(peft);
    return rc;
}

/* True for a file of weights. */
static bool is_weights_file(const char *path)
{
    static const char *const ends[] = {".safetensors", ".bin", ".pt", ".pth"};
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
    int rc = model_open_config(model, path, err);
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;

    if (rc || strcmp(name, CHECKPOINT_CONFIG) != 0)
        return rc;
    snprintf(directory, sizeof directory, "%.*s", slash ? (int)(name - path) : 1, slash ? path : ".");
    return model_files_read(&model->side, directory, err);
}

static int open_weightless(struct client_model *model, const char *directory, struct error *err)
{
    char config[PATH_MAX];
    int rc = client_file_join(config, directory, CHECKPOINT_CONFIG, err);

    if (!rc)
        rc = open_alone(model, config, err);
    return rc ? rc : open_weights(model, directory, true, err);
}

/* Resolves a path; a run directory means its latest checkpoint. *is_directory: a directory with a config.json. */
static int find_model(char out[PATH_MAX], bool *is_directory, const char *path, struct error *err)
{
    struct stat st;
    int rc;

    if (stat(path, &st))
        return client_preset_missing(path, -errno, err);
    *is_directory = S_ISDIR(st.st_mode);
    if ((size_t)snprintf(out, PATH_MAX, "%s", path) >= PATH_MAX)
        return error_set(err, -ENAMETOOLONG, "--model %.200s: name too long", path);
    if (!*is_directory && client_preset_is_gguf(path))
        return client_preset_refuse_gguf(path, err);
    if (!*is_directory && is_weights_file(path))
        return error_set(err, -EINVAL,
                         "--model %s is a file of weights: name the directory that holds it, with its config.json",
                         path);
    if (*is_directory && !client_file_is_in(path, CHECKPOINT_CONFIG) && !client_adapter_is_in(path) &&
        (client_file_is_in(path, "latest/" CHECKPOINT_CONFIG) || client_file_is_in(path, "latest/" ADAPTER_CONFIG)))
        return client_file_join(out, path, "latest", err);
    if (*is_directory && client_adapter_is_in(path))
        return 0;
    if (*is_directory && (rc = client_preset_refuse_foreign(path, err)) != 0)
        return rc;
    if (*is_directory && !client_file_is_in(path, CHECKPOINT_CONFIG))
        return error_set(err, -ENOENT,
                         "--model %s holds no config.json and no latest checkpoint: name a directory that has one",
                         path);
    return 0;
}

static int refuse_base(const struct client_model_name *name, struct error *err)
{
    return error_set(err, -EDOM, "--base-model %.200s is for an adapter, and %.200s is none: leave it out", name->base,
                     name->path);
}

/* A model of which there is a config alone, and no file. */
static int open_text(struct client_model *model, const struct client_model_name *name, struct error *err)
{
    client_model_call(model, name->path, true);
    model->config_fd = model_hold_config(name->config, strlen(name->config), err);
    return model->config_fd < 0 ? model->config_fd : model_read_config(model, name->path, err);
}

static int open_at(struct client_model *out, const struct client_model_name *name, bool weightless, struct error *err)
{
    char found[PATH_MAX];
    bool is_directory = false;
    int rc = find_model(found, &is_directory, name->path, err);

    if (rc)
        return rc;
    client_model_call(out, found, is_directory);
    if (is_directory && !realpath(found, out->directory)) /* `latest` may point elsewhere a moment later */
        rc = error_set(err, -errno, "%s: %s", found, strerror(errno));
    else if (is_directory && client_adapter_is_in(found))
        rc = open_adapter(out, found, name->base, weightless, err);
    else if (name->base && !name->passes)
        rc = refuse_base(name, err);
    else if (is_directory && !weightless)
        rc = model_open_directory(out, found, err);
    else
        rc = is_directory ? open_weightless(out, found, err) : open_alone(out, found, err);
    return rc;
}

static int open_found(struct client_model *out, const struct client_model_name *name, bool weightless,
                      const struct client_model_rewrite *rewrite, struct error *err)
{
    *out = (struct client_model){.config_fd = -1, .rewrite = rewrite};
    int rc = !name->config ? open_at(out, name, weightless, err)
             : name->base  ? refuse_base(name, err)
                           : open_text(out, name, err);

    out->rewrite = NULL;
    if (rc)
        client_model_close(out);
    return rc;
}

int client_model_open(struct client_model *out, const struct client_model_name *name, struct error *err)
{
    return open_found(out, name, false, NULL, err);
}

int client_model_open_as(struct client_model *out, const struct client_model_name *name,
                         const struct client_model_rewrite *rewrite, struct error *err)
{
    return open_found(out, name, false, rewrite, err);
}

int client_model_open_fresh(struct client_model *out, const struct client_model_name *name,
                            const struct client_model_rewrite *rewrite, struct error *err)
{
    return open_found(out, name, true, rewrite, err);
}

enum number_type client_model_precision(const json_t *options)
{
    const char *name = json_string_value(json_object_get(options, "precision"));

    for (int type = 0; name && type < NUMBER_TYPES; type++)
        if (strcmp(name, number_name((enum number_type)type)) == 0)
            return (enum number_type)type;
    return NUMBER_FP32;
}

bool client_model_follow_training(const char **chat_template, enum eps_split *split, const struct client_model *model)
{
    const char *name = json_string_value(json_object_get(model->trained, "chat_template")),
               *splits = json_string_value(json_object_get(model->trained, "split_special_tokens"));
    const bool gives = name && !*chat_template;

    if (gives)
        *chat_template = name;
    if (*split == EPS_SPLIT_DEFAULT && splits && strcmp(splits, "no") == 0)
        *split = EPS_SPLIT_NO;
    return gives;
}

enum safetensors_type client_model_dtype(const json_t *options)
{
    const char *name = json_string_value(json_object_get(options, CLIENT_MODEL_DTYPE_KEY));

    for (enum safetensors_type type = SAFETENSORS_F32; name && type <= SAFETENSORS_BF16; type++)
        if (strcmp(name, safetensors_type_name(type)) == 0)
            return type;
    return SAFETENSORS_F32;
}

/* Opens the model's directory and reads its training.json; the caller closes *directory and frees the checkpoint.
 * 1: it is there; 0: there is none; -errno. */
static int read_training(struct checkpoint *out, int *directory, const struct client_model *model, struct error *err)
{
    if (!model->directory[0] || !client_file_is_in(model->directory, CHECKPOINT_TRAINING))
        return 0;
    *directory = open(model->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*directory < 0)
        return error_set(err, -errno, "%s: %s", model->directory, strerror(errno));
    int rc = checkpoint_read(out, *directory, err);
    if (!rc)
        return 1;
    checkpoint_free(out);
    close(*directory);
    error_prefix(err, model->directory);
    return rc;
}

/* The type that a checkpoint's run began from, and what it left out. False: this is no checkpoint. One that cannot be
 * read is for client_model_check to refuse. */
static bool take_training(struct client_model *model)
{
    struct checkpoint checkpoint;
    int directory;

    if (read_training(&checkpoint, &directory, model, NULL) <= 0)
        return false;
    model->dtype = client_model_dtype(checkpoint.options);
    model->passed = json_incref(json_object_get(checkpoint.options, CLIENT_PASSED_KEY));
    checkpoint_free(&checkpoint);
    close(directory);
    return true;
}

/* drawn NULL: no tensor may be missing. A checkpoint's weights are fp32 whatever its run began from, so its record
 * counts. */
static int model_match(struct client_model *out, char *drawn, struct error *err)
{
    struct weights weights;
    struct model model;
    int rc = model_init(&model, &out->config, err);

    if (rc)
        return rc;
    rc = (drawn ? weights_open_base : weights_open)(&weights, &model, out->weights, out->n_weights, NULL, err);
    if (!rc && drawn)
        weights_missing(drawn, &weights, &model);
    json_decref(out->passed);
    out->passed = NULL;
    if (!rc && !take_training(out)) {
        out->dtype = weights_type(&weights, &model);
        rc = client_passed_note(&out->passed, out, &weights, &model, err);
    }
    if (!rc)
        out->form = weights_form(&weights, &model);
    weights_close(&weights);
    model_free(&model);
    return rc;
}

int client_model_match(struct client_model *model, struct error *err)
{
    return model_match(model, NULL, err);
}

int client_model_match_base(struct client_model *model, char *drawn, struct error *err)
{
    *drawn = 0;
    return model_match(model, drawn, err);
}

int client_model_header_bytes(uint64_t *out, const struct client_model *model, struct error *err)
{
    uint64_t bytes;
    int rc = 0;

    *out = 0;
    for (unsigned i = 0; !rc && i < model->n_weights; i++) {
        rc = safetensors_header_bytes(&bytes, &model->weights[i], err);
        *out += rc ? 0 : bytes;
    }
    return rc;
}

/* A damaged checkpoint: another of its run may be whole. Returns rc. */
static int name_others(const struct client_model *model, int rc, struct error *err)
{
    char run[PATH_MAX];

    snprintf(run, sizeof run, "%s", model->directory);
    char *const slash = strrchr(run, '/');
    if (slash > run && strncmp(slash, "/step-", 6) == 0) {
        *slash = 0;
        error_append(err, "; eps verify %s tells which of its checkpoints are whole: name one", run);
    }
    return rc;
}

int client_model_check(struct client_model *model, int (*on_bytes)(void *data, uint64_t bytes), void *data,
                       struct error *err)
{
    const struct checkpoint_reading reading = {true, on_bytes, data};
    struct checkpoint checkpoint;
    struct error edited;
    int directory;
    int rc = read_training(&checkpoint, &directory, model, err);

    if (rc <= 0)
        return rc == -EINVAL ? name_others(model, rc, err) : rc;
    model->precision = client_model_precision(checkpoint.options);
    json_decref(model->trained);
    model->trained = json_incref(checkpoint.options);
    rc = checkpoint_check_files(&edited, &checkpoint, directory, &reading, err);
    checkpoint_free(&checkpoint);
    close(directory);
    if (edited.text[0])
        snprintf(model->edited, sizeof model->edited, "%.400s: %.300s; it is read as it is", model->directory,
                 edited.text);
    if (rc && rc != -EINTR)
        error_prefix(err, model->directory);
    return rc == -EINVAL ? name_others(model, rc, err) : rc;
}

void client_model_tell(const struct client_model *model, void (*on_note)(void *user, const char *sentence), void *user)
{
    struct error sentence;

    if (*model->edited)
        client_tell(on_note, user, model->edited);
    if (!model->config.ignored)
        return;
    error_set(&sentence, 0,
              "%s: %s in its config.json has no effect: transformers does not read it there, and computes "
              "as if it were true",
              model->name, model->config.ignored);
    client_tell(on_note, user, sentence.text);
}

/* The base of an open model that has an adapter: the named one, or as its side files name it. */
static int open_named_base(struct client_model *model, const char *named, struct error *err)
{
    char base[PATH_MAX];
    json_t *peft = model_files_json(model->side, ADAPTER_CONFIG);
    int rc = peft ? client_adapter_find_base(base, peft, "", named, err)
                  : error_set(err, -EINVAL, "it has an adapter, and no " ADAPTER_CONFIG " that names its base");

    if (!rc)
        rc = open_base(model, peft, base, false, err);
    json_decref(peft);
    return rc == -ENOENT ? -EINVAL : rc;
}

int client_model_from(struct client_model *out, const struct client_model_name *name, int config_fd, int weights_fd,
                      json_t *side, struct error *err)
{
    *out = (struct client_model){.config_fd = config_fd, .side = side};
    snprintf(out->name, sizeof out->name, "%s", name->path);
    int rc = model_read_config(out, name->path, err);
    if (!rc && side && (rc = model_files_check(side, err)) != 0)
        error_prefix(err, name->path);
    if (!rc && name->base && !name->passes && out->config.adapter.rank == 0)
        rc = refuse_base(name, err);
    if (!rc && weights_fd >= 0 && out->config.adapter.rank > 0 && (rc = open_named_base(out, name->base, err)) != 0)
        error_prefix(err, name->path);
    if (!rc && out->n_weights == CLIENT_MODEL_MAX_FILES)
        rc = error_set(err, -E2BIG, "%s: its base has more than %d files", name->path, CLIENT_MODEL_MAX_FILES - 1);
    if (rc && weights_fd >= 0)
        close(weights_fd);
    else if (weights_fd >= 0)
        out->weights[out->n_weights++] = file_own(weights_fd);
    if (!rc && weights_fd >= 0)
        rc = check_weights(weights_fd, name->path, err);
    if (rc)
        client_model_close(out);
    return rc;
}

void client_model_close(struct client_model *model)
{
    for (unsigned i = 0; i < model->n_weights; i++)
        close(model->weights[i].fd);
    model->n_weights = 0;
    if (model->config_fd >= 0)
        close(model->config_fd);
    model->config_fd = -1;
    json_decref(model->side);
    json_decref(model->trained);
    json_decref(model->passed);
    model->side = model->trained = model->passed = NULL;
}
