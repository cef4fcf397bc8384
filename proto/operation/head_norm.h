/* proto/operation/head_norm.h - y, statistics = x with each head of queries and of keys normed by its root mean square,
 * values as they are: Henry et al., arXiv:2010.04245. */
#ifndef PROTO_OPERATION_HEAD_NORM_H
#define PROTO_OPERATION_HEAD_NORM_H

#include <stdbool.h>
#include <stdint.h>

struct program;

struct program_head_norm_options {
    float epsilon;
    uint32_t n_heads, n_kv_heads, head_width;
    bool offset; /* as in struct program_norm_options */
};

/* qkv: as for attention; no other operation may read it. query, key: stems of the two weights, (head_width) each. */
int program_head_norm(struct program *p, int qkv, const char *query, const char *key,
                      const struct program_head_norm_options *head_norm);

#endif
