/* proto/operation/call/sample.h - k of n rows stand for all of them in a product that sums over rows: WTA-CRS.
 *
 * Source: Liu et al., "Winner-Take-All Column Row Sampling for Memory Efficient Adaptation of Language Model", NeurIPS
 * 2023, arXiv 2305.15265. A sum over rows of g_i x_i^T is estimated without bias: the rows with the largest scores, the
 * winners, are kept with weight 1; the others are drawn with replacement, in proportion to their scores, and weighted
 * by the inverse of that probability. Any scores will do that are positive wherever g_i x_i^T is not zero. With the
 * scores |x_i| |g_i| of row_norms the variance is least.
 *
 *   row_norms    the norms of rows, or their products with others: the scores;
 *   weigh_scores norms of x, times norms of g that earlier steps left: scores before g is there;
 *   choose_rows  the rows and their weights;
 *   gather_rows  these rows, side by side, weighted: the products' operands. */
#ifndef PROTO_OPERATION_CALL_SAMPLE_H
#define PROTO_OPERATION_CALL_SAMPLE_H

#include "proto/base/random.h"
#include "proto/base/size.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* norms_i = |x_i|, or norms_i * |x_i|. Squares are summed in fp32: a row whose squares all vanish there has norm 0.
 * With heads, a row is n_heads parts of n elements, side by side, and each has a norm. */
struct device_row_norms {
    size_t m, n, stride; /* (m, n), or (m, n_heads, n): rows `stride` elements apart */
    const void *x;
    float *norms; /* (m), or (m / n_tokens, n_heads, n_tokens) */
    bool multiply;
    size_t n_heads;  /* 0: a row has one norm */
    size_t n_tokens; /* with heads: rows of x in each row of the minibatch; divides m */
};

/* scores_i *= the norm that token i's gradient had when the token was last seen: 0 is none yet, which counts as the
 * mean of those known in its row, or as 1 if none is known or the mean is below SAMPLE_NOTHING; then so do all. A known
 * one counts as a SAMPLE_FLOOR of the mean at least, so that a token whose gradient has grown is not drawn too rarely.
 * Padding, whose gradient is 0, has its sign bit set, and counts as that floor: so no score is 0, and no estimate
 * biased, whoever errs. */
struct device_weigh_scores {
    size_t n_rows, n_tokens, stride; /* norms: rows `stride` apart */
    const uint16_t *norms;           /* (n_rows, n_tokens), bf16 */
    float *scores;                   /* (n_rows * n_tokens) */
};

#define SAMPLE_FLOOR   (1 / 64.0F)
#define SAMPLE_NOTHING 1e-30F
#define SAMPLE_PADDING 0x8000

/* What a row's unknown norms count as, from the mean of the known ones; and the factor of a token's score, from its
 * norm's pattern and number. */
#define SAMPLE_BASE(mean) ((mean) < SAMPLE_NOTHING ? 1 : (mean))
#define SAMPLE_WEIGHT(pattern, norm, mean)                                                                             \
    ((pattern) >= SAMPLE_PADDING                 ? SAMPLE_FLOOR * SAMPLE_BASE(mean)                                    \
     : (pattern) == 0 || (mean) < SAMPLE_NOTHING ? SAMPLE_BASE(mean)                                                   \
     : (norm) < SAMPLE_FLOOR * (mean)            ? SAMPLE_FLOOR * (mean)                                               \
                                                 : (norm))

enum {
    SAMPLE_BLOCK = 2048,    /* tokens that rows are chosen from at once */
    SAMPLE_SCORE_BITS = 40, /* a score's weight is a whole number: the largest one's is 2^40 */
};

/* How many of k chosen rows are winners (arXiv:2305.15265, section 3.2). Of the last two nobody trains well: they are
 * what the first two are measured against. */
enum sample_rule {
    SAMPLE_PAPER,    /* c minimises (1 - P) / (k - c) */
    SAMPLE_VARIANCE, /* (1 - P)^2 / (k - c), the leading term of the variance where scores are the products of norms */
    SAMPLE_NONE,     /* none: column-row sampling */
    SAMPLE_ALL,      /* all k, of weight 1: biased, and nothing is drawn */
};

/* Chooses n_chosen of each row's n_tokens tokens, in blocks of its tokens that depend on n_tokens alone
 * (sample_block). So neither the microbatch nor the worker changes the choice.
 *
 * Of a block's n scores, sorted, c winners are kept; with p_i a score's share of all, P the winners' sum, and k rows to
 * choose, c is as enum sample_rule says. The k - c others have the weights (1 - P) / ((k - c) p_i).
 *
 * Scores are rounded to whole numbers, those above 0 to at least 1. Sums of these are exact, so every device chooses
 * the same. Winners come first, the largest score first; then the drawn rows in the order of drawing. A block with
 * k >= n is chosen whole, in its order, and draws nothing. Rows of weight 0 fill up where fewer than k scores are above
 * 0. If a score is not finite, all weights of its block are NaN. With `ascends` the rows and their weights are sorted
 *    by
 * row afterwards. */
struct device_choose_rows {
    size_t n_rows, n_tokens, n_chosen; /* n_chosen: of each row, 0 < n_chosen <= n_tokens */
    enum sample_rule rule;
    bool ascends;
    const float *scores; /* (n_rows * n_tokens), >= 0 */
    uint32_t *chosen;    /* (n_rows * n_chosen), indices of scores */
    float *weights;      /* (n_rows * n_chosen) */
    struct random_key key;
    uint64_t first_row; /* minibatch row of the call's row 0 */
};

/* y_i = x_c of c = chosen_i, times weights_i. */
struct device_gather_rows {
    size_t n_rows, n, stride; /* x: (n_rows, n), rows `stride` elements apart */
    size_t m;                 /* y: (m, n) */
    const void *x;
    const uint32_t *chosen; /* (m), below n_rows */
    const float *weights;   /* (m), or NULL: 1 */
    void *y;
};

/* Norms of each row of x. */
static inline size_t sample_heads(const struct device_row_norms *op)
{
    return op->n_heads > 0 ? op->n_heads : 1;
}

/* The place of the norm of row i's head. */
static inline size_t sample_norm_at(const struct device_row_norms *op, size_t i, size_t head)
{
    return op->n_heads > 0 ? (i / op->n_tokens * op->n_heads + head) * op->n_tokens + i % op->n_tokens : i;
}

/* Tokens of each block of a row's tokens but the last, which may have fewer. */
static inline size_t sample_block(size_t n_tokens)
{
    return size_pieces(n_tokens, size_pieces(n_tokens, SAMPLE_BLOCK));
}

/* Chosen ones among a row's first `end` tokens. */
static inline size_t sample_before(const struct device_choose_rows *op, size_t end)
{
    return op->n_chosen * end / op->n_tokens;
}

#endif
