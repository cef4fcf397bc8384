#include "client/run/task.h"

#include "client/model/classifier.h"
#include "client/run/run.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void client_task_init(struct client_task *task)
{
    *task = (struct client_task){.data.fd = -1, .eval_data.fd = -1};
}

void client_task_free(struct client_task *task)
{
    client_batches_free(&task->batches);
    client_subset_free(&task->train);
    client_subset_free(&task->held_out);
    client_rows_free(&task->data);
    client_rows_free(&task->eval_data);
    client_labels_free(&task->labels);
    free(task->logits);
    free(task->targets);
    client_task_init(task);
}

int client_task_check(const struct eps_train_options *in, struct error *err)
{
    const bool limited = in->eval_tokens != UINT64_MAX && in->eval_tokens != 0;
    const char *name = in->separator == EPS_SEPARATOR_EOS ? "--separator eos"
                       : !isnan(in->mask_fraction)        ? "--mask-fraction"
                       : limited                          ? "--eval-tokens"
                                                          : NULL;

    if (!name)
        return 0;
    return error_set(err, -EDOM, "%s is for models that predict tokens: leave it out, as rows are classified whole",
                     name);
}

static int read_rows(struct client_rows *out, struct client_data *data, struct client_labels *labels,
                     const struct client_rows_rules *rules, const char *option, struct error *err)
{
    const int rc = client_rows_read(out, data, labels, rules, err);

    data->n = out->n_tokens;
    data->hash = out->hash;
    if (rc && rc != -EINTR && rc != -EDOM)
        error_prefix(err, option);
    return rc;
}

static int check_labels(const struct client_task *task, struct error *err)
{
    if (task->labels.numbers || task->labels.n >= 2)
        return 0;
    return error_set(err, -EINVAL, "--data: every row has the label '%s': a classifier needs two classes",
                     task->labels.n ? task->labels.names[0] : "");
}

static int read_all(struct client_run *run, const struct client_rows_rules *rules, struct error *err)
{
    struct client_task *task = &run->task;
    int rc = read_rows(&task->data, &run->data, &task->labels, rules, "--data", err);

    if (!rc)
        rc = check_labels(task, err);
    if (!rc && run->eval_data.n_files > 0)
        rc = read_rows(&task->eval_data, &run->eval_data, &task->labels, rules, "--eval-data", err);
    return rc;
}

int client_task_open(struct client_run *run, const struct eps_train_options *in, const struct client_watch *watch,
                     struct error *err)
{
    struct client_rows_rules rules = {.columns = in->columns, .watch = watch};
    int rc = client_task_check(in, err);

    run->task.kind = client_classifier_task(&run->model);
    if (!rc)
        rc = client_tokenizer_open(&rules.tokenizer, run->model.side, run->model.config.vocabulary, err);
    if (!rc && !rules.tokenizer)
        rc = client_tokenizer_refuse_unread(run->model.side, err);
    if (!rc && !rules.tokenizer)
        rc = error_set(err, -EINVAL, "it has no tokenizer.json, which text needs");
    if (rc && rc != -EDOM)
        error_prefix(err, in->model);
    if (!rc)
        rc = client_classifier_labels(&run->task.labels, &run->model, err);
    if (!rc)
        rc = read_all(run, &rules, err);
    client_tokenizer_close(rules.tokenizer);
    if (rc)
        return rc;
    rc = client_classifier_label(&run->model, &run->task.labels, err);
    if (rc == -E2BIG)
        error_prefix(err, "--data");
    return rc;
}

uint32_t client_task_n_train(const struct client_task *task)
{
    const size_t n = task->data.n;

    return (uint32_t)(task->eval_data.n > 0 ? n : n - client_subset_n_held_out(n));
}

static uint32_t most(const struct client_task *task, uint32_t (*of)(const struct client_rows *rows))
{
    const uint32_t data = of(&task->data), eval_data = of(&task->eval_data);
    return data > eval_data ? data : eval_data;
}

uint32_t client_task_longest(const struct client_task *task)
{
    return most(task, client_rows_longest);
}

uint32_t client_task_least(const struct client_task *task)
{
    return most(task, client_rows_least);
}

static void say(char *out, size_t cap, const struct client_run *run)
{
    const struct client_task *task = &run->task;
    const size_t n_cut = client_rows_n_cut(&task->data, run->options.seq);
    char labels[100] = "";

    if (!task->labels.numbers)
        client_labels_say(labels, sizeof labels, &task->labels);
    const int used =
        snprintf(out, cap, "%s%s%u rows, %u held out", labels, *labels ? "; " : "", task->train.n, task->held_out.n);
    if (n_cut > 0)
        snprintf(out + used, cap - (size_t)used, "; %zu rows of more than --seq %u tokens are cut", n_cut,
                 run->options.seq);
}

int client_task_cut(struct client_run *run, struct error *err)
{
    struct client_task *task = &run->task;
    const struct eps_train_options *o = &run->options;
    int rc = 0;

    if (task->eval_data.n == 0) {
        rc = client_subset_divide(&task->train, &task->held_out, &task->data, o->seed, err);
    } else {
        rc = client_subset_all(&task->train, &task->data, err);
        if (!rc)
            rc = client_subset_all(&task->held_out, &task->eval_data, err);
    }
    if (!rc)
        rc = client_subset_by_length(&task->held_out, err);
    if (!rc)
        rc = client_batches_init(&task->batches, &task->train, o->batch, o->seq, o->order, o->seed, err);
    if (rc)
        return rc;
    task->logits = calloc((size_t)task->held_out.n * run->model.config.n_labels + 1, sizeof *task->logits);
    task->targets = calloc(task->held_out.n + (size_t)1, sizeof *task->targets);
    if (!task->logits || !task->targets)
        return error_set(err, -ENOMEM, "out of memory");
    say(run->options.task_note, sizeof run->options.task_note, run);
    return 0;
}

int client_task_score(struct client_scores *out, const struct client_subset *subset, const struct client_labels *labels,
                      const float *logits, uint32_t *targets, struct error *err)
{
    for (uint32_t i = 0; i < subset->n; i++)
        targets[i] = subset->rows->list[subset->list[i]].label;
    return labels->numbers ? client_score_numbers(out, logits, targets, subset->n, err)
                           : client_score_classes(out, logits, targets, subset->n, labels->n, err);
}

int client_task_evaluate(double *loss, uint64_t *n_rows, struct client_task *task, struct client_job *job,
                         unsigned buffer, struct error *err)
{
    const int rc = client_job_evaluate_rows(loss, n_rows, task->logits, job, &task->held_out, buffer, err);

    return rc ? rc : client_task_score(&task->scores, &task->held_out, &task->labels, task->logits, task->targets, err);
}
