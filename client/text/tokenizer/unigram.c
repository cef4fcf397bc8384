/* Unigram: of all ways to cut a word into tokens the one whose scores, their log-likelihoods, have the largest sum,
 * found by Viterbi's algorithm. A character that no token begins with is unknown, at ten below the least score; of two
 * ways with the same sum the one counts whose last token is longer, as in Hugging Face's tokenizers.
 *
 * Source: Kudo, "Subword Regularization", arXiv:1804.10959, section 3.2. */
#include "client/text/tokenizer/tokenizer_internal.h"

#include "client/text/utf8.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NO_WAY = 0 }; /* tokens have at least one byte */

static const double unknown_penalty = 10;

/* The best way to cut the bytes before a place, which ends with a token of n bytes. */
struct node {
    double score;
    uint32_t id, n;
};

/* A score as serde_json reads it: its digits as one integer over a power of ten, each of them rounded. That is often the
 * next number to the one meant. The digits are the fewest that tell the number, as in the files that are written. */
static double unigram_score(double exact)
{
    enum { SURE = 15, ENOUGH = 17 }; /* digits of any number */
    char text[32], power[16];
    uint64_t digits = 0;
    int n = SURE, after = 0;

    do
        snprintf(text, sizeof text, "%.*e", n - 1, fabs(exact));
    while (strtod(text, NULL) != fabs(exact) && ++n <= ENOUGH);
    const char *exponent = strchr(text, 'e');
    for (const char *at = text; at < exponent; at++)
        if (*at >= '0' && *at <= '9')
            digits = 10 * digits + (uint64_t)(*at - '0'), after++;
    for (after -= 1 + atoi(exponent + 1); digits > 0 && digits % 10 == 0; after--)
        digits /= 10;
    if (abs(after) > DBL_MAX_10_EXP)
        return exact;
    snprintf(power, sizeof power, "1e%d", abs(after));
    const double read = after > 0 ? (double)digits / strtod(power, NULL) : (double)digits * strtod(power, NULL);
    return copysign(read, exact);
}

int tokenizer_read_unigram(struct client_tokenizer *t, const json_t *model, json_t **vocabulary, struct error *err)
{
    const json_t *list = json_object_get(model, "vocab"), *unknown = json_object_get(model, "unk_id"), *pair;
    const size_t n = json_array_size(list);
    size_t i;

    t->unigram = t->no_bytes = t->fuses = true;
    t->scores = calloc(n + 1, sizeof *t->scores);
    *vocabulary = json_object();
    if (!t->scores || !*vocabulary)
        return error_memory(err);
    if (t->byte_level || json_is_true(json_object_get(model, "byte_fallback")))
        return error_set(err, -EINVAL, "its model is Unigram, with %s, which is not supported",
                         t->byte_level ? "the pre-tokenizer ByteLevel" : "byte_fallback");
    if (!json_is_integer(unknown) || json_integer_value(unknown) < 0 || (size_t)json_integer_value(unknown) >= n)
        return error_set(err, -EINVAL, "its unk_id is no token of its vocabulary");
    json_array_foreach(list, i, pair)
    {
        const char *text = json_string_value(json_array_get(pair, 0));
        const json_t *score = json_array_get(pair, 1);
        if (!text || !json_is_number(score))
            return error_set(err, -EINVAL, "token %zu of its vocabulary is no [text, score]", i);
        t->scores[i] = json_number_value(score);
        t->longest = strlen(text) > t->longest ? strlen(text) : t->longest;
        if (json_object_set_new(*vocabulary, text, json_integer((json_int_t)i)))
            return error_memory(err);
    }
    t->n_scores = n;
    t->unknown = (uint32_t)json_integer_value(unknown);
    return 0;
}

void tokenizer_take_scores(struct client_tokenizer *t, bool rounds)
{
    for (size_t i = 0; i < t->n_scores; i++) {
        t->scores[i] = rounds ? unigram_score(t->scores[i]) : t->scores[i];
        t->least_score = i == 0 || t->scores[i] < t->least_score ? t->scores[i] : t->least_score;
    }
}

static void unigram_offer(struct node *node, double score, uint32_t id, size_t n)
{
    if (node->n == NO_WAY || score > node->score)
        *node = (struct node){score, id, (uint32_t)n};
}

/* Goes on from a place of the word with each token that begins there, or with an unknown character. */
static void unigram_go_on(struct node *nodes, const struct client_tokenizer *t, const char *word, size_t n, size_t at)
{
    const double before = at > 0 ? nodes[at].score : 0;
    const size_t most = n - at < t->longest ? n - at : t->longest;
    bool has_character = false;
    unsigned character;

    tokenizer_character(word + at, &character);
    for (size_t length = character; length <= most; length++) {
        if (at + length < n && ((uint8_t)word[at + length] & 0xC0) == 0x80)
            continue; /* inside a character */
        const uint32_t id = tokenizer_find_id(t, word + at, length);
        if (id == CLIENT_NO_TOKEN || id >= t->n_scores)
            continue;
        unigram_offer(&nodes[at + length], before + t->scores[id], id, length);
        has_character = has_character || length == character;
    }
    if (!has_character)
        unigram_offer(&nodes[at + character], before + t->least_score - unknown_penalty, t->unknown, character);
}

/* Writes the tokens of the best way, from its end; unknown ones that follow each other are one. */
static size_t take_way(uint32_t *ids, const struct client_tokenizer *t, const struct node *nodes, const char *word,
                       size_t n)
{
    size_t n_ids = 0, end = n;

    while (end > 0) {
        const size_t last = end;
        uint32_t id = nodes[end].id;
        do
            end -= nodes[end].n;
        while (id == t->unknown && end > 0 && nodes[end].id == t->unknown);
        if (id == t->unknown) {
            const uint32_t known = tokenizer_find_id(t, word + end, last - end);
            id = known == CLIENT_NO_TOKEN ? id : known;
        }
        ids[n_ids++] = id;
    }
    for (size_t i = 0; i < n_ids / 2; i++) {
        const uint32_t id = ids[i];
        ids[i] = ids[n_ids - 1 - i], ids[n_ids - 1 - i] = id;
    }
    return n_ids;
}

int tokenizer_unigram(size_t *n_ids, struct client_tokenizer *t, const char *word, size_t n, struct error *err)
{
    struct client_text *room = &t->work.between[0];
    unsigned character;
    int rc = tokenizer_work_reserve(&t->work, n, err);

    room->n = 0;
    if (!rc)
        rc = client_text_reserve(room, (n + 1) * sizeof(struct node), err);
    if (rc)
        return rc;
    struct node *nodes = (struct node *)(void *)room->bytes;
    memset(nodes, 0, (n + 1) * sizeof *nodes);
    for (size_t at = 0; !rc && at < n; at += character) {
        const size_t most = n - at < t->longest ? n - at : t->longest;
        tokenizer_character(word + at, &character);
        rc = tokenizer_matcher_spend(&t->work.matcher, tokenizer_lookups(most), "vocabulary's long tokens", err);
        if (!rc)
            unigram_go_on(nodes, t, word, n, at);
    }
    if (rc)
        return rc;
    *n_ids = take_way(t->work.ids, t, nodes, word, n);
    return 0;
}
