/* A model is the first of these that its name is: a file or directory, a preset, a published model whose numbers are
 * known. So whoever has the files plans with them; and who has not may ask what a model would take before some
 * gigabytes of it are downloaded. */
#include "client/ask/plan/model.h"

#include "client/model/adapter.h"
#include "client/model/classifier.h"
#include "client/model/preset.h"
#include "client/model/preset_images.h"
#include "client/model/published.h"
#include "proto/wire/training_text.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Reads the headers of a model's files of weights, if they are there; it may be planned without. */
static void plan_model_read_headers(struct plan_model *out, const struct eps_train_options *in)
{
    const struct client_model_name name = {.path = in->model, .base = in->base_model};
    struct client_model model;

    if (client_classifier_open(&model, &name, in->task, NULL))
        return;
    if (client_model_header_bytes(&out->header_bytes, &model, NULL) == 0)
        out->n_files = model.n_weights;
    if (model.n_weights > 0 && client_model_match(&model, NULL) == 0)
        out->coded = model.form;
    client_model_close(&model);
}

/* Options that are not for a preset of text. */
static int plan_model_check_preset(const struct eps_train_options *in, struct error *err)
{
    if (in->task)
        return client_classifier_refuse(in->task, in->model, "gpt2", err);
    if (!isnan(in->dpo_beta))
        return error_set(err, -EDOM,
                         "--dpo-beta is for preferences, which tune a model that is there, and --model %s is a preset: "
                         "leave it out",
                         in->model);
    if (in->base_model)
        return error_set(err, -EDOM, "--base-model %.200s is for an adapter, and --model %s is a preset: leave it out",
                         in->base_model, in->model);
    return 0;
}

/* What the model's config, side files and options say. */
static int plan_model_take(struct plan_model *out, struct client_model *model, const struct eps_preset *preset,
                           const struct eps_train_options *in, struct error *err)
{
    struct stat st;
    int rc = in->lora ? client_adapter_plan(model, in->lora, err) : 0;

    if (!rc)
        rc = client_classifier_count(model, in->n_labels, err);
    if (!rc && fstat(model->config_fd, &st))
        rc = error_set(err, -errno, "--model %.200s: %s", in->model, strerror(errno));
    if (rc)
        return rc;
    out->config = model->config;
    out->task = client_classifier_task(model);
    out->config_bytes = (uint64_t)st.st_size;
    out->side_bytes = training_text_room(model->side, client_preset_learned(preset));
    out->saved_bytes = out->config_bytes + training_text_saved_bytes(model->side, client_preset_learned(preset));
    return 0;
}

int client_plan_model_read(struct plan_model *out, const struct eps_train_options *in, struct error *err)
{
    const struct eps_published *published = client_published_find(in->model);
    const bool file = access(in->model, F_OK) == 0 || strpbrk(in->model, "/.");
    const struct eps_preset *preset = file ? NULL : client_preset_find(in->model);
    const bool of_images = !file && client_preset_is_of_images(in->model);
    const struct client_model_name name = {.path = in->model,
                                           .base = in->base_model,
                                           .config = published ? published->config : NULL};
    struct client_model model;

    *out = (struct plan_model){.task = EPS_TASK_DEFAULT};
    if (!file && !preset && !of_images)
        return client_preset_unknown(in->model, err);
    int rc = preset ? plan_model_check_preset(in, err) : 0;
    if (!rc)
        rc = of_images ? client_preset_open_images(&model, in, err)
             : preset  ? client_preset_open(&model, preset, preset->vocabulary, err)
                       : client_classifier_open_fresh(&model, &name, in->task, err);
    if (rc)
        return rc;
    rc = plan_model_take(out, &model, preset, in, err);
    client_model_close(&model);
    if (!rc && !preset && !of_images && !published)
        plan_model_read_headers(out, in);
    return rc;
}
