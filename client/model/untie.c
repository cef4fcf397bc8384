/* Runs before anything is planned, since a head of its own adds to the model's units. Weights that do not open as this
 * model's decide nothing here: whoever needs them next says why. config.json on disk stays as it is; the copy in memory
 * is replaced. */
#include "client/model/untie.h"

#include "client/model/file.h"
#include "client/model/shards.h"
#include "proto/model/file/checkpoint.h"
#include "proto/model/family.h"
#include "proto/model/config/model_config_print.h"
#include "proto/model/weights.h"

#include <stdlib.h>
#include <unistd.h>

/* config.json; NULL: it says itself whether the model is tied. Owned. */
static json_t *undecided(const struct client_model *model)
{
    const struct family *family = model->config.family;
    char *text;
    size_t n;

    if (!family || !family->ties_by_files || !model->config.tied ||
        client_file_read(&text, &n, model->config_fd, CHECKPOINT_CONFIG, NULL) != 0)
        return NULL;
    json_t *config = json_loadb(text, n, 0, NULL);
    free(text);
    if (json_object_get(config, family->ties_by_files))
        return config;
    json_decref(config);
    return NULL;
}

static int has_own_head(bool *out, const struct client_model *model, struct error *err)
{
    struct weights weights;
    struct model m;
    int rc = model_init(&m, &model->config, err);

    *out = false;
    if (rc == 0 && weights_open(&weights, &m, model->weights, model->n_weights, NULL, NULL) == 0) {
        rc = weights_copy_differs(out, &weights, &m, WEIGHTS_HEAD, err);
        weights_close(&weights);
    }
    model_free(&m);
    return rc;
}

static int untie_rewrite(struct client_model *model, json_t *config, struct error *err)
{
    char *text = json_object_set_new(config, "tie_word_embeddings", json_false()) ? NULL : model_config_text(config);
    const int rc = text ? client_model_replace_config(model, text, err) : error_memory(err);

    free(text);
    return rc;
}

/* By the model's weights; config: as undecided returns it, not NULL. */
static int untie_decide(struct client_model *model, json_t *config, struct error *err)
{
    bool own;
    const int rc = has_own_head(&own, model, err);

    return rc == 0 && own ? untie_rewrite(model, config, err) : rc;
}

int client_untie(struct client_model *model, struct error *err)
{
    json_t *config = model->n_weights > 0 ? undecided(model) : NULL;
    const int rc = config ? untie_decide(model, config, err) : 0;

    json_decref(config);
    return rc;
}

int client_untie_by(struct client_model *model, const char *directory, struct error *err)
{
    json_t *config = undecided(model);
    int rc = 0;

    if (config && client_shards_open(model, directory, NULL) == 0)
        rc = untie_decide(model, config, err);
    while (model->n_weights > 0)
        close(model->weights[--model->n_weights].fd);
    json_decref(config);
    return rc;
}
