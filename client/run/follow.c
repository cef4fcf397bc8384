/* A checkpoint stores resolved options. Some follow from others: a final rate of a tenth of the peak, a micro-batch
 * that fits the device. Where the command line changes the one, the other is left to be resolved anew
 * (follow_is_outdated), as nobody asked for it. Of two options that exclude each other, a typed one rules out the
 * stored one. */
#include "client/run/follow.h"

#include "client/model/classifier.h"
#include "client/model/file.h"
#include "client/model/passed.h"
#include "client/options/value.h"
#include "client/record/checkpoints.h"
#include "client/record/record.h"
#include "proto/base/process.h"
#include "proto/model/file/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One of the two sources. */
struct source {
    struct client_follow *follow;
    struct eps_train_options *to;
    const struct eps_train_options *typed;
    const json_t *options;
    bool stored;               /* by a run: resolved */
    char where[PATH_MAX + 16]; /* "--config run.json" */
};

/* Of the object in training.json, what is no option: facts of the data and of the run. */
static bool is_fact(const char *key)
{
    static const char *const facts[] = {"data_tokens",       "data_hash",  "eval_data_tokens",       "eval_data_hash",
                                        "changes",           "products",   CLIENT_MODEL_DTYPE_KEY,   CLIENT_PASSED_KEY,
                                        CLIENT_RECORD_BEGAN, "loss_scale", CLIENT_RECORD_EVAL_CHOSEN};

    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        if (strcmp(facts[i], key) == 0)
            return true;
    return false;
}

