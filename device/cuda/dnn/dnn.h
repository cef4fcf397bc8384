/* device/cuda/dnn/dnn.h - the part of cuDNN that attention and convolutions need, loaded at run time.
 *
 * Building needs no cuDNN: the constants here belong to its backend interface, and are the same in all of version 9. A
 * computation is a graph of descriptors: tensors, operations, and the library's engines and plans for them. */
#ifndef DEVICE_CUDA_DNN_DNN_H
#define DEVICE_CUDA_DNN_DNN_H

#include "device/cuda/cuda.h"

#include "proto/operation/attention_way.h"
#include "proto/operation/conv2d_path.h"

enum dnn_type { DNN_FP32 = 0, DNN_INT32 = 4, DNN_BF16 = 9, DNN_BOOLEAN = 11 };

enum dnn_descriptor {
    DNN_POINTWISE = 0,
    DNN_CONVOLUTION = 1,
    DNN_ENGINE = 2,
    DNN_ENGINE_CONFIG = 3,
    DNN_HEURISTICS = 4,
    DNN_PLAN = 5,
    DNN_KNOB_CHOICE = 7,
    DNN_OPERATION_CONVOLUTION = 10,
    DNN_OPERATION_CONVOLUTION_WEIGHTS = 11,
    DNN_OPERATION_CONVOLUTION_INPUT = 12,
    DNN_OPERATION_POINTWISE = 13,
    DNN_GRAPH = 15,
    DNN_VARIANT_PACK = 16,
    DNN_TENSOR = 17,
    DNN_MATMUL = 18,
    DNN_OPERATION_MATMUL = 19,
    DNN_REDUCTION = 21,
    DNN_OPERATION_REDUCTION = 22,
    DNN_OPERATION_RESHAPE = 31,
    DNN_DEVICE_PROPERTIES = 38, /* a device, present or not; from 9.8 on */
};

/* The type of an attribute's elements. */
enum dnn_kind {
    DNN_KIND_HANDLE = 0,
    DNN_KIND_TYPE = 1,
    DNN_KIND_BOOLEAN = 2,
    DNN_KIND_INT64 = 3,
    DNN_KIND_FP32 = 4,
    DNN_KIND_POINTER = 6,
    DNN_KIND_CONVOLUTION = 7,
    DNN_KIND_HEURISTICS = 8,
    DNN_KIND_KNOB = 9,
    DNN_KIND_NOTE = 11,
    DNN_KIND_POINTWISE = 14,
    DNN_KIND_DESCRIPTOR = 15,
    DNN_KIND_REDUCTION = 18,
    DNN_KIND_CHAR = 24,
};

