/* Tokens of a word: BPE merges, and the cache for all models. */
#include "client/text/tokenizer/tokenizer_internal.h"

#include "client/text/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static size_t merge_place(uint32_t left, uint32_t right)
{
    uint64_t x = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15;
    return (size_t)(x ^ x >> 32);
}

static struct tokenizer_merge *merge_at(const struct client_tokenizer *t, uint32_t left, uint32_t right)
{
    size_t i = merge_place(left, right) & t->merge_mask;

    while (t->merges[i].rank != UINT32_MAX && (t->merges[i].left != left || t->merges[i].right != right))
        i = (i + 1) & t->merge_mask;
    return &t->merges[i];
}

const struct tokenizer_merge *tokenizer_find_merge(const struct client_tokenizer *t, uint32_t left, uint32_t right)
{
    const struct tokenizer_merge *merge = merge_at(t, left, right);
    return merge->rank == UINT32_MAX ? NULL : merge;
}

int tokenizer_merges_init(struct client_tokenizer *t, size_t n, struct error *err)
{
    size_t places = 16;

    while (places < 2 * n)
        places *= 2;
    t->merges = malloc(places * sizeof *t->merges);
    if (!t->merges)
        return error_memory(err);
    memset(t->merges, 0xFF, places * sizeof *t->merges);
    t->merge_mask = places - 1;
    t->n_merges = n;
    return 0;
}

/* If a pair is listed twice, the later entry counts, as in Hugging Face's tokenizers. */
void tokenizer_merges_add(struct client_tokenizer *t, const struct tokenizer_merge *merge)
{
    *merge_at(t, merge->left, merge->right) = *merge;
}

/* A binary heap of pairs; the lowest order is on top. */
static void heap_push(struct tokenizer_work *w, struct tokenizer_pair pair)
{
    size_t i = w->n_heap++;

    for (; i > 0 && w->heap[(i - 1) / 2].order > pair.order; i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = pair;
}

static struct tokenizer_pair heap_pop(struct tokenizer_work *w)
{
    const struct tokenizer_pair top = w->heap[0], last = w->heap[--w->n_heap];
    size_t i = 0;

    for (size_t child; (child = 2 * i + 1) < w->n_heap; i = child) {
        if (child + 1 < w->n_heap && w->heap[child + 1].order < w->heap[child].order)
            child++;
        if (last.order <= w->heap[child].order)
            break;
        w->heap[i] = w->heap[child];
    }
    w->heap[i] = last;
    return top;
}

enum { NONE = UINT32_MAX };

/* Pushes the pair that begins at `place`, if it can merge. */
static void push_pair(const struct client_tokenizer *t, struct tokenizer_work *w, uint32_t place)
{
    const uint32_t next = w->next[place];
    const struct tokenizer_merge *merge = next == NONE ? NULL : tokenizer_find_merge(t, w->ids[place], w->ids[next]);

    if (merge)
        heap_push(w, (struct tokenizer_pair){(uint64_t)merge->rank << 32 | place, merge->id});
}

int tokenizer_work_reserve(struct tokenizer_work *w, size_t n, struct error *err)
{
    if (n <= w->cap)
        return 0;
    free(w->ids);
    free(w->heap);
    w->cap = n < 256 ? 256 : n;
    w->ids = malloc(3 * w->cap * sizeof *w->ids);
    w->heap = malloc(3 * w->cap * sizeof *w->heap); /* n - 1 pairs, and two more for each of n - 1 merges */
    if (!w->ids || !w->heap) {
        free(w->ids);
        free(w->heap);
        w->ids = NULL, w->heap = NULL, w->cap = 0;
        return error_set(err, -ENOMEM, "no memory for a word of %zu bytes", n);
    }
    w->next = w->ids + w->cap, w->prev = w->next + w->cap;
    return 0;
}

/* Merges until no pair can. The remaining ids are the list that starts at index 0. */
static void merge_pairs(const struct client_tokenizer *t, struct tokenizer_work *w)
{
    while (w->n_heap > 0) {
        const struct tokenizer_pair pair = heap_pop(w);
        const uint32_t place = (uint32_t)pair.order;
        const uint32_t right = w->ids[place] == NONE ? NONE : w->next[place];
        if (right == NONE)
            continue;
        /* The pair may have changed since it was pushed. */
        const struct tokenizer_merge *merge = tokenizer_find_merge(t, w->ids[place], w->ids[right]);
        if (!merge || merge->id != pair.id)
            continue;
        w->ids[place] = pair.id;
        w->ids[right] = NONE;
        w->next[place] = w->next[right];
        if (w->next[place] != NONE)
            w->prev[w->next[place]] = place;
        if (w->prev[place] != NONE)
            push_pair(t, w, w->prev[place]);
        push_pair(t, w, place);
    }
}

/* At least twice as many each time, so that many small texts take time in proportion to their tokens. */
int client_tokens_reserve(struct client_tokens *out, size_t n, struct error *err)
{
    const size_t needed = out->n + n, twice = out->cap < 512 ? 1024 : 2 * out->cap;
    const size_t cap = needed > twice ? needed : twice;

    if (needed <= out->cap)
        return 0;
    uint32_t *larger = realloc(out->ids, cap * sizeof *larger);
    if (!larger)
        return error_set(err, -ENOMEM, "no memory for %zu tokens", cap);
    out->ids = larger, out->cap = cap;
    return 0;
}

int client_tokens_add(struct client_tokens *out, const uint32_t *ids, size_t n, struct error *err)
{
    const int rc = client_tokens_reserve(out, n, err);

    if (rc || n == 0)
        return rc;
    memcpy(out->ids + out->n, ids, n * sizeof *ids);
    out->n += n;
    return 0;
}

static void begin_bytes(size_t *n_ids, const struct client_tokenizer *t, uint32_t *ids, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ids[i] = t->bytes[bytes[i]];
    *n_ids = n;
}

/* True if each byte of a character has a token; appends them. */
static bool add_bytes(size_t *n_ids, const struct client_tokenizer *t, uint32_t *ids, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        ids[*n_ids + i] = t->bytes[bytes[i]];
        if (ids[*n_ids + i] == CLIENT_NO_TOKEN)
            return false;
    }
    *n_ids += n;
    return true;
}

