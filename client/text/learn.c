/* Counts the words of texts and learns a tokenizer from them; merges.c merges the words' tokens. */
#include "client/text/learn.h"

#include "client/data/data_file.h"
#include "client/text/tokenizer_internal.h"
#include "client/text/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { FIRST_PLACES = 1 << 16 };

int client_words_open(struct client_words **out, struct error *err)
{
    struct client_words *w = calloc(1, sizeof *w);
    int rc = 0;

    if (w) {
        w->splitter = calloc(1, sizeof *w->splitter);
        w->table = calloc(FIRST_PLACES, sizeof *w->table);
        w->mask = FIRST_PLACES - 1;
    }
    if (!w || !w->splitter || !w->table)
        rc = error_set(err, -ENOMEM, "out of memory");
    else
        rc = tokenizer_split_open(w->splitter, tokenizer_gpt2_pattern, err);
    if (rc) {
        client_words_close(w);
        return rc;
    }
    *out = w;
    return 0;
}

void client_words_close(struct client_words *w)
{
    if (!w)
        return;
    client_tokenizer_close(w->splitter);
    free(w->words);
    free(w->table);
    free(w->bytes);
    free(w);
}

static uint32_t *find(const struct client_words *w, const uint8_t *bytes, size_t n)
{
    size_t i = XXH3_64bits(bytes, n) & w->mask;

    for (; w->table[i]; i = (i + 1) & w->mask) {
        const struct word *word = &w->words[w->table[i] - 1];
        if (word->n == n && memcmp(w->bytes + word->at, bytes, n) == 0)
            break;
    }
    return &w->table[i];
}

/* Doubles the table, so that at least half of it stays empty. */
static int widen(struct client_words *w, struct error *err)
{
    const size_t places = 2 * (w->mask + 1);
    uint32_t *table = calloc(places, sizeof *table);

    if (!table)
        return error_set(err, -ENOMEM, "no memory for the words of the text");
    free(w->table);
    w->table = table, w->mask = places - 1;
    for (size_t i = 0; i < w->n; i++)
        *find(w, w->bytes + w->words[i].at, w->words[i].n) = (uint32_t)i + 1;
    return 0;
}

static int make_room(struct client_words *w, size_t n, struct error *err)
{
    if (w->n == w->cap) {
        const size_t cap = w->cap ? 2 * w->cap : 4096;
        struct word *words = realloc(w->words, cap * sizeof *words);
        if (!words)
            return error_set(err, -ENOMEM, "no memory for the words of the text");
        w->words = words, w->cap = cap;
    }
    if (w->cap_bytes - w->n_bytes < n) {
        const size_t cap = 2 * (w->cap_bytes + n);
        uint8_t *bytes = realloc(w->bytes, cap);
        if (!bytes)
            return error_set(err, -ENOMEM, "no memory for the words of the text");
        w->bytes = bytes, w->cap_bytes = cap;
    }
    return 0;
}

static int add(struct client_words *w, const uint8_t *bytes, size_t n, struct error *err)
{
    uint32_t *place = find(w, bytes, n);

    if (*place) {
        w->words[*place - 1].count++;
        return 0;
    }
    int rc = make_room(w, n, err);
    if (rc)
        return rc;
    memcpy(w->bytes + w->n_bytes, bytes, n);
    w->words[w->n] = (struct word){.at = w->n_bytes, .n = (uint32_t)n, .count = 1};
    w->n_bytes += n;
    *place = (uint32_t)++w->n;
    return w->n > w->mask / 2 ? widen(w, err) : 0;
}

int client_words_count(struct client_words *w, size_t *used, const char *text, size_t n, bool last, struct error *err)
{
    size_t at = 0, end;
    int rc = 1;

    while (at < n && (rc = tokenizer_split(w->splitter, text, n, at, last, &end, err)) > 0) {
        rc = add(w, (const uint8_t *)text + at, end - at, err);
        if (rc)
            break;
        at = end;
    }
    *used = at;
    return rc < 0 ? rc : 0;
}

