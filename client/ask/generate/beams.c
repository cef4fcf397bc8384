/* Candidates are kept best first, so live beams are in that order, too: is_done looks at the first alone. Of equal
 * scores the earlier beam comes first, then the lower token (keep), so a search has one result. A row that is given
 * away is no next beam's `from`, as first children have taken those (assign_rows): no copy is overwritten. */
#include "client/ask/generate/beams.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

/* A text so far: its new tokens. */
struct beam {
    uint32_t *ids; /* (options.n_tokens), owned */
    double score;  /* sum of log p; of a hypothesis, with the length penalty */
    uint32_t n;
    uint32_t row, from; /* of a live beam: its row, and the one that has run the tokens before its last */
};

struct candidate {
    double score;
    uint32_t beam, token;
};

/* The search for one prompt's text. */
struct search {
    size_t prompt;
    bool active;
    struct beam *live, *next, *ended; /* (n_live), (n_next), (n_ended) of n_beams each */
    uint32_t n_live, n_next, n_ended;
    struct candidate *best; /* (n_best of n_kept), the best first */
    uint32_t n_best;
    double prompt_ms, tokens_ms;
};

/* A text that has been found, until the caller hears of it. */
struct text {
    uint32_t *ids, n; /* owned */
    struct eps_generated out;
    bool found;
};

struct beams {
    const struct client_batch_options *options;
    struct client_writer *writer;
    uint32_t n_beams, n_kept; /* candidates that are kept: enough that n_beams of them do not end */
    double length_penalty;
    struct search *searches; /* (n_searches) */
    uint32_t n_searches;
    size_t next_prompt, n_told;
    struct text *texts; /* (n_prompts) */
    struct eps_generated *sum;
};

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* On failure *out is what was opened, for close_beams. */
static int open_beams(struct beam **out, uint32_t n, uint32_t n_tokens, struct error *err)
{
    *out = calloc(n, sizeof **out);
    for (uint32_t i = 0; *out && i < n; i++) {
        (*out)[i].ids = malloc(n_tokens * sizeof *(*out)[i].ids);
        if (!(*out)[i].ids)
            return error_set(err, -ENOMEM, "out of memory for %" PRIu32 " tokens", n_tokens);
    }
    return *out ? 0 : error_set(err, -ENOMEM, "out of memory for %" PRIu32 " beams", n);
}

static void close_beams(struct beam *beams, uint32_t n)
{
    for (uint32_t i = 0; beams && i < n; i++)
        free(beams[i].ids);
    free(beams);
}

static int open_searches(struct beams *b, struct error *err)
{
    const uint32_t n_tokens = b->options->n_tokens;
    int rc = 0;

    b->searches = calloc(b->n_searches, sizeof *b->searches);
    b->texts = calloc(b->options->n_prompts, sizeof *b->texts);
    if (!b->searches || !b->texts)
        return error_set(err, -ENOMEM, "out of memory for %zu texts", b->options->n_prompts);
    for (struct search *s = b->searches; !rc && s < b->searches + b->n_searches; s++) {
        s->best = calloc(b->n_kept, sizeof *s->best);
        rc = s->best ? 0 : error_set(err, -ENOMEM, "out of memory for %" PRIu32 " candidates", b->n_kept);
        rc = rc ? rc : open_beams(&s->live, b->n_beams, n_tokens, err);
        rc = rc ? rc : open_beams(&s->next, b->n_beams, n_tokens, err);
        rc = rc ? rc : open_beams(&s->ended, b->n_beams, n_tokens, err);
    }
    return rc;
}

static void close_searches(struct beams *b)
{
    for (uint32_t i = 0; b->searches && i < b->n_searches; i++) {
        close_beams(b->searches[i].live, b->n_beams);
        close_beams(b->searches[i].next, b->n_beams);
        close_beams(b->searches[i].ended, b->n_beams);
        free(b->searches[i].best);
    }
    free(b->searches);
    for (size_t i = 0; b->texts && i < b->options->n_prompts; i++)
        free(b->texts[i].ids);
    free(b->texts);
}

/* ---- candidates -------------------------------------------------------------------------------------------------- */

