/* device/cpu/kernels/attention_mask.h - which keys a query sees, and so which tiles of keys and queries meet.
 *
 * A tile of queries runs over the tiles from the first that any of its queries sees to the last, with a window or
 * documents too. In tiles of which a query sees nothing its probabilities are 0, and sums stay as they are. Backward
 * runs over the same pairs of tiles by keys, so the functions of both directions must agree: of each pair one of either
 * tile sees, or is seen by, one of the other. */
#ifndef DEVICE_CPU_KERNELS_ATTENTION_MASK_H
#define DEVICE_CPU_KERNELS_ATTENTION_MASK_H

#include "device/cpu/kernels/attention_head.h"
#include "device/cpu/kernels/product.h"

/* Keys of a tile that are computed for query i: all; on the diagonal, those up to its own and the rest of its block of
 * product rows, which become zeros. */
static inline size_t tile_columns(size_t i, bool diagonal)
{
    return diagonal ? size_smaller(TILE, round_up(i + PRODUCT_ROWS, VECTOR)) : TILE;
}

/* place: first query and first key of a tile. */
static inline bool is_diagonal(const struct head *head, const size_t place[2])
{
    return !head->op->full && place[0] == place[1];
}

/* The first key that a query sees. In local rows those beyond the row's length see its last key, as nothing would be
 * left of a softmax over none. */
static inline size_t first_key(const struct head *head, size_t query)
{
    const size_t begin = device_first_key(head->window, query);
    const size_t first = head->is_local ? size_smaller(begin, head->n_counted - 1) : begin;
    const size_t document = head->positions ? query - head->positions[query] : 0;

    return document > first ? document : first;
}

/* End of the keys that a query of a full row sees, if all is one document. */
static inline size_t full_end(const struct head *head, size_t query)
{
    return head->is_local ? size_smaller(head->n_counted, query + head->window) : head->n_counted;
}

/* End of the document that token i is in, at most `most` (> i). */
static inline size_t document_end(const struct head *head, size_t i, size_t most)
{
    do
        i++;
    while (i < most && head->positions[i] > 0);
    return i;
}

/* The first tile of keys that any query of this tile sees. */
static inline size_t keys_begin(const struct head *head, size_t query)
{
    return first_key(head, query) / TILE * TILE;
}

/* Columns of a tile before the first one that the query sees; TILE: it sees none. They become zeros. */
static inline size_t tile_unseen(const struct head *head, size_t i, const size_t place[2])
{
    const size_t first = first_key(head, place[0] + i);

    return first > place[1] ? size_smaller(TILE, first - place[1]) : 0;
}

/* End of the columns of a tile of keys that are not after the query's document. */
static inline size_t document_columns(const struct head *head, size_t query, size_t key)
{
    const size_t end = size_smaller(head->n_keys, key + TILE), from = query > key ? query : key;

    if (from >= end)
        return TILE;
    if (from - head->positions[from] > query)
        return 0;
    return document_end(head, from, end) - key;
}

/* End of the columns that the query sees; those from here on become zeros. */
static inline size_t tile_seen(const struct head *head, size_t i, const size_t place[2])
{
    if (is_diagonal(head, place))
        return i + 1;
    if (!head->op->full)
        return TILE;
    const size_t end = full_end(head, place[0] + i), seen = end > place[1] ? size_smaller(TILE, end - place[1]) : 0;
    return head->positions ? size_smaller(seen, document_columns(head, place[0] + i, place[1])) : seen;
}

/* End of the keys that any of n queries sees; causal, one in its last tile. */
static inline size_t keys_end(const struct head *head, size_t query, size_t n)
{
    if (!head->op->full)
        return query + 1;
    const size_t end = full_end(head, query + n - 1);
    return head->positions ? document_end(head, query + n - 1, end) : end;
}

/* The first tile of queries that see any key of this tile. */
static inline size_t queries_begin(const struct head *head, size_t key)
{
    if (!head->op->full)
        return key;
    const size_t first = head->is_local ? device_first_key(head->window, key) : 0;
    const size_t document = head->positions ? key - head->positions[key] : 0;
    return (document > first ? document : first) / TILE * TILE;
}

/* End of the queries that see any of n keys. */
static inline size_t queries_end(const struct head *head, size_t key, size_t n)
{
    const size_t last = key + n - 1;
    const bool all = head->op->full && (!head->is_local || last + 1 >= head->n_counted); /* as first_key says */
    const size_t end = all ? head->n_tokens : size_smaller(head->n_tokens, last + head->window);

    return head->positions ? document_end(head, last, end) : end;
}

#endif
