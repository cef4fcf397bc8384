/* eps data: what a model sees of files. */
#include "client/eps.h"
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/hub.h"
#include "tools/table_options.h"
#include "tools/usual.h"
#include "tools/screen/terminal.h"
#include "tools/screen/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct data {
    struct stopping stopping;
    json_t *rows;    /* NULL: they are printed */
    json_t *notes;   /* sentences; NULL: they are printed */
    json_t *classes; /* [name, rows to train on, held out] of images */
    struct text text;
};

static const char *const fates[] = {
    [EPS_KEPT] = "kept", [EPS_CUT] = "cut", [EPS_DROPPED] = "dropped", [EPS_UNANSWERED] = "unanswered"};
static const unsigned percents[EPS_DATA_QUANTILES] = {50, 90, 95, 99};

static int data_should_stop(void *user)
{
    struct data *d = user;
    return stopping_observer(&d->stopping);
}

/* ---- Rows as text: [[ and ]] around what is trained, | between tokens ---- */

static uint64_t count_trained(const struct eps_data_token *tokens, size_t n)
{
    uint64_t n_trained = 0;

    for (size_t i = 0; i < n; i++)
        n_trained += tokens[i].trained;
    return n_trained;
}

/* True if the bytes before are whole characters, so that a border may follow. */
static bool data_is_whole(const struct text *text)
{
    size_t at = text->n, n_more = 0;

    while (at > 0 && n_more < 3 && ((unsigned char)text->bytes[at - 1] & 0xC0) == 0x80)
        at--, n_more++;
    const unsigned char first = at > 0 ? (unsigned char)text->bytes[at - 1] : 0;
    return (first >= 0xF0 ? 3u : first >= 0xE0 ? 2u : first >= 0xC0 ? 1u : 0u) <= n_more;
}

/* Line breaks stay and are shown; other control characters are shown alone. */
static void print_bytes(FILE *out, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)bytes[i];
        if (c == '\n')
            fputs("\\n\n", out);
        else if (c == '\t')
            fputs("\\t", out);
        else if (c < 0x20 || c == 0x7F)
            fprintf(out, "\\x%02X", c);
        else if (c == 0xC2 && i + 1 < n && (unsigned char)bytes[i + 1] < 0xA0) /* a terminal's command in 8 bits */
            fprintf(out, "\\x%02X", (unsigned char)bytes[++i]);
        else
            putc(c, out);
    }
}

/* Prints the characters that tokens have completed. */
static void flush_text(struct data *d)
{
    print_bytes(stdout, d->text.bytes, d->text.n);
    d->text.n = 0;
}

/* n tokens, of which the first n_seen are seen. */
static void print_tokens(struct data *d, const struct eps_data_token *tokens, size_t n, size_t n_seen)
{
    const char *green = terminal_style(stdout, TERMINAL_GREEN), *plain = terminal_style(stdout, TERMINAL_PLAIN);
    bool trained = false;

    for (size_t i = 0; i < n; i++) {
        const struct eps_data_token *token = &tokens[i];
        char id[24];
        const bool now = token->trained && i < n_seen;
        if (i > 0 && data_is_whole(&d->text))
            flush_text(d);
        if (trained && !now)
            printf("]]%s", plain);
        if (i == n_seen)
            printf("%s%s", i > 0 ? "\n" : "", "not seen: ");
        else if (i > 0 && d->text.n == 0)
            putchar('|');
        if (now && !trained)
            printf("%s[[", green);
        trained = now;
        snprintf(id, sizeof id, "<%" PRIu32 ">", token->id);
        if (text_add(&d->text, token->text ? token->text : id, token->text ? token->n : strlen(id)))
            return;
    }
    flush_text(d);
    printf("%s\n\n", trained ? "]]" : "");
    fputs(plain, stdout);
}

