/* Sources and targets: what an encoder-decoder reads, and what it says of it (client/corpus/documents.h). A tenth of
 * them is held out.
 *
 * A row of n tokens is divided in proportion: --source-seq of --seq for the source, the rest for the target
 * (model_divide_rows). The decoder reads the start token and the target without its last one, and predicts the
 * target. */
#include "client/task/document_rows.h"
#include "client/text/conversation.h"
#include "proto/model/family.h"
#include "proto/plan/memory/data.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { SIDES = 2, DEFAULT_SIDE = 512 }; /* most tokens of a side, unless more are asked for */

struct targets {
    struct client_listed rows; /* its work: (the longest sample) */
    uint32_t source_seq;
};

static const struct targets *targets_of(const struct client_source *source)
{
    return (const struct targets *)source;
}

static const struct client_example *targets_find(const struct client_source *source, enum client_part data, size_t k)
{
    return &targets_of(source)->rows.corpus[data].list[k];
}

/* ---- Sides ---- */

/* Tokens of the two sides in rows of n tokens. */
static void divide_tokens(uint32_t room[SIDES], const struct client_source *source, uint32_t n)
{
    const struct program_own own = {.n = targets_of(source)->source_seq, .of = targets_of(source)->rows.seq};

    room[0] = program_own_elements(&own, n);
    room[1] = n - room[0];
}

/* Tokens of the two sides of a sample: the source's come first, and are not trained. */
static uint32_t targets_length(const struct client_source *source, enum client_part data, size_t k)
{
    const uint32_t *n = targets_find(source, data, k)->n;

    return n[0] + n[1];
}

/* What is left of both sides in rows of at most seq tokens. */
static void cut_sides(uint32_t left[SIDES], const struct client_source *source, enum client_part data, size_t k)
{
    const uint32_t *n = targets_find(source, data, k)->n;

    divide_tokens(left, source, targets_of(source)->rows.seq);
    for (int side = 0; side < SIDES; side++)
        left[side] = n[side] < left[side] ? n[side] : left[side];
}

/* Tokens that a row trains on or reads. */
static uint32_t targets_count(const struct client_source *source, enum client_part data, size_t k)
{
    uint32_t left[SIDES];

    cut_sides(left, source, data, k);
    return left[0] + left[1];
}

static bool targets_fits(const struct client_source *source, enum client_part data, size_t k)
{
    return targets_count(source, data, k) == targets_length(source, data, k);
}

static enum eps_fate targets_find_fate(const struct client_source *source, enum client_part data, size_t k,
                                       enum eps_long long_rows)
{
    return targets_fits(source, data, k) ? EPS_KEPT : long_rows == EPS_LONG_DROP ? EPS_DROPPED : EPS_CUT;
}

static int targets_refuse(const struct client_source *source, enum client_part data, size_t k, struct error *err)
{
    const uint32_t seq = targets_of(source)->rows.seq, source_seq = targets_of(source)->source_seq;
    const struct client_example *sample = targets_find(source, data, k);

    if (targets_fits(source, data, k))
        return 0;
    return error_set(err, -EINVAL,
                     "%s: line %" PRIu32 ": %" PRIu32 " tokens of source and %" PRIu32 " of target, in rows of %" PRIu32
                     " and %" PRIu32 ": give a larger --seq and --source-seq, or --long cut or drop",
                     client_source_data(source, data)->files[sample->file].path, sample->line, sample->n[0],
                     sample->n[1], source_seq, seq - source_seq);
}

/* The shortest row that has room for both sides of all samples, as far as --seq has it. */
static uint32_t targets_find_room(const struct client_source *source, enum client_part data,
                                  const struct client_sample *samples, uint32_t n)
{
    uint32_t need[SIDES] = {1, 1}, room[SIDES], left[SIDES], longest = 2;

    for (uint32_t i = 0; i < n; i++) {
        cut_sides(left, source, data, samples[i].id);
        for (int side = 0; side < SIDES; side++)
            need[side] = need[side] < left[side] ? left[side] : need[side];
    }
    for (divide_tokens(room, source, longest); room[0] < need[0] || room[1] < need[1];)
        divide_tokens(room, source, ++longest);
    return longest;
}

