#include "client/ask/eval_rows.h"

#include "client/model/classifier.h"
#include "client/options/options.h"
#include "client/run/task.h"

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
    struct client_labels labels;
    struct client_data data;
    struct client_rows rows;
    struct client_subset subset;
    struct client_job job;
    float *logits;     /* (subset.n, labels) in the subset's order */
    uint32_t *targets; /* (subset.n) */
};

static int check(const struct eps_eval_options *o, struct error *err)
{
    const char *name = o->stride                           ? "--stride"
                       : !isnan(o->mask_fraction)          ? "--mask-fraction"
                       : o->eval_tokens                    ? "--eval-tokens"
                       : o->separator == EPS_SEPARATOR_EOS ? "--separator eos"
                                                           : NULL;

    if (!name)
        return 0;
    return error_set(err, -EDOM,
                     "%s is for models that predict tokens, and this one classifies whole rows: leave it out", name);
}

/* What is read must not be overwritten, under whatever name. */
static int check_predictions(const struct eval_rows *e, struct error *err)
{
    const char *path = e->options->predictions;
    struct stat to, from;

    if (!path || stat(path, &to) || !S_ISREG(to.st_mode))
        return 0;
    for (size_t i = 0; i < e->data.n_files; i++)
        if (fstat(e->data.files[i].fd, &from) == 0 && from.st_dev == to.st_dev && from.st_ino == to.st_ino)
            return error_set(err, -EDOM, "--predictions %.200s is a file of --data: choose another one", path);
    return 0;
}

static int read_rows(struct eval_rows *e, struct error *err)
{
    const struct client_model *model = &e->forward->model;
    struct client_rows_rules rules = {.columns = e->options->columns,
                                      .unlabelled = e->events->on_prediction != NULL,
                                      .watch = &e->forward->link.watches[1]};
    int rc = client_tokenizer_open(&rules.tokenizer, model->side, model->config.vocabulary, err);

    if (!rc && !rules.tokenizer)
        rc = client_tokenizer_refuse_unread(model->side, err);
    if (!rc && !rules.tokenizer)
        rc = error_set(err, -EINVAL, "it has no tokenizer.json, which text needs");
    if (!rc)
        rc = client_classifier_labels(&e->labels, model, err);
    if (rc)
        error_prefix(err, model->name);
    if (!rc)
        rc = client_data_open_rows(&e->data, e->options->data, e->options->n_data, err);
    if (!rc)
        rc = check_predictions(e, err);
    if (!rc)
        rc = client_rows_read(&e->rows, &e->data, &e->labels, &rules, err);
    client_tokenizer_close(rules.tokenizer);
    if (!rc)
        rc = client_subset_all(&e->subset, &e->rows, err);
    return rc ? rc : client_subset_by_length(&e->subset, err);
}

/* Chooses seq and batch as a training run does. */
static int resolve(struct eval_rows *e, struct error *err)
{
    const uint32_t n_positions = e->forward->model.config.n_positions, longest = client_rows_longest(&e->rows);
    struct eps_eval_options *o = e->options;

    if (o->seq == 0)
        o->seq = longest < n_positions - 7 ? (longest + 7) / 8 * 8 : n_positions;
    if (o->seq > n_positions)
        return error_set(err, -EDOM, "--seq %u is more than the model's %u positions", o->seq, n_positions);
    if (o->seq < client_rows_least(&e->rows))
        return error_set(err, -EDOM,
                         "--seq %u: the special tokens of a row leave no room for its text: choose %u or more", o->seq,
                         client_rows_least(&e->rows));
    if (o->batch == 0)
        o->batch = e->subset.n < BATCH ? e->subset.n : BATCH;
    o->task = client_classifier_task(&e->forward->model);
    e->logits = calloc((size_t)e->subset.n * e->forward->model.config.n_labels + 1, sizeof *e->logits);
    e->targets = calloc(e->subset.n + (size_t)1, sizeof *e->targets);
    if (!e->logits || !e->targets)
        return error_set(err, -ENOMEM, "out of memory");
    return client_options_check_batch(o->batch, o->seq, err);
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
        rc = client_job_evaluate_rows(loss, n_rows, e->logits, &e->job, &e->subset, 0, err);
    return rc ? rc : client_job_close(&e->job, err);
}

/* Some rows may have no label: the loss of the others would mislead. */
static int score(struct eval_rows *e, double *loss, uint64_t *n_rows, struct error *err)
{
    struct client_scores scores;

    if (*n_rows < e->subset.n) {
        *loss = NAN;
        *n_rows = 0;
        return 0;
    }
    const int rc = client_task_score(&scores, &e->subset, &e->labels, e->logits, e->targets, err);
    if (!rc && e->events->on_scored)
        e->events->on_scored(e->user, scores.list, scores.n);
    return rc;
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
    const uint32_t n_labels = e->forward->model.config.n_labels;
    const bool numbers = e->labels.numbers;
    double *probability = calloc(n_labels, sizeof *probability);
    int rc = probability ? 0 : error_set(err, -ENOMEM, "out of memory");

    for (uint32_t i = 0; i < e->subset.n; i++)
        e->targets[e->subset.list[i]] = i;
    for (uint32_t row = 0; !rc && row < e->subset.n; row++) {
        const float *logits = e->logits + (size_t)e->targets[row] * n_labels;
        struct eps_prediction prediction = {.row = row, .number = NAN};
        if (numbers) {
            prediction.number = (double)logits[0];
        } else {
            find_probabilities(probability, logits, n_labels);
            prediction.likeliest = client_score_class(logits, n_labels);
            prediction.n_classes = n_labels;
            prediction.names = (const char *const *)e->labels.names;
            prediction.probability = probability;
        }
        rc = e->events->on_prediction(e->user, &prediction);
        if (rc)
            error_set(err, rc, "the predictions end at row %u", row);
    }
    free(probability);
    return rc;
}

int client_eval_rows(double *loss, uint64_t *n_rows, struct client_forward *forward, struct eps_eval_options *options,
                     const struct eps_eval_events *events, void *user, struct error *err)
{
    struct eval_rows e = {.forward = forward, .options = options, .events = events, .user = user, .rows.fd = -1};
    int rc = check(options, err);

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
    if (!rc)
        rc = score(&e, loss, n_rows, err);
    if (!rc && events->on_prediction)
        rc = predict(&e, err);
    client_job_free(&e.job);
    client_subset_free(&e.subset);
    client_rows_free(&e.rows);
    client_data_free(&e.data);
    client_labels_free(&e.labels);
    free(e.logits);
    free(e.targets);
    return rc;
}
