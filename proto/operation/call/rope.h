/* proto/operation/call/rope.h - rotary positions on the device. */
#ifndef PROTO_OPERATION_CALL_ROPE_H
#define PROTO_OPERATION_CALL_ROPE_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DEVICE_MAX_ROTATED = 256 };

/* Rotary positions. A head's first n_rotated columns are n_rotated/2 pairs, each rotated in its plane, for the token at
 * position p by the angle p * frequencies[j]: Su et al., arXiv:2104.09864. Pairs are (j, j + n_rotated/2), or, as in
 * the paper, interleaved: (2j, 2j + 1). What is rotated may be multiplied, which some models do to cosine and sine
 * (YaRN: Peng et al., arXiv:2309.00071). The gradient is the inverse rotation with the same factors. */
struct device_rope {
    size_t n_rows, n_tokens, n_heads, head_width;
    size_t n_rotated;          /* even, at most head_width and DEVICE_MAX_ROTATED; columns beyond stay as they are */
    const double *frequencies; /* (n_rotated/2) of the host's, at least 0, in radians a position; borrowed until done */
    uint64_t first;            /* position of each row's first token */
    const uint32_t *positions; /* (n_rows*n_tokens), on the device: each token's, instead; NULL: they follow `first` */
    void *x;       /* (n_rows*n_tokens, n_heads*head_width), in place: queries, keys, both side by side, or gradients */
    size_t stride; /* elements from a token's first head to the next token's */
    bool inverse;
    bool interleaved;
    float factor; /* on cosines and sines; 0: 1 */
    /* The first n_grown heads, which are queries, are multiplied by 1 + growth * log(1 + floor(p / period)) as well. */
    size_t n_grown;
    float growth;
    uint32_t period; /* positions, at least 1 if n_grown is */
};

/* The factor of the first n_grown heads at a position. */
static inline float device_rope_growth(const struct device_rope *op, uint64_t position)
{
    return 1 + op->growth * logf(1 + (float)(position / op->period));
}

/* Fixed positions: y[t][j] += sin(t w), y[t][n/2 + j] += cos(t w), w = 10000^(-j / (n/2 - 1)). Vaswani et al.,
 * arXiv:1706.03762, section 3.5, with separate halves as in tensor2tensor and fairseq. Nothing is added to a
 * gradient. */
struct device_sinusoid {
    size_t n_rows, n_tokens, n; /* n: even */
    void *y;                    /* (n_rows*n_tokens, n), in place */
    size_t first;               /* position of each row's first token */
};

/* w for column j < n/2, in radians a position. */
static inline double device_sinusoid_frequency(const struct device_sinusoid *op, size_t j)
{
    return op->n > 2 ? pow(10000, -(double)j / ((double)(op->n / 2) - 1)) : 1;
}

#endif