static void print_fate(enum eps_fate fate)
{
    if (fate != EPS_KEPT)
        printf(", %s%s%s", terminal_style(stdout, TERMINAL_RED), fates[fate], terminal_style(stdout, TERMINAL_PLAIN));
    printf("\n");
}

/* Each document below a line that says where it is from: the border. */
static void print_documents(struct data *d, const struct eps_data_row *row)
{
    const struct eps_data_token *tokens = row->tokens;

    for (size_t i = 0; i < row->n_documents; i++) {
        const struct eps_data_document *document = &row->documents[i];
        printf("---- document %zu, %s:%" PRIu64 ": %zu tokens, %" PRIu64 " trained", i + 1, document->path,
               document->line, document->n, count_trained(tokens, document->n));
        print_fate(document->fate);
        print_tokens(d, tokens, document->n, document->n);
        tokens += document->n;
    }
}

static void data_print_row(struct data *d, const struct eps_data_row *row)
{
    printf("%srow %" PRIu64 "%s", terminal_style(stdout, TERMINAL_BOLD), row->number,
           terminal_style(stdout, TERMINAL_PLAIN));
    if (row->line > 0)
        printf(", %s:%" PRIu64, row->path, row->line);
    if (row->side)
        printf(", %s", row->side);
    if (row->n_documents > 0)
        printf(", %zu document%s", row->n_documents, row->n_documents > 1 ? "s" : "");
    printf(": %zu tokens, %" PRIu64 " trained", row->n, count_trained(row->tokens, row->n_seen));
    print_fate(row->fate);
    if (row->n_documents > 0)
        print_documents(d, row);
    else
        print_tokens(d, row->tokens, row->n, row->n_seen);
}

/* ---- Rows as JSON ---- */

/* NULL: the row is not packed. */
static json_t *documents_json(const struct eps_data_row *row)
{
    json_t *list = row->n_documents > 0 ? json_array() : NULL;

    for (size_t i = 0; i < row->n_documents; i++) {
        const struct eps_data_document *document = &row->documents[i];
        json_array_append_new(list, json_pack("{s:o, s:I, s:s, s:I}", "file", text_json(document->path), "line",
                                              (json_int_t)document->line, "fate", fates[document->fate], "tokens",
                                              (json_int_t)document->n));
    }
    return list;
}

static json_t *data_row_json(const struct eps_data_row *row)
{
    json_t *ids = json_array(), *texts = json_array(), *trained = json_array();

    for (size_t i = 0; i < row->n; i++) {
        const struct eps_data_token *token = &row->tokens[i];
        char *text = token->text ? strndup(token->text, token->n) : NULL;
        json_array_append_new(ids, json_integer(token->id));
        json_array_append_new(texts, text ? text_json(text) : json_null());
        json_array_append_new(trained, json_integer(token->trained && i < row->n_seen));
        free(text);
    }
    return json_pack("{s:I, s:o, s:o, s:s*, s:s, s:I, s:o, s:o, s:o, s:o*}", "row", (json_int_t)row->number, "file",
                     row->line > 0 ? text_json(row->path) : json_null(), "line",
                     row->line > 0 ? json_integer((json_int_t)row->line) : json_null(), "side", row->side, "fate",
                     fates[row->fate], "seen", (json_int_t)row->n_seen, "ids", ids, "texts", texts, "trained", trained,
                     "documents", documents_json(row));
}

static void on_row(void *user, const struct eps_data_row *row)
{
    struct data *d = user;

    if (d->rows)
        json_array_append_new(d->rows, data_row_json(row));
    else
        data_print_row(d, row);
}

static void data_on_class(void *user, const char *name, uint64_t n, uint64_t n_held_out)
{
    struct data *d = user;

    json_array_append_new(d->classes, json_pack("{s:o, s:I, s:I}", "name", text_json(name), "rows", (json_int_t)n,
                                                "held_out", (json_int_t)n_held_out));
}

