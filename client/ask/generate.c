/* eps_generate: makes tokens of prompts, and continues them (client/ask/batch.h). */
#include "client/ask/batch.h"
#include "client/daemon/observer.h"
#include "client/eps.h"
#include "client/text/utf8.h"

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
    struct client_forward forward;
    struct client_writer writer;
    struct client_prompt *prompts; /* (options.n_prompts), owned */
};

static const struct eps_prompt nothing;

/* Whose ids may be wrong, or which of several is meant. */
static int check_options(const struct eps_generate_options *o, const struct client_sample_options *sample,
                         struct error *err)
{
    for (size_t i = 0; i < o->n_prompts; i++) {
        if (o->prompts[i].n_bytes > 0 && o->prompts[i].n_ids > 0)
            return error_set(err, -EDOM, "give --prompt or --ids, not both");
    }
    return client_sample_check(sample, err);
}

static int check_ids(const struct generate *g, const struct client_prompt *prompt, struct error *err)
{
    const uint32_t vocabulary = g->forward.model.config.vocabulary;

    for (size_t i = 0; i < prompt->n; i++) {
        if (prompt->ids[i] >= vocabulary)
            return error_set(err, -EDOM, "--ids: %" PRIu32 " is not a token: the model's vocabulary ends at %" PRIu32,
                             prompt->ids[i], vocabulary - 1);
    }
    return 0;
}

/* The prompt begins with what the tokenizer puts before each text, as in transformers. What it puts after a text would
 * end it. */
static int encode(struct client_prompt *out, const struct generate *g, const char *text, size_t n, struct error *err)
{
    struct client_tokens tokens = {0};
    size_t used, n_begins;
    const uint32_t *begins = client_tokenizer_begins(g->writer.tokenizer, &n_begins);
    int rc = n_begins > 0 ? client_tokens_add(&tokens, begins, n_begins, err) : 0;

    if (!rc)
        rc = client_tokenizer_encode(&tokens, &used, g->writer.tokenizer, text, n, true, err);
    *out = (struct client_prompt){tokens.ids, tokens.n};
    if (!rc && tokens.n == 0)
        return error_set(err, -EINVAL, "the tokenizer makes no token of the prompt");
    return rc;
}

static int encode_text(struct client_prompt *out, const struct generate *g, const struct eps_prompt *in,
                       struct error *err)
{
    const size_t at = client_utf8_whole((const uint8_t *)in->text, in->n_bytes);

    if (at < in->n_bytes)
        return error_set(err, -EINVAL, "the prompt is not UTF-8 text: byte %zu is 0x%02X", at,
                         (unsigned char)in->text[at]);
    const int rc = g->writer.tokenizer ? 0 : client_tokenizer_refuse_unread(g->forward.model.side, err);
    if (rc)
        return rc;
    if (!g->writer.tokenizer)
        return error_set(err, -EINVAL,
                         "the model has no tokenizer (tokenizer.json, or vocab.json and merges.txt), and its "
                         "vocabulary of %" PRIu32 " is not 256, that of bytes: give --ids instead of a text",
                         g->forward.model.config.vocabulary);
    return encode(out, g, in->text, in->n_bytes, err);
}

/* Without a prompt, begins as a text begins: after what the tokenizer puts before each text, else after an end token; a
 * byte model begins after a newline. */
static int begin_anywhere(struct client_prompt *out, const struct generate *g, struct error *err)
{
    const uint32_t end = g->writer.tokenizer ? client_tokenizer_end(g->writer.tokenizer) : CLIENT_NO_TOKEN;
    struct client_tokens tokens = {0};
    size_t n = 0;
    const uint32_t *begins = g->writer.tokenizer ? client_tokenizer_begins(g->writer.tokenizer, &n) : NULL;

    if (!g->writer.tokenizer)
        return error_set(err, -EDOM, "--ids is needed because the model has no tokenizer");
    if (n == 0 && end == CLIENT_NO_TOKEN)
        return encode(out, g, "\n", 1, err);
    int rc = client_tokens_add(&tokens, n > 0 ? begins : &end, n > 0 ? n : 1, err);
    *out = (struct client_prompt){tokens.ids, tokens.n};
    return rc;
}

static int copy_ids(struct client_prompt *out, const struct generate *g, const struct eps_prompt *in, struct error *err)
{
    out->ids = malloc(in->n_ids * sizeof *out->ids);
    if (!out->ids)
        return error_set(err, -ENOMEM, "out of memory for %zu ids", in->n_ids);
    memcpy(out->ids, in->ids, in->n_ids * sizeof *out->ids);
    out->n = in->n_ids;
    return check_ids(g, out, err);
}

