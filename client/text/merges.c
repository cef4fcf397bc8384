/* client_words_merge. Each pair keeps its count and the words that may hold it. A heap has the most frequent pair on
 * top. A merge visits only the words of its pair and corrects the counts of the neighbours there. A heap entry whose
 * count has fallen since it was pushed is corrected when it is popped. */
#include "client/text/words.h"
#include "client/text/words_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { LEAST_COUNT = 2 };

struct pair {
    uint32_t left, right;
    int64_t count;
    uint32_t *words; /* (n, cap) words that held the pair when it was counted; a word may be listed twice */
    uint32_t n, cap;
    bool grown; /* count raised by the current merge: push it again */
};

struct entry {
    int64_t count;
    uint32_t pair;
};

/* Bytes of a token: a range of `bytes` of the words. */
struct piece {
    size_t at, n;
};

struct merging {
    struct client_words *words;
    uint32_t *ids;      /* (n_bytes) tokens of each word, from the offset of its first byte on */
    struct pair *pairs; /* (n_pairs, cap_pairs) */
    size_t n_pairs, cap_pairs;
    uint32_t *table; /* (mask + 1): 1 + the pair's index; 0: empty */
    size_t mask;
    struct entry *heap; /* (n_heap, cap_heap) */
    size_t n_heap, cap_heap;
    uint32_t *grown; /* (n_grown, cap_grown) pairs */
    size_t n_grown, cap_grown;
    struct piece *pieces; /* (n_tokens), by id */
    uint32_t n_tokens;
    uint32_t *known; /* (known_mask + 1): 1 + a token of two bytes or more, by the hash of its bytes; 0: empty */
    size_t known_mask;
};

static int merges_no_memory(struct error *err)
{
    return error_set(err, -ENOMEM, "no memory to learn tokens from the text");
}

/* Makes room for one more element of an array. */
static int reserve(void **array, size_t *cap, size_t n, size_t size, struct error *err)
{
    if (n < *cap)
        return 0;
    const size_t more = *cap ? 2 * *cap : 64;
    void *larger = realloc(*array, more * size);
    if (!larger)
        return merges_no_memory(err);
    *array = larger, *cap = more;
    return 0;
}

#define RESERVE(array, cap, n, err) reserve((void **)&(array), &(cap), n, sizeof *(array), err)

static uint32_t *pair_place(const struct merging *m, uint32_t left, uint32_t right)
{
    const uint64_t key = (uint64_t)left << 32 | right;
    size_t i = XXH3_64bits(&key, sizeof key) & m->mask;

    for (; m->table[i]; i = (i + 1) & m->mask) {
        const struct pair *pair = &m->pairs[m->table[i] - 1];
        if (pair->left == left && pair->right == right)
            break;
    }
    return &m->table[i];
}

/* At half of its places: lookups stay short, and there is always an empty one that ends them. */
static int merges_widen(struct merging *m, struct error *err)
{
    const size_t places = 2 * (m->mask + 1);
    uint32_t *table = calloc(places, sizeof *table);

    if (!table)
        return merges_no_memory(err);
    free(m->table);
    m->table = table, m->mask = places - 1;
    for (size_t i = 0; i < m->n_pairs; i++)
        *pair_place(m, m->pairs[i].left, m->pairs[i].right) = (uint32_t)i + 1;
    return 0;
}

/* Sets *out to the index of the pair and adds the pair if it is new. */
static int find_pair(uint32_t *out, struct merging *m, uint32_t left, uint32_t right, struct error *err)
{
    uint32_t *place = pair_place(m, left, right);

    if (!*place) {
        int rc = RESERVE(m->pairs, m->cap_pairs, m->n_pairs, err);
        if (rc)
            return rc;
        m->pairs[m->n_pairs] = (struct pair){.left = left, .right = right};
        *place = (uint32_t)++m->n_pairs;
        if (m->n_pairs > m->mask / 2) {
            *out = (uint32_t)m->n_pairs - 1;
            return merges_widen(m, err);
        }
    }
    *out = *place - 1;
    return 0;
}

/* Adds the word's count to the pair's, and the word to the pair's list. */
static int count_pair(struct merging *m, uint32_t left, uint32_t right, uint32_t word, struct error *err)
{
    uint32_t number;
    int rc = find_pair(&number, m, left, right, err);

    if (rc)
        return rc;
    struct pair *pair = &m->pairs[number];
    pair->count += m->words->words[word].count;
    if (pair->n == 0 || pair->words[pair->n - 1] != word) {
        size_t cap = pair->cap;
        rc = RESERVE(pair->words, cap, pair->n, err);
        if (rc)
            return rc;
        pair->cap = (uint32_t)cap;
        pair->words[pair->n++] = word;
    }
    if (pair->grown)
        return 0;
    rc = RESERVE(m->grown, m->cap_grown, m->n_grown, err);
    if (rc)
        return rc;
    pair->grown = true;
    m->grown[m->n_grown++] = number;
    return 0;
}

