/* Added tokens, special ones included, are recognised before text is split or merged.
 *
 * The order is that of Hugging Face's AddedVocabulary: first tokens that are not normalised, then the others in what
 * remains between them. Matches run from left to right; the longest wins. lstrip and rstrip absorb the whitespace
 * beside a token. */
#include "client/text/tokenizer_internal.h"

#include "client/text/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int longest_first(const void *a, const void *b)
{
    const struct tokenizer_added *x = a, *y = b;
    return x->n < y->n ? 1 : x->n > y->n ? -1 : 0;
}

static bool flag(const json_t *token, const char *key)
{
    return json_is_true(json_object_get(token, key));
}

static int add_token(struct client_tokenizer *t, const json_t *token, struct error *err)
{
    const json_t *content = json_object_get(token, "content");
    const size_t n = json_string_length(content);
    const bool normalised = json_object_get(token, "normalized") ? flag(token, "normalized") : !flag(token, "special");
    struct tokenizer_set *set = &t->added[normalised];

    if (n == 0)
        return 0;
    if (flag(token, "single_word"))
        return error_set(err, -EINVAL,
                         "its added token %.60s is a single_word, which is not supported: tokenise elsewhere, and give "
                         "ids as .bin or .npy",
                         json_string_value(content));
    struct tokenizer_added *larger = realloc(set->tokens, (set->n + 1) * sizeof *larger);
    if (!larger)
        return error_set(err, -ENOMEM, "out of memory");
    set->tokens = larger;
    char *text = malloc(n);
    if (!text)
        return error_set(err, -ENOMEM, "out of memory");
    memcpy(text, json_string_value(content), n);
    set->tokens[set->n++] = (struct tokenizer_added){.text = text,
                                                     .n = n,
                                                     .id = (uint32_t)json_integer_value(json_object_get(token, "id")),
                                                     .lstrip = flag(token, "lstrip"),
                                                     .rstrip = flag(token, "rstrip")};
    set->begins[(uint8_t)*text] = true;
    set->lstrip = set->lstrip || flag(token, "lstrip");
    set->longest = n > set->longest ? n : set->longest;
    return 0;
}

int tokenizer_added_open(struct client_tokenizer *t, const json_t *list, struct error *err)
{
    int rc = 0;

    for (size_t i = 0; !rc && i < json_array_size(list); i++)
        rc = add_token(t, json_array_get(list, i), err);
    for (size_t i = 0; i < 2; i++) {
        if (t->added[i].n > 1)
            qsort(t->added[i].tokens, t->added[i].n, sizeof *t->added[i].tokens, longest_first);
    }
    return rc;
}

void tokenizer_added_close(struct client_tokenizer *t)
{
    for (size_t i = 0; i < 2; i++) {
        for (size_t k = 0; k < t->added[i].n; k++)
            free(t->added[i].tokens[k].text);
        free(t->added[i].tokens);
    }
}

/* Finds the first token that begins in [from, limit) and ends by `to`. */
static const struct tokenizer_added *find(const struct tokenizer_set *set, size_t *at, const char *text, size_t from,
                                          size_t limit, size_t to)
{
    for (*at = from; *at < limit; ++*at) {
        if (!set->begins[(uint8_t)text[*at]])
            continue;
        for (size_t i = 0; i < set->n; i++) {
            const struct tokenizer_added *token = &set->tokens[i];
            if (token->n <= to - *at && memcmp(text + *at, token->text, token->n) == 0)
                return token;
        }
    }
    return NULL;
}

/* Length of the whitespace character (Unicode's White_Space) at the start of text; 0 if there is none. */
static size_t blank_at(const char *text, size_t n)
{
    const uint8_t *at = (const uint8_t *)text;

    if (n >= 1 && (at[0] == ' ' || (at[0] >= 9 && at[0] <= 13)))
        return 1;
    if (n >= 2 && at[0] == 0xC2)
        return at[1] == 0x85 || at[1] == 0xA0 ? 2 : 0;
    if (n < 3)
        return 0;
    const unsigned c = (at[0] & 0x0Fu) << 12 | (at[1] & 0x3Fu) << 6 | (at[2] & 0x3Fu);
    const bool blank = at[0] >= 0xE0 && at[0] < 0xF0 &&
                       (c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
                        c == 0x205F || c == 0x3000);
    return blank ? 3 : 0;
}

