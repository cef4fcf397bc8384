/* Rows wait for each other's keys and values, and none for ever: a row that begins to wait is nobody's source until it
 * has run (has_prompt), so waits form no circle. */
#include "client/ask/generate/batch.h"

#include "client/text/utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A drawn token and the text that it completes. */
struct spoken {
    uint32_t id;
    size_t n; /* bytes */
};

/* A text that has begun, until the caller has heard all of it. */
struct text {
    struct text *next; /* that began after it */
    size_t prompt;
    uint32_t sample;
    struct eps_generated out;
    struct spoken *tokens; /* (out.n_tokens of cap), owned */
    size_t cap;
    struct client_text bytes;
    bool done;
    bool told; /* the caller has heard of it: */
    uint32_t n_told;
    size_t bytes_told;
};

struct row {
    struct text *text; /* borrowed; NULL: none is left for it */
    uint32_t *window;  /* (n_window of options.window + 1), owned: the last tokens, which the model sees */
    uint32_t n_window;
    uint32_t first;  /* of the window, which has not run */
    uint32_t from;   /* the row that has run those before it */
    bool waits;      /* the text has not begun to run */
    bool runs;       /* in this pass */
    bool has_prompt; /* the worker has all tokens of prompt `held` in this row, and `logits` come after them */
    size_t held;
    float *logits; /* (vocabulary), owned: NULL if prompts have one sample */
};

struct batch {
    const struct client_batch_options *options;
    struct client_writer *writer;
    const struct eps_generated *common;
    struct eps_generated *sum;
    size_t next_prompt; /* of the next text to begin */
    uint32_t next_sample;
    struct text *oldest, *newest; /* texts in order, owned: those that the caller has not heard of to the end */
    struct row rows[PLAN_GENERATE_ROWS];
    uint32_t n_rows;
};

/* ---- what the caller hears --------------------------------------------------------------------------------------- */

/* Bytes of all tokens lie in one text, so a token has no pointer of its own, which growing would break. */
static void tell_tokens(struct batch *b, struct text *text)
{
    const struct eps_generate_events *events = b->options->events;

    if (!text->told && events->on_begin)
        events->on_begin(b->options->user, text->prompt, text->sample);
    text->told = true;
    for (; text->n_told < text->out.n_tokens; text->n_told++) {
        const struct spoken *token = &text->tokens[text->n_told];
        const char *bytes = token->n > 0 ? text->bytes.bytes + text->bytes_told : "";
        text->bytes_told += token->n;
        if (events->on_token)
            events->on_token(b->options->user, token->id, b->writer->tokenizer ? bytes : NULL, token->n);
    }
}

/* The sum has ended, or stopped, if all texts have. */
static void batch_add(struct eps_generated *sum, const struct text *text)
{
    const bool first = text->prompt == 0 && text->sample == 0;

    sum->n_texts += text->out.n_texts;
    sum->n_prompt += text->out.n_prompt, sum->n_tokens += text->out.n_tokens;
    sum->n_slides += text->out.n_slides;
    sum->ended = (first || sum->ended) && text->out.ended;
    sum->stopped = (first || sum->stopped) && text->out.stopped;
}

/* Drops the oldest text. */
static void drop_text(struct batch *b)
{
    struct text *text = b->oldest;

    b->oldest = text->next;
    free(text->tokens);
    free(text->bytes.bytes);
    free(text);
}

