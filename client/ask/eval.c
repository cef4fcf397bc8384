/* eps_eval: a model's loss over files, by a job with weights but no moments. All rows are held-out ones of a run that
 * trains on none. */
#include "client/model/job.h"
#include "client/model/source.h"
#include "client/daemon/observer.h"
#include "client/data/data.h"
#include "client/eps.h"
#include "client/ask/eval_bleu.h"
#include "client/ask/predict.h"
#include "client/ask/forward.h"
#include "client/member.h"
#include "client/options/options.h"
#include "client/order/batches.h"
#include "proto/model/family.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

enum { BATCH = 32, DEFAULT_SEQ = 1024 }; /* rows that are classified, as in training; tokens of a window */

struct eval {
    struct eps_eval_options options; /* with seq and batch resolved */
    const struct eps_eval_events *events;
    void *user;
    struct client_forward forward;
    struct client_data data;
    struct client_source *source; /* of held-out rows alone: all of data */
    struct client_source_facts facts;
    struct client_job job;
};

/* Opens the files, and finds what their rows are. The options are checked twice: against all kinds that the model
 * allows before any file is opened, and against the one that the files turn out to be. */
static int eval_find_kind(const struct client_source_ops **kind, struct eval *e, struct error *err)
{
    struct eps_eval_options *o = &e->options;
    const struct model_config *config = &e->forward.model.config;
    int rc;

    *kind = client_source_kind(config, o->mask_fraction);
    rc = client_eval_check(o, client_source_tasks(*kind), e->events, err);
    if (!rc)
        rc = client_source_prefixed((*kind)->open_files(&e->data, o->data, o->n_data, err), "--data", err);
    if (!rc)
        rc = client_predict_check(&e->data, o->predictions, err);
    if (!rc)
        rc = client_source_prefixed(client_source_find_kind(kind, config, o->mask_fraction, &e->data, NULL,
                                                            &e->forward.link.watches[1], err),
                                    "--data", err);
    if (!rc && o->pack)
        *kind = client_source_pack(*kind);
    if (!rc && (*kind)->compares)
        rc = error_set(err, -EDOM,
                       "--data has preferences, which a run compares with the model that it began from: evaluate them "
                       "there, with --eval-data and --eval-every");
    if (!rc && *kind == &client_source_text && o->mask_fraction == 0)
        o->mask_fraction = NAN;
    return rc ? rc : client_eval_check(o, (*kind)->facts.task, e->events, err);
}

static int eval_open_source(struct eval *e, const struct client_source_ops *kind, struct error *err)
{
    const struct client_model *model = &e->forward.model;
    const int rc = client_model_source(&e->source, kind, model, NULL, &e->data, err);

    if (rc) {
        error_prefix(err, model->name);
        return rc;
    }
    return kind->masks ? client_options_mask(&e->options.mask_fraction, err) : 0;
}

static int eval_read_rows(struct eval *e, struct error *err)
{
    const struct eps_eval_options *o = &e->options;
    struct client_source_rules rules = {.separator = o->separator,
                                        .columns = o->columns,
                                        .image = o->image,
                                        .unlabelled = e->events->on_prediction != NULL,
                                        .chat_template = o->chat_template,
                                        .train_on = o->train_on,
                                        .split_special_tokens = o->split_special_tokens,
                                        .long_rows = o->long_rows,
                                        .seq = o->seq,
                                        .source_seq = o->source_seq,
                                        .mask_fraction = o->mask_fraction,
                                        .watch = &e->forward.link.watches[1]};

    if (e->source->ops->has_line)
        client_forward_follow_training(&e->forward, &rules.chat_template, &rules.split_special_tokens);
    int rc = client_source_prefixed(client_source_read_part(e->source, CLIENT_HELD_OUT, &rules, err), "--data", err);
    if (!rc)
        rc = client_source_settle(e->source, &rules, err);
    if (!rc)
        e->facts = client_source_measure(e->source);
    return rc;
}

/* Of a stream of text: as in the model's training, as a loss depends on how much of the text each token is predicted
 * from. */
static uint32_t eval_choose_seq(const struct eval *e)
{
    const uint32_t n_positions = e->forward.model.config.n_positions,
                   usual = n_positions < DEFAULT_SEQ ? n_positions : DEFAULT_SEQ;
    const json_int_t trained = json_integer_value(json_object_get(e->forward.model.trained, "seq"));
    struct error sentence;

    if (e->facts.seq > 0)
        return e->facts.seq;
    if (e->facts.whole)
        return client_batches_length(e->facts.longest, n_positions);
    if (trained <= 0 || trained > n_positions || (uint32_t)trained == usual)
        return usual;
    error_set(&sentence, 0, "sequences have %d tokens, as in the training of this model (--seq)", (int)trained);
    client_tell(e->events->on_note, e->user, sentence.text);
    return (uint32_t)trained;
}

static int check_seq(const struct eval *e, struct error *err)
{
    const struct eps_eval_options *o = &e->options;
    const int rc = client_options_check_seq(o->seq, e->forward.model.config.n_positions, err);

    if (!rc && o->seq < e->facts.least)
        return error_set(err, -EDOM,
                         "--seq %u: the special tokens of a row leave no room for its text: choose %u or more", o->seq,
                         e->facts.least);
    if (!rc && o->stride > o->seq)
        return error_set(err, -EDOM, "--stride %u is more than --seq %u: tokens between sequences would be left out",
                         o->stride, o->seq);
    return rc;
}

