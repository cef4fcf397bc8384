/* Texts are heard in the data's order (client/ask/generate/batch.h), so the k-th reference is found by counting. Callbacks of a
 * generation return nothing: the first error is kept, should_stop ends the search, and the error takes the place of its
 * -EINTR. */
#include "client/ask/eval_bleu.h"

#include "client/ask/predict.h"
#include "client/ask/generate/generate.h"
#include "client/corpus/documents.h"
#include "client/text/bleu.h"
#include "proto/model/family.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_BEAMS = 4 };

struct eval_bleu {
    const struct eps_eval_options *options;
    const struct eps_eval_events *events;
    void *user;
    struct client_data data;
    struct client_corpus documents;
    struct client_text references; /* one behind the other */
    size_t *ends;                  /* (documents.n) where each ends; owned */
    size_t n_ends, cap;
    struct client_prompt *prompts; /* (documents.n) sources; owned */
    struct client_text hypothesis; /* of the text that is written */
    size_t n_written;
    uint64_t n_tokens;
    struct client_bleu bleu;
    int rc; /* why it ends early */
    struct error error;
};

static int eval_bleu_check(const struct client_forward *forward, const struct eps_eval_options *o,
                           const struct eps_eval_events *events, struct error *err)
{
    const struct model_config *config = &forward->model.config;

    if (!model_has_source(config))
        return error_set(err, -EDOM, "--bleu is for a model that writes the target of a source; a %s model does not",
                         config->family->model_type);
    return client_eval_check(o, EPS_OF_HYPOTHESES, events, err);
}

/* ---- data -------------------------------------------------------------------------------------------------------- */

static int eval_bleu_on_line(void *user, const struct client_documents_line *line, struct error *err)
{
    struct eval_bleu *e = user;

    if (e->n_ends == e->cap) {
        const size_t cap = e->cap ? 2 * e->cap : 1024;
        size_t *ends = realloc(e->ends, cap * sizeof *ends);
        if (!ends)
            return error_memory(err);
        e->ends = ends, e->cap = cap;
    }
    const int rc = client_text_add(&e->references, line->target, line->n_target, err);
    if (!rc)
        e->ends[e->n_ends++] = e->references.n;
    return rc;
}

static int read_documents(struct eval_bleu *e, const struct client_forward *forward, struct error *err)
{
    const struct client_model *model = &forward->model;
    struct client_documents_rules rules = {.side = model->side,
                                           .targets = true,
                                           .on_line = eval_bleu_on_line,
                                           .user = e,
                                           .watch = &forward->link.watches[1]};
    struct client_tokenizer *tokenizer = NULL;
    int rc = client_tokenizer_require(&tokenizer, model->side, model->config.family->model_type,
                                      model->config.vocabulary, "--bleu needs", err);

    if (rc)
        error_prefix(err, model->name);
    if (!rc)
        rc = client_data_open(&e->data, e->options->data, e->options->n_data, err);
    if (!rc)
        rc = client_predict_check(&e->data, e->options->predictions, err);
    rules.tokenizer = tokenizer;
    if (!rc)
        rc = client_documents_read(&e->documents, &e->data, &rules, err);
    if (!rc && e->events->on_note)
        client_unread_tell(&e->data, "--data", e->events->on_note, e->user);
    client_tokenizer_close(tokenizer);
    return rc;
}

static int eval_bleu_make_prompts(struct eval_bleu *e, struct error *err)
{
    const struct client_corpus *documents = &e->documents;
    int rc = 0;

    e->prompts = calloc(documents->n, sizeof *e->prompts);
    if (!e->prompts)
        return error_set(err, -ENOMEM, "out of memory for %zu sources", documents->n);
    for (size_t k = 0; !rc && k < documents->n; k++) {
        const uint32_t n = documents->list[k].n[0];
        e->prompts[k].ids = malloc(n * sizeof *e->prompts[k].ids);
        if (!e->prompts[k].ids)
            return error_set(err, -ENOMEM, "out of memory for %zu sources", documents->n);
        e->prompts[k].n = n;
        rc = client_corpus_tokens(documents, e->prompts[k].ids, k, n, err);
    }
    return rc;
}

