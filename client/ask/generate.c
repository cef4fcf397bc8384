/* eps_generate: continues a text (client/ask/writer.h). When all of the model's positions are used, the window slides: the
 * last half of the tokens runs again at the first positions, and generation goes on after them. */
#include "client/ask/writer.h"
#include "client/daemon/look.h"
#include "client/eps.h"
#include "client/text/utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_TOKENS = 200 };

struct generate {
    struct eps_generate_options options; /* with n_tokens resolved */
    const struct eps_generate_events *events;
    void *user;
    struct client_forward forward;
    struct client_writer writer;
    uint32_t *prompt; /* (n_prompt) */
    size_t n_prompt;
    uint32_t *window; /* (n_window of most_window), owned: the last tokens, which the model sees */
    uint32_t n_window, most_window;
};

static int check_options(const struct eps_generate_options *o, struct client_sample_options *sample, struct error *err)
{
    *sample = (struct client_sample_options){
        .temperature = isnan(o->temperature) ? 1 : o->temperature,
        .top_k = o->top_k,
        .top_p = isnan(o->top_p) ? 1 : o->top_p,
        .seed = o->seed,
    };
    if (o->prompt && o->n_prompt_ids > 0)
        return error_set(err, -EDOM, "give --prompt or --ids, not both");
    return client_sample_check(sample, err);
}

static int check_ids(const struct generate *g, struct error *err)
{
    const uint32_t vocabulary = g->forward.model.config.vocabulary;

    for (size_t i = 0; i < g->n_prompt; i++) {
        if (g->prompt[i] >= vocabulary)
            return error_set(err, -EDOM, "--ids: %" PRIu32 " is not a token: the model's vocabulary ends at %" PRIu32,
                             g->prompt[i], vocabulary - 1);
    }
    return 0;
}

/* The prompt begins with what the tokenizer puts before each text, as in transformers. What it puts after a text would
 * end it. */
static int encode(struct generate *g, const char *text, size_t n, struct error *err)
{
    struct client_tokens tokens = {0};
    size_t used, n_begins;
    const uint32_t *begins = client_tokenizer_begins(g->writer.tokenizer, &n_begins);
    int rc = n_begins > 0 ? client_tokens_add(&tokens, begins, n_begins, err) : 0;

    if (!rc)
        rc = client_tokenizer_encode(&tokens, &used, g->writer.tokenizer, text, n, true, err);
    g->prompt = tokens.ids;
    g->n_prompt = tokens.n;
    if (!rc && tokens.n == 0)
        return error_set(err, -EINVAL, "the tokenizer makes no token of the prompt");
    return rc;
}

static int encode_prompt(struct generate *g, struct error *err)
{
    const struct eps_generate_options *o = &g->options;
    const size_t at = client_utf8_whole((const uint8_t *)o->prompt, o->prompt_bytes);

    if (at < o->prompt_bytes)
        return error_set(err, -EINVAL, "the prompt is not UTF-8 text: byte %zu is 0x%02X", at,
                         (unsigned char)o->prompt[at]);
    if (!g->writer.tokenizer)
        return error_set(err, -EINVAL,
                         "the model has no tokenizer (tokenizer.json, or vocab.json and merges.txt), and its "
                         "vocabulary of %" PRIu32 " is not 256, that of bytes: give --ids instead of a text",
                         g->forward.model.config.vocabulary);
    return encode(g, o->prompt, o->prompt_bytes, err);
}

/* Without a prompt, begins as a text begins: after what the tokenizer puts before each text, else after an end token; a
 * byte model begins after a newline. */
static int begin_anywhere(struct generate *g, struct error *err)
{
    const uint32_t end = g->writer.tokenizer ? client_tokenizer_end(g->writer.tokenizer) : CLIENT_NO_TOKEN;
    struct client_tokens tokens = {0};
    size_t n = 0;
    const uint32_t *begins = g->writer.tokenizer ? client_tokenizer_begins(g->writer.tokenizer, &n) : NULL;

    if (!g->writer.tokenizer)
        return error_set(err, -EDOM, "--ids is needed because the model has no tokenizer");
    if (n == 0 && end == CLIENT_NO_TOKEN)
        return encode(g, "\n", 1, err);
    int rc = client_tokens_add(&tokens, n > 0 ? begins : &end, n > 0 ? n : 1, err);
    g->prompt = tokens.ids;
    g->n_prompt = tokens.n;
    return rc;
}

static int make_prompt(struct generate *g, struct error *err)
{
    const struct eps_generate_options *o = &g->options;

    if (o->prompt && o->prompt_bytes > 0)
        return encode_prompt(g, err);
    if (o->n_prompt_ids == 0)
        return begin_anywhere(g, err);
    g->prompt = malloc(o->n_prompt_ids * sizeof *g->prompt);
    if (!g->prompt)
        return error_set(err, -ENOMEM, "out of memory for %zu ids", o->n_prompt_ids);
    memcpy(g->prompt, o->prompt_ids, o->n_prompt_ids * sizeof *g->prompt);
    g->n_prompt = o->n_prompt_ids;
    return check_ids(g, err);
}

