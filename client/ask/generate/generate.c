/* eps_generate: makes tokens of prompts, and continues them (client/ask/generate/batch.h). */
#include "client/ask/generate/generate.h"

#include "client/ask/generate/beams.h"
#include "client/ask/generate/sampling.h"
#include "client/daemon/observer.h"
#include "client/eps.h"
#include "client/corpus/documents.h"
#include "client/text/utf8.h"
#include "proto/model/family.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_TOKENS = 200 };

struct generate {
    struct eps_generate_options options; /* with n_prompts, n_samples and n_tokens resolved */
    const struct eps_generate_events *events;
    void *user;
    struct client_forward *forward; /* borrowed */
    struct client_writer writer;
    const struct client_prompt *prompts; /* (options.n_prompts), borrowed */
};

static const struct eps_prompt nothing;

/* A search keeps the likeliest text: nothing is drawn, and it ends where the model ends it. */
static int check_beams(const struct eps_generate_options *o, struct error *err)
{
    const struct eps_sampling *s = &o->sampling;
    const char *name = o->n_samples > 1                ? "--samples"
                       : !isnan(s->temperature)        ? "--temperature"
                       : s->top_k != UINT32_MAX        ? "--top-k"
                       : !isnan(s->top_p)              ? "--top-p"
                       : !isnan(s->min_p)              ? "--min-p"
                       : !isnan(s->repetition_penalty) ? "--repetition-penalty"
                       : s->seed > 0                   ? "--seed"
                       : o->n_stops > 0                ? "--stop"
                                                       : NULL;

    if (name)
        return error_set(err, -EDOM, "%s is not for --beams, which find the likeliest text: leave one of them out",
                         name);
    if (o->n_beams > PLAN_GENERATE_ROWS)
        return error_set(err, -EDOM, "--beams %" PRIu32 ": 1 to %d are possible", o->n_beams, PLAN_GENERATE_ROWS);
    if (!isnan(o->length_penalty) && !isfinite(o->length_penalty))
        return error_set(err, -EDOM, "--length-penalty must be a number");
    return 0;
}

/* Whose ids may be wrong, or which of several is meant. */
static int generate_check_options(const struct eps_generate_options *o, const struct client_sample_options *sample,
                                  struct error *err)
{
    for (size_t i = 0; i < o->n_prompts; i++) {
        if (o->prompts[i].n_bytes > 0 && o->prompts[i].n_ids > 0)
            return error_set(err, -EDOM, "give --prompt or --ids, not both");
    }
    const int rc = o->n_beams > 0 ? check_beams(o, err) : 0;
    if (rc)
        return rc;
    if (o->n_beams == 0 && isnormal(o->length_penalty))
        return error_set(err, -EDOM, "--length-penalty is for a search: give --beams, or leave it out");
    return client_sample_check(sample, err);
}

static bool generate_has_source(const struct generate *g)
{
    return model_has_source(&g->forward->model.config);
}

/* Ids are of the source's vocabulary if that is another one. */
static int generate_check_ids(const struct generate *g, const struct client_prompt *prompt, struct error *err)
{
    const struct model_config *c = &g->forward->model.config;
    const uint32_t vocabulary =
        generate_has_source(g) && c->source_vocabulary > 0 ? c->source_vocabulary : c->vocabulary;

    for (size_t i = 0; i < prompt->n; i++) {
        if (prompt->ids[i] >= vocabulary)
            return error_set(err, -EDOM, "--ids: %" PRIu32 " is not a token: the model's vocabulary ends at %" PRIu32,
                             prompt->ids[i], vocabulary - 1);
    }
    return 0;
}

/* The prompt begins with what the tokenizer puts before each text, as in transformers. What it puts after a text would
 * end it, and belongs to a source alone. */
static int generate_encode(struct client_prompt *out, const struct generate *g, const char *text, size_t n,
                           struct error *err)
{
    struct client_tokens tokens = {0};
    size_t used;
    int rc;

    if (generate_has_source(g)) {
        rc = client_documents_encode(&tokens, g->writer.tokenizer, text, n, err);
    } else {
        rc = client_tokenizer_lead(&tokens, g->writer.tokenizer, err);
        rc = rc ? rc : client_tokenizer_encode(&tokens, &used, g->writer.tokenizer, text, n, true, err);
    }
    *out = (struct client_prompt){tokens.ids, tokens.n};
    if (!rc && tokens.n == 0)
        return error_set(err, -EINVAL, "the tokenizer makes no token of the prompt");
    return rc;
}

