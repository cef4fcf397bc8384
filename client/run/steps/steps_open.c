/* Two buffers: once step n has opened, n + 1 is read into the buffer of step n - 1. Nobody reads that any more, as a
 * step opens only when the data of the one before it have arrived at the workers. With on_rows nothing is read ahead,
 * since the answer may depend on the step before. */
#include "client/options/options.h"
#include "client/run/steps/samples.h"
#include "client/run/steps/steps_state.h"
#include "proto/model/drop.h"

#include <errno.h>
#include <inttypes.h>
#include <uv.h>

bool client_steps_evaluates_after(const struct client_steps *s, uint64_t step)
{
    const struct eps_train_options *o = &s->run->options;
    return step == s->end || (o->eval_every > 0 && step % o->eval_every == 0);
}

/* Writes the data of step `opened` into the buffer that no open step reads; the two alternate. Returns what
 * client_given_ask does. */
static int prepare_data(struct client_steps *s, struct error *err)
{
    const uint64_t since = trace_begin(s->trace), first = client_run_rows(s->run, s->opened);
    const unsigned i = s->opened % 2;
    const struct client_buffer buffer = client_job_buffer(s->job, i);
    int rc = client_source_fill(&s->prepared[i], &buffer, s->run->source, s->opened, first, err);

    s->given.lr = client_options_lr(&s->run->options, s->opened);
    if (!rc && s->run->options.on_rows)
        rc = client_given_ask(&s->prepared[i], &s->given, &buffer, s->run, s->opened, err);
    if (s->trace)
        trace_end(s->trace, since, "prepare data", NULL, (struct trace_arg[]){{"step", s->opened + 1}, {NULL, 0}});
    return rc;
}

double client_steps_lr(const struct client_steps *s, uint64_t step)
{
    return s->run->options.on_rows ? s->given.lr : client_options_lr(&s->run->options, step);
}

/* Rows that the caller gives are asked for when the step before is done: they may depend on it. Others are read while
 * it runs. */
static bool prepares_ahead(const struct client_steps *s)
{
    return !s->run->options.on_rows && s->opened < client_steps_last(s);
}

bool client_steps_weights_are_due(const struct client_steps *s)
{
    const struct eps_train_options *o = &s->run->options;

    return o->on_weights && o->weights_every > 0 && s->opened % o->weights_every == 0 && s->shown != s->opened;
}

int client_steps_show_weights(struct client_steps *s, struct error *err)
{
    s->shown = s->done;
    return client_weights_show(&s->weights, s->run, s->job, s->done, err);
}

/* True if an evaluation or a sample comes between this step and the next. */
static bool pauses_after(const struct client_steps *s, uint64_t step)
{
    return client_steps_evaluates_after(s, step) || client_samples_are_due(&s->run->options, step);
}

bool client_steps_may_open(const struct client_steps *s)
{
    return !s->stop && s->opened < client_steps_last(s) && s->arrived == s->opened && !client_steps_save_is_due(s) &&
           !client_steps_save_will_be_due(s) && !client_steps_weights_are_due(s) &&
           (s->run->options.on_rows ? s->done == s->opened && !s->saving
                                    : s->done == s->opened || !pauses_after(s, s->opened));
}

static int steps_open_next(struct client_steps *s, struct error *err)
{
    const struct eps_train_options *o = &s->run->options;
    const struct client_minibatch *minibatch = &s->prepared[s->opened % 2];
    struct message m = {
        .kind = MESSAGE_OPEN_STEP,
        .open_step = {.step = s->opened,
                      .buffer = s->opened % 2,
                      .n_valid = minibatch->n_valid,
                      .n_tokens = minibatch->n_tokens,
                      .n_real = client_run_tokens(s->run, s->opened + 1) - client_run_tokens(s->run, s->opened),
                      .lr = client_steps_lr(s, s->opened)},
    };

    model_drop_draw(&m.open_step.drop, s->run->model.config.n_layers, client_options_drop(o), o->seed, s->opened);
    if (s->blocks.n > 0 && !s->blocks.trains_others)
        model_drop_keep_one(&m.open_step.drop, &s->blocks.trained, s->blocks.n, o->seed, s->opened);
    if (minibatch->n_valid == 0)
        return error_set(err, -EINVAL,
                         "step %" PRIu64 ": all tokens of its %u rows are special, so none can be masked: leave such "
                         "rows out of the data, or give a larger --batch",
                         s->opened + 1, o->batch);
    const int rc = o->on_blocks ? client_blocks_ask(&m, &s->blocks, o, err) : 0;
    if (rc)
        return rc;
    if (s->done == s->opened)
        s->since_ns = uv_hrtime();
    client_link_send(s->link, &m);
    s->begun = true;
    s->opened++;
    client_memory_ask(&s->memory, s->link, s->opened == client_steps_last(s));
    return prepares_ahead(s) ? prepare_data(s, err) : 0;
}

/* Those of the rows that were prepared last. */
static int score_given(struct client_steps *s, struct error *err)
{
    const struct client_scored_rows rows = {.buffer = s->opened % 2,
                                            .first_row = s->given.first,
                                            .n_rows = s->given.n,
                                            .n_tokens = s->prepared[s->opened % 2].n_tokens,
                                            .drops = s->given.drops,
                                            .base = s->given.base,
                                            .step = s->opened};

    return client_job_score(&s->given.log_p, s->job, &rows, err);
}

/* The same with rows that the caller gives. */
static int open_given(struct client_steps *s, struct error *err)
{
    const int rc = prepare_data(s, err);

    if (rc == EPS_ROWS_END)
        s->stop = 1;
    if (rc == EPS_ROWS_SAVE && s->done > s->run->first_step && !client_steps_has_saved(s, s->done))
        client_steps_ask_save(s);
    if (rc == EPS_ROWS_WEIGHTS)
        return client_steps_show_weights(s, err);
    return rc == EPS_ROWS_TRAIN   ? steps_open_next(s, err)
           : rc == EPS_ROWS_SCORE ? score_given(s, err)
           : rc < 0               ? rc
                                  : 0;
}

int client_steps_begin(struct client_steps *s, struct error *err)
{
    return prepares_ahead(s) ? prepare_data(s, err) : 0;
}

int client_steps_open(struct client_steps *s, struct error *err)
{
    return s->run->options.on_rows ? open_given(s, err) : steps_open_next(s, err);
}