static const struct eps_option *follow_find(const char *key)
{
    char own[CLIENT_OPTION_KEY];
    size_t n;
    const struct eps_option *rows = eps_options(&n);

    for (size_t i = 0; i < n; i++)
        if (rows[i].kind != EPS_OPTION_HEADING && rows[i].train && strcmp(client_option_key(own, &rows[i]), key) == 0)
            return &rows[i];
    return NULL;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* Keeps memory as long as the options. -ENOMEM: it is freed. */
static int follow_keep(struct client_follow *f, void *memory, struct error *err)
{
    if (memory && f->n_texts < CLIENT_FOLLOW_TEXTS) {
        f->texts[f->n_texts++] = memory;
        return 0;
    }
    free(memory);
    return error_memory(err);
}

/* A text, or a list of texts. -EINVAL without a sentence if it is neither, or has none. */
static int take_texts(struct source *s, const struct eps_option *row, const json_t *value, struct error *err)
{
    const size_t n = json_is_array(value) ? json_array_size(value) : 1;
    const char **const texts = calloc(n + 1, sizeof *texts);
    const int rc = follow_keep(s->follow, texts, err);
    char *const at = (char *)s->to + row->offset;
    bool all = n > 0;

    if (rc)
        return rc;
    for (size_t i = 0; i < n; i++) {
        texts[i] = json_string_value(json_is_array(value) ? json_array_get(value, i) : value);
        all = all && texts[i];
    }
    if (!all)
        return -EINVAL;
    memcpy(at, &(const char *const *){texts}, sizeof texts);
    memcpy(at + sizeof texts, &n, sizeof n);
    return 0;
}

/* A list of texts, joined by commas. Errors as take_texts. */
static int take_patterns(struct source *s, const struct eps_option *row, const json_t *list, struct error *err)
{
    size_t n = 1;
    bool all = json_array_size(list) > 0;

    for (size_t i = 0; i < json_array_size(list); i++) {
        n += json_string_length(json_array_get(list, i)) + 1;
        all = all && json_is_string(json_array_get(list, i));
    }
    char *const joined = all ? calloc(n, 1) : NULL;
    const int rc = all ? follow_keep(s->follow, joined, err) : -EINVAL;
    for (size_t i = 0; !rc && i < json_array_size(list); i++) {
        strcat(joined, i ? "," : "");
        strcat(joined, json_string_value(json_array_get(list, i)));
    }
    if (!rc)
        memcpy((char *)s->to + row->offset, &(const char *){joined}, sizeof(const char *));
    return rc;
}

static int follow_take_value(struct source *s, const struct eps_option *row, const json_t *value, struct error *err)
{
    const char *const text = json_string_value(value);
    uint64_t bytes;
    int rc = 0;

    if (row->kind == EPS_OPTION_TEXTS)
        rc = take_texts(s, row, value, err);
    else if (row->kind == EPS_OPTION_PATTERNS && json_is_array(value))
        rc = take_patterns(s, row, value, err);
    else if (row->kind == EPS_OPTION_BYTES && text) {
        rc = process_parse_bytes(&bytes, row->name, text, err);
        if (rc) {
            error_prefix(err, s->where);
            return -EDOM;
        }
        memcpy((char *)s->to + row->offset, &bytes, sizeof bytes);
    } else if (row->kind == EPS_OPTION_AUTO && text && strcmp(text, "auto") == 0)
        client_option_clear(s->to, row);
    else
        rc = client_option_from_json(s->to, row, value) ? 0 : -EINVAL;
    if (rc != -EINVAL)
        return rc;
    return error_set(err, -EDOM, "%s: its value of %s is none of those that %s %s takes", s->where,
                     row->name + strlen("--"), row->name, row->value ? row->value : "(true, false)");
}

/* ---- what gives way ---------------------------------------------------------------------------------------------- */

static bool follow_is_one_of(const char *name, const char *const *names)
{
    for (; *names; names++)
        if (strcmp(name, *names) == 0)
            return true;
    return false;
}

#define ONE_OF(name, ...) follow_is_one_of(name, (const char *const[]){__VA_ARGS__, NULL})

static bool is_sgd(const struct source *s)
{
    const char *const optimizer = json_string_value(json_object_get(s->options, "optimizer"));

    return optimizer && strcmp(optimizer, "sgd") == 0;
}

/* True if a typed option excludes this one. */
static bool is_ruled_out(const struct source *s, const char *name)
{
    const struct eps_train_options *t = s->typed;
    const char *const schedule = json_string_value(json_object_get(s->options, "schedule"));
    const bool is_step = schedule && strcmp(schedule, "step") == 0;
    const bool saves = t->save_every != UINT64_MAX || !isnan(t->save_minutes) || t->keep != UINT32_MAX || t->mirror;

    return (!isnan(t->epochs) && ONE_OF(name, "--steps")) || (t->steps > 0 && ONE_OF(name, "--epochs")) ||
           (t->no_save && ONE_OF(name, "--save-every", "--save-minutes", "--keep", "--mirror")) ||
           (saves && ONE_OF(name, "--no-save")) ||
           (t->connect && ONE_OF(name, "--workers", "--device", "--device-mem")) ||
           (t->name && ONE_OF(name, "--out")) || (t->out && ONE_OF(name, "--name")) ||
           (t->optimizer && (t->optimizer == EPS_SGD) != is_sgd(s) &&
            ONE_OF(name, "--lr", "--min-lr", "--weight-decay", "--betas", "--epsilon", "--momentum", "--nesterov",
                   "--clip-update")) ||
           (t->schedule && (t->schedule == EPS_SCHEDULE_STEP) != is_step &&
            ONE_OF(name, "--min-lr", "--lr-steps", "--lr-factor"));
}

/* True if a run chose the value by what the command line has changed. */
static bool follow_is_outdated(const struct source *s, const char *name)
{
    const struct eps_train_options *t = s->typed;
    const double lr = json_number_value(json_object_get(s->options, "lr")),
                 min_lr = json_number_value(json_object_get(s->options, "min_lr"));
    const json_int_t warmup = json_integer_value(json_object_get(s->options, "warmup"));
    const bool is_tenth = fabs(min_lr - lr / 10) <= 1e-12 * lr, is_whole = min_lr == lr;

    if (!s->stored)
        return false;
    if (ONE_OF(name, "--min-lr"))
        return (!isnan(t->lr) || t->schedule) && (is_tenth || is_whole || min_lr > t->lr);
    if (ONE_OF(name, "--eval-every"))
        return json_is_true(json_object_get(s->options, CLIENT_RECORD_EVAL_CHOSEN));
    if (ONE_OF(name, "--warmup"))
        return t->steps > 0 && (uint64_t)warmup > t->steps;
    if (ONE_OF(name, "--microbatch"))
        return t->model || t->batch || t->seq || t->source_seq || t->parts || t->workers || t->device ||
               t->device_mem || t->connect || t->precision;
    if (ONE_OF(name, "--attention"))
        return t->device || t->connect || t->precision;
    if (ONE_OF(name, "--parts"))
        return t->workers || t->connect;
    if (ONE_OF(name, "--optimizer")) /* of one part AdamW is AdamA, as which it is stored */
        return (t->workers || t->connect || t->parts) && !is_sgd(s) &&
               json_integer_value(json_object_get(s->options, "parts")) == 1;
    if (ONE_OF(name, "--commit"))
        return !isnan(t->clip_norm) || t->precision || t->sums;
    return false;
}

/* ---- the sources ------------------------------------------------------------------------------------------------- */

static int refuse_key(const struct source *s, const char *key, struct error *err)
{
    const char *names[200], *bare[200];
    char foreign[EPS_FOREIGN_TEXT], dashed[CLIENT_OPTION_KEY];
    size_t n, n_names = 0;
    const struct eps_option *rows = eps_options(&n);

    for (size_t i = 0; i < n && n_names < sizeof names / sizeof *names; i++) {
        if (rows[i].kind != EPS_OPTION_HEADING && rows[i].train)
            names[n_names] = rows[i].name, bare[n_names++] = rows[i].name + strlen("--");
    }
    error_set(err, -EDOM, "%s: %.60s is no option of eps train", s->where, key);
    if (json_object_get(s->options, "model_type") || json_object_get(s->options, "architectures"))
        return error_set(err, -EDOM,
                         "%s is a model's config.json: that is for --model; a file of options is as "
                         "\"options\" in a checkpoint's training.json",
                         s->where);
    snprintf(dashed, sizeof dashed, "%s", key);
    const char *const nearest = eps_nearest(dashed, bare, n_names);
    if (eps_foreign(foreign, key, names, n_names))
        error_append(err, ": %s", foreign);
    else if (nearest)
        error_append(err, ": did you mean %s?", nearest);
    return -EDOM;
}

static int take_option(struct source *s, const char *key, const json_t *value, struct error *err)
{
    const struct eps_option *row = follow_find(key);

    if (!row)
        return is_fact(key) ? 0 : refuse_key(s, key, err);
    if (ONE_OF(row->name, "--resume", "--attach", "--change", "--grow", "--replace", "--config", "--like", "--dry-run"))
        return error_set(err, -EDOM, "%s: %s is for the command line alone", s->where, key);
    if (json_is_null(value) || client_option_is_set(s->to, row) || is_ruled_out(s, row->name) ||
        follow_is_outdated(s, row->name))
        return 0;
    return follow_take_value(s, row, value, err);
}

static int take_all(struct source *s, struct error *err)
{
    const char *key;
    json_t *value;
    int rc = 0;

    json_object_foreach((json_t *)(uintptr_t)s->options, key, value)
    {
        if (!rc)
            rc = take_option(s, key, value, err);
    }
    return rc;
}

static bool is_yaml(const char *path)
{
    const char *dot = strrchr(path, '.');

    return dot && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0);
}

