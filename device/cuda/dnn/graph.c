/* A descriptor cannot change once it is finalized, so each is complete when it is made: tensors, an operation's mode,
 * the operation, the graph, in this order. Attributes that the library numbers in sequence are counted from the first.
 *
 * cuDNN proposes what is fast, not what repeats its bits. So notes are accepted, not refused: one that a newer library
 * adds bars its engines until somebody has read what it means. And get() returns no descriptor, but fills in one that
 * was made before: whoever asks for a config's engine makes an engine first. */
#include "device/cuda/dnn/graph.h"

#include <assert.h>

enum { ANONYMOUS = 100 /* first id of virtual tensors */ };

/* Every call passes once `status` is set, so a graph is written without a check at each line. */
static void *graph_create(struct dnn_graph *g, enum dnn_descriptor kind)
{
    void *descriptor = NULL;

    assert(g->n < DNN_MAX_DESCRIPTORS);
    if (!g->status)
        g->status = g->api->create_descriptor((int)kind, &descriptor);
    if (!g->status)
        g->descriptors[g->n++] = descriptor;
    return descriptor;
}

static void graph_set(struct dnn_graph *g, void *descriptor, enum dnn_attribute attribute, enum dnn_kind kind,
                      int64_t n, const void *elements)
{
    if (!g->status)
        g->status = g->api->set(descriptor, (int)attribute, (int)kind, n, elements);
}

static void set_one(struct dnn_graph *g, void *descriptor, enum dnn_attribute attribute, const void *other)
{
    if (other)
        graph_set(g, descriptor, attribute, DNN_KIND_DESCRIPTOR, 1, &other);
}

static void finalize(struct dnn_graph *g, void *descriptor)
{
    if (!g->status)
        g->status = g->api->finalize(descriptor);
}

static void graph_add(struct dnn_graph *g, void *operation)
{
    assert(g->n_operations < DNN_MAX_OPERATIONS);
    finalize(g, operation);
    g->operations[g->n_operations++] = operation;
}

void *dnn_add_array(struct dnn_graph *g, const struct dnn_array *a)
{
    const int64_t alignment = a->type == DNN_INT32 ? 4 : 16; /* in memory only lengths are such, from any row on */
    const int64_t id = a->id == DNN_ANONYMOUS ? ANONYMOUS + (int64_t)g->n : a->id;
    void *d = graph_create(g, DNN_TENSOR);

    graph_set(g, d, DNN_TENSOR_TYPE, DNN_KIND_TYPE, 1, &a->type);
    graph_set(g, d, DNN_TENSOR_SHAPE, DNN_KIND_INT64, DNN_RANK, a->shape);
    graph_set(g, d, DNN_TENSOR_STRIDES, DNN_KIND_INT64, DNN_RANK, a->strides);
    graph_set(g, d, DNN_TENSOR_ID, DNN_KIND_INT64, 1, &id);
    graph_set(g, d, DNN_TENSOR_ALIGNMENT, DNN_KIND_INT64, 1, &alignment);
    if (a->is_virtual)
        graph_set(g, d, DNN_TENSOR_IS_VIRTUAL, DNN_KIND_BOOLEAN, 1, &a->is_virtual);
    if (a->is_by_value)
        graph_set(g, d, DNN_TENSOR_IS_BY_VALUE, DNN_KIND_BOOLEAN, 1, &a->is_by_value);
    finalize(g, d);
    return d;
}

void dnn_add_matmul(struct dnn_graph *g, const void *a, const void *b, const void *c,
                    const struct dnn_matmul_lengths *lengths)
{
    static const enum dnn_type precision = DNN_FP32;
    void *mode = graph_create(g, DNN_MATMUL);
    graph_set(g, mode, DNN_MATMUL_PRECISION, DNN_KIND_TYPE, 1, &precision);
    finalize(g, mode);

    void *d = graph_create(g, DNN_OPERATION_MATMUL);
    set_one(g, d, DNN_OPERATION_MATMUL_A, a);
    set_one(g, d, DNN_OPERATION_MATMUL_B, b);
    set_one(g, d, DNN_OPERATION_MATMUL_C, c);
    set_one(g, d, DNN_OPERATION_MATMUL_MODE, mode);
    set_one(g, d, DNN_OPERATION_MATMUL_LENGTHS, lengths->rows);
    set_one(g, d, DNN_OPERATION_MATMUL_LENGTHS + 1, lengths->columns);
    set_one(g, d, DNN_OPERATION_MATMUL_LENGTHS + 2, lengths->inner);
    graph_add(g, d);
}

