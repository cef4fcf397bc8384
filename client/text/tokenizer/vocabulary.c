/* Builds tokens by id, ids by text, and merges by the ids of their halves. */
#include "client/text/tokenizer/tokenizer_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* GPT-2's letters: printable Latin-1 characters stand for themselves, the other 68 bytes are U+0100 and up. */
static unsigned letter_of(unsigned byte)
{
    if ((byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174)
        return byte;
    if (byte <= 32)
        return 256 + byte;
    return byte < 161 ? 256 + 33 + byte - 127 : 256 + 67;
}

enum { N_LETTERS = 256 + 68 };

unsigned tokenizer_letter(char out[3], unsigned byte)
{
    const unsigned c = letter_of(byte);

    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    out[0] = (char)(0xC0 | c >> 6);
    out[1] = (char)(0x80 | (c & 0x3F));
    return 2;
}

struct build {
    struct client_tokenizer *t;
    json_t *vocabulary;
    int16_t bytes[N_LETTERS]; /* byte of each letter; -1: no byte */
    size_t used;              /* bytes used of the block */
};

static int check_id(uint32_t *out, const char *text, const json_t *id, uint32_t n_ids, struct error *err)
{
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= n_ids)
        return error_set(err, -EINVAL,
                         "token %.60s has the id %" JSON_INTEGER_FORMAT ", outside the model's vocabulary "
                         "of %u: the tokenizer is of another model",
                         text, json_integer_value(id), n_ids);
    *out = (uint32_t)json_integer_value(id);
    return 0;
}

/* Checks all ids and allocates the tokens. Added tokens may lie outside the model's table: their ids follow one
 * another, so there are no more of them than the file has. */
static int vocabulary_make_room(struct build *b, json_t *added, uint32_t n_ids, struct error *err)
{
    json_t *lists[2] = {b->vocabulary, added}, *id;
    uint32_t largest = 0, number = 0;
    size_t bytes = 1;
    const char *text;

    for (int i = 0; i < 2; i++) {
        json_object_foreach(lists[i], text, id)
        {
            int rc = check_id(&number, text, id, i == 0 ? n_ids : UINT32_MAX - 1, err);
            if (rc)
                return rc;
            largest = number > largest ? number : largest;
            bytes += strlen(text);
        }
    }
    b->t->n_tokens = largest + 1;
    b->t->tokens = calloc(b->t->n_tokens, sizeof *b->t->tokens);
    b->t->block = malloc(bytes);
    return b->t->tokens && b->t->block ? 0 : error_memory(err);
}

/* Converts byte letters to bytes. out has room for strlen(text). False if a letter stands for no byte. text is valid
 * UTF-8, as the JSON parser guarantees. */
static bool to_bytes(const struct build *b, char *out, size_t *n, const char *text)
{
    const uint8_t *at = (const uint8_t *)text;

    for (*n = 0; *at; at++) {
        unsigned c = *at;
        if (c >= 0xC0) { /* two UTF-8 bytes encode more letters than the table has */
            c = (c & 0x1F) << 6 | (at[1] & 0x3Fu);
            if (*at++ >= 0xE0)
                return false;
        }
        if (c >= N_LETTERS || b->bytes[c] < 0)
            return false;
        out[(*n)++] = (char)b->bytes[c];
    }
    return true;
}

/* ---- Ids by text ---- */

/* At least half of the places are empty, so the search ends. */
static uint32_t *vocabulary_find_place(const struct client_tokenizer *t, const char *text, size_t n)
{
    size_t i = XXH3_64bits(text, n) & t->map.mask;

    for (; t->map.places[i]; i = (i + 1) & t->map.mask) {
        const struct tokenizer_token *token = &t->tokens[t->map.places[i] - 1];
        if (token->n == n && memcmp(token->text, text, n) == 0)
            break;
    }
    return &t->map.places[i];
}

uint32_t tokenizer_find_id(const struct client_tokenizer *t, const char *text, size_t n)
{
    const uint32_t place = *vocabulary_find_place(t, text, n);
    return place ? place - 1 : CLIENT_NO_TOKEN;
}

static int make_map(struct client_tokenizer *t, size_t n, struct error *err)
{
    size_t places = 16;

    while (places < 2 * n)
        places *= 2;
    t->map.places = calloc(places, sizeof *t->map.places);
    t->map.mask = places - 1;
    return t->map.places ? 0 : error_memory(err);
}

