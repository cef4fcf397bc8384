/* tests/sim/dnn.hpp - what dnn.cpp and dnn_graph.cpp share: descriptors, and what a graph computes. */
#ifndef TESTS_SIM_DNN_HPP
#define TESTS_SIM_DNN_HPP

#include "tests/sim/state.hpp"

extern "C" {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow" /* in C a function may have a struct's name */
#include "device/cuda/dnn/graph.h"
#pragma GCC diagnostic pop
}

#include <map>
#include <string.h>
#include <vector>

struct attribute {
    int kind;
    int64_t n;
    std::vector<char> bytes;
};

struct descriptor {
    int kind;
    bool finalized;
    std::map<int, attribute> attributes;
    unsigned proposal; /* of a configuration and its engine */
    descriptor *graph; /* that it was proposed for */
    int64_t engine;    /* of a configuration that was not proposed, but asked for by number; 0 */
    int64_t splits;    /* of a convolution's: parts of its sums; 0: it is none of these */
};

/* Element i of an attribute, which must be there. */
template <typename T> T element(const descriptor *d, int name, int64_t i = 0)
{
    const auto found = d->attributes.find(name);
    T value;

    if (found == d->attributes.end() || i >= found->second.n)
        cudasim_fault("cuDNN: descriptor of kind %d lacks element %d of attribute %d", d->kind, (int)i, name);
    memcpy(&value, found->second.bytes.data() + (size_t)i * sizeof value, sizeof value);
    return value;
}

/* What the caller of a plan gave: memory, and scalars by value, by the tensors' ids. */
struct dnn_given {
    std::map<int64_t, char *> memory;
    std::map<int64_t, float> scalars;
    char *workspace;
    size_t workspace_bytes;
};

/* The tensor of this id in a graph; NULL. */
const descriptor *dnn_find_array(const descriptor *graph, int64_t id);
/* Faults if the pack lacks one that is not virtual, or its address is not aligned as was said. */
dnn_given dnn_take_given(const descriptor *graph, const descriptor *pack);
/* Faults if memory is not there for a tensor, by its shape and strides, or is the workspace's. is_ordered: sums in memory get their terms in the
 * same order each time; else not, as where blocks add to them as they come. */
void dnn_compute(const descriptor *graph, const dnn_given &given, bool is_ordered, int64_t splits);

/* dnn_conv.cpp: convolutions. The operation of a graph; NULL: it has none. */
const descriptor *dnn_find_conv(const descriptor *graph);
/* Its first attribute: the three operations have theirs in one order, alpha, beta, mode, w, x, y. */
int dnn_conv_first(const descriptor *op);
/* Images of one of its calls. */
int64_t dnn_conv_images(const descriptor *op);
/* Whether the library takes such a graph: tests/gpu/test_dnn.c has what it says. */
bool dnn_takes_conv(const descriptor *graph);

struct dnn_conv_array {
    const int64_t *shape; /* (4): images or channels of y, channels, height, width */
    const std::vector<float> *values;
};
/* What the operation computes: the missing one of x, w and y, by shape; splits: parts of each sum. */
std::vector<float> dnn_convolve(const descriptor *op, const dnn_conv_array &x, const dnn_conv_array &w,
                                const dnn_conv_array &y, int64_t splits);

#endif
