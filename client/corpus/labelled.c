/* A new class has its number only when all rows are read, as names are sorted: until then rows have numbers in the
 * order of arrival (sort_labels). So the checksum is made of labels' texts and of tokens, never of numbers. */
#include "client/corpus/labelled.h"

#include "client/corpus/columns.h"
#include "client/data/data_file.h"
#include "proto/base/wide.h"
#include "proto/plan/memory/data.h"
#include "proto/wire/message.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { MOST_FIELDS = 10000, MOST_KEYS = 256 };

struct text {
    const char *bytes; /* NULL: there is none */
    size_t n;
};

/* State of client_labelled_read. */
struct reading {
    struct client_corpus *rows;
    struct client_pairs *pairs;
    struct client_labels *labels;
    const struct client_labelled_rules *rules;
    struct client_data_pass pass;
    struct client_columns columns;
    XXH3_state_t *hash;
    struct client_tokens tokens; /* of the current row */
    /* The current file: */
    struct client_data_file *file;
    uint32_t file_number;
    uint64_t line;
    bool begun; /* its columns are known */
    size_t at[CLIENT_COLUMNS];
    const char *keys[CLIENT_COLUMNS]; /* of .jsonl; owned */
    size_t n_fields;                  /* of .tsv */
    bool has_label;                   /* of .jsonl: some object has the label's key */
    struct text *fields;              /* (MOST_FIELDS) of the current line */
};

/* Rows that are to be predicted may lack a label, or have the -1 of GLUE's test files for it. */
static bool labelled_is_absent(const struct reading *r, struct text label)
{
    if (!label.bytes || !r->rules->unlabelled)
        return !label.bytes;
    const bool hidden = label.n == 2 && memcmp(label.bytes, "-1", 2) == 0;
    return label.n == 0 || (hidden && !r->labels->numbers && !json_object_get(r->labels->index, "-1"));
}

/* The label's text is hashed, not its number, which is not final yet. */
static int add_label(struct reading *r, struct client_example *row, struct text label, struct error *err)
{
    row->label = PLAN_NO_LABEL;
    if (labelled_is_absent(r, label))
        return 0;
    XXH3_64bits_update(r->hash, label.bytes, label.n);
    const int rc = r->labels->numbers ? client_labels_number(&row->label, label.bytes, label.n, err)
                                      : client_labels_find(&row->label, r->labels, label.bytes, label.n, err);
    if (rc == -EINVAL && r->rules->unlabelled && r->rules->columns && r->at[CLIENT_COLUMN_SECOND] == CLIENT_NO_COLUMN)
        error_append(err, "; if this column is a second text, end --columns with a comma");
    return rc;
}

static int labelled_add_text(struct reading *r, uint32_t *n, struct text text, struct error *err)
{
    const size_t before = r->tokens.n;
    size_t used;
    const int rc = client_tokenizer_encode(&r->tokens, &used, r->rules->tokenizer, text.bytes, text.n, true, err);

    *n = (uint32_t)(r->tokens.n - before);
    return rc;
}

/* The end token that a row gets may be the last one that its text spells: n counts that text's tokens. */
static void row_drop_end(struct reading *r, uint32_t *n)
{
    size_t n_ends;
    const uint32_t *ends = client_tokenizer_ends(r->rules->tokenizer, &n_ends);

    if (n_ends == 1 && *n > 0 && r->tokens.ids[r->tokens.n - 1] == ends[0])
        r->tokens.n--, --*n;
}

/* Rows are kept without the tokens that join their texts: those depend on the length to which they are cut. */
static int labelled_add_row(struct reading *r, const struct text columns[CLIENT_COLUMNS], struct error *err)
{
    struct client_example row = {.is_paired = columns[CLIENT_COLUMN_SECOND].bytes != NULL,
                                 .file = r->file_number,
                                 .line = r->line < UINT32_MAX ? (uint32_t)r->line : UINT32_MAX};
    int rc = add_label(r, &row, columns[CLIENT_COLUMN_LABEL], err);

    r->tokens.n = 0;
    if (!rc && row.is_paired && !r->pairs->has_pair)
        rc = error_set(err, -EINVAL, "it has two texts, and the model's tokenizer.json does not say how to join them");
    client_tokenizer_led(r->rules->tokenizer);
    if (!rc)
        rc = labelled_add_text(r, &row.n[0], columns[CLIENT_COLUMN_FIRST], err);
    if (!rc && row.is_paired)
        rc = labelled_add_text(r, &row.n[1], columns[CLIENT_COLUMN_SECOND], err);
    if (!rc)
        row_drop_end(r, &row.n[row.is_paired]);
    if (!rc && r->tokens.n == 0 && client_pairs_added(r->pairs, row.is_paired) == 0)
        rc = error_set(err, -EINVAL, "its text is empty, and the model's tokenizer adds no token to it");
    if (rc)
        return rc;
    XXH3_64bits_update(r->hash, row.n, sizeof row.n);
    XXH3_64bits_update(r->hash, r->tokens.ids, r->tokens.n * sizeof *r->tokens.ids);
    return client_corpus_add(r->rows, row, r->tokens.ids, r->file, err);
}