/* ---- Tokens by id ---- */

/* True if the token is what the vocabulary says: one of bytes that its letters do not spell is not. */
static bool vocabulary_place(struct build *b, uint32_t id, const char *text, bool in_letters)
{
    struct tokenizer_token *token = &b->t->tokens[id];
    const bool as_said = !in_letters || !b->t->byte_level;
    size_t n = strlen(text);

    token->text = b->t->block + b->used;
    const bool spelled = !as_said && to_bytes(b, token->text, &n, text);
    if (!spelled) {
        n = strlen(text);
        memcpy(token->text, text, n);
    }
    token->n = (uint32_t)n;
    b->used += n;
    return as_said || spelled;
}

/* An added token may be in the vocabulary, too; its text is then plain, not byte letters. */
static int vocabulary_place_all(struct build *b, json_t *added, struct error *err)
{
    json_t *lists[2] = {b->vocabulary, added}, *id;
    const char *text;
    int rc = make_map(b->t, json_object_size(b->vocabulary), err);

    for (int i = 0; !rc && i < 2; i++) {
        json_object_foreach(lists[i], text, id)
        {
            const uint32_t number = (uint32_t)json_integer_value(id);
            const struct tokenizer_token *token = &b->t->tokens[number];
            const bool again = i == 1 && json_equal(json_object_get(b->vocabulary, text), id);
            if (token->text && !again)
                return error_set(err, -EINVAL, "two tokens have the id %u", number);
            if (vocabulary_place(b, number, text, i == 0) && i == 0)
                *vocabulary_find_place(b->t, token->text, token->n) = number + 1;
        }
    }
    return rc;
}

/* A byte-level model must have a token for each byte; others may, as in "<0x0A>". */
static int find_bytes(struct build *b, struct error *err)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        char letter[8] = "";
        if (b->t->byte_level)
            tokenizer_letter(letter, byte);
        else
            snprintf(letter, sizeof letter, "<0x%02X>", byte);
        const json_t *id = b->t->no_bytes ? NULL : json_object_get(b->vocabulary, letter);
        if (!id && b->t->byte_level)
            return error_set(err, -EINVAL,
                             "its vocabulary has no token for the byte 0x%02X, so it cannot encode every text", byte);
        b->t->bytes[byte] = id ? (uint32_t)json_integer_value(id) : CLIENT_NO_TOKEN;
    }
    return 0;
}

/* Splits a merge, "a b" or ["a", "b"], into its halves: text[i] has length n[i]. */
static bool vocabulary_read_halves(const char *text[2], size_t n[2], const json_t *merge)
{
    if (json_is_string(merge)) {
        text[0] = json_string_value(merge);
        const char *blank = strchr(text[0], ' ');
        if (!blank)
            return false;
        n[0] = (size_t)(blank - text[0]);
        text[1] = blank + 1;
        n[1] = strlen(text[1]);
        return n[0] > 0 && n[1] > 0 && !strchr(text[1], ' ');
    }
    for (size_t i = 0; i < 2; i++) {
        const json_t *half = json_array_get(merge, i);
        text[i] = json_string_value(half);
        n[i] = json_string_length(half);
        if (n[i] == 0)
            return false;
    }
    return json_array_size(merge) == 2;
}

/* ---- Merges ---- */

/* BPE over characters takes a text of any length for one word. No token crosses the place between two characters that
 * stand side by side in no merge, so a word may be cut there. That holds if each character is a token or becomes
 * bytes, none of which merges. */
static int open_joined(struct build *b, size_t n_merges, struct error *err)
{
    enum { LEAST_BITS = 1 << 16, MOST_BITS = 1 << 21 };
    struct client_tokenizer *t = b->t;
    uint32_t n_bits = LEAST_BITS;

    if (t->byte_level || t->takes_whole || t->no_bytes)
        return 0;
    for (unsigned byte = 0; byte < 256; byte++) {
        if (t->bytes[byte] == CLIENT_NO_TOKEN)
            return 0;
    }
    while (n_bits < MOST_BITS && n_bits / 16 < n_merges)
        n_bits *= 2;
    t->joined = calloc(n_bits / 64, sizeof *t->joined);
    t->joined_mask = n_bits - 1;
    return t->joined ? 0 : error_memory(err);
}

