/* client/run/task.h - a run that teaches a classifier: its labelled rows, their minibatches, and the held-out metrics. */
#ifndef CLIENT_RUN_TASK_H
#define CLIENT_RUN_TASK_H

#include "client/rows/batches.h"
#include "client/model/job_rows.h"
#include "client/run/score.h"

struct client_run;

struct client_task {
    enum eps_task kind; /* EPS_TASK_DEFAULT: the model predicts tokens, and all else is empty */
    struct client_labels labels;
    struct client_rows data, eval_data; /* eval_data is empty if some rows of data are held out */
    struct client_subset train, held_out;
    struct client_batches batches;
    float *logits;     /* (held_out.n, n_labels) of the last evaluation */
    uint32_t *targets; /* (held_out.n) labels */
    struct client_scores scores;
};

void client_task_init(struct client_task *task); /* makes client_task_free safe */
void client_task_free(struct client_task *task);

/* The task of a run whose model and data files are open: reads the rows, completes the model's config with their labels.
 * -EINVAL, -EDOM, -errno with a sentence. */
int client_task_open(struct client_run *run, const struct eps_train_options *in, const struct client_watch *watch,
                     struct error *err);

/* Refuses options that a task has no use for: -EDOM. */
int client_task_check(const struct eps_train_options *in, struct error *err);

/* Rows to train on and held-out rows, before the seed is known. */
uint32_t client_task_n_train(const struct client_task *task);

/* Tokens of the longest row, and the least --seq that all rows have room in. */
uint32_t client_task_longest(const struct client_task *task);
uint32_t client_task_least(const struct client_task *task);

/* Divides the rows, for resolved options, and says so in run->options.task_note. -EINVAL, -ENOMEM. */
int client_task_cut(struct client_run *run, struct error *err);

/* Evaluates the held-out rows and sets task->scores. Errors as client_job_evaluate_rows. */
int client_task_evaluate(double *loss, uint64_t *n_rows, struct client_task *task, struct client_job *job,
                         unsigned buffer, struct error *err);

/* The metrics of logits (subset->n, n_labels), if every row has a label. targets (subset->n) is work. -ENOMEM. */
int client_task_score(struct client_scores *out, const struct client_subset *subset, const struct client_labels *labels,
                      const float *logits, uint32_t *targets, struct error *err);

#endif