/* Tells of texts in order, up to the first that goes on; at the end, after rc, of those too that were interrupted. */
static void batch_tell(struct batch *b, bool end, int rc)
{
    while (b->oldest) {
        struct text *text = b->oldest;
        if (!end || !rc || rc == -EINTR)
            tell_tokens(b, text);
        if (!text->done && !end)
            return;
        batch_add(b->sum, text);
        if (b->options->events->on_end && (!rc || rc == -EINTR))
            b->options->events->on_end(b->options->user, &text->out);
        drop_text(b);
    }
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static uint32_t vocabulary(const struct batch *b)
{
    return b->writer->job.vocabulary;
}

static uint32_t half(const struct batch *b)
{
    return b->options->window > 1 ? b->options->window / 2 : 1;
}

static const struct client_prompt *batch_prompt_of(const struct batch *b, const struct row *row)
{
    return &b->options->prompts[row->text->prompt];
}

/* Begins the next text in this row, if there is one. All samples of a prompt begin before the next prompt, so that
 * rows which share it run side by side. */
static int begin_text(struct batch *b, uint32_t r, struct error *err)
{
    const struct client_batch_options *o = b->options;
    struct row *row = &b->rows[r];

    row->text = NULL;
    if (b->next_prompt == o->n_prompts)
        return 0;
    struct text *text = calloc(1, sizeof *text);
    if (!text)
        return error_set(err, -ENOMEM, "out of memory for a text");
    *(b->oldest ? &b->newest->next : &b->oldest) = text;
    b->newest = text;
    *text = (struct text){.prompt = b->next_prompt, .sample = b->next_sample, .out = *b->common};
    if (++b->next_sample == o->n_samples)
        b->next_sample = 0, b->next_prompt++;
    row->text = text;
    row->waits = true;
    const struct client_prompt begin = client_batch_begin(b->writer, batch_prompt_of(b, row));
    const bool slides = begin.n > o->window;
    row->n_window = slides ? half(b) : (uint32_t)begin.n;
    memcpy(row->window, begin.ids + (begin.n - row->n_window), row->n_window * sizeof *row->window);
    text->out.n_prompt = (uint32_t)batch_prompt_of(b, row)->n;
    text->out.n_slides = slides;
    b->writer->lines[r].sampler.options.seed = o->seed + text->sample;
    return client_writer_begin(b->writer, r, begin.ids, begin.n, err);
}

/* A row that has run this prompt, r itself if it has; b->n_rows: none. */
static uint32_t find_prompt(const struct batch *b, uint32_t r, size_t prompt)
{
    uint32_t found = b->n_rows;

    for (uint32_t i = 0; i < b->n_rows; i++)
        if (b->rows[i].has_prompt && b->rows[i].held == prompt && (i == r || found == b->n_rows))
            found = i;
    return found;
}

/* True if a row is about to run this prompt. */
static bool will_run(const struct batch *b, size_t prompt)
{
    for (uint32_t i = 0; i < b->n_rows; i++) {
        const struct row *row = &b->rows[i];
        if (row->text && !row->waits && row->text->prompt == prompt && row->text->out.n_tokens == 0)
            return true;
    }
    return false;
}

/* Begins to run a text, after the prompt that row `from` has run, or b->n_rows: from its first token on. */
static void start_text(struct batch *b, uint32_t r, uint32_t from)
{
    struct row *row = &b->rows[r];
    const bool has_run = from < b->n_rows;

    if (has_run && from != r)
        memcpy(row->logits, b->rows[from].logits, vocabulary(b) * sizeof *row->logits);
    row->waits = false;
    row->has_prompt = from == r; /* else not until it has run, or another row's keys and values were copied */
    row->from = has_run ? from : r;
    row->first = has_run ? row->n_window : 0;
}

/* First the texts whose prompt has run, as others will replace what it left. Of those that have the same prompt, one
 * runs it, and the others wait. */
static void start_texts(struct batch *b)
{
    for (uint32_t r = 0; r < b->n_rows; r++) {
        const struct row *row = &b->rows[r];
        const uint32_t from = row->text && row->waits ? find_prompt(b, r, row->text->prompt) : b->n_rows;
        if (from < b->n_rows)
            start_text(b, r, from);
    }
    for (uint32_t r = 0; r < b->n_rows; r++) {
        const struct row *row = &b->rows[r];
        if (row->text && row->waits && (!row->logits || !will_run(b, row->text->prompt)))
            start_text(b, r, b->n_rows);
    }
}

/* True if another row is to go on after this one's tokens, and they have not been copied yet. */
static bool is_source(const struct batch *b, uint32_t r)
{
    for (uint32_t i = 0; i < b->n_rows; i++)
        if (i != r && b->rows[i].text && !b->rows[i].waits && b->rows[i].from == r)
            return true;
    return false;
}

/* Runs what the rows have to run. A row whose tokens are still to be copied only goes on after them: to run others in
 * their place, or to go on after those of another row, it waits until they are. Until then its ids stay, too, as they
 * run again if the worker is lost. */
static int batch_run_rows(struct batch *b, struct error *err)
{
    struct plan_tokens tokens[PLAN_GENERATE_ROWS];
    uint32_t n = 0;

    for (uint32_t r = 0; r < b->n_rows; r++) {
        struct row *row = &b->rows[r];
        row->runs = row->text && !row->waits && row->first < row->n_window &&
                    (!is_source(b, r) || (row->from == r && row->first > 0));
        tokens[r] = (struct plan_tokens){.from = r};
        if (!row->runs)
            continue;
        tokens[r] = (struct plan_tokens){.from = row->from, .first = row->first, .n = row->n_window - row->first};
        memcpy(client_job_ids(&b->writer->job, r), row->window, row->n_window * sizeof *row->window);
        if (client_writer_has_source(b->writer) && row->text->out.n_tokens == 0)
            client_writer_put_source(&tokens[r], b->writer, r, batch_prompt_of(b, row)->ids,
                                     (uint32_t)batch_prompt_of(b, row)->n);
        n++;
    }
    return n > 0 ? client_job_generate(&b->writer->job, tokens, b->n_rows, err) : 0;
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

/* Notes a token for the caller. */
static int batch_note(struct batch *b, uint32_t r, uint32_t id, struct error *err)
{
    struct text *text = b->rows[r].text;
    const bool last = text->out.ended || text->out.n_tokens + 1 == b->options->n_tokens;
    const char *bytes;
    size_t n;

    if (text->out.n_tokens == text->cap) {
        const size_t cap = text->cap ? 2 * text->cap : 16;
        struct spoken *tokens = realloc(text->tokens, cap * sizeof *tokens);
        if (!tokens)
            return error_set(err, -ENOMEM, "out of memory for %zu tokens", cap);
        text->tokens = tokens;
        text->cap = cap;
    }
    int rc = client_writer_read(&bytes, &n, b->writer, r, id, true, text->out.ended, last, err);
    if (!rc && n > 0)
        rc = client_text_add(&text->bytes, bytes, n, err);
    if (rc)
        return rc;
    text->tokens[text->out.n_tokens++] = (struct spoken){id, n};
    text->out.n_texts = 1;
    text->out.stopped = client_writer_has_stopped(b->writer, r);
    text->done = text->out.ended || text->out.stopped || text->out.n_tokens == b->options->n_tokens;
    return 0;
}

/* Appends a token. If that exceeds the window, it keeps only its last half. Those tokens must run again, which averages
 * two runs per token; a shorter slide would cost more. */
static void extend_window(struct batch *b, uint32_t r, uint32_t id)
{
    struct row *row = &b->rows[r];

    row->window[row->n_window++] = id;
    if (row->n_window <= b->options->window)
        return;
    memmove(row->window, row->window + row->n_window - half(b), half(b) * sizeof *row->window);
    row->n_window = half(b);
    row->first = 0;
    row->from = r;
    row->has_prompt = false; /* other tokens will be at the first positions */
    row->text->out.n_slides++;
}

/* The row's next token, if it has run all before: of the prompt's logits, or of those of the pass. */
static int batch_draw(struct batch *b, uint32_t r, struct error *err)
{
    struct row *row = &b->rows[r];
    struct text *text = row->text;
    const float *logits = client_job_logits(&b->writer->job, r);
    uint32_t id;

    if (row->runs && row->logits && row->from != r) { /* the prompt's keys and values were copied */
        row->has_prompt = true;
        row->held = text->prompt;
    }
    if (row->runs && text->out.n_tokens == 0 && row->logits) {
        memcpy(row->logits, logits, vocabulary(b) * sizeof *logits);
        row->has_prompt = true;
        row->held = text->prompt;
    }
    if (text->out.n_tokens == 0 && row->logits)
        logits = row->logits;
    if (row->runs) {
        row->first = row->n_window;
        row->from = r;
    }
    int rc = client_writer_choose(&id, &text->out.ended, b->writer, r, logits,
                                  batch_prompt_of(b, row)->n + (uint64_t)text->out.n_tokens, err);
    if (!rc)
        rc = batch_note(b, r, id, err);
    if (!rc && !text->done)
        extend_window(b, r, id);
    return rc;
}

/* True if a token can be drawn: the row has run, or its prompt had been run. */
static bool is_ready(const struct row *row)
{
    return row->text && !row->waits && (row->runs || row->first == row->n_window);
}

/* Milliseconds of a pass: of the first tokens, or of the others. */
static void add_time(struct eps_generated *out, double ms, bool first)
{
    *(first ? &out->prompt_ms : &out->tokens_ms) += ms;
}

/* One pass: a token of each text, at most. */
static int batch_advance(struct batch *b, struct error *err)
{
    const uint64_t since_ns = uv_hrtime();
    bool ready[PLAN_GENERATE_ROWS], was_first[PLAN_GENERATE_ROWS], all_first = true;
    int rc = batch_run_rows(b, err);

    for (uint32_t r = 0; !rc && r < b->n_rows; r++) {
        ready[r] = is_ready(&b->rows[r]);
        if (!ready[r])
            continue;
        was_first[r] = b->rows[r].text->out.n_tokens == 0;
        all_first = all_first && was_first[r];
        rc = batch_draw(b, r, err);
    }
    if (rc)
        return rc;
    const double ms = (double)(uv_hrtime() - since_ns) / 1e6;
    add_time(b->sum, ms, all_first);
    for (uint32_t r = 0; r < b->n_rows; r++)
        if (ready[r])
            add_time(&b->rows[r].text->out, ms, was_first[r]);
    return 0;
}

/* ---- all texts --------------------------------------------------------------------------------------------------- */

/* A window has room for one id more than the model sees: the one that makes it slide. */
static int batch_open_rows(struct batch *b, struct error *err)
{
    const uint32_t window = b->options->window;
    int rc = 0;

    for (uint32_t r = 0; !rc && r < b->n_rows; r++) {
        struct row *row = &b->rows[r];
        row->window = malloc((window + (size_t)1) * sizeof *row->window);
        if (b->options->n_samples > 1)
            row->logits = malloc(vocabulary(b) * sizeof *row->logits);
        if (!row->window || (b->options->n_samples > 1 && !row->logits))
            return error_set(err, -ENOMEM, "out of memory for %" PRIu32 " ids and %" PRIu32 " logits", window,
                             vocabulary(b));
        rc = begin_text(b, r, err);
    }
    return rc;
}

static int batch_run(struct batch *b, struct error *err)
{
    const struct eps_generate_events *events = b->options->events;
    int rc = batch_open_rows(b, err);

    while (!rc && b->oldest) {
        if (events->should_stop && events->should_stop(b->options->user))
            return error_set(err, -EINTR, "interrupted");
        start_texts(b);
        rc = batch_advance(b, err);
        for (uint32_t r = 0; !rc && r < b->n_rows; r++)
            if (b->rows[r].text && b->rows[r].text->done)
                rc = begin_text(b, r, err);
        if (!rc)
            batch_tell(b, false, 0);
    }
    return rc;
}

struct client_prompt client_batch_begin(const struct client_writer *writer, const struct client_prompt *prompt)
{
    if (client_writer_has_source(writer))
        return (struct client_prompt){&writer->forward->model.config.start, 1};
    return *prompt;
}

/* What the caller has set in *out holds for each text, and is where each begins. */
int client_batch_run(struct eps_generated *out, const struct client_batch_options *options, struct error *err)
{
    const struct eps_generated common = *out;
    struct batch *b = calloc(1, sizeof *b);

    if (!b)
        return error_set(err, -ENOMEM, "out of memory for a batch");
    *b = (struct batch){.options = options,
                        .writer = options->writer,
                        .common = &common,
                        .sum = out,
                        .n_rows = options->writer->job.microbatch};
    const int rc = batch_run(b, err);
    batch_tell(b, true, rc);
    for (uint32_t r = 0; r < b->n_rows; r++) {
        free(b->rows[r].window);
        free(b->rows[r].logits);
    }
    free(b);
    return rc;
}