/* *out: the object in the file, owned. */
static int read_config(json_t **out, const char *path, struct error *err)
{
    json_error_t why;
    const int fd = client_file_open(path, err);
    char *text = NULL;
    size_t n = 0;
    int rc = fd < 0 ? fd : client_file_read(&text, &n, fd, path, err);

    if (fd >= 0)
        close(fd);
    if (rc) {
        error_prefix(err, "--config");
        return rc;
    }
    *out = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    free(text);
    if (json_is_object(*out))
        return 0;
    return error_set(err, -EINVAL,
                     "--config %.200s: %s: a file of options is JSON, as \"options\" in a checkpoint's training.json: "
                     "{\"lr\": 1e-4, \"batch\": 32}",
                     path,
                     is_yaml(path) ? "YAML is not read here"
                     : *out        ? "it is no object"
                                   : why.text);
}

/* The checkpoint of a run's directory, or a checkpoint itself. */
static int open_checkpoint(char path[PATH_MAX], const char *run, struct error *err)
{
    struct client_checkpoints standing = {0};
    const int fd = open(run, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = 0;

    snprintf(path, PATH_MAX, "%s", run);
    if (fd < 0)
        return error_set(err, -errno, "--like %.200s: %s", run, strerror(errno));
    if (faccessat(fd, CHECKPOINT_TRAINING, F_OK, 0) == 0)
        return fd;
    rc = client_checkpoints_list(&standing, fd, err);
    if (!rc && standing.n == 0)
        rc = error_set(err, -ENOENT,
                       "--like %.200s: no checkpoint (step-N) is in it: name a run's directory, or a step-N", run);
    if (!rc && snprintf(path, PATH_MAX, "%s/step-%" PRIu64, run, standing.steps[standing.n - 1]) >= PATH_MAX)
        rc = error_set(err, -ENAMETOOLONG, "--like %.200s: name too long", run);
    client_checkpoints_free(&standing);
    close(fd);
    if (rc)
        return rc;
    const int step = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return step < 0 ? error_set(err, -errno, "--like %.200s: %s", path, strerror(errno)) : step;
}

/* What a run does not store: the model that it made is a classifier, or not. */
static enum eps_task follow_task_of(const char *checkpoint)
{
    struct client_model model;
    enum eps_task task = EPS_TASK_DEFAULT;

    if (client_model_open_fresh(&model, &(struct client_model_name){.path = checkpoint}, NULL, NULL))
        return task;
    if (model.config.image.height == 0)
        task = client_classifier_task(&model);
    client_model_close(&model);
    return task;
}

static int take_like(struct source *s, const char *run, struct error *err)
{
    char path[PATH_MAX];
    struct checkpoint checkpoint;
    const int fd = open_checkpoint(path, run, err);
    int rc = fd < 0 ? fd : checkpoint_read(&checkpoint, fd, err);

    if (fd >= 0 && rc)
        error_prefix(err, path);
    if (fd >= 0)
        close(fd);
    if (rc)
        return rc;
    s->options = s->follow->sources[1] = json_incref(checkpoint.options);
    checkpoint_free(&checkpoint);
    s->stored = true;
    if (!s->to->task && !s->typed->model)
        s->to->task = follow_task_of(path);
    return take_all(s, err);
}

static int take_config(struct source *s, const char *path, struct error *err)
{
    const int rc = read_config(&s->follow->sources[0], path, err);
    const json_t *const options = json_object_get(s->follow->sources[0], "options");

    s->stored = json_is_object(options);
    s->options = s->stored ? options : s->follow->sources[0];
    return rc ? rc : take_all(s, err);
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

/* A run's name is its directory's, in runs/. */
static int take_name(struct client_follow *f, struct eps_train_options *o, struct error *err)
{
    if (!o->name)
        return 0;
    if (o->out)
        return error_set(err, -EDOM,
                         "--name %.60s makes runs/%.60s the run's directory, and --out %.100s another one: "
                         "leave one of them out",
                         o->name, o->name, o->out);
    if (!*o->name || *o->name == '.' || strchr(o->name, '/') || strlen(o->name) > NAME_MAX)
        return error_set(err, -EDOM,
                         "--name '%.60s': it is a directory's in runs/, so it has no / and begins with no "
                         "dot; --out takes a path",
                         o->name);
    snprintf(f->out, sizeof f->out, "runs/%s", o->name);
    o->out = f->out;
    return 0;
}

/* A dry run makes no files. */
static int take_dry_run(struct eps_train_options *o, struct error *err)
{
    const char *const name = o->attach ? "--attach" : o->grow ? "--grow" : o->replace ? "--replace" : NULL;

    if (!o->dry_run)
        return 0;
    if (name)
        return error_set(err, -EDOM, "--dry-run does not go with %s, which changes something before the first step",
                         name);
    o->trace = o->tensorboard = o->mirror = NULL;
    o->restarts = 0;
    return 0;
}

int client_follow(struct client_follow *out, struct eps_train_options *options, struct error *err)
{
    const struct eps_train_options typed = *options;
    const char *const asked = typed.config ? "--config" : "--like", *const other =
                                                                        typed.resume ? "--resume" : "--attach";
    int rc = 0;

    out->meant = typed;
    if ((typed.config || typed.like) && (typed.resume || typed.attach))
        return error_set(err, -EDOM, "%s does not go with %s: a run that goes on has its own options", asked, other);
    if (typed.config) {
        struct source source = {.follow = out, .to = options, .typed = &typed};
        snprintf(source.where, sizeof source.where, "--config %s", typed.config);
        rc = take_config(&source, typed.config, err);
        out->meant = source.stored ? typed : *options;
    }
    if (!rc && typed.like) {
        const struct eps_train_options so_far = *options;
        struct source source = {.follow = out, .to = options, .typed = &so_far};
        snprintf(source.where, sizeof source.where, "--like %s", typed.like);
        rc = take_like(&source, typed.like, err);
    }
    if (!rc)
        rc = take_name(out, options, err);
    return rc ? rc : take_dry_run(options, err);
}

void client_follow_close(struct client_follow *follow)
{
    for (size_t i = 0; i < follow->n_texts; i++)
        free((void *)(uintptr_t)follow->texts[i]);
    json_decref(follow->sources[0]);
    json_decref(follow->sources[1]);
    *follow = (struct client_follow){.n_texts = 0};
}

void client_follow_forget(struct eps_train_options *options, const struct eps_train_options *meant, unsigned tasks)
{
    struct eps_option row;
    size_t n;
    const struct eps_option *rows = eps_options(&n);

    for (size_t i = 0; i < n; i++) {
        const bool always = rows[i].key > 0 && (rows[i].stored == EPS_STORED_SET || rows[i].stored == EPS_STORED_LATER);
        if (always && eps_option_of(&row, &rows[i], EPS_COMMAND_TRAIN) && row.tasks && !(row.tasks & tasks) &&
            !client_option_is_set(meant, &row))
            client_option_clear(options, &row);
    }
}
