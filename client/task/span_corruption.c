/* Spans: windows of a stream of tokens, some runs of which an encoder-decoder has to restore (client/task/spans.h). All
 * rows have the same length, which follows from the window's. */
#include "client/task/masks.h"
#include "client/task/spans.h"
#include "client/task/windowed.h"
#include "client/text/tokenizer.h"
#include "proto/model/family.h"
#include "proto/plan/memory/data.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_SOURCE = 512 };

struct spans {
    struct client_windowed stream;
    uint32_t sentinels[CLIENT_SENTINELS], n_sentinels, end;
    double fraction;
    uint32_t source_seq, seq; /* tokens of the row's source, and of the row */
    struct client_spans of;
    struct random_key keys[2]; /* training, evaluation */
    uint32_t *ids;             /* (of.n) of a window */
    uint32_t *entries;         /* (of.n) its entries; (of.target) those of a target; (of.n_runs) none */
};

/* The tokens <extra_id_0> and so on, as far as the tokenizer has them. */
static int find_sentinels(struct spans *s, struct client_tokenizer *tokenizer, struct error *err)
{
    struct client_tokens tokens = {0};
    char text[32];
    size_t used;
    int rc = 0;

    for (; !rc && s->n_sentinels < CLIENT_SENTINELS; s->n_sentinels++) {
        const size_t n = (size_t)snprintf(text, sizeof text, "<extra_id_%u>", (unsigned)s->n_sentinels);
        tokens.n = 0;
        rc = client_tokenizer_encode(&tokens, &used, tokenizer, text, n, true, err);
        if (rc || tokens.n != 1 || !client_tokenizer_is_special(tokenizer, tokens.ids[0]))
            break;
        s->sentinels[s->n_sentinels] = tokens.ids[0];
    }
    free(tokens.ids);
    return rc == -EINVAL ? 0 : rc; /* one outside the model's table ends them, too */
}

static int span_corruption_open_source(struct client_source *source, struct error *err)
{
    const struct client_source_setup *setup = &source->setup;
    struct spans *s = (struct spans *)source;
    struct client_tokenizer *tokenizer = NULL;
    int rc = client_tokenizer_require(&tokenizer, setup->side, setup->config->family->model_type,
                                      setup->config->vocabulary, "spans need", err);

    if (!rc)
        rc = find_sentinels(s, tokenizer, err);
    if (!rc)
        s->end = client_tokenizer_end(tokenizer);
    if (!rc && s->end != CLIENT_NO_TOKEN)
        rc = client_tokenizer_check(tokenizer, s->end, err);
    if (!rc && (s->n_sentinels == 0 || s->end == CLIENT_NO_TOKEN))
        rc = error_set(err, -EINVAL, "its tokenizer has no %s: spans cannot be corrupted without",
                       s->n_sentinels == 0 ? "special token <extra_id_0>, which stands for a span" : "end token");
    client_tokenizer_close(tokenizer);
    return rc;
}

/* What is not asked for is as long as the windows make it. */
static int span_corruption_settle(struct client_source *source, const struct client_source_rules *rules,
                                  struct error *err)
{
    struct spans *s = (struct spans *)source;
    const uint32_t any = UINT32_MAX;
    const int rc = client_masks_check(rules->mask_fraction, err);

    if (rc)
        return rc;
    s->fraction = rules->mask_fraction;
    s->seq = rules->seq;
    s->source_seq = rules->source_seq ? rules->source_seq : DEFAULT_SOURCE;
    if (!s->seq)
        s->of = client_spans_within(s->source_seq, any, any, s->fraction);
    else if (!rules->source_seq)
        s->of = client_spans_within(any, any, s->seq, s->fraction);
    else if (s->seq > s->source_seq)
        s->of = client_spans_within(s->source_seq, s->seq - s->source_seq, any, s->fraction);
    if (s->seq && !rules->source_seq)
        s->source_seq = s->of.source;
    if (!s->seq)
        s->seq = s->source_seq + s->of.target;
    if (s->of.n == 0 || s->seq <= s->source_seq)
        return error_set(err, -EDOM, "--seq %u, of which %u tokens are the source, has no room for spans: choose more",
                         s->seq, s->source_seq);
    if (s->of.n_runs > s->n_sentinels)
        return error_set(
            err, -EDOM,
            "a source of %u tokens has %u spans, and the tokenizer %u tokens <extra_id_N> for them: choose "
            "a lower --source-seq or --mask-fraction",
            s->source_seq, s->of.n_runs, s->n_sentinels);
    s->stream.n = s->of.n;
    s->ids = calloc(s->of.n, sizeof *s->ids);
    s->entries = calloc((size_t)s->of.n + s->of.target + s->of.n_runs, sizeof *s->entries);
    return s->ids && s->entries ? 0 : error_memory(err);
}

static void span_corruption_measure(struct client_source_facts *out, const struct client_source *source)
{
    const struct spans *s = (const struct spans *)source;
    const struct client_source_setup *setup = &source->setup;
    const uint64_t n_tokens = setup->data ? setup->data->n : 0;
    const uint64_t n = client_windows_n_train(n_tokens, s->seq, setup->eval_data->n_files > 0) / s->of.n;

    *out = (struct client_source_facts){.masked = true,
                                        .whole = true,
                                        .flows = true,
                                        .seq = s->seq,
                                        .source = s->source_seq,
                                        .n_rows = n < UINT32_MAX ? (uint32_t)n : UINT32_MAX,
                                        .longest = s->seq,
                                        .least = 2};
}