static void count_down(struct merging *m, uint32_t left, uint32_t right, uint32_t word)
{
    m->pairs[*pair_place(m, left, right) - 1].count -= m->words->words[word].count;
}

/* Of pairs with the same count the lower ids: the merges do not depend on the order of the heap. */
static bool goes_first(const struct merging *m, const struct entry *a, const struct entry *b)
{
    const struct pair *p = &m->pairs[a->pair], *q = &m->pairs[b->pair];

    if (a->count != b->count)
        return a->count > b->count;
    return p->left != q->left ? p->left < q->left : p->right < q->right;
}

static int merges_push(struct merging *m, struct entry entry, struct error *err)
{
    int rc = RESERVE(m->heap, m->cap_heap, m->n_heap, err);

    if (rc)
        return rc;
    size_t i = m->n_heap++;
    for (; i > 0 && goes_first(m, &entry, &m->heap[(i - 1) / 2]); i = (i - 1) / 2)
        m->heap[i] = m->heap[(i - 1) / 2];
    m->heap[i] = entry;
    return 0;
}

static struct entry pop(struct merging *m)
{
    const struct entry top = m->heap[0], last = m->heap[--m->n_heap];
    size_t i = 0;

    for (size_t child; (child = 2 * i + 1) < m->n_heap; i = child) {
        if (child + 1 < m->n_heap && goes_first(m, &m->heap[child + 1], &m->heap[child]))
            child++;
        if (!goes_first(m, &m->heap[child], &last))
            break;
        m->heap[i] = m->heap[child];
    }
    m->heap[i] = last;
    return top;
}

/* Once for each pair, after a merge has counted all of its words. */
static int push_grown(struct merging *m, struct error *err)
{
    int rc = 0;

    for (size_t i = 0; !rc && i < m->n_grown; i++) {
        struct pair *pair = &m->pairs[m->grown[i]];
        pair->grown = false;
        if (pair->count >= LEAST_COUNT)
            rc = merges_push(m, (struct entry){pair->count, m->grown[i]}, err);
    }
    m->n_grown = 0;
    return rc;
}

/* Pops the most frequent pair that is left into *out; false if there is none. */
static bool pop_most_frequent(uint32_t *out, struct merging *m, int *rc, struct error *err)
{
    while (m->n_heap > 0) {
        const struct entry top = pop(m);
        const int64_t count = m->pairs[top.pair].count;
        *out = top.pair;
        if (count == top.count)
            return true;
        if (count >= LEAST_COUNT && count < top.count &&
            (*rc = merges_push(m, (struct entry){count, top.pair}, err)) != 0)
            return false;
    }
    return false;
}

/* Replaces left, right by id throughout the word, from left to right. */
static int merge_word(struct merging *m, uint32_t number, uint32_t left, uint32_t right, uint32_t id, struct error *err)
{
    struct word *word = &m->words->words[number];
    uint32_t *ids = m->ids + word->at, to = 0;
    int rc = 0;

    for (uint32_t from = 0; !rc && from < word->n; from++) {
        if (ids[from] != left || from + 1 == word->n || ids[from + 1] != right) {
            ids[to++] = ids[from];
            continue;
        }
        if (to > 0) {
            count_down(m, ids[to - 1], left, number);
            rc = count_pair(m, ids[to - 1], id, number, err);
        }
        ids[to++] = id;
        from++;
        if (!rc && from + 1 < word->n) {
            count_down(m, right, ids[from + 1], number);
            rc = count_pair(m, id, ids[from + 1], number, err);
        }
    }
    word->n = to;
    return rc;
}

/* Slot of `known` for these bytes: it holds 1 + their token, or 0. */
static uint32_t *token_place(const struct merging *m, const uint8_t *bytes, size_t n)
{
    size_t i = XXH3_64bits(bytes, n) & m->known_mask;

    for (; m->known[i]; i = (i + 1) & m->known_mask) {
        const struct piece *piece = &m->pieces[m->known[i] - 1];
        if (piece->n == n && memcmp(m->words->bytes + piece->at, bytes, n) == 0)
            break;
    }
    return &m->known[i];
}

