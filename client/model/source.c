/* The labels of a classifier are read first, and belong to the source from then on, also if it does not open. */
#include "client/model/source.h"

#include "client/model/classifier.h"

int client_model_source(struct client_source **out, const struct client_source_ops *kind,
                        const struct client_model *model, struct client_data *data, struct client_data *eval_data,
                        struct error *err)
{
    struct client_labels labels = {0};
    const struct client_source_setup setup = {
        .config = &model->config, .side = model->side, .labels = &labels, .data = data, .eval_data = eval_data};
    const int rc = model->config.n_labels > 0 ? client_classifier_labels(&labels, model, err) : 0;

    *out = NULL;
    if (!rc)
        return client_source_open(out, kind, &setup, err);
    client_labels_free(&labels);
    return rc;
}