static const struct client_listed_ops pairs = {
    .what = "row",
    .reader = "sources and targets need",
    .group = 1,
    .by_tokens = true,
    .length = targets_length,
    .find_fate = targets_find_fate,
    .refuse = targets_refuse,
    .none = "no row is within",
    .count = targets_count,
    .room = targets_find_room,
};

/* ---- Opened, read, settled ---- */

static int targets_open_source(struct client_source *source, struct error *err)
{
    return client_listed_open(source, &pairs, err);
}

static int targets_read_part(struct client_source *source, enum client_part part,
                             const struct client_source_rules *rules, struct error *err)
{
    return client_document_rows_read(source, part,
                                     (struct client_documents_rules){.targets = true, .watch = rules->watch}, err);
}

/* Finds the longest source and the longest target of both parts. */
static void find_longest(uint32_t longest[SIDES], const struct client_listed *l)
{
    longest[0] = longest[1] = 1;
    for (int part = 0; part < 2; part++)
        for (size_t k = 0; k < l->n[part]; k++)
            for (int side = 0; side < SIDES; side++) {
                const uint32_t n = l->corpus[part].list[k].n[side];
                longest[side] = longest[side] < n ? n : longest[side];
            }
}

/* What is not asked for is as long as the longest side, within the default; a row that is asked for is divided as the
 * longest sides are. -EDOM. */
static int choose_sides(struct targets *t, const struct client_source_rules *rules, struct error *err)
{
    uint32_t longest[SIDES], side[SIDES];

    find_longest(longest, &t->rows);
    for (int i = 0; i < SIDES; i++)
        side[i] = client_batches_length(longest[i], DEFAULT_SIDE);
    t->source_seq = rules->source_seq ? rules->source_seq : side[0];
    t->rows.seq = rules->seq ? rules->seq : t->source_seq + side[1];
    if (rules->seq && !rules->source_seq) {
        t->source_seq = (uint32_t)((uint64_t)rules->seq * side[0] / (side[0] + side[1]));
        t->source_seq += t->source_seq == 0;
    }
    if (t->source_seq < t->rows.seq)
        return 0;
    return error_set(err, -EDOM,
                     "--seq %" PRIu32 " leaves no room for a target after --source-seq %" PRIu32
                     ": choose a larger --seq, which is that of both",
                     t->rows.seq, t->source_seq);
}

static int targets_settle(struct client_source *source, const struct client_source_rules *rules, struct error *err)
{
    const int rc = choose_sides((struct targets *)source, rules, err);

    return rc ? rc : client_listed_settle(source, rules, err);
}

static void targets_measure(struct client_source_facts *out, const struct client_source *source)
{
    client_listed_measure(out, source);
    out->seq = out->longest = targets_of(source)->rows.seq;
    out->source = targets_of(source)->source_seq;
    out->least = 2;
}

/* ---- Rows ---- */

static int targets_divide(struct client_source *source, const struct client_division *d, struct error *err)
{
    (void)d;
    return client_listed_make_work(source, client_listed_longest(source), err);
}

static void targets_describe(char *out, size_t cap, const struct client_source *source)
{
    const struct client_listed *l = &targets_of(source)->rows;
    const uint32_t source_seq = targets_of(source)->source_seq;
    size_t used =
        (size_t)snprintf(out, cap,
                         "%" PRIu32 " rows, %" PRIu32 " held out; sources of at most %" PRIu32
                         " tokens, targets of %" PRIu32,
                         l->subsets[CLIENT_TRAIN].n, l->subsets[CLIENT_HELD_OUT].n, source_seq, l->seq - source_seq);

    if (l->fates[EPS_CUT] > 0 && used < cap)
        used += (size_t)snprintf(out + used, cap - used, "; %zu cut", l->fates[EPS_CUT]);
    if (l->fates[EPS_DROPPED] > 0 && used < cap)
        snprintf(out + used, cap - used, "; %zu dropped", l->fates[EPS_DROPPED]);
}

/* What is left of a side in this room: of a longer one the beginning, and its last token, which ends it. */
static uint32_t targets_cut(uint32_t *ids, uint32_t n, uint32_t room)
{
    if (n > room)
        ids[room - 1] = ids[n - 1];
    return n < room ? n : room;
}

