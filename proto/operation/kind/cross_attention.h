/* proto/operation/kind/cross_attention.h - a, log-sum-exp = attention of queries to the keys and values of another
 * domain. */
#ifndef PROTO_OPERATION_KIND_CROSS_ATTENTION_H
#define PROTO_OPERATION_KIND_CROSS_ATTENTION_H

#include "proto/operation/kind/dropout.h"

struct program_cross_attention_options {
    uint32_t n_heads;
    uint32_t n_kv_heads; /* heads of keys and values; divides n_heads; 0: n_heads */
    float scale;         /* factor on scores */
    struct program_dropout dropout;
};

/* q: the columns of all heads' queries. kv: those of all heads' keys, then values. Each query of a row sees all its
 * keys. */
int program_cross_attention(struct program *p, int q, int kv, const struct program_cross_attention_options *attention);

#endif