static void data_on_note(void *user, const char *sentence)
{
    struct data *d = user;

    if (d->notes)
        json_array_append_new(d->notes, text_json(sentence));
    else
        fprintf(stderr, "eps data: %s\n", sentence);
}

/* ---- Images ---- */

static json_t *images_json(const struct data *d, const struct eps_data_images *i)
{
    json_t *mean = json_array(), *deviation = json_array();

    for (uint32_t c = 0; c < i->channels; c++) {
        json_array_append_new(mean, json_real(i->mean[c]));
        json_array_append_new(deviation, json_real(i->deviation[c]));
    }
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:[I, I], s:[I, I], s:o, s:o, s:O}", "kind", "images", "rows",
                     (json_int_t)i->n, "held_out", (json_int_t)i->n_held_out, "height", (json_int_t)i->height, "width",
                     (json_int_t)i->width, "channels", (json_int_t)i->channels, "least", (json_int_t)i->least_height,
                     (json_int_t)i->least_width, "most", (json_int_t)i->most_height, (json_int_t)i->most_width, "mean",
                     mean, "deviation", deviation, "classes", d->classes);
}

static void print_images(const struct data *d, const struct eps_data_images *i)
{
    json_t *class;
    size_t k;

    printf("images       %" PRIu64 ", %" PRIu64 " held out\n", i->n, i->n_held_out);
    printf("size         %" PRIu32 "x%" PRIu32 ", %s", i->height, i->width, i->channels == 1 ? "grey" : "in colour");
    if (i->least_height != i->height || i->least_width != i->width || i->most_height != i->height ||
        i->most_width != i->width)
        printf("; the images' own from %" PRIu32 "x%" PRIu32 " to %" PRIu32 "x%" PRIu32, i->least_height,
               i->least_width, i->most_height, i->most_width);
    printf("\nmean        ");
    for (uint32_t c = 0; c < i->channels; c++)
        printf(" %.4f", i->mean[c]);
    printf("\ndeviation   ");
    for (uint32_t c = 0; c < i->channels; c++)
        printf(" %.4f", i->deviation[c]);
    printf("\nclasses      %" PRIu32 "\n", i->n_classes);
    json_array_foreach(d->classes, k, class)
        printf("  %8lld  %6lld held out  %s\n", (long long)json_integer_value(json_object_get(class, "rows")),
               (long long)json_integer_value(json_object_get(class, "held_out")),
               json_string_value(json_object_get(class, "name")));
}

static json_t *counts_json(const struct eps_data_counts *c)
{
    json_t *quantiles = json_object();

    for (size_t i = 0; i < EPS_DATA_QUANTILES; i++) {
        char name[16];
        snprintf(name, sizeof name, "%u", percents[i]);
        json_object_set_new(quantiles, name, json_integer((json_int_t)c->quantiles[i]));
    }
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o*}", "kind",
                     eps_task_facts(c->teaches)->key, "seq", (json_int_t)c->seq, "lines", (json_int_t)c->n_lines,
                     "rows", (json_int_t)c->n_rows, "tokens", (json_int_t)c->n_tokens, "trained",
                     (json_int_t)c->n_trained, "spelled", (json_int_t)c->n_spelled, "cut", (json_int_t)c->n_cut,
                     "dropped", (json_int_t)c->n_dropped, "unanswered", (json_int_t)c->n_unanswered, "longest",
                     (json_int_t)c->longest, "quantiles", quantiles, "documents",
                     c->n_documents > 0 ? json_integer((json_int_t)c->n_documents) : NULL);
}