/* Notes the characters that a merge joins: the last of the left half, the first of the right one. */
static void note_joined(struct client_tokenizer *t, const char *const text[2], const size_t n[2])
{
    size_t last = n[0] - 1;
    unsigned length;

    while (last > 0 && ((uint8_t)text[0][last] & 0xC0) == 0x80)
        last--;
    const uint32_t left = tokenizer_character(text[0] + last, &length);
    const uint32_t bit = tokenizer_joined_bit(t, left, tokenizer_character(text[1], &length));
    t->joined[bit / 64] |= (uint64_t)1 << bit % 64;
}

static bool is_of_bytes(const struct client_tokenizer *t, const json_t *id)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        if (json_integer_value(id) == t->bytes[byte])
            return true;
    }
    return json_integer_value(id) == t->unknown;
}

/* A merge of tokens that stand for bytes would join characters without naming them: then words are not cut. */
static int vocabulary_add_merge(struct build *b, char *joined, const char *const text[2], const size_t n[2],
                                uint32_t rank)
{
    memcpy(joined, text[0], n[0]);
    memcpy(joined + n[0], text[1], n[1]);
    const json_t *left = json_object_getn(b->vocabulary, text[0], n[0]);
    const json_t *right = json_object_getn(b->vocabulary, text[1], n[1]);
    const json_t *id = json_object_getn(b->vocabulary, joined, n[0] + n[1]);
    if (!left || !right || !id)
        return -ENOENT;
    if (b->t->joined && (text[0][0] == '<' || text[1][0] == '<') &&
        (is_of_bytes(b->t, left) || is_of_bytes(b->t, right))) {
        free(b->t->joined);
        b->t->joined = NULL;
    }
    if (b->t->joined)
        note_joined(b->t, text, n);
    tokenizer_merges_add(b->t, &(struct tokenizer_merge){.left = (uint32_t)json_integer_value(left),
                                                         .right = (uint32_t)json_integer_value(right),
                                                         .rank = rank,
                                                         .id = (uint32_t)json_integer_value(id)});
    return 0;
}

static int add_merges(struct build *b, json_t *merges, struct error *err)
{
    const size_t n = json_array_size(merges);
    const char *text[2];
    size_t lengths[2], cap = 0;
    char *joined = NULL;
    int rc = tokenizer_merges_init(b->t, n, err);

    if (!rc)
        rc = open_joined(b, n, err);
    for (size_t i = 0; !rc && i < n; i++) {
        if (!vocabulary_read_halves(text, lengths, json_array_get(merges, i))) {
            rc = error_set(err, -EINVAL, "merge %zu is not two tokens", i);
            break;
        }
        if (lengths[0] + lengths[1] > cap) {
            cap = 2 * (lengths[0] + lengths[1]);
            free(joined);
            joined = malloc(cap);
            if (!joined) {
                rc = error_memory(err);
                break;
            }
        }
        if (vocabulary_add_merge(b, joined, text, lengths, (uint32_t)i))
            rc = error_set(err, -EINVAL, "merge %zu (%.*s and %.*s) names tokens that are not in its vocabulary", i,
                           lengths[0] > 40 ? 40 : (int)lengths[0], text[0], lengths[1] > 40 ? 40 : (int)lengths[1],
                           text[1]);
    }
    free(joined);
    return rc;
}

int tokenizer_build(struct client_tokenizer *t, json_t *vocabulary, json_t *merges, json_t *added, uint32_t n_ids,
                    struct error *err)
{
    struct build b = {.t = t, .vocabulary = vocabulary};

    t->n_table = n_ids;
    memset(b.bytes, 0xFF, sizeof b.bytes);
    for (unsigned byte = 0; byte < 256; byte++)
        b.bytes[letter_of(byte)] = (int16_t)byte;
    const bool has_merges = !t->word_piece && !t->unigram;
    if (!json_is_object(vocabulary) || (has_merges && !json_is_array(merges)))
        return error_set(err, -EINVAL, "its model has no vocabulary%s", has_merges ? " and merges" : "");
    int rc = vocabulary_make_room(&b, added, n_ids, err);
    if (!rc)
        rc = vocabulary_place_all(&b, added, err);
    if (!rc)
        rc = find_bytes(&b, err);
    return rc || !has_merges ? rc : add_merges(&b, merges, err);
}