static int make_prompts(struct generate *g, struct error *err)
{
    const struct eps_generate_options *o = &g->options;
    char which[40];
    int rc = 0;

    g->prompts = calloc(o->n_prompts, sizeof *g->prompts);
    if (!g->prompts)
        return error_set(err, -ENOMEM, "out of memory for %zu prompts", o->n_prompts);
    for (size_t i = 0; i < o->n_prompts && !rc; i++) {
        const struct eps_prompt *in = &o->prompts[i];
        rc = in->n_bytes > 0 ? encode_text(&g->prompts[i], g, in, err)
             : in->n_ids > 0 ? copy_ids(&g->prompts[i], g, in, err)
                             : begin_anywhere(&g->prompts[i], g, err);
        if (rc && o->n_prompts > 1) {
            snprintf(which, sizeof which, "prompt %zu", i + 1);
            error_prefix(err, which);
        }
    }
    return rc;
}

/* The window: prompt and new tokens of the longest text, limited to the model's positions. */
static int find_window(uint32_t *window, const struct generate *g, struct error *err)
{
    const uint32_t n_positions = g->forward.model.config.n_positions;
    size_t longest = 0;

    for (size_t i = 0; i < g->options.n_prompts; i++)
        longest = g->prompts[i].n > longest ? g->prompts[i].n : longest;
    const uint64_t n_all = longest + (uint64_t)g->options.n_tokens;
    if (longest > UINT32_MAX)
        return error_set(err, -EFBIG, "the prompt has %zu tokens: shorten it", longest);
    *window = n_all < n_positions ? (uint32_t)n_all : n_positions;
    return 0;
}

/* Rows of the job: one for each text, up to what a job takes. */
static uint32_t count_rows(const struct generate *g, uint32_t window)
{
    const uint64_t n_samples = g->options.n_samples, most = PLAN_MAX_TOKENS / window;
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

    if (model_init(&model, &g->forward.model.config, &err))
        return 0; /* no memory: not known */
    n = model.n_parameters;
    for (uint32_t i = model.config.tied ? 1 : 0; i < model.embedding.n_tables; i++)
        n -= model.tensors[model.embedding.tables[i].tensor].n;
    model_free(&model);
    return n * number_bytes(g->forward.model.precision);
}

static int generate(struct generate *g, struct eps_generated *out, const struct client_sample_options *sample,
                    struct error *err)
{
    bool has_ids = true;
    uint32_t window = 0;

    for (size_t i = 0; i < g->options.n_prompts; i++)
        has_ids = has_ids && g->options.prompts[i].n_ids > 0;
    int rc = client_writer_open(&g->writer, &g->forward, sample, g->options.stops, g->options.n_stops, has_ids, err);

    if (!rc)
        rc = make_prompts(g, err);
    if (!rc)
        rc = find_window(&window, g, err);
    if (!rc)
        rc = client_writer_start(&g->writer, window, count_rows(g, window), err);
    if (rc)
        return rc;
    out->resident_bytes = g->writer.job.resident_bytes;
    out->weight_bytes = g->writer.job.n_parameters * number_bytes(g->forward.model.precision);
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
    rc = client_batch_run(out, &batch, err);
    return rc ? rc : client_writer_finish(&g->writer, err);
}

struct eps_generate_options eps_generate_defaults(void)
{
    return (struct eps_generate_options){
        .wait = NAN, .sampling = {.repetition_penalty = NAN, .temperature = NAN, .top_p = NAN, .min_p = NAN}};
}

static void close_all(struct generate *g)
{
    client_writer_close(&g->writer);
    client_forward_close(&g->forward);
    for (size_t i = 0; g->prompts && i < g->options.n_prompts; i++)
        free(g->prompts[i].ids);
    free(g->prompts);
    free(g);
}

int eps_generate(struct eps_generated *out, const struct eps_generate_options *options,
                 const struct eps_generate_events *events, void *user, struct eps_error *error)
{
    static const struct eps_generate_events silent;
    struct generate *g = calloc(1, sizeof *g);
    const struct client_sample_options sample = client_writer_sampling(&options->sampling);
    struct error err = {""};

    *out = (struct eps_generated){0};
    int rc = g ? check_options(options, &sample, &err) : error_set(&err, -ENOMEM, "out of memory");
    if (rc) {
        free(g);
        return client_report(error, &err, rc);
    }
    g->options = *options;
    if (options->n_prompts == 0)
        g->options.prompts = &nothing, g->options.n_prompts = 1;
    g->options.n_samples = options->n_samples ? options->n_samples : 1;
    g->options.n_tokens = options->n_tokens ? options->n_tokens : DEFAULT_TOKENS;
    g->events = events ? events : &silent;
    g->user = user;
    const struct client_forward_options forward = {.model = options->model,
                                                   .base_model = options->base_model,
                                                   .connect = options->connect,
                                                   .wait = options->wait,
                                                   .programs = options->programs,
                                                   .device = options->device,
                                                   .device_mem = options->device_mem,
                                                   .should_stop = g->events->should_stop,
                                                   .on_note = g->events->on_note,
                                                   .user = user};
    rc = client_forward_open(&g->forward, &forward, &err);
    if (!rc)
        rc = generate(g, out, &sample, &err);
    close_all(g);
    return client_report(error, &err, rc);
}
