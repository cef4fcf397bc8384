/* proto/step/layers.h - the step loop's interface to a layer.
 *
 * A layer runs one visit (one unit's weights on the device) over one microbatch. It reads and writes boundary values
 * (proto/model/config/values.h); the embedding reads ids, and the head writes losses. Backward reads the gradients of what the
 * layer wrote, and writes those of what it read. Backward reads the activations that forward kept, or recomputes them
 * in the workspace from the layer's input, with the same bits.
 *
 * Dropout's bits depend on the id of the visited unit; for the embedding, which has several units, on that of its
 * topmost visit. */
#ifndef PROTO_STEP_LAYERS_H
#define PROTO_STEP_LAYERS_H

#include "proto/operation/device.h"
#include "proto/base/number.h"
#include "proto/model/model.h"
#include "proto/plan/memory/layers.h"

/* One unit of a head in one pass. */
struct layer_chunk {
    const struct model_unit *unit;
    const void *weights; /* decoded, if it is coded */
    float *contribution; /* +=, or = if the pass is fresh; NULL: the unit is frozen */
};

/* One visit over one microbatch: everything a layer may touch. */
struct layer_pass {
    const struct device_ops *ops;
    struct device *dev;
    const struct model *model;
    const struct model_layer *layer;
    const struct model_program *program; /* the layer's, or the one that finishes it; NULL for embedding and head */
    const struct model_edges *edges;     /* the layer's, or those of what finishes it */
    const struct model_unit *unit;
    bool bottom, top; /* this is the layer's first visit in forward; in backward */
    bool lowest;      /* the lowest layer that is trained: nobody reads its input's gradient */
    bool skipped; /* the step drops its block: layer_dropped stands for it, with the operands of device_moves alone */
    /* The unit's weights as it is relayed, on the device; the head's are padded by rows of zeros. The embedding's may
     * be host memory, which embed and position can read; they are NULL in backward. */
    const void *weights;
    /* The unit's coded and sparse pieces (struct model_unit), decoded on the device, one behind the other; the head's
     * are padded likewise. NULL: there are none, or they are decoded singly; and for the embedding, whose tables are
     * decoded as they are looked up. */
    const void *decoded;
    float *contribution; /* its trained elements: += in backward, or = if fresh; NULL forward, and if all are frozen */
    float *dense; /* one sparse piece in all its rows and columns: its gradient, while it is added to; or its weights,
                   * decoded singly */
    bool fresh;   /* the contribution, or those of the chunks, are uninitialised */
    /* Norms that the unit remembers (proto/model/norms.h), on the device, as in struct operation_run; NULL: it
     * remembers none. norms_out is the contribution's end. */
    const uint16_t *norms;
    float *norms_out;
    size_t norms_stride;
    uint32_t norms_row;
    /* This microbatch's part of the layer's values, by enum model_role and in its order; NULL: not there, or not
     * needed. Backward, the gradient of the first input may be in the place of the first output's (struct
     * model_operand), and the first output's own place is free. Small gradients (model_is_small) are added to. */
    void *at[MODEL_ROLES][PROGRAM_BOUNDARIES];
    /* (predicted, width): if the plan has it, the head's visits sum their input's gradient here, and the last visit
     * rounds the sum to that gradient, which lies at its beginning or in the input's place; else NULL. */
    float *gradient_sum;
    const uint32_t *ids;       /* (tokens), on the device */
    const uint32_t *labels;    /* (predicted), on the device */
    const uint32_t *positions; /* (tokens), on the device: each one's index in its document; NULL: rows are whole */
    /* On the device, else NULL: the length of each row, or of its source (model_has_lengths), (n_rows); in a classifier
     * the segment of each token, (tokens). */
    const uint32_t *lengths, *segments;
    float *running; /* (predicted, 3) */
    double *losses; /* (predicted) */
    /* NULL unless rows are pairs of texts. (n_rows): the reference model's log p. (n_rows): the model's, which the
     * head's topmost visit writes in forward. (predicted): the factors of their gradients, likewise; those of tokens
     * with weights are there before. */
    const float *references;
    double *log_p;
    float *scales;
    void *workspace; /* plan_workspace(), of any content */
    /* The set of activations that a block keeps (struct model_program), and where (plan_kept_bytes): written forward,
     * read backward, which recomputes the others. NULL: nothing is kept. */
    void *kept;
    uint32_t keeping;
    /* (the head's units, bottom first): forward also does backward's work for all of them; NULL otherwise. */
    const struct layer_chunk *chunks;
    /* Rows of this microbatch; tokens of a row. Above, tokens = n_rows * n_tokens; predicted: those of them that have a
     * prediction (model_predicted). */
    uint32_t n_rows, n_tokens;
    uint64_t first_row; /* in the minibatch */
    uint64_t seed, step;
    float loss_scale; /* the share's, over T */
    bool dropout;     /* false in evaluation, unless it is asked for */
    bool smooths;     /* labels may be smoothed: false in evaluation */
    bool base;        /* adapters add nothing; only forward */
    /* Generating, where n_rows is 1, and n_tokens those of all spans: */
    const struct operation_span *spans; /* (n_spans), ascending, without gaps; NULL otherwise, and above the blocks */
    uint32_t n_spans;
    /* The domain to compute in an encoder-decoder: PROGRAM_SOURCE, of one row, or PROGRAM_TARGET. 0: all. */
    uint32_t side;
    void *source; /* of the source, in a block: where what targets read of it is kept (program_source_read) */
    /* (n_tokens, vocabulary), plan->logits_stride apart: what the head writes instead of losses; NULL otherwise. */
    float *logits;
    /* (n_rows, labels): logits of a classifier's rows, which an evaluation's head writes beside losses; else NULL. */
    float *row_logits;
    const struct plan_setting *setting;
    const struct plan *plan; /* setting is its setting */
};

