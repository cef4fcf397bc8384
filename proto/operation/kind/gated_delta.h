/* proto/operation/kind/gated_delta.h - y = the gated delta rule over the tokens of each document:
 * proto/operation/call/gated_delta.h. */
#ifndef PROTO_OPERATION_KIND_GATED_DELTA_H
#define PROTO_OPERATION_KIND_GATED_DELTA_H

#include <stdbool.h>
#include <stdint.h>

struct program;

struct program_gated_delta_options {
    uint32_t n_heads, n_key_heads;  /* of values; of queries and keys, which divides n_heads */
    uint32_t key_width;             /* columns of one head of queries, or of keys */
    bool doubled;                   /* struct device_gated_delta */
    float least, largest;           /* of MODEL_INIT_LOG_UNIFORM, for A_log in a fresh model */
    float least_step, largest_step; /* of MODEL_INIT_STEP, for dt_bias; 0: each is 1 */
};

/* qkv: queries, keys and values; gates: a of each head, then b of each. stem: of the tensors' names, "linear_attn" for
 * "linear_attn.A_log" and "linear_attn.dt_bias". No other operation may read qkv or
 * gates. Returns y, n_heads as wide as those of values. */
int program_gated_delta(struct program *p, int qkv, int gates, const char *stem,
                        const struct program_gated_delta_options *delta);

#endif
