/* Convolutions in a graph for cuDNN, and their gradients: plain sums in fp32, by the shapes, strides and padding that the graph
 * says. */
#include "tests/sim/dnn.hpp"

const descriptor *dnn_find_conv(const descriptor *graph)
{
    const auto operations = graph->attributes.find(DNN_GRAPH_OPERATIONS);

    for (int64_t i = 0; operations != graph->attributes.end() && i < operations->second.n; i++) {
        const descriptor *op = element<const descriptor *>(graph, DNN_GRAPH_OPERATIONS, i);
        if (op->kind == DNN_OPERATION_CONVOLUTION || op->kind == DNN_OPERATION_CONVOLUTION_INPUT ||
            op->kind == DNN_OPERATION_CONVOLUTION_WEIGHTS)
            return op;
    }
    return NULL;
}

enum { MODE = 2, W = 3, X = 4, Y = 5 };

int dnn_conv_first(const descriptor *op)
{
    return op->kind == DNN_OPERATION_CONVOLUTION         ? DNN_OPERATION_CONVOLUTION_ALPHA
           : op->kind == DNN_OPERATION_CONVOLUTION_INPUT ? DNN_OPERATION_CONVOLUTION_INPUT_ALPHA
                                                         : DNN_OPERATION_CONVOLUTION_WEIGHTS_ALPHA;
}

int64_t dnn_conv_images(const descriptor *op)
{
    return element<int64_t>(element<const descriptor *>(op, dnn_conv_first(op) + X), DNN_TENSOR_SHAPE);
}

/* A result that something is done to is computed by engines for groups of one and even numbers of channels; no engine
 * writes a result of other than the factors' type by itself. */
bool dnn_takes_conv(const descriptor *graph)
{
    const descriptor *op = dnn_find_conv(graph);
    const int first = dnn_conv_first(op);
    const descriptor *w = element<const descriptor *>(op, first + W), *x = element<const descriptor *>(op, first + X);
    const descriptor *y = element<const descriptor *>(op, first + Y);
    const descriptor *result = op->kind == DNN_OPERATION_CONVOLUTION         ? y
                               : op->kind == DNN_OPERATION_CONVOLUTION_INPUT ? x
                                                                             : w;
    const int64_t in = element<int64_t>(x, DNN_TENSOR_SHAPE, 1), out = element<int64_t>(y, DNN_TENSOR_SHAPE, 1);

    if (graph->attributes.at(DNN_GRAPH_OPERATIONS).n == 1)
        return element<int>(result, DNN_TENSOR_TYPE) == DNN_BF16;
    return element<int64_t>(w, DNN_TENSOR_SHAPE, 1) == in && in % 2 == 0 && out % 2 == 0;
}

struct shapes {
    int64_t n, in, height, width, out, down, across, in_group, out_group, window_height, window_width, stride, padding;

    int64_t x_at(int64_t i, int64_t c, int64_t line, int64_t column) const
    {
        return ((i * in + c) * height + line) * width + column;
    }
    int64_t y_at(int64_t i, int64_t o, int64_t line, int64_t column) const
    {
        return ((i * out + o) * down + line) * across + column;
    }
    int64_t w_at(int64_t o, int64_t c, int64_t ky, int64_t kx) const
    {
        return ((o * in_group + c) * window_height + ky) * window_width + kx;
    }
};

/* Which element of each of the three a term has. */
struct term {
    int64_t x, w, y;
};

/* Calls f for each pixel of y, channels of both of a group, and tap that lies in the image. */
template <typename F> static void each_term(const shapes &s, F f)
{
    for (int64_t i = 0; i < s.n; i++)
        for (int64_t o = 0; o < s.out; o++)
            for (int64_t line = 0; line < s.down; line++)
                for (int64_t column = 0; column < s.across; column++)
                    for (int64_t ky = 0; ky < s.window_height; ky++)
                        for (int64_t kx = 0; kx < s.window_width; kx++) {
                            const int64_t down = line * s.stride + ky - s.padding,
                                          across = column * s.stride + kx - s.padding;
                            if (down < 0 || down >= s.height || across < 0 || across >= s.width)
                                continue;
                            for (int64_t c = 0; c < s.in_group; c++)
                                f(term{s.x_at(i, o / s.out_group * s.in_group + c, down, across), s.w_at(o, c, ky, kx),
                                       s.y_at(i, o, line, column)},
                                  c);
                        }
}

static shapes shapes_of(const descriptor *op, const dnn_conv_array &x, const dnn_conv_array &w, const dnn_conv_array &y)
{
    const descriptor *mode = element<const descriptor *>(op, dnn_conv_first(op) + MODE);
    const int64_t stride = element<int64_t>(mode, DNN_CONVOLUTION_STRIDES, 1),
                  padding = element<int64_t>(mode, DNN_CONVOLUTION_PADDING_BEFORE, 1);
    const shapes s = {x.shape[0], x.shape[1], x.shape[2],
                      x.shape[3], y.shape[1], y.shape[2],
                      y.shape[3], w.shape[1], y.shape[1] / (x.shape[1] / w.shape[1]),
                      w.shape[2], w.shape[3], stride,
                      padding};

    if (element<int64_t>(mode, DNN_CONVOLUTION_STRIDES) != stride ||
        element<int64_t>(mode, DNN_CONVOLUTION_PADDING_AFTER) != padding || y.shape[0] != s.n || w.shape[0] != s.out ||
        s.down != (s.height + 2 * padding - s.window_height) / stride + 1 ||
        s.across != (s.width + 2 * padding - s.window_width) / stride + 1)
        cudasim_fault("cuDNN: a convolution whose shapes do not fit each other");
    return s;
}

std::vector<float> dnn_convolve(const descriptor *op, const dnn_conv_array &x, const dnn_conv_array &w,
                                const dnn_conv_array &y, int64_t splits)
{
    const shapes s = shapes_of(op, x, w, y);
    const int64_t n_x = s.n * s.in * s.height * s.width, n_y = s.n * s.out * s.down * s.across,
                  n_w = s.out * s.in_group * s.window_height * s.window_width;
    const bool is_forward = op->kind == DNN_OPERATION_CONVOLUTION,
               is_input = op->kind == DNN_OPERATION_CONVOLUTION_INPUT;
    const int64_t n = is_forward ? n_y : is_input ? n_x : n_w;
    /* In parts, terms alternate between two sums; by the number of images, one of each few goes elsewhere. */
    std::vector<float> sums[2] = {std::vector<float>((size_t)n), std::vector<float>((size_t)n)};

    each_term(s, [&](const term &t, int64_t c) {
        const size_t part = splits > 1 && (c + t.w) % (2 + s.n % 5) == 0;
        if (is_forward)
            sums[part][(size_t)t.y] += (*x.values)[(size_t)t.x] * (*w.values)[(size_t)t.w];
        else if (is_input)
            sums[part][(size_t)t.x] += (*y.values)[(size_t)t.y] * (*w.values)[(size_t)t.w];
        else
            sums[part][(size_t)t.w] += (*y.values)[(size_t)t.y] * (*x.values)[(size_t)t.x];
    });
    /* Of what is rounded to bf16 parts are, too: else few bits would show that they depend on the number of images. */
    for (size_t i = 0; splits > 1 && i < sums[0].size(); i++)
        sums[0][i] = (is_forward || is_input ? number_from_bf16(number_to_bf16(sums[0][i])) : sums[0][i]) + sums[1][i];
    return sums[0];
}
