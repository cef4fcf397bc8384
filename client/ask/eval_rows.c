#include "client/ask/eval_rows.h"

#include "client/model/classifier.h"
#include "client/model/source.h"
#include "client/options/options.h"
#include "client/task/image_rows.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { BATCH = 32 }; /* rows; as in training */

struct eval_rows {
    struct client_forward *forward;
    struct eps_eval_options *options;
    const struct eps_eval_events *events;
    void *user;
    struct client_data data;
    struct client_source *source; /* of held-out rows alone: all of data */
    struct client_job job;
};

int client_eval_check_predictions(const struct client_data *data, const char *path, struct error *err)
{
    struct stat to, from;

    if (!path || stat(path, &to) || !S_ISREG(to.st_mode))
        return 0;
    for (size_t i = 0; i < data->n_files; i++)
        if (fstat(data->files[i].fd, &from) == 0 && from.st_dev == to.st_dev && from.st_ino == to.st_ino)
            return error_set(err, -EDOM, "--predictions %.200s is a file of --data: choose another one", path);
    return 0;
}

int client_eval_check(const struct eps_eval_options *options, unsigned task, const struct eps_eval_events *events,
                      struct error *err)
{
    struct eps_eval_options asked = *options;

    asked.predictions = events->on_prediction ? "" : NULL;
    return client_options_check_tasks(&asked, EPS_COMMAND_EVAL, task, false, err);
}

static int read_rows(struct eval_rows *e, struct error *err)
{
    const struct client_model *model = &e->forward->model;
    const struct client_source_rules rules = {.columns = e->options->columns,
                                              .image = e->options->image,
                                              .unlabelled = e->events->on_prediction != NULL,
                                              .watch = &e->forward->link.watches[1]};
    int rc = client_model_source(&e->source, client_source_kind(&model->config, 0), model, NULL, &e->data, err);

    if (rc)
        error_prefix(err, model->name);
    if (!rc)
        rc = e->source->ops->open_files(&e->data, e->options->data, e->options->n_data, err);
    if (!rc)
        rc = client_eval_check_predictions(&e->data, e->options->predictions, err);
    if (!rc)
        rc = client_source_read_part(e->source, CLIENT_HELD_OUT, &rules, err);
    if (!rc && e->events->on_note)
        client_unread_tell(&e->data, "--data", e->events->on_note, e->user);
    return rc ? rc : client_source_settle(e->source, &rules, err);
}

/* Chooses seq and batch as a training run does. */
static int resolve(struct eval_rows *e, struct error *err)
{
    const uint32_t n_positions = e->forward->model.config.n_positions;
    struct eps_eval_options *o = e->options;
    const struct client_source_facts facts = client_source_measure(e->source);

    if (o->seq == 0)
        o->seq = facts.seq;
    if (o->seq == 0)
        o->seq = facts.longest < n_positions - 7 ? (facts.longest + 7) / 8 * 8 : n_positions;
    int rc = client_options_check_seq(o->seq, n_positions, err);
    if (rc)
        return rc;
    if (o->seq < facts.least)
        return error_set(err, -EDOM,
                         "--seq %u: the special tokens of a row leave no room for its text: choose %u or more", o->seq,
                         facts.least);
    rc = client_source_divide(e->source, &(struct client_division){.seq = o->seq, .stride = o->seq}, err);
    if (rc)
        return rc;
    const uint64_t n = client_source_n_rows(e->source, CLIENT_HELD_OUT);
    if (o->batch == 0)
        o->batch = n < BATCH ? (uint32_t)n : BATCH;
    o->task = facts.task;
    rc = client_options_check_batch(o->batch, o->seq, err);
    return rc ? rc : client_source_make_room(e->source, o->batch, err);
}

static int evaluate(struct eval_rows *e, double *loss, uint64_t *n_rows, struct error *err)
{
    /* The optimizer is never used, but its numbers must be valid. */
    struct message request = {.kind = MESSAGE_JOB,
                              .job = {.goal = {.purpose = PLAN_EVALUATE,
                                               .precision = e->forward->model.precision,
                                               .batch = e->options->batch,
                                               .seq = e->options->seq,
                                               .n_parts = 1},
                                      .beta1 = 0.9,
                                      .beta2 = 0.999,
                                      .epsilon = 1e-8}};
    int rc = client_forward_open_job(e->forward, &e->job, &request, err);

    e->job.on_evaluating = e->events->on_evaluating;
    e->job.user = e->user;
    if (!rc)
        rc = client_job_evaluate(loss, n_rows, &e->job, e->source, 0, err);
    return rc ? rc : client_job_close(&e->job, err);
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

/* In the data's order, which is not the evaluation's. */
static int predict(struct eval_rows *e, struct error *err)
{
    const struct client_source *source = e->source;
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
        rc = e->events->on_prediction(e->user, &prediction);
        if (rc)
            error_set(err, rc, "the predictions end at row %" PRIu64, row);
    }
    free(probability);
    free(places);
    return rc;
}

int client_eval_rows(double *loss, uint64_t *n_rows, struct client_forward *forward, struct eps_eval_options *options,
                     const struct eps_eval_events *events, void *user, struct error *err)
{
    struct eval_rows e = {.forward = forward, .options = options, .events = events, .user = user};
    int rc = client_eval_check(options, client_source_kind(&forward->model.config, 0)->task, events, err);

    if (!rc)
        rc = read_rows(&e, err);
    if (!rc)
        rc = resolve(&e, err);
    if (!rc && events->on_start)
        events->on_start(user, options);
    if (!rc)
        rc = client_forward_start(forward, err);
    if (!rc)
        rc = evaluate(&e, loss, n_rows, err);
    if (!rc && e.source->scores.n > 0 && events->on_scored)
        events->on_scored(user, e.source->scores.list, e.source->scores.n);
    if (!rc && e.source->ops == &client_source_images && events->on_class)
        rc = client_image_rows_classes(e.source, events->on_class, user, err);
    if (!rc && events->on_prediction)
        rc = predict(&e, err);
    client_job_free(&e.job);
    client_source_close(e.source);
    client_data_free(&e.data);
    return rc;
}