static int span_corruption_divide(struct client_source *source, const struct client_division *division,
                                  struct error *err)
{
    struct spans *s = (struct spans *)source;

    for (unsigned unit = 0; unit < 2; unit++)
        s->keys[unit] = random_site_key(division->seed, 0, unit, RANDOM_MASKS);
    return s->stream.held_out.n > 0
               ? 0
               : error_set(err, -EINVAL, "the held-out text has fewer than the %u tokens of a row: give more", s->of.n);
}

static void span_corruption_describe(char *out, size_t cap, const struct client_source *source)
{
    const struct spans *s = (const struct spans *)source;

    snprintf(out, cap, "windows of %u tokens, of which %u in %u spans are restored", s->of.n, s->of.n_chosen,
             s->of.n_runs);
}

/* Entries go the way of the tokens. A sentinel stands for a run of tokens, which are in the target: in the source it
 * has the entry of the run's first, in the target that of the token before the run, which is in the source. So no side
 * has one entry twice. Sentinels at the window's ends, and the end tokens, have none. */
static void number_row(const struct spans *s, const struct client_row_fields *row, struct random_key key,
                       uint64_t first, uint64_t draw)
{
    uint32_t *const window = s->entries, *const target = window + s->of.n, *const none = target + s->of.target,
                    *const source = row->at[PLAN_FIELD_ENTRIES];

    if (!source)
        return;
    for (uint32_t i = 0; i < s->of.n; i++)
        window[i] = (uint32_t)(first + i);
    for (uint32_t i = 0; i < s->of.n_runs; i++)
        none[i] = PLAN_NEW_ENTRY;
    client_spans_corrupt(&s->of, source, target, window, none, PLAN_NEW_ENTRY, key, draw);
    for (uint32_t i = 1; i + 1 < s->of.source; i++)
        if (source[i] == PLAN_NEW_ENTRY && source[i - 1] != PLAN_NEW_ENTRY)
            source[i] = source[i - 1] + 1;
    for (uint32_t i = 0; i + 1 < s->of.target; i++)
        if (target[i] == PLAN_NEW_ENTRY && target[i + 1] != PLAN_NEW_ENTRY && target[i + 1] > first)
            target[i] = target[i + 1] - 1;
    memcpy(source + s->source_seq, target, s->of.target * sizeof *target);
}

static int span_corruption_read_row(struct client_source *source, const struct client_row_fields *row,
                                    enum client_part part, struct client_sample sample, struct error *err)
{
    const struct spans *s = (const struct spans *)source;
    uint32_t known, *ids = row->at[PLAN_FIELD_IDS], *target = (uint32_t *)row->at[PLAN_FIELD_LABELS] + s->source_seq;
    struct plan_row *lengths = row->at[PLAN_FIELD_LENGTHS];
    const struct client_windows *windows = client_windowed_windows(source, part);
    const struct random_key key = s->keys[part == CLIENT_HELD_OUT];
    const int rc = client_windows_read_whole(windows, s->ids, &known, sample.id, err);

    if (rc)
        return rc;
    client_spans_corrupt(&s->of, ids, target, s->ids, s->sentinels, s->end, key, sample.draw);
    number_row(s, row, key, client_windows_first(windows, sample.id), sample.draw);
    lengths->n_tokens = lengths->second = s->of.source;
    ids[s->source_seq] = source->setup.config->start;
    memcpy(ids + s->source_seq + 1, target, (s->of.target - 1) * sizeof *ids);
    return 0;
}

static void span_corruption_close_source(struct client_source *source)
{
    struct spans *s = (struct spans *)source;

    free(s->ids);
    free(s->entries);
}

static bool span_corruption_takes(const struct model_config *config, double mask_fraction)
{
    return model_has_source(config) && mask_fraction > 0;
}

/* As T5 learned; an architecture of eps's own learns from targets alone. */
static bool span_corruption_learns(const struct family *family)
{
    return family->has_source && !family->is_own && !family->sees_images;
}

const struct client_source_ops client_source_spans = {
    .facts = {EPS_OF_SPANS, "spans", "masked spans", "eval", "perplexity"},
    .order = &client_windowed_order,
    .bytes = sizeof(struct spans),
    .fields = 1u << PLAN_FIELD_IDS | 1u << PLAN_FIELD_LABELS | 1u << PLAN_FIELD_LENGTHS | 1u << PLAN_FIELD_ENTRIES,
    .learns = span_corruption_learns,
    .takes = span_corruption_takes,
    .masks = true,
    .refusal = "%s is for conversations, and a model that restores spans reads a stream of text: leave it out",
    .refused_late = true,
    .open = span_corruption_open_source,
    .open_files = client_data_open,
    .read = client_windowed_read,
    .settle = span_corruption_settle,
    .measure = span_corruption_measure,
    .divide = span_corruption_divide,
    .describe = span_corruption_describe,
    .read_row = span_corruption_read_row,
    .score = client_windowed_score,
    .close = span_corruption_close_source,
};
