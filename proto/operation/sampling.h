/* proto/operation/sampling.h - gradients of matrices from some rows: what a job allows (proto/operation/call/sample.h).
 *
 * Where the gradient of a matrix is due and both operands of its product are there, the scores are exact. They are a
 * linear map's input and the gradient of its result; of an adapter's A, the input and the gradient of A's result,
 * while B's gradient, of the other product, is exact (Liu et al. sample lora_A alone, too). The rows of each row of
 * the minibatch are chosen by themselves, so no microbatch, share or worker changes a bit. Gradients of inputs,
 * biases and all else stay exact.
 *
 * Of an input that backward could not make again without it (program_sample), forward chooses the rows, by the norms
 * of the input and those of the gradient that an earlier step left (proto/model/norms.h), and keeps these. Where
 * nothing is kept, backward computes the input again and chooses the same.
 *
 * In a run's first steps, while the learning rate rises, those gradients are exact whose operands are both there, which
 * takes time but no memory. Samples of a fresh model's first steps lead its weights to where gradients, exact ones,
 * too, jump to 15 times their size from step to step, and Adam's second moments remember that: of a text of
 * licences, held-out loss after 100 steps was 0.09 to 0.90 above the exact run's with samples in all steps (four seeds),
 * 0.86 with samples in the first 30 alone (the worst of these), and 0.09 to 0.12 with samples behind them (six seeds).
 *
 * Attention's two products are sampled, too, on request: the gradients of keys and values are sums over the queries, of
 * which each row's heads choose some by the norms of the gradient of their result. These are there when backward comes,
 * so nothing is kept. The sums are estimated without bias, but they are gradients of activations: all below is then
 * computed from an estimate. Each step down is linear in the gradient that it is given, and draws by itself, so the
 * mean of all gradients is still the exact one. */
#ifndef PROTO_OPERATION_SAMPLING_H
#define PROTO_OPERATION_SAMPLING_H

#include "proto/base/number.h"
#include "proto/operation/call/sample.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sampling {
    double share;   /* of each row's tokens, for gradients of matrices; 0: these are exact */
    double queries; /* of each row's queries, for gradients of attention's keys and values; 0: these are exact */
    enum sample_rule rule;
    uint32_t draw; /* another number, other random bits (operation_draw_key) */
    uint64_t
        begin; /* the first step, from 0, in which gradients of matrices are sampled whose operands are both there */
};

#define SAMPLING_LEAST_SHARE 0.01

static inline bool sampling_is_share(double share)
{
    return share == 0 || (share >= SAMPLING_LEAST_SHARE && share < 1);
}

static inline bool sampling_is_valid(const struct sampling *s)
{
    return sampling_is_share(s->share) && sampling_is_share(s->queries);
}

/* A share of n, n > 0, at least 1; of 0: all. Never less of more. */
static inline size_t sampling_part(double share, size_t n)
{
    const size_t k = (size_t)(share * (double)n);

    return share == 0 ? n : k > 0 ? k : 1;
}

/* How many of a row's n tokens are chosen, n > 0; n: the gradient is exact. */
static inline size_t sampling_count(const struct sampling *s, size_t n)
{
    return sampling_part(s->share, n);
}

/* How many of a row's n queries each head chooses, n > 0; 0: gradients of keys and values are exact. */
static inline size_t sampling_queries(const struct sampling *s, size_t n)
{
    const size_t k = sampling_part(s->queries, n);

    return k < n ? k : 0;
}

/* Rows of the minibatch, tokens of each, and elements of a token in both operands. */
struct sampling_shape {
    size_t n_rows, n_tokens, x_columns, dy_columns;
};

/* Operands of the product x^T dy: x (n_rows, x_columns), dy (n_rows, dy_columns). */
struct sampling_operands {
    const void *x, *dy;
    size_t n_rows; /* tokens, of all rows of the minibatch */
};

/* Scratch of sampling_choose; 0: all tokens are chosen. */
uint64_t sampling_bytes(const struct sampling *s, const struct sampling_shape *of, enum number_type type);

/* Bytes of what forward keeps of x: the chosen rows, in `bits` as struct device_compress has them (0: as they are),
 * which they are, and their weights; and scratch of sampling_keep and of sampling_recall. */
uint64_t sampling_kept_bytes(const struct sampling *s, const struct sampling_shape *of, enum number_type type,
                             unsigned bits);
uint64_t sampling_keep_bytes(const struct sampling *s, const struct sampling_shape *of, enum number_type type,
                             unsigned bits);
uint64_t sampling_recall_bytes(const struct sampling *s, const struct sampling_shape *of, enum number_type type,
                               unsigned bits);

struct operation_run;

/* Chooses rows of x, which is `value` of the run's program, and writes them to `kept`; tensor: as for sampling_choose.
 * norms: (n_rows, n_tokens), those of dy as earlier steps left them (struct device_weigh_scores); NULL: none are
 * known. */
void sampling_keep(const struct operation_run *r, const struct sampling_shape *of, const void *x, const uint16_t *norms,
                   int value, int tensor, void *kept, void *scratch);

/* The rows of a value that were kept, and those of dy, weighted, in scratch. */
struct sampling_operands sampling_recall(const struct operation_run *r, const struct sampling_shape *of,
                                         const void *kept, int value, const void *dy, void *scratch);

/* The chosen tokens of both operands, in scratch, aligned to 64 bytes, those of dy weighted; or `all` where the run, or
 * the step, samples none. tensor: of the run's program, the first that the gradient is of, which tells draws apart. */
struct sampling_operands sampling_choose(const struct operation_run *r, const struct sampling_shape *of,
                                         const struct sampling_operands *all, int tensor, void *scratch);

struct device_attention;

/* Bytes at the front of the scratch of attention's backward, for n_chosen queries of each row and head, and the scores
 * of all n_tokens; 0 for none. */
uint64_t sampling_queries_bytes(size_t n_rows, size_t n_heads, size_t n_tokens, size_t n_chosen);

/* Chooses op->n_chosen queries of each row and head, if that is not 0, and moves op->scratch behind them. value: the
 * result of attention in the run's program, which tells draws apart. */
void sampling_choose_queries(const struct operation_run *r, int value, struct device_attention *op);

#endif
