/* A sample is eps_generate by the run on itself, over its own daemon's address, with no step open: so its weights are
 * those of a step's end. That call has a loop of its own, in which should_stop is the one place where this run's
 * session is served. A sample is an extra: its failure is a note, told once, and never ends the run. */
#include "client/run/steps/samples.h"

#include "client/run/steps/steps_state.h"
#include "client/text/utf8.h"
#include "proto/model/file/model_files.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A model of bytes needs none. */
static bool has_tokenizer(const struct client_model *model)
{
    size_t n;

    return model->config.vocabulary == 256 || model_files_find(model->side, "tokenizer.json", &n) ||
           model_files_find(model->side, "vocab.json", &n);
}

int client_samples_check(const struct client_run *run, struct error *err)
{
    const struct eps_train_options *o = &run->options;

    if (o->sample_every == 0 && o->n_sample_prompts == 0)
        return 0;
    if (o->n_sample_prompts == 0)
        return error_set(err, -EDOM, "--sample-every needs a text to continue: give --sample-prompt TEXT");
    if (o->sample_every == 0)
        return error_set(err, -EDOM, "--sample-prompt is for samples while training: give --sample-every N");
    for (size_t i = 0; i < o->n_sample_prompts; i++) {
        const size_t n = strlen(o->sample_prompts[i]);
        if (client_utf8_whole((const uint8_t *)o->sample_prompts[i], n) < n)
            return error_set(err, -EDOM, "--sample-prompt: text %zu is not UTF-8", i + 1);
    }
    const int rc = plan_check_generates(&run->model.config, err);
    if (rc)
        error_prefix(err, "--sample-every");
    if (rc || has_tokenizer(&run->model))
        return rc;
    return error_set(
        err, -EINVAL,
        "--sample-prompt: the model has no tokenizer (tokenizer.json, or vocab.json and merges.txt): leave "
        "samples out, or add one");
}

bool client_samples_are_due(const struct eps_train_options *options, uint64_t step)
{
    return options->sample_every > 0 && step > 0 && step % options->sample_every == 0;
}

struct writing {
    struct client_steps *steps;
    struct client_text text; /* of the current prompt */
    size_t prompt;
    bool stopped;
    int rc; /* of collecting the text */
    struct error err;
};

static void samples_on_begin(void *user, size_t prompt, uint32_t sample)
{
    struct writing *writing = user;

    (void)sample; /* there is one of each prompt */
    writing->prompt = prompt;
    writing->text.n = 0;
}

static void samples_on_token(void *user, uint32_t id, const char *text, size_t n)
{
    struct writing *writing = user;

    (void)id;
    if (text && !writing->rc)
        writing->rc = client_text_add(&writing->text, text, n, &writing->err);
}

static void samples_on_end(void *user, const struct eps_generated *generated)
{
    struct writing *writing = user;
    struct client_steps *s = writing->steps;
    const char *prompt = s->run->options.sample_prompts[writing->prompt];
    const struct client_text *text = &writing->text;

    (void)generated;
    if (writing->stopped || writing->rc)
        return;
    client_steps_write_sample(s, writing->prompt, text->n ? text->bytes : "", text->n);
    if (s->events->on_sample)
        s->events->on_sample(s->user, s->done, prompt, text->n ? text->bytes : "", text->n);
}

/* Asked several times a second. Meanwhile the run's own session must answer its daemon. */
static int samples_should_stop(void *user)
{
    struct writing *writing = user;
    struct client_steps *s = writing->steps;

    client_link_serve(s->link);
    if (!s->link->session || (s->events->should_stop && s->events->should_stop(s->user)))
        writing->stopped = true;
    return writing->stopped || writing->rc;
}

static void note_failure(struct client_steps *s, const char *why)
{
    struct error sentence;

    if (strcmp(why, s->sample_error.text) == 0)
        return;
    error_set(&s->sample_error, 0, "%s", why);
    error_set(&sentence, 0, "no sample after step %" PRIu64 ": %.600s; training goes on", s->done, why);
    client_steps_note(s, sentence.text);
}

static struct eps_prompt *samples_make_prompts(const struct eps_train_options *o)
{
    struct eps_prompt *prompts = calloc(o->n_sample_prompts, sizeof *prompts);

    for (size_t i = 0; prompts && i < o->n_sample_prompts; i++)
        prompts[i] = (struct eps_prompt){.text = o->sample_prompts[i], .n_bytes = strlen(o->sample_prompts[i])};
    return prompts;
}

void client_samples_write(struct client_steps *s)
{
    static const struct eps_generate_events events = {.on_begin = samples_on_begin,
                                                      .on_token = samples_on_token,
                                                      .on_end = samples_on_end,
                                                      .should_stop = samples_should_stop};
    const struct eps_train_options *o = &s->run->options;
    struct writing writing = {.steps = s};
    struct eps_generated generated;
    struct eps_error error = {""};

    if (!client_samples_are_due(o, s->done) || s->stop || s->done != s->opened)
        return;
    struct eps_generate_options options = eps_generate_defaults();
    struct eps_prompt *prompts = samples_make_prompts(o);
    options.connect = s->address;
    options.base_model = o->base_model;
    options.wait = 0;
    options.programs = o->programs;
    options.device = s->run->asked.device;
    options.device_mem = s->run->asked.device_mem;
    options.prompts = prompts;
    options.n_prompts = o->n_sample_prompts;
    options.n_tokens = CLIENT_SAMPLE_TOKENS;
    options.sampling = (struct eps_sampling){.repetition_penalty = 1,
                                             .temperature = 1, /* whatever the model's files say: what it has learned */
                                             .top_k = 0,
                                             .top_p = 1,
                                             .min_p = 0,
                                             .seed = o->seed + s->done};
    const int rc = prompts ? eps_generate(&generated, &options, &events, &writing, &error) : -ENOMEM;
    if (rc && !writing.stopped)
        note_failure(s, writing.rc ? writing.err.text : prompts ? error.text : "out of memory");
    if (!rc)
        s->sample_error.text[0] = 0;
    free(writing.text.bytes);
    free(prompts);
}