/* A character is its token, or the tokens of its bytes, or unknown; without a token for that it is left out. The token
 * for unknown characters follows the bytes of those that come before the next known character, as in Hugging Face's
 * tokenizers. Parts of characters, which a cut file may hold, are bytes. */
static void begin_characters(size_t *n_ids, const struct client_tokenizer *t, uint32_t *ids, const uint8_t *bytes,
                             size_t n)
{
    bool unknown = false;

    *n_ids = 0;
    for (size_t at = 0; at < n;) {
        const int whole = client_utf8_character(bytes + at, n - at);
        const size_t length = whole > 0 ? (size_t)whole : 1;
        const uint32_t id = tokenizer_find_id(t, (const char *)bytes + at, length);
        if (id != CLIENT_NO_TOKEN) {
            if (unknown)
                ids[(*n_ids)++] = t->unknown;
            unknown = false;
            ids[(*n_ids)++] = id;
        } else if (!add_bytes(n_ids, t, ids, bytes + at, length) && t->unknown != CLIENT_NO_TOKEN) {
            if (unknown && !t->fuses)
                ids[(*n_ids)++] = t->unknown;
            unknown = true;
        }
        at += length;
    }
    if (unknown)
        ids[(*n_ids)++] = t->unknown;
}

/* Encodes a word into work.ids (*n_ids). */
static int encode_long(size_t *n_ids, struct client_tokenizer *t, const uint8_t *bytes, size_t n, struct error *err)
{
    struct tokenizer_work *w = &t->work;
    int rc = tokenizer_work_reserve(w, n, err);

    if (rc)
        return rc;
    const uint32_t whole = t->takes_whole ? tokenizer_find_id(t, (const char *)bytes, n) : CLIENT_NO_TOKEN;
    if (whole != CLIENT_NO_TOKEN) {
        w->ids[0] = whole;
        *n_ids = 1;
        return 0;
    }
    if (t->byte_level)
        begin_bytes(n_ids, t, w->ids, bytes, n);
    else
        begin_characters(n_ids, t, w->ids, bytes, n);
    n = *n_ids;
    w->n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        w->prev[i] = i ? (uint32_t)i - 1 : NONE;
        w->next[i] = i + 1 < n ? (uint32_t)i + 1 : NONE;
    }
    for (size_t i = 0; i < n; i++)
        push_pair(t, w, (uint32_t)i);
    merge_pairs(t, w);
    *n_ids = 0;
    for (uint32_t i = n > 0 ? 0 : NONE; i != NONE; i = w->next[i])
        w->ids[(*n_ids)++] = w->ids[i]; /* never writes beyond the index that it reads */
    return 0;
}

size_t tokenizer_word_cut(const struct client_tokenizer *t, const char *text, size_t n)
{
    unsigned length;
    uint32_t left = tokenizer_character(text, &length);

    for (size_t at = length; at < n; at += length) {
        const uint32_t right = tokenizer_character(text + at, &length);
        const uint32_t bit = tokenizer_joined_bit(t, left, right);
        if (!(t->joined[bit / 64] >> bit % 64 & 1))
            return at;
        left = right;
    }
    return n;
}

int client_tokenizer_encode_word(struct client_tokens *out, struct client_tokenizer *t, const char *bytes, size_t n,
                                 struct error *err)
{
    const uint8_t *word = (const uint8_t *)bytes;
    size_t n_ids;

    if (n == 0)
        return 0;
    if (n > CLIENT_TOKENIZER_MAX_WORD)
        return error_set(err, -EINVAL, "a word of %zu bytes is too long: give token ids as .bin or .npy", n);
    struct tokenizer_word *known = &t->work.cache[XXH3_64bits(word, n) >> (64 - TOKENIZER_CACHE_BITS)];
    if (known->n_bytes == n && memcmp(known->bytes, word, n) == 0)
        return client_tokens_add(out, known->ids, known->n_ids, err);
    int rc = t->word_piece ? tokenizer_word_piece(&n_ids, t, bytes, n, err)
             : t->unigram  ? tokenizer_unigram(&n_ids, t, bytes, n, err)
                           : encode_long(&n_ids, t, word, n, err);
    if (rc)
        return rc;
    if (n <= sizeof known->bytes && n_ids <= sizeof known->ids / sizeof *known->ids) {
        known->n_bytes = (uint8_t)n, known->n_ids = (uint8_t)n_ids;
        memcpy(known->bytes, word, n);
        memcpy(known->ids, t->work.ids, n_ids * sizeof *known->ids);
    }
    return client_tokens_add(out, t->work.ids, n_ids, err);
}
