/* eps_filters: the filters of a net's first convolution. */
#include "client/eps.h"
#include "client/daemon/observer.h"
#include "client/model/model.h"
#include "proto/model/weights.h"

#include <errno.h>
#include <stdlib.h>

/* Index of the first convolution's weight; n_tensors: there is none. */
static uint32_t find_first(const struct model *model)
{
    uint32_t t = 0;

    while (t < model->n_tensors && (!model_is_filter(&model->tensors[t]) || model->tensors[t].over_tokens))
        t++;
    return t;
}

/* From (n, channels, height, width), as files have them. */
static int read_filters(struct eps_filters *out, const struct model_tensor *tensor,
                        const struct safetensors_entry *from, struct error *err)
{
    float *const in_file = malloc(tensor->n * sizeof *in_file);
    const uint32_t n_taps = tensor->height * tensor->width;

    *out = (struct eps_filters){.n = (uint32_t)tensor->shape[0],
                                .height = tensor->height,
                                .width = tensor->width,
                                .channels = (uint32_t)(tensor->shape[1] / n_taps),
                                .values = malloc(tensor->n * sizeof *out->values)};
    int rc = in_file && out->values ? safetensors_read(in_file, from, 0, tensor->n, err) : error_memory(err);
    for (uint64_t i = 0; !rc && i < tensor->n; i++) {
        const uint64_t row = i / tensor->shape[1] * tensor->shape[1];
        out->values[i] = in_file[row + model_place_in_file(tensor, i - row)];
    }
    free(in_file);
    return rc;
}

static int find_filters(struct eps_filters *out, const struct client_model *from, struct error *err)
{
    struct weights weights = {0};
    struct model model;
    int rc = model_init(&model, &from->config, err);
    const uint32_t first = rc ? 0 : find_first(&model);

    if (rc)
        return rc;
    if (first == model.n_tensors)
        rc = error_set(err, -EINVAL, "it has no convolution of images, so there are no filters");
    else if (from->n_weights == 0)
        rc = error_set(err, -EINVAL, "it has no weights yet");
    if (!rc)
        rc = weights_open(&weights, &model, from->weights, from->n_weights, NULL, err);
    if (!rc)
        rc = read_filters(out, &model.tensors[first], weights.entries[first], err);
    weights_close(&weights);
    model_free(&model);
    return rc;
}

int eps_filters(struct eps_filters *out, const char *path, struct eps_error *error)
{
    struct client_model from;
    struct error err = {""};

    *out = (struct eps_filters){0};
    int rc = client_model_open(&from, &(struct client_model_name){.path = path}, &err);
    if (!rc) {
        rc = client_model_check(&from, NULL, NULL, &err);
        if (!rc && (rc = find_filters(out, &from, &err)) != 0)
            error_prefix(&err, path);
        client_model_close(&from);
    }
    if (rc)
        eps_filters_free(out);
    return client_report(error, &err, rc);
}

void eps_filters_free(struct eps_filters *filters)
{
    free(filters->values);
    *filters = (struct eps_filters){0};
}