/* ---- TSV ---- */

/* Fields point into the line; empty ones count. */
static int labelled_split(struct reading *r, size_t *n, const char *line, size_t bytes, struct error *err)
{
    *n = 0;
    for (size_t from = 0;; *n += 1) {
        const char *tab = memchr(line + from, '\t', bytes - from);
        const size_t to = tab ? (size_t)(tab - line) : bytes;
        if (*n == MOST_FIELDS)
            return error_set(err, -EINVAL, "more than %d fields", MOST_FIELDS);
        r->fields[*n] = (struct text){line + from, to - from};
        if (!tab)
            break;
        from = to + 1;
    }
    *n += 1;
    return 0;
}

/* "sentence,label": the fields that --columns numbers. */
static void say_names(char *out, size_t cap, const struct reading *r)
{
    size_t used = 0;

    *out = 0;
    for (size_t i = 0; i < CLIENT_COLUMNS; i++) {
        if (r->at[i] == CLIENT_NO_COLUMN)
            continue;
        const struct text *field = &r->fields[r->at[i]];
        const int n = (int)(field->n < CLIENT_COLUMN_NAME_BYTES ? field->n : CLIENT_COLUMN_NAME_BYTES);
        used += (size_t)snprintf(out + used, cap - used, "%s%.*s", used ? "," : "", n, field->bytes);
    }
    if (r->at[CLIENT_COLUMN_SECOND] != CLIENT_NO_COLUMN && r->at[CLIENT_COLUMN_LABEL] == CLIENT_NO_COLUMN)
        snprintf(out + used, cap - used, ",");
}

/* Columns by number: the first line says only how many there are. */
static int begin_numbered(struct reading *r, struct error *err)
{
    char names[CLIENT_COLUMNS * (CLIENT_COLUMN_NAME_BYTES + 1) + 1];
    bool named = false;

    for (size_t i = 0; i < CLIENT_COLUMNS; i++) {
        r->at[i] = r->columns.numbers[i];
        if (r->at[i] == CLIENT_NO_COLUMN)
            continue;
        if (r->at[i] >= r->n_fields)
            return error_set(err, -EINVAL, "no column %zu, only %zu field%s between tabs", r->at[i] + 1, r->n_fields,
                             r->n_fields == 1 ? "" : "s");
        const struct text *field = &r->fields[r->at[i]];
        named = named || client_columns_is_name(i, field->bytes, field->n);
    }
    if (!named)
        return 0;
    say_names(names, sizeof names, r);
    return error_set(
        err, -EINVAL,
        "its fields are names of columns, and --columns has numbers: give --columns %s; if it is a row, put "
        "a line of names before it",
        names);
}

/* Columns that nobody reads are counted, so that the user hears of a name that was misspelt. */
static int begin_named(struct reading *r, struct error *err)
{
    char **names = calloc(r->n_fields + 1, sizeof *names);
    int rc = names ? 0 : error_memory(err);

    for (size_t i = 0; !rc && i < r->n_fields; i++) {
        names[i] = strndup(r->fields[i].bytes, r->fields[i].n);
        rc = names[i] ? 0 : error_memory(err);
    }
    if (!rc)
        rc = client_columns_find(r->at, &r->columns, (const char *const *)names, r->n_fields, err);
    for (size_t i = 0; !rc && i < CLIENT_COLUMNS; i++)
        for (size_t k = 0; !rc && r->at[i] != CLIENT_NO_COLUMN && k < r->n_fields; k++)
            if (k != r->at[i] && strcmp(names[k], names[r->at[i]]) == 0)
                rc = error_set(
                    err, -EINVAL,
                    "the columns %zu and %zu are both named '%.40s': rename one, or give --columns by numbers",
                    r->at[i] + 1, k + 1, names[k]);
    for (size_t i = 0; !rc && i < r->n_fields; i++)
        if (i != r->at[CLIENT_COLUMN_FIRST] && i != r->at[CLIENT_COLUMN_SECOND] && i != r->at[CLIENT_COLUMN_LABEL])
            client_unread_count(&r->file->unread, CLIENT_UNREAD_COLUMN, names[i], r->line);
    for (size_t i = 0; names && i < r->n_fields; i++)
        free(names[i]);
    free(names);
    return rc;
}

