/* device/cuda/dnn/plan.h - cuDNN's plans, shared by attention (dnn.c) and convolutions (conv.c). */
#ifndef DEVICE_CUDA_DNN_PLAN_H
#define DEVICE_CUDA_DNN_PLAN_H

#include "device/cuda/dnn/dnn.h"

/* A plan for slices of this many rows, with the direction's heads. */
struct plan {
    size_t n_rows;
    struct dnn_graph graph;
    void *plan;
};

enum { N_PLANS = 2 /* rows of a slice, and one */ };

struct direction {
    size_t n_heads; /* heads of a slice */
    struct plan plans[N_PLANS];
    unsigned n; /* 0: our own kernels are used */
};

/* Attention of one shape that is prepared. */
struct dnn_attention {
    struct device_attention like;          /* a call of this shape */
    struct plan_attention_scratch scratch; /* backward's scratch */
    struct direction forward, backward;
    uint32_t *query_lengths; /* on the device, owned: n_tokens for each row; NULL where rows have no lengths */
};

struct dnn_conv; /* conv.c */

struct cuda_dnn {
    struct dnn_api api; /* all NULL: no library */
    const char *missing;
    void *handle;
    struct dnn_attention *attentions; /* the prepared ones; owned */
    size_t n_attentions;
    struct dnn_conv *convs; /* the prepared convolutions; owned */
};

/* A plan of this configuration that fits; NULL otherwise. Undo: api.destroy_descriptor. */
void *dnn_plan_make(const struct cuda_dnn *dnn, void *config, int64_t most_bytes);

/* The arrays of a plan's tensors, by their ids. */
struct dnn_pack {
    int64_t ids[DNN_TENSORS];
    const void *pointers[DNN_TENSORS];
    int64_t n;
};

static inline void dnn_give(struct dnn_pack *pack, int64_t id, const void *pointer)
{
    pack->ids[pack->n] = id;
    pack->pointers[pack->n++] = pointer;
}

/* Queues the plan. 0, or the library's status. */
int dnn_plan_execute(const struct cuda_dnn *dnn, void *plan, const struct dnn_pack *given, const void *workspace);

/* Notes what became of `what`, which the library has begun. True: it is queued, or the device has failed. */
bool dnn_note(struct device *dev, int status, const char *what);

/* conv.c */
void dnn_convs_forget(struct cuda_dnn *dnn);

#endif
