/* What a graph for cuDNN computes, operation by operation, in fp32; a tensor in bf16 is rounded when it is written, virtual or
 * not. Shapes and strides are the graph's, so one that says something else than was meant computes something else. */
#include "tests/sim/dnn.hpp"

#include <math.h>

enum { RANK = DNN_RANK, BLOCK_KEYS = 32 };

struct array {
    int64_t shape[RANK], strides[RANK];
    int type;
    bool is_virtual;
    char *data;
    std::vector<float> values; /* by shape, the last dimension fastest; empty: not there yet */

    int64_t size() const
    {
        return shape[0] * shape[1] * shape[2] * shape[3];
    }
    int64_t width() const
    {
        return type == DNN_BF16 ? 2 : 4;
    }
    /* Of element i, in elements from the tensor's first. */
    int64_t offset(int64_t i) const
    {
        int64_t at = 0;
        for (int d = RANK - 1; d >= 0; i /= shape[d--])
            at += i % shape[d] * strides[d];
        return at;
    }
    /* The element at an offset. */
    int64_t index(int64_t at) const
    {
        int64_t place[RANK] = {}, i = 0;
        bool done[RANK] = {};
        for (int round = 0; round < RANK; round++) {
            int widest = -1;
            for (int d = 0; d < RANK; d++)
                if (!done[d] && shape[d] > 1 && (widest < 0 || strides[d] > strides[widest]))
                    widest = d;
            if (widest < 0)
                break;
            done[widest] = true;
            place[widest] = at / strides[widest];
            at %= strides[widest];
        }
        for (int d = 0; d < RANK; d++)
            i = i * shape[d] + place[d];
        return i;
    }
};

typedef std::map<const descriptor *, array> arrays;

static const descriptor *find(const descriptor *d, int64_t id)
{
    if (d->kind == DNN_TENSOR)
        return element<int64_t>(d, DNN_TENSOR_ID) == id ? d : NULL;
    for (const auto &a : d->attributes)
        for (int64_t i = 0; a.second.kind == DNN_KIND_DESCRIPTOR && i < a.second.n; i++)
            if (const descriptor *found = find(element<const descriptor *>(d, a.first, i), id))
                return found;
    return NULL;
}

const descriptor *dnn_find_array(const descriptor *graph, int64_t id)
{
    return find(graph, id);
}

static bool flag(const descriptor *tensor, int name)
{
    return tensor->attributes.count(name) && element<bool>(tensor, name);
}

static void take(dnn_given *given, const descriptor *d, const descriptor *pack)
{
    for (const auto &a : d->attributes)
        for (int64_t i = 0; d->kind != DNN_TENSOR && a.second.kind == DNN_KIND_DESCRIPTOR && i < a.second.n; i++)
            take(given, element<const descriptor *>(d, a.first, i), pack);
    if (d->kind != DNN_TENSOR || flag(d, DNN_TENSOR_IS_VIRTUAL))
        return;
    const int64_t id = element<int64_t>(d, DNN_TENSOR_ID), alignment = element<int64_t>(d, DNN_TENSOR_ALIGNMENT);
    for (int64_t i = 0; i < pack->attributes.at(DNN_PACK_IDS).n; i++)
        if (element<int64_t>(pack, DNN_PACK_IDS, i) == id) {
            char *at = element<char *>(pack, DNN_PACK_POINTERS, i);
            if (flag(d, DNN_TENSOR_IS_BY_VALUE))
                memcpy(&given->scalars[id], at, sizeof(float));
            else if ((uintptr_t)at % (size_t)alignment)
                cudasim_fault("cuDNN: tensor %d at %p is not aligned as it was said to be", (int)id, (void *)at);
            else
                given->memory[id] = at;
            return;
        }
    cudasim_fault("cuDNN: the variant pack lacks tensor %d", (int)id);
}

dnn_given dnn_take_given(const descriptor *graph, const descriptor *pack)
{
    dnn_given given = {};

    take(&given, graph, pack);
    return given;
}

static float get(const array &a, const char *data, int64_t at)
{
    return a.type == DNN_BF16    ? number_from_bf16(((const uint16_t *)data)[at])
           : a.type == DNN_INT32 ? (float)((const int32_t *)data)[at]
                                 : ((const float *)data)[at];
}