/* What went wrong may have another cause than the sentence says: another kind of line ends or separators. */
static int begin_tsv(struct reading *r, const char *line, size_t bytes, struct error *err)
{
    const int rc = r->columns.numbered ? begin_numbered(r, err) : begin_named(r, err);

    if (rc == -EINVAL && memchr(line, '\r', bytes))
        return error_set(err, rc, "the file's lines end in CR alone: convert it, with tr '\\r' '\\n'");
    if (rc == -EINVAL && r->n_fields == 1 && memchr(line, ',', bytes))
        return error_set(err, rc, "it has commas and no tab: fields are separated by tabs (TSV), not by commas (CSV)");
    return rc;
}

/* Whether an empty line is a row, whose only field is an empty text. */
static bool has_one_column(const struct reading *r)
{
    if (r->begun)
        return r->n_fields == 1;
    return r->columns.numbers[CLIENT_COLUMN_FIRST] == 0 && r->columns.numbers[CLIENT_COLUMN_LABEL] == CLIENT_NO_COLUMN;
}

/* As other programs write a field with a tab, a line's end or a quote in it. */
static bool is_quoted(struct text field)
{
    return field.n > 1 && field.bytes[0] == '"' && field.bytes[field.n - 1] == '"';
}

static int take_tsv(struct reading *r, const char *line, size_t bytes, struct error *err)
{
    struct text columns[CLIENT_COLUMNS] = {{NULL, 0}};
    size_t n;

    if (bytes > 0 && line[bytes - 1] == '\r')
        bytes--;
    if (bytes == 0 && !has_one_column(r))
        return 0;
    int rc = labelled_split(r, &n, line, bytes, err);
    if (!rc && !r->begun) {
        r->begun = true;
        r->n_fields = n;
        rc = begin_tsv(r, line, bytes, err);
        if (!r->columns.numbered)
            return rc;
    }
    if (!rc && n != r->n_fields)
        rc = error_set(
            err, -EINVAL,
            "%zu field%s between tabs, and the file's first line has %zu: correct the tabs, or remove the line "
            "(awk -F '\\t' 'NF == %zu' keeps the lines with %zu)",
            n, n == 1 ? "" : "s", r->n_fields, r->n_fields, r->n_fields);
    for (size_t i = 0; !rc && i < CLIENT_COLUMNS; i++)
        if (r->at[i] != CLIENT_NO_COLUMN) {
            columns[i] = r->fields[r->at[i]];
            r->file->unread.n_quoted += is_quoted(columns[i]);
        }
    return rc ? rc : labelled_add_row(r, columns, err);
}

/* ---- JSON lines ---- */

static void forget_keys(struct reading *r)
{
    for (size_t i = 0; i < CLIENT_COLUMNS; i++) {
        free((char *)(uintptr_t)r->keys[i]);
        r->keys[i] = NULL;
    }
}

/* The first object's keys say which columns the file has. Where rows need no label, a later one may have the first. */
static int begin_keys(struct reading *r, json_t *object, struct error *err)
{
    const char *names[MOST_KEYS], *name, *label = r->columns.names[CLIENT_COLUMN_LABEL];
    const bool later = r->rules->unlabelled && *label && !json_object_get(object, label);
    struct client_columns columns = r->columns;
    size_t n = 0;
    json_t *value;

    if (r->columns.numbered)
        return error_set(err, -EDOM, "--columns has numbers, and .jsonl has names");
    json_object_foreach(object, name, value) if (n < MOST_KEYS) names[n++] = name;
    if (later)
        *columns.names[CLIENT_COLUMN_LABEL] = 0;
    int rc = client_columns_find(r->at, &columns, names, n, err);
    for (size_t i = 0; !rc && i < CLIENT_COLUMNS; i++) {
        const char *key = later && i == CLIENT_COLUMN_LABEL ? label
                          : r->at[i] == CLIENT_NO_COLUMN    ? NULL
                                                            : names[r->at[i]];
        r->keys[i] = key ? strdup(key) : NULL;
        if (key && !r->keys[i])
            rc = error_memory(err);
    }
    return rc;
}

