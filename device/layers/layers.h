/* device/layers/layers.h - what the step loop asks of a layer.
 *
 * A layer runs one visit (one unit's weights on the device) over one microbatch. It reads boundary l-1 and writes boundary l (the embedding reads ids; the head reads the last
 * boundary and writes losses); in backward the gradient buffer holds dL/d(boundary l) on entry and dL/d(boundary l-1) on return. It recomputes what it
 * needs from its stashed input, bit for bit what forward computed, in the workspace. */
#ifndef DEVICE_LAYERS_LAYERS_H
#define DEVICE_LAYERS_LAYERS_H

#include "device/device.h"
#include "device/plan.h"
#include "proto/model.h"

/* One visit over one microbatch: everything a layer may touch. */
struct layer_pass {
    const struct device_ops *ops;
    struct device *dev;
    const struct model *model;
    const struct model_layer *layer;
    const struct model_unit *unit;
    const float *weights;         /* the unit's, on the device */
    float *contribution;          /* the same layout: += in backward; NULL forward */
    const float *input;           /* (tokens, width) boundary l-1 of this microbatch; NULL for the embedding */
    float *output;                /* (tokens, width) boundary l, forward; NULL for the head */
    float *gradient;              /* (tokens, width) of this microbatch, in and out */
    const uint32_t *ids, *labels; /* (tokens), on the device */
    float *running;               /* (tokens, 3) */
    double *losses;               /* (tokens) */
    void *workspace;              /* layer_workspace_bytes() */
    uint32_t n_rows, n_tokens;    /* of this microbatch: rows, and tokens of a row */
    uint64_t first_row;           /* in the minibatch */
    uint64_t seed, step;
    float loss_scale; /* 1/T */
    bool dropout;     /* false in evaluation */
    unsigned n_threads;
};

struct layer_ops {
    void (*forward)(const struct layer_pass *pass);
    void (*backward)(const struct layer_pass *pass);
    /* Bytes for one microbatch of n_rows; forward alone needs no more. */
    size_t (*workspace_bytes)(const struct model *model, const struct device_ops *ops, uint32_t n_rows,
                              uint32_t n_tokens, uint32_t n_threads);
};

/* By kind; every member set. */
extern const struct layer_ops layer_table[];

#endif