/* ---- From a run's data ---- */

/* More text hardly changes the most frequent pairs. */
enum { ENOUGH_BYTES = 16 << 20 };

struct learning {
    struct client_data_pass pass;
    struct client_words *words;
    char *text; /* (ENOUGH_BYTES) from one file */
};

/* Each document is a text of its own: no word crosses into the next. */
static int count_documents(struct learning *l, const struct client_data_file *file, const char *text, size_t n,
                           struct error *err)
{
    size_t used;
    int rc = 0;

    for (size_t at = 0; !rc && at < n;) {
        const char *mark = file->marked ? memchr(text + at, CLIENT_DATA_MARK, n - at) : NULL;
        const size_t length = mark ? (size_t)(mark - text) - at : n - at;
        const size_t whole = client_utf8_whole((const uint8_t *)text + at, length);
        const uint8_t *rest = (const uint8_t *)text + at + whole;
        if (whole < length && (mark || client_utf8_character(rest, length - whole) < 0))
            return client_data_not_text(file, (uint64_t)((const char *)rest - l->text), *rest, err);
        rc = client_words_count(l->words, &used, text + at, whole, true, err);
        if (rc)
            error_prefix(err, file->path);
        at += length + 1;
    }
    return rc;
}

static int count_file(struct learning *l, const struct client_data_file *file, uint64_t total, struct error *err)
{
    const uint64_t share = (uint64_t)((unsigned __int128)file->bytes * ENOUGH_BYTES / total);
    const size_t n = (size_t)(total > ENOUGH_BYTES ? share : file->bytes);
    int rc = client_data_next(&l->pass, file, (uint8_t *)l->text, n, 0, err);

    if (rc)
        return rc;
    const size_t head = client_data_cut((const uint8_t *)l->text, n);
    return count_documents(l, file, l->text + head, n - head, err);
}

int client_learn_size(uint64_t *n, struct client_data *data, const struct client_data_rules *rules, struct error *err)
{
    struct client_data_pass pass = {.data = data, .rules = rules, .end = CLIENT_NO_TOKEN};
    int rc = 0;

    *n = 0;
    for (size_t i = 0; !rc && i < data->n_files; i++) {
        rc = client_data_unpack(&pass, &data->files[i], err);
        *n += data->files[i].bytes;
    }
    return rc;
}

static int count_files(struct learning *l, struct error *err)
{
    struct client_data *data = l->pass.data;
    uint64_t total = 0;
    int rc = 0;

    for (size_t i = 0; !rc && i < data->n_files; i++) {
        rc = client_data_extract(&l->pass, &data->files[i], err);
        total += data->files[i].bytes;
    }
    for (size_t i = 0; !rc && i < data->n_files; i++) {
        const struct client_data_file *file = &data->files[i];
        if (client_data_is_a_text(file) && file->bytes > 0)
            rc = count_file(l, file, total, err);
    }
    return rc;
}

int client_learn(json_t *side, struct client_data *data, uint32_t vocabulary, uint32_t n_positions,
                 const struct client_data_rules *rules, struct error *err)
{
    const bool ends = rules->separator != EPS_SEPARATOR_NONE;
    struct learning l = {.pass = {.data = data, .rules = rules, .end = ends ? CLIENT_TOKENIZER_END : CLIENT_NO_TOKEN},
                         .text = malloc(ENOUGH_BYTES)};
    struct client_merge *merges = NULL;
    uint32_t bytes[256];
    size_t n = 0;
    int rc = l.text ? client_words_open(&l.words, err) : error_set(err, -ENOMEM, "out of memory");

    client_tokenizer_order(bytes);
    if (!rc)
        rc = count_files(&l, err);
    if (!rc)
        rc = client_words_merge(&merges, &n, l.words, bytes, CLIENT_TOKENIZER_LEARNED, vocabulary, rules->watch, err);
    if (!rc)
        rc = client_tokenizer_add_learned(side, merges, n, n_positions, err);
    client_words_close(l.words);
    free(merges);
    free(l.text);
    return rc;
}