void dnn_add_pointwise(struct dnn_graph *g, const struct dnn_pointwise_operation *p)
{
    const enum dnn_type precision = p->mode >= DNN_GREATER && p->mode <= DNN_AND ? DNN_BOOLEAN : DNN_FP32;
    void *mode = graph_create(g, DNN_POINTWISE);
    graph_set(g, mode, DNN_POINTWISE_MODE, DNN_KIND_POINTWISE, 1, &p->mode);
    graph_set(g, mode, DNN_POINTWISE_PRECISION, DNN_KIND_TYPE, 1, &precision);
    if (p->mode == DNN_INDEX)
        graph_set(g, mode, DNN_POINTWISE_AXIS, DNN_KIND_INT64, 1, &p->axis);
    finalize(g, mode);

    void *d = graph_create(g, DNN_OPERATION_POINTWISE);
    set_one(g, d, DNN_OPERATION_POINTWISE_MODE, mode);
    set_one(g, d, DNN_OPERATION_POINTWISE_X, p->x);
    set_one(g, d, DNN_OPERATION_POINTWISE_B, p->b);
    set_one(g, d, DNN_OPERATION_POINTWISE_T, p->t);
    set_one(g, d, DNN_OPERATION_POINTWISE_Y, p->y);
    graph_add(g, d);
}

void dnn_add_reduction(struct dnn_graph *g, enum dnn_reduction reduction, const void *x, const void *y)
{
    static const enum dnn_type precision = DNN_FP32;
    void *mode = graph_create(g, DNN_REDUCTION);
    graph_set(g, mode, DNN_REDUCTION_OPERATOR, DNN_KIND_REDUCTION, 1, &reduction);
    graph_set(g, mode, DNN_REDUCTION_PRECISION, DNN_KIND_TYPE, 1, &precision);
    finalize(g, mode);

    void *d = graph_create(g, DNN_OPERATION_REDUCTION);
    set_one(g, d, DNN_OPERATION_REDUCTION_X, x);
    set_one(g, d, DNN_OPERATION_REDUCTION_Y, y);
    set_one(g, d, DNN_OPERATION_REDUCTION_MODE, mode);
    graph_add(g, d);
}

void dnn_add_convolution(struct dnn_graph *g, enum dnn_descriptor operation, const struct image_window *window,
                         const void *x, const void *w, const void *y)
{
    static const enum dnn_type precision = DNN_FP32;
    static const int correlation = 1;
    static const int64_t dimensions = 2;
    static const float alpha = 1, beta = 0;
    const int64_t one[] = {1, 1}, stride[] = {window->stride, window->stride},
                  padding[] = {window->padding, window->padding};
    const enum dnn_attribute first = operation == DNN_OPERATION_CONVOLUTION ? DNN_OPERATION_CONVOLUTION_ALPHA
                                     : operation == DNN_OPERATION_CONVOLUTION_INPUT
                                         ? DNN_OPERATION_CONVOLUTION_INPUT_ALPHA
                                         : DNN_OPERATION_CONVOLUTION_WEIGHTS_ALPHA;
    void *mode = graph_create(g, DNN_CONVOLUTION);
    graph_set(g, mode, DNN_CONVOLUTION_PRECISION, DNN_KIND_TYPE, 1, &precision);
    graph_set(g, mode, DNN_CONVOLUTION_MODE, DNN_KIND_CONVOLUTION, 1, &correlation);
    graph_set(g, mode, DNN_CONVOLUTION_DIMENSIONS, DNN_KIND_INT64, 1, &dimensions);
    graph_set(g, mode, DNN_CONVOLUTION_DILATIONS, DNN_KIND_INT64, 2, one);
    graph_set(g, mode, DNN_CONVOLUTION_STRIDES, DNN_KIND_INT64, 2, stride);
    graph_set(g, mode, DNN_CONVOLUTION_PADDING_BEFORE, DNN_KIND_INT64, 2, padding);
    graph_set(g, mode, DNN_CONVOLUTION_PADDING_AFTER, DNN_KIND_INT64, 2, padding);
    finalize(g, mode);

    void *d = graph_create(g, operation);
    graph_set(g, d, first, DNN_KIND_FP32, 1, &alpha);
    graph_set(g, d, first + 1, DNN_KIND_FP32, 1, &beta);
    set_one(g, d, first + 2, mode);
    set_one(g, d, first + 3, w);
    set_one(g, d, first + 4, x);
    set_one(g, d, first + 5, y);
    graph_add(g, d);
}

void dnn_add_view(struct dnn_graph *g, const void *x, const void *y)
{
    void *d = graph_create(g, DNN_OPERATION_RESHAPE);

    set_one(g, d, DNN_OPERATION_RESHAPE_X, x);
    set_one(g, d, DNN_OPERATION_RESHAPE_Y, y);
    graph_add(g, d);
}

bool dnn_graph_finish(struct dnn_graph *g, void *handle)
{
    void *graph = graph_create(g, DNN_GRAPH);

    graph_set(g, graph, DNN_GRAPH_OPERATIONS, DNN_KIND_DESCRIPTOR, (int64_t)g->n_operations, g->operations);
    if (handle)
        graph_set(g, graph, DNN_GRAPH_HANDLE, DNN_KIND_HANDLE, 1, &handle);
    finalize(g, graph);
    g->graph = graph;
    return g->status == 0;
}

void dnn_graph_free(struct dnn_graph *g)
{
    while (g->n > 0)
        g->api->destroy_descriptor(g->descriptors[--g->n]);
    g->graph = NULL;
}