/* Names the token that a pair becomes. The pair's first occurrence gives the token's bytes. */
static uint32_t merges_name_token(struct merging *m, const struct pair *pair)
{
    const size_t n_left = m->pieces[pair->left].n, n = n_left + m->pieces[pair->right].n;

    for (uint32_t k = 0; k < pair->n; k++) {
        const struct word *word = &m->words->words[pair->words[k]];
        const uint32_t *ids = m->ids + word->at;
        size_t at = word->at;
        for (uint32_t i = 0; i + 1 < word->n; at += m->pieces[ids[i]].n, i++) {
            if (ids[i] != pair->left || ids[i + 1] != pair->right)
                continue;
            uint32_t *place = token_place(m, m->words->bytes + at, n);
            if (!*place) {
                m->pieces[m->n_tokens] = (struct piece){at, n};
                *place = ++m->n_tokens;
            }
            return *place - 1;
        }
    }
    assert(false); /* a counted pair occurs somewhere */
    return 0;
}

/* The pair's list is taken out first: counting may move `pairs`, and adds to other pairs' lists. */
static int merge_pair(struct merging *m, struct client_token_merge *out, uint32_t number, struct error *err)
{
    struct pair pair = m->pairs[number];
    int rc = 0;

    *out = (struct client_token_merge){pair.left, pair.right, merges_name_token(m, &pair)};
    m->pairs[number].words = NULL, m->pairs[number].n = 0, m->pairs[number].cap = 0;
    for (uint32_t k = 0; !rc && k < pair.n; k++)
        rc = merge_word(m, pair.words[k], pair.left, pair.right, out->id, err);
    free(pair.words);
    m->pairs[number].count = 0; /* occurrences that overlapped a merged one, as the second pair of "aaa", are gone */
    return rc ? rc : push_grown(m, err);
}

/* Splits all words into bytes and counts their pairs. */
static int begin_merging(struct merging *m, const uint32_t bytes[256], uint32_t first, struct error *err)
{
    const struct client_words *w = m->words;
    int rc = 0;

    for (unsigned byte = 0; byte < 256; byte++)
        m->pieces[bytes[byte]] = (struct piece){0, 1};
    m->n_tokens = first;
    for (size_t i = 0; i < w->n_bytes; i++)
        m->ids[i] = bytes[w->bytes[i]];
    for (size_t k = 0; !rc && k < w->n; k++) {
        const uint32_t *ids = m->ids + w->words[k].at;
        for (uint32_t i = 0; !rc && i + 1 < w->words[k].n; i++)
            rc = count_pair(m, ids[i], ids[i + 1], (uint32_t)k, err);
    }
    return rc ? rc : push_grown(m, err);
}

static void merges_end(struct merging *m)
{
    for (size_t i = 0; i < m->n_pairs; i++)
        free(m->pairs[i].words);
    free(m->ids);
    free(m->pairs);
    free(m->table);
    free(m->heap);
    free(m->grown);
    free(m->pieces);
    free(m->known);
}

/* Fewer tokens come out if the text has no pair left that occurs twice. */
static int merges_merge_all(struct merging *m, struct client_token_merge **out, size_t *n, uint32_t n_tokens,
                            const struct client_watch *watch, struct error *err)
{
    size_t cap = 0;
    uint32_t number;
    int rc = 0;

    while (!rc && m->n_tokens < n_tokens && pop_most_frequent(&number, m, &rc, err)) {
        rc = RESERVE(*out, cap, *n, err);
        if (!rc)
            rc = merge_pair(m, &(*out)[*n], number, err);
        if (!rc)
            rc = client_watch_ask(watch, err);
        ++*n;
    }
    return rc;
}

int client_words_merge(struct client_token_merge **out, size_t *n, struct client_words *words,
                       const uint32_t bytes[256], uint32_t first, uint32_t n_tokens, const struct client_watch *watch,
                       struct error *err)
{
    struct merging m = {.words = words, .mask = (1 << 16) - 1, .known_mask = 1023};

    while (m.known_mask < 2 * (size_t)n_tokens)
        m.known_mask = 2 * m.known_mask + 1;
    m.ids = malloc((words->n_bytes + 1) * sizeof *m.ids);
    m.table = calloc(m.mask + 1, sizeof *m.table);
    m.pieces = calloc((size_t)first + n_tokens, sizeof *m.pieces);
    m.known = calloc(m.known_mask + 1, sizeof *m.known);
    *out = NULL, *n = 0;
    int rc = m.ids && m.table && m.pieces && m.known ? begin_merging(&m, bytes, first, err) : merges_no_memory(err);
    if (!rc)
        rc = merges_merge_all(&m, out, n, n_tokens, watch, err);
    merges_end(&m);
    if (rc) {
        free(*out);
        *out = NULL, *n = 0;
    }
    return rc;
}
