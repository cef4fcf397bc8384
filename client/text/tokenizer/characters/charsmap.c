/* The table comes from a file, so nothing in it is trusted: each place in the trie is compared with its size, and a
 * replacement must begin at a character within the texts, whose last byte was checked to be zero: so strlen ends in
 * them. What replaces is the shortest text found, as in the package tokenizers, though SentencePiece itself takes the
 * longest. */
#include "client/text/tokenizer/characters/charsmap.h"

#include "client/text/tokenizer/characters/unicode.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

struct tokenizer_charsmap {
    uint32_t *units; /* (n_units) */
    size_t n_units;
    char *texts; /* (n_texts), the last one is zero */
    size_t n_texts;
};

enum { MOST_OF_GRAPHEME = 6 };

/* ---- The file's form ---- */

static uint32_t word_at(const uint8_t *bytes)
{
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static int charsmap_read_map(struct tokenizer_charsmap *map, const uint8_t *bytes, size_t n, struct error *err)
{
    const size_t trie = n >= 4 ? word_at(bytes) : 0;

    if (n < 4 || trie > n - 4 || trie < 4 || trie % 4 || n - 4 - trie == 0 || bytes[n - 1] != 0)
        return error_set(err, -EINVAL, "its normalizer Precompiled has no table of characters");
    map->n_units = trie / 4, map->n_texts = n - 4 - trie;
    map->units = malloc(trie);
    map->texts = malloc(map->n_texts);
    if (!map->units || !map->texts)
        return error_memory(err);
    for (size_t i = 0; i < map->n_units; i++)
        map->units[i] = word_at(bytes + 4 + 4 * i);
    memcpy(map->texts, bytes + 4 + trie, map->n_texts);
    if (client_utf8_whole((const uint8_t *)map->texts, map->n_texts) < map->n_texts)
        return error_set(err, -EINVAL, "its normalizer Precompiled has a text that is not UTF-8");
    return 0;
}

int tokenizer_charsmap_open(struct tokenizer_charsmap **out, const char *base64, struct error *err)
{
    struct tokenizer_charsmap *map = calloc(1, sizeof *map);
    const size_t room = strlen(base64) / 4 * 3 + 1;
    uint8_t *bytes = malloc(room);
    size_t n = 0;
    int rc = map && bytes ? 0 : error_memory(err);

    *out = NULL;
    if (!rc && sodium_base642bin(bytes, room, base64, strlen(base64), NULL, &n, NULL, sodium_base64_VARIANT_ORIGINAL))
        rc = error_set(err, -EINVAL, "its normalizer Precompiled has a precompiled_charsmap that is no base64");
    if (!rc)
        rc = charsmap_read_map(map, bytes, n, err);
    free(bytes);
    if (rc)
        tokenizer_charsmap_close(map);
    else
        *out = map;
    return rc;
}

void tokenizer_charsmap_close(struct tokenizer_charsmap *map)
{
    if (!map)
        return;
    free(map->units);
    free(map->texts);
    free(map);
}

/* ---- The trie ---- */

static size_t charsmap_offset_of(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & 1u << 9) >> 6);
}

/* What replaces the shortest text of the table that text (n bytes) begins with. NULL: it begins with none. */
static const char *charsmap_find(const struct tokenizer_charsmap *map, const char *text, size_t n)
{
    size_t place = charsmap_offset_of(map->units[0]);

    for (size_t i = 0; i < n && text[i]; i++) {
        place ^= (uint8_t)text[i];
        if (place >= map->n_units)
            return NULL;
        const uint32_t unit = map->units[place];
        if ((unit & (1u << 31 | 0xFF)) != (uint8_t)text[i])
            return NULL;
        place ^= charsmap_offset_of(unit);
        if (!(unit >> 8 & 1))
            continue;
        const size_t at = place < map->n_units ? map->units[place] & ~(1u << 31) : map->n_texts;
        return at < map->n_texts && ((uint8_t)map->texts[at] & 0xC0) != 0x80 ? map->texts + at : NULL;
    }
    return NULL;
}

/* Appends what replaces a text, or the text if nothing does and `must`. *done: it has. */
static int charsmap_add(bool *done, struct client_text *out, const struct tokenizer_charsmap *map, uint64_t *grows,
                        const char *text, size_t n, bool must, struct error *err)
{
    const char *to = charsmap_find(map, text, n);
    const size_t n_to = to ? strlen(to) : n;

    *done = to || must;
    if (!*done)
        return 0;
    if (n_to > n && n_to - n > *grows)
        return error_set(err, -E2BIG, "tokenizer.json: its normalizer Precompiled makes too many bytes of this text");
    *grows -= n_to > n ? n_to - n : 0;
    return client_text_add(out, to ? to : text, n_to, err);
}

int tokenizer_charsmap_apply(struct client_text *out, const struct tokenizer_charsmap *map, uint64_t *grows,
                             const char *text, size_t n, struct error *err)
{
    unsigned character;
    bool done = false;
    int rc = 0;

    for (size_t at = 0, length; !rc && at < n; at += length) {
        length = tokenizer_grapheme(text + at, n - at);
        done = false;
        if (length < MOST_OF_GRAPHEME)
            rc = charsmap_add(&done, out, map, grows, text + at, length, false, err);
        for (size_t i = at; !rc && !done && i < at + length; i += character) {
            bool taken;
            tokenizer_character(text + i, &character);
            rc = charsmap_add(&taken, out, map, grows, text + i, character, true, err);
        }
    }
    return rc;
}