/* Limits prompt and new tokens to the model's positions. */
static int resolve_length(struct generate *g, struct error *err)
{
    const uint32_t n_positions = g->forward.model.config.n_positions;

    if (g->options.n_tokens == 0)
        g->options.n_tokens = DEFAULT_TOKENS;
    const uint64_t n_all = g->n_prompt + (uint64_t)g->options.n_tokens;
    if (g->n_prompt > UINT32_MAX)
        return error_set(err, -EFBIG, "the prompt has %zu tokens: shorten it", g->n_prompt);
    g->most_window = n_all < n_positions ? (uint32_t)n_all : n_positions;
    g->window = malloc((g->most_window + (size_t)1) * sizeof *g->window);
    return g->window ? 0 : error_set(err, -ENOMEM, "out of memory for %" PRIu32 " ids", g->most_window);
}

/* Starts the window with the prompt's tokens, or the last of them. */
static void open_window(struct generate *g, struct eps_generated *out)
{
    const uint32_t half = g->most_window / 2, n = (uint32_t)g->n_prompt;
    const bool slides = n > g->most_window;

    g->n_window = !slides ? n : half > 0 ? half : 1;
    memcpy(g->window, g->prompt + (n - g->n_window), g->n_window * sizeof *g->window);
    out->n_slides += slides;
}

/* Appends a token. If that exceeds the model's positions, the window keeps only its last half. Those tokens must run
 * again, which averages two runs per token; a shorter slide would cost more. Returns true if the window moved: none of
 * it has then been run. */
static bool extend_window(struct generate *g, uint32_t id)
{
    const uint32_t keep = g->most_window > 1 ? g->most_window / 2 : 1;

    g->window[g->n_window++] = id;
    if (g->n_window <= g->most_window)
        return false;
    memmove(g->window, g->window + g->n_window - keep, keep * sizeof *g->window);
    g->n_window = keep;
    return true;
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

/* Tells of a token, the last one if `last` or if its text meets a stop string. */
static int tell(struct generate *g, struct eps_generated *out, uint32_t id, bool last, struct error *err)
{
    const char *text;
    size_t n;
    int rc = client_writer_read(&g->writer, &text, &n, id, true, out->ended, last, err);

    out->stopped = g->writer.stop.met;
    if (!rc && g->events->on_token)
        g->events->on_token(g->user, id, text, n);
    return rc;
}

static int run(struct generate *g, struct eps_generated *out, struct error *err)
{
    const uint32_t n_prompt = (uint32_t)g->n_prompt;
    uint32_t first = 0; /* first token of the window that has not run yet */
    int rc = client_writer_begin(&g->writer, g->prompt, g->n_prompt, err);

    open_window(g, out);
    while (!rc && !out->ended && !out->stopped && out->n_tokens < g->options.n_tokens) {
        const uint64_t since_ns = uv_hrtime();
        uint32_t id = 0;
        if (g->events->should_stop && g->events->should_stop(g->user))
            return error_set(err, -EINTR, "interrupted");
        rc = client_writer_draw(&id, &out->ended, &g->writer, g->window, first, g->n_window - first,
                                n_prompt + (uint64_t)out->n_tokens, err);
        if (rc)
            break;
        *(out->n_tokens == 0 ? &out->prompt_ms : &out->tokens_ms) += (double)(uv_hrtime() - since_ns) / 1e6;
        out->n_tokens++;
        first = g->n_window;
        if (out->n_tokens < g->options.n_tokens && extend_window(g, id))
            first = 0, out->n_slides++;
        rc = tell(g, out, id, out->ended || out->n_tokens == g->options.n_tokens, err);
    }
    return rc;
}

static int generate(struct generate *g, struct eps_generated *out, const struct client_sample_options *sample,
                    struct error *err)
{
    int rc = client_writer_open(&g->writer, &g->forward, sample, g->options.stops, g->options.n_stops,
                                g->options.n_prompt_ids > 0, err);

    if (!rc)
        rc = make_prompt(g, err);
    if (!rc)
        rc = resolve_length(g, err);
    if (!rc)
        rc = client_writer_start(&g->writer, g->most_window, err);
    if (rc)
        return rc;
    out->n_prompt = (uint32_t)g->n_prompt;
    out->resident_bytes = g->writer.job.resident_bytes;
    out->weight_bytes = g->writer.job.n_parameters * number_bytes(g->forward.model.precision);
    out->token_bytes = bytes_per_token(g);
    rc = run(g, out, err);
    return rc ? rc : client_writer_finish(&g->writer, err);
}

int eps_generate(struct eps_generated *out, const struct eps_generate_options *options,
                 const struct eps_generate_events *events, void *user, struct eps_error *error)
{
    static const struct eps_generate_events silent;
    struct generate *g = calloc(1, sizeof *g);
    struct client_sample_options sample;
    struct error err = {""};

    *out = (struct eps_generated){0};
    int rc = g ? check_options(options, &sample, &err) : error_set(&err, -ENOMEM, "out of memory");
    if (rc) {
        free(g);
        return client_report(error, &err, rc);
    }
    g->options = *options;
    g->events = events ? events : &silent;
    g->user = user;
    const struct client_forward_options forward = {.model = options->model,
                                                   .connect = options->connect,
                                                   .programs = options->programs,
                                                   .device = options->device,
                                                   .device_mem = options->device_mem,
                                                   .should_stop = g->events->should_stop,
                                                   .on_note = g->events->on_note,
                                                   .user = user};
    rc = client_forward_open(&g->forward, &forward, &err);
    if (!rc)
        rc = generate(g, out, &sample, &err);
    client_writer_close(&g->writer);
    client_forward_close(&g->forward);
    free(g->prompt);
    free(g->window);
    free(g);
    return client_report(error, &err, rc);
}
