/* proto/operation/kind/head_norm.h - y, statistics = x with each head of queries and of keys normed, values as they
 * are: Henry et al., arXiv:2010.04245. */
#ifndef PROTO_OPERATION_KIND_HEAD_NORM_H
#define PROTO_OPERATION_KIND_HEAD_NORM_H

#include <stdbool.h>
#include <stdint.h>

struct program;

struct program_head_norm_options {
    float epsilon;
    uint32_t n_heads, n_kv_heads, head_width;
    bool bare;    /* without weights or biases */
    bool layer;   /* about the mean, with a bias; else by the root mean square */
    bool offset;  /* as in struct program_norm_options */
    bool whole;   /* all heads of queries are one, and so are all of keys; the weights are as wide */
    bool each;    /* about the mean, without a bias; each head has a weight, STEM.norms.0.weight; not with `whole` */
    bool stacked; /* with `each`: the heads' weights are rows of one tensor, STEM.weight */
};

/* With `each`, unless `stacked`: heads of queries and keys together, at most. Each has a tensor of the program. */
enum { PROGRAM_NORMED_HEADS = 48 };

/* qkv: as for attention; no other operation may read it. query, key: stems of the two weights, (head_width) each, or as
 * wide as what they norm; not read if bare. */
int program_head_norm(struct program *p, int qkv, const char *query, const char *key,
                      const struct program_head_norm_options *head_norm);

#endif
