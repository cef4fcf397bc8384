/* Counts the words of texts; merges.c merges their tokens. */
#include "client/text/words.h"

#include "client/text/words_internal.h"

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
        w->table = calloc(FIRST_PLACES, sizeof *w->table);
        w->mask = FIRST_PLACES - 1;
    }
    if (!w || !w->table)
        rc = error_memory(err);
    else
        rc = tokenizer_pattern_open(&w->pattern, tokenizer_gpt2_pattern, err);
    if (!rc)
        rc = tokenizer_matcher_init(&w->matcher, err);
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
    tokenizer_pattern_close(w->pattern);
    tokenizer_matcher_free(&w->matcher);
    free(w->words);
    free(w->table);
    free(w->bytes);
    free(w);
}

static uint32_t *words_find(const struct client_words *w, const uint8_t *bytes, size_t n)
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
static int words_widen(struct client_words *w, struct error *err)
{
    const size_t places = 2 * (w->mask + 1);
    uint32_t *table = calloc(places, sizeof *table);

    if (!table)
        return error_set(err, -ENOMEM, "no memory for the words of the text");
    free(w->table);
    w->table = table, w->mask = places - 1;
    for (size_t i = 0; i < w->n; i++)
        *words_find(w, w->bytes + w->words[i].at, w->words[i].n) = (uint32_t)i + 1;
    return 0;
}

static int words_make_room(struct client_words *w, size_t n, struct error *err)
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

/* The place stays what it is while room is made, which moves words and their bytes, but not the table. */
static int words_add(struct client_words *w, const uint8_t *bytes, size_t n, struct error *err)
{
    uint32_t *place = words_find(w, bytes, n);

    if (*place) {
        w->words[*place - 1].count++;
        return 0;
    }
    int rc = words_make_room(w, n, err);
    if (rc)
        return rc;
    memcpy(w->bytes + w->n_bytes, bytes, n);
    w->words[w->n] = (struct word){.at = w->n_bytes, .n = (uint32_t)n, .count = 1};
    w->n_bytes += n;
    *place = (uint32_t)++w->n;
    return w->n > w->mask / 2 ? words_widen(w, err) : 0;
}

int client_words_count(struct client_words *w, size_t *used, const char *text, size_t n, bool last, struct error *err)
{
    size_t at = 0, end;
    int rc = 1;

    tokenizer_matcher_allow(&w->matcher, n);
    while (at < n && (rc = tokenizer_pattern_word(w->pattern, &w->matcher, text, n, at, last, &end, err)) > 0) {
        rc = words_add(w, (const uint8_t *)text + at, end - at, err);
        if (rc)
            break;
        at = end;
    }
    *used = at;
    return rc < 0 ? rc : 0;
}