/* ---- what is written --------------------------------------------------------------------------------------------- */

static void eval_bleu_on_token(void *user, uint32_t id, const char *text, size_t n)
{
    struct eval_bleu *e = user;

    (void)id;
    e->n_tokens++;
    if (!e->rc && n > 0)
        e->rc = client_text_add(&e->hypothesis, text, n, &e->error);
}

static void eval_bleu_on_end(void *user, const struct eps_generated *text)
{
    struct eval_bleu *e = user;
    const size_t k = e->n_written++, begin = k > 0 ? e->ends[k - 1] : 0;
    const char *const hypothesis = e->hypothesis.n > 0 ? e->hypothesis.bytes : "";

    (void)text;
    if (!e->rc)
        e->rc = client_bleu_add(&e->bleu, hypothesis, e->hypothesis.n, e->references.bytes + begin, e->ends[k] - begin,
                                &e->error);
    if (!e->rc && e->events->on_hypothesis)
        e->rc = e->events->on_hypothesis(e->user, k, hypothesis, e->hypothesis.n);
    if (e->rc && !*e->error.text)
        error_set(&e->error, e->rc, "the caller ended the evaluation");
    if (e->events->on_evaluating)
        e->events->on_evaluating(e->user, e->n_written, e->documents.n);
    e->hypothesis.n = 0;
}

static int eval_bleu_should_stop(void *user)
{
    const struct eval_bleu *e = user;
    return e->rc || (e->events->should_stop && e->events->should_stop(e->user));
}

static int write_targets(struct eval_bleu *e, struct client_forward *forward, struct error *err)
{
    const struct eps_generate_events events = {.on_token = eval_bleu_on_token,
                                               .on_end = eval_bleu_on_end,
                                               .should_stop = eval_bleu_should_stop};
    struct eps_generate_options options = eps_generate_defaults();
    struct eps_generated out;

    options.n_beams = e->options->n_beams ? e->options->n_beams : DEFAULT_BEAMS;
    options.length_penalty = e->options->length_penalty;
    options.n_tokens = e->options->n_tokens;
    const int rc = client_generate(&out, forward, &options, e->prompts, e->documents.n, &events, e, err);
    if (!e->rc)
        return rc;
    *err = e->error;
    return e->rc;
}

static void eval_bleu_tell(const struct eval_bleu *e)
{
    struct client_bleu_score score;

    client_bleu_score(&score, &e->bleu);
    struct eps_bleu bleu = {.score = score.score,
                            .brevity_penalty = score.brevity_penalty,
                            .n_hypothesis_tokens = score.n_hypothesis_tokens,
                            .n_reference_tokens = score.n_reference_tokens,
                            .n_segments = e->n_written,
                            .signature = CLIENT_BLEU_SIGNATURE};
    memcpy(bleu.precisions, score.precisions, sizeof bleu.precisions);
    if (e->events->on_bleu)
        e->events->on_bleu(e->user, &bleu);
}

static void eval_bleu_free_all(struct eval_bleu *e)
{
    for (size_t k = 0; e->prompts && k < e->documents.n; k++)
        free(e->prompts[k].ids);
    free(e->prompts);
    client_corpus_free(&e->documents);
    client_data_free(&e->data);
    free(e->ends);
    free(e->references.bytes);
    free(e->hypothesis.bytes);
}

int client_eval_bleu(double *loss, uint64_t *n_tokens, struct client_forward *forward,
                     const struct eps_eval_options *options, const struct eps_eval_events *events, void *user,
                     struct error *err)
{
    struct eval_bleu e = {.options = options, .events = events, .user = user, .documents = {.fd = -1}};
    int rc = eval_bleu_check(forward, options, events, err);

    *loss = NAN;
    if (!rc)
        rc = read_documents(&e, forward, err);
    if (!rc)
        rc = eval_bleu_make_prompts(&e, err);
    if (!rc && events->on_start)
        events->on_start(user, options);
    if (!rc)
        rc = write_targets(&e, forward, err);
    if (!rc)
        eval_bleu_tell(&e);
    *n_tokens = e.n_tokens;
    eval_bleu_free_all(&e);
    return rc;
}
