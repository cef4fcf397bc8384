/* Conversations, and prompts with completions: documents whose answers are learned, each a row, or several a row,
 * packed. A tenth of the conversations is held out, all documents of each. */
#include "client/corpus/layouts.h"
#include "client/task/packed.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

static const struct client_listed *answers_of(const struct client_source *source)
{
    return (const struct client_listed *)source;
}

static const struct client_listed_ops conversations = {
    .what = "conversation",
    .reader = "conversations need",
    .group = 1,
    .by_tokens = true,
    .length = client_document_rows_length,
    .find_fate = client_document_rows_fate,
    .refuse = client_document_rows_refuse,
    .none = "no conversation has an answer within",
};

static bool answers_has_line(const json_t *line)
{
    const enum client_layout layout = client_layout_of(line);

    return layout == CLIENT_LAYOUT_CONVERSATION || layout == CLIENT_LAYOUT_PROMPT;
}

static int answers_open_source(struct client_source *source, struct error *err)
{
    return client_listed_open(source, &conversations, err);
}

/* Whether rows can be packed depends on the family's layers, so a model is made to ask it, before any text is read. */
static int open_packed(struct client_source *source, struct error *err)
{
    struct model model;
    int rc = model_init(&model, source->setup.config, err);

    if (!rc)
        rc = client_source_check_packs(&model, err);
    model_free(&model);
    return rc ? rc : answers_open_source(source, err);
}

static int answers_read_part(struct client_source *source, enum client_part part,
                             const struct client_source_rules *rules, struct error *err)
{
    return client_document_rows_read(source, part,
                                     (struct client_documents_rules){.train_on = rules->train_on ? rules->train_on
                                                                                                 : EPS_TRAIN_ON_ANSWERS,
                                                                     .chat_template = rules->chat_template,
                                                                     .parses =
                                                                         rules->split_special_tokens == EPS_SPLIT_NO,
                                                                     .weighted = part == CLIENT_TRAIN,
                                                                     .watch = rules->watch},
                                     err);
}

/* Packed rows are as long as documents may be at most. */
static uint32_t answers_choose_seq(const struct client_source *source)
{
    return client_documents_seq(client_source_packs(source) ? UINT32_MAX / 2 : client_listed_longest(source),
                                source->setup.config->n_positions);
}

static int answers_settle(struct client_source *source, const struct client_source_rules *rules, struct error *err)
{
    ((struct client_listed *)source)->seq = rules->seq ? rules->seq : answers_choose_seq(source);
    const int rc = client_listed_settle(source, rules, err);

    return rc || !client_source_packs(source) ? rc : client_packed_settle(source, rules, err);
}

static void answers_measure(struct client_source_facts *out, const struct client_source *source)
{
    client_listed_measure(out, source);
    out->seq = answers_choose_seq(source);
    if (client_source_packs(source)) {
        out->flows = true;
        out->n_rows = client_packed_of(source)->packing.n_rows;
    }
}

static int answers_divide(struct client_source *source, const struct client_division *d, struct error *err)
{
    return client_listed_make_work(source, d->seq + (size_t)1, err);
}

static size_t describe_packed(char *out, size_t cap, const struct client_packed *p)
{
    const double rows = p->packing.n_rows;

    return (size_t)snprintf(out, cap, "; %" PRIu32 " packed rows of %.1f documents, %.0f %% full", p->packing.n_rows,
                            p->n / rows, 100 * (double)client_packed_tokens(p) / (rows * p->seq));
}

static void answers_describe(char *out, size_t cap, const struct client_source *source)
{
    static const char *const words[] = {[EPS_CUT] = "cut", [EPS_DROPPED] = "dropped", [EPS_UNANSWERED] = "unanswered"};
    const struct client_listed *l = answers_of(source);
    const struct client_corpus *documents = &l->corpus[CLIENT_TRAIN];
    const char *row = client_source_packs(source) ? "documents" : "rows", *between = "";
    size_t used = (size_t)snprintf(out, cap, "%zu conversations", documents->n_lines);

    if (documents->n > documents->n_lines)
        used += (size_t)snprintf(out + used, cap - used, " in %zu %s", documents->n, row);
    used += (size_t)snprintf(out + used, cap - used, ", %" PRIu32 " %s held out", l->subsets[CLIENT_HELD_OUT].n, row);
    if (client_source_packs(source))
        used += describe_packed(out + used, cap - used, client_packed_of(source));
    if (documents->n > l->fates[EPS_KEPT])
        used += (size_t)snprintf(out + used, cap - used, "; at --seq %" PRIu32 " ", l->seq);
    for (size_t i = EPS_CUT; i <= EPS_UNANSWERED; i++) {
        if (l->fates[i] == 0)
            continue;
        used += (size_t)snprintf(out + used, cap - used, "%s%zu %s", between, l->fates[i], words[i]);
        between = ", ";
    }
    if (l->fates[EPS_UNANSWERED] > 0)
        snprintf(out + used, cap - used, " and left out");
}

static int answers_read_packed(struct client_source *source, const struct client_row_fields *row, enum client_part part,
                               struct client_sample sample, struct error *err)
{
    const struct client_packed_rows *p = (const struct client_packed_rows *)source;

    return client_packed_get(&p->packed[part], row, p->rows.work, (uint32_t)sample.id, err);
}

static int answers_score(struct client_source *source, double *loss, uint64_t *n_valid, struct error *err)
{
    (void)source, (void)loss;
    return *n_valid > 0 ? 0 : error_set(err, -EINVAL, "the held-out rows have no answer");
}

const struct client_source_ops client_source_conversations = {
    .facts = {EPS_OF_CONVERSATIONS, "conversations", "conversations", "chat", "perplexity"},
    .order = &client_listed_order,
    .bytes = sizeof(struct client_packed_rows),
    .fields = 1u << PLAN_FIELD_IDS | 1u << PLAN_FIELD_LABELS | 1u << PLAN_FIELD_ENTRIES,
    .learns = client_source_predicts_next,
    .has_line = answers_has_line,
    .refusal = "%s is not for conversations, which are rows of their own: leave it out",
    .packing = &client_source_packed,
    .open = answers_open_source,
    .open_files = client_data_open,
    .read = answers_read_part,
    .settle = answers_settle,
    .measure = answers_measure,
    .divide = answers_divide,
    .describe = answers_describe,
    .read_row = client_document_rows_get,
    .score = answers_score,
};

const struct client_source_ops client_source_packed = {
    .facts = {EPS_OF_CONVERSATIONS, "conversations", "packed conversations", "chat", "perplexity"},
    .order = &client_packed_order,
    .bytes = sizeof(struct client_packed_rows),
    .fields = 1u << PLAN_FIELD_IDS | 1u << PLAN_FIELD_LABELS | 1u << PLAN_FIELD_POSITIONS | 1u << PLAN_FIELD_ENTRIES,
    .learns = client_source_predicts_next,
    .has_line = answers_has_line,
    .open = open_packed,
    .open_files = client_data_open,
    .read = answers_read_part,
    .settle = answers_settle,
    .measure = answers_measure,
    .divide = answers_divide,
    .describe = answers_describe,
    .read_row = answers_read_packed,
    .score = answers_score,
};