static void check(const array &a, int64_t id, const dnn_given &given, bool writes)
{
    const size_t bytes = (size_t)((a.offset(a.size() - 1) + 1) * a.width());
    char who[32];

    snprintf(who, sizeof who, "cuDNN, tensor %d", (int)id);
    cudasim_check(who, a.data, bytes, writes);
    if (given.workspace_bytes && a.data < given.workspace + given.workspace_bytes && given.workspace < a.data + bytes)
        cudasim_fault("%s lies in the workspace", who);
}

/* The tensor, with its values if it is to be read. */
static array &load(arrays &all, const descriptor *d, const dnn_given &given, bool reads)
{
    array &a = all[d];
    const int64_t id = element<int64_t>(d, DNN_TENSOR_ID);

    if (!a.shape[0]) {
        for (int i = 0; i < RANK; i++)
            a.shape[i] = element<int64_t>(d, DNN_TENSOR_SHAPE, i),
            a.strides[i] = element<int64_t>(d, DNN_TENSOR_STRIDES, i);
        a.type = element<int>(d, DNN_TENSOR_TYPE);
        a.is_virtual = flag(d, DNN_TENSOR_IS_VIRTUAL);
        if (flag(d, DNN_TENSOR_IS_BY_VALUE))
            a.values = {given.scalars.at(id)};
        else if (!a.is_virtual)
            a.data = given.memory.at(id);
    }
    if (reads && a.values.empty()) {
        if (a.is_virtual)
            cudasim_fault("cuDNN: tensor %d is read before anything is written to it", (int)id);
        check(a, id, given, false);
        for (int64_t i = 0; i < a.size(); i++)
            a.values.push_back(get(a, a.data, a.offset(i)));
    }
    return a;
}

/* Rows beyond their lengths are not written, if there are any. */
static void store(array &a, const descriptor *d, const dnn_given &given, std::vector<float> &&values,
                  const array *lengths = NULL)
{
    a.values = values;
    for (float &x : a.values)
        x = a.type == DNN_BF16 ? number_from_bf16(number_to_bf16(x)) : x;
    if (a.is_virtual)
        return;
    check(a, element<int64_t>(d, DNN_TENSOR_ID), given, true);
    for (int64_t i = 0; i < a.size(); i++) {
        const int64_t row = i / a.shape[3] % a.shape[2], batch = i / a.shape[3] / a.shape[2] / a.shape[1];
        if (lengths && row >= (int64_t)lengths->values[(size_t)batch])
            continue;
        if (a.type == DNN_BF16)
            ((uint16_t *)a.data)[a.offset(i)] = number_to_bf16(a.values[(size_t)i]);
        else
            ((float *)a.data)[a.offset(i)] = a.values[(size_t)i];
    }
}

/* x's value for element i of y; x may have 1 where y has more. */
static float value_at(const array &x, const array &y, int64_t i)
{
    int64_t place[RANK], at = 0;

    for (int d = RANK - 1; d >= 0; i /= y.shape[d--])
        place[d] = i % y.shape[d];
    for (int d = 0; d < RANK; d++)
        at = at * x.shape[d] + (x.shape[d] == 1 ? 0 : place[d]);
    return x.values[(size_t)at];
}

/* The head of b, of which neighbouring heads of c may share one. */
static int64_t shared_head(const array &b, const array &c, int64_t head)
{
    if (b.shape[1] == 0 || c.shape[1] % b.shape[1] || b.shape[0] != c.shape[0])
        cudasim_fault("cuDNN: %d heads share %d", (int)c.shape[1], (int)b.shape[1]);
    return head / c.shape[1] * b.shape[1] + head % c.shape[1] / (c.shape[1] / b.shape[1]);
}

/* A row's length; without any, all. */
static int64_t length_of(const array *lengths, int64_t row, int64_t all)
{
    const int64_t n = lengths ? (int64_t)lengths->values.at((size_t)row) : all;

    if (n < 0 || n > all)
        cudasim_fault("cuDNN: row %d of %d has length %d", (int)row, (int)all, (int)n);
    return n;
}

/* Sums in memory come from blocks of keys, one after another, from any on. Lengths: of rows, columns and terms that count;
 * what is beyond them is not read, and is 0. */