static int generate_encode_text(struct client_prompt *out, const struct generate *g, const struct eps_prompt *in,
                                struct error *err)
{
    const size_t at = client_utf8_whole((const uint8_t *)in->text, in->n_bytes);

    if (at < in->n_bytes)
        return error_set(err, -EINVAL, "the prompt is not UTF-8 text: byte %zu is 0x%02X", at,
                         (unsigned char)in->text[at]);
    const int rc = g->writer.tokenizer ? 0 : client_tokenizer_refuse_unread(g->forward->model.side, err);
    if (rc)
        return rc;
    if (!g->writer.tokenizer)
        return error_set(err, -EINVAL,
                         "the model has no tokenizer (tokenizer.json, or vocab.json and merges.txt), and its "
                         "vocabulary of %" PRIu32 " is not 256, that of bytes: give --ids instead of a text",
                         g->forward->model.config.vocabulary);
    return generate_encode(out, g, in->text, in->n_bytes, err);
}

/* Without a prompt, begins as a text begins: after what the tokenizer puts before each text, else after an end token; a
 * byte model begins after a newline. */
static int begin_anywhere(struct client_prompt *out, const struct generate *g, struct error *err)
{
    const uint32_t end = g->writer.tokenizer ? client_tokenizer_end(g->writer.tokenizer) : CLIENT_NO_TOKEN;
    struct client_tokens tokens = {0};
    size_t n = 0;
    const uint32_t *begins = g->writer.tokenizer ? client_tokenizer_begins(g->writer.tokenizer, &n) : NULL;

    if (generate_has_source(g))
        return error_set(err, -EDOM, "--prompt or --ids is needed: a %s model writes the target of a source",
                         g->forward->model.config.family->model_type);
    if (!g->writer.tokenizer)
        return error_set(err, -EDOM, "--ids is needed because the model has no tokenizer");
    if (n == 0 && end == CLIENT_NO_TOKEN)
        return generate_encode(out, g, "\n", 1, err);
    int rc = n == 0 ? client_tokenizer_check(g->writer.tokenizer, end, err) : 0;
    if (!rc)
        rc = client_tokens_add(&tokens, n > 0 ? begins : &end, n > 0 ? n : 1, err);
    *out = (struct client_prompt){tokens.ids, tokens.n};
    return rc;
}

/* A copy, so that all prompts' ids are freed in one way. */
static int copy_ids(struct client_prompt *out, const struct generate *g, const struct eps_prompt *in, struct error *err)
{
    out->ids = malloc(in->n_ids * sizeof *out->ids);
    if (!out->ids)
        return error_set(err, -ENOMEM, "out of memory for %zu ids", in->n_ids);
    memcpy(out->ids, in->ids, in->n_ids * sizeof *out->ids);
    out->n = in->n_ids;
    return generate_check_ids(g, out, err);
}

/* *prompts: (options.n_prompts), owned by the caller, as are their ids. */
static int generate_make_prompts(struct client_prompt **prompts, struct generate *g, struct error *err)
{
    const struct eps_generate_options *o = &g->options;
    char which[40];
    int rc = 0;

    *prompts = calloc(o->n_prompts, sizeof **prompts);
    if (!*prompts)
        return error_set(err, -ENOMEM, "out of memory for %zu prompts", o->n_prompts);
    g->prompts = *prompts;
    for (size_t i = 0; i < o->n_prompts && !rc; i++) {
        const struct eps_prompt *in = &o->prompts[i];
        rc = in->n_bytes > 0 ? generate_encode_text(&(*prompts)[i], g, in, err)
             : in->n_ids > 0 ? copy_ids(&(*prompts)[i], g, in, err)
                             : begin_anywhere(&(*prompts)[i], g, err);
        if (rc && o->n_prompts > 1) {
            snprintf(which, sizeof which, "prompt %zu", i + 1);
            error_prefix(err, which);
        }
    }
    return rc;
}

/* The window of targets: the longest source, or all tokens of a target that are run. It cannot slide. */
static int find_window_of_targets(uint32_t *window, struct generate *g, size_t longest, struct error *err)
{
    const uint32_t n_positions = g->forward->model.config.n_positions;

    if (longest > n_positions || longest > PLAN_MAX_TOKENS)
        return error_set(err, -EFBIG, "a source has %zu tokens, and the model %" PRIu32 " positions: shorten it",
                         longest, n_positions);
    if (g->options.n_tokens > n_positions)
        g->options.n_tokens = n_positions;
    *window = g->options.n_tokens > longest ? g->options.n_tokens : (uint32_t)longest;
    return 0;
}

