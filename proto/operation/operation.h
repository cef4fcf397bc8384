/* proto/operation/operation.h - what an operation is: all that is derived from a program comes from here.
 *
 * Each operation is one file, with one struct operation, and a row of proto/operation/list.h. It runs as calls of the
 * device's operations (proto/operation/device.h), from which follow its price, and the bounds of what it touches. */
#ifndef PROTO_OPERATION_OPERATION_H
#define PROTO_OPERATION_OPERATION_H

#include "proto/operation/device.h"
#include "proto/operation/sampling.h"
#include "proto/operation/schedule.h"

struct operation_run;
struct schedule_builder;

/* What sizes depend on besides the program: a device, and a microbatch. */
struct operation_setting {
    const struct plan_backend *backend;
    enum number_type type;         /* type of values */
    enum plan_attention attention; /* the job's way */
    bool trains, generates;
    bool packs; /* a row is several documents */
    struct sampling sampling;
    unsigned n_threads;
    uint32_t n_rows, n_tokens;   /* rows, and tokens of a row */
    enum schedule_action action; /* the step's, for scratch */
};

/* What a text keeps in generation depends on, besides the program. */
struct operation_texts {
    const struct plan_backend *backend;
    enum number_type type; /* type of values */
    uint32_t n_positions;  /* tokens that a text may have */
};

/* In the sets below: bit i is input or output i. */
enum { OPERATION_FIRST = 1, OPERATION_SECOND = 2, OPERATION_THIRD = 4 };

struct operation {
    const char *name;
    const char *result;                  /* what a plan calls its outputs if it keeps them; NULL: `name` */
    uint8_t reads_inputs, reads_outputs; /* sets: what the operation's backward reads */
    uint8_t reads_frozen;                /* set: which of these inputs serve its tensors' gradients alone */
    uint8_t for_backward;                /* set: outputs that backward alone reads: generation has no room for them */
    uint8_t over_inputs;                 /* set: output 0 may be written over them */
    bool gradient_over; /* the gradient of input 0 may overwrite that of output 0, unless it accumulates */
    bool bears_4_bits;  /* its derivative bears values of 4 bits; else 8 (proto/plan/README.md has the reasons) */
    bool cheap;         /* element by element or row by row: recomputed in backward rather than kept */
    bool aligned;       /* its arrays are aligned to 64 bytes */
    bool mixes_tokens;  /* a token's result depends on others of its row or part, whatever their documents */
    /* The next operation, if forward computes it in the same step; else SCHEDULE_NONE. NULL: never. */
    int (*absorb)(const struct program *p, int operation);
    bool leaves_out; /* that step need not write output 0, where no other reads it */
    /* Adds the steps of its derivative. NULL: schedule_differentiate. */
    void (*differentiate)(struct schedule_builder *b, int operation);
    /* Bytes of workspace for each of its steps, or for those that contribute or sample alone. NULL: none. */
    bool contributes_with_scratch;
    uint64_t (*scratch)(const struct program *p, const struct program_operation *op,
                        const struct operation_setting *setting);
    /* Bytes that a text keeps of its tokens for the operation in generation, in a place of its own
     * (operation_cache). NULL: none. */
    uint64_t (*cache)(const struct program *p, const struct program_operation *op, const struct operation_texts *texts);
    void (*run)(const struct operation_run *r, const struct schedule_step *step);
};

/* Bytes that a text keeps for all operations of a program. */
uint64_t operation_cache_bytes(const struct program *p, const struct operation_texts *texts);

/* Set of the inputs that the operation's backward reads. */
static inline uint8_t operation_reads(const struct program_operation *op)
{
    return op->frozen ? op->kind->reads_inputs & (uint8_t)~op->kind->reads_frozen : op->kind->reads_inputs;
}

/* In generation: new tokens of one text, side by side with those of others. */
struct operation_span {
    uint32_t at, n;    /* tokens at .. at+n-1 of the pass */
    uint32_t position; /* position of the first token in its text */
    void *cache;       /* what the text keeps in this block; of an operation: operation_cache */
    /* An encoder-decoder's keys and values of the text's source in this block: (n_source) tokens. */
    void *source;
    uint32_t n_source;
};