static std::vector<float> multiply(const array &a, const array &b, const array &c, const array *const lengths[3],
                                   bool is_ordered)
{
    static int64_t turn;
    const int64_t m = a.shape[2], n = b.shape[3], k = a.shape[3], n_blocks = (k + BLOCK_KEYS - 1) / BLOCK_KEYS;
    const int64_t first = c.is_virtual || c.type != DNN_FP32 || is_ordered ? 0 : ++turn;
    std::vector<float> out((size_t)c.size());

    if (b.shape[2] != k || c.shape[2] != m || c.shape[3] != n)
        cudasim_fault("cuDNN: a product of (%d, %d) and (%d, %d) into (%d, %d)", (int)m, (int)k, (int)b.shape[2],
                      (int)n, (int)c.shape[2], (int)c.shape[3]);
    for (int64_t head = 0; head < c.shape[0] * c.shape[1]; head++) {
        const int64_t shared = shared_head(b, c, head), at = head / c.shape[1], n_rows = length_of(lengths[0], at, m),
                      n_columns = length_of(lengths[1], at, n), n_terms = length_of(lengths[2], at, k);
        for (int64_t row = 0; row < n_rows; row++)
            for (int64_t block = 0; block < n_blocks; block++) {
                const int64_t from = (first + block) % n_blocks * BLOCK_KEYS;
                for (int64_t i = from; i < n_terms && i < from + BLOCK_KEYS; i++) {
                    const float factor = a.values[(size_t)((head * m + row) * k + i)];
                    const float *right = &b.values[(size_t)((shared * k + i) * n)];
                    float *sum = &out[(size_t)((head * m + row) * n)];
                    for (int64_t column = 0; column < n_columns; column++)
                        sum[column] += factor * right[column];
                }
            }
    }
    return out;
}

static float apply(int mode, float x, float b, float t)
{
    switch (mode) {
    case DNN_ADD:
        return x + b;
    case DNN_MULTIPLY:
        return x * b;
    case DNN_DIVIDE:
        return x / b;
    case DNN_SUBTRACT:
        return x - b;
    case DNN_EXP:
        return expf(x);
    case DNN_LOG:
        return logf(x);
    case DNN_IDENTITY:
        return x;
    case DNN_NOT_LESS:
        return x >= b;
    case DNN_GREATER:
        return x > b;
    case DNN_LESS:
        return x < b;
    case DNN_AND:
        return x != 0 && b != 0;
    case DNN_SELECT:
        return t != 0 ? x : b;
    }
    cudasim_fault("cuDNN: pointwise mode %d", mode);
}

static std::vector<float> point(const descriptor *mode, const array &x, const array *b, const array *t, const array &y)
{
    const int what = element<int>(mode, DNN_POINTWISE_MODE);
    std::vector<float> out((size_t)y.size());

    for (int64_t i = 0; i < y.size(); i++) {
        int64_t place = i;
        if (what == DNN_INDEX) {
            for (int d = RANK - 1; d > element<int64_t>(mode, DNN_POINTWISE_AXIS); d--)
                place /= y.shape[d];
            out[(size_t)i] = (float)(place % y.shape[element<int64_t>(mode, DNN_POINTWISE_AXIS)]);
        } else
            out[(size_t)i] = apply(what, value_at(x, y, i), b ? value_at(*b, y, i) : 0, t ? value_at(*t, y, i) : 0);
    }
    return out;
}

/* Over neighbouring heads. */
static std::vector<float> sum_heads(int which, const array &x, const array &y)
{
    const int64_t n = x.shape[2] * x.shape[3];
    std::vector<float> out((size_t)y.size());

    if (which != DNN_SUM || x.shape[0] != y.shape[0] || x.shape[2] != y.shape[2] || x.shape[3] != y.shape[3])
        cudasim_fault("cuDNN: a reduction of heads is a sum of heads alone");
    for (int64_t i = 0; i < x.size(); i++)
        out[(size_t)(shared_head(y, x, i / n) * n + i % n)] += x.values[(size_t)i];
    return out;
}

/* Along the last dimension, or of heads. */
static std::vector<float> reduce(int which, const array &x, const array &y)
{
    const int64_t n = x.shape[3];
    std::vector<float> out;

    if (y.shape[1] != x.shape[1])
        return sum_heads(which, x, y);
    for (int64_t i = 0; i < y.size(); i++) {
        float result = which == DNN_MAXIMUM ? -INFINITY : 0;
        for (int64_t j = 0; j < n; j++) {
            const float value = x.values[(size_t)(i * n + j)];
            result = which == DNN_MAXIMUM ? fmaxf(result, value) : result + value;
        }
        out.push_back(result);
    }
    return out;
}

