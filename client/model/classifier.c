/* `rewritten` means that the classes are still the data's to name: a task made the config (prepare), or a net of images
 * names none (is_unnamed). Only then is the config written again, once the labels are known. */
#include "client/model/classifier.h"

#include "client/model/file.h"
#include "proto/model/file/checkpoint.h"
#include "proto/model/family.h"
#include "proto/model/config/model_config_print.h"
#include "proto/model/weights.h"
#include "proto/wire/message.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The classifier of a config's family: "BertForSequenceClassification"; NULL: it has none. */
static const char *architecture_of(const json_t *config)
{
    const struct family *family = family_find(config);

    return family && family->classifier ? family->classifier->architecture : NULL;
}

int client_classifier_refuse(enum eps_task task, const char *preset, const char *type, struct error *err)
{
    char types[512] = "";

    for (const struct family *const *family = model_families; *family; family++) {
        const size_t at = strlen(types);
        if ((*family)->classifier && !(*family)->sees_images)
            snprintf(types + at, sizeof types - at, "%s%s", at > 0 ? ", " : "", (*family)->model_type);
    }
    return error_set(err, -EDOM, "--task %s is for these types of model: %s; %.60s is a %.60s",
                     task == EPS_REGRESS ? "regress" : "classify", types, preset ? preset : "this", type);
}