enum dnn_attribute {
    DNN_POINTWISE_MODE = 0,
    DNN_POINTWISE_PRECISION = 1,
    DNN_POINTWISE_AXIS = 9,
    DNN_CONVOLUTION_PRECISION = 100,
    DNN_CONVOLUTION_MODE = 101,
    DNN_CONVOLUTION_DILATIONS = 102,
    DNN_CONVOLUTION_STRIDES = 103,
    DNN_CONVOLUTION_PADDING_AFTER = 104,
    DNN_CONVOLUTION_PADDING_BEFORE = 105,
    DNN_CONVOLUTION_DIMENSIONS = 106,
    DNN_HEURISTICS_MODE = 200,
    DNN_HEURISTICS_GRAPH = 201,
    DNN_HEURISTICS_RESULTS = 202,
    DNN_HEURISTICS_PROPERTIES = 204,
    DNN_CONFIG_ENGINE = 300,
    DNN_CONFIG_KNOBS = 302,
    DNN_CONFIG_WORKSPACE = 303,
    DNN_PLAN_HANDLE = 400,
    DNN_PLAN_CONFIG = 401,
    DNN_PLAN_WORKSPACE = 402,
    DNN_KNOB = 600,
    DNN_KNOB_VALUE = 601,
    DNN_OPERATION_CONVOLUTION_ALPHA = 700, /* and five more in this order: alpha, beta, mode, w, x, y */
    DNN_OPERATION_CONVOLUTION_INPUT_ALPHA = 706,
    DNN_OPERATION_CONVOLUTION_WEIGHTS_ALPHA = 712,
    DNN_OPERATION_POINTWISE_MODE = 750,
    DNN_OPERATION_POINTWISE_X = 751,
    DNN_OPERATION_POINTWISE_B = 752,
    DNN_OPERATION_POINTWISE_Y = 753,
    DNN_OPERATION_POINTWISE_T = 758,
    DNN_GRAPH_HANDLE = 800,
    DNN_GRAPH_OPERATIONS = 801,
    DNN_TENSOR_ALIGNMENT = 900,
    DNN_TENSOR_TYPE = 901,
    DNN_TENSOR_SHAPE = 902,
    DNN_TENSOR_STRIDES = 903,
    DNN_TENSOR_ID = 906,
    DNN_TENSOR_IS_VIRTUAL = 907,
    DNN_TENSOR_IS_BY_VALUE = 908,
    DNN_PACK_IDS = 1000,
    DNN_PACK_POINTERS = 1001,
    DNN_PACK_WORKSPACE = 1003,
    DNN_ENGINE_GRAPH = 1300,
    DNN_ENGINE_INDEX = 1301,
    DNN_ENGINE_NOTES = 1303,
    DNN_ENGINE_PROPERTIES = 1307,
    DNN_MATMUL_PRECISION = 1500,
    DNN_OPERATION_MATMUL_A = 1520,
    DNN_OPERATION_MATMUL_B = 1521,
    DNN_OPERATION_MATMUL_C = 1522,
    DNN_OPERATION_MATMUL_MODE = 1523,
    DNN_OPERATION_MATMUL_LENGTHS = 1525, /* and two more: rows of a, columns of b, columns of a that count */
    DNN_REDUCTION_OPERATOR = 1600,
    DNN_REDUCTION_PRECISION = 1601,
    DNN_OPERATION_REDUCTION_X = 1610,
    DNN_OPERATION_REDUCTION_Y = 1611,
    DNN_OPERATION_REDUCTION_MODE = 1612,
    DNN_OPERATION_RESHAPE_X = 2200,
    DNN_OPERATION_RESHAPE_Y = 2201,
    DNN_PROPERTIES_JSON = 2702,
};

/* Knobs of attention's engines backward, and those by which a sum is divided. */
enum dnn_knob {
    DNN_KNOB_SPLIT_K = 0,
    DNN_KNOB_STAGES = 14,
    DNN_KNOB_SPLITS = 17,
    DNN_KNOB_KERNEL = 24,
    DNN_KNOB_CLUSTER_M = 27,
    DNN_KNOB_STREAM_K = 38,
    DNN_KNOB_SPLIT_PIXELS = 39,
    DNN_KNOB_TILE_M = 40,
    DNN_KNOB_TILE_N = 41
};

enum {
    DNN_NOTE_TENSOR_CORE = 0,
    DNN_NOTE_NONDETERMINISTIC = 4,
    DNN_NOTE_KEEPS_NAN = 9,
    DNN_NOTES = 10,
};
enum { DNN_HEURISTICS_A = 3 };

/* The library's functions; a status is 0 or an error. */
struct dnn_api {
    void *library;
    size_t (*version)(void);
    const char *(*error_string)(int status);
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, cudaStream_t stream);
    int (*create_descriptor)(int descriptor, void **out);
    int (*destroy_descriptor)(void *descriptor);
    int (*set)(void *descriptor, int attribute, int kind, int64_t n, const void *elements);
    int (*get)(const void *descriptor, int attribute, int kind, int64_t n, int64_t *n_got, void *elements);
    int (*finalize)(void *descriptor);
    int (*execute)(void *handle, void *plan, void *pack);
};

/* Loads the newest library for this CUDA in EPS_CUDNN=DIR[:DIR...] or, if that is not set, of the loader's path, the
 * toolkit's usual place and the system's; and the engines beside it. An empty EPS_CUDNN forbids it. False, and why (a
 * constant). Undo: dnn_api_unload. */
bool dnn_api_load(struct dnn_api *api, const char **why);
void dnn_api_unload(struct dnn_api *api); /* safe on a zeroed one */

/* Some rows of struct device_attention, and some neighbouring heads. */
struct dnn_shape {
    size_t n_rows, n_tokens, n_heads, head_width;
    size_t n_all_heads; /* all heads of a row */
    size_t n_sharing;   /* neighbouring heads that share keys and values: divides n_heads; 1: none do */
    bool full;          /* a query sees all keys; else those up to its own */
    size_t window;      /* of these the last so many, at least 1, fewer than n_tokens; 0: all. Not with full */
    bool has_lengths;   /* a query sees the first keys alone, as many as DNN_KEY_LENGTHS says. With full */
};