/* The name of a class is the shortest that reads back as the number, "0.1". A regression's label has 17 digits, which
 * its rows' checksum is made of. */
static void labelled_print_real(char made[40], double value, bool is_class)
{
    int digits = is_class ? 15 : 17;

    do
        snprintf(made, 40, "%.*g", digits, value);
    while (strtod(made, NULL) != value && digits++ < 17);
}

/* A label is a text, a number or a truth value, and means what it looks like. made: room for a number. */
static int take_value(const struct reading *r, struct text *out, char made[40], const json_t *value, size_t column,
                      struct error *err)
{
    const bool is_label = column == CLIENT_COLUMN_LABEL;

    if (wide_spelling(value))
        return error_set(err, -EINVAL, "its '%s' is %.40s, which is no number that can be read here", r->keys[column],
                         wide_spelling(value));
    if (json_is_string(value)) {
        *out = (struct text){json_string_value(value), json_string_length(value)};
        return 0;
    }
    if (is_label && json_is_integer(value))
        snprintf(made, 40, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (is_label && json_is_real(value))
        labelled_print_real(made, json_real_value(value), !r->labels->numbers);
    else if (is_label && json_is_boolean(value))
        snprintf(made, 40, "%s", json_is_true(value) ? "true" : "false");
    else
        return error_set(err, -EINVAL, value ? "its '%s' is no %s" : "it has no '%s'", r->keys[column],
                         is_label ? "text and no number" : "text");
    *out = (struct text){made, strlen(made)};
    return 0;
}

static int labelled_take_object(struct reading *r, json_t *object, struct error *err)
{
    struct text columns[CLIENT_COLUMNS] = {{NULL, 0}};
    char made[40];
    int rc = 0;

    if (!r->begun)
        rc = begin_keys(r, object, err);
    r->begun = true;
    for (size_t i = 0; !rc && i < CLIENT_COLUMNS; i++) {
        const bool is_label = i == CLIENT_COLUMN_LABEL;
        const json_t *value = r->keys[i] ? json_object_get(object, r->keys[i]) : NULL;
        const bool absent = is_label && r->rules->unlabelled && (!value || json_is_null(value));
        r->has_label = r->has_label || (is_label && value);
        if (r->keys[i] && !absent)
            rc = take_value(r, &columns[i], made, value, i, err);
    }
    return rc ? rc : labelled_add_row(r, columns, err);
}

static void labelled_count_unread(struct reading *r, const json_t *object)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        bool is_read = json_is_null(value);
        for (size_t i = 0; i < CLIENT_COLUMNS; i++)
            is_read = is_read || (r->keys[i] && strcmp(r->keys[i], key) == 0);
        if (!is_read)
            client_unread_count(&r->file->unread, CLIENT_UNREAD_KEY, key, r->line);
    }
}

static int take_json(struct reading *r, const char *line, size_t n, struct error *err)
{
    json_error_t why;

    if (client_data_is_blank(line, n))
        return 0;
    json_t *object = wide_read(line, n, JSON_ALLOW_NUL, &why);
    const int rc = json_is_object(object)
                       ? labelled_take_object(r, object, err)
                       : error_set(err, -EINVAL, "no JSON object (%.100s)", object ? "another value" : why.text);
    if (!rc)
        labelled_count_unread(r, object);
    json_decref(object);
    return rc;
}

/* Faults of the data are placed; -EDOM is one of the options, -EINTR nobody's. */
static int labelled_on_line(void *user, const char *line, size_t n, uint64_t number, struct error *err)
{
    struct reading *r = user;
    char where[64];

    r->line = number;
    const int rc = r->file->kind == CLIENT_DATA_LINES ? take_json(r, line, n, err) : take_tsv(r, line, n, err);

    if (rc == -EINVAL || rc == -E2BIG) {
        snprintf(where, sizeof where, "line %" PRIu64, number);
        error_prefix(err, where);
        error_prefix(err, r->file->path);
    }
    return rc;
}

