/* device/cuda/dnn/graph.h - graphs for cuDNN, written operation by operation.
 *
 * A graph remembers its first error, after which all calls do nothing, so one check at the end is enough. The graph
 * owns its descriptors; dnn_graph_free destroys them in reverse order. */
#ifndef DEVICE_CUDA_DNN_GRAPH_H
#define DEVICE_CUDA_DNN_GRAPH_H

#include "device/cuda/dnn/dnn.h"

enum { DNN_RANK = 4 };

enum dnn_pointwise {
    DNN_ADD = 0,
    DNN_MULTIPLY = 1,
    DNN_DIVIDE = 6,
    DNN_SUBTRACT = 9,
    DNN_EXP = 13,
    DNN_LOG = 15,
    DNN_IDENTITY = 21,
    DNN_GREATER = 302,
    DNN_NOT_LESS = 303,
    DNN_LESS = 304,
    DNN_AND = 400,
    DNN_INDEX = 501,
    DNN_SELECT = 601
};
enum dnn_reduction { DNN_SUM = 0, DNN_MAXIMUM = 3 };

/* A tensor with strides. Virtual: between two operations, never in memory. */
struct dnn_array {
    int64_t id; /* DNN_ANONYMOUS: an id that no variant pack has */
    enum dnn_type type;
    int64_t shape[DNN_RANK], strides[DNN_RANK];
    bool is_virtual, is_by_value;
};
enum { DNN_ANONYMOUS = 0 };
void *dnn_add_array(struct dnn_graph *graph, const struct dnn_array *array);

/* y = mode(x, b), or t ? x : b; b and t may be NULL. */
struct dnn_pointwise_operation {
    enum dnn_pointwise mode;
    const void *x, *b, *t, *y;
    int64_t axis; /* DNN_INDEX: the axis whose index is taken */
};
void dnn_add_pointwise(struct dnn_graph *graph, const struct dnn_pointwise_operation *operation);
/* c = a b, summed in fp32. Each of the lengths is NULL, or holds for each row of the batch how many of a's rows, b's
 * columns, and a's columns count. */
struct dnn_matmul_lengths {
    const void *rows, *columns, *inner;
};
void dnn_add_matmul(struct dnn_graph *graph, const void *a, const void *b, const void *c,
                    const struct dnn_matmul_lengths *lengths);
/* y = sum or maximum of x along the dimensions where y has 1. */
void dnn_add_reduction(struct dnn_graph *graph, enum dnn_reduction reduction, const void *x, const void *y);
/* One of DNN_OPERATION_CONVOLUTION, -_INPUT and -_WEIGHTS, summed in fp32: y of x and w, x's gradient of y's
 * and w, w's of x and y's. The shapes say the groups: w has x's channels over their number. */
void dnn_add_convolution(struct dnn_graph *graph, enum dnn_descriptor operation, const struct image_window *window,
                         const void *x, const void *w, const void *y);
/* y = x with other strides. */
void dnn_add_view(struct dnn_graph *graph, const void *x, const void *y);

/* Call after the last operation. handle may be NULL. False: graph->status is an error. */
bool dnn_graph_finish(struct dnn_graph *graph, void *handle);

/* One engine with knobs; NULL: the library lacks it for this graph. */
struct dnn_choice {
    enum dnn_knob knob;
    int64_t value;
};
enum { DNN_MAX_KNOBS = 12 };
void *dnn_graph_config(struct dnn_graph *graph, int64_t engine, void *properties, const struct dnn_choice *choices,
                       unsigned n);
/* The engine and knobs of a proposal. Returns their number; -1: it has more, or the library does not say. */
int dnn_config_choices(const struct dnn_api *api, void *config, int64_t *engine,
                       struct dnn_choice choices[DNN_MAX_KNOBS]);

#endif
