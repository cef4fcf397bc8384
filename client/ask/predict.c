/* Held-out rows are evaluated in the order of their lengths, so that batches pad little, and their logits lie so. A
 * row's number is its place in the data only because an evaluation of all rows leaves none out: --predictions goes with
 * no limit on what is evaluated. Files are compared as files, since a name may lead to --data over a link. */
#include "client/ask/predict.h"

#include "client/options/options.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

int client_predict_check(const struct client_data *data, const char *path, struct error *err)
{
    struct stat to, from;

    if (!path || stat(path, &to) || !S_ISREG(to.st_mode))
        return 0;
    for (size_t i = 0; i < data->n_files; i++)
        if (fstat(data->files[i].fd, &from) == 0 && from.st_dev == to.st_dev && from.st_ino == to.st_ino)
            return error_set(err, -EDOM, "--predictions %.200s is a file of --data: choose another one", path);
    return 0;
}

int client_eval_check(const struct eps_eval_options *options, unsigned tasks, const struct eps_eval_events *events,
                      struct error *err)
{
    struct eps_eval_options asked = *options;

    asked.predictions = events->on_prediction ? "" : NULL;
    return client_options_check_tasks(&asked, EPS_COMMAND_EVAL, tasks, false, err);
}

/* A row without a label adds nothing to the loss, in which others would have shown it. */
static int check_logits(const float *logits, uint32_t n, uint64_t row, struct error *err)
{
    for (uint32_t i = 0; i < n; i++)
        if (!isfinite(logits[i]))
            return error_set(err, -EINVAL,
                             "the model's answer to row %" PRIu64
                             " is %s: its weights are damaged, or its training has diverged",
                             row, isnan(logits[i]) ? "not a number" : "infinite");
    return 0;
}

/* Softmax of a row's logits. */
static void find_probabilities(double *out, const float *logits, uint32_t n)
{
    const double largest = (double)logits[client_score_class(logits, n)];
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += out[i] = exp((double)logits[i] - largest);
    for (uint32_t i = 0; i < n; i++)
        out[i] /= sum;
}

/* The data's order is not the evaluation's. */
int client_predict(const struct client_source *source, const struct eps_eval_events *events, void *user,
                   struct error *err)
{
    const uint64_t n = client_source_n_rows(source, CLIENT_HELD_OUT);
    const uint32_t n_labels = source->n_logits;
    const bool numbers = source->labels.numbers;
    double *probability = calloc(n_labels, sizeof *probability);
    uint64_t *places = calloc(n, sizeof *places);
    int rc = probability && places ? 0 : error_memory(err);

    for (uint64_t k = 0; !rc && k < n; k++)
        places[client_source_pick_held_out(source, k).id] = k;
    for (uint64_t row = 0; !rc && row < n; row++) {
        const float *logits = source->logits + places[row] * n_labels;
        struct eps_prediction prediction = {.row = row, .number = NAN};
        if ((rc = check_logits(logits, n_labels, row, err)) != 0)
            break;
        if (numbers) {
            prediction.number = (double)logits[0];
        } else {
            find_probabilities(probability, logits, n_labels);
            prediction.likeliest = client_score_class(logits, n_labels);
            prediction.n_classes = n_labels;
            prediction.names = (const char *const *)source->labels.names;
            prediction.probability = probability;
        }
        rc = events->on_prediction(user, &prediction);
        if (rc)
            error_set(err, rc, "the predictions end at row %" PRIu64, row);
    }
    free(probability);
    free(places);
    return rc;
}