/* Notes of engines whose bits vary from run to run, or whose sums are less exact than products summed in fp32. */
static bool is_barred(int note)
{
    return note != DNN_NOTE_TENSOR_CORE && note != DNN_NOTE_KEEPS_NAN;
}

static bool graph_is_exact(struct dnn_graph *g, void *config)
{
    int64_t n = 0;
    int notes[DNN_NOTES];
    void *engine = graph_create(g, DNN_ENGINE);
    int status = g->status ? g->status : g->api->get(config, DNN_CONFIG_ENGINE, DNN_KIND_DESCRIPTOR, 1, &n, &engine);

    if (!status)
        status = g->api->get(engine, DNN_ENGINE_NOTES, DNN_KIND_NOTE, DNN_NOTES, &n, notes);
    for (int64_t i = 0; !status && i < n; i++)
        if (is_barred(notes[i]))
            return false;
    return status == 0;
}

unsigned dnn_graph_configs(struct dnn_graph *g, void *properties, void *configs[DNN_MAX_CONFIGS])
{
    static const int mode = DNN_HEURISTICS_A;
    void *heuristics = graph_create(g, DNN_HEURISTICS), *found[DNN_MAX_CONFIGS];
    int64_t n = 0;
    unsigned n_kept = 0;

    set_one(g, heuristics, DNN_HEURISTICS_GRAPH, g->graph);
    graph_set(g, heuristics, DNN_HEURISTICS_MODE, DNN_KIND_HEURISTICS, 1, &mode);
    set_one(g, heuristics, DNN_HEURISTICS_PROPERTIES, properties);
    finalize(g, heuristics);
    for (unsigned i = 0; i < DNN_MAX_CONFIGS; i++)
        found[i] = graph_create(g, DNN_ENGINE_CONFIG);
    if (!g->status)
        g->status = g->api->get(heuristics, DNN_HEURISTICS_RESULTS, DNN_KIND_DESCRIPTOR, DNN_MAX_CONFIGS, &n, found);
    for (int64_t i = 0; !g->status && i < n && i < DNN_MAX_CONFIGS; i++)
        if (graph_is_exact(g, found[i]))
            configs[n_kept++] = found[i];
    return n_kept;
}

void *dnn_graph_config(struct dnn_graph *g, int64_t index, void *properties, const struct dnn_choice *choices,
                       unsigned n)
{
    void *engine = graph_create(g, DNN_ENGINE), *knobs[DNN_MAX_KNOBS];

    set_one(g, engine, DNN_ENGINE_GRAPH, g->graph);
    graph_set(g, engine, DNN_ENGINE_INDEX, DNN_KIND_INT64, 1, &index);
    set_one(g, engine, DNN_ENGINE_PROPERTIES, properties);
    finalize(g, engine);
    for (unsigned i = 0; i < n; i++) {
        knobs[i] = graph_create(g, DNN_KNOB_CHOICE);
        graph_set(g, knobs[i], DNN_KNOB, DNN_KIND_KNOB, 1, &choices[i].knob);
        graph_set(g, knobs[i], DNN_KNOB_VALUE, DNN_KIND_INT64, 1, &choices[i].value);
        finalize(g, knobs[i]);
    }
    void *config = graph_create(g, DNN_ENGINE_CONFIG);
    set_one(g, config, DNN_CONFIG_ENGINE, engine);
    graph_set(g, config, DNN_CONFIG_KNOBS, DNN_KIND_DESCRIPTOR, n, knobs);
    finalize(g, config);
    return g->status ? NULL : config;
}

int dnn_config_choices(const struct dnn_api *api, void *config, int64_t *index,
                       struct dnn_choice choices[DNN_MAX_KNOBS])
{
    void *engine = NULL, *knobs[DNN_MAX_KNOBS + 1] = {NULL};
    int64_t got = 0, n = 0;
    int status = api->create_descriptor(DNN_ENGINE, &engine);

    for (int i = 0; i <= DNN_MAX_KNOBS && !status; i++)
        status = api->create_descriptor(DNN_KNOB_CHOICE, &knobs[i]);
    if (!status)
        status = api->get(config, DNN_CONFIG_ENGINE, DNN_KIND_DESCRIPTOR, 1, &got, &engine);
    if (!status)
        status = api->get(engine, DNN_ENGINE_INDEX, DNN_KIND_INT64, 1, &got, index);
    if (!status)
        status = api->get(config, DNN_CONFIG_KNOBS, DNN_KIND_DESCRIPTOR, DNN_MAX_KNOBS + 1, &n, knobs);
    for (int64_t i = 0; i < n && i < DNN_MAX_KNOBS && !status; i++) {
        status = api->get(knobs[i], DNN_KNOB, DNN_KIND_KNOB, 1, &got, &choices[i].knob);
        if (!status)
            status = api->get(knobs[i], DNN_KNOB_VALUE, DNN_KIND_INT64, 1, &got, &choices[i].value);
    }
    for (int i = 0; i <= DNN_MAX_KNOBS; i++)
        if (knobs[i])
            api->destroy_descriptor(knobs[i]);
    if (engine)
        api->destroy_descriptor(engine);
    return status || n > DNN_MAX_KNOBS ? -1 : (int)n;
}
