/* proto/operation/kind/attention.h - a, log-sum-exp = attention(queries, keys and values side by side). */
#ifndef PROTO_OPERATION_KIND_ATTENTION_H
#define PROTO_OPERATION_KIND_ATTENTION_H

#include "proto/operation/attention_way.h"
#include "proto/operation/call/attention.h"
#include "proto/operation/kind/dropout.h"

struct operation_run;
struct operation_setting;
struct program;
struct program_operation;
struct schedule_step;

struct program_attention_options {
    uint32_t n_heads;
    uint32_t n_kv_heads; /* heads of keys and values; divides n_heads; 0: n_heads */
    bool full;           /* a query sees all keys; else those up to its own position */
    uint32_t window; /* a query sees the last `window` of these, its own included; with `full`, so many to each side;
                          * 0: all */
    float scale;     /* factor on scores */
    float cap;       /* scores become cap * tanh(score / cap); 0: they stay. Not with a bias */
    bool alibi;      /* struct device_attention */
    bool sinks;      /* each head has one: a tensor (struct device_attention) */
    bool scale_by_layer; /* scores are multiplied by 1/(layer + 1) too */
    struct program_dropout dropout;
    struct device_buckets buckets; /* of the bias, if there is one */
};

/* qkv: the columns of all heads' queries, then keys, then values. Without sinks. */
int program_attention(struct program *p, int qkv, const struct program_attention_options *attention);

/* With sinks, which are 0 in a fresh model. stem: of their name, "self_attn" for "self_attn.sinks". */
int program_sinking_attention(struct program *p, int qkv, const char *stem,
                              const struct program_attention_options *attention);

/* Attention with a bias of domain PART, (buckets.n, n_heads): added to scores by the distance from query to key. */
int program_biased_attention(struct program *p, int qkv, int bias, const struct program_attention_options *attention);

/* Columns of the keys that attention reads, or of the values. */
uint32_t program_kv_columns(const struct program *p, const struct program_operation *attention);

/* How a job in setting->attention computes this attention, where cuDNN supports its shape: the gradient is our kernels'
 * if there is none, values are not bf16, rows are packed, queries are sampled, or attention has a bias, dropout, a cap,
 * ALiBi, sinks, or a window on both sides. */
enum plan_attention operation_attention_way(const struct program_attention_options *attention,
                                            const struct operation_setting *setting);

/* The device's call for a step of attention; backward: with the gradients, and the number of queries to choose. */
struct device_attention operation_attention_call(const struct operation_run *r, const struct schedule_step *step);

#endif
