/* Added tokens, special ones included, are recognised before text is split or merged.
 *
 * The order is that of Hugging Face's AddedVocabulary: first tokens that are not normalised, in the text as it is; then
 * the others, themselves normalised, in what the normalizer makes of the text between them. Matches run from left to
 * right; the longest wins. lstrip and rstrip absorb the whitespace beside a token. */
#include "client/text/tokenizer/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

/* By first byte; then longest first; then by text. */
static int added_compare(const void *a, const void *b)
{
    const struct tokenizer_added *x = a, *y = b;

    if (*x->text != *y->text)
        return (uint8_t)*x->text < (uint8_t)*y->text ? -1 : 1;
    if (x->n != y->n)
        return x->n < y->n ? 1 : -1;
    return memcmp(x->text, y->text, x->n);
}

static bool added_flag(const json_t *token, const char *key)
{
    return json_is_true(json_object_get(token, key));
}

static int added_add_text(struct tokenizer_set *set, struct tokenizer_added token, const char *text, size_t n,
                          struct error *err)
{
    struct tokenizer_added *larger = realloc(set->tokens, (set->n + 1) * sizeof *larger);

    if (!larger)
        return error_memory(err);
    set->tokens = larger;
    token.text = malloc(n);
    token.n = n;
    if (!token.text)
        return error_memory(err);
    memcpy(token.text, text, n);
    set->tokens[set->n++] = token;
    set->lstrip = set->lstrip || token.lstrip;
    set->single_word = set->single_word || token.single_word;
    set->longest = n > set->longest ? n : set->longest;
    return 0;
}

static int add_token(struct client_tokenizer *t, const json_t *token, struct error *err)
{
    const json_t *content = json_object_get(token, "content");
    const bool normalised =
        json_object_get(token, "normalized") ? added_flag(token, "normalized") : !added_flag(token, "special");
    const struct tokenizer_added added = {.id = (uint32_t)json_integer_value(json_object_get(token, "id")),
                                          .lstrip = added_flag(token, "lstrip"),
                                          .rstrip = added_flag(token, "rstrip"),
                                          .single_word = added_flag(token, "single_word"),
                                          .special = added_flag(token, "special"),
                                          .refused = added_flag(token, "refused")};
    struct client_text normal = {0};
    const char *text = json_string_value(content);
    size_t n = json_string_length(content);
    bool first = true;
    int rc = 0;

    if (n == 0)
        return 0;
    struct tokenizer_token *known = &t->tokens[added.id];
    known->special = added_flag(token, "special");
    if (normalised && t->normal.n > 0) {
        rc = tokenizer_changes_apply(&normal, &t->normal, &t->work, text, n, true, &first, err);
        text = normal.bytes, n = normal.n;
    }
    if (!rc && n > 0) /* nothing may be left of it */
        rc = added_add_text(&t->added[normalised], added, text, n, err);
    if (!rc && n > 0 && (n != known->n || memcmp(text, known->text, n) != 0)) {
        /* Hugging Face's tokenizers decode this form, and do not know it for special. */
        known->shown = t->added[normalised].tokens[t->added[normalised].n - 1].text;
        known->n_shown = (uint32_t)n;
        known->special = false;
    }
    free(normal.bytes);
    return rc;
}

static void added_sort(struct tokenizer_set *set)
{
    size_t i = 0;

    if (set->n > 1)
        qsort(set->tokens, set->n, sizeof *set->tokens, added_compare);
    for (unsigned byte = 0; byte < 257; byte++) {
        while (i < set->n && (uint8_t)*set->tokens[i].text < byte)
            i++;
        set->first[byte] = (uint32_t)i;
    }
}

int tokenizer_added_open(struct client_tokenizer *t, const struct tokenizer_side *side, struct error *err)
{
    const json_t *list = side->tokens;
    size_t n = 0;
    int rc = 0;

    t->end = tokenizer_side_id(side, "eos_token"), t->mask = tokenizer_side_id(side, "mask_token");
    t->added[0].splits = t->added[1].splits = side->splits;

    for (size_t i = 0; i < json_array_size(list); i++)
        n += json_string_length(json_object_get(json_array_get(list, i), "content"));
    tokenizer_work_allow(&t->work, n); /* their normal forms */
    for (size_t i = 0; !rc && i < json_array_size(list); i++)
        rc = add_token(t, json_array_get(list, i), err);
    added_sort(&t->added[0]);
    added_sort(&t->added[1]);
    return rc;
}

void tokenizer_added_close(struct tokenizer_set *set)
{
    for (size_t i = 0; i < set->n; i++)
        free(set->tokens[i].text);
    free(set->tokens);
}

/* Tokens of one length and first byte are sorted, so each length takes one binary search. */
const struct tokenizer_added *tokenizer_added_at(const struct tokenizer_set *set, const char *text, size_t n,
                                                 uint64_t *steps)
{
    const uint8_t byte = (uint8_t)*text;
    const uint32_t end = set->first[byte + 1];

    for (uint32_t from = set->first[byte]; from < end;) {
        const size_t length = set->tokens[from].n;
        *steps += 1 + (length <= n ? length / 16 : 0);
        uint32_t low = from, high = end; /* the first token that is shorter, or not before text, is in [low, high] */
        while (low < high) {
            const uint32_t middle = low + (high - low) / 2;
            const struct tokenizer_added *token = &set->tokens[middle];
            const bool before = token->n == length && length <= n && memcmp(token->text, text, length) < 0;
            if (before)
                low = middle + 1;
            else
                high = middle;
        }
        if (length <= n && low < end && set->tokens[low].n == length &&
            memcmp(set->tokens[low].text, text, length) == 0)
            return &set->tokens[low];
        for (high = end; from < high;) { /* the first token that is shorter */
            const uint32_t middle = from + (high - from) / 2;
            if (set->tokens[middle].n == length)
                from = middle + 1;
            else
                high = middle;
        }
    }
    return NULL;
}