static void print_counts(const struct eps_data_counts *c)
{
    const double share = c->n_tokens > 0 ? 100 * (double)c->n_trained / (double)c->n_tokens : 0;

    if (c->conversations)
        printf("lines        %" PRIu64 "\n", c->n_lines);
    if (*c->packing)
        printf("rows         %s", c->packing);
    else
        printf("rows         %" PRIu64, c->n_rows);
    if (!*c->packing && c->n_cut + c->n_dropped + c->n_unanswered > 0)
        printf(": at --seq %" PRIu32 " %" PRIu64 " cut, %" PRIu64 " dropped, %" PRIu64
               " left out as no answer begins in them",
               c->seq, c->n_cut, c->n_dropped, c->n_unanswered);
    printf("\ntokens       %" PRIu64 ", %" PRIu64 " of them trained (%.1f %%)\n", c->n_tokens, c->n_trained, share);
    if (c->n_spelled > 0)
        printf("spelled      %" PRIu64 " special token%s in messages, split like any text: --split-special-tokens no "
               "makes tokens of them\n",
               c->n_spelled, c->n_spelled == 1 ? "" : "s");
    printf("length      ");
    for (size_t i = 0; i < EPS_DATA_QUANTILES; i++)
        printf(" %u %% of %s to %" PRIu64 ",", percents[i], *c->packing ? "documents" : "rows", c->quantiles[i]);
    printf(" longest %" PRIu64 "; --seq %" PRIu32 "\n", c->longest, c->seq);
}

int command_data(int argc, char **argv)
{
    struct argument_texts files = {0};
    struct eps_data_options asked = eps_data_defaults();
    struct table_options options = {.options = &asked};
    struct usual usual = {.threads = 0};
    bool json = false;
    struct hub hub = {.yes = false};
    const struct argument words = {"FILE...", NULL, ARGUMENT_WORDS, &files, "data, as --data of eps train takes it"};
    const struct argument own[] = {
        {"--json", NULL, ARGUMENT_FLAG, &json,
         "print one object: rows, a list of objects with row, file, line, side of a preference, fate, seen, ids, "
         "texts, trained and, with --pack, documents; counts; and notes, what of the data is not read. Of images "
         "counts "
         "and notes alone"},
        HUB_YES(&hub),
    };

    table_options_add(&options, &words, 1);
    table_options_take(&options, EPS_COMMAND_DATA);
    table_options_add(&options, own, sizeof own / sizeof *own);
    usual_add(&options, &usual, NULL);
    const struct command command = {
        "eps data",
        "Shows what a model sees of data before it is trained on them: the rows, their tokens "
        "with | between them, and in [[ ]], green on a terminal, the tokens that are trained. "
        "Then counts: rows, tokens, what --seq cuts, lengths; and what of the files is not read: keys, files.",
        options.arguments, options.n};
    static const struct eps_data_events events = {.on_row = on_row,
                                                  .on_class = data_on_class,
                                                  .should_stop = data_should_stop,
                                                  .on_note = data_on_note};
    struct data d = {.rows = NULL};
    struct eps_data_counts counts;
    struct eps_error error;
    int status = table_options_parse(&options, &command, argc, argv);

    if (status < 0)
        status = usual_apply(&usual, &command, NULL);
    if (status < 0)
        status = hub_find(&hub, &asked.model, HUB_NO_WEIGHTS, &command);
    if (status < 0) {
        stopping_init(&d.stopping);
        asked.data = files.items, asked.n_data = files.n;
        d.rows = json ? json_array() : NULL;
        d.notes = json ? json_array() : NULL;
        d.classes = json_array();
        const int rc = eps_data(&counts, &asked, &events, &d, &error);
        status = rc ? stopping_status(&d.stopping, arguments_fail(&command, rc, error.text)) : 0;
        if (!rc && json)
            answer_print(json_pack("{s:O, s:o, s:O}", "rows", d.rows, "counts",
                                   asked.images ? images_json(&d, &counts.images) : counts_json(&counts), "notes",
                                   d.notes));
        else if (!rc && asked.images)
            print_images(&d, &counts.images);
        else if (!rc)
            print_counts(&counts);
        json_decref(d.rows);
        json_decref(d.notes);
        json_decref(d.classes);
        free(d.text.bytes);
    }
    free(files.items);
    table_options_free(&options);
    return status;
}