/* The largest logit is taken out first: exp of it could exceed any number. */
static double beams_log_sum_exp(const float *logits, uint32_t n)
{
    double most = -INFINITY, sum = 0;

    for (uint32_t i = 0; i < n; i++)
        most = logits[i] > most ? logits[i] : most;
    for (uint32_t i = 0; i < n; i++)
        sum += exp(logits[i] - most);
    return most + log(sum);
}

/* Puts a candidate where it belongs, behind those that are as good. */
static void beams_keep(struct search *s, uint32_t n_kept, struct candidate candidate)
{
    if (s->n_best == n_kept && !(candidate.score > s->best[n_kept - 1].score))
        return;
    uint32_t i = s->n_best < n_kept ? s->n_best++ : n_kept - 1;
    for (; i > 0 && candidate.score > s->best[i - 1].score; i--)
        s->best[i] = s->best[i - 1];
    s->best[i] = candidate;
}

/* Finds the best extensions of the live beams. */
static int find_best(const struct beams *b, struct search *s, struct error *err)
{
    const uint32_t vocabulary = b->writer->job.vocabulary;

    s->n_best = 0;
    for (uint32_t i = 0; i < s->n_live; i++) {
        const float *logits = client_job_logits(&b->writer->job, s->live[i].row);
        const double base = s->live[i].score - beams_log_sum_exp(logits, vocabulary);
        if (!isfinite(base))
            return error_set(err, -EINVAL, "the model's logits are no numbers: its weights are damaged");
        for (uint32_t token = 0; token < vocabulary; token++)
            beams_keep(s, b->n_kept, (struct candidate){base + logits[token], i, token});
    }
    return 0;
}

/* Of the beam that it is made of, the row has run all tokens but the new one. */
static void beams_extend(struct beam *out, const struct beam *of, const struct candidate *by)
{
    memcpy(out->ids, of->ids, of->n * sizeof *of->ids);
    out->n = of->n;
    out->ids[out->n++] = by->token;
    out->score = by->score;
    out->from = of->row;
}

/* Adds a hypothesis, if there are fewer than n_beams or the worst of them is worse. */
static void end_beam(const struct beams *b, struct search *s, const struct candidate *by)
{
    const struct beam *of = &s->live[by->beam];
    const double score = by->score / pow(of->n + 1, b->length_penalty);
    uint32_t at = s->n_ended;

    if (at == b->n_beams) {
        at = 0;
        for (uint32_t i = 1; i < s->n_ended; i++)
            at = s->ended[i].score < s->ended[at].score ? i : at;
        if (!(score > s->ended[at].score))
            return;
    } else {
        s->n_ended++;
    }
    beams_extend(&s->ended[at], of, by);
    s->ended[at].score = score;
}

/* Gives each next beam a row: the first child of a beam has that beam's. */
static void assign_rows(const struct beams *b, struct search *s)
{
    const uint32_t first = (uint32_t)(s - b->searches) * b->n_beams;
    bool taken[PLAN_GENERATE_ROWS] = {false}, placed[PLAN_GENERATE_ROWS] = {false};
    uint32_t free_row = first;

    for (uint32_t i = 0; i < s->n_next; i++) {
        struct beam *beam = &s->next[i];
        placed[i] = !taken[beam->from];
        if (placed[i])
            taken[beam->row = beam->from] = true;
    }
    for (uint32_t i = 0; i < s->n_next; i++) {
        if (placed[i])
            continue;
        while (taken[free_row])
            free_row++;
        taken[s->next[i].row = free_row] = true;
    }
}

/* Makes hypotheses of the candidates that end, if among the n_beams best, and the next beams of the others. */
static void beams_divide(const struct beams *b, struct search *s)
{
    const bool last = s->live[0].n + 1 == b->options->n_tokens;

    s->n_next = 0;
    for (uint32_t i = 0; i < s->n_best; i++) {
        const struct candidate *by = &s->best[i];
        const bool ends = last || client_writer_ends(b->writer, by->token);
        if (ends && i < b->n_beams)
            end_beam(b, s, by);
        else if (!ends && s->n_next < b->n_beams)
            beams_extend(&s->next[s->n_next++], &s->live[by->beam], by);
    }
    assign_rows(b, s);
    struct beam *const live = s->live;
    s->live = s->next, s->n_live = s->n_next;
    s->next = live;
}