/* Each file has columns of its own. */
static int labelled_read_file(struct reading *r, struct client_data_file *file, struct error *err)
{
    const size_t before = r->rows->n;

    r->file = file;
    r->begun = r->has_label = false;
    if (file->kind == CLIENT_DATA_BIN || file->kind == CLIENT_DATA_NPY)
        return error_set(err, -EINVAL, "%s: token ids have no labels: give a .tsv or .jsonl", file->path);
    int rc = client_data_unpack(&r->pass, file, err);
    if (!rc)
        rc = client_data_each_line(&r->pass, file, labelled_on_line, r, err);
    if (!rc && r->keys[CLIENT_COLUMN_LABEL] && !r->has_label) {
        rc = error_set(err, -EINVAL, "%s: no row has '%s'", file->path, r->keys[CLIENT_COLUMN_LABEL]);
        client_columns_say_unlabelled(err, &r->columns);
    }
    forget_keys(r);
    if (!rc && r->rows->n == before)
        rc = error_set(err, -EINVAL, "%s: no row in it", file->path);
    return rc;
}

/* The labels of a fresh list got their numbers as they came. */
static int sort_labels(struct reading *r, struct error *err)
{
    struct client_labels *labels = r->labels;

    if (labels->fixed || labels->numbers)
        return 0;
    uint32_t *to = calloc(labels->n + 1, sizeof *to);
    if (!to)
        return error_memory(err);
    const int rc = client_labels_sort(labels, to, err);
    for (size_t i = 0; !rc && i < r->rows->n; i++)
        if (r->rows->list[i].label != PLAN_NO_LABEL)
            r->rows->list[i].label = to[r->rows->list[i].label];
    free(to);
    return rc;
}

int client_labelled_read(struct client_corpus *out, struct client_pairs *pairs, struct client_data *data,
                         struct client_labels *labels, const struct client_labelled_rules *rules, struct error *err)
{
    const struct client_data_rules watched = {.watch = rules->watch};
    XXH3_state_t *hash = XXH3_createState();
    struct reading r = {.rows = out,
                        .pairs = pairs,
                        .labels = labels,
                        .rules = rules,
                        .pass = {.data = data, .rules = &watched, .hash = hash, .end = CLIENT_NO_TOKEN},
                        .hash = hash,
                        .fields = calloc(MOST_FIELDS, sizeof *r.fields)};
    int rc = client_columns_parse(&r.columns, rules->columns, rules->unlabelled, err);

    *out = (struct client_corpus){.fd = -1};
    if (!rc)
        rc = client_data_refuse_weights(data, err);
    if (!rc && (!hash || !r.fields))
        rc = error_memory(err);
    if (!rc)
        rc = client_pairs_init(pairs, rules->tokenizer, err);
    if (!rc) {
        XXH3_64bits_reset(hash);
        rc = client_corpus_init(out, err);
    }
    client_tokenizer_watch(rules->tokenizer, rules->watch);
    for (; !rc && r.file_number < data->n_files; r.file_number++)
        rc = labelled_read_file(&r, &data->files[r.file_number], err);
    client_tokenizer_watch(rules->tokenizer, NULL);
    if (!rc)
        rc = sort_labels(&r, err);
    if (!rc)
        out->hash = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    free(r.fields);
    free(r.tokens.ids);
    return rc;
}

static struct client_texts texts_of(const struct client_example *row)
{
    return (struct client_texts){{row->n[0], row->n[1]}, row->is_paired};
}

uint32_t client_labelled_length(const struct client_corpus *rows, const struct client_pairs *pairs, size_t k)
{
    const struct client_example *row = &rows->list[k];

    return row->n[0] + row->n[1] + client_pairs_added(pairs, row->is_paired);
}

/* work holds both texts, each in seq tokens, of which only those are read that are left after cutting. */
int64_t client_labelled_get(const struct client_corpus *rows, const struct client_pairs *pairs, uint32_t *ids,
                            uint32_t *second, uint32_t *work, size_t k, uint32_t seq, struct error *err)
{
    const struct client_example *row = &rows->list[k];
    const struct client_texts left = client_pairs_cut(pairs, texts_of(row), seq);
    int rc = client_data_reread(rows->fd, work, row->at, left.n[0], err);

    if (!rc)
        rc = client_data_reread(rows->fd, work + seq, row->at + row->n[0], left.n[1], err);
    if (rc)
        return rc;
    return client_pairs_write(ids, second, pairs, texts_of(row), (const uint32_t *const[2]){work, work + seq}, seq);
}

uint32_t client_labelled_least(const struct client_corpus *rows, const struct client_pairs *pairs)
{
    uint32_t least = 1;

    for (size_t i = 0; i < rows->n; i++) {
        const bool paired = rows->list[i].is_paired;
        const uint32_t n = client_pairs_added(pairs, paired) + 1 + paired;
        least = n > least ? n : least;
    }
    return least;
}