/* Ids of the caller's tensors in a variant pack: those of struct device_attention from the first row and head on.
 * Scalars are fp32 on the host. */
enum dnn_tensor {
    DNN_Q = 1,
    DNN_K,
    DNN_V,
    DNN_OUT,
    DNN_LOG_SUM_EXP,
    DNN_SCALE,
    DNN_MASKED,        /* score of a key that its query does not see */
    DNN_WINDOW,        /* dnn_shape.window, where it is not 0 */
    DNN_QUERY_LENGTHS, /* (n_rows) int32, where rows have lengths: n_tokens of each, as all queries count */
    DNN_KEY_LENGTHS,   /* (n_rows) int32 */
    /* For backward alone: */
    DNN_OUT_GRADIENT,
    DNN_Q_GRADIENT,
    DNN_K_GRADIENT,
    DNN_V_GRADIENT,
    DNN_DELTA, /* room for (n_rows, n_all_heads, n_tokens) fp32, from the first row and head on */
    DNN_Q_SUM, /* room for (n_rows, n_heads, n_tokens, head_width) fp32; not where scores are kept */
    DNN_ONE,   /* 1: the library's pattern has a place for dropout's scale */
};

enum { DNN_TENSORS = DNN_ONE };

/* The same of struct device_conv2d, from some image on; of a gradient, the array that it is the gradient of. */
enum dnn_conv_tensor { DNN_CONV_X = 1, DNN_CONV_WEIGHT, DNN_CONV_Y, DNN_CONV_ADDED /* what the result is added to */ };

enum { DNN_MAX_DESCRIPTORS = 128, DNN_MAX_OPERATIONS = 32, DNN_MAX_CONFIGS = 8 };

/* Owned descriptors; destroyed in reverse order. */
struct dnn_graph {
    const struct dnn_api *api;
    void *descriptors[DNN_MAX_DESCRIPTORS];
    unsigned n;
    void *operations[DNN_MAX_OPERATIONS]; /* some of the above, in order */
    unsigned n_operations;
    int status;  /* the first error */
    void *graph; /* the graph of the operations: one of the above */
};

/* The graphs of attention in bf16 on a handle; with a NULL handle, for the device whose properties
 * dnn_graph_configs gets. False: api->error_string(graph->status). Undo in both cases: dnn_graph_free. */
bool dnn_graph_attention(struct dnn_graph *graph, const struct dnn_api *api, void *handle,
                         const struct dnn_shape *shape);
/* way: one of the library's backward. */
bool dnn_graph_attention_backward(struct dnn_graph *graph, const struct dnn_api *api, void *handle,
                                  const struct dnn_shape *shape, enum plan_attention way);
/* The graph of a convolution of op's sizes, or of a gradient of it, for n_rows images in bf16. adds: the result is
 * added to DNN_CONV_ADDED, before it is rounded; so are weights' always, which are in fp32. */
bool dnn_graph_conv(struct dnn_graph *graph, const struct dnn_api *api, void *handle, const struct device_conv2d *op,
                    size_t n_rows, enum conv2d_kind kind, bool adds);
void dnn_graph_free(struct dnn_graph *graph);

/* The library's proposals for the graph, best first, that give the same bits every time and round no more than sums in
 * fp32; owned by the graph. Returns their number, at most DNN_MAX_CONFIGS. properties: NULL, or those of the device
 * that the graph is for. */
unsigned dnn_graph_configs(struct dnn_graph *graph, void *properties, void *configs[DNN_MAX_CONFIGS]);

/* As dnn_graph_configs, for backward's graph. The library does not report which engines sum in any order of blocks, so
 * two of the methods name one engine and its knobs by number; 0: the library lacks it. */
unsigned dnn_graph_backward_configs(struct dnn_graph *graph, enum plan_attention way, void *properties,
                                    void *configs[DNN_MAX_CONFIGS]);

/* attention.c. The score of a key that its query does not see. */
float dnn_masked(const struct dnn_api *api);
/* The best way of a device, by its compute capability (90: 9.0) and the library's version; PLAN_ATTENTION_FORWARD: the
 * library has no gradient of fixed bits for it. */
enum plan_attention dnn_backward_way(size_t version, int capability);

#endif
