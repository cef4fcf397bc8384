/* proto/operation/call/gated_delta.h - the gated delta rule, a linear attention whose state is a matrix of each head:
 * gated_delta, gated_delta_backward, gated_delta_cached. */
#ifndef PROTO_OPERATION_CALL_GATED_DELTA_H
#define PROTO_OPERATION_CALL_GATED_DELTA_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DEVICE_DELTA_CHUNK = 64 };

/* Gated DeltaNet - Yang et al., arXiv:2412.06464. Each of n_heads heads of values has a state S (key_width,
 * value_width), 0 before a document's first token. Of each token, in the order of the document,
 *
 *     S <- e^g S;   d = beta (v - S^T k);   S <- S + k d^T;   y = S^T q
 *
 * where q and k are the token's query and key, each divided by sqrt(sum of its squares + 1e-6), and q times
 * key_width^-1/2 after that; g = -exp(a_log) softplus(a + dt_bias), at most 0; and beta = sigmoid(b), or twice that.
 * Head j reads the queries and keys of key head j / (n_heads / n_key_heads).
 *
 * Computed in chunks of DEVICE_DELTA_CHUNK tokens, the first of which begins with the document - Yang et al.,
 * arXiv:2406.06484. With S as it is before a chunk, and G the sums of g from the chunk's first token to each,
 *
 *     (I + L) d = beta (v - e^G S^T k),   L[i][j] = beta[i] e^(G[i] - G[j]) k[i].k[j] where j < i
 *     y[i] = e^G[i] S^T q[i] + sum over j <= i of e^(G[i] - G[j]) q[i].k[j] d[j]
 *     S <- e^G[last] S + sum over j of e^(G[last] - G[j]) k[j] d[j]^T
 *
 * I + L is solved for by forward substitution in blocks of 16 tokens: a product of powers of L loses all digits where
 * tokens repeat. Exponents are differences of sums, which are held in more than fp32: after tokens that forget much they
 * are large. q, k and v may be of 16 bits; all arithmetic, S and d are fp32.
 *
 * What a token gets, and the gradients of its qkv and gates, are the same bits wherever its document lies in a row and
 * whatever lies beside it. Gradients of a key head's queries and keys are added up head by head, in their order;
 * those of a_log and dt_bias are sums over all tokens, in an order that the shape and the device alone decide. */
struct device_gated_delta {
    size_t n_rows, n_tokens;       /* rows, and tokens of a row */
    size_t n_heads, n_key_heads;   /* heads of values; of queries and keys, which divides n_heads */
    size_t key_width, value_width; /* columns of one head of queries or keys; of values */
    bool doubled;                  /* beta is twice the sigmoid of b */
    const uint32_t *positions;     /* (n_rows*n_tokens), on the device: each token's index in its document; NULL: a row
                                    * is one document */
    const void *qkv;     /* (n_rows*n_tokens, 2*n_key_heads*key_width + n_heads*value_width): queries, keys, values */
    const void *gates;   /* (n_rows*n_tokens, 2*n_heads): a of each head, then b of each */
    const void *a_log;   /* (n_heads) */
    const void *dt_bias; /* (n_heads) */
    void *y;             /* (n_rows*n_tokens, n_heads*value_width), forward and cached */
    /* (n_rows, device_gated_delta_slots, n_heads, key_width, value_width): S before token t of a row, in slot t / 64 - 1
     * (64: DEVICE_DELTA_CHUNK), for each t whose position is a multiple of 64 other than 0. Other slots are not
     * touched. Written forward, read backward; not cached. */
    float *states;
    const void *y_gradient;  /* shaped as y, backward */
    void *qkv_gradient;      /* shaped as qkv, backward, overwritten */
    void *gates_gradient;    /* shaped as gates, backward, overwritten */
    float *a_log_gradient;   /* (n_heads), backward, +=; NULL: not computed */
    float *dt_bias_gradient; /* (n_heads), backward, +=; NULL: not computed */
    void *scratch;           /* delta_bytes() of proto/operation/backend.h */
    /* Cached: the tokens are those of one text from this position on. Chunks end before positions that are multiples of
     * 64, so calls that do have the same bits as one call. */
    uint32_t first;
    float *state; /* (n_heads, key_width, value_width): S before position `first`, not read if that is 0; then S after
                   * the last token */
};

/* Columns of qkv. */
static inline size_t device_gated_delta_columns(const struct device_gated_delta *op)
{
    assert(op->n_key_heads > 0 && op->n_heads % op->n_key_heads == 0);
    return 2 * op->n_key_heads * op->key_width + op->n_heads * op->value_width;
}

/* States of a row: at most one for every 64 tokens. Those of a document's chunks are 64 tokens apart, and the first one
 * of a document is 64 tokens behind its beginning: no two are in one slot. */
static inline size_t device_gated_delta_slots(size_t n_tokens)
{
    return n_tokens > 0 ? (n_tokens - 1) / DEVICE_DELTA_CHUNK : 0;
}

/* Numbers of all heads' states. */
static inline size_t device_gated_delta_state(const struct device_gated_delta *op)
{
    return op->n_heads * op->key_width * op->value_width;
}

#endif