/* True if no live beam can do better than the hypotheses. */
static bool is_done(const struct beams *b, const struct search *s)
{
    double worst = INFINITY;

    if (s->n_live == 0 || s->n_ended < b->n_beams)
        return s->n_live == 0;
    for (uint32_t i = 0; i < s->n_ended; i++)
        worst = s->ended[i].score < worst ? s->ended[i].score : worst;
    return !(s->live[0].score / pow(s->live[0].n, b->length_penalty) > worst);
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* Begins the next prompt's search: one beam without new tokens. */
static void begin_search(struct beams *b, struct search *s)
{
    s->active = b->next_prompt < b->options->n_prompts;
    if (!s->active)
        return;
    s->prompt = b->next_prompt++;
    s->n_live = 1, s->n_ended = 0;
    s->live[0].n = 0, s->live[0].score = 0;
    s->live[0].row = s->live[0].from = (uint32_t)(s - b->searches) * b->n_beams;
    s->prompt_ms = s->tokens_ms = 0;
}

/* There is a hypothesis: a search ends with n_beams of them, or without a live beam, whose candidates have all
 * ended. */
static int end_search(struct beams *b, struct search *s, struct error *err)
{
    struct text *text = &b->texts[s->prompt];
    const struct beam *best = &s->ended[0];

    for (const struct beam *beam = s->ended; beam < s->ended + s->n_ended; beam++)
        best = beam->score > best->score ? beam : best;
    text->ids = malloc(best->n * sizeof *text->ids);
    if (!text->ids)
        return error_set(err, -ENOMEM, "out of memory for %" PRIu32 " tokens", best->n);
    memcpy(text->ids, best->ids, best->n * sizeof *text->ids);
    text->n = best->n;
    text->found = true;
    text->out = *b->sum;
    text->out.n_texts = 1;
    text->out.n_prompt = (uint32_t)b->options->prompts[s->prompt].n;
    text->out.n_tokens = best->n;
    text->out.ended = client_writer_ends(b->writer, best->ids[best->n - 1]);
    text->out.score = best->score;
    text->out.prompt_ms = s->prompt_ms, text->out.tokens_ms = s->tokens_ms;
    return 0;
}

/* A text is read when the search is over: until then it may still lose to another. Any row's writer will do. */
static int tell_text(const struct beams *b, size_t prompt, struct error *err)
{
    const struct eps_generate_events *events = b->options->events;
    const struct client_prompt begin = client_batch_begin(b->writer, &b->options->prompts[prompt]);
    const struct text *text = &b->texts[prompt];
    int rc = client_writer_begin(b->writer, 0, begin.ids, begin.n, err);

    if (!rc && events->on_begin)
        events->on_begin(b->options->user, prompt, 0);
    for (uint32_t i = 0; !rc && i < text->n; i++) {
        const bool last = i + 1 == text->n;
        const char *bytes;
        size_t n;
        rc = client_writer_read(&bytes, &n, b->writer, 0, text->ids[i], true, last && text->out.ended, last, err);
        if (!rc && events->on_token)
            events->on_token(b->options->user, text->ids[i], b->writer->tokenizer && !bytes ? "" : bytes, n);
    }
    if (!rc && events->on_end)
        events->on_end(b->options->user, &text->out);
    return rc;
}

/* Tells of texts in order, up to the first that is not found. */
static int beams_tell(struct beams *b, struct error *err)
{
    int rc = 0;

    for (; !rc && b->n_told < b->options->n_prompts && b->texts[b->n_told].found; b->n_told++) {
        struct text *text = &b->texts[b->n_told];
        b->sum->n_texts++;
        b->sum->n_prompt += text->out.n_prompt, b->sum->n_tokens += text->out.n_tokens;
        b->sum->ended = (b->n_told == 0 || b->sum->ended) && text->out.ended;
        b->sum->score = b->n_told == 0 ? text->out.score : NAN;
        rc = tell_text(b, b->n_told, err);
        free(text->ids);
        text->ids = NULL;
    }
    return rc;
}

/* ---- passes ------------------------------------------------------------------------------------------------------ */

/* Gives a live beam's row what it has to run: what precedes the text; or its last token, after another's. */
static void put_beam(const struct beams *b, const struct search *s, const struct beam *beam, struct plan_tokens *tokens)
{
    const struct client_prompt *prompt = &b->options->prompts[s->prompt];
    const struct client_prompt begin = client_batch_begin(b->writer, prompt);
    const uint32_t n_begin = (uint32_t)begin.n;
    uint32_t *const ids = client_job_ids(&b->writer->job, beam->row);

    *tokens = (struct plan_tokens){.from = beam->from, .first = beam->n > 0 ? n_begin + beam->n - 1 : 0};
    tokens->n = n_begin + beam->n - tokens->first;
    if (beam->n == 0 || beam->from != beam->row) {
        memcpy(ids, begin.ids, n_begin * sizeof *ids);
        memcpy(ids + n_begin, beam->ids, beam->n * sizeof *ids);
        if (client_writer_has_source(b->writer))
            client_writer_put_source(tokens, b->writer, beam->row, prompt->ids, (uint32_t)prompt->n);
    } else {
        ids[n_begin + beam->n - 1] = beam->ids[beam->n - 1];
    }
}

/* Rows without a beam run nothing, but have their place. */
static int beams_run_rows(struct beams *b, struct error *err)
{
    struct plan_tokens tokens[PLAN_GENERATE_ROWS];
    const uint32_t n_rows = b->n_searches * b->n_beams;

    for (uint32_t r = 0; r < n_rows; r++)
        tokens[r] = (struct plan_tokens){.from = r};
    for (const struct search *s = b->searches; s < b->searches + b->n_searches; s++)
        for (uint32_t i = 0; s->active && i < s->n_live; i++)
            put_beam(b, s, &s->live[i], &tokens[s->live[i].row]);
    return client_job_generate(&b->writer->job, tokens, n_rows, err);
}

/* One pass: a token of each live beam. */
static int beams_advance(struct beams *b, struct error *err)
{
    const uint64_t since_ns = uv_hrtime();
    int rc = beams_run_rows(b, err);
    bool first = true;

    const double ms = (double)(uv_hrtime() - since_ns) / 1e6;
    for (struct search *s = b->searches; !rc && s < b->searches + b->n_searches; s++) {
        if (!s->active)
            continue;
        *(s->live[0].n == 0 ? &s->prompt_ms : &s->tokens_ms) += ms;
        first = first && s->live[0].n == 0;
        rc = find_best(b, s, err);
        if (rc)
            break;
        beams_divide(b, s);
        if (is_done(b, s)) {
            rc = end_search(b, s, err);
            begin_search(b, s);
        }
    }
    *(first ? &b->sum->prompt_ms : &b->sum->tokens_ms) += ms;
    return rc;
}

static int beams_run(struct beams *b, struct error *err)
{
    const struct eps_generate_events *events = b->options->events;
    int rc = open_searches(b, err);

    for (struct search *s = b->searches; !rc && s < b->searches + b->n_searches; s++)
        begin_search(b, s);
    while (!rc && b->n_told < b->options->n_prompts) {
        if (events->should_stop && events->should_stop(b->options->user))
            return error_set(err, -EINTR, "interrupted");
        rc = beams_advance(b, err);
        rc = rc ? rc : beams_tell(b, err);
    }
    return rc;
}

int client_beams_run(struct eps_generated *out, const struct client_batch_options *options, uint32_t n_beams,
                     double length_penalty, struct error *err)
{
    const uint32_t n_rows = options->writer->job.microbatch;
    struct beams b = {.options = options,
                      .writer = options->writer,
                      .n_beams = n_beams,
                      .n_kept = (uint32_t)(1 + (options->writer->n_ends > 0 ? options->writer->n_ends : 1)) * n_beams,
                      .length_penalty = length_penalty,
                      .n_searches = n_rows / n_beams,
                      .sum = out};

    if (b.n_searches == 0)
        return error_set(err, -ENOSPC,
                         "--beams %" PRIu32
                         " needs memory for as many texts at once, and the device has it for %" PRIu32
                         ": give it more memory, or fewer beams",
                         n_beams, n_rows);
    const int rc = beams_run(&b, err);
    close_searches(&b);
    return rc;
}