/* The window: prompt and new tokens of the longest text, limited to the model's positions. */
static int find_window(uint32_t *window, struct generate *g, struct error *err)
{
    const uint32_t n_positions = g->forward->model.config.n_positions;
    size_t longest = 0;

    for (size_t i = 0; i < g->options.n_prompts; i++)
        longest = g->prompts[i].n > longest ? g->prompts[i].n : longest;
    if (generate_has_source(g))
        return find_window_of_targets(window, g, longest, err);
    const uint64_t n_all = longest + (uint64_t)g->options.n_tokens;
    if (g->options.n_beams > 0 && n_all > n_positions)
        return error_set(err, -EDOM,
                         "--tokens %" PRIu32 " after a prompt of %zu exceed the model's %" PRIu32
                         " positions, and a text of --beams does not slide: give fewer --tokens",
                         g->options.n_tokens, longest, n_positions);
    if (longest > UINT32_MAX)
        return error_set(err, -EFBIG, "the prompt has %zu tokens: shorten it", longest);
    *window = n_all < n_positions ? (uint32_t)n_all : n_positions;
    return 0;
}

/* Rows of the job: one for each text, up to what a job takes. */
static uint32_t count_rows(const struct generate *g, uint32_t window)
{
    const uint64_t n_samples = g->options.n_beams > 0 ? g->options.n_beams : g->options.n_samples,
                   most = PLAN_MAX_TOKENS / window;
    const uint64_t rows = most < PLAN_GENERATE_ROWS ? most : PLAN_GENERATE_ROWS;

    if (g->options.n_prompts >= rows || n_samples >= rows)
        return (uint32_t)(rows > 0 ? rows : 1);
    return (uint32_t)(g->options.n_prompts * n_samples < rows ? g->options.n_prompts * n_samples : rows);
}

/* Weight bytes read for one token. Only one row of a table is read, unless it is also the head. */
static uint64_t bytes_per_token(const struct generate *g)
{
    struct model model;
    struct error err;
    uint64_t n = 0;

    if (model_init(&model, &g->forward->model.config, &err))
        return 0; /* no memory: not known */
    n = model.n_parameters;
    for (uint32_t i = model.config.tied ? 1 : 0; i < model.embedding.n_tables; i++)
        n -= model.tensors[model.embedding.tables[i].tensor].n;
    for (uint32_t visit = 0; generate_has_source(g) && visit < model.n_visits; visit++)
        n -= model_is_of_source(&model.layers[model.visit_layers[visit]]) ? model.units[model.visits[visit]].n : 0;
    model_free(&model);
    return n * number_bytes(g->forward->model.precision);
}

/* Writes the texts of prompts whose tokens are known; the writer is open. */
static int generate_write_texts(struct generate *g, struct eps_generated *out, struct error *err)
{
    uint32_t window = 0;
    int rc = find_window(&window, g, err);

    if (!rc)
        rc = client_writer_start(&g->writer, window, count_rows(g, window), err);
    if (rc)
        return rc;
    out->resident_bytes = g->writer.job.resident_bytes;
    out->weight_bytes = g->writer.job.n_parameters * number_bytes(g->forward->model.precision);
    out->token_bytes = bytes_per_token(g);
    const struct client_batch_options batch = {.writer = &g->writer,
                                               .prompts = g->prompts,
                                               .n_prompts = g->options.n_prompts,
                                               .n_samples = g->options.n_samples,
                                               .n_tokens = g->options.n_tokens,
                                               .window = window,
                                               .seed = g->options.sampling.seed,
                                               .events = g->events,
                                               .user = g->user};
    if (generate_has_source(g) && g->events->on_targets)
        g->events->on_targets(g->user);
    if (g->options.n_beams > 0)
        rc = client_beams_run(out, &batch, g->options.n_beams, g->options.length_penalty, err);
    else
        rc = client_batch_run(out, &batch, err);
    return rc ? rc : client_writer_finish(&g->writer, err);
}

/* What is unset gets its default. */
static void generate_resolve(struct generate *g, const struct eps_generate_options *options,
                             const struct eps_generate_events *events, void *user)
{
    static const struct eps_generate_events silent;

    g->options = *options;
    g->options.n_samples = options->n_samples ? options->n_samples : 1;
    g->options.n_tokens = options->n_tokens ? options->n_tokens : DEFAULT_TOKENS;
    g->options.length_penalty = isnan(options->length_penalty) ? 1 : options->length_penalty;
    g->events = events ? events : &silent;
    g->user = user;
}