static size_t skip_blanks(const char *text, size_t at, size_t to)
{
    for (size_t n; (n = blank_at(text + at, to - at)) > 0;)
        at += n;
    return at;
}

/* Start of the run of whitespace that ends at `at`. */
static size_t before_blanks(const char *text, size_t from, size_t at)
{
    while (at > from) {
        size_t begin = at - 1;
        while (begin > from && ((uint8_t)text[begin] & 0xC0) == 0x80)
            begin--;
        if (blank_at(text + begin, at - begin) != at - begin)
            break;
        at = begin;
    }
    return at;
}

/* Text [from, to) between tokens of the previous level. closed: the text ends at `to`. Otherwise what follows could
 * change some of it, and *used is where that part begins. */
struct segment {
    const char *text;
    size_t from, to;
    bool closed;
};

static int encode(struct client_tokens *out, size_t *used, struct client_tokenizer *t, unsigned level, struct segment s,
                  struct error *err);

/* Encodes a segment's words, regardless of its neighbours. */
static int encode_words(struct client_tokens *out, size_t *used, struct client_tokenizer *t, struct segment s,
                        struct error *err)
{
    const char *text = s.text + s.from;
    const size_t n = s.to - s.from;
    size_t at = 0, end;
    int rc = 1;

    while (at < n && (rc = tokenizer_split(t, text, n, at, s.closed, &end, err)) > 0) {
        rc = client_tokenizer_encode_word(out, t, text + at, end - at, err);
        if (rc)
            break;
        at = end;
    }
    *used = s.from + at;
    return rc < 0 ? rc : 0;
}

/* Encodes a segment without a token of this level, or without one that is certain yet. */
static int encode_rest(struct client_tokens *out, size_t *used, struct client_tokenizer *t, unsigned level,
                       struct segment s, size_t limit, struct error *err)
{
    if (!s.closed) {
        while (limit > s.from && limit < s.to && ((uint8_t)s.text[limit] & 0xC0) == 0x80)
            limit--;
        s.to = t->added[level].lstrip ? before_blanks(s.text, s.from, limit) : limit;
    }
    return encode(out, used, t, level + 1, s, err);
}

static int encode(struct client_tokens *out, size_t *used, struct client_tokenizer *t, unsigned level, struct segment s,
                  struct error *err)
{
    const struct tokenizer_set *set = &t->added[level < 2 ? level : 1];
    const struct tokenizer_added *token;
    size_t at, done;

    if (level == 2)
        return encode_words(out, used, t, s, err);
    for (;;) {
        /* A token that begins behind the limit may extend beyond the segment. */
        const size_t open = set->longest > 0 && !s.closed ? set->longest - 1 : 0;
        const size_t limit = s.to - s.from > open ? s.to - open : s.from;
        token = set->n > 0 ? find(set, &at, s.text, s.from, limit, s.to) : NULL;
        if (!token)
            return encode_rest(out, used, t, level, s, limit, err);
        const size_t begin = token->lstrip ? before_blanks(s.text, s.from, at) : at;
        const size_t end = token->rstrip ? skip_blanks(s.text, at + token->n, s.to) : at + token->n;
        int rc = encode(out, &done, t, level + 1, (struct segment){s.text, s.from, begin, true}, err);
        if (!rc && token->rstrip && !s.closed && end == s.to) { /* more whitespace may follow */
            *used = begin;
            return 0;
        }
        if (!rc)
            rc = client_tokens_add(out, &token->id, 1, err);
        if (rc)
            return rc;
        s.from = *used = end;
    }
}

int tokenizer_encode_text(struct client_tokens *out, size_t *used, struct client_tokenizer *t, const char *text,
                          size_t n, bool last, struct error *err)
{
    return encode(out, used, t, 0, (struct segment){text, 0, n, last}, err);
}
