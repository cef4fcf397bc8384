/* proto/operation/program.h - a layer as a short program: operations over values, written once by its family.
 *
 * A layer maps one value, its input, to another, its output, for each token of a microbatch. All else follows from the
 * program: the tensors of its unit, the order of forward and backward and what backward computes again
 * (proto/operation/schedule.h), where values lie (proto/plan/layers.h), how long operations take (proto/plan/work.h), and
 * the calls to the device (proto/step/program.c).
 *
 * A program is written by calling the functions below in order, as in
 *
 *     const int n = program_norm(p, x, "ln_1", &norm);
 *     const int u = program_linear(p, n, "mlp.c_fc", inner, &linear);
 *
 * A value is named by the number that the function returns. One operation writes it, any number read it. A program that
 * exceeds the limits is a mistake in its family's file: an assertion fails. */
#ifndef PROTO_OPERATION_PROGRAM_H
#define PROTO_OPERATION_PROGRAM_H

#include "proto/base/random.h"

#include <stdbool.h>
#include <stdint.h>

enum model_activation {
    MODEL_GELU_NEW,
    MODEL_GELU,
    MODEL_RELU,
    MODEL_SILU,
    MODEL_TANH
}; /* GELU: tanh form; erf form */

enum model_init { MODEL_INIT_ZERO, MODEL_INIT_ONE, MODEL_INIT_NORMAL };

enum {
    PROGRAM_OPERATIONS = 24,
    PROGRAM_VALUES = 32,
    PROGRAM_TENSORS = 24,
    PROGRAM_INPUTS = 3,  /* of one operation */
    PROGRAM_OUTPUTS = 2, /* of one operation */
    PROGRAM_PARTS = 3,   /* of one linear map */
    PROGRAM_NAME_BYTES = 48,
    PROGRAM_MAX_ROTATED = 256,
};

enum program_kind {
    PROGRAM_NORM,       /* y, statistics = norm(x; weight, bias) */
    PROGRAM_LINEAR,     /* y = x W + b, or several of them side by side */
    PROGRAM_HEAD_NORM,  /* y, statistics = x with each head of queries and keys normed, values as they are */
    PROGRAM_ROPE,       /* y = x with queries and keys rotated by their positions */
    PROGRAM_ATTENTION,  /* a, log-sum-exp = attention(queries, keys and values side by side) */
    PROGRAM_ACTIVATION, /* y = act(x); no other operation reads x */
    PROGRAM_GLU,        /* y = act(gate) * up, side by side */
    PROGRAM_ADD,        /* y = x + dropout(h) */
    PROGRAM_DROPOUT,    /* y = dropout(x); no other operation reads x */
    PROGRAM_KINDS
};

/* Properties of a kind of operation. A set has bit i for input or output i. */
struct program_rule {
    const char *name;
    uint8_t reads_inputs, reads_outputs; /* sets: what the operation's backward reads */
    uint8_t over_inputs;                 /* set: output 0 may be written over them */
    bool gradient_over; /* the gradient of input 0 may overwrite that of output 0, unless it accumulates */
    bool cheap;         /* element by element or row by row: recomputed in backward rather than kept */
};
extern const struct program_rule program_rules[PROGRAM_KINDS];

enum program_type {
    PROGRAM_VALUE,     /* of the device's type, as weights are */
    PROGRAM_STATISTIC, /* fp32 */
};

struct program_value {
    enum program_type type;
    uint32_t columns; /* elements per token: a width; 2 for a norm's statistics; the number of heads for attention's */
    int operation;    /* the one that writes it; -1: the layer's input */
};

/* A tensor of the layer's unit. The unit holds them in the order in which the operations name them. */
struct program_tensor {
    char name[PROGRAM_NAME_BYTES]; /* "attn.c_attn.weight" */
    uint32_t rows, columns;        /* columns 0: a vector */
    enum model_init init;
    float deviation; /* of MODEL_INIT_NORMAL */
};

struct program_dropout {
    float p;
    enum random_site site;
};

struct program_norm_options {
    float epsilon;
    bool rms;    /* root mean square, else layer norm */
    bool bias;   /* zero in a fresh model */
    bool offset; /* the factor is 1 + weight, and the weight zero in a fresh model; else weight, and one */
};

struct program_linear_options {
    float deviation; /* of the fresh weight */
    bool bias;       /* each part has one */
    bool out_in;     /* the weight is (out, in), as in torch.nn.Linear; else (in, out) */
};

/* Columns of a linear map's result, with tensors of their own. */
struct program_part {
    const char *stem;
    uint32_t columns;
};

/* Root mean square norms of single heads, before their dot products: Henry et al., arXiv:2010.04245. */
struct program_head_norm_options {
    float epsilon;
    uint32_t n_heads, n_kv_heads, head_width;
    bool offset; /* as in struct program_norm_options */
};