struct device_worker; /* proto/step/step.h */

/* Over a visit of the worker's model: ops, dev, model, layer, program, edges, unit, workspace, setting and plan; all
 * else is 0. */
struct layer_pass layer_pass_of(const struct device_worker *worker, uint32_t visit);

struct layer_ops {
    void (*forward)(const struct layer_pass *pass);
    void (*backward)(const struct layer_pass *pass);
};

/* For device_ops.prepare_attention: adds the layer's calls of attention, if it trains those of its gradient, as a pass
 * of these rows makes them, behind the n calls in ops and ways, but not those that are alike one that is there. Returns
 * their number; at most LAYER_ATTENTIONS. Reads ops, dev, model, layer, unit, setting, plan, workspace, kept, keeping,
 * n_rows, n_tokens, lengths, positions and dropout of pass; the calls' arrays are in workspace and kept. */
enum { LAYER_ATTENTIONS = 16 };
size_t layer_attentions(struct device_attention *ops, enum plan_attention *ways, size_t n,
                        const struct layer_pass *pass, bool trains);

/* The model's convolutions as a pass of these rows calls the device for them, for device_ops.prepare_conv2d: each has
 * the arrays that it will have, but all are at `at`. Returns their number; out: NULL, or room for as many. */
size_t layer_convolutions(struct device_conv2d *out, const struct model *model, struct plan_shape rows, bool trains,
                          void *at);

/* By enum model_layer_kind; every member set. */
extern const struct layer_ops layer_embedding, layer_program, layer_head;
/* In place of a block's, in a step that drops it: its output is its input. */
extern const struct layer_ops layer_dropped;
extern const struct layer_ops *const layer_table[];

/* Tokens of the microbatch. */
static inline size_t layer_tokens(const struct layer_pass *pass)
{
    return (size_t)pass->n_rows * pass->n_tokens;
}

/* A piece of the visited unit, in the device's type; in fp32 if that is its form. NULL: there are no weights. */
static inline const void *layer_piece(const struct layer_pass *pass, const struct model_piece *piece)
{
    const bool decodes = piece->form != FORM_VALUES || piece->dense > 0;
    const void *from = decodes ? pass->decoded : pass->weights;

    if (piece->form == FORM_FP32)
        return pass->weights
                   ? (const char *)pass->weights + model_piece_at(pass->unit, piece, pass->setting->goal.precision)
                   : NULL;
    return from ? device_element(pass->setting->goal.precision, from, decodes ? piece->decoded : piece->offset) : NULL;
}

/* Element n of values: of weights, boundaries, or a layer's own. */
static inline void *layer_element(const struct layer_pass *pass, const void *values, size_t n)
{
    return device_element(pass->setting->goal.precision, values, n);
}

#endif