int client_generate(struct eps_generated *out, struct client_forward *forward,
                    const struct eps_generate_options *options, const struct client_prompt *prompts, size_t n_prompts,
                    const struct eps_generate_events *events, void *user, struct error *err)
{
    const struct client_sample_options sample = client_sampling_of(&options->sampling);
    struct generate g = {.forward = forward, .prompts = prompts};

    *out = (struct eps_generated){.score = NAN};
    int rc = generate_check_options(options, &sample, err);
    generate_resolve(&g, options, events, user);
    g.options.n_prompts = n_prompts;
    if (!rc)
        rc = client_writer_open(&g.writer, forward, &sample, options->stops, options->n_stops, false, err);
    g.writer.plain = true;
    if (!rc)
        rc = generate_write_texts(&g, out, err);
    client_writer_close(&g.writer);
    return rc;
}

/* Opens the model, and makes prompts' tokens with its tokenizer. */
static int generate_generate(struct generate *g, struct eps_generated *out, const struct client_sample_options *sample,
                             struct error *err)
{
    struct client_prompt *prompts = NULL;
    bool has_ids = true;

    for (size_t i = 0; i < g->options.n_prompts; i++)
        has_ids = has_ids && g->options.prompts[i].n_ids > 0;
    int rc = client_writer_open(&g->writer, g->forward, sample, g->options.stops, g->options.n_stops, has_ids, err);
    if (!rc)
        rc = generate_make_prompts(&prompts, g, err);
    if (!rc)
        rc = generate_write_texts(g, out, err);
    client_writer_close(&g->writer);
    for (size_t i = 0; prompts && i < g->options.n_prompts; i++)
        free(prompts[i].ids);
    free(prompts);
    return rc;
}

struct eps_generate_options eps_generate_defaults(void)
{
    return (struct eps_generate_options){
        .wait = NAN,
        .length_penalty = NAN,
        .sampling = {.repetition_penalty = NAN, .temperature = NAN, .top_k = UINT32_MAX, .top_p = NAN, .min_p = NAN}};
}

/* How the model's files say that it is drawn from. A search draws nothing. */
static int follow_files(struct client_sample_options *sample, const struct generate *g, struct error *err)
{
    const bool searches = g->options.n_beams > 0;
    struct client_sample_options said;
    struct error note, beams;
    const int rc =
        client_sampling_resolve(&said, &note, &g->options.sampling, g->forward->model.side, searches ? &beams : err);

    if (!searches && rc)
        return rc;
    if (!searches)
        *sample = said;
    error_set(&beams, 0, "a search with --beams draws nothing: what generation_config.json says of drawing is ignored");
    if (searches && note.text[0] && said.temperature == 0) /* and neither does the file */
        return 0;
    if ((rc || note.text[0]) && g->events->on_note)
        g->events->on_note(g->user, searches ? beams.text : note.text);
    return 0;
}

int eps_generate(struct eps_generated *out, const struct eps_generate_options *options,
                 const struct eps_generate_events *events, void *user, struct eps_error *error)
{
    struct client_sample_options sample = client_sampling_of(&options->sampling);
    struct client_forward forward = {0};
    struct generate g = {.forward = &forward};
    struct error err = {""};

    *out = (struct eps_generated){.score = NAN};
    int rc = generate_check_options(options, &sample, &err);
    if (rc)
        return client_report(error, &err, rc);
    generate_resolve(&g, options, events, user);
    if (options->n_prompts == 0)
        g.options.prompts = &nothing, g.options.n_prompts = 1;
    const struct client_forward_options open = {.model = options->model,
                                                .base_model = options->base_model,
                                                .connect = options->connect,
                                                .wait = options->wait,
                                                .programs = options->programs,
                                                .device = options->device,
                                                .device_mem = options->device_mem,
                                                .should_stop = g.events->should_stop,
                                                .on_note = g.events->on_note,
                                                .user = user};
    rc = client_forward_open(&forward, &open, &err);
    if (!rc)
        rc = follow_files(&sample, &g, &err);
    if (!rc)
        rc = generate_generate(&g, out, &sample, &err);
    client_forward_close(&forward);
    return client_report(error, &err, rc);
}