struct program_rope_options {
    uint32_t n_heads; /* rotated ones, the value's first: those of queries, then those of keys */
    uint32_t head_width;
    uint32_t n_rotated;        /* the first columns of each head; 0: all */
    double base;               /* pair j of a head is rotated by position * base^(-2j / n_rotated), */
    const double *frequencies; /* or by position * frequencies[j] (n_rotated/2); NULL: by base. Copied */
};

struct program_attention_options {
    uint32_t n_heads;
    uint32_t n_kv_heads; /* of keys and values; divides n_heads; 0: n_heads */
    bool full;           /* a query sees all keys; else those up to its own position */
    uint32_t window;     /* the last so many of these, its own included; 0: all. Not with `full` */
    float scale;         /* of scores */
    bool scale_by_layer; /* and by 1/(layer + 1) */
    struct program_dropout dropout;
};

struct program_operation {
    enum program_kind kind;
    int n_inputs, n_outputs;
    int inputs[PROGRAM_INPUTS], outputs[PROGRAM_OUTPUTS];
    int tensor, n_tensors; /* the first: weight, then bias; of a linear map all parts' weights, then all biases */
    int n_parts;           /* of a linear map */
    uint32_t part_columns[PROGRAM_PARTS];
    union { /* by kind */
        struct program_norm_options norm;
        struct program_linear_options linear;
        struct program_head_norm_options head_norm;
        struct program_rope_options rope;
        struct program_attention_options attention;
        enum model_activation activation; /* of PROGRAM_GLU too */
        struct program_dropout dropout;   /* of PROGRAM_DROPOUT; of PROGRAM_ADD: of h, input 1 */
    };
};

struct program {
    int n_operations, n_values, n_tensors;
    int input, output; /* values */
    int logit_bias;    /* the tensor that the head adds to logits; -1: none */
    struct program_operation operations[PROGRAM_OPERATIONS];
    struct program_value values[PROGRAM_VALUES];
    struct program_tensor tensors[PROGRAM_TENSORS];
    double frequencies[PROGRAM_MAX_ROTATED / 2]; /* of PROGRAM_ROPE; a program has at most one */
};

/* Begins a program; returns the layer's input. */
int program_begin(struct program *p, uint32_t columns);

/* stem: of the tensors' names, "ln_1" for "ln_1.weight" and "ln_1.bias". */
int program_norm(struct program *p, int x, const char *stem, const struct program_norm_options *norm);
int program_linear(struct program *p, int x, const char *stem, uint32_t columns,
                   const struct program_linear_options *linear);

/* Several maps of x. Their results lie side by side, in order. */
int program_linears(struct program *p, int x, const struct program_part *parts, int n_parts,
                    const struct program_linear_options *linear);
/* qkv: as for attention. query, key: stems of the two weights, (head_width) each. */
int program_head_norm(struct program *p, int qkv, const char *query, const char *key,
                      const struct program_head_norm_options *head_norm);
int program_rope(struct program *p, int x, const struct program_rope_options *rope);

/* qkv: the columns of all heads' queries, then keys, then values. */
int program_attention(struct program *p, int qkv, const struct program_attention_options *attention);
int program_activation(struct program *p, int x, enum model_activation activation);
/* x: the gate's columns, then the same number of columns that the gate multiplies. */
int program_glu(struct program *p, int x, enum model_activation activation);
int program_add(struct program *p, int x, int h, const struct program_dropout *dropout);
int program_drop(struct program *p, int x, const struct program_dropout *dropout); /* p = 0: returns x */

/* Gives the unit one more tensor, a vector (n_outputs: model_outputs), which the head adds to the logits; zero in a fresh
 * model. One layer above the blocks may have it. */
void program_logit_bias(struct program *p, const char *name, uint32_t n_outputs);

/* True if two programs differ in nothing but options of their operations. */
bool program_is_alike(const struct program *a, const struct program *b);

/* The program's first operation of a kind. NULL: it has none. */
const struct program_operation *program_find(const struct program *p, enum program_kind kind);

/* Columns of the keys that attention reads, or of the values. */
uint32_t program_kv_columns(const struct program *p, const struct program_operation *attention);

/* Ends the program. y is the layer's output, as wide as its input. */
void program_end(struct program *p, int y);

/* The number of operations that read a value, the layer's end included. */
int program_count_readers(const struct program *p, int value);

/* The values that backward reads and that are expensive to recompute: all that a layer can keep. */
uint64_t program_keepable(const struct program *p);

/* The same in groups: the values of one operation are kept together; if operations outnumber groups, the last ones
 * share a group. Returns the number of groups, and fills in each one's set and first operation. */
enum { PROGRAM_KEPT_GROUPS = 4 };
int program_kept_groups(const struct program *p, uint64_t values[PROGRAM_KEPT_GROUPS],
                        int operations[PROGRAM_KEPT_GROUPS]);

/* The values that backward reads. */
uint64_t program_read_backward(const struct program *p);

#endif