/* One microbatch in one layer: all that its operations may use. Borrowed, but for the tables of addresses. */
struct operation_run {
    const struct device_ops *ops;
    struct device *dev;
    enum number_type type; /* type of values */
    const struct program *program;
    const struct schedule *schedule;
    void *at[SCHEDULE_BUFFERS];           /* each buffer */
    const void *weights[PROGRAM_TENSORS]; /* each tensor */
    float *gradients[PROGRAM_TENSORS];    /* backward; NULL: frozen */
    /* Backward, of sparse weights, whose gradients lie in one another's place: from there into the contribution
     * (gather). NULL: none of the tensors is sparse; y NULL: that one is dense. */
    const struct device_sparse *sparse;
    /* Sparse weights that are in one another's place: from the unit as it is relayed to there (scatter). NULL: none
     * are; y NULL: that one has a place of its own. */
    const struct device_sparse *singly;
    bool fresh;                /* the gradients of matrices are uninitialised, those of vectors zero */
    uint32_t n_rows, n_tokens; /* rows, and tokens of a row */
    const uint32_t *ids;       /* (n_rows*n_tokens), on the device: of a model without tables, its pixels */
    const uint32_t *lengths;   /* (n_rows), on the device: the keys of each row that count where attention
                                           * is to all; NULL: all */
    const uint32_t *positions; /* (n_rows*n_tokens), on the device: each token's index in its document, of
                                           * several in a row; NULL: a row is one document */
    /* Norms of the gradients of results of the maps that the program samples, in the order of operations, on the
     * device: a number for each element of a map's input, those of the run's n_rows rows at operation_norms_at. */
    const uint16_t *norms; /* bf16, as the last step that had the token computed them; 0: not known yet. NULL: none are
                            * remembered, or the pass is an evaluation */
    float *norms_out;      /* fp32, which backward writes; NULL: nowhere */
    size_t norms_stride;   /* elements from map to map, in both */
    uint32_t norms_row;    /* rows before the run's, in both */
    uint32_t layer;        /* index of the block */
    struct sampling sampling;
    bool drops;                           /* false in evaluation */
    bool base;                            /* adapters add nothing; only forward */
    uint32_t part_rows, n_parts;          /* rows of a part, of how many in the minibatch */
    uint64_t seed, step, unit, first_row; /* keys of random bits; first_row: index in the minibatch */
    /* Generating, where n_rows is 1, and its tokens are those of all spans: */
    const struct operation_span *spans; /* (n_spans), ascending and without gaps; NULL otherwise */
    uint32_t n_spans;
    uint32_t n_positions; /* capacity of a cache */
    const struct plan_backend *backend;
};

/* Random bits that make a gradient inexact. Another draw has those of another seed, while dropout keeps its own. */
static inline struct random_key operation_draw_key(const struct operation_run *r, enum random_site site)
{
    return random_site_key(r->seed ^ (uint64_t)r->sampling.draw << 32, r->step, r->unit, site);
}

/* Called before a matrix is read. Brings sparse weights into their place, if others may be there. */
void operation_begin_weights(const struct operation_run *r, int tensor);

/* Called before a matrix's gradient is added to, and when it is whole. Of sparse weights, the first brings it from the
 * contribution into its places, unless it is fresh; the second takes it back. */
void operation_begin_gradient(const struct operation_run *r, int tensor);
void operation_end_gradient(const struct operation_run *r, int tensor);

static inline const struct program_operation *operation_of(const struct operation_run *r,
                                                           const struct schedule_step *step)
{
    return &r->program->operations[step->operation];
}

static inline size_t operation_columns(const struct operation_run *r, int value)
{
    return r->program->values[value].columns;
}

/* Elements of a value in a row. */
static inline size_t operation_row_elements(const struct operation_run *r, int value)
{
    return program_row_elements(r->program, value, r->n_tokens);
}

static inline size_t operation_elements(const struct operation_run *r, int value)
{
    return program_elements(r->program, value, r->n_rows, r->n_tokens);
}

/* Index of the run's first number for a sampled map in norms and norms_out. */
size_t operation_norms_at(const struct operation_run *r, const struct program_operation *op);

/* The tokens' positions, for an operation on this value; NULL: they follow each other, or the value is none of
 * tokens. */
static inline const uint32_t *operation_positions(const struct operation_run *r, int value)
{
    return r->program->values[value].domain == PROGRAM_TOKENS ? r->positions : NULL;
}

/* Element n of values. */
static inline void *operation_element(const struct operation_run *r, const void *values, size_t n)
{
    return device_element(r->type, values, n);
}

/* What a text keeps for this operation: those of a block lie one behind the other, aligned to 64 bytes. */
void *operation_cache(const struct operation_run *r, const struct program_operation *op,
                      const struct operation_span *span);

/* p and scale as configured; where the pass drops nothing, no p, and no scale for dropped blocks. */
struct device_dropout operation_dropout_of(const struct operation_run *r, const struct program_dropout *dropout);

/* y = x + dropout(h), or without x, in the shape of a value: as data, or run. */
struct device_dropout_add operation_sum_of(const struct operation_run *r, const struct program_dropout *dropout,
                                           int value, void *y, const void *x, const void *h);
void operation_drop_add(const struct operation_run *r, const struct program_dropout *dropout, int value, void *y,
                        const void *x, const void *h);

/* Runs steps first .. end-1 of the schedule. */
void operation_run_steps(const struct operation_run *r, int first, int end);

/* The number of steps to run. In the lowest trained layer (`lowest`) steps of backward after the last one that adds to
 * the gradient of a trained tensor serve only layers below, so they are left out. */
int operation_count_steps(const struct operation_run *r, bool lowest);

#endif