/* {"0": "no", "1": "yes"}, or the other way around. Without names transformers' own: LABEL_0. */
static json_t *names_json(const struct client_labels *labels, enum eps_task task, bool by_name)
{
    const uint32_t n = labels && labels->n ? labels->n : task == EPS_REGRESS ? 1 : 2;
    json_t *out = json_object();
    char made[32], number[16];

    for (uint32_t i = 0; i < n; i++) {
        snprintf(made, sizeof made, "LABEL_%u", i);
        snprintf(number, sizeof number, "%u", i);
        const char *name = labels && labels->n ? labels->names[i] : made;
        if (json_object_set_new(out, by_name ? name : number, by_name ? json_integer(i) : json_string(name))) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

char *client_classifier_config(const char *text, size_t n, const char *architecture, enum eps_task task,
                               const struct client_labels *labels, struct error *err)
{
    json_t *config = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    const char *problem = task == EPS_REGRESS ? "regression" : "single_label_classification";
    char *out = NULL;

    json_object_del(config, "num_labels");
    json_object_del(config, "_num_labels");
    if (json_object_set_new(config, "architectures", json_pack("[s]", architecture)) == 0 &&
        json_object_set_new(config, "id2label", names_json(labels, task, false)) == 0 &&
        json_object_set_new(config, "label2id", names_json(labels, task, true)) == 0 &&
        json_object_set_new(config, "problem_type", json_string(problem)) == 0)
        out = model_config_text(config);
    if (!out)
        error_memory(err);
    json_decref(config);
    return out;
}

enum eps_task client_classifier_task(const struct client_model *model)
{
    return model->config.n_labels == 0 ? EPS_TASK_DEFAULT : model->config.regression ? EPS_REGRESS : EPS_CLASSIFY;
}

/* The daemon takes no larger one. */
static int classifier_check_size(const char *config, const struct client_labels *labels, struct error *err)
{
    const size_t n = strlen(config);

    if (n <= MESSAGE_MAX_CONFIG_BYTES)
        return 0;
    return error_set(err, -E2BIG,
                     "%u classes and their names take %zu KiB in config.json, more than %d KiB: give fewer classes, or "
                     "shorter names; is the label another column?",
                     labels->n, (n + 1023) >> 10, MESSAGE_MAX_CONFIG_BYTES >> 10);
}

static int classifier_rewrite(struct client_model *model, enum eps_task task, const struct client_labels *labels,
                              struct error *err)
{
    char *text, *classifier = NULL;
    size_t n;
    int rc = client_file_read(&text, &n, model->config_fd, CHECKPOINT_CONFIG, err);

    if (rc)
        return rc;
    json_t *config = json_loadb(text, n, 0, NULL);
    const char *architecture = architecture_of(config);
    if (architecture)
        classifier = client_classifier_config(text, n, architecture, task, labels, err);
    rc = classifier ? classifier_check_size(classifier, labels, err) : -ENOMEM;
    if (!rc)
        rc = client_model_replace_config(model, classifier, err);
    json_decref(config);
    free(classifier);
    free(text);
    return rc;
}

int client_classifier_labels(struct client_labels *out, const struct client_model *model, struct error *err)
{
    char *text;
    size_t n;
    int rc = client_labels_init(out, model->config.regression, err);

    if (rc || model->rewritten || model->config.regression)
        return rc;
    rc = client_file_read(&text, &n, model->config_fd, CHECKPOINT_CONFIG, err);
    if (rc)
        return rc;
    rc = client_labels_take(out, text, n, model->config.n_labels, err);
    if (rc)
        error_prefix(err, CHECKPOINT_CONFIG);
    free(text);
    return rc;
}

int client_classifier_label(struct client_model *model, const struct client_labels *labels, struct error *err)
{
    return model->rewritten ? classifier_rewrite(model, client_classifier_task(model), labels, err) : 0;
}

int client_classifier_count(struct client_model *model, uint32_t n, struct error *err)
{
    struct client_labels labels;

    if (n == 0)
        return 0;
    if (client_classifier_task(model) != EPS_CLASSIFY)
        return error_set(err, -EDOM, "--labels %u is for --task classify: leave it out", n);
    if (!model->rewritten && n != model->config.n_labels)
        return error_set(err, -EDOM, "--labels %u: the model is a classifier of %u classes: leave it out", n,
                         model->config.n_labels);
    if (n < 2 || n > CLIENT_LABELS_MOST)
        return error_set(err, -EDOM, "--labels %u is not within 2 and %d", n, CLIENT_LABELS_MOST);
    int rc = client_labels_init(&labels, false, err);
    if (!rc)
        rc = client_labels_take(&labels, "{}", 2, n, err);
    if (!rc)
        rc = client_classifier_label(model, &labels, err);
    client_labels_free(&labels);
    if (rc == -E2BIG)
        error_prefix(err, "--labels");
    return rc;
}

/* ---- Opening ---- */

/* Before the config is parsed, since a bare encoder's own would be refused. */
static int classifier_prepare(char **out, const char *text, size_t n, void *data, struct error *err)
{
    const enum eps_task task = *(const enum eps_task *)data;
    json_t *config = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    const char *type = json_string_value(json_object_get(config, "model_type"));
    const char *own = json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    const char *architecture = architecture_of(config);
    int rc = 0;

    *out = NULL;
    if (config && type && !architecture) {
        rc = client_classifier_refuse(task, NULL, type, err);
    } else if (architecture && !(own && strcmp(own, architecture) == 0)) {
        *out = client_classifier_config(text, n, architecture, task, NULL, err);
        rc = *out ? 0 : -ENOMEM;
    }
    json_decref(config);
    return rc;
}

/* True of a config without weights, for images, that does not name its classes: they are the data's. */
static bool is_unnamed(const struct client_model *model)
{
    bool named = true;
    char *text;
    size_t n;

    if (model->config.image.height == 0 || model->n_weights > 0 ||
        client_file_read(&text, &n, model->config_fd, CHECKPOINT_CONFIG, NULL))
        return false;
    json_t *config = json_loadb(text, n, 0, NULL);
    named = json_object_get(config, "id2label") != NULL;
    json_decref(config);
    free(text);
    return !named;
}

static int open_for(struct client_model *out, const struct client_model_name *name, enum eps_task task, bool fresh,
                    struct error *err)
{
    const struct client_model_rewrite rewrite = {classifier_prepare, &task};
    int rc = (fresh ? client_model_open_fresh : client_model_open_as)(out, name, task ? &rewrite : NULL, err);

    if (!rc && is_unnamed(out))
        out->rewritten = true;
    if (rc || !task || client_classifier_task(out) == task)
        return rc;
    rc = error_set(err, -EINVAL,
                   "%s: the model is a classifier already, and predicts %s: leave --task out, or begin from a model "
                   "without that head",
                   name->path, out->config.regression ? "numbers" : "classes");
    client_model_close(out);
    return rc;
}

/* Appends advice to a refusal, if the model could be opened as a classifier, and its weights are those of a bare
 * encoder. */
static void suggest(struct error *err, const struct client_model_name *name, bool fresh)
{
    char drawn[WEIGHTS_MISSING_BYTES];
    struct client_model model;

    if (open_for(&model, name, EPS_CLASSIFY, fresh, NULL))
        return;
    if (model.n_weights == 0 || client_model_match_base(&model, drawn, NULL) == 0)
        error_append(err, "; --task classify or --task regress makes a classifier of it");
    client_model_close(&model);
}

int client_classifier_open(struct client_model *out, const struct client_model_name *name, enum eps_task task,
                           struct error *err)
{
    const int rc = open_for(out, name, task, false, err);

    if (rc == -EINVAL && !task)
        suggest(err, name, false);
    return rc;
}

int client_classifier_open_fresh(struct client_model *out, const struct client_model_name *name, enum eps_task task,
                                 struct error *err)
{
    const int rc = open_for(out, name, task, true, err);

    if (rc == -EINVAL && !task)
        suggest(err, name, true);
    return rc;
}

void client_classifier_suggest(struct error *err, const struct client_model_name *name)
{
    suggest(err, name, false);
}