/* Chooses seq and batch, as a training run does. Of tokens it is the largest minibatch that runs in one pass. */
static int eval_resolve(struct eval *e, struct error *err)
{
    struct eps_eval_options *o = &e->options;

    if (o->seq == 0)
        o->seq = eval_choose_seq(e);
    if (o->stride == 0)
        o->stride = o->seq;
    if (check_seq(e, err))
        return -EDOM;
    const struct client_division division = {.seq = o->seq,
                                             .stride = o->stride,
                                             .seed = o->seed,
                                             .eval_tokens = o->eval_tokens,
                                             .mask_fraction = o->mask_fraction};
    int rc = client_source_divide(e->source, &division, err);
    if (rc)
        return rc;
    const uint64_t n = client_source_n_rows(e->source, CLIENT_HELD_OUT);
    if (n == 0 && e->data.n == 0)
        return client_options_refuse_empty("--data ", o->data, o->n_data, err);
    if (n == 0)
        return error_set(err, -EINVAL,
                         "--data %s%s: %" PRIu64
                         " tokens are too few for a window of --seq %u%s: give more data or a lower --seq",
                         o->data[0], o->n_data > 1 ? " and more" : "", e->data.n, o->seq,
                         e->facts.masked ? "" : " and the token after it");
    if (o->batch == 0)
        o->batch = !e->facts.task ? client_options_batch(o->seq, 1, n) : n < BATCH ? (uint32_t)n : BATCH;
    o->task = e->facts.task;
    rc = client_options_check_batch(o->batch, o->seq, err);
    return rc ? rc : client_source_make_room(e->source, o->batch, err);
}

static int eval_evaluate(struct eval *e, double *loss, uint64_t *tokens, struct error *err)
{
    /* The optimizer is never used, but its numbers must be valid. */
    struct message request = {.kind = MESSAGE_JOB,
                              .job = {.goal = {.purpose = PLAN_EVALUATE,
                                               .precision = e->forward.model.precision,
                                               .batch = e->options.batch,
                                               .seq = e->options.seq,
                                               .source = e->facts.source,
                                               .n_parts = 1},
                                      .beta1 = 0.9,
                                      .beta2 = 0.999,
                                      .epsilon = 1e-8}};
    int rc;

    client_source_ask(&request.job.goal, e->source->ops->fields);
    rc = client_forward_open_job(&e->forward, &e->job, &request, err);

    e->job.on_evaluating = e->events->on_evaluating;
    e->job.user = e->user;
    if (!rc)
        rc = client_job_evaluate(loss, tokens, &e->job, e->source, 0, err);
    return rc ? rc : client_job_close(&e->job, err);
}

/* What is told of rows that have labels. */
static int tell_rows(const struct eval *e, struct error *err)
{
    const struct client_source *source = e->source;
    int rc = 0;

    if (source->scores.n > 0 && e->events->on_scored)
        e->events->on_scored(e->user, source->scores.list, source->scores.n);
    if (source->ops->tell_classes && e->events->on_class)
        rc = source->ops->tell_classes(source, e->events->on_class, e->user, err);
    return rc || !e->events->on_prediction ? rc : client_predict(source, e->events, e->user, err);
}

static int eval_rows(struct eval *e, double *loss, uint64_t *n_valid, struct error *err)
{
    const struct client_source_ops *kind;
    int rc = eval_find_kind(&kind, e, err);

    if (!rc)
        rc = eval_open_source(e, kind, err);
    if (!rc)
        rc = eval_read_rows(e, err);
    if (!rc)
        rc = eval_resolve(e, err);
    if (!rc && e->events->on_start)
        e->events->on_start(e->user, &e->options);
    if (!rc && e->events->on_note)
        client_unread_tell(&e->data, "--data", e->events->on_note, e->user);
    if (!rc)
        rc = client_forward_start(&e->forward, err);
    if (!rc)
        rc = eval_evaluate(e, loss, n_valid, err);
    return rc ? rc : tell_rows(e, err);
}

struct eps_eval_options eps_eval_defaults(void)
{
    return (struct eps_eval_options){.wait = NAN, .mask_fraction = NAN, .length_penalty = NAN};
}

int eps_eval(double *loss, uint64_t *tokens, const struct eps_eval_options *options,
             const struct eps_eval_events *events, void *user, struct eps_error *error)
{
    static const struct eps_eval_events silent;
    const struct client_forward_options forward = {.model = options->model,
                                                   .base_model = options->base_model,
                                                   .connect = options->connect,
                                                   .wait = options->wait,
                                                   .programs = options->programs,
                                                   .device = options->device,
                                                   .device_mem = options->device_mem,
                                                   .should_stop = events ? events->should_stop : NULL,
                                                   .on_note = events ? events->on_note : NULL,
                                                   .user = user};
    struct eval *e;
    struct error err = {""};

    if (options->n_data == 0)
        return client_report(error,
                             &(struct error){
                                 "--data is needed: files of text, .jsonl, .bin or .npy, or - for standard input"},
                             -EDOM);
    e = calloc(1, sizeof *e);
    if (!e)
        return client_report_memory(error);
    e->options = *options;
    e->events = events ? events : &silent;
    e->user = user;
    int rc = client_forward_open(&e->forward, &forward, &err);
    if (!rc && !options->bleu && (options->n_beams || options->n_tokens || isnormal(options->length_penalty)))
        rc = error_set(&err, -EDOM, "--beams, --tokens and --length-penalty are for --bleu: add it, or leave them out");
    if (!rc && options->bleu)
        rc = client_eval_bleu(loss, tokens, &e->forward, &e->options, e->events, user, &err);
    else if (!rc)
        rc = eval_rows(e, loss, tokens, &err);
    client_job_free(&e->job);
    client_forward_close(&e->forward);
    client_source_close(e->source);
    client_data_free(&e->data);
    free(e);
    return client_report(error, &err, rc);
}