static void convolve(const descriptor *op, arrays &all, const dnn_given &given, int64_t splits)
{
    const int first = dnn_conv_first(op), result = op->kind == DNN_OPERATION_CONVOLUTION         ? 2
                                                   : op->kind == DNN_OPERATION_CONVOLUTION_INPUT ? 1
                                                                                                 : 0;
    const descriptor *d[3];
    dnn_conv_array given_arrays[3];

    for (int i = 0; i < 3; i++) {
        d[i] = element<const descriptor *>(op, first + 3 + i);
        const array &a = load(all, d[i], given, i != result);
        given_arrays[i] = {a.shape, &a.values};
    }
    store(all[d[result]], d[result], given,
          dnn_convolve(op, given_arrays[1], given_arrays[0], given_arrays[2], splits));
}

static void compute(const descriptor *op, arrays &all, const dnn_given &given, bool is_ordered, int64_t splits)
{
    const auto of = [&](int name) { return element<const descriptor *>(op, name); };
    const auto read = [&](int name) -> array & { return load(all, of(name), given, true); };
    const auto written = [&](int name) -> array & { return load(all, of(name), given, false); };
    const auto maybe = [&](int name) { return op->attributes.count(name) ? &read(name) : NULL; };

    if (op->kind == DNN_OPERATION_MATMUL) {
        array &c = written(DNN_OPERATION_MATMUL_C);
        const array *const lengths[] = {maybe(DNN_OPERATION_MATMUL_LENGTHS), maybe(DNN_OPERATION_MATMUL_LENGTHS + 1),
                                        maybe(DNN_OPERATION_MATMUL_LENGTHS + 2)};
        store(c, of(DNN_OPERATION_MATMUL_C), given,
              multiply(read(DNN_OPERATION_MATMUL_A), read(DNN_OPERATION_MATMUL_B), c, lengths, is_ordered), lengths[0]);
    } else if (op->kind == DNN_OPERATION_POINTWISE) {
        array &y = written(DNN_OPERATION_POINTWISE_Y);
        store(y, of(DNN_OPERATION_POINTWISE_Y), given,
              point(of(DNN_OPERATION_POINTWISE_MODE), read(DNN_OPERATION_POINTWISE_X), maybe(DNN_OPERATION_POINTWISE_B),
                    maybe(DNN_OPERATION_POINTWISE_T), y));
    } else if (op->kind == DNN_OPERATION_REDUCTION) {
        array &y = written(DNN_OPERATION_REDUCTION_Y);
        store(y, of(DNN_OPERATION_REDUCTION_Y), given,
              reduce(element<int>(of(DNN_OPERATION_REDUCTION_MODE), DNN_REDUCTION_OPERATOR),
                     read(DNN_OPERATION_REDUCTION_X), y));
    } else if (op->kind == DNN_OPERATION_RESHAPE) {
        const array &x = read(DNN_OPERATION_RESHAPE_X);
        array &y = written(DNN_OPERATION_RESHAPE_Y);
        std::vector<float> out;
        for (int64_t i = 0; i < y.size(); i++)
            out.push_back(x.values[(size_t)x.index(y.offset(i))]);
        store(y, of(DNN_OPERATION_RESHAPE_Y), given, std::move(out));
    } else if (op->kind == DNN_OPERATION_CONVOLUTION || op->kind == DNN_OPERATION_CONVOLUTION_INPUT ||
               op->kind == DNN_OPERATION_CONVOLUTION_WEIGHTS)
        convolve(op, all, given, splits);
    else
        cudasim_fault("cuDNN: an operation of kind %d", op->kind);
}

void dnn_compute(const descriptor *graph, const dnn_given &given, bool is_ordered, int64_t splits)
{
    arrays all;

    for (int64_t i = 0; i < graph->attributes.at(DNN_GRAPH_OPERATIONS).n; i++)
        compute(element<const descriptor *>(graph, DNN_GRAPH_OPERATIONS, i), all, given, is_ordered, splits);
}