/* Where source and target have vocabularies of their own, the tokenizer has the larger of them. */
static int targets_check_ids(const struct client_source *source, enum client_part data, size_t k, int side,
                             const uint32_t *ids, uint32_t n, struct error *err)
{
    const struct client_example *sample = targets_find(source, data, k);
    const struct model_config *config = source->setup.config;
    const uint32_t vocabulary = side == 0 ? config->source_vocabulary : config->vocabulary;

    for (uint32_t i = 0; config->source_vocabulary > 0 && i < n; i++)
        if (ids[i] >= vocabulary)
            return error_set(err, -EINVAL,
                             "%s: line %" PRIu32 ": token %" PRIu32 " is not among the %" PRIu32
                             " of %s: use a tokenizer whose tokens on this side have lower numbers",
                             client_source_data(source, data)->files[sample->file].path, sample->line, ids[i],
                             vocabulary, side == 0 ? "sources (source_vocab_size)" : "targets (vocab_size)");
    return 0;
}

static int targets_read_row(struct client_source *source, const struct client_row_fields *row, enum client_part part,
                            struct client_sample sample, struct error *err)
{
    const struct client_listed *l = &targets_of(source)->rows;
    const enum client_part data = client_listed_data(source, part);
    const struct client_example *example = targets_find(source, data, sample.id);
    uint32_t *ids = row->at[PLAN_FIELD_IDS], *labels = row->at[PLAN_FIELD_LABELS];
    struct plan_row *lengths = row->at[PLAN_FIELD_LENGTHS];
    uint32_t room[SIDES];
    int rc = client_corpus_tokens(&l->corpus[data], l->work, sample.id, (size_t)example->n[0] + example->n[1], err);

    if (rc)
        return rc;
    divide_tokens(room, source, row->n_tokens);
    uint32_t *const target = l->work + example->n[0];
    for (uint32_t i = 0; i < example->n[1]; i++)
        target[i] &= ~CLIENT_TOKEN_TRAINED;
    const uint32_t n_source = targets_cut(l->work, example->n[0], room[0]),
                   n_target = targets_cut(target, example->n[1], room[1]);
    rc = targets_check_ids(source, data, sample.id, 0, l->work, n_source, err);
    rc = rc ? rc : targets_check_ids(source, data, sample.id, 1, target, n_target, err);
    if (rc)
        return rc;
    lengths->n_tokens = lengths->second = n_source;
    memcpy(ids, l->work, n_source * sizeof *ids);
    ids[room[0]] = source->setup.config->start;
    memcpy(ids + room[0] + 1, target, (n_target - 1) * sizeof *ids);
    memcpy(labels + room[0], target, n_target * sizeof *labels);
    client_row_number(row, 0, example->at, n_source);
    client_row_number(row, room[0], example->at + example->n[0], n_target); /* of what they predict */
    return 0;
}

static int targets_score(struct client_source *source, double *loss, uint64_t *n_valid, struct error *err)
{
    (void)source, (void)loss;
    return *n_valid > 0 ? 0 : error_set(err, -EINVAL, "the held-out rows have no target");
}

static bool targets_takes(const struct model_config *config, double mask_fraction)
{
    (void)mask_fraction;
    return model_has_source(config);
}

static bool targets_learns(const struct family *family)
{
    return family->has_source && !family->sees_images;
}

const struct client_source_ops client_source_targets = {
    .facts = {EPS_OF_TARGETS, "targets", "sources with targets", "eval", "perplexity"},
    .order = &client_listed_order,
    .bytes = sizeof(struct targets),
    .fields = 1u << PLAN_FIELD_IDS | 1u << PLAN_FIELD_LABELS | 1u << PLAN_FIELD_LENGTHS | 1u << PLAN_FIELD_ENTRIES,
    .learns = targets_learns,
    .takes = targets_takes,
    .refusal = "%s is not for sources and their targets: leave it out",
    .open = targets_open_source,
    .open_files = client_data_open,
    .read = targets_read_part,
    .settle = targets_settle,
    .measure = targets_measure,
    .divide = targets_divide,
    .describe = targets_describe,
    .read_row = targets_read_row,
    .score = targets_score,
};
